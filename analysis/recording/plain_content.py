"""Read files of plain data that torch dumps: a pickle or JSON, under a budget. Nothing in them is executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...common.disk import open_plain
from ..core.budget import Budget
from ..core.small_files import NotJson, any_json, json_bytes
from ..errors import DamagedTrace, UnreadableFile
from .compression import BrokenPacking, all_bytes, packed_bytes
from .plain_pickles import primitives

_PICKLED = (b"\x80", b"(d", b"}q", b"}r", b"}(", b"}.")
"""How a pickle of a dictionary begins, of any protocol."""
_LATEST = 1 << 62


def is_pickle(begin: bytes) -> bool:
    """Whether a file with these first bytes may be a pickle of a dictionary."""
    return begin.startswith(_PICKLED)


def budget_of(path: Path, limit_bytes: int | None) -> Budget:
    """The memory budget for reading a file."""
    return Budget(limit_bytes, packed_bytes(path))


def plain_bytes(path: Path, budget: Budget) -> bytes:
    """The bytes of a file, unpacked. Raises UnreadableFile, NotATrace, DamagedTrace, TooLarge."""
    try:
        descriptor, _ = open_plain(path)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            data = all_bytes(path, file, budget)
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
    except BrokenPacking as err:
        raise DamagedTrace(f"{path}: {err}; copy it again") from err
    if not data:
        raise DamagedTrace(f"{path}: is empty; the process that dumped it ended before it could")
    return data


def plain_content(path: Path, data: bytes, budget: Budget) -> Any:
    """What the bytes of a file hold, a pickle or JSON. Raises UnsafePickle, DamagedTrace, TooLarge."""
    if is_pickle(data):
        return primitives(data, str(path), budget)
    budget.draw(f"{path}: what it holds", json_bytes(data))
    try:
        return any_json(data)
    except NotJson as err:
        raise DamagedTrace(f"{path}: is not a whole dump: {err}; copy it again") from err


def scalar_text(value: Any) -> str:
    """A text, or a number as text. Raises TypeError for others: the text of nested lists may be endless."""
    if isinstance(value, str):
        return value
    if value is not None and not isinstance(value, int | float):
        raise TypeError(f"a {type(value).__name__} stands where a text is expected")
    return str(value)


def whole_number(value: Any) -> int:
    """An integer that fits into a table. Raises TypeError, ValueError."""
    number = int(value)
    if not -_LATEST < number < _LATEST:
        raise ValueError(f"{str(number)[:40]} is out of range")
    return number
