"""`pipeline`: consecutive blocks of the model on each rank, with microbatches passing through. See stages.py."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from ...contract.modes import PipelineFacts
from ..errors import UsageError
from .mode import LeadingSteps, ModeOptions, ParallelMode

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from .mode import Autocast, Batch

# With two microbatches per rank, all ranks of a pipeline are busy for about half of the time or more.
_MICROBATCHES_PER_RANK = 2
_INTERLEAVED = 2


def parse_stage_blocks(text: str) -> tuple[int, ...]:
    """The numbers in `2,6,2`. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,6}", part) and int(part) for part in parts):
        raise UsageError(f"--stage-blocks {text}: expected how many blocks each stage has, such as 2,6,2")
    return tuple(map(int, parts))


def stages_per_rank(options: ModeOptions) -> int:
    """Stages on each rank: several where they are interleaved."""
    return options.stages_per_rank or (_INTERLEAVED if options.pipeline_schedule == "interleaved" else 1)


def microbatches_of(options: ModeOptions, ranks: int) -> int:
    """Number of parts of a batch: at most two per rank, the most that divide the batch evenly.

    Raises UsageError if these are fewer than 1F1B needs, which keeps every rank busy with one of its own, or cannot be
    handed around in turns of as many as there are ranks, as where stages are interleaved.
    """
    in_turns = options.pipeline_schedule == "interleaved"
    most = min(options.batch_size, _MICROBATCHES_PER_RANK * ranks)
    even = [n for n in range(most, 0, -1) if options.batch_size % n == 0]
    count = options.microbatches or next((n for n in even if not in_turns or n % ranks == 0), even[0])
    if options.pipeline_schedule == "1f1b" and count < ranks:
        raise UsageError(
            f"--batch-size {options.batch_size}: {ranks} stages need at least {ranks} microbatches of one size, "
            f"found {count}; use a multiple of {ranks} with as many --microbatches, or --pipeline-schedule gpipe"
        )
    if in_turns and count % ranks:
        raise UsageError(
            f"--batch-size {options.batch_size}: interleaved stages on {ranks} ranks need microbatches of one size in "
            f"a multiple of {ranks}, found {count}; use a multiple of {ranks} with as many --microbatches"
        )
    return count


def check_stages(options: ModeOptions, ranks: int) -> None:
    """Raise UsageError if the model or its batch cannot be split over so many ranks."""
    import torch

    from ..workloads.models import BLOCKS, MODELS

    if options.pipeline_schedule == "interleaved" and ranks < 2:
        raise UsageError(
            "--pipeline-schedule interleaved: needs 2 ranks or more, as the stages of one would send to themselves; "
            "use --workers 2, or another schedule"
        )
    microbatches_of(options, ranks)
    stages = ranks * stages_per_rank(options)
    with torch.device("meta"):
        most = len(BLOCKS[options.model](MODELS[options.model]()))
    if stages > most:
        each = f" with {stages_per_rank(options)} stages each" if stages > ranks else ""
        raise UsageError(
            f"--parallel pipeline: {options.model} consists of {most} blocks, so it can be cut into {most} stages at "
            f"most, but there are {ranks} ranks{each}; use fewer"
        )
    given = options.stage_blocks
    if given is not None and (len(given) != stages or sum(given) != most):
        raise UsageError(
            f"--stage-blocks {','.join(map(str, given))}: expected {stages} numbers, one of each stage, with a sum of "
            f"{most}, the blocks of {options.model}; found {len(given)} with a sum of {sum(given)}"
        )


def _check_options(options: ModeOptions) -> None:
    if options.batch_size_changes:
        raise UsageError(
            "--batch-size-schedule: the stages of a pipeline exchange arrays of one size; use another --parallel"
        )
    each = options.stages_per_rank
    if each is not None and (each < 1 or (each > 1) != (options.pipeline_schedule == "interleaved")):
        raise UsageError(
            f"--stages-per-rank {each}: several are for --pipeline-schedule interleaved, and that needs 2 or more"
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

    ranks = dist.get_world_size()
    check_stages(options, ranks)
    return pipeline(model, where, options, microbatches_of(options, ranks), stages_per_rank(options))


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
    """The stages of this rank, their schedule, inputs and outputs for one microbatch; None for other models."""
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
    own_options=dict.fromkeys(
        ("microbatches", "stages_per_rank", "stage_blocks"), "only a pipeline has them; add --parallel pipeline"
    ),
    check_options=_check_options,
    check_ranks=check_stages,
    batch_share=_in_microbatches,
    learn=_learn,
    predict=_predict,
    facts=_facts,
)
