"""Line charts: speedup by workers, time by batch size, and loss and accuracy by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....common.wording import counted
from ...core.schema import Row, plain
from .colours import SERIES
from .drawing import WIDTH, Drawing
from .figure import Figure, part_shown
from .points import line_through
from .scales import Scale, bottom_axis, covering, left_axis

_HEIGHT, _LEFT, _TOP = 320, 60, 30
_MOST_SERIES = 16
_LEGEND = 2
"""Entries of the legend beside each other."""
_Lines = Mapping[str, Sequence[tuple[float, float]]]


_WORK = {
    "shared": ("T1 / TN", "fixed work (the workers share an epoch)"),
    "repeated": ("N x T1 / TN", "fixed work per worker (each does an epoch)"),
    None: ("T1 / TN", "work not known (right if the workers share an epoch)"),
}
"""Which speedup is drawn, and what it assumes, by `epoch_work`."""


def speedup_by_workers(scaling: Any) -> Figure:
    """Speedup by workers: T1 / TN if workers share an epoch, N x T1 / TN if each repeats it. The picture says which."""
    lines: dict[str, list[tuple[float, float]]] = {}
    work_of: dict[str, str | None] = {}
    for row in plain(scaling).rows:
        column = "speedup_scaled_work" if row["epoch_work"] == "repeated" else "speedup_fixed_work"
        if row[column] is not None:
            lines.setdefault(_cells_of(row), []).append((row["workers"], row[column]))
            if row["workers"] > 1:  # of one worker both are the same
                work_of.setdefault(_cells_of(row), row["epoch_work"])
    ideal = {worker: worker for line in lines.values() for worker, _ in line}
    kinds = list(dict.fromkeys(work_of.values()))
    only = _WORK.get(kinds[0], _WORK[None]) if len(kinds) == 1 else None
    if only is None:
        lines = {
            f"{cells}: {_WORK[work_of[cells]][0]}" if cells in work_of else cells: at for cells, at in lines.items()
        }
    title = "Speedup by workers" + (f": {only[0]}, {only[1]}" if only else "")
    said = [f"{_WORK[kind][0]} is speedup at {_WORK[kind][1]}." for kind in kinds if kind is not None]
    said += [f"{_WORK[None][0]}: {_WORK[None][1]}."] if None in kinds else []
    said.append("The batch size per worker stays that of the one worker, so the global batch grows with their number.")
    about = " ".join([*said, "Dashed: speedup equal to the number of workers."])
    about += part_shown(min(len(lines), _MOST_SERIES), len(lines), "line", "the first")
    drawn = _drawn(
        title, lines, ("workers", f"speedup, {only[0]}" if only else "speedup"), dashed=sorted(ideal.items())
    )
    return Figure("speedup", title, about, drawn, "scaling", scaling)


_NOT_TIMED = {"out_of_memory": "out of memory", "out_of_data": "out of data: the batch would be larger than an epoch"}


def epoch_time_by_batch_size(timings: Any) -> Figure:
    """Time of an epoch by batch size per worker, both logarithmic, up to where memory or data end."""
    lines: dict[str, list[tuple[float, float]]] = {}
    ends: list[tuple[str, int, str]] = []
    for row in plain(timings).rows:
        name = f"{row['model']}, {row['parallel']}, {counted(row['workers'], 'worker')}"
        if row["epoch_ns"]:
            lines.setdefault(name, []).append((row["batch_size_per_worker"], row["epoch_ns"] / 1e9))
        elif row["status"] in _NOT_TIMED:
            ends.append((name, row["batch_size_per_worker"], row["status"]))
    title = "Time of an epoch by batch size"
    shown = dict(list(lines.items())[:_MOST_SERIES])
    bottom = _HEIGHT - 40
    drawing = Drawing(title, WIDTH, _HEIGHT + 16 * (-(-len(shown) // _LEGEND)) + 4)
    sizes = [size for line in shown.values() for size, _ in line] + [size for name, size, _ in ends if name in shown]
    across = Scale(min(sizes, default=1) / 1.2, max(sizes, default=2) * 1.2, _LEFT, WIDTH - 20, logarithmic=True)
    up = covering([time for line in shown.values() for _, time in line], bottom, _TOP, logarithmic=True)
    drawing.path("".join(f"M{across(size):.1f} {_TOP}V{bottom}" for size in sorted(set(sizes))), "grid")
    for size in sorted(set(sizes)):
        drawing.text(across(size), bottom + 14, f"{size:,}", "faint mid")
    drawing.text(across.end, bottom + 28, "samples per worker and step", "faint end")
    left_axis(drawing, up, _LEFT, WIDTH - 20, "epoch (s), logarithmic")
    for number, (what, line) in enumerate(shown.items()):
        colour = f"s{number % SERIES}"
        line.sort()
        drawing.path(line_through([(across(size), up(time)) for size, time in line]), f"line l-{colour}")
        for size, time in line:
            drawing.circle(across(size), up(time), 3, f"f-{colour}", f"{what}, batch {size:,}: {time:.4g} s")
        for x in (across(size) for name, size, _ in ends if name == what):
            y = up(line[-1][1])
            cross = f"M{x - 5:.1f} {y - 5:.1f}l10 10m-10 0l10 -10"
            drawing.path(cross, f"line l-{colour}")
        drawing.legend(
            _HEIGHT + 6 + 16 * (number // _LEGEND), [(f"f-{colour}", what)], _LEFT + 290 * (number % _LEGEND)
        )
    said = dict.fromkeys((size, status) for name, size, status in ends if name in shown)
    for number, (size, status) in enumerate(said):
        at_edge = across(size) > WIDTH - 120
        drawing.text(
            across(size) + (-4 if at_edge else 4),
            _TOP + 12 + 14 * number,
            _NOT_TIMED[status].split(":")[0],
            "faint end" if at_edge else "faint",
        )
    met = dict.fromkeys(status for name, _, status in ends if name in shown)
    marked = (
        f" A cross, as high as the time before it: {' or '.join(_NOT_TIMED[status] for status in met)}." if met else ""
    )
    left_out = part_shown(len(shown), len(lines), "line", "the first")
    about = f"A whole epoch of the slowest rank, without data loading.{marked}{left_out}"
    return Figure("epoch-time", title, about, drawing.svg, "timings", timings)


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
    about += part_shown(min(len(lines), _MOST_SERIES), len(lines), "run", "the first")
    return Figure(name, title, about, _drawn(title, lines, ("epochs", unit)), "training_epochs", epochs)


def _drawn(
    title: str,
    lines: _Lines,
    units: tuple[str, str],
    *,
    dashed: Sequence[tuple[float, float]] = (),
) -> str:
    shown = dict(list(lines.items())[:_MOST_SERIES])
    bottom = _HEIGHT - 40
    drawing = Drawing(title, WIDTH, _HEIGHT + 16 * (-(-len(shown) // _LEGEND)) + 4)
    points = [point for line in (*shown.values(), dashed) for point in line]
    across = covering([x for x, _ in points], _LEFT, WIDTH - 20)
    up = covering([y for _, y in points], bottom, _TOP)
    bottom_axis(drawing, across, bottom, _TOP, units[0])
    left_axis(drawing, up, _LEFT, WIDTH - 20, units[1])
    drawing.path(line_through([(across(x), up(y)) for x, y in dashed]), "axis", ' stroke-dasharray="5 4"')
    for number, (what, line) in enumerate(shown.items()):
        colour = f"s{number % SERIES}"
        at = [(across(x), up(y)) for x, y in sorted(line)]
        drawing.path(line_through(at), f"line l-{colour}")
        for (x, y), (_, value) in zip(at, sorted(line), strict=True):
            drawing.circle(x, y, 3, f"f-{colour}", f"{what}: {value:.4g}")
        drawing.legend(
            _HEIGHT + 6 + 16 * (number // _LEGEND), [(f"f-{colour}", what)], _LEFT + 290 * (number % _LEGEND)
        )
    return drawing.svg
