"""The optimizers of `--optimizer`."""

import sys
from collections.abc import Iterable
from typing import cast

from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

from ...base.libraries import require
from ..config import OptimizerConfig

LARS_LIBRARY = "pytorch_optimizer"
# You et al. 2017, "Large Batch Training of Convolutional Networks", arXiv:1708.03888: "eta < 1 defines how much we
# trust the layer to change its weights"; 0.001 in their experiments.
_TRUST_COEFFICIENT = 0.001


def optimizer_of(parameters: Iterable[Parameter], settings: OptimizerConfig) -> Optimizer:
    """The optimizer that `settings` name. Raises LibraryError when it comes from a library that is not installed.

    LARS is that of kozistr's pytorch_optimizer, which needs nothing but torch and numpy. It leaves biases and
    normalisation to plain SGD without weight decay, as large-batch recipes do.
    """
    if settings.name == "sgd":
        return SGD(parameters, settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    require_optimizer(settings)
    from pytorch_optimizer import LARS  # a second of imports that only LARS needs

    held = list(parameters)
    lars = LARS(
        held,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        trust_coefficient=_TRUST_COEFFICIENT,
        # FSDP's shards have no way to its batched operations (torch 2.13); norms of shards are those of the whole.
        foreach=False if any(map(_is_shard, held)) else None,
    )
    return cast("Optimizer", lars)


def require_optimizer(settings: OptimizerConfig) -> None:
    """Raise LibraryError when a library that it needs is not installed."""
    if settings.name == "lars":
        require(LARS_LIBRARY, "--optimizer lars")


def _is_shard(tensor: Tensor) -> bool:
    """Is it this rank's part of a tensor over several? Where nobody has imported those, they are not imported here."""
    found = sys.modules.get("torch.distributed.tensor")
    return found is not None and isinstance(tensor, found.DTensor)
