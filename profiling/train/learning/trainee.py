"""A model as a mode has spread it, and one step of its training."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...modes.mode import ParallelMode
from ...workloads.data import Batch
from .scoring import ScoredLoss

TrainOn = Callable[[Batch], Tensor | None]
"""Takes one step on a batch; the loss, still on the device, on ranks that compute it."""


@dataclass(frozen=True)
class Trainee:
    """A model that `mode` has built, and what trains it, on the device `where`."""

    mode: ParallelMode
    model: nn.Module
    criterion: ScoredLoss
    optimizer: Optimizer
    where: torch.device


def train_step(trainee: Trainee, batch: Batch) -> Tensor | None:
    """One step from host batch to updated weights.

    The loss, still on the device; None on the stages of a pipeline that do not compute it.
    """
    trainee.optimizer.zero_grad(set_to_none=True)
    loss = trainee.mode.learn(trainee.model, batch, trainee.criterion, trainee.where)
    trainee.optimizer.step()
    return loss
