"""Arguments of events: shapes of annotations, and what kernels and record_param_comms say about collectives."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ....common.nccl_tests import collective_name
from ...core.tables.events import COMM_ARGUMENTS, MOST_ELEMS
from ...recording.recording import Annotation
from .cuts import NO_JSON
from .events import AnnotationArgs, CommArgs, CpuEvent, MalformedEvent, OperatorArgs
from .fields import integer_id, value_in

_BY_VALUES = re.compile(r"conv|att|_mm|softmax|norm|::(?:sum|mean|amax|amin)$")
_comm_args = msgspec.json.Decoder(CommArgs, strict=False)
_annotation_args = msgspec.json.Decoder(AnnotationArgs, strict=False)


def annotations_of(events: Iterable[tuple[CpuEvent, bytes]]) -> list[Annotation]:
    """Annotations from events and their texts. Raises MalformedEvent."""
    result = []
    for event, text in events:
        args = _decoded(_annotation_args, event, text)
        if not _are_shapes(args.in_dims):
            raise MalformedEvent(text, f"{str(args.in_dims)[:40]} are not shapes")
        values = None if args.in_values is None else [v if isinstance(v, str) else str(v) for v in args.in_values]
        thread, dur = integer_id(event.tid), event.dur or 0.0
        result.append(Annotation(event.name, thread, event.ts, dur, args.in_dims, args.in_types, values))
    return result


def inputs_of(event: CpuEvent, args: OperatorArgs) -> str | None:
    """What an operator was called with, as JSON: `[dims, types, values]`; None if that was not recorded.

    Values are kept where shapes alone do not say what was computed, as those of others differ from call to call.
    """
    if not len(args.dims):
        return None
    values = bytes(args.values) if _BY_VALUES.search(event.name) else b"[]"
    return b"".join((b"[", args.dims, b",", args.types, b",", values, b"]")).decode("utf-8", "replace")


def without_shapes(event: CpuEvent) -> Annotation:
    """An annotation with name and time only."""
    return Annotation(event.name, integer_id(event.tid), event.ts, event.dur or 0.0, None, None, None)


def _are_shapes(dims: list[Any] | None) -> bool:
    """Whether every input is a shape or a list of shapes."""
    shapes = [s for d in dims or () for s in (d if _are(list, d) else [d])]
    return all(_are(int, s) and all(abs(n) <= MOST_ELEMS for n in s) for s in shapes)


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is kind for v in values)


def call_records(events: Iterable[tuple[CpuEvent, bytes]]) -> list[dict[str, Any]]:
    """Rows of record_param_comms, without those named `wait`, which are not calls."""
    decoded = ((event, _decoded(_comm_args, event, text)) for event, text in events)
    return [
        comm_row("record_param_comms", args) | {"thread": integer_id(event.tid), "ts": event.ts}
        for event, args in decoded
        if args.op not in (None, "wait")
    ]


def _decoded(decoder: msgspec.json.Decoder[Any], event: CpuEvent, text: bytes) -> Any:
    try:
        return decoder.decode(event.args)
    except NO_JSON as err:
        raise MalformedEvent(text, str(err)) from err


def comm_row(source: str, args: CommArgs) -> dict[str, Any]:
    """A row of the table of arguments; impossible values become None."""
    # Both ends of a message may be named, the rank itself among them.
    receives = collective_name(args.op or "") == "recv"
    ends = (args.src_rank, args.dst_rank) if receives else (args.dst_rank, args.src_rank)
    made = {
        "source": source,
        "pg_ranks": _ranks_in(args.pg_ranks),
        "comms_id": None if args.comms_id is None else str(args.comms_id),
        "peer": next((end for end in ends if end is not None), None),
    }
    of_row = (one for one in COMM_ARGUMENTS.columns if one.keys or one.name in made)
    return {one.name: made[one.name] if one.name in made else value_in(one, args) for one in of_row}


def _ranks_in(text: str | None) -> str | None:
    """Turn `"[0, 1]"` into `"0 1"`; None if the list was cut (over 30 ranks) or is empty."""
    if text is None or "..." in text:
        return None
    return " ".join(re.findall(r"\d+", text)) or None
