"""How much memory the data will take, and how much there is, so that a file is refused before the machine fails."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ..errors import TooLarge

GB = 10**9
# Bytes that a row takes at most in all tables made from it, and a name and its letters, as measured.
_ROW_BYTES = {
    "activities": 300, "launches": 150, "runtime": 150, "operators": 150, "memory": 120,
    "stream_waits": 150, "modules": 150,
    "annotations": 1_500, "calls": 3_300, "names": 300, "letters": 4,
}  # fmt: skip
_FILE_BYTES = 150_000  # however little it holds
_LIST_BYTES, _NUMBER_BYTES = 130, 40
_SHARE = 0.8  # of what is free; the rest is for other programs
_CGROUP = Path("/sys/fs/cgroup")


def tables_bytes(**rows: int) -> int:
    """How much memory a file with this many rows of each kind takes at most."""
    return _FILE_BYTES + sum(count * _ROW_BYTES[kind] for kind, count in rows.items())


def shapes_bytes(args: bytes) -> int:
    """How much memory the lists in an event's arguments take at most as Python objects."""
    return args.count(b"[") * _LIST_BYTES + args.count(b",") * _NUMBER_BYTES


def default_limit_bytes() -> int:
    """Four fifths of the memory that is free, in this container or on this machine."""
    return int(_SHARE * min(_machine_bytes(), _container_bytes()))


def check_memory(what: str, needed_bytes: int, limit_bytes: int | None) -> None:
    """Raise TooLarge if that is more than the limit. `what` begins the message; a limit of None means there is none."""
    if limit_bytes is not None and needed_bytes > limit_bytes:
        raise TooLarge(
            f"{what} would take more than {limit_bytes / GB:,.1f} GB of memory, which is what may be used here; "
            "give fewer files at once, record shorter windows, or allow more with --memory GB"
        )


def _machine_bytes() -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_bytes() -> int:
    """The memory that the control group leaves, practically infinite where there is none."""
    with suppress(OSError, ValueError):
        return int((_CGROUP / "memory.max").read_text("ascii")) - int((_CGROUP / "memory.current").read_text("ascii"))
    return 1 << 80
