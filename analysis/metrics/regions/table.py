"""The tables `regions`, `regions_ranks` and `regions_steps`. Definitions: docs/metrics/regions.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from ...core.schema import Row
from ...core.steps import NO_STEP
from ...core.tables.regions import REGIONS, REGIONS_RANKS, REGIONS_STEPS
from .device_parts import SELF_PARTS
from .nesting import DIRECT, NAMES, NO_REGION, PHASES, RegionPaths
from .times import KEYS, SUMS, RegionTimes

_OWN = ("compute_ns", "exposed_transfer_ns", "exposed_memory_ns", "idle_ns")
"""What a rank takes itself; it waits for others."""
_PLACE = ["path", "phase"]
_SPLIT = ("exposed_transfer_ns", "exposed_wait_ns")
_SELF = [f"{part}_ns" for part in SELF_PARTS]


def regions_steps(times: RegionTimes, depth: int | None = None) -> pd.DataFrame:
    """One row per rank, device, step and region, the one that took most of a step first.

    Names of a path beyond `depth` are left out: what is inside counts for the region around it.
    """
    rows = _with_inclusive(_cut(times, depth), times.paths, list(KEYS))
    rows = rows.merge(times.windows, on=list(KEYS)) if len(rows) else rows.assign(window_ns=0, is_unsplit=False)
    # Without any split, unsplit is all exposed communication, as in the breakdown.
    columns: dict[str, Any] = {
        name: rows[name].astype("Int64").mask(rows["is_unsplit"].astype(bool)) for name in _SPLIT
    }
    share = rows["self_ns"] / rows["window_ns"].where(rows["window_ns"] > 0)
    rows = rows.assign(**columns, share_frac=share, step=rows["step"].astype("Int64").mask(rows["step"] == NO_STEP))
    return REGIONS_STEPS.conform(_finished(rows, times.paths, ["rank", "device", "step"], REGIONS_STEPS.columns))


def regions_ranks(times: RegionTimes, steps: Sequence[int], depth: int | None = None) -> pd.DataFrame:
    """One row per rank, device and region: means over these steps, or over everything if there are none."""
    rows, windows = _chosen(times, steps, depth)
    means = _means(rows, windows, times.paths, ["rank", "device"])
    return REGIONS_RANKS.conform(_finished(means, times.paths, ["rank", "device"], REGIONS_RANKS.columns))


def regions(times: RegionTimes, steps: Sequence[int], depth: int | None = None) -> pd.DataFrame:
    """One row per region: means over all ranks and these steps, and the rank that takes longest."""
    rows, windows = _chosen(times, steps, depth)
    means = _means(rows, windows, times.paths, [])
    by_rank = rows.groupby(["rank", *_PLACE], sort=True)[list(SUMS)].sum().reset_index()
    ranks = _with_inclusive(by_rank, times.paths, ["rank"]).groupby(_PLACE)["rank"].nunique()
    means = means.merge(ranks.rename("ranks").reset_index(), on=_PLACE)
    slowest = pd.DataFrame(_slowest(rows, windows), columns=[*_PLACE, *_SLOWEST])
    means = means.merge(slowest, how="left", on=_PLACE)
    return REGIONS.conform(_finished(means, times.paths, [], REGIONS.columns))


_SLOWEST = ("slowest_rank", "slowest_over_ns", "slowest_over_frac")


def _cut(times: RegionTimes, depth: int | None) -> pd.DataFrame:
    """The rows, those of deeper paths added to the last one that is not too deep."""
    if depth is None:
        return times.rows
    path = times.rows["path"].to_numpy()
    around = times.paths.cut(depth)[path]
    # A call of a region inside is no call of the one around it.
    rows = times.rows.assign(path=around, calls=times.rows["calls"].where(around == path, 0))
    return rows.groupby([*KEYS, *_PLACE], sort=True)[list(SUMS)].sum().reset_index()


def _chosen(times: RegionTimes, steps: Sequence[int], depth: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows and windows of these steps; all of them if there are none."""
    rows, windows = _cut(times, depth), times.windows
    if not steps:
        return rows, windows
    return rows[rows["step"].isin(steps)], windows[windows["step"].isin(steps)]


def _with_inclusive(rows: pd.DataFrame, paths: RegionPaths, keys: list[str]) -> pd.DataFrame:
    """Add `self_ns`, and `total_ns` and `cpu_ns`, which include the regions inside: some paths have nothing else."""
    rows = rows.assign(self_ns=rows[_SELF].sum(axis=1))
    parents = np.array(paths.parents, dtype=np.int64)
    level = rows[[*keys, *_PLACE, "self_ns", "cpu_self_ns"]]
    levels = [level]
    while len(level):
        around = parents[level["path"].to_numpy(dtype=np.int64)]
        level = level.assign(path=around)[around != NO_REGION]
        levels.append(level)
    sums = pd.concat(levels).groupby([*keys, *_PLACE], sort=True).sum().reset_index()
    inclusive = sums.rename(columns={"self_ns": "total_ns", "cpu_self_ns": "cpu_ns"})
    return inclusive.merge(rows, how="left", on=[*keys, *_PLACE]).fillna(dict.fromkeys([*SUMS, "self_ns"], 0))


def _means(rows: pd.DataFrame, windows: pd.DataFrame, paths: RegionPaths, keys: list[str]) -> pd.DataFrame:
    """Means over the windows of each key; a window in which a region did not run counts, too."""
    sums = rows.groupby([*keys, *_PLACE], sort=True)[list(SUMS)].sum().reset_index()
    table = _with_inclusive(sums, paths, keys)
    if keys:
        groups = windows.groupby(keys, sort=True)
        of_key = groups.agg(
            count=("window_ns", "size"), window_ns=("window_ns", "mean"), is_unsplit=("is_unsplit", "all")
        )
        table = table.merge(of_key.reset_index(), on=keys)
    else:
        unsplit = bool(windows["is_unsplit"].all())
        table = table.assign(count=len(windows), window_ns=windows["window_ns"].mean(), is_unsplit=unsplit)
    whole = [*_SELF, "hidden_ns", "self_ns", "total_ns", "cpu_self_ns", "cpu_ns"]
    means: dict[str, Any] = {name: (table[name] / table["count"]).round() for name in whole}
    share = table["self_ns"] / table["count"] / table["window_ns"].where(table["window_ns"] > 0)
    table = table.assign(
        **means, share_frac=share, calls=table["calls"] / table["count"], kernels=table["kernels"] / table["count"]
    )
    split: dict[str, Any] = {
        name: table[name].astype("Int64").mask(table["is_unsplit"].astype(bool)) for name in _SPLIT
    }
    return table.assign(**split)


def _slowest(rows: pd.DataFrame, windows: pd.DataFrame) -> list[Row]:
    """Of each region on several ranks, the rank that takes longest itself, and by how much more than the others."""
    count = windows.groupby("rank")["window_ns"].size()
    summed = rows.assign(own_ns=rows[list(_OWN)].sum(axis=1)).groupby([*_PLACE, "rank"], sort=True)["own_ns"].sum()
    table = summed.reset_index()
    table["own_ns"] = table["own_ns"] / table["rank"].map(count)
    result: list[Row] = []
    for (path, phase), of_region in table.groupby(_PLACE, sort=True):
        if len(of_region) < 2:  # nothing to compare with
            continue
        took = dict(zip(of_region["rank"].tolist(), of_region["own_ns"].tolist(), strict=True))
        slowest = max(took, key=lambda rank: (took[rank], -rank))
        usual = median(ns for rank, ns in took.items() if rank != slowest)
        over = took[slowest] - usual
        if over > 0:
            result.append({
                "path": path, "phase": phase, "slowest_rank": slowest, "slowest_over_ns": round(over),
                "slowest_over_frac": over / usual if usual else None,
            })  # fmt: skip
    return result


def _finished(rows: pd.DataFrame, paths: RegionPaths, keys: list[str], columns: Iterable[str]) -> pd.DataFrame:
    """The rows with region and phase in words; in each key the one that took most itself first."""
    path = rows["path"].to_numpy(dtype=np.int64)
    # Of the time of a CPU outside of all ranges nothing is known.
    unknown = (path < len(NAMES)) & (rows["phase"].to_numpy() == DIRECT)
    on_cpu: dict[str, Any] = {name: rows[name].astype("Int64").mask(unknown) for name in ("cpu_ns", "cpu_self_ns")}
    texts = {number: paths.text(number) for number in np.unique(path).tolist()}
    rows = rows.assign(
        **on_cpu,
        region=[texts[number] for number in path.tolist()],
        phase=pd.array([PHASES[number] for number in rows["phase"].to_numpy(dtype=np.int64).tolist()], dtype="string"),
        calls=rows["calls"].where(rows["calls"] > 0),
    )
    order = [*keys, "self_ns", "total_ns", "cpu_ns", "region", "phase"]
    up = [*(True for _ in keys), False, False, False, True, True]
    return rows.sort_values(order, ascending=up, kind="stable", ignore_index=True)[
        [c for c in columns if c != "partial"]
    ]
