"""NVTX ranges of CPUs: what NCCL was called for, what torch says of it, and operators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .tables import LONGEST_NS, ExportTables, process_of, thread_of

RANGE_TABLE, TEXT_TABLE = "NVTX_EVENTS", "StringIds"
_RANGES = (59, 60, 70, 71)
"""Push and pop, start and end; the same of extended payloads. ENUM_NSYS_EVENT_TYPE."""
_TEXT = 'coalesce(n."text", s."value")'
# Beginnings, or parts, of names; LIKE does not tell cases apart.
COMMUNICATORS = ("nccl%comm%", "pnccl%comm%")
MARKS = ("nccl%", "pnccl%", "%step%", "%iter%", "%batch%", "enumerate(%")
EVERYTHING = ("%",)
# torch.autograd.profiler.emit_nvtx, and nsys --pytorch: `aten::mm, seq = 3, op_id = 17, sizes = [[2, 3], [3, 4]]`.
_OF_TORCH = re.compile(r"(?P<name>.*?)(?:, (?:seq|op_id|sizes|input_op_ids) = .*)?", re.DOTALL)
_NCCL = re.compile(r"p?nccl[A-Z]\w*")
_LONGEST_NAME = 1_000
_RANGE_BYTES = 300


class Range(NamedTuple):
    """A range of a thread, in ns as in the export; `payload` as it is stored, and the domain that it is of."""

    name: str
    process: int
    thread: int
    start: int
    end: int
    domain: int | None = None
    payload: object = None

    @property
    def is_nccl(self) -> bool:
        """Whether NCCL marked one of its functions."""
        return _NCCL.fullmatch(self.name) is not None


def marked_ranges(tables: ExportTables, names: Sequence[str]) -> list[Range]:
    """The ranges of a process whose names are LIKE one of these, by start.

    Ranges that never ended, or without a name, are left out. Raises DamagedTrace, TooLarge.
    """
    found: list[Range] = []
    columns = ("start", "end", "text", "textId", "globalTid", "domainId", "binaryData")
    for rows in tables.rows(RANGE_TABLE, _expressions(tables, columns), _condition(tables, names), _source(tables)):
        for start, end, text, thread, domain, payload in rows:
            if not (type(start) is int and type(end) is int and isinstance(text, str) and start >= 0):
                continue
            if 0 <= end - start < LONGEST_NS and end < 2**61:
                name = _OF_TORCH.fullmatch(text[:_LONGEST_NAME])["name"]  # type: ignore[index]  # it matches all texts
                serialized = thread if type(thread) is int else 0
                found.append(Range(
                    name, process_of(serialized), thread_of(serialized), start, end,
                    domain if type(domain) is int else None, payload,
                ))  # fmt: skip
        tables.check_memory(RANGE_TABLE, len(found) * _RANGE_BYTES)
    return sorted(found, key=lambda one: (one.start, -one.end))


def _source(tables: ExportTables) -> str:
    joined = ' LEFT JOIN "StringIds" s ON s."id" = n."textId"' if _is_joined(tables) else ""
    return f'"{RANGE_TABLE}" n{joined}'


def _is_joined(tables: ExportTables) -> bool:
    return tables.database.has(RANGE_TABLE, "textId") and tables.database.has(TEXT_TABLE, "id", "value")


def _text(tables: ExportTables) -> str:
    """The expression for the name of a range, which older exports have in one place only."""
    if not _is_joined(tables):
        return 'n."text"' if tables.database.has(RANGE_TABLE, "text") else "NULL"
    return _TEXT if tables.database.has(RANGE_TABLE, "text") else 's."value"'


def _expressions(tables: ExportTables, columns: tuple[str, ...]) -> list[str]:
    found = []
    for column in columns:
        if column == "text":
            found.append(_text(tables))
        elif column != "textId":
            found.append(f'n."{column}"' if tables.database.has(RANGE_TABLE, column) else "NULL")
    return found


def _condition(tables: ExportTables, names: Sequence[str]) -> str:
    conditions = []
    if tables.database.has(RANGE_TABLE, "eventType"):
        conditions.append(f'n."eventType" IN ({", ".join(map(str, _RANGES))})')
    if of_process := tables.of_process(RANGE_TABLE, "globalTid", prefix="n."):
        conditions.append(of_process)
    if names != EVERYTHING:
        text = _text(tables)
        conditions.append("(" + " OR ".join(f"{text} LIKE '{name}'" for name in names) + ")")
    return " AND ".join(conditions)
