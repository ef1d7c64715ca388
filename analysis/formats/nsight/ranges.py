"""NVTX ranges of CPUs: calls of NCCL, names from torch, and operators."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core import markers
from ...recording.arrays import Int64s
from ...recording.database import LONGEST_BLOB_BYTES
from ...recording.database_columns import LATEST_NS, LONGEST_NS
from ...recording.row_bytes import tables_bytes
from ..nccl_functions import Range, is_nccl_function
from .tables import TEXT_TABLE, ExportTables, process_of, thread_of

RANGE_TABLE = "NVTX_EVENTS"
_RANGES = (59, 60, 70, 71)
"""Push and pop, start and end; the same of extended payloads. ENUM_NSYS_EVENT_TYPE."""
_TEXT = 'coalesce(n."text", s."value")'
_NUMBER = """CASE typeof(n."{0}") WHEN 'integer' THEN n."{0}" END"""
_SHORT = f'CASE WHEN length(n."binaryData") <= {2 * LONGEST_BLOB_BYTES} THEN n."binaryData" END'
"""What NCCL attaches has less than 100 bytes; some tools write it as a text of twice as many letters."""
# Beginnings, or parts, of names; LIKE does not tell cases apart.
COMMUNICATORS = ("nccl%comm%", "pnccl%comm%")
MARKS = (
    "nccl%", "pnccl%", "%step%", "%iter%", "%batch%", "%train%", "%infer%", "%prefill%", "%decode%", "%generat%",
    "execute_%", "eval%", "%run_eval%", "val%", "%run_val%", "test%", "%checkpoint%", "%ckpt%", "%save%", "enumerate(%",
)  # fmt: skip
EVERYTHING = ("%",)
# torch.autograd.profiler.emit_nvtx, and nsys --pytorch: `aten::mm, seq = 3, op_id = 17, sizes = [[2, 3], [3, 4]]`.
_OF_TORCH = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
_LONGEST_NAME = 1_000
_COLUMNS = ("start", "end", "text", "globalTid", "domainId", "binaryData")
_APART = (markers.NCCL_MARK, markers.LOADING)
_RANGE_BYTES, _OPERATOR_BYTES, _CHECKED_EVERY = 1_300, 150, 5_000


def marked_ranges(tables: ExportTables, names: Sequence[str]) -> list[Range]:
    """Ranges of a process whose names are LIKE one of these, by start.

    Ranges that never ended, or without a name, are left out. Raises DamagedTrace, TooLarge.
    """
    ranges: list[Range] = []
    payload_bytes = 0
    for start, end, text, thread, domain, payload in _rows(tables, _COLUMNS, names):
        serialized = thread if type(thread) is int else 0
        known = domain if type(domain) is int else None
        ranges.append(Range(_name(text), process_of(serialized), thread_of(serialized), start, end, known, payload))
        payload_bytes += len(payload) if isinstance(payload, bytes | str) else 0
        if not len(ranges) % _CHECKED_EVERY:
            tables.check_memory(RANGE_TABLE, len(ranges) * _RANGE_BYTES + payload_bytes)
    return sorted(ranges, key=lambda one: (one.start, -one.end))


class OperatorColumns(NamedTuple):
    """Operators as columns; times in ns as in the export. The column `name` indexes `names`."""

    columns: dict[str, Int64s]
    names: list[str]


def operator_ranges(tables: ExportTables, steps: Iterable[Range]) -> OperatorColumns:
    """Operators and user ranges of a CPU: all ranges but steps and communication.

    There may be millions, so they are read into columns. Raises DamagedTrace, TooLarge.
    """
    gathered = {name: array("q") for name in ("start", "end", "thread", "name")}
    names: dict[str, int] = {}
    letters = 0
    marked = {(step.start, step.end) for step in steps}
    for start, end, text, thread in _rows(tables, _COLUMNS[:4], EVERYTHING):
        name = _name(text)
        if name.startswith(_APART) or (start, end) in marked or is_nccl_function(name):
            continue
        if name not in names:
            names[name] = len(names)
            letters += len(name)
        values = (start, end, thread_of(thread) if type(thread) is int else 0, names[name])
        for column, value in zip(gathered.values(), values, strict=True):
            column.append(value)
        if not len(gathered["start"]) % _CHECKED_EVERY:
            needed_bytes = tables_bytes(operators=len(gathered["start"]), names=len(names), letters=letters)
            tables.check_memory(RANGE_TABLE, needed_bytes)
    columns = {name: np.frombuffer(values, dtype=np.int64) for name, values in gathered.items()}
    tables.keep(RANGE_TABLE, operators=len(columns["start"]), names=len(names), letters=letters)
    return OperatorColumns(columns, list(names))


def _rows(tables: ExportTables, columns: Sequence[str], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield ranges with a name and possible times, which are the first columns."""
    expressions = _expressions(tables, columns)
    for rows in tables.rows(RANGE_TABLE, expressions, _condition(tables, names), _source(tables)):
        for row in rows:
            start, end, text = row[:3]
            is_range = type(start) is int and type(end) is int and isinstance(text, str)
            if is_range and 0 <= start <= end < LATEST_NS and end - start < LONGEST_NS:
                yield row


def _name(text: str) -> str:
    """The name of a range, without torch's additions."""
    added = _OF_TORCH.search(text)
    return text[: min(_LONGEST_NAME, len(text) if added is None else added.start())]


def _source(tables: ExportTables) -> str:
    joined = ' LEFT JOIN "StringIds" s ON s."id" = n."textId"' if _is_joined(tables) else ""
    return f'"{RANGE_TABLE}" n{joined}'


def _is_joined(tables: ExportTables) -> bool:
    return tables.database.has(RANGE_TABLE, "textId") and tables.database.has(TEXT_TABLE, "id", "value")


def _text(tables: ExportTables) -> str:
    """The SQL expression for the name of a range, which older exports have in one place only."""
    if not _is_joined(tables):
        return 'n."text"' if tables.database.has(RANGE_TABLE, "text") else "NULL"
    return _TEXT if tables.database.has(RANGE_TABLE, "text") else 's."value"'


def _expressions(tables: ExportTables, columns: Sequence[str]) -> list[str]:
    has = tables.database.has
    short = {column: _NUMBER.format(column) for column in columns if has(RANGE_TABLE, column)}
    if "binaryData" in short:
        short["binaryData"] = _SHORT
    return [_text(tables) if column == "text" else short.get(column, "NULL") for column in columns]


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
