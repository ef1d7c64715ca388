"""Open a file of JAX or TensorFlow, and find the devices in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ...errors import DamagedTrace, NotATrace, UnreadableFile
from ...recording.compression import BrokenPacking, all_bytes, packed_bytes
from ...recording.options import Progress, ReadOptions
from ...recording.protobuf import BrokenMessage, Document
from .devices import has_worked
from .space import Plane, Space

_DEVICE = re.compile(r"/device:(?:GPU|TPU):([0-9]{1,6})")
_AGAIN = "capture it again, or copy it again"


def space_in(path: Path, options: ReadOptions, progress: Progress | None = None) -> Space:
    """What a file holds before any damage. Raises UnreadableFile, NotATrace, DamagedTrace, TooLarge."""
    budget = options.budget(packed_bytes(path))
    try:
        with path.open("rb") as file:
            data = all_bytes(path, file, budget)
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror or err}") from err
    except BrokenPacking as err:
        raise DamagedTrace(f"{path}: {err}; {_AGAIN}") from err
    if progress:
        progress(packed_bytes(path))
    if not data:
        raise NotATrace(f"{path}: is empty; the capture was interrupted before it was written")
    budget.draw(f"{path}: what it holds, unpacked,", len(data))
    try:
        return Space(Document(data, budget, f"{path}: the events in it"))
    except BrokenMessage as err:
        raise damaged(path, err) from err


def damaged(path: Path, err: BrokenMessage) -> DamagedTrace:
    """The error for a file that is no whole XSpace."""
    return DamagedTrace(f"{path}: {err} at byte {err.at:,}, counted unpacked; {_AGAIN}")


class HostDevices(NamedTuple):
    """The GPUs or TPUs of a host that did something, by their numbers; numbers of those that did nothing.

    `again` are planes with the number of one before.
    """

    working: dict[int, Plane]
    idle: list[int]
    again: list[Plane]


def is_device(plane: Plane) -> bool:
    """Whether a plane is a GPU or TPU, and not a part of one."""
    return _DEVICE.fullmatch(plane.name) is not None


def devices_in(space: Space) -> HostDevices:
    """The devices of a host, also damaged ones. Raises nothing."""
    working: dict[int, Plane] = {}
    seen: set[int] = set()
    again = []
    for plane in space.planes:
        match = _DEVICE.fullmatch(plane.name)
        if match is None:
            continue
        number = int(match[1])
        seen.add(number)
        if not _may_have_worked(plane):
            continue
        if number in working:
            again.append(plane)
        else:
            working[number] = plane
    return HostDevices(dict(sorted(working.items())), sorted(seen - set(working)), again)


def _may_have_worked(plane: Plane) -> bool:
    try:
        return has_worked(plane)
    except BrokenMessage:
        return True  # what is wrong with it is said where it is read
