"""Memory over a step: what is held, by category, as areas on top of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.schema import Row
from .drawing import LEGEND_LINE, Drawing, legend_places
from .figure import Figure
from .scales import Scale, bottom_axis, covering, left_axis

_WIDTH, _HEIGHT, _LEFT = 860, 300, 60
_GIB, _MIB = 1 << 30, 1 << 20


def memory_over_a_step(curve: Sequence[Row], categories: Sequence[str], title: str, table: Any) -> Figure:
    """Draw a step of one device; `curve` has rows with `time_ns`, ascending, and bytes of each category."""
    shown = [(number, name) for number, name in enumerate(categories) if any(row[name] for row in curve)]
    most = max(sum(row[name] for _, name in shown) for row in curve)
    unit, size = ("GiB", _GIB) if most >= _GIB else ("MiB", _MIB)
    legend = [(f"f-s{number}", name) for number, name in shown]
    top = 34 + LEGEND_LINE * legend_places(legend, _LEFT, _WIDTH)[-1][0]
    bottom = top + _HEIGHT
    drawing = Drawing(title, _WIDTH, bottom + 36)
    drawing.legend(12, legend, _LEFT)
    across = Scale(0.0, max(curve[-1]["time_ns"], 1) / 1e6, _LEFT, _WIDTH - 16)
    up = covering([most / size], bottom, top)
    left_axis(drawing, up, _LEFT, _WIDTH - 16, unit)
    bottom_axis(drawing, across, bottom, top, "ms")
    below = [0.0] * len(curve)
    times = [across(row["time_ns"] / 1e6) for row in curve]
    for number, name in shown[::-1]:  # what is oldest, and changes least, at the bottom
        above = [low + row[name] / size for low, row in zip(below, curve, strict=True)]
        drawing.shape(_area(times, [up(v) for v in below], [up(v) for v in above]), f"f-s{number}", name)
        below = above
    return Figure("memory_over_a_step", title, _ABOUT, drawing.svg, "memory_steps", table)


_ABOUT = (
    "What is allocated over the step in which that is most, by what it is for. Reserved memory, NCCL's buffers and "
    "other processes are not in it."
)


def _area(times: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    """An area between two lines of steps: each value holds until the next moment."""
    there = [f"M{times[0]:.1f} {high[0]:.1f}"]
    there += [f"H{time:.1f}V{value:.1f}" for time, value in zip(times[1:], high[1:], strict=True)]
    back = (f"V{low[number]:.1f}H{times[number]:.1f}" for number in range(len(times) - 2, -1, -1))
    return "".join((*there, f"L{times[-1]:.1f} {low[-1]:.1f}", *back, "Z"))
