"""Memory that programs may still take: on this machine, and in its container."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_CONTAINERS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of control groups, version 2 and 1: the folder, files of the limit and the use, and a line of memory.stat."""


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can still be used here, in bytes; None where Linux does not say it.

    Files that were read count as used by the container until something else needs their memory: as kubelet does, what
    was not used again is taken for free.

    Source: docs.kernel.org, MemAvailable in filesystems/proc, and memory.max, memory.current and memory.stat in
    admin-guide/cgroup-v2.
    """
    found = []
    with suppress(OSError, ValueError, StopIteration):
        found.append(_number_behind("MemAvailable:", root / "proc/meminfo") << 10)
    for folder, limit, use, reclaimed in _CONTAINERS:
        place = root / folder
        with suppress(OSError, ValueError):  # "max" for none
            most, used = (int((place / name).read_text(encoding="ascii")) for name in (limit, use))
            with suppress(OSError, ValueError, StopIteration):
                used -= _number_behind(reclaimed, place / "memory.stat")
            found.append(max(0, most - max(0, used)))
    return min(found, default=None)


def _number_behind(name: str, file: Path) -> int:
    """The number in the line of this name. Raises OSError, ValueError, StopIteration."""
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return next(int(words[1]) for words in lines if words[:1] == [name] and len(words) > 1)
