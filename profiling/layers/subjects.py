"""What is measured: modules by themselves, each on the shape that it gets."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..workloads.models import MODELS
from ..workloads.report_e import LAYERS, REPORT_BATCH_SIZE
from .config import MODEL_BATCH_SIZE, LayersConfig

WHOLE = "(model)"


@dataclass(frozen=True)
class Subject:
    """A module, and the input it gets: its shape, and whether backward has to go on through it."""

    name: str
    module: nn.Module
    input_shape: tuple[int, ...]
    input_requires_grad: bool = True


def subjects(config: LayersConfig, where: torch.device) -> Iterator[Subject]:
    """The single layers that were asked for, one after another; or the whole model, then its layers in order of use."""
    torch.manual_seed(config.seed)
    if config.layers:
        batch_size = config.batch_size or REPORT_BATCH_SIZE
        for name in config.layers:
            single = LAYERS[name]
            yield Subject(name, single.make(config.scale).to(where), single.input_shape(batch_size, config.scale))
        return
    shape = (config.batch_size or MODEL_BATCH_SIZE, 3, config.image_size, config.image_size)
    model = MODELS[config.model]().to(where)
    yield Subject(WHOLE, model, shape, input_requires_grad=False)
    yield from used(model, shape, where)


def used(model: nn.Module, shape: tuple[int, ...], where: torch.device) -> list[Subject]:
    """Every call of a module without submodules, in order; a module that is called twice comes twice.

    One image goes through, and the batch size is put in afterwards: the shapes behind it do not depend on it. The model
    is in evaluation mode meanwhile, where batch normalisation takes a single image.
    """
    found: list[Subject] = []
    names = {module: name for name, module in model.named_modules()}

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        (x,) = args
        assert isinstance(x, Tensor)
        # What comes first in a model gets images, which need no gradient.
        found.append(Subject(names[module], module, (shape[0], *x.shape[1:]), x.requires_grad))

    hooks = [one.register_forward_pre_hook(note) for one in model.modules() if not list(one.children())]
    training = model.training
    try:
        model.eval()(torch.zeros(1, *shape[1:], device=where))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return found
