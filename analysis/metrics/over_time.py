"""Bandwidth and waiting over time: sums per interval, process group, kind of collective and size class.

Collectives are taken as they come, and only sums are kept. Percentiles are those of a histogram with 256 bins for every
doubling of bandwidth, so they are right to 0.14 %. Definitions: docs/metrics/over-time.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...common.nccl_tests import bus_factor
from ..core.arrays import Flags, Floats, Ints
from ..core.schema import Row

_BINS = 256
_KEYS = ["interval", "group", "kind", "size_class"]
_MOST_ROWS = 500_000
_LAST_BY_NS = 2_000
"""A rank that comes last by less may as well not be the last: durations are whole microseconds in some files."""


class MetCollectives(NamedTuple):
    """Collectives as columns; NaN where a value is not known, as for those that could not be split.

    `group` and `kind` count into lists of whoever collects them. `wait_ns`, `wait_low_ns` and `dur_ns` are sums over
    the ranks seen, `wait_low_ns` the least they waited; `mean_dur_ns` is their mean. `last` is the rank that came last,
    by `last_by_ns`. `logged` and `logged_gb_per_s` are how many bandwidths the file itself has, and their sum.
    """

    at_ns: Ints
    group: Ints
    kind: Ints
    size_bytes: Floats
    busbw_factor: Floats
    transfer_ns: Floats
    transfer_low_ns: Floats
    transfer_high_ns: Floats
    wait_ns: Floats
    wait_low_ns: Floats
    dur_ns: Floats
    mean_dur_ns: Floats
    last: Ints
    last_by_ns: Floats
    logged: Ints
    logged_gb_per_s: Floats


class GroupNames(NamedTuple):
    """Name of a group, its global ranks as text, their number, and the global rank of each number in `last`."""

    name: str | None
    pg_ranks: str | None
    size: int | None
    rank_of: Callable[[int], int | None]


@dataclass
class OverTime:
    """Running sums, in intervals of `every_ns`."""

    every_ns: int
    _sums: list[pd.DataFrame] = field(default_factory=list)
    _bins: list[pd.DataFrame] = field(default_factory=list)
    _caused: list[pd.DataFrame] = field(default_factory=list)

    def add(self, met: MetCollectives) -> None:
        """Add these collectives to the sums."""
        if not len(met.at_ns):
            return
        columns = _columns(met, self.every_ns)
        sums = columns.drop(columns=["busbw", "last", "caused_ns"]).groupby(_KEYS, sort=False).sum()
        sums["busbw_min"] = columns.groupby(_KEYS, sort=False)["busbw"].min()
        self._sums.append(sums)
        known = columns[columns["busbw"] > 0]
        bins = known[_KEYS].assign(bin=np.floor(np.log2(known["busbw"]) * _BINS).astype("int64"))
        self._bins.append(bins.groupby([*_KEYS, "bin"], sort=False).size().to_frame("count"))
        late = columns[columns["last"] >= 0]
        self._caused.append(late.groupby([*_KEYS, "last"], sort=False)[["caused_ns"]].sum())
        for parts in (self._sums, self._bins, self._caused):
            if sum(map(len, parts)) > _MOST_ROWS + 2 * len(parts[0]):
                parts[:] = [_together(parts)]

    def rows(self, kinds: Sequence[str | None], group: Callable[[int], GroupNames]) -> list[Row]:
        """Rows of `bandwidth_times`: one per interval, group, kind and size class, in this order."""
        if not self._sums:
            return []
        sums, bins, caused = (_together(parts) for parts in (self._sums, self._bins, self._caused))
        percentiles = _percentiles(bins)
        worst = caused.reset_index().sort_values("caused_ns").drop_duplicates(_KEYS, keep="last").set_index(_KEYS)
        rows: list[Row] = []
        for key, sums_of_row in sums.sort_index().iterrows():
            assert isinstance(key, tuple)
            names = group(int(key[1]))
            row = _figures(sums_of_row) | percentiles.get(key, {}) | _straggler(worst, key, sums_of_row, names)
            rows.append(_place(key, self.every_ns) | {
                "process_group": names.name,
                "pg_ranks": names.pg_ranks,
                "group_size": names.size,
                "collective": kinds[int(key[2])],
            } | row)  # fmt: skip
        rows.sort(key=_order)
        return rows


def _columns(met: MetCollectives, every_ns: int) -> pd.DataFrame:
    """One row per collective: its interval, group, kind and size class, and the values to sum."""
    split = ~np.isnan(met.transfer_ns) & (met.transfer_ns > 0)
    sized = ~np.isnan(met.size_bytes) & (met.size_bytes > 0)
    measured = split & sized & ~np.isnan(met.busbw_factor)
    wire = np.where(sized, met.size_bytes * met.busbw_factor, np.nan)

    def where(flags: Flags, values: Floats) -> Floats:
        return np.where(flags, np.nan_to_num(values), 0.0)

    with np.errstate(divide="ignore", invalid="ignore"):
        busbw = np.where(measured, wire / met.transfer_ns, np.nan)
    return pd.DataFrame({
        "interval": met.at_ns // every_ns,
        "group": met.group,
        "kind": met.kind,
        "size_class": np.where(sized, np.frexp(np.nan_to_num(met.size_bytes))[1] - 1, -1),
        "calls": 1,
        "split": split.astype(np.int64),
        "measured": measured.astype(np.int64),
        "wire_bytes": where(measured, wire),
        "transfer_ns": where(measured, met.transfer_ns),
        "high_ns": where(measured, met.transfer_high_ns),
        "low_ns": where(measured, met.transfer_low_ns),
        "all_wire_bytes": where(sized & ~np.isnan(wire), wire),
        "mean_dur_ns": where(sized & ~np.isnan(wire), met.mean_dur_ns),
        "wait_ns": where(split, met.wait_ns),
        "split_dur_ns": where(split, met.dur_ns),
        "wait_low_ns": np.nan_to_num(met.wait_low_ns),
        "dur_ns": met.dur_ns,
        "logged": met.logged,
        "logged_gb_per_s": met.logged_gb_per_s,
        "busbw": busbw,
        "last": np.where(split & (met.last_by_ns > _LAST_BY_NS), met.last, -1),
        "caused_ns": where(split, met.wait_ns),
    })  # fmt: skip


def _together(parts: list[pd.DataFrame]) -> pd.DataFrame:
    joined = pd.concat(parts)
    grouped = joined.groupby(level=list(range(joined.index.nlevels)), sort=False)
    if "busbw_min" not in joined:
        return grouped.sum()
    return grouped.sum().assign(busbw_min=grouped["busbw_min"].min())


def _percentiles(bins: pd.DataFrame) -> dict[tuple[Any, ...], Row]:
    """Median and 95th percentile of bus bandwidth by key, each the middle of its histogram bin."""
    percentiles: dict[tuple[Any, ...], Row] = {}
    table = bins.reset_index().sort_values([*_KEYS, "bin"])
    for key, bins_of_key in table.groupby(_KEYS, sort=False):
        numbers, below = bins_of_key["bin"].to_numpy(), bins_of_key["count"].cumsum().to_numpy()
        at = [int(numbers[np.searchsorted(below, part * below[-1])]) for part in (0.5, 0.95)]
        median, high = (2.0 ** ((number + 0.5) / _BINS) for number in at)
        percentiles[key] = {"busbw_median_gb_per_s": median, "busbw_p95_gb_per_s": high}
    return percentiles


def _figures(sums: pd.Series[Any]) -> Row:
    """Turn the sums of one row into figures: sums are divided; only ratios that the file has are averaged."""

    def ratio(above: str, below: str) -> float | None:
        return float(sums[above] / sums[below]) if sums[below] > 0 else None

    return {
        "calls": int(sums["calls"]),
        "split_calls": int(sums["split"]),
        "busbw_gb_per_s": ratio("wire_bytes", "transfer_ns"),
        "busbw_low_gb_per_s": ratio("wire_bytes", "high_ns"),
        "busbw_high_gb_per_s": ratio("wire_bytes", "low_ns"),
        "busbw_min_gb_per_s": float(sums["busbw_min"]) if sums["measured"] else None,
        "busbw_from_dur_gb_per_s": ratio("all_wire_bytes", "mean_dur_ns"),
        "busbw_logged_gb_per_s": ratio("logged_gb_per_s", "logged"),
        "wait_frac": ratio("wait_ns", "split_dur_ns"),
        "wait_low_frac": ratio("wait_low_ns", "dur_ns"),
    }


def _straggler(worst: pd.DataFrame, key: tuple[Any, ...], sums: pd.Series[Any], names: GroupNames) -> Row:
    if key not in worst.index or not sums["wait_ns"] > 0:
        return {}
    worst_row = worst.loc[[key]].iloc[0]
    share = float(worst_row["caused_ns"]) / float(sums["wait_ns"])
    return {"straggler_rank": names.rank_of(int(worst_row["last"])), "straggler_frac": share}


def _place(key: tuple[Any, ...], every_ns: int) -> Row:
    begin_ns = int(key[0]) * every_ns
    return {
        "begin": str(pd.Timestamp(begin_ns)).partition(".")[0],
        "begin_ns": begin_ns,
        "size_from_bytes": None if key[3] < 0 else 1 << int(key[3]),
    }


def _order(row: Row) -> tuple[Any, ...]:
    return row["begin_ns"], row["process_group"] or "", row["collective"] or "", row["size_from_bytes"] or 0


def collectives_over_time(collectives: pd.DataFrame, participation: pd.DataFrame, every_ns: int) -> list[Row]:
    """Rows of `bandwidth_times`, in intervals of `every_ns`, of collectives that are known as tables."""
    over_time = OverTime(every_ns)
    if not len(collectives):
        return []
    groups, distinct = pd.factorize(pd.MultiIndex.from_frame(collectives[["process_group", "pg_ranks"]]))
    kinds, names = pd.factorize(collectives["collective"], use_na_sentinel=False)
    over_time.add(_met(collectives, participation, groups, kinds))
    sizes = collectives["group_size"].groupby(groups).first()

    def group(number: int) -> GroupNames:
        name, ranks = (None if pd.isna(value) else str(value) for value in distinct[number])
        return GroupNames(name, ranks, None if pd.isna(sizes[number]) else int(sizes[number]), lambda rank: rank)

    return over_time.rows([None if pd.isna(name) else str(name) for name in names], group)


def _met(collectives: pd.DataFrame, participation: pd.DataFrame, groups: Any, kinds: Any) -> MetCollectives:
    of_calls = participation.groupby("collective_id")
    sums = of_calls[["wait_ns", "wait_low_ns", "dur_ns"]].sum(min_count=1).reindex(collectives["collective_id"])
    mean = of_calls["dur_ns"].mean().reindex(collectives["collective_id"])

    def floats(column: pd.Series[Any]) -> Floats:
        return column.to_numpy(dtype=np.float64, na_value=np.nan)

    pairs = zip(collectives["collective"], collectives["group_size"], strict=True)
    return MetCollectives(
        at_ns=collectives["first_start_ns"].to_numpy(dtype=np.int64),
        group=groups,
        kind=kinds,
        size_bytes=floats(collectives["size_bytes"]),
        busbw_factor=np.array([known_bus_factor(*pair) for pair in pairs], dtype=np.float64),
        transfer_ns=floats(collectives["transfer_ns"]),
        transfer_low_ns=floats(collectives["transfer_low_ns"]),
        transfer_high_ns=floats(collectives["transfer_high_ns"]),
        wait_ns=floats(sums["wait_ns"]),
        wait_low_ns=floats(sums["wait_low_ns"]),
        dur_ns=floats(sums["dur_ns"]),
        mean_dur_ns=floats(mean),
        last=collectives["last_rank"].fillna(-1).to_numpy(dtype=np.int64),
        last_by_ns=floats(collectives["last_by_ns"]),
        logged=np.zeros(len(collectives), dtype=np.int64),
        logged_gb_per_s=np.zeros(len(collectives)),
    )


def known_bus_factor(collective: Any, group_size: Any) -> float:
    """The bus factor, NaN where the collective or the size of its group is not known, or it moves nothing."""
    if pd.isna(collective) or pd.isna(group_size) or collective == "barrier":
        return np.nan
    return bus_factor(str(collective), int(group_size))
