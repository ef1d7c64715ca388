"""Leave out events whose times were lost: they would make a step as long as the time since 1970.

CUPTI gives no time to a kernel for which it has none, and old versions of Kineto wrote it at 0; newer ones write 0 for
every time before the file's own zero, which may be months ago. A damaged time may be any. Two cycles in one file may be
far apart as well, and so may be a first annotation: those stay, but no program pauses for a year.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...common.wording import counted, listed
from ..core.escaping import encodable
from ..core.tables.events import EVENT_SORTS
from .arrays import EventFlags, doubles, integers, with_events
from .recording import ANNOTATION_SORT, Columns, RawTrace
from .values import MISSING

_WORDS = {name: sort.one for name, sort in EVENT_SORTS.items()} | {ANNOTATION_SORT: "annotation"}
_WITHOUT_DURATION = frozenset(name for name, sort in EVENT_SORTS.items() if not sort.has_durations)
_ROUNDED_US = 1.0  # some versions write whole us
_SKEW_US = 10e3  # of the clocks of a GPU and its host
# Programs pause for minutes. Kineto's zero is 1970, or up to three months before the trace.
_LONG_US = 3_600e6
_DAY_US, _YEAR_US = 86_400e6, 365.25 * 86_400e6


class _Span(NamedTuple):
    """Starts and ends of the events of one sort, in us."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]


class _Parts(NamedTuple):
    """A file in two parts: which events of each sort are of the first one, and the pause between the parts, in us.

    `length` is that of the longer part.
    """

    first: dict[str, EventFlags]
    pause: float
    length: float


def without_strays(path: Path, raw: RawTrace) -> RawTrace:
    """The trace without the events that lost their times, and a note on them.

    Such are the events at time 0 if they take no time, or if all others begin more than an hour later; GPU events that
    begin before they were launched, or more than an hour after that with nothing in between; and if there is a pause of
    a year, the events on the side of it that has fewer. All of them only if the pause is longer than what is on either
    side of it.
    """
    notes = []
    spans = _spans(raw) if raw.header.has_starts else {}
    while (parts := _parts(spans)) is not None:
        lost, why = _lost(raw, spans, parts)
        if not any(flags.any() for flags in lost.values()):
            if parts.pause > _LONG_US:
                notes.append(
                    f"between its first and its last events lie {_spoken(parts.pause)} with nothing: a pause of the "
                    "program, or times that are wrong"
                )
            break
        notes.append(f"left out {_counted(lost)} with an impossible time: {why}")
        kept = {sort: ~flags for sort, flags in lost.items()}
        raw = with_events(raw, kept)
        spans = {sort: _Span(span.start[kept[sort]], span.end[kept[sort]]) for sort, span in spans.items()}
    last = max((span.end.max() for span in spans.values() if len(span.end)), default=0.0)
    if raw.window_end is not None and spans and raw.window_end - last > _YEAR_US:
        notes.append(f"left out the end of the profile, {_spoken(raw.window_end - last)} after all events")
        raw = msgspec.structs.replace(raw, window_end=None)
    named = [f"{encodable(path.name)}: {note}" for note in notes]
    return msgspec.structs.replace(raw, notes=[*raw.notes, *named]) if named else raw


def _spans(raw: RawTrace) -> dict[str, _Span]:
    spans = {sort: _span(getattr(raw, sort)) for sort in EVENT_SORTS}
    start, dur = (np.array([getattr(one, name) for one in raw.annotations], dtype=np.float64) for name in ("ts", "dur"))
    return spans | {ANNOTATION_SORT: _Span(start, start + np.maximum(dur, 0.0))}


def _span(columns: Columns) -> _Span:
    start = doubles(columns["ts"])
    return _Span(start, start + np.maximum(doubles(columns["dur"]), 0.0) if "dur" in columns else start)


def _parts(spans: dict[str, _Span]) -> _Parts | None:
    """The parts of a file if the pause between them is longer than each of them, and than clocks differ; else None."""
    begun = [span for span in spans.values() if len(span.start)]
    if not begun:
        return None
    begin, last = min(span.start.min() for span in begun), max(span.start.max() for span in begun)
    middle = (begin + last) / 2  # which such a pause holds
    if begin == last:
        return None
    until = max(span.end[span.start <= middle].max(initial=begin) for span in begun)
    again = min(span.start[span.start > middle].min(initial=last) for span in begun)
    end = max(span.end.max() for span in begun)
    pause, length = float(again - until), float(max(until - begin, end - again))
    first = {sort: span.start <= middle for sort, span in spans.items()}
    return _Parts(first, pause, length) if pause > max(length, _SKEW_US) else None


def _lost(raw: RawTrace, spans: dict[str, _Span], parts: _Parts) -> tuple[dict[str, EventFlags], str]:
    """Which events of each sort lost their times, and why their times are impossible."""
    early = {sort: _Span(*(times[parts.first[sort]] for times in span)) for sort, span in spans.items()}
    if all(np.all(np.abs(span.start + raw.zero_us) <= _ROUNDED_US) for span in early.values()) and (
        parts.pause > _LONG_US or _are_instants(early)
    ):
        return parts.first, f"0, which is {_spoken(parts.pause)} before all others"
    if parts.pause > _YEAR_US:
        of_first = sum(int(flags.sum()) for flags in parts.first.values())
        if 2 * of_first < sum(len(flags) for flags in parts.first.values()):
            return parts.first, f"{_spoken(parts.pause)} before all others"
        return {sort: ~flags for sort, flags in parts.first.items()}, f"{_spoken(parts.pause)} after all others"
    nothing = {sort: np.zeros(len(flags), dtype=bool) for sort, flags in parts.first.items()}
    launched, is_early = integers(raw.launches["correlation"]), parts.first["launches"]
    correlation, ran_early = integers(raw.activities["correlation"]), parts.first["activities"]
    is_known = correlation != MISSING
    in_first, in_second = (np.isin(correlation, launched[those]) & is_known for those in (is_early, ~is_early))
    if (too_early := ran_early & in_second & ~in_first).any():
        return nothing | {"activities": too_early}, f"{_spoken(parts.pause)} before the launch"
    if parts.pause > _LONG_US and (too_late := ~ran_early & in_first & ~in_second).any():
        return nothing | {"activities": too_late}, f"{_spoken(parts.pause)} after the launch, and nothing in between"
    return nothing, ""


def _are_instants(spans: dict[str, _Span]) -> bool:
    """Whether no event takes any time, where events say how long they took."""
    timed = [span for sort, span in spans.items() if len(span.start) and sort not in _WITHOUT_DURATION]
    return bool(timed) and all(np.array_equal(span.start, span.end) for span in timed)


def _counted(lost: dict[str, EventFlags]) -> str:
    counts = {sort: int(flags.sum()) for sort, flags in lost.items()}
    if counts["runtime"]:
        counts["launches"] = 0  # these calls are among those of the runtime
    return listed([counted(count, _WORDS[sort]) for sort, count in counts.items() if count])


def _spoken(us: float) -> str:
    """A duration as people say it: `18,692 days`, `2.5 hours`, `31.0 ms`."""
    for unit, of_us in (("days", _DAY_US), ("hours", 3_600e6), ("s", 1e6)):
        if us >= 2 * of_us:
            return f"{us / of_us:,.{0 if unit == 'days' else 1}f} {unit}"
    return f"{us / 1000:,.1f} ms"
