"""What is made of each file by itself, while others are still being read.

Finding calls was a third of the work after reading 16 ranks, on one core, while the others were idle.
The calls of a file need only that file, if it lists the same process groups as all files of its rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.intervals import Spans, spans, union
from ..core.tables.communication import PENDING
from ..metrics.calls.calls import CallRows, Communication, Metadata, calls_of_file
from ..metrics.calls.gpu import only_group
from ..metrics.device.breakdown import Device, DeviceProfile, Devices, SeenDevice, devices_of
from ..recording.header import ProcessGroup
from ..run.file_tables import TraceFile
from ..run.run import Run, listed_groups
from ..tables.calls import CALLS
from .slim_tables import Added, SlimTable, slim_table, whole_table


class OfFile(NamedTuple):
    """The calls of a file, those issued without running in it, and what its devices did. Rank and cycle are 0."""

    groups: tuple[ProcessGroup, ...]
    calls: SlimTable
    pending: SlimTable
    devices: Devices


class Early(NamedTuple):
    """The calls of a run, and the profiles of its devices; None where cycles of a device overlap."""

    found: Communication
    devices: Devices | None


def of_file(file: TraceFile) -> OfFile | None:
    """What is made of a file; None if it does not list its process groups, or only other files tell which is whose."""
    if not file.header.process_groups:
        return None
    groups = listed_groups(file)
    if (file.ran["device"] == "cpu").any() and not only_group(groups):
        return None
    found = calls_of_file(file.ran, file.launches, Metadata(file.annotation_rows, file.comm_rows, groups))
    return OfFile(
        file.header.process_groups,
        slim_table(CALLS, found.calls),
        slim_table(PENDING, found.pending),
        devices_of(file.ran, _calling(found)) if file.header.has_starts else {},
    )


def _calling(found: CallRows) -> dict[Device, Spans]:
    """When each device was in a call."""
    times: dict[Device, list[tuple[int, int]]] = {}
    for row in found.calls:
        times.setdefault((row["rank"], row["device"]), []).append((row["start_ns"], row["start_ns"] + row["dur_ns"]))
    return {device: spans(*np.array(own, dtype=np.int64).T) for device, own in times.items()}


def early_of(run: Run, made: Mapping[Path, OfFile | None]) -> Early | None:
    """What was `made` of the files of a run, together; None if its calls cannot be made from its files one by one."""
    calls, pending, before = [], [], 0
    seen: dict[Device, SeenDevice] = {}
    for rank in run.ranks:
        own = [made[path] for path in run.files[rank]]
        for cycle, one in enumerate(own):
            if one is None or own[0] is None or one.groups != own[0].groups:
                return None
            place = {"rank": rank, "cycle": cycle}
            calls.append(Added(one.calls, place | {"call_id": before, "batch": before}))
            pending.append(Added(one.pending, place))
            before += one.calls.rows
            for (_, device), did in one.devices.items():
                cycles = [profile._replace(rank=rank, cycle=cycle) for profile in did.cycles]
                earlier = seen.get((rank, device))
                seen[rank, device] = (
                    SeenDevice(cycles, did.idle)
                    if earlier is None
                    else SeenDevice(earlier.cycles + cycles, union(earlier.idle, did.idle))
                )
    overlap = _overlap(profile for one in seen.values() for profile in one.cycles)
    found = Communication(whole_table(CALLS, calls), whole_table(PENDING, pending))
    return Early(found, None if overlap else seen)


def _overlap(seen: Iterable[DeviceProfile]) -> bool:
    """Whether two cycles of a device cover the same time: each may then show what the other lacks."""
    ordered = sorted(seen, key=lambda one: (one.rank, one.device, one.start_ns))
    same = (pair for pair in pairwise(ordered) if (pair[0].rank, pair[0].device) == (pair[1].rank, pair[1].device))
    return any(first.end_ns > second.start_ns for first, second in same)
