"""The interface of a parallel mode. Knows no torch, so that the command line can list the modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from ...contract.modes import MODES, Mode
from ..base.commands.choices import DeviceName, ModelName, PipelineScheduleName
from ..errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Batch = tuple[Tensor, Tensor]
    Autocast = Callable[[], AbstractContextManager[object]]


class ModeOptions(Protocol):
    """The options that a mode may read: a part of `train.config.TrainConfig`."""

    @property
    def model(self) -> ModelName:
        """The model to train."""

    @property
    def device(self) -> DeviceName:
        """The device, as given by the user."""

    @property
    def batch_size(self) -> int:
        """The value of --batch-size, whose meaning depends on the mode."""

    @property
    def image_size(self) -> int:
        """Width of images, in pixels."""

    @property
    def batch_size_changes(self) -> bool:
        """Whether later epochs have another batch size."""

    @property
    def bucket_cap_mb(self) -> int:
        """MiB per bucket of gradients; 0: torch's default."""

    @property
    def devices(self) -> int | None:
        """Devices of a process that drives several; None: all."""

    @property
    def microbatches(self) -> int | None:
        """Parts of a batch, if given by the user."""

    @property
    def pipeline_schedule(self) -> PipelineScheduleName:
        """The schedule of the pipeline's stages."""

    @property
    def stages_per_rank(self) -> int | None:
        """Stages of a pipeline on each rank, if given by the user."""

    @property
    def stage_blocks(self) -> Sequence[int] | None:
        """How many blocks of the model each stage of a pipeline has, if given by the user."""


def _nothing_to_check(options: ModeOptions) -> None:
    pass


def _any_number_of_ranks(options: ModeOptions, ranks: int) -> None:
    pass


def _one_device(options: ModeOptions) -> int:  # noqa: ARG001  (of every mode)
    return 1


def _per_rank(options: ModeOptions, ranks: int) -> str:  # noqa: ARG001  (of every mode)
    return "per rank"


def _learn(
    model: nn.Module, batch: Batch, criterion: nn.Module, where: torch.device, autocast: Autocast
) -> Tensor | None:
    images, labels = (part.to(where, non_blocking=True) for part in batch)
    with autocast():
        loss = cast("Tensor", criterion(model(images), labels))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _predict(model: nn.Module, images: Tensor, where: torch.device) -> Tensor | None:
    outputs: Tensor = model(images.to(where))
    return outputs


def _nothing_to_clear(model: nn.Module) -> None:
    pass


@dataclass(frozen=True)
class LeadingSteps:
    """The least number of steps before the traced ones, with the reason."""

    least: int
    why: str


@dataclass(frozen=True)
class ParallelMode:
    """One way to spread training; a module of this folder makes one, and `MODES` lists them.

    `help` is its part of the help of --parallel; `batch_help` and `workers_help` those of --batch-size and --workers,
    if these do not mean a rank's batch and the ranks. `distributed` modes need a process group, even for one rank; the
    others are one process. `splits_model`: each rank has another part of the model. `own_options` are options that no
    other mode takes, and `refused_options` those that this one does not, with the reason.
    """

    name: Mode
    help: str
    build: Callable[[nn.Module, torch.device, Any], nn.Module]
    """Puts a model, which is on any device, in its place on this rank; the options are `ModeOptions`."""
    distributed: bool = True
    splits_model: bool = False
    batch_help: str | None = None
    workers_help: str | None = None
    leading_steps: LeadingSteps | None = None
    own_options: Mapping[str, str] = field(default_factory=dict)
    refused_options: Mapping[str, str] = field(default_factory=dict)
    check_options: Callable[[ModeOptions], None] = _nothing_to_check
    """Raises UsageError for options that contradict each other."""
    check_ranks: Callable[[ModeOptions, int], None] = _any_number_of_ranks
    """Raises ProfilingError for what this machine, or this number of ranks, cannot do; called before they start."""
    devices: Callable[[ModeOptions], int] = _one_device
    """How many devices one rank drives. Raises DeviceError."""
    batch_share: Callable[[ModeOptions, int], str] = _per_rank
    """Whose batch --batch-size is, for the line that a run begins with; the number is that of ranks."""
    learn: Callable[[nn.Module, Batch, nn.Module, torch.device, Autocast], Tensor | None] = _learn
    """Forward and backward pass with a criterion; the loss, detached, or None on ranks that do not compute it.

    Only the forward pass and the criterion are under autocast: the backward pass uses the types that these used.
    """
    predict: Callable[[nn.Module, Tensor, torch.device], Tensor | None] = _predict
    """The model's outputs for images, on ranks that compute them; None elsewhere."""
    end_test: Callable[[nn.Module], None] = _nothing_to_clear
    """Clears what predictions leave behind in a model."""
    facts: Callable[[nn.Module], object] | None = None
    """What meta.json says about a model under the mode's name; None for models of other modes."""

    @property
    def shares_batch(self) -> bool:
        """Whether all ranks work on the same batch; otherwise each has its own batches."""
        return MODES[self.name].shares_batch

    @property
    def drives_workers(self) -> bool:
        """Whether the single process drives --workers devices; other modes of one process take no workers."""
        return MODES[self.name].drives_workers

    def check_world(self, ranks: int) -> None:
        """Raise UsageError if a mode of one process was launched as several."""
        if not self.distributed and ranks > 1:
            raise UsageError(f"--parallel {self.name} is one process, but was launched as one of {ranks}")
