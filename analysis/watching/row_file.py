"""Rows of cycles as JSON lines in a file, which says after every interruption which cycles it has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...common.disk import close, held, sync, write_all
from ..core.escaping import encodable
from ..core.schema import Row
from ..core.tables.cycles import CYCLES
from ..errors import UnreadableFile, WatchedAlready
from .done import joined_ranges

_BEGIN = b'{"run":"'
_LONGEST_BYTES = 1 << 24
_NA = type(None)
_TYPES = {
    "int64": (int,), "Int64": (int, _NA), "Float64": (float, int, _NA), "string": (str, _NA), "boolean": (bool, _NA),
}  # fmt: skip
"""What values of a dtype are in JSON."""
_MOST_RANGES = 1 << 10


def as_line(row: Mapping[str, Any]) -> bytes:
    """A row of `cycles` as a line of JSON."""
    texts = {column: encodable(value) for column, value in row.items() if isinstance(value, str)}
    return msgspec.json.encode({**row, **texts}) + b"\n"


class RowsFound(NamedTuple):
    """The cycles of a run that a file has, as ranges, and the last of these rows."""

    ranges: tuple[tuple[int, int], ...]
    last: Row | None


class RowFile:
    """A file to which rows are added, held by one watch at a time. Raises UnreadableFile, WatchedAlready."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor, _ = held(path)
        except BlockingIOError as err:
            raise WatchedAlready(f"{path}: another watch writes to it; name another file") from err
        except OSError as err:
            raise UnreadableFile(f"{path}: rows cannot be added to it: {err.strerror}") from err

    def rows_of(self, run_id: str) -> RowsFound:
        """What the file has of a run. A last line that was not written to its end is removed. Raises UnreadableFile."""
        ranges: list[tuple[int, int]] = []
        last: Row | None = None
        end = 0
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_BYTES), b""), 1):
                if not line.endswith(b"\n"):
                    self._cut(line, number, end)
                    break
                row = self._row(line, number)
                if row["run_id"] == run_id:
                    ranges.append((row["cycle"], row["cycle"]))
                    last = row
                if len(ranges) > _MOST_RANGES:
                    ranges = list(joined_ranges(ranges))
                end += len(line)
        return RowsFound(joined_ranges(ranges), last)

    def close(self) -> None:
        """Let others have it."""
        close(self._descriptor)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row, and wait until it is on the disk; add nothing where that fails. Raises UnreadableFile."""
        before = os.fstat(self._descriptor).st_size
        try:
            try:
                write_all(self._descriptor, as_line(row))
                sync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, before)
                raise
        except OSError as err:
            raise UnreadableFile(f"{self.path}: cannot be written: {err.strerror}") from err

    def _row(self, line: bytes, number: int) -> Row:
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            row = None
        if not isinstance(row, dict) or not row.keys() >= {"run", "run_id", "cycle"}:
            raise self._foreign(number)
        if not all(type(row.get(column)) in _TYPES[dtype] for column, (dtype, _) in CYCLES.columns.items()):
            raise self._foreign(number)
        return {column: row.get(column) for column in CYCLES.columns}

    def _cut(self, begun: bytes, number: int, end: int) -> None:
        """Remove a line that was begun, unless it is not one of ours."""
        if not begun.startswith(_BEGIN[: len(begun)]) or len(begun) >= _LONGEST_BYTES:
            raise self._foreign(number)
        os.ftruncate(self._descriptor, end)

    def _foreign(self, number: int) -> UnreadableFile:
        return UnreadableFile(f"{self.path}: line {number:,} is not a row of a watch; name another file")
