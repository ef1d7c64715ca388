"""Paired bars: kernels before and after, and subtraction beside measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...core.schema import plain
from .drawing import WIDTH, Drawing, pixels, text_width
from .figure import Figure, part_shown
from .scales import bottom_axis, covering

_MOST = 24


class _Pair(NamedTuple):
    """Two values in ns, the spread of each, and a remark."""

    what: str
    first: int | None
    second: int | None
    spreads: tuple[int | None, int | None] = (None, None)
    remark: str = ""


def changed_kernels(table: Any) -> Figure:
    """The kernels whose time changed most."""
    known = plain(table).rows
    rows = known[:_MOST]
    pairs = [
        _Pair(row["name"], row["a_ns"], row["b_ns"], remark=f"{(row['difference_ns'] or 0) / 1e6:+,.2f} ms")
        for row in rows
    ]
    title = "Kernels that changed most"
    about = "Device time in a step. A kernel that only one side runs has one bar."
    about += part_shown(len(rows), len(known), "kernel", "those whose time differs most")
    return Figure("changed", title, about, _drawn(title, pairs, ("A", "B")), "changed_kernels", table)


def subtraction_and_measured(subtraction: Any) -> Figure:
    """Communication of an epoch by subtraction, beside the measured exposed communication."""
    pairs = [
        _Pair(
            f"{row['model']}, {row['parallel']}, {row['workers']} x {row['batch_size_per_worker']}",
            row["subtracted_comm_ns"],
            row["exposed_comm_ns"],
        )
        for row in plain(subtraction).rows
    ]
    title = "Communication of an epoch: subtracted, and measured"
    return Figure(
        "subtraction",
        title,
        "TN - T1 / N takes everything for communication that does not shrink with the number of workers.",
        _drawn(title, pairs, ("by subtraction", "measured, exposed")),
        "subtraction",
        subtraction,
    )


def _drawn(title: str, pairs: Sequence[_Pair], meanings: tuple[str, str]) -> str:
    left = 16 + max([text_width(pair.what) for pair in pairs] or [0.0])
    bottom = 30 + 32 * len(pairs)
    drawing = Drawing(title, WIDTH, bottom + 36)
    drawing.legend(12, list(zip(("f-a", "f-b"), meanings, strict=True)), left)
    values = [value / 1e6 for pair in pairs for value in (pair.first, pair.second) if value is not None]
    scale = covering(values, left, WIDTH - 90)
    bottom_axis(drawing, scale, bottom, 24, "ms")
    for number, pair in enumerate(pairs):
        y = 26 + 32 * number
        drawing.text(left - 6, y + 17, pair.what, "end")
        ends = [scale(0.0)]
        for side, (value, spread) in enumerate(zip((pair.first, pair.second), pair.spreads, strict=True)):
            if value is None:
                continue
            begin, end = sorted((scale(0.0), scale(value / 1e6)))
            drawing.rectangle((begin, y + 12 * side, max(end - begin, 0.5), 11), f"f-{'ab'[side]}")
            if spread:
                low, high = (scale((value + sign * spread) / 1e6) for sign in (-1, 1))
                drawing.path(f"M{pixels(low)} {pixels(y + 12 * side + 5.5)}H{pixels(high)}", "thin")
                end = max(end, high)
            ends.append(end)
        drawing.text(max(ends) + 6, y + 17, pair.remark, "faint")
    return drawing.svg
