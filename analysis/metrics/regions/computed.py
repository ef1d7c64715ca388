"""How long regions of one rank computed between two times: where in the model a rank is slow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ...core.arrays import Ints
from ...core.kinds import COMPUTE
from ...core.schema import bare, grouped
from ..causes.cpu_work import Detailed
from ..causes.details import Between, computed_between
from ..device.idle import Host
from .nesting import NOT_LAUNCHED, PHASES, CpuRanges, RegionPaths, Regions, regions_of

_UNKNOWN = np.iinfo(np.int64).min


def computed_in_regions(tables: Detailed, times: Sequence[Between]) -> dict[Between, dict[str, int]]:
    """How long kernels of each region ran between these times, with those of the regions inside, in ns.

    By times and region: its path, with the phase behind it if it has one. What belongs to no region is left out.
    """
    paths = RegionPaths()
    computing = tables.activities[bare(tables.activities["kind"]) == COMPUTE]
    owned = [_owned(of_cycle, cycle, tables, paths) for (cycle,), of_cycle in grouped(computing, ["cycle"])]
    if not owned:
        return {}
    rank = int(computing["rank"].iloc[0])
    ran = computed_between(pd.concat(owned), {rank: list(times)}).get(rank, {})
    return {between: _with_those_around(by_owner, paths) for between, by_owner in ran.items()}


def _owned(computing: pd.DataFrame, cycle: int, tables: Detailed, paths: RegionPaths) -> pd.DataFrame:
    """The kernels of one cycle, each with the number of its path and phase for a name."""

    def of_cycle(table: pd.DataFrame) -> pd.DataFrame:
        return table[table["cycle"] == cycle]

    host = Host(
        of_cycle(tables.runtime_calls),
        of_cycle(tables.cpu_operators),
        of_cycle(tables.annotations),
        of_cycle(tables.modules),
        of_cycle(tables.functions),
        has_gc=False,
    )
    ranges = CpuRanges.of(
        activities=computing,
        annotations=host.annotations,
        modules=host.modules,
        cpu_operators=host.operators,
        operator_calls=of_cycle(tables.operator_calls),
    )
    path, phase = _launched_in(computing, host, regions_of(ranges, paths))
    return computing.assign(name=(path * len(PHASES) + phase).astype(str))


def _launched_in(computing: pd.DataFrame, host: Host, regions: Regions) -> tuple[Ints, Ints]:
    """Path and phase of each kernel; an operator of a CPU without a GPU is its own launch."""
    if (bare(computing["device"]) == "cpu").all():
        return regions.places(computing["stream"].to_numpy(dtype=np.int64), computing["start_ns"].to_numpy())
    call = host.launch_of(computing["correlation"].to_numpy(dtype=np.int64, na_value=_UNKNOWN))
    path, phase = np.full(len(call), NOT_LAUNCHED), np.zeros(len(call), dtype=np.int64)
    launched = call >= 0
    threads, starts = host.calls.thread[call[launched]], host.calls.start_ns[call[launched]]
    path[launched], phase[launched] = regions.places(threads, starts)
    return path, phase


def _with_those_around(by_owner: Mapping[str, int], paths: RegionPaths) -> dict[str, int]:
    """Times by region in words, each added to all regions around it."""
    took: dict[tuple[int, int], int] = defaultdict(int)
    for owner, took_ns in by_owner.items():
        path, phase = divmod(int(owner), len(PHASES))
        while path > NOT_LAUNCHED:
            took[path, phase] += took_ns
            path = paths.parents[path]
    behind = [f" ({phase})" if phase else "" for phase in PHASES]
    return {f"{paths.text(path)}{behind[phase]}": took_ns for (path, phase), took_ns in took.items()}
