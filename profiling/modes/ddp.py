"""`ddp`: DistributedDataParallel, the whole model on each rank, gradients reduced in buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .mode import LeadingSteps, ModeOptions, ParallelMode

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def _build(model: nn.Module, where: torch.device, options: ModeOptions) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(
        model.to(where),
        device_ids=[where.index] if where.type == "cuda" else None,
        bucket_cap_mb=options.bucket_cap_mb or None,
    )


def _predict(model: nn.Module, images: Tensor, where: torch.device) -> Tensor | None:
    """Predict with the wrapped model, which does not communicate."""
    outputs: Tensor = model.module(images.to(where))  # type: ignore[operator]
    return outputs


def _facts(model: nn.Module) -> dict[str, Any] | None:
    """DDP's own logging data (times in ns, sizes in bytes), bucket sizes as lists; None for other models."""
    from torch.nn.parallel import DistributedDataParallel

    from ..base.torch_private import ddp_logging_data

    wrapped = next((m for m in model.modules() if isinstance(m, DistributedDataParallel)), None)
    if wrapped is None:
        return None
    facts = ddp_logging_data(wrapped)
    for key in ("bucket_sizes", "rebuilt_bucket_sizes"):
        if isinstance(facts.get(key), str):
            facts[key] = [int(size) for size in facts[key].split(",") if size.strip().isdigit()]
    return facts


DDP = ParallelMode(
    "ddp",
    "DistributedDataParallel",
    _build,
    leading_steps=LeadingSteps(2, "DDP's first iteration uses buckets that it rebuilds before the second"),
    predict=_predict,
    facts=_facts,
)
