"""`CommtraceCallback` for the Trainer of Hugging Face: `Trainer(..., callbacks=[CommtraceCallback()])`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import CallbackHandler

from ..profiling.trainer import CapturingCallback, TrainingLog
from .logs import TensorBoardLog, active_runs, without_twins


class CommtraceCallback(CapturingCallback, TrainerCallback):  # type: ignore[misc]
    """Capture steps of the first training, print the first screen at its end, and log it where the training is logged.

        Trainer(model, args, train_dataset=rows, callbacks=[CommtraceCallback("traces/mine")])

    Give it to the trainer on every rank. Steps `from_step` to `from_step + active - 1` are traced, counted from 0 in
    optimizer steps; earlier ones in a shorter training. Each rank writes its traces to `out`, which must be new or
    empty; without it, to a new folder in `traces/`. At the end rank 0 waits for the other ranks, analyses and prints,
    each for `analyse_max_seconds` at most, unless `analyse` is off. `with_stack`, `profile_memory` and `keep` mean what
    they do for `commtrace.capture`.

    What the analysis shows is logged at the last traced step, as scalars `commtrace/...` and as the page: to
    TensorBoard if that is in `report_to`, and to the runs of W&B and MLflow that are active.

    Whatever fails is one line on stderr, and the training goes on without a capture. Raises UsageError, when it is
    made, for options that cannot be.
    """

    kind = "transformers"

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin the capture: the process group is there."""
        self._capture.begin(
            steps=state.max_steps - state.global_step,
            device=args.device,
            model=kwargs.get("model"),
            step=state.global_step,
            batch_size=args.train_batch_size * args.gradient_accumulation_steps,
            # Now: the trainer's own callbacks end before this one, and close what they write to.
            logs=lambda: without_twins([*_tensorboards(), *active_runs("train/global_step")]),
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End an optimizer step, with all micro-batches of it."""
        self._capture.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End the capture, and analyse it."""
        self._capture.end()


def _tensorboards() -> Iterator[TrainingLog]:
    """Yield the writers of the trainer that calls this callback, looked for in its frames: no callback is given it."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - `inspect` reads the source of every caller
    while frame is not None:
        handler = frame.f_locals.get("self")
        if isinstance(handler, CallbackHandler):
            for each in handler.callbacks:
                if isinstance(each, TensorBoardCallback) and each.tb_writer is not None:
                    yield TensorBoardLog(each.tb_writer)
            return
        frame = frame.f_back
