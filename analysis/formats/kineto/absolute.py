"""Read times since 1970 with decimals (torch up to 2.3) exactly to the ns, which a double cannot hold.

A double holds such a time in us to a quarter of one. So the text of the number is read, and the time counts from a zero
near it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Protocol

import msgspec

from .events import MalformedEvent

EXACT_BELOW_US = 2.0**43
"""Below this, a double of us holds three decimals."""
_SPAN_US = 1 << 41
_FURTHEST_US = float(1 << 42)
# So many whole numbers, one of four of which would be whole by chance, are whole.
_SURELY_WHOLE = 64


class Timed(Protocol):
    """An event whose time is read."""

    ts: Any


class TooFarApart(Exception):
    """The times of one file are too far apart to count exactly from one zero."""


class _Text(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"0")


_TEXTS = msgspec.json.Decoder(_Text)


def is_absolute(events: Sequence[Timed]) -> bool:
    """Whether doubles of the times of these events, in file order, are not exact."""
    return bool(events) and any((event.ts or 0.0) >= EXACT_BELOW_US for event in (events[0], events[-1]))


def have_decimals(events: Sequence[Timed], texts: Sequence[bytes]) -> bool:
    """Whether any time is not a whole number of us."""
    if any(event.ts is not None and not event.ts.is_integer() for event in events):
        return True
    return len(events) < _SURELY_WHOLE and any(ns_in(text) % 1000 for text in texts)


def zero_us_near(us: float) -> int:
    """A zero near this time, from which times count. Most times of a job share it."""
    return int(us) // _SPAN_US * _SPAN_US


def times_from(zero_us: int, events: Iterable[Timed], texts: Iterable[bytes]) -> list[float | None]:
    """Times of events since the zero, in us, from their texts. Raises TooFarApart."""
    times = [
        None if event.ts is None else (ns_in(text) - zero_us * 1000) / 1000
        for event, text in zip(events, texts, strict=True)
    ]
    if any(time is not None and abs(time) > _FURTHEST_US for time in times):
        raise TooFarApart
    return times


def ns_in(text: bytes) -> int:
    """The time in the text of an event, in ns."""
    raw = bytes(_TEXTS.decode(b'{"' + text + b"}").ts).strip(b'"')
    whole, _, decimals = raw.partition(b".")
    if whole.isdigit() and len(decimals) <= 3 and (decimals.isdigit() or not decimals):
        return int(whole) * 1000 + int(decimals.ljust(3, b"0"))
    try:
        return int((Decimal(raw.decode()) * 1000).to_integral_value())
    except (ArithmeticError, ValueError) as err:
        raise MalformedEvent(text, f"{raw[:40]!r} is no time") from err
