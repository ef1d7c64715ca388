"""The whole model on every device: nn.DataParallel in one process, DistributedDataParallel in one process per rank."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..base.contract.modes import DpFacts
from ..errors import DeviceError
from ..machine import environment
from ..train.config import TrainConfig


def driven_devices(config: TrainConfig) -> list[torch.device]:
    """The GPUs that the one process of `--parallel dp` drives. Raises DeviceError."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not found:
        raise DeviceError(
            f"--parallel dp: nn.DataParallel spreads each batch over the GPUs of one process, but torch "
            f"{torch.__version__} finds no GPU here; use --parallel ddp, which also runs on CPUs"
        )
    wanted = config.devices or found
    if wanted > found:
        raise DeviceError(f"--parallel dp --workers {wanted}: needs that many GPUs, found {found}; use fewer workers")
    return [torch.device("cuda", index) for index in range(wanted)]


def data_parallel(model: nn.Module, where: torch.device, config: TrainConfig) -> nn.Module:
    """The model under nn.DataParallel; `where` is the first device, which splits batches and gathers outputs."""
    devices = driven_devices(config)
    wrapped: nn.Module = nn.DataParallel(model.to(where), device_ids=devices, output_device=where)
    return wrapped


def ddp(model: nn.Module, where: torch.device, config: TrainConfig) -> nn.Module:
    """The model under DistributedDataParallel."""
    return DistributedDataParallel(
        model.to(where),
        device_ids=[where.index] if where.type == "cuda" else None,
        bucket_cap_mb=config.bucket_cap_mb or None,
    )


def dp_facts(model: nn.Module) -> DpFacts | None:
    """The devices that nn.DataParallel drives, and the CUDA ordinal of the one that gathers; None for other models."""
    if not isinstance(model, nn.DataParallel) or not model.device_ids:  # without GPUs it only calls the model
        return None
    driven = [environment.device(torch.device("cuda", index)) for index in model.device_ids]
    return DpFacts(driven, model.output_device)


def ddp_facts(model: nn.Module) -> dict[str, Any] | None:
    """DDP's own logging data (times in ns, sizes in bytes), bucket sizes as lists; None for other models."""
    wrapped = next((m for m in model.modules() if isinstance(m, DistributedDataParallel)), None)
    if wrapped is None:
        return None
    # There is no public way to bucket sizes.
    facts = dict(wrapped._get_ddp_logging_data())  # type: ignore[no-untyped-call]  # noqa: SLF001
    for key in ("bucket_sizes", "rebuilt_bucket_sizes"):
        if isinstance(facts.get(key), str):
            facts[key] = [int(size) for size in facts[key].split(",") if size.strip().isdigit()]
    return facts
