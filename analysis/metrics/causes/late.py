"""Which collectives had a late rank: late by more than clocks are uncertain, or too often for chance.

A single arrival within the uncertainty of clocks proves nothing. But the call of the last rank is the shortest of its
collective, and that needs no clock. By chance, each of n ranks is last in one of n collectives: a rank that is last in
far more is late.
"""

from __future__ import annotations

from math import exp, lgamma, log, log1p

import numpy as np
import pandas as pd

from ....common.nccl_tests import SYNCHRONISING
from ...core.arrays import Floats
from ..needs import FROM_ROOT, TO_ROOT

CHANCE = 1e-6  # below this, being last so often is not chance
_LEAST_MARGIN_NS = 1_000


def late_ranks(collectives: pd.DataFrame, members: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """The collectives with a late rank: `collective_id`, `rank`, `late_ns` and `chance`.

    The last rank is late if it came later than the one before it, or than the median of the others if several are late
    together, by more than the uncertainty of the members' clocks; `chance` is then NA. A rank that comes last by less
    counts if it is last in so many collectives of its group and kind that the probability of this by chance is below
    CHANCE, and if that does not rest on clocks: its own call is shorter than all others.
    """
    split = members.groupby("collective_id")["wait_ns"].count()
    known = collectives["complete"].fillna(False) | (collectives["collective_id"].map(split) > 0)
    whole = collectives[known & collectives["certain"].fillna(False)]
    synchronising = whole[whole["collective"].isin(SYNCHRONISING) & whole["last_rank"].notna()]
    uncertain = uncertainty(members, clocks).reindex(synchronising["collective_id"]).to_numpy()
    alone = synchronising["last_by_ns"].to_numpy(dtype=np.float64, na_value=np.nan) > uncertain
    behind = _behind_median(synchronising, members)
    clearly = alone | (behind > uncertain)
    behind_ns = pd.Series(behind, synchronising.index).round().astype("Int64")
    late_ns = synchronising["last_by_ns"].where(alone, behind_ns)
    last = synchronising.assign(rank=synchronising["last_rank"], late_ns=late_ns, chance=np.nan)
    often = _often(synchronising[~clearly], synchronising, members)
    columns = ["collective_id", "rank", "late_ns", "chance"]
    parts = [last.loc[clearly, columns], often[columns], _rooted(whole, members, clocks)[columns]]
    return pd.concat([p for p in parts if len(p)] or parts[:1]).sort_values("collective_id", ignore_index=True)


def uncertainty(members: pd.DataFrame, clocks: pd.DataFrame) -> pd.Series[float]:
    """The largest uncertainty among the clocks of each collective's members, in ns."""
    of_member = members["rank"].map(clocks.set_index("rank")["bent_uncertainty_ns"]).astype("float64")
    return of_member.groupby(members["collective_id"]).max()


def _behind_median(collectives: pd.DataFrame, members: pd.DataFrame) -> Floats:
    """How much later the last rank of each collective came than the median of the others, in ns; NaN if not known."""
    ordered = members[["collective_id", "late_ns"]].dropna().sort_values(["collective_id", "late_ns"], kind="stable")
    before_last = ordered["collective_id"].duplicated(keep="last")
    median = ordered[before_last].groupby("collective_id")["late_ns"].median()
    last = ordered[~before_last].set_index("collective_id")["late_ns"]
    behind: Floats = (last - median).reindex(collectives["collective_id"]).to_numpy(dtype=np.float64, na_value=np.nan)
    return behind


def _often(unclear: pd.DataFrame, every: pd.DataFrame, members: pd.DataFrame) -> pd.DataFrame:
    """The `unclear` collectives whose last rank is last too often for chance, among `every` collective of its kind."""
    margins = _margins(members[members["collective_id"].isin(unclear["collective_id"])])
    known = unclear.merge(margins, on="collective_id")
    known = known[(known["shortest"] == known["last_rank"]) & (known["margin_ns"] >= _LEAST_MARGIN_NS)]
    known = known.assign(rank=known["last_rank"], late_ns=known["last_by_ns"])
    keys = ["process_group", "pg_ranks", "collective"]
    total = every.groupby(keys, dropna=False).size().rename("total")
    times = known.groupby([*keys, "rank"], dropna=False).size().rename("times")
    counted = times.reset_index().merge(total.reset_index(), on=keys)
    size = counted["pg_ranks"].str.count(" ").fillna(1).astype(int) + 1
    counted["chance"] = [
        min(1.0, n * tail(int(x), int(t), 1 / n))
        for x, t, n in zip(counted["times"], counted["total"], size, strict=True)
    ]
    likely = counted[counted["chance"] < CHANCE]
    return known.merge(likely[[*keys, "rank", "chance"]], on=[*keys, "rank"])


def _margins(members: pd.DataFrame) -> pd.DataFrame:
    """One row per collective of three or more ranks: the rank with the shortest call, and by how much it is shorter."""
    ordered = members.sort_values(["collective_id", "dur_ns"], kind="stable")
    number = ordered.groupby("collective_id").cumcount()
    size = ordered.groupby("collective_id")["rank"].transform("size")
    first = ordered[(number == 0) & (size > 2)].set_index("collective_id")
    second = ordered[(number == 1) & (size > 2)].set_index("collective_id")
    margin = second["dur_ns"].reindex(first.index) - first["dur_ns"]
    return pd.DataFrame({"shortest": first["rank"], "margin_ns": margin}).reset_index()


def _rooted(whole: pd.DataFrame, members: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """For collectives with a root, the rank that others waited for longest, if longer than clocks are uncertain."""
    ids = whole["collective_id"][whole["collective"].isin([*FROM_ROOT, *TO_ROOT])]
    waited = members[members["collective_id"].isin(ids) & members["waited_for"].notna()]
    longest = waited.sort_values("wait_ns").drop_duplicates("collective_id", keep="last")
    uncertain = uncertainty(members, clocks).reindex(longest["collective_id"]).to_numpy()
    late = longest[longest["wait_ns"].to_numpy(dtype=np.float64) > uncertain]
    return late.assign(rank=late["waited_for"], late_ns=late["wait_ns"], chance=np.nan)


def tail(times: int, total: int, chance: float) -> float:
    """The probability that at least `times` of `total` events happen, if each does with probability `chance`.

    This is the upper tail of a binomial distribution.
    """
    if times <= 0:
        return 1.0
    if times > total or chance >= 1:
        return float(chance >= 1)
    terms = [
        lgamma(total + 1) - lgamma(k + 1) - lgamma(total - k + 1) + k * log(chance) + (total - k) * log1p(-chance)
        for k in range(times, total + 1)
    ]
    most = max(terms)
    return min(1.0, exp(most) * sum(exp(term - most) for term in terms))
