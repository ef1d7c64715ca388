"""Convert columns to arrays. Times become integer nanoseconds here and stay so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...common.wording import counted
from ..core.escaping import encodable
from ..core.tables.events import EVENT_SORTS, EventColumn
from .recording import ANNOTATION_SORT, Annotation, Columns, RawTrace

Int64s = NDArray[np.int64]
EventFlags = NDArray[np.bool_]


def integers(column: bytes) -> Int64s:
    """The values of a column of integers, read-only."""
    return np.frombuffer(column, dtype=np.int64)


def doubles(column: bytes) -> NDArray[np.float64]:
    """The values of a column of doubles, read-only."""
    return np.frombuffer(column, dtype=np.float64)


def values_of(declared: EventColumn, columns: Columns) -> NDArray[Any]:
    """The values of a declared column, read-only."""
    column = columns[declared.name]
    return integers(column) if declared.is_integer else doubles(column)


def with_events(raw: RawTrace, kept: Mapping[str, EventFlags]) -> RawTrace:
    """The content with only the flagged events of these sorts, and all events of other sorts."""
    only = {sort: _rows(sort, getattr(raw, sort), flags) for sort, flags in kept.items() if sort != ANNOTATION_SORT}
    if ANNOTATION_SORT in kept:
        of_all = zip(raw.annotations, kept[ANNOTATION_SORT].tolist(), strict=True)
        raw = msgspec.structs.replace(raw, annotations=[annotation for annotation, is_kept in of_all if is_kept])
    return msgspec.structs.replace(raw, **only)


def _rows(sort: str, columns: Columns, kept: EventFlags) -> Columns:
    if kept.all():
        return columns
    return {one.name: values_of(one, columns)[kept].tobytes() for one in EVENT_SORTS[sort].held}


def durations(us: NDArray[np.float64]) -> Int64s:
    """Durations in ns; negative ones, which some writers produce, are 0."""
    return np.maximum(in_ns(us), 0)


def spans_of_annotations(annotations: Sequence[Annotation], base_ns: int) -> tuple[Int64s, Int64s]:
    """Start and duration of each annotation, in ns."""
    start_ns = in_ns(np.array([a.ts for a in annotations])) + base_ns
    return start_ns, durations(np.array([a.dur for a in annotations]))


def negative_durations(path: Path, raw: RawTrace) -> list[str]:
    """A note on negative durations, if there are any."""
    count = sum(int((doubles(columns["dur"]) < 0).sum()) for columns in (raw.activities, raw.operators, raw.runtime))
    count += sum(annotation.dur < 0 for annotation in raw.annotations)
    have = "has" if count == 1 else "have"
    return [f"{path.name}: {counted(count, 'event')} {have} a negative duration, which counts as 0"] if count else []


def repairs(path: Path, raw: RawTrace) -> list[str]:
    """A note on repaired bytes that were not JSON or text, if there are any."""
    count = raw.repaired_bytes + raw.header.repaired_bytes
    note = (
        f"{encodable(path.name)}: repaired {counted(count, 'byte')} of invalid JSON as its writer meant them: quotes "
        "in names, NaN, commas before brackets, letters in another encoding; if it was copied, compare it with its "
        "source"
    )
    return [note] if count else []


def in_ns(us: NDArray[np.float64]) -> Int64s:
    """Convert us with 3 decimals to integer ns, exact below 2^43 us, and for whole us always.

    For an absolute time (1.7e15 us) the product us * 1000 would not fit a double, so the whole part is kept apart.
    """
    whole = np.floor(us)
    ns: Int64s = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    return ns
