"""`CommtraceCallback` for the Trainer of Hugging Face: `Trainer(..., callbacks=[CommtraceCallback()])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ..profiling.trainer import CapturingCallback


class CommtraceCallback(CapturingCallback, TrainerCallback):  # type: ignore[misc]
    """Capture steps of the first training, and print the first screen at its end.

        Trainer(model, args, train_dataset=rows, callbacks=[CommtraceCallback("traces/mine")])

    Give it to the trainer on every rank. Steps `from_step` to `from_step + active - 1` are traced, counted from 0 in
    optimizer steps; earlier ones in a shorter training. Each rank writes its traces to `out`, which must be new or
    empty; without it, to a new folder in `traces/`. At the end rank 0 waits for the other ranks, analyses and prints,
    each for `analyse_max_seconds` at most, unless `analyse` is off. `with_stack`, `profile_memory` and `keep` mean what
    they do for `commtrace.capture`.

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
            batch_size=args.train_batch_size * args.gradient_accumulation_steps,
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End an optimizer step, with all micro-batches of it."""
        self._capture.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End the capture, and analyse it."""
        self._capture.end()
