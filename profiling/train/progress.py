"""What rank 0 tells on stderr while it trains."""

from ..base.console.progress import Reporter
from ..base.contract.rank import EpochTime, StepTime
from ..base.contract.training import Score
from ..base.schedule import Phase
from ..base.wording import counted
from ..sessions.step_clock import Overhead

_MEANING: dict[Phase, str] = {"idle": "not profiled", "warmup": "profiler warms up", "active": "traced"}


class TrainReporter(Reporter):
    """Tells of steps and epochs, on rank 0."""

    def __init__(self, *, rank: int, steps: int) -> None:
        super().__init__(rank=rank, steps=steps)
        self._last_phase: Phase | None = None

    def epoch(self, time: EpochTime, of_steps: int, loss: float | None) -> None:
        """An epoch is over; the data set has `of_steps`."""
        shown = "" if loss is None else f"loss {loss:.3f}, "
        self.say(
            f"epoch {time.epoch} ({time.phase}): {time.steps} of {counted(of_steps, 'step')}, {shown}"
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

    def overhead(self, found: Overhead | None) -> None:
        """What the profiler cost."""
        if found is not None:
            self.say(
                f"step time: {found.active_ns / 1e9:.3f} s traced, {found.idle_ns / 1e9:.3f} s not profiled "
                f"({found}; medians of {found.active_steps} and {counted(found.idle_steps, 'step')})"
            )


def _score(score: Score) -> str:
    loss = "not finite" if score.loss is None else f"{score.loss:.4f}"
    return f"loss {loss}, accuracy {score.accuracy:.2%}"
