"""Loss and accuracy: counted on the device during training and tests, and added up over all ranks."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ....contract.training import Score
from ...modes.mode import ParallelMode
from ...workloads.held_out import HeldOut


class ScoredLoss(nn.CrossEntropyLoss):
    """Cross entropy that also counts losses and correct outputs, inside `counted()` only.

    It is given the outputs of every parallel mode: of nn.DataParallel's gathered, of a pipeline's microbatches on the
    last stage. Nothing is copied to the host before the end.
    """

    _counts: Tensor | None = None

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002  (the names of nn.CrossEntropyLoss)
        """The mean loss of a batch."""
        loss = super().forward(input, target)
        if self._counts is not None:
            _count(self._counts, input.detach(), target, loss.detach() * len(target))
        return loss

    @contextmanager
    def counted(self, where: torch.device) -> Iterator[Tensor]:
        """Count in the block: sum of losses, correct outputs, and samples of this rank."""
        self._counts = torch.zeros(3, dtype=torch.float64, device=where)
        try:
            yield self._counts
        finally:
            self._counts = None


def tested(mode: ParallelMode, model: nn.Module, images: HeldOut, where: torch.device) -> Tensor:
    """Test a model built by `mode`: sum of losses, correct outputs, and samples of this rank.

    Every rank has to call this. What ranks keep of their own, the running statistics of batch normalisation, is rank
    0's, as a checkpoint of rank 0 would have it, and as DistributedDataParallel makes it in its next step anyway.
    """
    counts = torch.zeros(3, dtype=torch.float64, device=where)
    if not mode.splits_model:
        _share_buffers(model)
    model.eval()
    with torch.no_grad():
        for batch in images:
            outputs = mode.predict(model, batch.images, where)
            if outputs is not None:
                labels = batch.labels[: batch.counted].to(where)
                used = outputs[: batch.counted]
                _count(counts, used, labels, nn.functional.cross_entropy(used, labels, reduction="sum"))
    model.train()
    mode.end_test(model)
    return counts


def total(counts: Tensor) -> Score:
    """The score over all ranks; every rank has to call this."""
    if _several_ranks():
        dist.all_reduce(counts)
    loss_sum, correct, samples = counts.tolist()
    loss = loss_sum / samples
    return Score(loss if math.isfinite(loss) else None, correct / samples, int(samples))


def largest(values: Iterable[int], where: torch.device) -> list[int]:
    """The largest of each value over all ranks; every rank has to call this."""
    tensor = torch.tensor(list(values), dtype=torch.int64, device=where)
    if _several_ranks():
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return [int(value) for value in tensor.tolist()]


def _count(counts: Tensor, outputs: Tensor, labels: Tensor, loss_sum: Tensor) -> None:
    counts[0] += loss_sum
    counts[1] += (outputs.argmax(1) == labels).sum()
    counts[2] += len(labels)


def _share_buffers(model: nn.Module) -> None:
    if _several_ranks():
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def _several_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
