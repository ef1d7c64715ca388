"""A database that may be damaged or hostile, read without trusting it.

It is opened so that nothing is written, not even a journal beside it. SQLite then does not look at journals either, so
a database is refused if part of it may be in one. Only ordinary tables are read: a view or a virtual table of its own
would be a program, and so would a column that is computed. SQLite gives every value the type that it was stored with,
whatever the table declares, so types are checked here.
"""

from __future__ import annotations

import sqlite3
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.disk import plain_file
from ...core.escaping import encodable
from ...errors import DamagedTrace, NotATrace, UnreadableFile
from ...recording.arrays import Int64s
from ...recording.compression import is_regular, packed_bytes
from ...recording.options import Progress
from ...recording.values import MISSING
from .exporting import EXPORT

_BEGIN, _HEADER_BYTES = b"SQLite format 3\0", 100
_ROWS = 50_000  # at a time
_FUNCTIONS = frozenset({"like", "coalesce", "min", "max", "count"})
# Reading everything takes SQLite less than one instruction per byte of a real export. Pages that refer to each other in
# circles, or to one page again and again, take any number of them.
_STEPS, _STEPS_PER_BYTE, _STEPS_AT_ONCE = 50_000_000, 20, 100_000
_LONGEST_VALUE_BYTES = 64 << 20
_JOURNAL_BYTES = 32
_JOURNALS = {
    "-wal": ("some of it may be only there", "PRAGMA wal_checkpoint(TRUNCATE)"),
    "-journal": ("a change of it was interrupted", "PRAGMA integrity_check"),
}
"""Endings of files beside a database that belong to it, what they mean, and what brings the database up to date.

Source: https://sqlite.org/tempfiles.html
"""
_FAILURES = (sqlite3.Error, OverflowError, UnicodeDecodeError, MemoryError)
"""What a query can raise: UnicodeDecodeError where a message of SQLite quotes damaged bytes, MemoryError, without a
message, where a damaged size asks for too much."""
_AGAIN = f"export the report again with {EXPORT}"


class Database:
    """An open database, for a `with` block."""

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        """Raises UnreadableFile, NotATrace, DamagedTrace. `progress` is told about how much has been read."""
        self.path, self._progress = path, progress
        self.size = packed_bytes(path)
        self._spent, self._read = 0, 0
        self._limit = _STEPS + _STEPS_PER_BYTE * self.size
        _check(path)
        try:
            self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        except sqlite3.Error as err:
            raise UnreadableFile(f"{path}: cannot be opened: {err}") from err
        try:
            self._protect()
            self._tables = self._ordinary_tables()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _protect(self) -> None:
        connection = self._connection
        connection.text_factory = _text
        try:
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("PRAGMA temp_store=MEMORY")
        except _FAILURES as err:
            raise self._failed(err, "its schema") from err
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE_BYTES)
        connection.set_authorizer(_only_reading)
        connection.set_progress_handler(self._is_too_much, _STEPS_AT_ONCE)

    def _is_too_much(self) -> bool:
        self._spent += _STEPS_AT_ONCE
        return self._spent > self._limit

    def _ordinary_tables(self) -> dict[str, frozenset[str]]:
        """The columns of each table, without those that are computed."""
        tables = self._all("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0", "its schema")
        names = [name for (name,) in tables if isinstance(name, str) and name.isidentifier()]
        return {
            name: frozenset(row[1] for row in self._all(f'PRAGMA table_info("{name}")', "its schema")) for name in names
        }

    def _all(self, query: str, what: str) -> list[tuple[Any, ...]]:
        return [row for rows in self._rows(query, what) for row in rows]

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table, with these columns."""
        return table in self._tables and self._tables[table].issuperset(columns)

    def first_with(self, table: str, columns: Sequence[str]) -> str | None:
        """The first of these columns that the table has."""
        return next((column for column in columns if self.has(table, column)), None)

    def rows(self, table: str, columns: Sequence[str], where: str = "", source: str = "") -> Iterator[list[Any]]:
        """Rows of a table, many at a time; None for every column that it lacks. Nothing if there is no such table.

        `source` is what follows FROM, if that is not the table alone; columns are then expressions. Raises
        DamagedTrace.
        """
        if not self.has(table):
            return
        named = [column if source else f'"{column}"' if self.has(table, column) else "NULL" for column in columns]
        condition = f" WHERE {where}" if where else ""
        origin = source or f'"{table}"'
        query = f"SELECT {', '.join(named)} FROM {origin}{condition}"  # noqa: S608 - of names known here
        yield from self._rows(query, f"table {table}")

    def distinct(self, table: str, columns: Sequence[str]) -> set[tuple[Any, ...]]:
        """The different rows that these columns have. Raises DamagedTrace."""
        if not self.has(table):
            return set()
        named = ", ".join(f'"{column}"' if self.has(table, column) else "NULL" for column in columns)
        query = f'SELECT DISTINCT {named} FROM "{table}"'  # noqa: S608 - of names known here
        return set(self._all(query, f"table {table}"))

    def ends_of(self, table: str, start: str, end: str) -> tuple[int | None, int | None]:
        """The least `start` and the greatest `end` of a table, as far as they are integers. Raises DamagedTrace."""
        if not self.has(table, start, end):
            return None, None
        query = f'SELECT min("{start}"), max("{end}") FROM "{table}"'  # noqa: S608 - of names known here
        first, last = self._all(query, f"table {table}")[0]
        return first if type(first) is int else None, last if type(last) is int else None

    def _rows(self, query: str, what: str) -> Iterator[list[Any]]:
        count = 0
        try:
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(_ROWS):
                count += len(rows)
                self._tell()
                yield rows
        except _FAILURES as err:
            raise self._failed(err, what, count) from err

    def _tell(self) -> None:
        """Tell about how much has been read: SQLite does not say, but chunks of rows are of about 50 bytes each."""
        self._read = min(self._read + 50 * _ROWS, self.size)
        if self._progress:
            self._progress(self._read)

    def _failed(self, err: Exception, what: str, rows: int = 0) -> DamagedTrace:
        why = encodable(" ".join(str(err).split()))  # it may quote damaged bytes
        if isinstance(err, MemoryError):
            why = "takes more memory than there is"
        if "interrupted" in why:
            why = f"takes more work to read than any table in {self.size:,} bytes"
        after = f" after {rows:,} rows" if rows else ""
        return DamagedTrace(f"{self.path}: cannot be read ({what}{after}: {why}); {_AGAIN}")


def whole_numbers(values: Sequence[Any]) -> Int64s:
    """A column of integers, MISSING for whatever is not one."""
    try:
        return np.frombuffer(array("q", values), dtype=np.int64)
    except TypeError:
        return np.array([value if type(value) is int else MISSING for value in values], dtype=np.int64)


def _check(path: Path) -> None:
    """Raise what is wrong with a file that SQLite would not open, or only as an empty database, or say less about.

    Raises UnreadableFile, NotATrace, DamagedTrace.
    """
    if not is_regular(path):
        raise UnreadableFile(f"{path}: is not a plain file, which a database must be")
    _check_journals(path)
    try:
        with path.open("rb") as file:
            begin = file.read(_HEADER_BYTES)
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror or err}") from err
    if not begin.startswith(_BEGIN):
        raise NotATrace(f"{path}: is not an SQLite database, as exports of Nsight Systems are; {_AGAIN}")
    # https://sqlite.org/fileformat.html: size and number of pages, which counts if two counters of changes agree.
    page, pages = int.from_bytes(begin[16:18], "big"), int.from_bytes(begin[28:32], "big")
    expected = (65_536 if page == 1 else page) * pages
    if len(begin) < _HEADER_BYTES or (begin[24:28] == begin[92:96] and packed_bytes(path) < expected):
        found = f"{packed_bytes(path):,} of {expected:,} bytes are there"
        raise DamagedTrace(f"{path}: ends too early: {found}; copy it again, or {_AGAIN}")


def _check_journals(path: Path) -> None:
    """Raise UnreadableFile if part of the database is in a journal, which is else empty or begins with zeros."""
    for database in dict.fromkeys((path, path.resolve())):  # SQLite looks beside the file that a link leads to
        for ending, (meaning, statement) in _JOURNALS.items():
            journal = database.with_name(database.name + ending)
            try:
                with plain_file(journal)[0] as file:
                    is_used = any(file.read(_JOURNAL_BYTES))
            except FileNotFoundError:
                continue
            except OSError as err:
                raise UnreadableFile(
                    f"{journal}: belongs to {path}, and cannot be read: {err.strerror or err}"
                ) from err
            if is_used:
                raise UnreadableFile(
                    f"{path}: has {journal.name} beside it: {meaning}; wait until nothing writes to it, then run "
                    f"`sqlite3 {database.name} '{statement}'`, or {_AGAIN}"
                )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _only_reading(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Whether a statement, or what a schema makes of it, may do this."""
    allowed = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    allowed |= action == sqlite3.SQLITE_PRAGMA and first == "table_info"
    allowed |= action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
