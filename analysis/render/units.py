"""Quantities for people: in the unit in which they are short, and the same unit for what is compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class TimeUnit:
    """The unit for all times of a step: us for one below a ms, else ms."""

    name: str
    ns: float
    decimals: int

    @classmethod
    def of(cls, step_ns: float) -> TimeUnit:
        """The unit for a step of this length."""
        return cls("us", 1e3, 0) if step_ns < 1e6 else cls("ms", 1e6, 1)

    def for_amount(self, ns: float) -> TimeUnit:
        """This unit, or the smaller one for what is less than a tenth of this."""
        return self if abs(ns) >= self.ns / 10 else TimeUnit.of(abs(ns))

    def as_fine_as(self, ns: float) -> TimeUnit:
        """This unit, with decimals enough to tell this time from 0."""
        needed = math.ceil(math.log10(self.ns / ns)) if ns > 0 else 0
        return replace(self, decimals=max(self.decimals, needed))

    def number(self, ns: float) -> str:
        """The number without its unit."""
        return f"{ns / self.ns:,.{self.decimals}f}"

    def text(self, ns: float) -> str:
        """The number and its unit."""
        return f"{self.number(ns)} {self.name}"

    def is_zero(self, ns: float) -> bool:
        """Whether it would be shown as 0.0."""
        return not float(self.number(ns).replace(",", ""))

    def between(self, low: float, high: float) -> str:
        """`5.1 to 6.7`; empty if both ends look the same."""
        return "" if self.number(low) == self.number(high) else f"{self.number(low)} to {self.number(high)}"


def three_digits(value: float) -> str:
    """A number with three digits, or all before the point: `0.0157`, `287`, `1,234`."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def clock_text(ns: float) -> str:
    """An offset of clocks or its uncertainty: `12.6 us`, or `8.000 ms` from 1 ms on."""
    return f"{ns / 1e3:,.1f} us" if abs(ns) < 1e6 else f"{ns / 1e6:,.3f} ms"
