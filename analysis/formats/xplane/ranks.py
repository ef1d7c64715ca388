"""Count the devices in all files of a run as ranks, as XSpaces name none: file by file, in a file by number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ....common.wording import ranges_of, ranks_in_words, shortened
from ...core.escaping import encodable
from ...errors import TooLarge, TraceError
from ...recording.options import ReadOptions
from ...recording.shared_files import SharedRank, natural_order
from ..format import RanksInFiles
from .files import devices_in, space_in

_MOST_NAMED = 8


def devices_as_ranks(paths: Sequence[Path]) -> RanksInFiles:
    """The devices of each file that did something as ranks.

    Files that cannot be read, or without such a device, stay as they are, and their reader says why.
    """
    devices = {path: _devices(path) for path in sorted(paths, key=lambda path: natural_order(path.name))}
    world = sum(len(one.working) for one in devices.values())
    found: list[Path] = []
    counted_as: list[str] = []
    notes: list[str] = []
    rank = 0
    for path, (working, idle) in devices.items():
        name = encodable(path.name)
        of_file = [SharedRank(rank + place, world, number, "device") for place, number in enumerate(working)]
        if of_file:
            own, of = ranks_in_words(each.rank for each in of_file), "device" if len(working) == 1 else "devices"
            counted_as.append(f"{own}: {of} {ranges_of(working)} of {name}")
        elif idle and world:
            notes.append(f"left out {name}: its devices did nothing while the trace was captured")
            continue
        found += [each.in_file(path) for each in of_file] or [path]
        rank += len(working)
    if world > 1:
        named = shortened(counted_as, _MOST_NAMED)
        notes.insert(0, f"devices are counted as ranks, which nothing names: {named}")
    return RanksInFiles(found, notes)


class _Numbers(NamedTuple):
    """Numbers of the devices of a file, by whether they did something."""

    working: list[int]
    idle: list[int]


def _devices(path: Path) -> _Numbers:
    try:
        space = space_in(path, ReadOptions())
    except TooLarge:  # its reader would say that it has several devices
        raise
    except TraceError:
        return _Numbers([], [])
    devices = devices_in(space)
    return _Numbers(list(devices.working), devices.idle if space.damage is None else [])
