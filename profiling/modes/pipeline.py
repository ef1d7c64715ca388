"""`pipeline`: consecutive blocks of the model on each rank, with microbatches passing through. See stages.py."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ...contract.modes import PipelineFacts
from ..errors import UsageError
from .mode import LeadingSteps, ModeOptions, ParallelMode

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from .mode import Autocast, Batch

# With two microbatches per stage, all stages of a pipeline are busy for about half of the time or more.
_MICROBATCHES_PER_STAGE = 2


def microbatches_of(options: ModeOptions, stages: int) -> int:
    """Number of parts of a batch: at most two per stage, the most that divide the batch evenly.

    Raises UsageError if these are fewer than 1F1B needs, which keeps every stage busy with one of its own.
    """
    most = min(options.batch_size, _MICROBATCHES_PER_STAGE * stages)
    count = options.microbatches or next(n for n in range(most, 0, -1) if options.batch_size % n == 0)
    if options.pipeline_schedule == "1f1b" and count < stages:
        raise UsageError(
            f"--batch-size {options.batch_size}: {stages} stages need at least {stages} microbatches of one size, "
            f"found {count}; use a multiple of {stages} with as many --microbatches, or --pipeline-schedule gpipe"
        )
    return count


def check_stages(options: ModeOptions, stages: int) -> None:
    """Raise UsageError if the model or its batch cannot be split into `stages` parts."""
    import torch

    from ..workloads.models import BLOCKS, MODELS

    microbatches_of(options, stages)
    with torch.device("meta"):
        most = len(BLOCKS[options.model](MODELS[options.model]()))
    if stages > most:
        raise UsageError(
            f"--parallel pipeline: {options.model} consists of {most} blocks, so it can be cut into {most} stages at "
            f"most, but there are {stages} ranks; use fewer"
        )


def _check_options(options: ModeOptions) -> None:
    if options.batch_size_changes:
        raise UsageError(
            "--batch-size-schedule: the stages of a pipeline exchange arrays of one size; use another --parallel"
        )
    count = options.microbatches
    if count is not None and (count < 1 or options.batch_size % count):
        raise UsageError(
            f"--microbatches {count}: expected a number that divides --batch-size {options.batch_size}, so that all "
            "microbatches are of one size; change either"
        )


def _build(model: nn.Module, where: torch.device, options: ModeOptions) -> nn.Module:
    import torch.distributed as dist

    from .stages import pipeline

    stages = dist.get_world_size()
    check_stages(options, stages)
    return pipeline(model, where, options, microbatches_of(options, stages))


def _in_microbatches(options: ModeOptions, ranks: int) -> str:
    return f"in {microbatches_of(options, ranks)} microbatches"


def _learn(
    model: Any,
    batch: Batch,
    criterion: nn.Module,
    where: torch.device,  # noqa: ARG001
    autocast: Autocast,  # noqa: ARG001  (refused)
) -> Tensor | None:
    loss: Tensor | None = model.learn(*batch, criterion)
    return loss


def _predict(model: Any, images: Tensor, where: torch.device) -> Tensor | None:  # noqa: ARG001
    outputs: Tensor | None = model.predict(images)
    return outputs


def _facts(model: nn.Module) -> PipelineFacts | None:
    """The stage, its schedule, and its input and output for one microbatch; None for other models."""
    module = sys.modules.get(f"{__package__}.stages")  # not imported: there is no pipeline
    if module is None or not isinstance(model, module.Pipeline):
        return None
    facts: PipelineFacts = model.facts
    return facts


PIPELINE = ParallelMode(
    "pipeline",
    "consecutive blocks of the model on each rank (only the last one knows the loss, so it is not shown)",
    _build,
    splits_model=True,
    batch_help="of all ranks together, which share each batch",
    leading_steps=LeadingSteps(1, "the stages agree on the shapes they exchange in the first iteration"),
    refused_options=dict.fromkeys(("amp", "channels_last"), "stages exchange contiguous arrays of float32"),
    own_options={"microbatches": "only a pipeline has them; add --parallel pipeline"},
    check_options=_check_options,
    check_ranks=check_stages,
    batch_share=_in_microbatches,
    learn=_learn,
    predict=_predict,
    facts=_facts,
)
