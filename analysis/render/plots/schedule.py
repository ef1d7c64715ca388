"""A step of a pipeline: what each rank computes when, with the numbers of microbatches."""

from __future__ import annotations

from typing import Any

from ...core.schema import plain
from .drawing import Drawing, text_width
from .figure import Figure, part_shown
from .scales import Scale, bottom_axis

_WIDTH, _ROW, _MOST = 860, 26, 64
_WAYS = {
    "F": ("h5 of-compute", "forward"),
    "B": ("h5 of-transfer", "backward"),
    "I": ("h5 of-transfer", "backward of inputs"),
    "W": ("h5 of-memory", "backward of weights"),
}
"""Tints, on which numbers can be read in light and dark."""


def pipeline_step(pieces: Any, step: int, name: str, table: Any) -> Figure:
    """Draw one step of one pipeline; `pieces` has rank, way, stage, microbatch, and start_ns, end_ns on one clock."""
    rows = plain(pieces).rows
    begin, end = min(row["start_ns"] for row in rows), max(row["end_ns"] for row in rows)
    every = sorted({row["rank"] for row in rows})
    ranks = every[:_MOST]
    title = f"Step {step} of the pipeline: {name}"
    left = 16 + max(text_width(str(rank)) for rank in ranks)
    bottom = 34 + _ROW * len(ranks)
    drawing = Drawing(title, _WIDTH, bottom + 36)
    scale = Scale(0.0, max(end - begin, 1) / 1e6, left, _WIDTH - 16)
    drawing.legend(12, [look for way, look in _WAYS.items() if any(row["way"] == way for row in rows)], left)
    bottom_axis(drawing, scale, bottom, 30, "ms")
    for number, rank in enumerate(ranks):
        y = 34 + _ROW * number
        drawing.text(left - 6, y + _ROW / 2 + 2, str(rank), "end")
        for row in rows:
            if row["rank"] == rank:
                x, until = (scale((row[bound] - begin) / 1e6) for bound in ("start_ns", "end_ns"))
                drawing.rectangle((x, y, max(until - x - 0.5, 0.5), _ROW - 6), _WAYS[row["way"]][0])
                if until - x > text_width(str(row["microbatch"])) + 2:
                    drawing.text((x + until) / 2, y + _ROW / 2 + 1, str(row["microbatch"]), "mid")
    about = "Each piece is a microbatch, by its number, on a stage of the rank. What is empty is the bubble."
    about += part_shown(len(ranks), len(every), "rank", "the first")
    return Figure("pipeline", title, about, drawing.svg, "pipeline", table)
