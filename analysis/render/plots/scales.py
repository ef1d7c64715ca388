"""Axes: map values to pixels, and choose the ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .drawing import Drawing, text_width

_TICKS = 5


@dataclass(frozen=True)
class Scale:
    """Map values from `low` to `high` to pixels from `start` to `end`, linear or logarithmic.

    Between `whole` numbers, as of workers or epochs, there is no tick.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False
    whole: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = (math.log(max(number, 1e-300)) for number in (low, high, value))
        return self.start + (at - low) / (high - low or 1.0) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round values within the scale: powers of ten, or multiples of 1, 2 or 5."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1, max(1, (last - first) // 8))]
        rough = (self.high - self.low) / _TICKS
        if rough <= 0:
            return [self.low]
        unit = 10.0 ** math.floor(math.log10(rough))
        apart = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        apart = max(apart, 1.0) if self.whole else apart
        begin = math.ceil(self.low / apart - 1e-9)
        return [number * apart for number in range(begin, math.floor(self.high / apart + 1e-9) + 1)]


def covering(values: list[float], start: float, end: float, *, logarithmic: bool = False) -> Scale:
    """A scale that covers these values: from 0, or between powers of ten if logarithmic."""
    if logarithmic:
        known = [value for value in values if value > 0] or [1.0]
        first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
        return Scale(10.0**first, 10.0 ** max(last, first + 1), start, end, logarithmic=True)
    known = [0.0, *(value for value in values if math.isfinite(value))]
    whole = all(float(value).is_integer() for value in known)
    return Scale(min(known), max(known) * 1.05 or 1.0, start, end, whole=whole)


def bottom_axis(drawing: Drawing, scale: Scale, y: float, top: float, unit: str) -> None:
    """Draw ticks below `y` with lines up to `top`, and the unit."""
    ticks = scale.ticks
    if len(ticks) > 1 and not scale.logarithmic:
        widest = max(text_width(written(tick)) for tick in ticks) + 8
        ticks = ticks[:: math.ceil(widest / max(abs(scale(ticks[1]) - scale(ticks[0])), 1.0))]
    drawing.path("".join(f"M{scale(tick):.1f} {top:.1f}V{y:.1f}" for tick in ticks), "grid")
    for tick in ticks:
        drawing.text(scale(tick), y + 14, written(tick), "faint mid")
    drawing.text(scale.end, y + 28, unit, "faint end")


def left_axis(drawing: Drawing, scale: Scale, x: float, right: float, unit: str) -> None:
    """Draw ticks left of `x` with lines to `right`, and the unit above them."""
    ticks = scale.ticks
    drawing.path("".join(f"M{x:.1f} {scale(tick):.1f}H{right:.1f}" for tick in ticks), "grid")
    for tick in ticks:
        drawing.text(x - 6, scale(tick) + 4, written(tick), "faint end")
    drawing.text(x, min(scale.start, scale.end) - 8, unit, "faint end" if len(unit) < 8 else "faint")


def written(value: float) -> str:
    """Format a tick: `0.25`, `1,000`, `10k`, `5M`, `1e12`."""
    size = abs(value)
    for least, divisor, suffix in ((1e12, 0, ""), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= least:
            return f"{value / divisor:g}{suffix}" if divisor else f"{value:.0e}".replace("e+", "e")
    return f"{value:,.10g}" if size >= 1 or not value else f"{value:.3g}"
