"""Read tables of a database as columns of integers, in chunks: memory grows only with what is kept."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import getsizeof
from typing import Any

import numpy as np

from ..core.escaping import encodable
from ..errors import DamagedTrace
from .arrays import Int64s
from .database import Database, whole_numbers
from .options import ReadOptions
from .row_bytes import tables_bytes
from .values import MISSING

LONGEST_NS = 2**53
"""No event takes longer, and none is farther from another: such times are exact as microseconds."""
LATEST_NS = 2**61
"""No event ends later."""
_NUMBER_BYTES, _ROW_BYTES, _TEXTS_AT_ONCE = 8, 200, 500
Keep = Callable[[dict[str, Int64s]], "np.typing.NDArray[np.bool_]"]


class DatabaseColumns:
    """The rows of a database, checked.

    With `keep_going`, damage ends the reading of a table, and rows that make no sense are left out; `damage` then says
    what was first. `needed_bytes` is what was kept so far takes, with the tables made from it.
    """

    def __init__(self, database: Database, options: ReadOptions) -> None:
        self.database = database
        self.damage: str | None = None
        self.needed_bytes = 0
        self._options = options

    def columns(
        self,
        table: str,
        needed: Sequence[str],
        others: Sequence[str] = (),
        *,
        where: str = "",
        keep: Keep | None = None,
    ) -> dict[str, Int64s]:
        """Columns of the rows `where` an SQL condition holds. Integers that are not `needed` are MISSING where absent.

        `keep` tells which rows of a chunk are wanted. Raises DamagedTrace, TooLarge.
        """
        names = [*needed, *others]
        kept = {name: array("q") for name in names}
        lacking = [name for name in needed if self.database.has(table) and not self.database.has(table, name)]
        if lacking:
            self.note_invalid(f"table {table} has no column {lacking[0]}")
            return {name: np.array([], dtype=np.int64) for name in names}
        for rows in self._going_on(self.database.numbers(table, names, where)):
            chunk = {name: whole_numbers(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
            chunk = self.sound(table, needed, chunk, rows)
            if keep is not None:
                wanted = keep(chunk)
                chunk = {name: values[wanted] for name, values in chunk.items()}
            for name, values in chunk.items():
                kept[name].frombytes(values.tobytes())
            self.check_memory(table, len(kept[names[0]]) * len(names) * _NUMBER_BYTES)
        return {name: np.frombuffer(values, dtype=np.int64) for name, values in kept.items()}

    def near(self, columns: dict[str, Int64s], first_ns: int) -> dict[str, Int64s]:
        """Drop events too far from the first one. Raises DamagedTrace if there are any."""
        good = np.abs(columns["start"] - first_ns) < LONGEST_NS
        if good.all():
            return columns
        self.note_invalid(f"some of its events are {LONGEST_NS:,} ns apart or more, which is not possible")
        return {name: values[good] for name, values in columns.items()}

    def rows(self, table: str, columns: Sequence[str], where: str = "", source: str = "") -> Iterator[list[Any]]:
        """Yield rows as stored, counted as kept by the caller unless they come from a `source`.

        Raises TooLarge; DamagedTrace, unless the reading is to go on.
        """
        kept_bytes = 0
        for rows in self._going_on(self.database.rows(table, columns, where, source)):
            if not source:
                kept_bytes += sum(_ROW_BYTES + sum(map(getsizeof, row)) for row in rows)
                self.check_memory(table, kept_bytes)
            yield rows

    def _going_on(self, chunks: Iterator[list[Any]]) -> Iterator[list[Any]]:
        try:
            yield from chunks
        except DamagedTrace as err:
            self._give_up(str(err), err)

    def note_invalid(self, what: str) -> None:
        """Note that the export is not as its writer makes it. Raises DamagedTrace, unless it is to go on."""
        self._give_up(f"{self.database.path}: {what}; {self.database.writer.again}", None)

    def _give_up(self, message: str, cause: Exception | None) -> None:
        if not self._options.keep_going:
            raise DamagedTrace(message) from cause
        self.damage = self.damage or encodable(message)

    def check_memory(self, table: str, more_bytes: int) -> None:
        """Raise TooLarge if `more_bytes` would not fit."""
        what = f"{self.database.path}: what it holds up to table {table}"
        self.database.budget.check(what, self.needed_bytes + more_bytes)

    def keep(self, table: str, **rows: int) -> None:
        """Count these rows of each kind as kept. Raises TooLarge."""
        self.needed_bytes += tables_bytes(**rows)
        self.check_memory(table, 0)

    def sound(
        self, table: str, needed: Sequence[str], chunk: dict[str, Int64s], rows: Sequence[Sequence[Any]]
    ) -> dict[str, Int64s]:
        """Rows of a chunk that have all needed values, which `rows` begin with, and possible times."""
        good = np.ones(len(rows), dtype=bool)
        for place, name in enumerate(needed):
            missing = chunk[name] == MISSING
            if missing.any():
                value = str(rows[int(np.flatnonzero(missing)[0])][place])[:40]
                self.note_invalid(f"table {table} has {value!r} as {name}, expected a whole number")
            good &= ~missing
        if {"start", "end"} <= set(needed):
            start, end = chunk["start"], chunk["end"]
            possible = (start >= 0) & (start < LATEST_NS) & (end >= 0) & (end < LATEST_NS)
            possible[possible] = np.abs(end[possible] - start[possible]) < LONGEST_NS
            if (good & ~possible).any():
                row = int(np.flatnonzero(good & ~possible)[0])
                self.note_invalid(
                    f"table {table} has an event from {start[row]} to {end[row]} ns, which is not possible"
                )
            good &= possible
        return chunk if good.all() else {name: values[good] for name, values in chunk.items()}

    def texts(self, table: str, ids: Iterable[int], column: str = "value") -> dict[int, str]:
        """The texts of these ids that exist in a table."""
        wanted = sorted(set(ids) - {MISSING})
        texts: dict[int, str] = {}
        for at in range(0, len(wanted), _TEXTS_AT_ONCE):
            some = ", ".join(map(str, wanted[at : at + _TEXTS_AT_ONCE]))
            for rows in self.rows(table, ("id", column), f"id IN ({some})"):
                texts.update({number: text for number, text in rows if isinstance(text, str)})
        return texts


def among(values: Int64s, distinct: Int64s) -> np.typing.NDArray[np.bool_]:
    """Whether each value is among the sorted, distinct ones."""
    if not len(distinct):
        return np.zeros(len(values), dtype=bool)
    is_among: np.typing.NDArray[np.bool_] = (
        distinct[np.minimum(np.searchsorted(distinct, values), len(distinct) - 1)] == values
    )
    return is_among


def stacked(parts: Sequence[dict[str, Int64s]]) -> dict[str, Int64s]:
    """Concatenate columns of the same names."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def looked_up_by_id(wanted: Int64s, ids: Int64s, values: Int64s) -> Int64s:
    """The value of the row with each wanted id; MISSING where there is none."""
    if not len(ids):
        return np.full(len(wanted), MISSING)
    order = np.argsort(ids, kind="stable")
    place = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where((ids[place] == wanted) & (wanted != MISSING), values[place], MISSING)
