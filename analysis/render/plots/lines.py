"""Line charts: speedup by workers, and loss and accuracy by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.schema import Row, plain
from .colours import SERIES
from .drawing import Drawing
from .figure import Figure
from .points import line_through
from .scales import bottom_axis, covering, left_axis

_WIDTH, _HEIGHT, _LEFT, _TOP = 660, 340, 60, 30
_MOST_SERIES = 16
_Lines = Mapping[str, Sequence[tuple[float, float]]]


def speedup_by_workers(scaling: Any) -> Figure:
    """Speedup by workers: T1 / TN if workers share an epoch, N x T1 / TN if each repeats it."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in plain(scaling).rows:
        column = "speedup_scaled_work" if row["epoch_work"] == "repeated" else "speedup_fixed_work"
        if row[column] is not None:
            lines.setdefault(_cells_of(row), []).append((row["workers"], row[column]))
    ideal = {worker: worker for line in lines.values() for worker, _ in line}
    title = "Speedup by workers"
    return Figure(
        "speedup",
        title,
        "Against one worker with the same model and batch per worker. Dashed: speedup equal to the number of workers.",
        _drawn("speedup", title, lines, ("workers", "speedup"), dashed=sorted(ideal.items())),
        "scaling",
        scaling,
    )


def _cells_of(row: Row) -> str:
    return f"{row['model']}, {row['parallel']}, batch {row['batch_size_per_worker']}"


def loss_by_epoch(epochs: Any) -> Figure:
    """Loss on test data after every epoch, or on training data if nothing was tested."""
    return _by_epoch(epochs, ("test_loss", "train_loss"), "loss", "Loss after every epoch", "cross entropy (nats)")


def accuracy_by_epoch(epochs: Any) -> Figure:
    """Accuracy on test data after every epoch, or on training data if nothing was tested."""
    columns = ("test_accuracy_frac", "train_accuracy_frac")
    return _by_epoch(epochs, columns, "accuracy", "Accuracy after every epoch", "classified correctly (0..1)")


def _by_epoch(epochs: Any, columns: tuple[str, str], name: str, title: str, unit: str) -> Figure:
    rows = plain(epochs).rows
    column = next((column for column in columns if any(row[column] is not None for row in rows)), columns[0])
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row[column] is not None:
            lines.setdefault(f"{row['run']}", []).append((row["after_epochs"], row[column]))
    about = "On test data." if column.startswith("test") else "On training data: nothing was tested."
    return Figure(name, title, about, _drawn(name, title, lines, ("epochs", unit)), "training_epochs", epochs)


def _drawn(
    name: str,
    title: str,
    lines: _Lines,
    units: tuple[str, str],
    *,
    dashed: Sequence[tuple[float, float]] = (),
) -> str:
    shown = dict(list(lines.items())[:_MOST_SERIES])
    bottom = _HEIGHT - 40
    drawing = Drawing(name, title, _WIDTH, _HEIGHT + 16 * (-(-len(shown) // 3)) + 4)
    points = [point for line in (*shown.values(), dashed) for point in line]
    across = covering([x for x, _ in points], _LEFT, _WIDTH - 20)
    up = covering([y for _, y in points], bottom, _TOP)
    bottom_axis(drawing, across, bottom, _TOP, units[0])
    left_axis(drawing, up, _LEFT, _WIDTH - 20, units[1])
    drawing.path(line_through([(across(x), up(y)) for x, y in dashed]), "axis", ' stroke-dasharray="5 4"')
    for number, (what, line) in enumerate(shown.items()):
        colour = f"s{number % SERIES}"
        at = [(across(x), up(y)) for x, y in sorted(line)]
        drawing.path(line_through(at), f"line l-{colour}")
        for (x, y), (_, value) in zip(at, sorted(line), strict=True):
            drawing.circle(x, y, 3, f"f-{colour}", f"{what}: {value:.4g}")
        drawing.legend(_HEIGHT + 6 + 16 * (number // 3), [(f"f-{colour}", what)], _LEFT + 270 * (number % 3))
    return drawing.svg
