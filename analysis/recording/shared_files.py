"""Paths of ranks that share a file: `report.sqlite/rank1-pid145` is process 145 in report.sqlite, `-device3` device 3.

Everything that reads names a rank's file by a path. Where one file holds several ranks, the path goes on inside it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"rank(?P<rank>[0-9]{1,7})(?:of(?P<world>[0-9]{1,8}))?-(?P<what>pid|device)(?P<number>[0-9]{1,10})")
_RANK_IN_NAME = re.compile(r"rank[-_ ]?([0-9]{1,7})(?![0-9])", re.IGNORECASE)

MOST_IN_FILE = 1024
"""Ranks in one file: no machine runs as many processes."""


def rank_in_name(name: str) -> int | None:
    """The rank in a file name; None without one."""
    match = _RANK_IN_NAME.search(name)
    return int(match[1]) if match else None


class SharedRank(NamedTuple):
    """A rank in a shared file: its process or device there, and the number of ranks of its job, if known."""

    rank: int
    world_size: int | None
    number: int
    what: str = "pid"

    def in_file(self, path: Path) -> Path:
        """The path of this rank in the file."""
        world = "" if self.world_size is None else f"of{self.world_size}"
        return path / f"rank{self.rank}{world}-{self.what}{self.number}"


def shared_rank(path: Path) -> SharedRank | None:
    """The rank of a shared file that this path names; None for other paths."""
    match = _NAME.fullmatch(path.name)
    if match is None or path.parent.is_dir():
        return None
    world = None if match["world"] is None else int(match["world"])
    return SharedRank(int(match["rank"]), world, int(match["number"]), match["what"])


def file_of(path: Path) -> Path:
    """The file on disk: for the path of a rank in a file, that file; else the path itself."""
    return path if shared_rank(path) is None else path.parent


def file_name(path: Path) -> str:
    """The name of a trace for people: that of its file, and of a rank in it."""
    return path.name if shared_rank(path) is None else f"{path.parent.name}/{path.name}"


def natural_order(name: str) -> list[tuple[int, str]]:
    """A sort key that puts `node2` before `node10`."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
