"""Which rank caused each wait: the one waited for, or the one that had made it late."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ...core.frames import pd

_AS_LATE = 0.25
"""Of the usual wait for a late rank: who waits for it no longer is about as late itself."""
_WAITS = ["collective_id", "kernel", "rank", "wait_ns", "exposed_wait_ns", "waited_for"]


def kernel_of(participation: pd.DataFrame) -> pd.Series[int]:
    """A number for the kernel of each call, the same for sends and receives of one kernel."""
    return participation["batch"].fillna(participation["call_id"]).astype("int64")


def blamed(participation: pd.DataFrame, lateness: pd.DataFrame) -> pd.DataFrame:
    """One row per split kernel: `rank`, `wait_ns`, `exposed_wait_ns`, and `blamed`, the rank to blame, NA if not known.

    If the rank that a call waited for was late, it is to blame, or the rank with which its lateness began. Nobody is to
    blame for a wait for a rank that was not late by more than clocks are uncertain. `participation` and `lateness` are
    the tables of these names.
    """
    kernels = participation.assign(kernel=kernel_of(participation))
    split = kernels.loc[kernels["wait_ns"].notna(), _WAITS]
    late = lateness[["collective_id", "rank", "because", "origin_rank"]].rename(columns={"rank": "waited_for"})
    joined = split.merge(late.assign(late=True), on=["collective_id", "waited_for"], how="left")
    known = joined["late"].notna()
    # A kernel that does several sends and receives waits once, for one of its peers.
    joined = joined.assign(known=known).sort_values("known", ascending=False, kind="stable").drop_duplicates("kernel")
    known = joined["known"]
    # A rank that was late for no known reason is to blame; one held up by communication of unknown cause is not.
    unknown = joined["waited_for"].where(joined["because"].isna())
    return joined.assign(blamed=joined["origin_rank"].fillna(unknown).where(known).astype("Int64"))


def caused(waits: pd.DataFrame, column: str = "wait_ns") -> pd.Series[int]:
    """The waiting of others that each rank is to blame for, in ns, by rank.

    `waits` come from `blamed`, and `column` says which waiting: `wait_ns` or `exposed_wait_ns`.
    """
    others = waits[waits["blamed"].notna() & (waits["blamed"] != waits["rank"])]
    sums: pd.Series[int] = others.groupby("blamed")[column].sum().astype("int64")
    return sums


class ForWhom(NamedTuple):
    """How long each rank waits for each other one in a step, in ns: one row per `rank` and `blamed`, NA if not known.

    It is waiting behind which the rank does not compute. `ranks` are all of them.
    """

    waits: pd.DataFrame
    ranks: frozenset[int]

    @property
    def known_ns(self) -> float:
        """How long a rank waits for others that are known, on the mean of all."""
        return self._mean(self.waits["blamed"].notna() & (self.waits["blamed"] != self.waits["rank"]), self.ranks)

    def others_ns(self, late: Collection[int]) -> float:
        """How long another rank waits for these, on the mean: a step gains no more where such waiting is all that goes.

        All ranks gain as much, so one that waits less than the mean already bounds it. What late ranks wait for each
        other is no wait of another one.
        """
        others = self.ranks - set(late)
        return self._mean(self.waits["blamed"].isin(list(late)) & self.waits["rank"].isin(list(others)), others)

    def _mean(self, which: pd.Series[bool], ranks: Collection[int]) -> float:
        return float(self.waits.loc[which.fillna(False), "ns"].sum()) / max(len(ranks), 1)


def for_whom(waits: pd.DataFrame, exposed_ns: Mapping[int, float]) -> ForWhom:
    """Divide the exposed waiting of each rank in a step by whom it waits for.

    `waits` come from `blamed`. Kernels of a rank that wait at the same time count once in `exposed_ns`, so they say
    what parts it has; where it is not known what was exposed, the parts are those of all waiting.
    """
    column = "exposed_wait_ns" if waits["exposed_wait_ns"].notna().any() else "wait_ns"
    known = waits[["rank", "blamed"]].assign(ns=waits[column].astype("float64"))
    sums = known.groupby(["rank", "blamed"], dropna=False, as_index=False)["ns"].sum()
    whole = sums["rank"].map(sums.groupby("rank")["ns"].sum())
    exposed = sums["rank"].map(exposed_ns).fillna(0.0)
    return ForWhom(sums.assign(ns=(sums["ns"] * exposed / whole).fillna(0.0)), frozenset(exposed_ns))


def shares_of_waiting(table: pd.DataFrame, key: str) -> pd.Series[float]:
    """The part of exposed waiting that each rank, or host, caused: 0 to 1, by rank or host.

    `table` is `ranks` or `hosts`, and `key` its first column. Waiting behind compute costs nothing, so it does not
    count; but where it is not known what was exposed, it is the part of all waiting.
    """
    by_key = table.set_index(key)
    exposed = by_key["caused_exposed_frac"]
    shares: pd.Series[float] = (exposed if exposed.notna().any() else by_key["caused_wait_frac"]).dropna()
    return shares.astype("float64")


def standing_out(shares: pd.Series[float], *, least: float = 0.15, factor: float = 3.0) -> list[Any]:
    """The keys with a share of at least `least`, and `factor` times the lower median of the others; largest first.

    Where all ranks are late in turn, none stands out.
    """
    outstanding = []
    for key, share in shares.sort_values(ascending=False).items():
        others = shares.drop(key).sort_values()
        middle = float(others.iloc[(len(others) - 1) // 2]) if len(others) else 0.0
        if share >= least and share >= factor * middle:
            outstanding.append(key)
    return outstanding


def as_late(participation: pd.DataFrame, late: Collection[int]) -> set[int]:
    """Ranks that come about as late as one of the `late` ones where that is last: without it, they would be.

    Such as the ranks at the same place of each host. `participation` is the table.
    """
    found: set[int] = set()
    for rank in late:
        waited = participation.loc[participation["waited_for"] == rank, "collective_id"]
        others = participation[participation["collective_id"].isin(waited) & (participation["rank"] != rank)]
        waits = others.groupby("rank")["wait_ns"].sum()
        found |= set(waits.index[waits <= _AS_LATE * waits.median()])
    return found - set(late)
