"""Progress of a sweep on stderr: cells done and left, and the final table."""

import statistics
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..base.console import text_table as plain_table
from ..base.console.messages import Talk
from .directory import side_files
from .grid import Cell


class SweepReporter:
    """A live line on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._console = Talk()
        self._bar = Progress(
            TextColumn("cell"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("")

    def __enter__(self) -> "SweepReporter":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        sys.stderr.flush()

    def say(self, line: str) -> None:
        """Print one line above the progress bar."""
        self._console.print(line, markup=False)

    def begin(self, cell: Cell, left: Sequence[Cell], cells: Sequence[Cell], *, growing: bool) -> None:
        """Report that `cell`, of the `cells` that are `left`, starts; `growing` if more may follow."""
        done = len(cells) - len(left)
        about = remaining(left, cells)
        estimate = "" if about is None else f", {'at least ' if growing else ''}about {about}"
        text = f"{cell.run}; {len(left)} left{estimate}"
        self._bar.update(self._task, total=len(cells), completed=done, description=text)
        if self._bar.disable:
            self.say(f"cell {done + 1}/{len(cells)}  {text}")

    def end(self, cell: Cell) -> None:
        """Report that `cell` is finished."""
        took = "" if cell.dur_s is None else f" after {cell.dur_s:.1f} s"
        self.say(f"{cell.run}: {cell.status.replace('_', ' ')}{took}{': ' if cell.reason else ''}{cell.reason or ''}")


def remaining(left: Sequence[Cell], cells: Sequence[Cell]) -> str | None:
    """Estimate of the time left, as `h:mm:ss`; None before a cell is finished.

    A straight line through what took how long, over the samples in one step of all workers: start-up and the rest.
    """
    done = [
        (float(_step_samples(cell)), cell.dur_s) for cell in cells if cell.status == "done" and cell.dur_s is not None
    ]
    if not done:
        return None
    samples, durs_s = zip(*done, strict=True)
    slope, intercept = 0.0, statistics.fmean(durs_s)
    if len(set(samples)) > 1:
        slope, intercept = statistics.linear_regression(samples, durs_s)
    shortest_s = min(durs_s)  # a line through noise may fall below what any cell takes
    left_s = sum(max(shortest_s, intercept + slope * _step_samples(cell)) for cell in left)
    return str(timedelta(seconds=round(left_s)))


def table(cells: Sequence[Cell], folder: Path) -> str:
    """The cells with their epoch times: of the slowest rank, scaled to the whole data set."""
    head = ("cell", "status", "timed steps", "epoch (s)", "waiting for data (s)")
    rows = [(cell.run, cell.status.replace("_", " "), *_epoch(folder / cell.run, cell)) for cell in cells]
    lines = plain_table.lines(head, rows, names=2)
    lines += [f"{cell.run}: {cell.reason}" for cell in cells if cell.reason]
    if any("of" in row[2] for row in rows):
        lines.append("epoch: scaled from its timed steps to the whole data set")
    return "\n".join(lines)


def _epoch(run_dir: Path, cell: Cell) -> tuple[str, str, str]:
    if cell.status != "done":
        return "-", "-", "-"
    try:
        metas = side_files(run_dir)
        epochs = [next(epoch for epoch in meta["epochs"] if epoch["phase"] == "timed") for meta in metas]
        slowest = max(epochs, key=lambda epoch: epoch["step_ns"])
        steps, full_steps = slowest["steps"], metas[0]["full_epoch_steps"]
        data_ns = max(epoch["data_ns"] for epoch in epochs)
    except (OSError, ValueError, KeyError, StopIteration):  # gone since it was checked
        return "-", "-", "-"
    scale = full_steps / steps / 1e9
    timed = str(steps) if steps == full_steps else f"{steps} of {full_steps}"
    return timed, f"{slowest['step_ns'] * scale:.3f}", f"{data_ns * scale:.3f}"


def _step_samples(cell: Cell) -> int:
    return cell.batch_size_per_rank * cell.workers
