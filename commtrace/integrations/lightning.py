"""`CommtraceCallback` for Lightning's Trainer: `Trainer(callbacks=[CommtraceCallback()])`."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..profiling.trainer import CapturingCallback, Findings, TrainingLog
from .logs import MlflowLog, TensorBoardLog, WandbLog, active_runs, without_twins

if TYPE_CHECKING or find_spec("lightning") is not None:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
else:  # its name on PyPI before, and still
    from pytorch_lightning import Callback
    from pytorch_lightning.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

_AXIS = "trainer/global_step"


class CommtraceCallback(CapturingCallback, Callback):  # type: ignore[misc]
    """Capture steps of the first training, print the first screen at its end, and log it where the training is logged.

        Trainer(devices=8, callbacks=[CommtraceCallback("traces/mine")])

    Steps `from_step` to `from_step + active - 1` are traced, counted from 0: a step ends with a batch in which an
    optimizer steps. Everything else is as of `commtrace.integrations.transformers.CommtraceCallback`.

    What the analysis shows is logged to every logger of the trainer, and to the runs of W&B and MLflow that are active:
    scalars to all, and the page to TensorBoard, W&B and MLflow.

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
            steps=steps,
            device=trainer.strategy.root_device,
            model=pl_module if model is None else model,
            step=trainer.global_step,
            logs=lambda: without_twins([*map(_log_of, trainer.loggers), *active_runs(_AXIS)]),
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


class _OtherLog:
    """A logger of the trainer that takes numbers only."""

    def __init__(self, logger: Any) -> None:
        self.name = type(logger).__name__
        self._logger = logger

    def add(self, findings: Findings) -> None:
        """Log the scalars."""
        self._logger.log_metrics(dict(findings.scalars), findings.step)
        self._logger.save()


def _log_of(logger: Any) -> TrainingLog:
    if isinstance(logger, TensorBoardLogger):
        return TensorBoardLog(logger.experiment)
    if isinstance(logger, WandbLogger):
        return WandbLog(logger.experiment, _AXIS)
    return MlflowLog(logger.experiment, logger.run_id) if isinstance(logger, MLFlowLogger) else _OtherLog(logger)
