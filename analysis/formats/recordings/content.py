"""Convert the content of a recording to and from the bytes of its file. See docs/recordings.md.

A recording is gzip. In it is a line that names it, the SHA-256 of all that follows, and the content as MessagePack.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from hashlib import sha256
from typing import Any, Literal

import msgspec
import numpy as np
from isal import isal_zlib

from ...core.budget import Budget
from ...core.markers import C10D, LOADING, OF_BACKENDS, STEERING
from ...core.tables.events import EVENT_SORTS, EventColumn
from ...recording.arrays import values_of
from ...recording.building import columns_of, unknown_column
from ...recording.checks import is_consistent
from ...recording.header import Header
from ...recording.options import ReadOptions
from ...recording.recording import NUMBER_BYTES, Columns, CommRow, Extent, RawTrace
from ...recording.row_bytes import tables_bytes
from ...recording.values import Int64, Time
from .columns import BadColumn, CodedColumn, coded_doubles, coded_integers, doubles_from, integers_from
from .outline import object_bytes, outline_of
from .rows import CodedRows, annotations_in, coded_annotations, coded_comm_args, comm_args_in, named_annotations

MAGIC = b"commtrace-recording\n"
VERSION = 1
_SUM_BYTES = 32
_GZIP = 31  # the window of zlib, and a gzip header around it
_SMALLEST, _FAST = 9, 2
_MOST_ROWS = 2**40


class TraceSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recorded file: its name, and an identifier of its state (empty if nobody compares it).

    `comm_names` are patterns of communication that were given beside those that are known.
    """

    name: str
    format: str
    format_version: int
    state: bytes = b""
    comm_names: tuple[str, ...] = ()


class Content(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of one trace file. `sorts` are tables: for each sort of event its columns.

    The other fields are those of `recording.RawTrace`. One with a default is written where it says something, so that
    older versions read all other recordings.
    """

    version: int
    source: TraceSource
    detailed: bool
    header: Header
    extent: Extent
    pids: list[Int64 | None]
    names: list[str]
    kinds: list[str]
    operator_names: list[str]
    call_names: list[str]
    sorts: dict[str, dict[str, CodedColumn]]
    annotations: CodedRows
    comm_args: CodedRows
    gloo_threads: list[Int64]
    lists_bytes: int
    repaired_bytes: int
    window_end: Time | None
    damage: str | None
    notes: list[str]
    launched: int = 0
    zero_us: Int64 = 0
    inputs: list[str] = []


class _Version(msgspec.Struct):
    version: int


_PLAIN = ("header", "extent", "pids", "names", "kinds", "operator_names", "call_names", "gloo_threads", "lists_bytes",
          "repaired_bytes", "window_end", "damage", "detailed", "launched", "zero_us", "inputs")  # fmt: skip
_CONTENT, _ROWS = msgspec.msgpack.Decoder(Content), msgspec.msgpack.Decoder(list[CommRow])
_ANY_VERSION = msgspec.msgpack.Decoder(_Version)
_OUTLINE = outline_of(Content)


class BadRecording(Exception):
    """What is wrong with a recording, as the predicate of a sentence."""


def _not_as_written(what: object) -> BadRecording:
    return BadRecording(f"is not as commtrace writes it ({what})")


def packed(trace: RawTrace, source: TraceSource, notes: list[str], *, how: Literal["small", "fast"] = "small") -> bytes:
    """The bytes of a recording of this trace."""
    content = Content(
        version=VERSION,
        source=source,
        notes=notes,
        sorts={sort: _columns_of(sort, getattr(trace, sort)) for sort in EVENT_SORTS},
        annotations=coded_annotations(trace.annotations),
        comm_args=coded_comm_args(trace.comm_args),
        **{name: getattr(trace, name) for name in _PLAIN},
    )
    return recording_of(content, how=how)


def recording_of(content: Content, *, how: Literal["small", "fast"]) -> bytes:
    """The bytes of a recording with this content."""
    payload = msgspec.msgpack.encode(content)
    plain = b"".join((MAGIC, sha256(payload).digest(), payload))
    if how == "fast":
        recording: bytes = isal_zlib.compress(plain, _FAST, _GZIP)
        return recording
    packer = zlib.compressobj(_SMALLEST, zlib.DEFLATED, _GZIP)
    return packer.compress(plain) + packer.flush()


def recorded_content(plain: bytes, what: str, budget: Budget) -> Content:
    """Decode an unpacked recording. `what` begins a message.

    Raises BadRecording; TooLarge if it would take more memory than allowed.
    """
    head = len(MAGIC) + _SUM_BYTES
    if not plain.startswith(MAGIC) or len(plain) < head:
        raise BadRecording("is not a recording of commtrace")
    payload = memoryview(plain)[head:]
    if sha256(payload).digest() != plain[len(MAGIC) : head]:
        raise BadRecording("is damaged: its checksum differs")
    try:
        version = _ANY_VERSION.decode(payload).version
        if version != VERSION:
            raise BadRecording(f"is of version {version}; this commtrace reads version {VERSION}, so use a newer one")
        budget.draw(what, object_bytes(payload, _OUTLINE))
        return _CONTENT.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise _not_as_written(err) from err


def trace_of(content: Content, what: str, budget: Budget, *, with_calls: bool = True) -> RawTrace:
    """Make the trace from the content of its recording. `what` begins a message.

    `with_calls` false leaves out what only calls of GPUs are made from: the arguments of collectives, and their marks
    on CPUs. Raises BadRecording; TooLarge if it would take more memory than allowed.
    """
    rows = _checked_rows(content, what, budget)
    is_read = with_calls or not rows["activities"]  # what CPUs run is made from the marks
    unread = () if is_read else (*OF_BACKENDS, C10D)
    try:
        columns: dict[str, Any] = {
            sort: _bytes_of(sort, content.sorts.get(sort, {}), rows[sort]) for sort in EVENT_SORTS
        }
        trace = RawTrace(
            **columns,
            annotations=annotations_in(content.annotations, what, budget, unread),
            comm_args=msgspec.convert(comm_args_in(content.comm_args), list[CommRow]) if is_read else [],
            notes=list(content.notes),
            **{name: getattr(content, name) for name in _PLAIN},
        )
    except (BadColumn, msgspec.ValidationError) as err:
        raise _not_as_written(err) from err
    if not is_consistent(trace):
        raise _not_as_written("its columns contradict each other")
    return trace


def _checked_rows(content: Content, what: str, budget: Budget) -> dict[str, int]:
    """Number of rows of each sort of event, if all of them may be made. Raises as `trace_of` does."""
    rows = {sort: _rows(content.sorts.get(sort, {})) for sort in EVENT_SORTS}
    others = {"annotations": content.annotations.kind.rows, "calls": content.comm_args.kind.rows}
    if max(*rows.values(), *others.values()) > _MOST_ROWS:
        raise _not_as_written("too many rows")
    if min(content.lists_bytes, content.repaired_bytes, content.launched) < 0:
        raise _not_as_written("a negative count")
    names = (*content.names, *content.operator_names, *content.call_names, *content.inputs)
    needed = tables_bytes(**rows, **others, names=len(names), letters=sum(map(len, names)))
    budget.check(what, needed + content.lists_bytes)
    return rows


def without_details(content: Content, options: ReadOptions, what: str, budget: Budget) -> Content:
    """Reduce what was recorded with details to what would have been recorded without, with these options.

    Nothing but annotations is decoded for it, and what is left out is not looked at. Raises as `trace_of` does.
    """
    if not content.detailed:
        return content
    operators, on_gpu = content.sorts.get("operators", {}), _rows(content.sorts.get("activities", {})) > 0
    without = {name: _NONE[name] for name, sort in EVENT_SORTS.items() if sort.detailed}
    of_details = {one.name for one in EVENT_SORTS["operators"].held if one.detailed}
    without["operators"] = _NONE["operators"] if on_gpu else _without(operators, of_details)

    def is_kept(name: str) -> bool:
        return name.startswith((C10D, LOADING)) or bool(STEERING.match(name)) or options.may_mark(name)

    names = [] if on_gpu else content.operator_names
    reduced = msgspec.structs.replace(
        content, sorts=content.sorts | without, operator_names=names, call_names=[], inputs=[], detailed=False
    )
    _checked_rows(reduced, what, budget)
    try:
        return msgspec.structs.replace(reduced, annotations=named_annotations(content.annotations, is_kept))
    except BadColumn as err:
        raise _not_as_written(err) from err


def _without(columns: dict[str, CodedColumn], names: Collection[str]) -> dict[str, CodedColumn]:
    return {name: column for name, column in columns.items() if name not in names}


def _columns_of(sort: str, columns: Columns) -> dict[str, CodedColumn]:
    """The coded columns; of those that older recordings do not have, the ones that say something."""
    return {
        one.name: _coded(one, columns)
        for one in EVENT_SORTS[sort].held
        if not one.since or columns[one.name] != unknown_column(one, len(columns[one.name]) // NUMBER_BYTES)
    }


def _coded(declared: EventColumn, columns: Columns) -> CodedColumn:
    values = values_of(declared, columns)
    return coded_integers(values) if declared.is_integer else coded_doubles(values)


def _bytes_of(sort: str, columns: dict[str, CodedColumn], rows: int) -> Columns:
    declared = EVENT_SORTS[sort]
    if not columns and declared.later:
        return columns_of(sort)
    lacking = {one.name for one in declared.held if one.since} - columns.keys()
    if columns.keys() != declared.names - lacking:
        raise BadColumn(f"the columns of {sort} are {', '.join(sorted(columns))}")
    return {
        one.name: unknown_column(one, rows) if one.name in lacking else _decoded(one, columns, rows)
        for one in declared.held
    }


def _decoded(declared: EventColumn, columns: dict[str, CodedColumn], rows: int) -> bytes:
    column = columns[declared.name]
    decoded = integers_from(column, rows) if declared.is_integer else doubles_from(column, rows)
    return np.ascontiguousarray(decoded).tobytes()


def _rows(columns: dict[str, CodedColumn]) -> int:
    """Number of rows of a sort of event; its columns are checked later."""
    column = columns.get("ts", CodedColumn(0))
    return column.rows


_NONE = {sort: _columns_of(sort, columns_of(sort)) for sort in EVENT_SORTS}
"""The columns of each sort of events if there are none."""
