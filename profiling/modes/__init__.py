"""The parallel modes of `--parallel`: how a model is spread over ranks, and what the side files say of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ..train.config import ParallelName, TrainConfig
from .pipeline import pipeline, pipeline_facts
from .replicated import data_parallel, ddp, ddp_facts, dp_facts
from .sharded import fsdp, fsdp_facts


@dataclass(frozen=True)
class ParallelMode:
    """One way to spread training. `wrap` gives the model of `config.model`, on any device, its place on this rank.

    `distributed` modes need a process group, also for one rank; the others are one process. `shares_batch`: all ranks
    work on the same batch, where otherwise each has batches of its own.
    """

    name: ParallelName
    distributed: bool
    wrap: Callable[[nn.Module, torch.device, TrainConfig], nn.Module]
    shares_batch: bool = False


def _single(model: nn.Module, where: torch.device, config: TrainConfig) -> nn.Module:  # noqa: ARG001
    return model.to(where)


_ALL = (
    ParallelMode("single", distributed=False, wrap=_single),
    ParallelMode("dp", distributed=False, wrap=data_parallel),
    ParallelMode("ddp", distributed=True, wrap=ddp),
    ParallelMode("fsdp", distributed=True, wrap=fsdp),
    ParallelMode("pipeline", distributed=True, wrap=pipeline, shares_batch=True),
)
MODES: Mapping[ParallelName, ParallelMode] = {mode.name: mode for mode in _ALL}

# What meta.json says of a model, by mode; each gives None for models of other modes.
FACTS: Mapping[str, Callable[[nn.Module], object]] = {
    "dp": dp_facts,
    "ddp": ddp_facts,
    "fsdp": fsdp_facts,
    "pipeline": pipeline_facts,
}
