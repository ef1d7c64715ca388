"""How many layers devices can train, and where they are."""

from __future__ import annotations

from typing import Any

from ...core.schema import Row, plain
from .drawing import WIDTH, Drawing, pixels, text_width
from .figure import Figure
from .scales import bottom_axis, covering

_KINDS = (("f-compute", "convolutions"), ("f-memory", "linear layers"))
_TOP, _TALL, _BAR = 34, 34, 18


def layers_by_devices(capacity: Any) -> Figure:
    """A bar for each number of devices: its convolutions and linear layers, device by device."""
    rows = plain(capacity).rows
    title = "Layers that devices can train"
    names = [f"{row['devices']} {'device' if row['devices'] == 1 else 'devices'}" for row in rows]
    says = [_says(row) for row in rows]
    left = 12 + max(map(text_width, names), default=0.0)
    right = WIDTH - 12 - max(map(text_width, says), default=0.0)
    bottom = _TOP + _TALL * len(rows)
    drawing = Drawing(title, WIDTH, bottom + 34)
    drawing.legend(12, _KINDS, left)
    whole = [(row["conv_layers"] or 0) + (row["linear_layers"] or 0) for row in rows]
    scale = covering([float(count) for count in whole], left, right)
    bottom_axis(drawing, scale, bottom, _TOP - 6, "layers")
    for number, (row, name, said) in enumerate(zip(rows, names, says, strict=True)):
        y = _TOP + _TALL * number
        drawing.text(left - 6, y + 13, name, "end")
        end = 0
        for device, share in enumerate(_shares(row)):
            for (fill, kind), count in zip(_KINDS, share, strict=True):
                if count:
                    shape = f"M{pixels(scale(end))} {y}H{pixels(scale(end + count))}v{_BAR}H{pixels(scale(end))}z"
                    drawing.shape(shape, fill, f"device {device}: {count} {kind}")
                end += count
            drawing.path(f"M{pixels(scale(end))} {y - 3}v{_BAR + 6}", "thin")
        drawing.text(scale(end) + 6, y + 13, said, "faint")
    about = "A line ends each device; of a stack over several, what each holds. Times are those of a step."
    return Figure("capacity", title, about, drawing.svg, "capacity", capacity)


def _shares(row: Row) -> list[tuple[int, int]]:
    """Convolutions and linear layers of each device, as `split` has them."""
    parts = (share.partition("+") for share in (row["split"] or "").split(", ") if share)
    return [(int(conv), int(linear)) for conv, _, linear in parts]


def _says(row: Row) -> str:
    if not row["fits"]:
        return "does not fit"
    return row["split"] if row["step_ns"] is None else f"{row['split']}: {row['step_ns'] / 1e6:,.1f} ms"
