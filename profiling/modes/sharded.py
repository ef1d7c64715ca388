"""FSDP2: every rank keeps a shard of the parameters, and the whole of a block only while it computes with it."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..base.contract.modes import FsdpFacts, FsdpGroup
from ..train.config import TrainConfig
from ..workloads.models import BLOCKS


def fsdp(model: nn.Module, where: torch.device, config: TrainConfig) -> nn.Module:
    """The model with the parameters of each block sharded over all ranks.

    Blocks are gathered for the forward pass, freed, and gathered again for the backward pass. The last one belongs to
    the root, which stays whole in between: its backward pass comes next.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # a second, for runs of this mode only

    model.to(where)
    mesh = init_device_mesh(where.type, (dist.get_world_size(),))
    members = set(model.modules())
    *blocks, _ = BLOCKS[config.model](model).values()
    for block in blocks:
        # A block that is no module of the model itself is sharded as the modules it consists of.
        parts = [block] if block in members else [part for part in block.children() if list(part.parameters())]
        fully_shard(parts, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


def is_sharded(module: nn.Module) -> bool:
    """Does FSDP2 keep it? Where nobody has imported that, it is not imported here either."""
    found = sys.modules.get("torch.distributed.fsdp")
    return found is not None and isinstance(module, found.FSDPModule)


def is_shard(tensor: Tensor) -> bool:
    """Is it this rank's part of a tensor over several?"""
    found = sys.modules.get("torch.distributed.tensor")
    return found is not None and isinstance(tensor, found.DTensor)


def fsdp_facts(model: nn.Module) -> FsdpFacts | None:
    """The groups of parameters that FSDP2 gathers and reduces as one; None for other models.

    `unsharded_bytes` is the array of one all_gather or reduce_scatter (in the parameters' own dtypes; a mixed-precision
    policy sends others), `sharded_bytes` one rank's part of it. Both include `padding_bytes`, with which dimension 0 of
    each parameter is filled up to a multiple of the ranks. `groups` is None where this torch keeps them elsewhere.
    """
    sharded = [module for module in model.modules() if is_sharded(module)]
    if not sharded:
        return None
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    try:  # there is no public way to the groups
        found = [_state_of(module)._fsdp_param_group for module in sharded]  # noqa: SLF001
        groups = {id(group): group for group in found if group is not None}  # several modules may make up one
        return FsdpFacts([_group_facts(group, names) for group in groups.values()])
    except AttributeError:
        return FsdpFacts(None, f"not where torch 2.13 has them, in torch {torch.__version__}")


def _state_of(module: Any) -> Any:
    return module._get_fsdp_state()  # noqa: SLF001


def _group_facts(group: Any, names: dict[int, str]) -> FsdpGroup:
    ranks, held = group.mesh_info.shard_mesh_size, group.fsdp_params
    sharded = sum(p.padded_sharded_param_size.numel() * p.sharded_param.element_size() for p in held)
    whole = sum(p._orig_size.numel() * p.sharded_param.element_size() for p in held)  # noqa: SLF001
    return FsdpGroup(
        parameters=[names.get(id(p.sharded_param)) for p in held],
        dtypes=sorted({str(p.sharded_param.dtype).removeprefix("torch.") for p in held}),
        ranks=ranks,
        unsharded_bytes=sharded * ranks,
        sharded_bytes=sharded,
        padding_bytes=sharded * ranks - whole,
        reshard_after_forward=bool(group._reshard_after_forward),  # noqa: SLF001
    )
