"""Read an SQLite database that may be damaged or hostile.

It is opened so that nothing is written, not even a journal beside it. SQLite then does not look at journals either, so
a database is refused if part of it may be in one. Only ordinary tables are read: a view or a virtual table of its own
would be a program, and so would a column that is computed. SQLite gives every value the type that it was stored with,
whatever the table declares, so types are checked here. Rows may share their pages, so that a small file holds very
much: values have a longest length, and texts are counted while they are fetched.
"""

from __future__ import annotations

import sqlite3
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.budget import Budget
from ..core.escaping import encodable
from ..core.places.files import plain_file
from ..errors import DamagedTrace, NotATrace, TooLarge, TraceError, UnreadableFile
from .arrays import Int64s
from .compression import is_regular, packed_bytes
from .options import Progress
from .values import MISSING

_BEGIN, _HEADER_BYTES = b"SQLite format 3\0", 100
_ROWS, _ROWS_WITH_TEXTS = 25_000, 500  # at a time
_FUNCTIONS = frozenset({"like", "coalesce", "min", "max", "count", "typeof", "length"})
# Reading everything takes SQLite less than one instruction per byte of a real export. Pages that refer to each other in
# circles, or to one page again and again, take any number of them.
_STEPS, _STEPS_PER_BYTE, _STEPS_AT_ONCE = 50_000_000, 20, 100_000
_JOURNAL_BYTES = 32
_JOURNALS = {
    "-wal": ("some of it may be only there", "PRAGMA wal_checkpoint(TRUNCATE)"),
    "-journal": ("a change of it was interrupted", "PRAGMA integrity_check"),
}
"""Endings of files beside a database that belong to it, what they mean, and what brings the database up to date.

Source: https://sqlite.org/tempfiles.html
"""
# In rows of numbers nothing is longer than a few words that stand there by mistake.
_LONGEST_TEXT_BYTES, _LONGEST_NUMBER_BYTES = 16 << 20, 128
LONGEST_BLOB_BYTES = 4096
_TEXTS_AT_ONCE_BYTES = 64 << 20
# Names are a few hundred letters, in rows of fifty bytes: all texts of a file, each as often as it is used.
_TEXT_BYTES, _TEXT_BYTES_PER_BYTE = 256 << 20, 64
_VALUE_BYTES, _LEAST_HEAP_BYTES = 70, 64 << 20
_FAILURES = (sqlite3.Error, OverflowError, UnicodeDecodeError, MemoryError)
"""What a query can raise; UnicodeDecodeError where a message of SQLite quotes damaged bytes, and MemoryError where it
reached the limit set here."""


class WrittenBy(NamedTuple):
    """Who writes such databases, for messages: `exports of Nsight Systems`; and what to do for another one."""

    what: str
    again: str


class Database:
    """An open database, for use in a `with` block."""

    def __init__(self, path: Path, writer: WrittenBy, budget: Budget, progress: Progress | None = None) -> None:
        """Open it; `progress` gets the bytes read. Raises UnreadableFile, NotATrace, DamagedTrace."""
        self.path, self.writer, self.budget, self._progress = path, writer, budget, progress
        self.size = packed_bytes(path)
        self._spent, self._read = 0, 0
        self._limit = _STEPS + _STEPS_PER_BYTE * self.size
        self._texts_bytes = self._fetched_bytes = 0
        _check(path, writer)
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
        connection.text_factory = self._text
        try:
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("PRAGMA temp_store=MEMORY")
            left_bytes = self.budget.left_bytes
            if left_bytes is not None:  # indexes that SQLite makes for itself
                connection.execute(f"PRAGMA hard_heap_limit={max(_LEAST_HEAP_BYTES, left_bytes)}")
        except _FAILURES as err:
            raise self._failed(err, "its schema") from err
        connection.set_authorizer(_only_reading)
        connection.set_progress_handler(self._is_too_much, _STEPS_AT_ONCE)

    def _is_too_much(self) -> bool:
        self._spent += _STEPS_AT_ONCE
        return self._spent > self._limit

    def _ordinary_tables(self) -> dict[str, frozenset[str]]:
        """The columns of each table, without computed ones."""
        tables = self._all("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0", "its schema")
        names = [name for (name,) in tables if isinstance(name, str) and name.isidentifier()]
        return {
            name: frozenset(row[1] for row in self._all(f'PRAGMA table_info("{name}")', "its schema")) for name in names
        }

    def _all(self, query: str, what: str, longest_bytes: int = _LONGEST_TEXT_BYTES) -> list[tuple[Any, ...]]:
        all_rows: list[tuple[Any, ...]] = []
        for rows in self._rows(query, what, longest_bytes):
            all_rows += rows
            row_bytes = _VALUE_BYTES * (1 + len(all_rows[0]))
            self.budget.check(f"{self.path}: what it holds in {what}", row_bytes * len(all_rows) + self._fetched_bytes)
        return all_rows

    def names(self, beginning: str) -> list[str]:
        """The names of tables that begin so, in order."""
        return sorted(name for name in self._tables if name.startswith(beginning))

    def has_like(self, *beginnings: str) -> bool:
        """Whether the name of a table begins with one of these."""
        return any(name.startswith(beginnings) for name in self._tables)

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table exists with these columns."""
        return table in self._tables and self._tables[table].issuperset(columns)

    def first_with(self, table: str, columns: Sequence[str]) -> str | None:
        """The first of these columns that the table has."""
        return next((column for column in columns if self.has(table, column)), None)

    def numbers(self, table: str, columns: Sequence[str], where: str = "") -> Iterator[list[Any]]:
        """Yield rows of numbers like `rows`. Raises DamagedTrace, also for long texts."""
        if self.has(table):
            named = [f'"{column}"' if self.has(table, column) else "NULL" for column in columns]
            condition = f" WHERE {where}" if where else ""
            query = f'SELECT {", ".join(named)} FROM "{table}"{condition}'  # noqa: S608 - of names known here
            yield from self._rows(query, f"table {table}", _LONGEST_NUMBER_BYTES)

    def rows(self, table: str, columns: Sequence[str], where: str = "", source: str = "") -> Iterator[list[Any]]:
        """Yield rows of a table in chunks; None for each missing column, nothing for a missing table.

        `source` is what follows FROM, if that is not the table alone; columns are then expressions. Raises
        DamagedTrace, TooLarge.
        """
        if not self.has(table):
            return
        named = [column if source else f'"{column}"' if self.has(table, column) else "NULL" for column in columns]
        condition = f" WHERE {where}" if where else ""
        origin = source or f'"{table}"'
        query = f"SELECT {', '.join(named)} FROM {origin}{condition}"  # noqa: S608 - of names known here
        yield from self._rows(query, f"table {table}", _LONGEST_TEXT_BYTES)

    def distinct(self, table: str, columns: Sequence[str]) -> set[tuple[Any, ...]]:
        """The distinct rows of these columns of numbers. Raises DamagedTrace, TooLarge."""
        if not self.has(table):
            return set()
        named = ", ".join(f'"{column}"' if self.has(table, column) else "NULL" for column in columns)
        query = f'SELECT DISTINCT {named} FROM "{table}"'  # noqa: S608 - of names known here
        return set(self._all(query, f"table {table}", _LONGEST_NUMBER_BYTES))

    def ends_of(self, table: str, start: str, end: str) -> tuple[int | None, int | None]:
        """The least `start` and greatest `end` of a table, among integers. Raises DamagedTrace."""
        if not self.has(table, start, end):
            return None, None
        query = f'SELECT min("{start}"), max("{end}") FROM "{table}"'  # noqa: S608 - of names known here
        first, last = self._all(query, f"table {table}", _LONGEST_NUMBER_BYTES)[0]
        return first if type(first) is int else None, last if type(last) is int else None

    def _rows(self, query: str, what: str, longest_bytes: int) -> Iterator[list[Any]]:
        """Yield rows of a query; values longer than `longest_bytes` are an error, found at no cost."""
        count, at_once = 0, _ROWS if longest_bytes == _LONGEST_NUMBER_BYTES else _ROWS_WITH_TEXTS
        try:
            cursor = self._limited(longest_bytes).execute(query)
            while True:
                self._fetched_bytes = 0
                self._limited(longest_bytes)  # other queries may have been asked in between
                rows = cursor.fetchmany(at_once)
                if not rows:
                    return
                count += len(rows)
                self._report_progress(at_once)
                yield rows
        except _FAILURES as err:
            raise self._failed(err, what, count) from err

    def _limited(self, longest_bytes: int) -> sqlite3.Connection:
        if sys.version_info >= (3, 11):
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest_bytes)
        return self._connection

    def _text(self, data: bytes) -> str:
        """Decode a text of the database. Raises TooLarge, DamagedTrace."""
        self._fetched_bytes += len(data)
        self._texts_bytes += len(data)
        if self._fetched_bytes > _TEXTS_AT_ONCE_BYTES:
            self.budget.check(f"{self.path}: texts of {_ROWS_WITH_TEXTS} rows", 4 * self._fetched_bytes)
        if self._texts_bytes > _TEXT_BYTES + _TEXT_BYTES_PER_BYTE * self.size:
            raise DamagedTrace(
                f"{self.path}: holds more text than {self.size:,} bytes can, many times over; {self.writer.again}"
            )
        return data.decode("utf-8", "replace")

    def _report_progress(self, rows: int) -> None:
        """Report progress, estimated at 50 bytes per row, as SQLite does not say."""
        self._read = min(self._read + 50 * rows, self.size)
        if self._progress:
            self._progress(self._read)

    def _failed(self, err: Exception, what: str, rows: int = 0) -> TraceError:
        if isinstance(err, MemoryError):
            return TooLarge(
                f"{self.path}: what SQLite needs to read {what} takes more memory than may be used here; allow more "
                "with --memory GB"
            )
        why = encodable(" ".join(str(err).split()))  # it may quote damaged bytes
        if "interrupted" in why:
            why = f"takes more work to read than any table in {self.size:,} bytes"
        after = f" after {rows:,} rows" if rows else ""
        return DamagedTrace(f"{self.path}: cannot be read ({what}{after}: {why}); {self.writer.again}")


def whole_numbers(values: Sequence[Any]) -> Int64s:
    """A column of integers, MISSING for anything else."""
    try:
        return np.frombuffer(array("q", values), dtype=np.int64)
    except TypeError:
        return np.array([value if type(value) is int else MISSING for value in values], dtype=np.int64)


def _check(path: Path, writer: WrittenBy) -> None:
    """Raise the error for a file that SQLite would not open, would open as empty, or would explain badly.

    Raises UnreadableFile, NotATrace, DamagedTrace.
    """
    if not is_regular(path):
        raise UnreadableFile(f"{path}: is not a plain file, which a database must be")
    _check_journals(path, writer)
    try:
        with path.open("rb") as file:
            begin = file.read(_HEADER_BYTES)
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror or err}") from err
    if not begin.startswith(_BEGIN):
        raise NotATrace(f"{path}: is not an SQLite database, as {writer.what} are; {writer.again}")
    # https://sqlite.org/fileformat.html: size and number of pages, which counts if two counters of changes agree.
    page, pages = int.from_bytes(begin[16:18], "big"), int.from_bytes(begin[28:32], "big")
    expected = (65_536 if page == 1 else page) * pages
    if len(begin) < _HEADER_BYTES or (begin[24:28] == begin[92:96] and packed_bytes(path) < expected):
        sizes = f"{packed_bytes(path):,} of {expected:,} bytes are there"
        raise DamagedTrace(f"{path}: ends too early: {sizes}; copy it again, or {writer.again}")


def _check_journals(path: Path, writer: WrittenBy) -> None:
    """Raise UnreadableFile if part of the database is in a journal; others are empty or begin with zeros."""
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
                    f"`sqlite3 {database.name} '{statement}'`, or {writer.again}"
                )


def _only_reading(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Authorise a statement, or what a schema makes of it, only to read."""
    allowed = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    allowed |= action == sqlite3.SQLITE_PRAGMA and first == "table_info"
    allowed |= action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
