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
    """The optimizer named in `settings`. Raises LibraryError if its library is not installed.

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
    """Raise LibraryError if the optimizer's library is not installed."""
    if settings.name == "lars":
        require(LARS_LIBRARY, "--optimizer lars")


def _is_shard(tensor: Tensor) -> bool:
    """Whether the tensor is this rank's part of a distributed one. It imports nothing to find out."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
