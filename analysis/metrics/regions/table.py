"""Rows of the tables of regions. Definitions: docs/metrics/regions.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...core.arrays import Ints
from ...core.steps import NO_STEP
from .device_parts import SELF_PARTS
from .nesting import DIRECT, NAMES, NO_REGION, PHASES, RegionPaths, without_numbers
from .times import KEYS, NET, SUMS, RegionTimes

_OWN = ("compute_ns", "exposed_transfer_ns", "exposed_memory_ns", "idle_ns")
"""What a rank takes itself; it waits for others."""
_PLACE = ["path", "phase"]
_SPLIT = ("exposed_transfer_ns", "exposed_wait_ns")
_SELF = [f"{part}_ns" for part in SELF_PARTS]


def regions_by_step(times: RegionTimes) -> pd.DataFrame:
    """One row per rank, device, step and region, the one that took most of a step first."""
    rows = _with_inclusive(times.rows, times.paths, list(KEYS))
    rows = rows.merge(times.windows, on=list(KEYS)) if len(rows) else rows.assign(window_ns=0, is_unsplit=False)
    # Without any split, unsplit is all exposed communication, as in the breakdown.
    columns: dict[str, Any] = {
        name: rows[name].astype("Int64").mask(rows["is_unsplit"].astype(bool)) for name in _SPLIT
    }
    share = rows["self_ns"] / rows["window_ns"].where(rows["window_ns"] > 0)
    rows = rows.assign(**columns, share_frac=share, step=rows["step"].astype("Int64").mask(rows["step"] == NO_STEP))
    return _finished(rows, times.paths, ["rank", "device", "step"])


def mean_regions_of_ranks(times: RegionTimes, steps: Sequence[int]) -> pd.DataFrame:
    """One row per rank, device and region: means over these steps, or over everything if there are none."""
    means = _means(*_chosen(times, steps), times.paths, ["rank", "device"])
    return _finished(means, times.paths, ["rank", "device"])


def mean_regions(times: RegionTimes, steps: Sequence[int]) -> pd.DataFrame:
    """One row per region: means over all ranks and these steps, and the rank that takes longest."""
    return _finished(_over_ranks(times, steps), times.paths, [])


def mean_classes(times: RegionTimes, steps: Sequence[int]) -> pd.DataFrame:
    """One row per class of region: what all of it takes, and the region of it that takes longest."""
    classes, class_of = times.folded()
    table = _over_ranks(classes, steps)
    table = table.merge(_instances(times, steps, class_of), how="left", on=_PLACE)
    return _finished(table, classes.paths, [])


def class_excess(times: RegionTimes, steps: Sequence[int]) -> pd.DataFrame:
    """How much longer each rank takes itself in each class of regions than the median of the other ranks.

    Columns `region` and `phase` as in `region_classes`, `rank`, and `over_ns`, mean of these steps: negative where the
    rank is faster. Classes of a single rank are left out.
    """
    classes, _ = times.folded()
    beside = _over_others(_own(*_chosen(classes, steps), classes.paths), _PLACE)
    region = [classes.paths.text(path) for path in beside["path"].tolist()]
    return beside.assign(region=region, phase=_phases(beside))[["region", "phase", "rank", "over_ns"]]


def class_time(times: RegionTimes) -> pd.DataFrame:
    """One row per rank, device, step, class and phase in which devices spent time: `dur_ns`, without regions inside.

    Columns `region` and `phase` as in `region_classes`, but without any numbers: other runs number modules differently.
    `step` is NA where none is marked.
    """
    classes, _ = times.folded()
    rows = classes.rows.assign(dur_ns=classes.rows[_SELF].sum(axis=1))
    rows = rows[rows["dur_ns"] > 0]
    region = [without_numbers(classes.paths.text(path)) for path in rows["path"].tolist()]
    step = rows["step"].astype("Int64").mask(rows["step"] == NO_STEP)
    return rows.assign(region=region, phase=_phases(rows), step=step)[[*KEYS, "region", "phase", "dur_ns"]]


def _over_ranks(times: RegionTimes, steps: Sequence[int]) -> pd.DataFrame:
    """Means of each place over all ranks and these steps, and the rank that takes longest."""
    rows, windows = _chosen(times, steps)
    means = _means(rows, windows, times.paths, [])
    by_rank = rows.groupby(["rank", *_PLACE], sort=True)[list(SUMS)].sum().reset_index()
    ranks = _with_inclusive(by_rank, times.paths, ["rank"]).groupby(_PLACE)["rank"].nunique()
    means = means.merge(ranks.rename("ranks").reset_index(), on=_PLACE)
    slowest = _slowest(_over_others(_own(rows, windows, times.paths), _PLACE), _PLACE, "rank")
    columns = {"rank": "slowest_rank", "over_ns": "slowest_over_ns", "over_frac": "slowest_over_frac"}
    return means.merge(slowest.rename(columns=columns), how="left", on=_PLACE)


def _instances(times: RegionTimes, steps: Sequence[int], class_of: Ints) -> pd.DataFrame:
    """Of each class, how many regions it has, and which takes longest itself on the ranks that have it."""
    rows, windows = _chosen(times, steps)
    sums = rows.groupby(_PLACE, sort=True)[list(SUMS)].sum().reset_index()
    every = _with_inclusive(sums, times.paths, [])[_PLACE]
    count = every.assign(path=class_of[every["path"].to_numpy()]).groupby(_PLACE).size().rename("instances")
    own = _own(rows, windows, times.paths).groupby(_PLACE, sort=True)["own_ns"].mean().reset_index()
    own = own.assign(instance=own["path"], path=class_of[own["path"].to_numpy()])
    slowest = _slowest(_over_others(own, _PLACE), _PLACE, "instance")
    slowest = slowest.assign(slowest_region=[times.paths.text(path) for path in slowest["instance"].tolist()])
    columns = {"over_ns": "slowest_region_over_ns", "over_frac": "slowest_region_over_frac"}
    return count.reset_index().merge(slowest.rename(columns=columns), how="left", on=_PLACE)


def _chosen(times: RegionTimes, steps: Sequence[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows and windows of these steps; all of them if there are none."""
    rows, windows = times.rows, times.windows
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
    whole = [*_SELF, "hidden_ns", *NET, "self_ns", "total_ns", "cpu_self_ns", "cpu_ns"]
    means: dict[str, Any] = {name: (table[name] / table["count"]).round() for name in whole}
    share = table["self_ns"] / table["count"] / table["window_ns"].where(table["window_ns"] > 0)
    table = table.assign(
        **means, share_frac=share, calls=table["calls"] / table["count"], kernels=table["kernels"] / table["count"]
    )
    split: dict[str, Any] = {
        name: table[name].astype("Int64").mask(table["is_unsplit"].astype(bool)) for name in _SPLIT
    }
    return table.assign(**split)


def _own(rows: pd.DataFrame, windows: pd.DataFrame, paths: RegionPaths) -> pd.DataFrame:
    """`own_ns` of each place and rank: what it takes itself, without waiting for others, mean of its windows.

    It is 0 where a rank has only regions inside.
    """
    places = [rows[[*_PLACE, "rank"]].drop_duplicates()]
    parents = np.array(paths.parents, dtype=np.int64)
    while len(places[-1]):
        around = parents[places[-1]["path"].to_numpy(dtype=np.int64)]
        places.append(places[-1].assign(path=around)[around != NO_REGION].drop_duplicates())
    zeros = pd.concat(places).drop_duplicates().assign(own_ns=0)
    every = pd.concat([rows.assign(own_ns=rows[list(_OWN)].sum(axis=1))[zeros.columns], zeros])
    table = every.groupby([*_PLACE, "rank"], sort=True)["own_ns"].sum().reset_index()
    count = windows.groupby("rank")["window_ns"].size()
    return table.assign(own_ns=table["own_ns"] / table["rank"].map(count))


def _over_others(own: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Add `usual_ns`, the median of the others in the same group, and `over_ns`, how much longer this one takes.

    `over_ns` is negative where it is faster. Groups of one are left out: there is nothing to compare with.
    """
    table = own.sort_values([*by, "own_ns"], kind="stable")
    table = table[table.duplicated(by, keep=False)]
    group = table.groupby(by, sort=False)["own_ns"]
    number, others = group.cumcount().to_numpy(), group.transform("size").to_numpy() - 1
    first, own_ns = np.arange(len(table)) - number, table["own_ns"].to_numpy()
    # The values of a group ascend: without this one, those in the middle of the others are one further on from it.
    middle = [own_ns[first + at + (number <= at)] for at in ((others - 1) // 2, others // 2)]
    usual = (middle[0] + middle[1]) / 2
    return table.assign(over_ns=own_ns - usual, usual_ns=usual)


def _slowest(beside: pd.DataFrame, by: list[str], of: str) -> pd.DataFrame:
    """Of each group the one that takes longest, of equal ones the first by `of`: `over_ns`, and of `usual_ns`."""
    longest = beside.sort_values([*by, "over_ns", of], ascending=[*(True for _ in by), False, True], kind="stable")
    slowest = longest[~longest.duplicated(by) & (longest["over_ns"] > 0)]
    over_frac = slowest["over_ns"] / slowest["usual_ns"].where(slowest["usual_ns"] > 0)
    return slowest.assign(over_ns=slowest["over_ns"].round(), over_frac=over_frac)[[*by, of, "over_ns", "over_frac"]]


def _phases(rows: pd.DataFrame) -> Any:
    return pd.array([PHASES[number] for number in rows["phase"].to_numpy(dtype=np.int64).tolist()], dtype="string")


def _finished(rows: pd.DataFrame, paths: RegionPaths, keys: list[str]) -> pd.DataFrame:
    """The rows with region and phase in words; in each key the one that took most itself first."""
    path = rows["path"].to_numpy(dtype=np.int64)
    # Of the time of a CPU outside of all ranges nothing is known.
    unknown = (path < len(NAMES)) & (rows["phase"].to_numpy() == DIRECT)
    on_cpu: dict[str, Any] = {name: rows[name].astype("Int64").mask(unknown) for name in ("cpu_ns", "cpu_self_ns")}
    texts = {number: paths.text(number) for number in np.unique(path).tolist()}
    rows = rows.assign(
        **on_cpu,
        region=[texts[number] for number in path.tolist()],
        phase=_phases(rows),
        calls=rows["calls"].where(rows["calls"] > 0),
        hidden_net_ns=rows["hidden_net_ns"].round().astype("Int64").mask(rows["unpriced_ns"] > 0),
    )
    order = [*keys, "self_ns", "total_ns", "cpu_ns", "region", "phase"]
    up = [*(True for _ in keys), False, False, False, True, True]
    return rows.sort_values(order, ascending=up, kind="stable", ignore_index=True)
