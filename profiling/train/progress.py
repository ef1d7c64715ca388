"""What rank 0 tells on stderr while it trains: a live line in a terminal, a few plain lines elsewhere."""

import sys
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..base.contract.rank import EpochTime, StepTime
from ..base.contract.training import Score
from ..base.messages import Talk
from ..base.schedule import Phase
from ..sessions.step_clock import Overhead

_MEANING: dict[Phase, str] = {"idle": "not profiled", "warmup": "profiler warms up", "active": "traced"}


class Reporter:
    """Shows steps, or what `unit` calls them; silent on ranks other than 0. `live`: a moving line in a terminal.

    `steps` is None where nobody knows how many there will be.
    """

    def __init__(self, *, rank: int, steps: int | None, unit: str = "step", live: bool = True) -> None:
        self._console = Talk(quiet=rank != 0)
        self._steps = steps
        self._last_phase: Phase | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if self._console.is_terminal and rank == 0 and live:
            self._bar = Progress(
                TextColumn(unit),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
                redirect_stdout=False,  # stdout is data, and may lead elsewhere
            )

    def __enter__(self) -> "Reporter":
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("", total=self._steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            sys.stderr.flush()

    def say(self, line: str) -> None:
        """One line, above the progress bar."""
        self._console.print(line, markup=False)

    def begin_epoch(self, what: str) -> None:
        """An epoch of which nothing is told before its end: a timed one has nothing else to do."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=None, completed=0, description=what)

    def epoch(self, time: EpochTime, of_steps: int, loss: float | None) -> None:
        """An epoch is over; the data set has `of_steps`."""
        shown = "" if loss is None else f"loss {loss:.3f}, "
        self.say(
            f"epoch {time.epoch} ({time.phase}): {time.steps} of {of_steps} steps, {shown}"
            f"{time.step_ns / 1e9:.3f} s and {time.data_ns / 1e9:.3f} s waiting for data"
        )

    def trained_epoch(self, time: EpochTime, of_steps: int, train: Score, test: Score, lr: float) -> None:
        """An epoch was trained and tested; `lr` is its last learning rate."""
        self.epoch(time, of_steps, None)
        self.say(f"  training {_score(train)}; test {_score(test)}; learning rate {lr:.4g}")

    def step(self, time: StepTime | None, phase: Phase, step: int, loss: float | None) -> None:
        """Step `step` is over."""
        text = "  ".join(
            part
            for part in (
                None if loss is None else f"loss {loss:.3f}",
                None if time is None else f"{time.dur_ns / 1e9:.3f} s",
                _MEANING[phase],
            )
            if part
        )
        if not self.advance(step + 1, text) and (phase != self._last_phase or step + 1 == self._steps):
            self.say(f"step {step + 1:>4}/{self._steps}  {text}")
        self._last_phase = phase

    def advance(self, done: int, text: str) -> bool:
        """So many steps are done; False without a moving line to show it."""
        if self._bar is None or self._task is None:
            return False
        self._bar.update(self._task, total=self._steps, completed=done, description=text)
        return True

    def overhead(self, found: Overhead | None) -> None:
        """What the profiler cost."""
        if found is not None:
            self.say(
                f"step time: {found.active_ns / 1e9:.3f} s traced, {found.idle_ns / 1e9:.3f} s not profiled "
                f"({found.frac:+.1%}; medians of {found.active_steps} and {found.idle_steps} steps)"
            )


def _score(score: Score) -> str:
    loss = "not finite" if score.loss is None else f"{score.loss:.4f}"
    return f"loss {loss}, accuracy {score.accuracy:.2%}"
