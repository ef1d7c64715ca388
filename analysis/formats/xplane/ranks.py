"""Count the devices in all files of a run as ranks, as XSpaces name none: file by file, in a file by number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....common.wording import ranges_of, ranks_in_words, shortened
from ...core.escaping import encodable
from ...errors import TraceError
from ...recording.options import ReadOptions
from ...recording.shared_files import SharedRank, natural_order
from ..format import RanksInFiles
from .files import devices_in, space_in

_MOST_NAMED = 8
_LIMIT_GB = 4.0


def devices_as_ranks(paths: Sequence[Path]) -> RanksInFiles:
    """The devices of each file as ranks; files that cannot be read stay as they are, and their reader says why."""
    devices = {path: _devices(path) for path in sorted(paths, key=lambda path: natural_order(path.name))}
    world = sum(map(len, devices.values()))
    found: list[Path] = []
    notes: list[str] = []
    rank = 0
    for path, numbers in devices.items():
        of_file = [SharedRank(rank + place, world, number, "device") for place, number in enumerate(numbers)]
        found += [each.in_file(path) for each in of_file] or [path]
        if of_file:
            own, of = ranks_in_words(each.rank for each in of_file), "device" if len(numbers) == 1 else "devices"
            notes.append(f"{own}: {of} {ranges_of(numbers)} of {encodable(path.name)}")
        rank += len(numbers)
    if world < 2:
        return RanksInFiles(found, [])
    return RanksInFiles(found, [f"devices are counted as ranks, which nothing names: {shortened(notes, _MOST_NAMED)}"])


def _devices(path: Path) -> list[int]:
    try:
        return list(devices_in(space_in(path, ReadOptions(memory_gb=_LIMIT_GB))))
    except TraceError:
        return []
