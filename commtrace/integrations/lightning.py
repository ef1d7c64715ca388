"""`CommtraceCallback` for Lightning's Trainer: `Trainer(callbacks=[CommtraceCallback()])`."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..profiling.trainer import CapturingCallback

if TYPE_CHECKING or find_spec("lightning") is not None:
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback  # its name on PyPI before, and still


class CommtraceCallback(CapturingCallback, Callback):  # type: ignore[misc]
    """Capture steps of the first training, and print the first screen at its end.

        Trainer(devices=8, callbacks=[CommtraceCallback("traces/mine")])

    Steps `from_step` to `from_step + active - 1` are traced, counted from 0: a step ends with a batch in which an
    optimizer steps. Everything else is as of `commtrace.integrations.transformers.CommtraceCallback`.

    Whatever fails is one line on stderr, and the training goes on without a capture. Raises UsageError, when it is
    made, for options that cannot be.
    """

    kind = "lightning"
    _steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the capture: the process group is there."""
        self._steps = trainer.global_step
        planned = trainer.estimated_stepping_batches
        steps = planned - trainer.global_step if math.isfinite(planned) and planned >= 0 else None
        model = trainer.strategy.model
        self._capture.begin(
            steps=steps, device=trainer.strategy.root_device, model=pl_module if model is None else model
        )

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """End a step, if an optimizer has stepped in this batch."""
        before, self._steps = self._steps, trainer.global_step
        if self._steps != before:
            self._capture.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the capture, and analyse it."""
        self._capture.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End the capture with what it has."""
        self._capture.end(exception)
