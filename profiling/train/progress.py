"""Progress of training, printed by rank 0 on stderr."""

import time
from collections.abc import Callable
from typing import TypeVar

from ...common.wording import counted
from ...contract.rank import EpochTime, Phase, StepTime
from ...contract.training import Score
from ..base.console.progress import Reporter
from ..sessions.step_clock import Overhead

_Batch = TypeVar("_Batch")
_Loss = TypeVar("_Loss")
_FIRST_S, _EVERY_S = 4.0, 30.0
"""Without a live line: when an epoch first tells how far it is, and how often from then on."""
_MEANING: dict[Phase, str] = {"idle": "not profiled", "warmup": "profiler warms up", "active": "traced"}


class TrainReporter(Reporter):
    """Report steps and epochs, on rank 0."""

    def __init__(self, *, rank: int, steps: int) -> None:
        super().__init__(rank=rank, steps=steps)
        self._last_phase: Phase | None = None
        self._epoch = ""
        self._epoch_steps = self._epoch_done = 0
        self._ahead = self._done = 0
        self._begun_s = self._next_s = 0.0

    def plan(self, steps: int) -> None:
        """Set the number of steps of all epochs, so that the time left can be estimated."""
        self._ahead, self._done, self._begun_s = steps, 0, time.monotonic()
        self._next_s = self._begun_s + _FIRST_S

    def begin_epoch(self, what: str, steps: int) -> None:
        """Report the begin of an epoch; the function from `counted` is called for each of its steps."""
        self._epoch, self._epoch_steps, self._epoch_done = what, steps, 0
        self.begin(what, steps)

    def counted(self, train_on: Callable[[_Batch], _Loss]) -> Callable[[_Batch], _Loss]:
        """Wrap the training of a batch so that it counts as a step."""

        def reporting(batch: _Batch) -> _Loss:
            loss = train_on(batch)
            self._epoch_step()
            return loss

        return reporting

    def _epoch_step(self) -> None:
        """Count a step that the host has finished."""
        self._epoch_done += 1
        self._done += 1
        left = f"about {_duration(self._left_s())} to the end of all epochs"
        if self.advance(self._epoch_done, f"{self._epoch}; {left}", self._epoch_steps):
            return
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self.say(f"{self._epoch}: step {self._epoch_done} of {self._epoch_steps}; {left}")
            self._next_s = now_s + _EVERY_S

    def _left_s(self) -> float:
        return (time.monotonic() - self._begun_s) / self._done * max(self._ahead - self._done, 0)

    def epoch(self, took: EpochTime, of_steps: int, loss: float | None) -> None:
        """Report the end of an epoch; the data set has `of_steps`."""
        shown = "" if loss is None else f"loss {loss:.3f}, "
        self.say(
            f"epoch {took.epoch} ({took.phase}): {took.steps} of {counted(of_steps, 'step')}, {shown}"
            f"{took.step_ns / 1e9:.3f} s and {took.data_ns / 1e9:.3f} s waiting for data"
        )

    def trained_epoch(self, took: EpochTime, of_steps: int, train: Score, test: Score, lr: float) -> None:
        """Report an epoch that was trained and tested; `lr` is its last learning rate."""
        self.epoch(took, of_steps, None)
        self.say(f"  training {_score(train)}; test {_score(test)}; learning rate {lr:.4g}")

    def step(self, took: StepTime | None, phase: Phase, step: int, loss: float | None) -> None:
        """Report the end of step `step`."""
        text = "  ".join(
            part
            for part in (
                None if loss is None else f"loss {loss:.3f}",
                None if took is None else f"{took.dur_ns / 1e9:.3f} s",
                _MEANING[phase],
            )
            if part
        )
        if not self.advance(step + 1, text) and (phase != self._last_phase or step + 1 == self._steps):
            self.say(f"step {step + 1:>4}/{self._steps}  {text}")
        self._last_phase = phase

    def overhead(self, measured: Overhead | None) -> None:
        """Report the overhead of the profiler."""
        if measured is not None:
            self.say(
                f"step time: {measured.active_ns / 1e9:.3f} s traced, {measured.idle_ns / 1e9:.3f} s not profiled "
                f"({measured}; medians of {measured.active_steps} and {counted(measured.idle_steps, 'step')})"
            )


def _duration(seconds: float) -> str:
    """Format a duration for people: 40 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _score(score: Score) -> str:
    loss = "not finite" if score.loss is None else f"{score.loss:.4f}"
    return f"loss {loss}, accuracy {score.accuracy:.2%}"
