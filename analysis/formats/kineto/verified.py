"""Read a trace file a second time with another parser, and compare every value: slow, for cases of doubt."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from ...core.json_repairs import with_names_that_are_text
from ...errors import DamagedTrace
from ...recording.compression import is_regular
from ...recording.recording import RawTrace
from .events import ROOMS, is_idle
from .stream import EventStream

_NS = Decimal("0.001")  # in us


def verified(path: Path, trace: RawTrace, progress: Callable[[int], None] | None = None) -> RawTrace:
    """Decode every event again with Python's parser, compare, and return what was read.

    What can be read only once, such as a pipe, and what is damaged, is returned as it is. Raises UnreadableFile, and
    DamagedTrace for an event with a duplicate key, and where the two readings differ.
    """
    if not is_regular(path) or trace.damage is not None:
        return trace
    second = _Second(trace.zero_us)
    stream: EventStream[Any] = EventStream(path, progress)
    for batch in stream:
        for index, text in enumerate(batch.texts):
            try:
                second.add(text)
            except (ValueError, RecursionError) as err:
                number, at = batch.first_event + index, batch.byte_of(index)
                raise DamagedTrace(
                    f"{path}: event {number:,}, at byte {at:,}: {err}; capture or copy it again"
                ) from err
    _compare(path, trace, second)
    extent = msgspec.structs.replace(trace.extent, verified_events=stream.events_read)
    return msgspec.structs.replace(trace, extent=extent)


class _Second:
    """The second reading of the columns to compare: times of activities, number of launches."""

    def __init__(self, zero_us: int) -> None:
        self._zero_us = zero_us
        self.starts = array("d")
        self.durations = array("d")
        self.launches = 0

    def add(self, text: bytes) -> None:
        """Count an event. Raises ValueError, RecursionError."""
        event = _decoded(b'{"' + text + b"}")
        category = event.get("cat")
        room = ROOMS.get(category) if event.get("ph") == "X" and isinstance(category, str) else None
        if room == "activities":
            # Numbers in quotes, which some tools write, count as numbers; the fast reading refuses all else.
            self.starts.append(float(event["ts"]) if not self._zero_us else self._since_zero_us(event["ts"]))
            self.durations.append(float(event.get("dur") or 0.0))
        elif room == "launches":
            self.launches += not is_idle(str(category), str(event.get("name", "")))

    def _since_zero_us(self, ts: str | int) -> float:
        try:
            return float((Decimal(ts) - self._zero_us).quantize(_NS))
        except ArithmeticError as err:
            raise ValueError(f"{ts!r} is no time") from err


def _decoded(text: bytes) -> dict[str, Any]:
    try:
        decoded: dict[str, Any] = json.loads(text, object_pairs_hook=_unique, parse_float=str)
    except UnicodeDecodeError:
        decoded = json.loads(with_names_that_are_text(text), object_pairs_hook=_unique, parse_float=str)
    return decoded


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return fields


def _compare(path: Path, trace: RawTrace, second: _Second) -> None:
    """Raise DamagedTrace where the two readings differ."""
    launches = len(trace.launches["ts"]) // second.starts.itemsize
    same = (
        second.starts.tobytes() == trace.activities["ts"]
        and second.durations.tobytes() == trace.activities["dur"]
        and second.launches == launches
    )
    if not same:
        kernels = len(trace.activities["ts"]) // second.starts.itemsize
        raise DamagedTrace(
            f"{path}: decoding every event finds {len(second.starts):,} kernels and copies and {second.launches:,} "
            f"launches, the fast reading {kernels:,} and {launches:,}, or others; please report this with the file"
        )
