"""Points with error bars: bandwidth by size, and clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.schema import Row, plain
from .colours import SERIES
from .drawing import Drawing, pixels, text_width
from .figure import Figure
from .scales import Scale, bottom_axis, covering, left_axis

_WIDTH, _HEIGHT, _LEFT, _TOP = 860, 380, 64, 28
_MOST_SERIES = 16


def bandwidth_by_size(bandwidth: Any, fits: Any = None, ceiling: Any = None) -> Figure:
    """Busbw by size, log-log: whiskers are bounds, lines the fit, dashed lines the ceiling.

    `bandwidth`, `fits` and `ceiling` are the tables `bandwidth`, `fits` and `bandwidth_ceiling`.
    """
    rows = [row for row in plain(bandwidth).rows if row["busbw_gb_per_s"] and row["size_bytes"]]
    compared = plain(ceiling).rows if ceiling is not None else []
    limits = [row for row in compared if row["ceiling_busbw_gb_per_s"] and row["size_bytes"]]
    title = "Bus bandwidth by size"
    keys = list(dict.fromkeys(_series(row) for row in rows))[:_MOST_SERIES]
    bottom = _HEIGHT - 44
    drawing = Drawing("bandwidth", title, _WIDTH, _HEIGHT + 16 * (-(-len(keys) // 3)))
    sizes = covering([row["size_bytes"] for row in rows], _LEFT, _WIDTH - 20, logarithmic=True)
    speeds = [row[column] for row in rows for column in _BOUNDS if row[column]]
    speeds += [row["ceiling_busbw_gb_per_s"] for row in limits]
    speed = covering(speeds, bottom, _TOP, logarithmic=True)
    bottom_axis(drawing, sizes, bottom, _TOP, "size (bytes)")
    left_axis(drawing, speed, _LEFT, _WIDTH - 20, "bus bandwidth (GB/s)")
    for number, key in enumerate(keys):
        colour = f"s{number % SERIES}"
        of_series = sorted((row for row in rows if _series(row) == key), key=lambda row: row["size_bytes"])
        _points(drawing, of_series, (sizes, speed), colour)
        above = sorted((row for row in limits if _series(row) == key), key=lambda row: row["size_bytes"])
        line = [(sizes(row["size_bytes"]), speed(row["ceiling_busbw_gb_per_s"])) for row in above]
        drawing.path(line_through(line), f"line l-{colour}", ' stroke-dasharray="5 4"')
        drawing.legend(_HEIGHT + 8 + 16 * (number // 3), [(f"f-{colour}", _named(key))], _LEFT + 270 * (number % 3))
    for row in plain(fits).rows if fits is not None else []:
        _fit(drawing, row, keys, (sizes, speed))
    return Figure(
        "bandwidth",
        title,
        "As nccl-tests defines it, without waiting. Whiskers: lower and upper bound. Line: latency and bandwidth "
        "fitted. Dashed: the ceiling, where one was given.",
        drawing.svg,
        "bandwidth" if ceiling is None else "bandwidth_ceiling",
        bandwidth if ceiling is None else ceiling,
    )


_BOUNDS = ("busbw_gb_per_s", "busbw_low_gb_per_s", "busbw_high_gb_per_s")
_Key = tuple[str | None, str | None, str | None]


def _series(row: Row) -> _Key:
    return row["process_group"], row["pg_ranks"], row["collective"]


def _named(key: _Key) -> str:
    group, ranks, collective = key
    members = f", {len(ranks.split())} ranks" if ranks else ""
    return f"{collective or 'unknown'}, group {group if group is not None else '?'}{members}"


def _points(drawing: Drawing, rows: Sequence[Row], scales: tuple[Scale, Scale], colour: str) -> None:
    sizes, speed = scales
    for row in rows:
        x, y = sizes(row["size_bytes"]), speed(row["busbw_gb_per_s"])
        low, high = row["busbw_low_gb_per_s"], row["busbw_high_gb_per_s"]
        if low and high:
            drawing.path(f"M{pixels(x)} {pixels(speed(low))}V{pixels(speed(high))}", f"line l-{colour}")
        hint = f"{row['collective']} of {row['size_bytes']:,} bytes: {row['busbw_gb_per_s']:.4g} GB/s"
        drawing.circle(x, y, 3.5, f"f-{colour}", hint)


def _fit(drawing: Drawing, row: Row, keys: Sequence[_Key], scales: tuple[Scale, Scale]) -> None:
    """Draw bus bandwidth for t = latency + size / bandwidth."""
    sizes, speed = scales
    if _series(row) not in keys or not row["algbw_gb_per_s"] or row["latency_us"] is None:
        return
    factor = row["busbw_gb_per_s"] / row["algbw_gb_per_s"]
    line = []
    for step in range(41):
        size = sizes.low * (sizes.high / sizes.low) ** (step / 40)
        took_ns = max(row["latency_us"], 0.0) * 1000 + size / row["algbw_gb_per_s"]
        line.append((sizes(size), speed(max(factor * size / took_ns, speed.low))))
    drawing.path(line_through(line), f"line l-s{keys.index(_series(row)) % SERIES}", ' opacity=".55"')


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
    drawing = Drawing("clocks", title, _WIDTH, bottom + 36)
    reach = [(row["offset_ns"] - row["uncertainty_ns"], row["offset_ns"] + row["uncertainty_ns"]) for row in rows]
    ends = [end / 1e3 for pair in reach for end in pair] or [0.0]
    scale = Scale(min(0.0, *ends), max(0.0, *ends) or 1.0, left, _WIDTH - 20)
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
