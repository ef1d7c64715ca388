"""What a watch is told: how often to look and when to end, and what a cycle may cost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.schema import Row

_MEASURES = {
    "exposed": ("exposed_comm_frac", 100.0, "%"),
    "wait": ("exposed_wait_frac", 100.0, "%"),
    "step-ms": ("step_ns", 1e-6, "ms"),
}
"""Name of a limit -> column, what makes its values those of the limit, unit."""


@dataclass(frozen=True)
class Pace:
    """How often to look, how long to wait for what is missing or damaged, and when to end.

    `now` and `sleep` are a clock that no one sets, in s.
    """

    every_s: float = 2.0
    patience_s: float = 120.0
    idle_s: float | None = None
    once: bool = False
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Limit:
    """The most that a measure may be, in percent of a step or in ms."""

    measure: str
    most: float

    def __str__(self) -> str:
        return f"{self.measure}={self.most:g}"

    def value(self, row: Row) -> float | None:
        """The measure of a cycle, in the unit of the limit; None where it is not known."""
        column, factor, _ = _MEASURES[self.measure]
        found = row.get(column)
        return None if found is None else float(found) * factor

    def comparison(self, value: float) -> str:
        """A value above the limit beside the limit, in words."""
        unit = _MEASURES[self.measure][2]
        name = self.measure.removesuffix("-ms")
        return f"{name} {value:,.1f} {unit} > {self.most:g} {unit}"


@dataclass(frozen=True)
class Limits:
    """The limits on each cycle, and whether the watch goes on after one is passed."""

    each: tuple[Limit, ...] = ()
    go_on: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The limits as they were given."""
        return tuple(map(str, self.each))


def limit_in(text: str) -> Limit:
    """`exposed=20` as a limit. Raises ValueError."""
    found = re.fullmatch(rf"({'|'.join(_MEASURES)})=([0-9]{{1,12}}(?:\.[0-9]{{1,6}})?)", text)
    if found is None:
        raise ValueError(f"{text!r} is not a limit, such as exposed=20, wait=10 (in %) or step-ms=500")
    return Limit(found[1], float(found[2]))


def passed(row: Row, limits: Sequence[Limit]) -> str | None:
    """The limits that a cycle passes, in words; None if it passes none."""
    values = [(limit, limit.value(row)) for limit in limits]
    return (
        ", ".join(limit.comparison(value) for limit, value in values if value is not None and value > limit.most)
        or None
    )
