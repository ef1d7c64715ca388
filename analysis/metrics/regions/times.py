"""What each region took on each rank: calls and CPU time of its ranges, and the device time of what they launched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ...core import markers
from ...core.arrays import Ints
from ...core.kinds import COMM, COMPUTE
from ...core.schema import bare, grouped
from ...core.steps import Window, steps_at, windows_of
from ...core.tables.events import ACTIVITIES
from ..compute.contention import Slowdown, with_net
from ..device.graphs import Captured
from ..device.idle import Host, HostTables
from .device_parts import BESIDE, SELF_PARTS, DeviceTime, Owned, SplitCalls, cut, idle_time, time_by_owner
from .nesting import DIRECT, NO_REGION, NOT_LAUNCHED, PHASES, CpuRanges, RegionPaths, Regions, regions_of

KEYS = ("rank", "device", "step")
NET = ("hidden_net_ns", "unpriced_ns")
"""What is hidden less what that cost, and what is hidden where the cost is not known: 0 before it is `priced`."""
SUMS = ("calls", "cpu_self_ns", "kernels", *(f"{part}_ns" for part in (*SELF_PARTS, BESIDE)), *NET)
"""Columns of `RegionTimes.rows` that add up."""
_PHASES = len(PHASES)
_NOBODY = NOT_LAUNCHED * _PHASES + DIRECT
"""The owner of what no call in the trace launched."""
_UNKNOWN = np.iinfo(np.int64).min


@dataclass(frozen=True)
class RegionTimes:
    """What regions took, each without those inside it.

    `rows` has a row per rank, device, step (NO_STEP where none is marked), `path` and `phase`, both numbers as in
    `nesting`; its other columns are SUMS. `windows` has a row per rank, device and step: `window_ns`, and whether none
    of its exposed communication could be split (`is_unsplit`).
    """

    paths: RegionPaths
    rows: pd.DataFrame
    windows: pd.DataFrame

    @property
    def has_regions(self) -> bool:
        """Whether there is any region."""
        return len(self.paths.names) > NOT_LAUNCHED + 1

    @classmethod
    def joined(cls, parts: Sequence[RegionTimes]) -> RegionTimes:
        """Those of several ranks, with paths in common."""
        paths = RegionPaths()
        rows = [part.rows.assign(path=paths.add(part.paths)[part.rows["path"].to_numpy()]) for part in parts]
        windows = pd.concat([part.windows for part in parts], ignore_index=True)
        return cls(paths, _summed(pd.concat(rows, ignore_index=True)), windows)

    def priced(self, slowdowns: Mapping[int, Slowdown]) -> RegionTimes:
        """The same with what hiding gained each rank, by how much compute was slowed down."""
        net = with_net(self.rows, slowdowns)["hidden_net_ns"]
        unpriced = self.rows["hidden_ns"].where(net.isna(), 0)
        return replace(self, rows=self.rows.assign(hidden_net_ns=net.fillna(0).astype("float64"), unpriced_ns=unpriced))

    def cut(self, depth: int | None) -> RegionTimes:
        """The same with paths of at most `depth` names: what is deeper counts for the region around it."""
        if depth is None:
            return self
        path = self.rows["path"].to_numpy()
        around = self.paths.cut(depth)[path]
        # A call of a region inside is no call of the one around it.
        rows = self.rows.assign(path=around, calls=self.rows["calls"].where(around == path, 0))
        return replace(self, rows=_summed(rows))

    def folded(self) -> tuple[RegionTimes, Ints]:
        """The same by class of region: paths that differ in numbers only are one. And the class of each path."""
        classes, class_of = self.paths.folded()
        rows = self.rows.assign(path=class_of[self.rows["path"].to_numpy()])
        return replace(self, paths=classes, rows=_summed(rows)), class_of


def _summed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby([*KEYS, "path", "phase"], sort=True)[list(SUMS)].sum().reset_index()


def region_times(
    *,
    activities: pd.DataFrame,
    host_tables: HostTables,
    operator_calls: pd.DataFrame,
    calls: pd.DataFrame,
    participation: pd.DataFrame,
    captured: Captured,
) -> RegionTimes:
    """Measure all regions of a run. The arguments are the tables of these names; `participation` may be empty.

    Kernels of graphs belong to the region in which they were `captured`, where that is known.
    """
    autograd = dict(grouped(operator_calls, ["rank", "cycle"]))
    splits = participation.loc[participation["wait_ns"].notna(), ["call_id", "rank", "device", *_SPLIT]]
    splits = splits.merge(calls[["call_id", "stream", "issue_ns"]], on="call_id")
    split_of, calls_of = (dict(list(table.groupby(["rank", "device"]))) for table in (splits, calls))
    rows, windows = (defaultdict[int, list[pd.DataFrame]](list) for _ in range(2))
    # A rank has paths of its own: how others nest their ranges says nothing of it.
    paths_of = defaultdict[int, RegionPaths](RegionPaths)
    for (rank, cycle), of_rank in grouped(activities, ["rank", "cycle"]):
        host, paths = host_tables.host(rank, cycle), paths_of[rank]
        regions = regions_of(
            CpuRanges.of(
                activities=of_rank,
                annotations=host.annotations,
                modules=host.modules,
                cpu_operators=host.operators,
                operator_calls=autograd.get((rank, cycle), operator_calls[:0]),
            ),
            paths,
        )
        of_graphs = _captured_regions(captured, rank, cycle, paths) if len(captured.launches) else None
        on_cpu = [_cpu_sums(regions, host)]
        steps = windows_of(of_rank)
        for (device,), of_device in grouped(of_rank, ["device"]):
            key = (rank, device)
            split = split_of.get(key, splits[:0])
            if device == "cpu":
                time, owner = _of_cpu(of_device, steps, host, regions, calls_of.get(key, calls[:0]), split)
            else:
                time, owner = _of_gpu(of_device, steps, host, (regions, of_graphs), captured, split)
            # The CPU of a rank is told once, with the first of its devices.
            sums = pd.concat([_device_sums(time, of_device, owner), *on_cpu], ignore_index=True)
            on_cpu = []
            rows[rank].append(sums.assign(rank=rank, device=device))
            windows[rank].append(pd.DataFrame({
                "rank": rank,
                "device": device,
                "step": [window.step for window in time.windows],
                "window_ns": [window.end_ns - window.start_ns for window in time.windows],
                "is_unsplit": time.unsplit,
            }))  # fmt: skip
    parts = [
        RegionTimes(paths, pd.concat(rows[rank], ignore_index=True), _windows(windows[rank]))
        for rank, paths in paths_of.items()
    ]
    return RegionTimes.joined(parts or [_of_nothing()])


def _windows(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Windows by step. Without marked steps, several cycles of a rank are one window, as in `breakdown`."""
    each = pd.concat(parts, ignore_index=True).groupby(list(KEYS), sort=True)
    return each.agg(window_ns=("window_ns", "sum"), is_unsplit=("is_unsplit", "all")).reset_index()


def _of_nothing() -> RegionTimes:
    rows, windows = (
        pd.DataFrame(columns=[*KEYS, *columns], dtype="int64")
        for columns in (("path", "phase", *SUMS), ("window_ns", "is_unsplit"))
    )
    return RegionTimes(RegionPaths(), rows, windows)


_SPLIT = ["start_ns", "dur_ns", "wait_ns"]


def _captured_regions(captured: Captured, rank: int, cycle: int, paths: RegionPaths) -> Regions:
    """The regions in which a rank captured its graphs."""
    own = {name: table[(table["rank"] == rank) & (table["cycle"] == cycle)] for name, table in captured.tables.items()}
    return regions_of(CpuRanges.of(activities=ACTIVITIES.empty(), **own), paths)


def _owner(path: Ints, phase: Ints) -> Ints:
    """Path and phase as one number."""
    return path * _PHASES + phase


def _of_gpu(
    ran: pd.DataFrame,
    steps: list[Window],
    host: Host,
    both: tuple[Regions, Regions | None],
    captured: Captured,
    split: pd.DataFrame,
) -> tuple[DeviceTime, Ints]:
    """The time of a GPU by owner, and the owner of each activity: the region in which it was launched.

    The second of `both` are the regions in which graphs were captured, if any were.
    """
    regions, of_graphs = both
    call = host.launch_of(ran["correlation"].to_numpy(dtype=np.int64, na_value=_UNKNOWN))
    launched = call >= 0
    owner = np.full(len(ran), _NOBODY)
    threads, times = host.calls.thread[call[launched]], host.calls.start_ns[call[launched]]
    owner[launched] = _owner(*regions.places(threads, times))
    if of_graphs is not None:
        own = pd.Index(captured.launches["correlation"]).get_indexer(captured.correlation.reindex(ran.index).fillna(0))
        of_graph = np.flatnonzero(own >= 0)
        threads, times = (captured.launches[name].to_numpy()[own[of_graph]] for name in ("thread", "start_ns"))
        path, phase = of_graphs.places(threads, times)
        owner[of_graph] = np.where(path == NO_REGION, owner[of_graph], _owner(path, phase))
    start = ran["start_ns"].to_numpy()
    computing = bare(ran["kind"]) == COMPUTE
    stretches = Owned(start[computing], (start + ran["dur_ns"].to_numpy())[computing], owner[computing])
    calls = _split_calls(split, _owner_of_calls(split, ran, owner))
    idle = idle_time(ran, host, owner, steps)
    return time_by_owner(ran, steps, owner, stretches, calls, idle), owner


def _owner_of_calls(calls: pd.DataFrame, ran: pd.DataFrame, owner: Ints) -> Ints:
    """The owner of the kernel of each call."""
    comm = bare(ran["kind"]) == COMM
    known = pd.DataFrame({"stream": ran["stream"].to_numpy()[comm], "start_ns": ran["start_ns"].to_numpy()[comm]})
    first = ~known.duplicated().to_numpy()
    place = pd.MultiIndex.from_frame(known[first]).get_indexer(pd.MultiIndex.from_frame(calls[["stream", "start_ns"]]))
    return np.append(owner[comm][first], _NOBODY)[place]


def _of_cpu(
    ran: pd.DataFrame, steps: list[Window], host: Host, regions: Regions, calls: pd.DataFrame, split: pd.DataFrame
) -> tuple[DeviceTime, Ints]:
    """The same of a CPU without a GPU: an operator is its own work, a call of gloo belongs to its c10d operator.

    While nothing runs, the thread that runs next is in some region, too: the main thread before a call of gloo.
    """
    thread, start = ran["stream"].to_numpy(), ran["start_ns"].to_numpy()
    end = start + ran["dur_ns"].to_numpy()
    computing, comm = (bare(ran["kind"]) == kind for kind in (COMPUTE, COMM))
    owner = _owner(*regions.places(thread, start))
    owner[comm] = _owner_of_gloo(ran[comm], host, regions, calls)
    # An operator may have regions inside, as a compiled one has, or one that runs a part of the model again.
    stretches = _in_regions(Owned(start[computing], end[computing], thread[computing]), regions)
    idle = _in_regions(idle_time(ran, None, np.where(computing, thread, regions.main), steps), regions)
    of_issue = _split_calls(split, _owner_of_issue(split, host, regions))
    return time_by_owner(ran, steps, owner, stretches, of_issue, idle), owner


def _in_regions(of_threads: Owned, regions: Regions) -> Owned:
    """Intervals of threads, cut where the region of the thread changes, each with path and phase as its owner."""
    parts: list[Owned] = []
    for thread in np.unique(of_threads.owner).tolist():
        here = np.flatnonzero(of_threads.owner == thread)
        here = here[np.argsort(of_threads.starts[here], kind="stable")]
        # What a thread of the backward pass does outside of its operators belongs to the region of the main thread.
        threads = (thread, regions.main) if thread in regions.engines else (thread,)
        changes = np.concatenate([regions.bounds.get(number, here[:0]) for number in threads])
        pieces = cut(Owned(of_threads.starts[here], of_threads.ends[here], of_threads.owner[here]), changes)
        places = regions.places(np.full(len(pieces.starts), thread), pieces.starts)
        parts.append(pieces._replace(owner=_owner(*places)))
    if not parts:
        return of_threads
    return Owned(*(np.concatenate([getattr(part, name) for part in parts]) for name in Owned._fields))


def _owner_of_gloo(ran: pd.DataFrame, host: Host, regions: Regions, calls: pd.DataFrame) -> Ints:
    """The owner of each operation of gloo: that of the last call that began before it ended, on its thread.

    A call may have several operations, as a reduce_scatter has.
    """
    issued = _owner_of_issue(calls, host, regions)
    thread, start = calls["stream"].to_numpy(), calls["start_ns"].to_numpy()
    result = np.full(len(ran), _NOBODY)
    for number in np.unique(bare(ran["stream"])).tolist():
        of_thread = np.flatnonzero(thread == number)
        here = np.flatnonzero(bare(ran["stream"]) == number)
        of_thread = of_thread[np.argsort(start[of_thread], kind="stable")]
        place = np.searchsorted(start[of_thread], ran["start_ns"].to_numpy()[here], side="right") - 1
        known = place >= 0
        result[here[known]] = issued[of_thread[place[known]]]
    return result


def _owner_of_issue(calls: pd.DataFrame, host: Host, regions: Regions) -> Ints:
    """The owner of the c10d operator that issued each call."""
    names = host.annotations["name"].astype("string").fillna("")
    operators = host.annotations[names.str.startswith(markers.C10D).to_numpy(dtype=bool)].drop_duplicates("start_ns")
    issued = calls["issue_ns"].to_numpy(dtype=np.int64, na_value=_UNKNOWN)
    place = pd.Index(operators["start_ns"]).get_indexer(issued)
    result = np.full(len(calls), _NOBODY)
    known = place >= 0
    result[known] = _owner(*regions.places(operators["thread"].to_numpy()[place[known]], issued[known]))
    return result


def _split_calls(split: pd.DataFrame, owner: Ints) -> SplitCalls:
    start = split["start_ns"].to_numpy(dtype=np.int64)
    moving = start + split["wait_ns"].to_numpy(dtype=np.int64)
    return SplitCalls(start, moving, start + split["dur_ns"].to_numpy(dtype=np.int64), owner)


def _cpu_sums(regions: Regions, host: Host) -> pd.DataFrame:
    """Calls and CPU time of the regions of a rank in one cycle, by the step in which each range began."""
    step = steps_at(regions.start, host.step_marks)
    return _by_owner(
        step, _owner(regions.path, regions.phase), calls=regions.is_region.astype(np.int64), cpu_self_ns=regions.self_ns
    )


def _device_sums(time: DeviceTime, ran: pd.DataFrame, owner: Ints) -> pd.DataFrame:
    """Device time by step, and how many activities began in it."""
    start = ran["start_ns"].to_numpy()
    window = np.searchsorted([each.start_ns for each in time.windows], start, side="right") - 1
    last_ns = time.windows[-1].end_ns
    # One without a duration may stand at the very end.
    counted = (window >= 0) & ((start < last_ns) | ((start == last_ns) & (ran["dur_ns"].to_numpy() == 0)))
    steps = np.array([each.step for each in time.windows], dtype=np.int64)
    ns = {f"{part}_ns": values for part, values in time.ns.items()}
    counts = _by_owner(steps[window[counted]], owner[counted], kernels=np.ones(int(counted.sum()), dtype=np.int64))
    return pd.concat([_by_owner(steps[time.window], time.owner, **ns), counts], ignore_index=True)


def _by_owner(step: Ints, owner: Ints, **columns: Ints) -> pd.DataFrame:
    """Sums by step and owner, in the columns of `RegionTimes.rows`."""
    nothing = dict.fromkeys(SUMS, 0)
    table = pd.DataFrame({"step": step, "owner": owner, **columns})
    sums = table.groupby(["step", "owner"], sort=False)[list(columns)].sum().reset_index()
    path, phase = np.divmod(sums.pop("owner").to_numpy(dtype=np.int64), _PHASES)
    return sums.assign(path=path, phase=phase, **{name: 0 for name in nothing if name not in columns})
