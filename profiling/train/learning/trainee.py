"""A model as a mode has built it, and one step of its training."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...base.commands.choices import AmpName
from ...modes.mode import ParallelMode
from ...workloads.data import Batch
from .scoring import ScoredLoss

TrainOn = Callable[[Batch], Tensor | None]
"""Takes one step on a batch; the loss, still on the device, on ranks that compute it."""


_TYPES: Mapping[AmpName, torch.dtype] = {"bf16": torch.bfloat16}


@dataclass(frozen=True)
class Trainee:
    """A model built by `mode` with its optimizer, on the device `where`, in float32 or with `amp`."""

    mode: ParallelMode
    model: nn.Module
    criterion: ScoredLoss
    optimizer: Optimizer
    where: torch.device
    amp: AmpName | None = None

    def autocast(self) -> AbstractContextManager[object]:
        """In the block, torch casts what is safe: not weights, gradients or messages."""
        return nullcontext() if self.amp is None else torch.autocast(self.where.type, _TYPES[self.amp])


def train_step(trainee: Trainee, batch: Batch) -> Tensor | None:
    """Make one step, from host batch to updated weights.

    The loss, still on the device; None on the stages of a pipeline that do not compute it.
    """
    trainee.optimizer.zero_grad(set_to_none=True)
    loss = trainee.mode.learn(trainee.model, batch, trainee.criterion, trainee.where, trainee.autocast)
    trainee.optimizer.step()
    return loss
