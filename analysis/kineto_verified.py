"""A second reading of a trace file, by another parser, of every value of every event: slow, and for doubts only."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from .chunks import EventStream
from .errors import DamagedTrace
from .kineto import read_kineto
from .kineto_events import CALLS, IDLE_CALLS, ROOMS
from .packed import is_regular
from .raw_trace import RawTrace
from .repairs import with_names_that_are_text, with_quoted_names


def read_verified(
    path: Path,
    comm_names: re.Pattern[str],
    *,
    details: bool = False,
    keep_damaged: bool = False,
    limit_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RawTrace:
    """As `read_kineto`, and every event decoded once more by Python's own parser, and compared.

    What can be read only once, as a pipe, and what is damaged, is read as ever. Raises as `read_kineto`, and
    DamagedTrace for an event with a key twice, or without a time, and where the two readings differ.
    """
    found = read_kineto(
        path, comm_names, details=details, keep_damaged=keep_damaged, limit_bytes=limit_bytes, progress=progress
    )
    if not is_regular(path) or found.damage is not None:
        return found
    second = _Second()
    stream: EventStream[Any] = EventStream(path, progress)
    for batch in stream:
        for number, text in enumerate(batch.texts, batch.first_event):
            try:
                second.add(text)
            except ValueError as err:
                at = batch.byte_of(number - batch.first_event)
                raise DamagedTrace(
                    f"{path}: event {number:,}, at byte {at:,}, {err}; capture or copy it again"
                ) from err
    _compare(path, found, second)
    extent = msgspec.structs.replace(found.extent, verified_events=stream.events_read)
    return msgspec.structs.replace(found, extent=extent)


class _Second:
    """What the fast reading keeps as columns, as the slow one finds it: times of activities, number of launches."""

    def __init__(self) -> None:
        self.starts = array("d")
        self.durations = array("d")
        self.launches = 0

    def add(self, text: bytes) -> None:
        """Count an event. Raises ValueError with what is wrong with it, as the predicate of a sentence."""
        event = _decoded(b'{"' + text + b"}")
        if event.get("ph") != "X":
            return
        start, duration = event.get("ts"), event.get("dur") or 0.0
        if not isinstance(start, int | float) or not isinstance(duration, int | float):
            if isinstance(event.get("cat"), str) and event["cat"] not in ROOMS:
                return  # nothing is measured from it
            start, duration = _number(start), _number(duration)
        room = ROOMS.get(event.get("cat", ""))
        if room == "activities":
            self.starts.append(start)
            self.durations.append(duration)
        elif room == "launches":
            is_idle = event["cat"] == CALLS and str(event.get("name", "")).startswith(IDLE_CALLS)
            self.launches += not is_idle


def _decoded(text: bytes) -> dict[str, Any]:
    try:
        decoded: dict[str, Any] = json.loads(text, object_pairs_hook=_unique)
    except _Twice:
        raise
    except ValueError:
        decoded = json.loads(with_names_that_are_text(with_quoted_names(text)), object_pairs_hook=_unique)
    return decoded


class _Twice(ValueError):
    """An object has a key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _Twice(f"has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return found


def _number(value: Any) -> float:
    """Numbers in quotes, which some tools write, count as numbers."""
    try:
        return float(value)
    except TypeError as err:
        raise ValueError("has no time") from err


def _compare(path: Path, found: RawTrace, second: _Second) -> None:
    """Raise DamagedTrace where the two readings differ."""
    launches = len(found.launches["ts"]) // second.starts.itemsize
    same = (
        second.starts.tobytes() == found.activities["ts"]
        and second.durations.tobytes() == found.activities["dur"]
        and second.launches == launches
    )
    if not same:
        kernels = len(found.activities["ts"]) // second.starts.itemsize
        raise DamagedTrace(
            f"{path}: decoding every event finds {len(second.starts):,} kernels and copies and {second.launches:,} "
            f"launches, the fast reading {kernels:,} and {launches:,}, or others; please report this with the file"
        )
