"""`fsdp`: FSDP2, each rank keeps a shard of the parameters, and a whole block only while it computes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from ...contract.modes import FsdpFacts, FsdpGroup
from .mode import LeadingSteps, ModeOptions, ParallelMode

if TYPE_CHECKING:
    import torch
    from torch import nn


def _build(model: nn.Module, where: torch.device, options: ModeOptions) -> nn.Module:
    """Shard the parameters of each block over all ranks.

    Blocks are gathered for the forward pass, freed, and gathered again for the backward pass. The last one belongs to
    the root, which is not freed in between: its backward pass comes next.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from ..workloads.models import BLOCKS

    model.to(where)
    mesh = init_device_mesh(where.type, (dist.get_world_size(),))
    members = set(model.modules())
    *blocks, _ = BLOCKS[options.model](model).values()
    for block in blocks:
        # A block that is not itself a module of the model is sharded as the modules that it consists of.
        parts = [block] if block in members else [part for part in block.children() if list(part.parameters())]
        fully_shard(parts, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


def _end_test(model: nn.Module) -> None:
    cast("Any", model).reshard()  # else what the root gathered waits for a backward pass that never comes


def _is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 manages the module; false, without importing it, if nobody has imported FSDP2."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def _facts(model: nn.Module) -> FsdpFacts | None:
    """The groups of parameters that FSDP2 gathers and reduces as one; None for other models.

    `unsharded_bytes` is the array of one all_gather or reduce_scatter (in the parameters' own dtypes; a mixed-precision
    policy sends others), `sharded_bytes` one rank's part of it. Both include `padding_bytes`, which pad dimension 0 of
    each parameter to a multiple of the ranks. `groups` is None if this version of torch keeps them elsewhere.
    """
    import torch

    from ..base.torch_private import fsdp_groups

    sharded = [module for module in model.modules() if _is_sharded(module)]
    if not sharded:
        return None
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    try:
        return FsdpFacts([_group_facts(group, names) for group in fsdp_groups(sharded)])
    except AttributeError:
        return FsdpFacts(None, f"torch {torch.__version__} does not keep them where torch 2.13 does")


def _group_facts(group: Any, names: dict[int, str]) -> FsdpGroup:
    from ..base.torch_private import fsdp_reshards, fsdp_whole_bytes

    ranks, held = group.mesh_info.shard_mesh_size, group.fsdp_params
    sharded = sum(p.padded_sharded_param_size.numel() * p.sharded_param.element_size() for p in held)
    return FsdpGroup(
        parameters=[names.get(id(p.sharded_param)) for p in held],
        dtypes=sorted({str(p.sharded_param.dtype).removeprefix("torch.") for p in held}),
        ranks=ranks,
        unsharded_bytes=sharded * ranks,
        sharded_bytes=sharded,
        padding_bytes=sharded * ranks - fsdp_whole_bytes(group),
        reshard_after_forward=fsdp_reshards(group),
    )


FSDP = ParallelMode(
    "fsdp",
    "FSDP2, parameters sharded over the ranks",
    _build,
    leading_steps=LeadingSteps(1, "FSDP sets up its groups of parameters in its first iteration"),
    refused_options={"channels_last": "FSDP2 shards contiguous parameters only"},
    end_test=_end_test,
    facts=_facts,
)
