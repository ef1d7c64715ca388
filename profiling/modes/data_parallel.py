"""`dp`: nn.DataParallel, one process that copies the model to several GPUs for every batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...contract.modes import DpFacts
from ..errors import DeviceError, UsageError
from .mode import LeadingSteps, ModeOptions, ParallelMode

if TYPE_CHECKING:
    import torch
    from torch import nn


def driven_devices(options: ModeOptions) -> list[torch.device]:
    """The GPUs that the one process drives. Raises DeviceError."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise DeviceError(
            f"--parallel dp: nn.DataParallel spreads each batch over the GPUs of one process, but torch "
            f"{torch.__version__} finds no GPU here; use --parallel ddp, which also runs on CPUs"
        )
    wanted = options.devices or count
    if wanted > count:
        raise DeviceError(f"--parallel dp --workers {wanted}: needs that many GPUs, found {count}; use fewer workers")
    return [torch.device("cuda", index) for index in range(wanted)]


def _build(model: nn.Module, where: torch.device, options: ModeOptions) -> nn.Module:
    """Wrap the model; `where` is the first device, which splits batches and gathers outputs."""
    from torch import nn

    wrapped: nn.Module = nn.DataParallel(model.to(where), device_ids=driven_devices(options), output_device=where)
    return wrapped


def _check_options(options: ModeOptions) -> None:
    if options.device == "cpu":
        raise UsageError("--parallel dp --device cpu: nn.DataParallel is for GPUs; use --parallel ddp")


def _check_ranks(options: ModeOptions, ranks: int) -> None:  # noqa: ARG001  (it is one)
    driven_devices(options)


def _devices(options: ModeOptions) -> int:
    return len(driven_devices(options))


def _per_gpu(options: ModeOptions, ranks: int) -> str:  # noqa: ARG001  (of any training)
    return "per GPU"


def _facts(model: nn.Module) -> DpFacts | None:
    """The devices that nn.DataParallel drives, and the CUDA ordinal of the one that gathers; None for other models."""
    import torch
    from torch import nn

    from ..machine import environment

    if not isinstance(model, nn.DataParallel) or not model.device_ids:  # without GPUs it just calls the model
        return None
    driven = [environment.device(torch.device("cuda", index)) for index in model.device_ids]
    return DpFacts(driven, model.output_device)


DATA_PARALLEL = ParallelMode(
    "dp",
    "nn.DataParallel, one process that drives several GPUs",
    _build,
    distributed=False,
    batch_help="per GPU",
    workers_help="GPUs to drive",
    leading_steps=LeadingSteps(1, "nn.DataParallel sets up NCCL in its first iteration"),
    refused_options={
        "amp": "the threads of nn.DataParallel cast to float16, whatever is asked for",
        "channels_last": "nn.DataParallel copies weights to the other GPUs in their usual order",
    },
    check_options=_check_options,
    check_ranks=_check_ranks,
    devices=_devices,
    batch_share=_per_gpu,
    facts=_facts,
)
