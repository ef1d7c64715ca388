"""Points with error bars: bandwidth by size, and clocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....common.wording import bytes_text, ranges_of
from ...core.schema import Row, plain
from .colours import SERIES
from .drawing import WIDTH, Drawing, pixels, text_width
from .figure import Figure, part_shown
from .scales import Scale, bottom_axis, covering, left_axis

_HEIGHT, _LEFT, _TOP = 320, 64, 28
_MOST_SERIES = 16
_MOST_RANGES = 3


def bandwidth_by_size(
    bandwidth: Any, ceiling: Any = None, yardstick: tuple[str, float] | None = None, *, linear: bool = False
) -> Figure:
    """Bus bandwidth by size: a colour per collective, a mark per group, whiskers for bounds.

    `bandwidth` and `ceiling` are the tables `bandwidth` and `bandwidth_ceiling`; `yardstick` is what links carry at
    most: name and GB/s. The size is logarithmic; so is bandwidth unless `linear`.
    """
    rows = [row for row in plain(bandwidth).rows if row["busbw_gb_per_s"] and row["size_bytes"]]
    compared = plain(ceiling).rows if ceiling is not None else []
    limits = [row for row in compared if row["ceiling_busbw_gb_per_s"] and row["size_bytes"]]
    name = "bandwidth-linear" if linear else "bandwidth"
    title = "Bus bandwidth by size" + ("" if linear else ", logarithmic")
    kinds = list(dict.fromkeys(row["collective"] or "unknown" for row in rows))
    groups = list(dict.fromkeys(_group(row) for row in rows))
    bottom = _HEIGHT - 44
    entries = [(f"f-s{number % SERIES}", kind) for number, kind in enumerate(kinds[:_MOST_SERIES])]
    marks = [(number, group) for number, group in enumerate(groups[:_MOST_SERIES])] if len(groups) > 1 else []
    drawing = Drawing(title, WIDTH, _HEIGHT + 8 + 18 * (-(-len(entries) // 3) + -(-len(marks) // 3)))
    sizes = covering([row["size_bytes"] for row in rows], _LEFT, WIDTH - 20, logarithmic=True)
    speeds = [row[column] for row in rows for column in _BOUNDS if row[column]]
    speeds += [row["ceiling_busbw_gb_per_s"] for row in limits]
    if yardstick is not None:
        speeds.append(yardstick[1])
    speed = covering(speeds, bottom, _TOP, logarithmic=not linear)
    drawing.path("".join(f"M{sizes(tick):.1f} {_TOP}V{bottom}" for tick in _powers(sizes)), "grid")
    for tick in _powers(sizes):
        drawing.text(sizes(tick), bottom + 16, bytes_text(int(tick)), "faint mid")
    drawing.text(sizes.end, bottom + 32, "size of a call", "faint end")
    left_axis(drawing, speed, _LEFT, WIDTH - 20, "bus bandwidth (GB/s)")
    if yardstick is not None:
        y = speed(yardstick[1])
        drawing.path(f"M{_LEFT} {pixels(y)}H{WIDTH - 20}", "axis", ' stroke-dasharray="2 4"')
        drawing.text(WIDTH - 22, y - 5, f"{yardstick[0]}, {yardstick[1]:,.0f} GB/s", "faint end")
    for row in rows:
        colour, mark = kinds.index(row["collective"] or "unknown"), groups.index(_group(row))
        _point(drawing, row, (sizes, speed), f"s{colour % SERIES}", mark)
    for number, kind in enumerate(kinds):
        above = sorted((row for row in limits if row["collective"] == kind), key=lambda row: row["size_bytes"])
        line = [(sizes(row["size_bytes"]), speed(row["ceiling_busbw_gb_per_s"])) for row in above]
        drawing.path(line_through(line), f"line l-s{number % SERIES}", ' stroke-dasharray="5 4"')
    y = _HEIGHT + 6.0
    for number, entry in enumerate(entries):
        drawing.legend(y + 18 * (number // 3), [entry], _LEFT + 190 * (number % 3))
    y += 18 * -(-len(entries) // 3)
    for number, group in marks:
        x, at = _LEFT + 190 * (number % 3), y + 18 * (number // 3)
        _mark(drawing, x + 5, at - 4, "f-a", number, group)
        drawing.text(x + 15, at, group, "faint")
    return Figure(
        name,
        title,
        "As nccl-tests defines it, without waiting. Whiskers: lower and upper bound."
        + (" Dashed: the ceiling." if limits else "")
        + (
            f" Dotted: what {yardstick[0]} carries in one direction; a ring reaches 70 to 80% of it."
            if yardstick
            else ""
        )
        + part_shown(min(len(groups), _MOST_SERIES), len(groups), "group", "the first are in the legend"),
        drawing.svg,
        "bandwidth" if ceiling is None else "bandwidth_ceiling",
        bandwidth if ceiling is None else ceiling,
    )


_BOUNDS = ("busbw_gb_per_s", "busbw_low_gb_per_s", "busbw_high_gb_per_s")
_MARKS = 4


def _powers(scale: Scale) -> list[float]:
    """Powers of 4 or more within the scale, at most eight."""
    first, last = math.ceil(math.log2(scale.low) - 1e-9), math.floor(math.log2(scale.high) + 1e-9)
    apart = 2 * max(1, -(-(last - first) // 16))
    return [2.0**power for power in range(first + -first % apart, last + 1, apart)]


def _group(row: Row) -> str:
    group, ranks = row["process_group"], row["pg_ranks"]
    if row.get("role") is not None and ranks:
        return f"{row['role']} of ranks {ranges_of([int(rank) for rank in ranks.split()], _MOST_RANGES)}"
    members = f", {len(ranks.split())} ranks" if ranks else ""
    return f"group {group}{members}" if group is not None else f"group not known{members}"


def _point(drawing: Drawing, row: Row, scales: tuple[Scale, Scale], colour: str, mark: int) -> None:
    sizes, speed = scales
    x, y = sizes(row["size_bytes"]), speed(row["busbw_gb_per_s"])
    low, high = row["busbw_low_gb_per_s"], row["busbw_high_gb_per_s"]
    if low and high:
        drawing.path(f"M{pixels(x)} {pixels(speed(low))}V{pixels(speed(high))}", f"line l-{colour}")
    hint = (
        f"{row['collective']} of {bytes_text(row['size_bytes'])} ({row['size_bytes']:,} bytes), {_group(row)}: "
        f"{row['busbw_gb_per_s']:.4g} GB/s"
    )
    _mark(drawing, x, y, f"f-{colour}", mark, hint)


def _mark(drawing: Drawing, x: float, y: float, classes: str, mark: int, hint: str) -> None:
    """A circle, square, diamond or triangle: one for each group."""
    if mark % _MARKS == 0:
        drawing.circle(x, y, 4, classes, hint)
        return
    left, right, top, bottom = (pixels(v) for v in (x - 4, x + 4, y - 4, y + 4))
    at_x, at_y = pixels(x), pixels(y)
    shapes = (f"M{left} {top}H{right}V{bottom}H{left}z", f"M{at_x} {top}L{right} {at_y}L{at_x} {bottom}L{left} {at_y}z")
    triangle = f"M{at_x} {top}L{right} {bottom}H{left}z"
    drawing.shape((*shapes, triangle)[mark % _MARKS - 1], classes, hint)


def line_through(points: Sequence[tuple[float, float]]) -> str:
    """SVG path commands for a line through these points."""
    return "M" + "L".join(f"{pixels(x)} {pixels(y)}" for x, y in points) if len(points) > 1 else ""


def clock_offsets(clocks: Any) -> Figure:
    """Offset of every rank's clock, with its bounds."""
    rows = plain(clocks).rows
    title = "Clocks: how far each is ahead, and how uncertain that is"
    left = 16 + max([text_width(_of_host(row)) for row in rows] or [0.0])
    tall = min(max(700 / max(len(rows), 1), 3.0), 20.0)
    bottom = 12 + tall * len(rows)
    drawing = Drawing(title, WIDTH, bottom + 36)
    reach = [(row["offset_ns"] - row["uncertainty_ns"], row["offset_ns"] + row["uncertainty_ns"]) for row in rows]
    ends = [end / 1e3 for pair in reach for end in pair] or [0.0]
    scale = Scale(min(0.0, *ends), max(0.0, *ends) or 1.0, left, WIDTH - 20)
    bottom_axis(drawing, scale, bottom, 6, "offset (us)")
    every = -(-len(rows) // 64)
    for number, (row, (low, high)) in enumerate(zip(rows, reach, strict=True)):
        y = 6 + tall * (number + 0.5)
        if number % every == 0:
            drawing.text(left - 6, y + 4, _of_host(row), "end")
        drawing.path(f"M{pixels(scale(low / 1e3))} {pixels(y)}H{pixels(scale(high / 1e3))}", "line l-compute")
        hint = f"rank {row['rank']}: {row['offset_ns'] / 1e3:,.1f} us, +-{row['uncertainty_ns'] / 1e3:,.1f} us"
        drawing.circle(scale(row["offset_ns"] / 1e3), y, min(3.5, tall / 2), "f-compute", hint)
    about = "Offsets are against the first of the ranks that can be compared. Bars: how far they may be wrong."
    return Figure("clocks", title, about, drawing.svg, "clocks", clocks)


def _of_host(row: Row) -> str:
    return f"{row['rank']} {row['host']}" if row["host"] else str(row["rank"])
