"""Work on each file while others are still being read.

Finding calls was a third of the work after reading 16 ranks, on one core, while the others were idle.
The calls of a file need only that file, if it lists the same process groups as all files of its rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.intervals import Spans, spans, union
from ..core.schema import Row
from ..core.tables.communication import PENDING
from ..metrics.calls.calls import CallRows, Communication, Metadata, calls_of_file
from ..metrics.calls.gpu import only_group
from ..metrics.device.breakdown import Device, DeviceProfile, Devices, SeenDevice, devices_of
from ..recording.header import ProcessGroup
from ..run.file_tables import TraceFile
from ..run.run import Run, listed_groups
from ..tables.calls import CALLS
from .slim_tables import Added, SlimTable, slim_table, whole_table


class SlimCalls(NamedTuple):
    """The calls of a file, and those issued without running in it. Rank and cycle are 0."""

    calls: SlimTable
    pending: SlimTable


class Early(NamedTuple):
    """The calls of a run, and the profiles of its devices if these were made."""

    found: Communication
    devices: Devices | None


class EarlyWork:
    """Results from the files so far."""

    def __init__(self) -> None:
        self._groups: dict[Path, tuple[ProcessGroup, ...]] = {}
        self._found: dict[Path, SlimCalls] = {}
        self._devices: dict[Path, Devices] = {}

    def take(self, file: TraceFile) -> None:
        """Make the calls of a file."""
        found = calls_of(file)
        self.keep(file, None if found is None else slim_calls(found), None)

    def keep(self, file: TraceFile, found: SlimCalls | None, devices: Devices | None) -> None:
        """Keep the calls and device profiles of a file."""
        self._groups[file.path] = file.header.process_groups
        if found is not None:
            self._found[file.path] = found
        if devices is not None:
            self._devices[file.path] = devices

    def of(self, run: Run) -> Early | None:
        """Results of the run; None if calls cannot be made from its files one by one."""
        calls, pending, before = [], [], 0
        for rank in run.ranks:
            paths = run.files[rank]
            if any(self._groups[path] != self._groups[paths[-1]] for path in paths):
                return None
            for cycle, path in enumerate(paths):
                if path not in self._found:
                    return None
                found, place = self._found[path], {"rank": rank, "cycle": cycle}
                calls.append(Added(found.calls, place | {"call_id": before, "batch": before}))
                pending.append(Added(found.pending, place))
                before += found.calls.rows
        return Early(Communication(whole_table(CALLS, calls), whole_table(PENDING, pending)), self._devices_of(run))

    def _devices_of(self, run: Run) -> Devices | None:
        """Profiles of the run's devices; None if not made, or if cycles of a device overlap."""
        placed = [(rank, cycle, path) for rank in run.ranks for cycle, path in enumerate(run.files[rank])]
        if any(path not in self._devices for _, _, path in placed):
            return None
        seen: dict[Device, SeenDevice] = {}
        for rank, cycle, path in placed:
            for (_, device), own in self._devices[path].items():
                cycles = [one._replace(rank=rank, cycle=cycle) for one in own.cycles]
                before = seen.get((rank, device))
                seen[rank, device] = (
                    SeenDevice(cycles, own.idle)
                    if before is None
                    else SeenDevice(before.cycles + cycles, union(before.idle, own.idle))
                )
        return None if _overlap(profile for one in seen.values() for profile in one.cycles) else seen


def _overlap(seen: Iterable[DeviceProfile]) -> bool:
    """Whether two cycles of a device cover the same time: each may then show what the other lacks."""
    ordered = sorted(seen, key=lambda one: (one.rank, one.device, one.start_ns))
    same = (pair for pair in pairwise(ordered) if (pair[0].rank, pair[0].device) == (pair[1].rank, pair[1].device))
    return any(first.end_ns > second.start_ns for first, second in same)


def calls_of(file: TraceFile) -> CallRows | None:
    """The calls of a file; None if it does not list its process groups, or only other files tell which is whose."""
    if not file.header.process_groups:
        return None
    groups = listed_groups(file)
    if (file.ran["device"] == "cpu").any() and not only_group(groups):
        return None
    told = Metadata(file.annotation_rows, file.comm_rows, groups)
    return calls_of_file(file.ran, file.launches, told)


def slim_calls(found: CallRows) -> SlimCalls:
    """The calls of a file in the form that travels between processes."""
    return SlimCalls(slim_table(CALLS, found.calls), slim_table(PENDING, found.pending))


def devices_in(file: TraceFile, found: CallRows) -> Devices:
    """What the devices of a file with these calls did. Rank and cycle are 0."""
    return devices_of(file.ran, _calling(found.calls))


def _calling(calls: Iterable[Row]) -> dict[Device, Spans]:
    """When each device was in a call."""
    times: dict[Device, list[tuple[int, int]]] = {}
    for row in calls:
        times.setdefault((row["rank"], row["device"]), []).append((row["start_ns"], row["start_ns"] + row["dur_ns"]))
    return {device: spans(*np.array(own, dtype=np.int64).T) for device, own in times.items()}
