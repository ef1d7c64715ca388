"""Memory and power of every layer, and the time of one model beside another's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.schema import Row, plain
from .drawing import WIDTH, Drawing, pixels, text_width
from .figure import Figure
from .scales import Scale, bottom_axis, covering, written

_TALL, _TOP, _TALLEST = 17, 30, 1000
_BAR, _GAP = 11, 26
_PANELS = (
    ("parameters_bytes", 1e6, "parameters (MB)", "f-memory"),
    ("activation_bytes", 1e6, "activation (MB)", "f-compute"),
    ("peak_bytes", 1e6, "peak (MB)", "f-a"),
    ("power_w", 1.0, "power (W)", "f-transfer"),
)
"""Column, divisor, header with the unit, and fill of each panel, from left to right."""


def memory_and_power(layers: Any, name: str = "layers", of: str = "") -> Figure:
    """Memory and power of each layer, a panel for each measure.

    A row for the whole model is left out beside its layers: it would make their bars too short to see.
    """
    rows = plain(layers).rows
    whole = [row for row in rows if row["layer"] == "(model)"] if len(rows) > 1 else []
    others = [row for row in rows if row not in whole]
    shown = others[: _TALLEST // _TALL]
    title = "Memory and power of every layer" + (f": {of}" if of else "")
    left = 10 + max([text_width(_named(row)) for row in shown] or [0.0])
    drawing = Drawing(title, WIDTH, _TOP + _TALL * len(shown) + 24)
    for number, row in enumerate(shown):
        drawing.text(left - 6, _TOP + _TALL * number + 10, _named(row), "end")
    wide = (WIDTH - 10 - left) / len(_PANELS)
    for number, panel in enumerate(_PANELS):
        _panel(drawing, shown, panel, left + wide * number, left + wide * (number + 1) - _GAP)
    about = (
        "Activation: what the forward pass leaves behind for the backward pass. The peak is the most memory at any "
        "moment of both, with gradients, beyond the parameters. 1 MB is 1e6 bytes."
    )
    whys = list(dict.fromkeys(row["note"] for row in shown if row["power_w"] is None and row["note"]))
    about += f" NA: {'; '.join(whys)}." if whys else " Power is that of the whole GPU."
    about += "".join(f" The whole model: {_in_words(row)}." for row in whole)
    about += f" The first {len(shown)} of {len(others)} layers." if len(shown) < len(others) else ""
    return Figure(name, title, about, drawing.svg, "layers", layers)


def _named(row: Row) -> str:
    """`features.0 Conv2d`; `relu` alone, as it says what it is."""
    kind = row["kind"].partition("(")[0]
    return str(row["layer"]) if kind.lower().startswith(row["layer"].lower()) else f"{row['layer']} {kind}"


def _in_words(row: Row) -> str:
    """`parameters 553 MB, activation 7 MB`, without what is not known."""
    known = [panel for panel in _PANELS if row[panel[0]] is not None]
    return ", ".join(
        f"{header.partition(' (')[0]} {row[column] / divisor:,.0f} {header.partition('(')[2][:-1]}"
        for column, divisor, header, _ in known
    )


def _panel(drawing: Drawing, rows: Sequence[Row], panel: tuple[str, float, str, str], start: float, end: float) -> None:
    """The bars of one measure, each with its own scale; NA where it is not known."""
    column, divisor, header, fill = panel
    drawing.text(start, 12, header, "faint")
    known = [row[column] / divisor for row in rows if row[column] is not None]
    if not known:
        drawing.text(start, _TOP + 10, "NA", "faint")
        return
    scale = covering(known, start, end)
    last = scale.ticks[-1]
    bottom = _TOP + _TALL * len(rows)
    drawing.path(f"M{pixels(start)} {_TOP - 6}V{bottom}M{pixels(scale(last))} {_TOP - 6}V{bottom}", "grid")
    for tick in (0, last):
        drawing.text(scale(tick), bottom + 14, written(tick), "faint mid")
    for number, row in enumerate(rows):
        y = _TOP + _TALL * number
        if row[column] is None:
            drawing.text(start + 2, y + 10, "NA", "faint")
        elif row[column]:
            value = row[column] / divisor
            hint = f"{_named(row)}: {header.partition(' (')[0]} {value:,.3f}"
            drawing.shape(f"M{pixels(start)} {y}H{scale(value):.2f}v{_BAR}H{pixels(start)}z", fill, hint)


def time_ratio(ratios: Any, first: str, second: str, name: str = "time-ratio") -> Figure:
    """How long the passes of the second model take beside those of the first, with intervals; 1 is as long."""
    rows = plain(ratios).rows
    title = f"Time of {second} / time of {first}"
    left, bottom = 80.0, 40 + 30 * len(rows)
    drawing = Drawing(title, WIDTH, bottom + 36)
    known = [v for row in rows for v in (row["ratio"], row["low_ratio"], row["high_ratio"]) if v is not None]
    room = max(0.05, *(abs(value - 1) for value in known)) * 1.15
    scale = Scale(max(0.0, 1 - room), 1 + room, left, WIDTH - 40)
    bottom_axis(drawing, scale, bottom, 26, "times as long")
    drawing.path(f"M{pixels(scale(1))} 26V{bottom}", "axis", ' stroke-dasharray="5 4"')
    drawing.text(scale(1), 20, "equal", "faint mid")
    for number, row in enumerate(rows):
        y = 52 + 30 * number
        drawing.text(left - 10, y + 4, row["passes"], "end")
        if row["low_ratio"] is not None and row["high_ratio"] is not None:
            drawing.path(f"M{pixels(scale(row['low_ratio']))} {y}H{pixels(scale(row['high_ratio']))}", "line l-b")
        drawing.circle(scale(row["ratio"]), y, 4.5, "f-b", f"{row['passes']}: {row['ratio']:.3f}")
        drawing.text(scale(row["ratio"]), y - 8, f"{row['ratio']:.3f}", "faint mid")
    pairs = rows[0]["pairs"] if rows else 0
    about = (
        f"Medians of {pairs} pairs: a pass of each model, one right after the other, in turns. Lines: 95 % intervals. "
        "One that reaches across the dashed line does not tell which model is faster."
    )
    return Figure(name, title, about, drawing.svg, "time_ratios", ratios)
