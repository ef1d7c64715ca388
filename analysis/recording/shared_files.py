"""Paths of ranks that share a file: `report.sqlite/rank1-pid145` is process 145 in report.sqlite.

Everything that reads names a rank's file by a path. Where one file holds several ranks, the path goes on inside it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"rank(?P<rank>[0-9]{1,7})(?:of(?P<world>[0-9]{1,8}))?-pid(?P<pid>[0-9]{1,10})")
_RANK_IN_NAME = re.compile(r"rank[-_ ]?([0-9]{1,7})(?![0-9])", re.IGNORECASE)


def rank_in_name(name: str) -> int | None:
    """The rank in a file name; None without one."""
    found = _RANK_IN_NAME.search(name)
    return int(found[1]) if found else None


class SharedRank(NamedTuple):
    """A rank in a shared file: its process there, and the number of ranks of its job, if known."""

    rank: int
    world_size: int | None
    pid: int

    def in_file(self, path: Path) -> Path:
        """The path of this rank in the file."""
        world = "" if self.world_size is None else f"of{self.world_size}"
        return path / f"rank{self.rank}{world}-pid{self.pid}"


def shared_rank(path: Path) -> SharedRank | None:
    """The rank of a shared file that this path names; None for other paths."""
    found = _NAME.fullmatch(path.name)
    if found is None or path.parent.is_dir():
        return None
    return SharedRank(int(found["rank"]), None if found["world"] is None else int(found["world"]), int(found["pid"]))


def file_of(path: Path) -> Path:
    """The file on disk: for the path of a rank in a file, that file; else the path itself."""
    return path if shared_rank(path) is None else path.parent


def file_name(path: Path) -> str:
    """The name of a trace for people: that of its file, and of a rank in it."""
    return path.name if shared_rank(path) is None else f"{path.parent.name}/{path.name}"
