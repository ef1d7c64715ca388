"""Pipeline stages: consecutive blocks of a model on each rank, with microbatches passing through."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, combinations, pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from ...contract.modes import PipelineFacts, StageFacts, TensorShape
from ..base.commands.choices import PipelineScheduleName
from ..workloads.models import BLOCKS
from .mode import ModeOptions

if TYPE_CHECKING:  # torch's pipelines take two seconds to import, so only runs of this mode do it
    from torch.distributed.pipelining import PipelineStage

_SCHEDULES: Mapping[PipelineScheduleName, str] = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
}


class Pipeline(nn.Module):
    """This rank's stages of a model; it has only their parameters. Made by `pipeline()`.

    Of several, as with an interleaved schedule, the n-th of each rank follow each other.
    """

    def __init__(self, stages: Sequence["PipelineStage"], schedule: PipelineScheduleName, facts: PipelineFacts) -> None:
        from torch.distributed import pipelining

        super().__init__()
        self.parts = nn.ModuleList(stage.submod for stage in stages)
        self.facts = facts
        self._stages = list(stages)
        self._make_schedule = getattr(pipelining, _SCHEDULES[schedule])
        self._schedule: Any = None

    def learn(self, images: Tensor, labels: Tensor, criterion: nn.Module) -> Tensor | None:
        """Run forward and backward for one batch, on all ranks at once; gradients are of its mean loss.

        The first stage uses the images and the last one the labels. The loss, detached, where the last one is; None
        elsewhere.
        """
        if self._schedule is None:
            several = len(self._stages) > 1
            stages = self._stages if several else self._stages[0]
            self._schedule = self._make_schedule(stages, self.facts.microbatches, loss_fn=criterion)
        losses: list[Tensor] = []
        where = self._stages[0].device
        inputs = (images.to(where, non_blocking=True),) if self._stages[0].is_first else ()
        if not self._stages[-1].is_last:
            self._schedule.step(*inputs)
            return None
        self._schedule.step(*inputs, target=labels.to(where, non_blocking=True), losses=losses)
        return torch.stack(losses).mean().detach()

    def predict(self, images: Tensor) -> Tensor | None:
        """The model's outputs for any number of images, on the rank of the last stage; None elsewhere.

        Every rank must start it. Runs stage by stage and without gradients: schedules accept one batch size only, and
        1F1B has no forward pass alone.
        """
        ranks, outputs = dist.get_world_size(), images
        for stage, facts in zip(self._stages, (self.facts, *self.facts.further_stages), strict=True):
            index, where, given = stage.stage_index, stage.device, facts.input
            if stage.is_first:
                passing = images.to(where)
            else:
                passing = torch.empty((len(images), *given.shape[1:]), dtype=getattr(torch, given.dtype), device=where)
                dist.recv(passing, (index - 1) % ranks)
            outputs = cast("Tensor", stage.submod(passing))
            if not stage.is_last:
                dist.send(outputs.contiguous(), (index + 1) % ranks)
        return outputs if self._stages[-1].is_last else None


def pipeline(
    model: nn.Module, where: torch.device, options: ModeOptions, microbatches: int, stages_per_rank: int
) -> Pipeline:
    """Make this rank's stages, by default so that the largest stage computes as little as possible.

    Shapes are given to torch beforehand. Otherwise it finds them by a forward pass over uninitialised memory, which
    would enter the running statistics of batch normalisation.
    """
    from torch.distributed.pipelining import PipelineStage

    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = ranks * stages_per_rank
    blocks = BLOCKS[options.model](model)
    images = torch.empty((options.batch_size // microbatches, 3, options.image_size, options.image_size), device="meta")
    costs = _costs(blocks, images)
    ends = None if options.stage_blocks is None else list(accumulate(options.stage_blocks, initial=0))
    cuts = _cut([cost.forward_flops for cost in costs], count) if ends is None else list(pairwise(ends))
    passing = [images, *(cost.output for cost in costs)]
    made: list[tuple[PipelineStage, StageFacts]] = []
    for index in range(rank, count, ranks):
        first, end = cuts[index]
        part = nn.Sequential(OrderedDict((name.replace(".", "_"), blocks[name]) for name in list(blocks)[first:end]))
        # Every connection carries gradients back, except the input of the images.
        given = passing[first].detach().requires_grad_(index > 0)
        handed_on = passing[end].detach().requires_grad_()
        stage = PipelineStage(part.to(where), index, count, where, input_args=given, output_args=handed_on)
        facts = StageFacts(
            stage=index,
            blocks=list(blocks)[first:end],
            parameters=sum(p.numel() for p in part.parameters()),
            forward_flops_per_microbatch=sum(cost.forward_flops for cost in costs[first:end]),
            input=_tensor_facts(passing[first]),
            output=_tensor_facts(passing[end]),
        )
        made.append((stage, facts))
    stages, of_stages = zip(*made, strict=True)
    of_rank = PipelineFacts(
        **vars(of_stages[0]),
        stages=count,
        schedule=options.pipeline_schedule,
        microbatches=microbatches,
        batch_size=options.batch_size,
        further_stages=of_stages[1:],
    )
    return Pipeline(stages, options.pipeline_schedule, of_rank)


@dataclass(frozen=True)
class _Cost:
    """The cost of a block for one microbatch; `output` is on the meta device: a shape without memory."""

    forward_flops: int
    output: Tensor


def _costs(blocks: Mapping[str, nn.Module], images: Tensor) -> list[_Cost]:
    """The cost of every block in order, without computing."""
    from torch.utils.flop_counter import FlopCounterMode

    costs = []
    passing = images
    for block in blocks.values():
        held = chain(block.named_parameters(), block.named_buffers())
        state = {name: tensor.detach().to("meta") for name, tensor in held}
        with FlopCounterMode(display=False) as counter:
            passing = cast("Tensor", functional_call(block, state, (passing,)))
        costs.append(_Cost(counter.get_total_flops(), passing))
    return costs


def _cut(costs: Sequence[int], stages: int) -> list[tuple[int, int]]:
    """(first, end) of `stages` runs of consecutive blocks, with the most expensive run as cheap as possible."""
    ways = (list(pairwise((0, *cuts, len(costs)))) for cuts in combinations(range(1, len(costs)), stages - 1))
    return min(ways, key=lambda runs: max(sum(costs[first:end]) for first, end in runs))


def _tensor_facts(tensor: Tensor) -> TensorShape:
    return TensorShape(
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        bytes=tensor.numel() * tensor.element_size(),
    )
