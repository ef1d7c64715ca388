"""Read the tables of an export: the rows of one process."""

from __future__ import annotations

from collections.abc import Sequence

from ...recording.arrays import Int64s
from ...recording.database import Database, WrittenBy
from ...recording.database_columns import DatabaseColumns, Keep
from ...recording.options import ReadOptions
from .exporting import EXPORT

NSYS = WrittenBy("exports of Nsight Systems", f"export the report again with {EXPORT}")
TEXT_TABLE = "StringIds"
THREAD = 0xFFFFFF
"""The bits of a serialized id that number the thread; above them as many number the process."""


class ExportTables(DatabaseColumns):
    """The rows of an export that concern one process; None for all processes."""

    def __init__(self, database: Database, options: ReadOptions, pid: int | None) -> None:
        super().__init__(database, options)
        self.pid = pid

    def of_process(self, table: str, column: str, *, prefix: str = "") -> str:
        """SQL condition for rows of the process, whose number is in bits 24 to 47 of a serialized id."""
        if self.pid is None or not self.database.has(table, column):
            return ""
        return f'({prefix}"{column}" >> 24) & {THREAD} = {self.pid}'

    def _has_rows_of_nobody(self, table: str, owner: str) -> bool:
        """Whether the table has rows that belong to no process."""
        if self.pid is None or not self.database.has(table, owner):
            return False
        return any(self.database.rows(table, [owner], f'"{owner}" IS NULL LIMIT 1'))

    def owned(
        self, table: str, needed: Sequence[str], others: Sequence[str] = (), *, owner: str, keep: Keep | None = None
    ) -> dict[str, Int64s]:
        """Columns of the process's rows, as `columns` has them; `owner` is the column that names it, or a thread of it.

        Raises DamagedTrace, TooLarge.
        """
        is_whole = all(self.database.has(table, name) for name in needed)
        if is_whole and self._has_rows_of_nobody(table, owner):
            self.note_invalid(f"table {table} has rows of no process ({owner})")
        return self.columns(table, needed, others, where=self.of_process(table, owner), keep=keep)


def process_of(serialized: int) -> int:
    """Number of the process in the serialized id of a process or thread."""
    return serialized >> 24 & THREAD


def thread_of(serialized: int) -> int:
    """Number of the thread in its serialized id."""
    return serialized & THREAD
