"""Open a file of JAX or TensorFlow, and find the devices in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ...recording.options import Progress, ReadOptions
from ...recording.protobuf import BrokenMessage
from ...recording.protobuf_files import damaged, document_in
from .devices import has_worked
from .space import Plane, Space

_DEVICE = re.compile(r"/device:(?:GPU|TPU):([0-9]{1,6})")


def space_in(path: Path, options: ReadOptions, progress: Progress | None = None) -> Space:
    """What a file holds before any damage. Raises UnreadableFile, NotATrace, DamagedTrace, TooLarge."""
    document = document_in(path, options, progress)
    try:
        return Space(document)
    except BrokenMessage as err:
        raise damaged(path, err) from err


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
