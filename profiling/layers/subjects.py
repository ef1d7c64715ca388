"""What to measure: single modules, each with the shape of its input."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..base.commands.choices import ModelName
from ..errors import UsageError
from ..workloads.models import MODELS
from ..workloads.stacks import LAYERS, REPORT_BATCH_SIZE
from .config import LayersConfig

WHOLE_MODEL = "(model)"
_META = torch.device("meta")  # shapes without memory


@dataclass(frozen=True)
class LayerSubject:
    """A module with the shape of its input, and whether the input needs a gradient.

    `described` is on the meta device; `made` makes the module on the measured one, which may lack the memory.
    """

    name: str
    described: nn.Module
    made: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    input_requires_grad: bool = True


def subjects(config: LayersConfig, where: torch.device) -> list[LayerSubject]:
    """The chosen single layers; or the whole model, then its layers in order of use. Raises UsageError."""
    torch.manual_seed(config.seed)
    if not config.layers:
        return _of_model(config.of_model, config.input_shape, where)
    batch_size, scale = config.batch_size or REPORT_BATCH_SIZE, config.scale or 1.0
    layers = []
    for name in config.layers:
        single = LAYERS[name]
        with _META:
            described = single.make(scale)
        made = partial(_made, partial(single.make, scale), where)
        layers.append(LayerSubject(name, described, made, single.input_shape(batch_size, scale)))
    return layers


def whole_models(config: LayersConfig, where: torch.device) -> list[LayerSubject]:
    """The models as a whole, from the same seed. Raises UsageError."""
    models = []
    for name in config.models:
        torch.manual_seed(config.seed)
        model, *_ = _of_model(name, config.input_shape, where)
        models.append(replace(model, name=f"({name})"))
    return models


def _of_model(name: ModelName, shape: tuple[int, ...], where: torch.device) -> list[LayerSubject]:
    """The whole model, then its layers."""
    with _META:
        described = MODELS[name]()
    try:
        calls = used(described, shape)
    except (RuntimeError, ValueError) as err:
        raise UsageError(
            f"--image-size {shape[-1]} --batch-size {shape[0]}: {name} cannot be trained with such a batch: "
            f"{str(err).splitlines()[0]}; use larger ones"
        ) from err
    model = _made(MODELS[name], where)
    layers = [LayerSubject(WHOLE_MODEL, described, lambda: model, shape, input_requires_grad=False)]
    for layer, input_shape, requires_grad in calls:
        made = partial(model.get_submodule, layer)
        layers.append(LayerSubject(layer, described.get_submodule(layer), made, input_shape, requires_grad))
    return layers


def used(model: nn.Module, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...], bool]]:
    """Name, input shape, and whether the input needs a gradient, for every call of a module without submodules.

    In order of use; a module that is called twice appears twice. The model is on the meta device. Raises what torch
    raises if the model does not accept that shape.
    """
    calls: list[tuple[str, tuple[int, ...], bool]] = []
    names = {module: name for name, module in model.named_modules()}

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        (x,) = args
        assert isinstance(x, Tensor)
        # The first module of a model gets images, which need no gradient.
        calls.append((names[module], tuple(x.shape), x.requires_grad))

    hooks = [part.register_forward_pre_hook(note) for part in model.modules() if not list(part.children())]
    try:
        model(torch.empty(shape, device=_META))
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _made(make: Callable[[], nn.Module], where: torch.device) -> nn.Module:
    with where:
        return make()
