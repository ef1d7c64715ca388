"""Find the model that a script trains, from its optimizer."""

import gc
from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Optimizer

from ....contract.run import ModelSize
from ...base.torch_private import is_set_up, own_modules, own_parameters
from ...ranks.process_group import current_device


def parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield all parameters that it updates."""
    for group in optimizer.param_groups:
        yield from group["params"]


def facts(optimizer: Optimizer) -> ModelSize:
    """The facts of `sidefiles.model_facts` from the optimizer's parameters; without name and buffers."""
    updated = list(parameters(optimizer))
    return ModelSize(
        name=None,
        parameters=sum(p.numel() for p in updated),
        bytes=sum(p.numel() * p.element_size() for p in updated),
        buffer_bytes=None,
    )


def trained_on(optimizer: Optimizer | None) -> torch.device:
    """The device that a script trains on: a GPU if it uses one, else the CPU.

    A parameter on the CPU says nothing: it may be offloaded, or an embedding. Who has not used a GPU by the first step
    is not to get a context on one for nothing.
    """
    updated = () if optimizer is None else parameters(optimizer)
    on_gpus = (tensor.device for tensor in updated if tensor.device.type == "cuda")
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return next(on_gpus, current_device() if used else torch.device("cpu"))


def outermost(optimizer: Optimizer) -> nn.Module | None:
    """The module with the optimizer's first parameter that is in no other module: DDP's, if there is one."""
    first = next(parameters(optimizer), None)
    # `type()`, because isinstance() asks objects for their class, and lazy ones would wake up.
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module) and is_set_up(each)]
    above: dict[int, list[nn.Module]] = {}
    for module in modules:
        for child in own_modules(module).values():
            above.setdefault(id(child), []).append(module)
    held = next((m for m in modules if any(p is first for p in own_parameters(m).values())), None)
    seen: set[int] = set()
    while held is not None and id(held) in above and id(held) not in seen:
        seen.add(id(held))
        held = above[id(held)][0]
    return held
