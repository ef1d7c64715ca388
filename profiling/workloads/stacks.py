"""Two subjects, and the memory they need: a stack of convolutions and linear layers, and four single layers.

A published report measured such a stack, and says only that its input is (16, 64, 112, 112). Here a convolution is
Conv2d(64, 64, 3, padding=1), which keeps that shape, and a linear layer is Linear(3136, 3136), behind one average pool
to 7 x 7 as in VGG-16. So counts are comparable between devices measured here, not with the report's.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

FLOAT_BYTES = 4
_INDEX_BYTES = 8  # MaxPool2d keeps the place of every maximum as int64
_POOLED_SIDE = 7


@dataclass(frozen=True)
class StackShape:
    """The sizes of a stack: its input is (batch_size, channels, image_size, image_size)."""

    batch_size: int = 16
    channels: int = 64
    image_size: int = 112

    @property
    def features(self) -> int:
        """Number of inputs, and of outputs, of a linear layer."""
        return self.channels * _POOLED_SIDE**2

    def input_shape(self, *, pooled: bool = False) -> tuple[int, ...]:
        """Shape of the input of a convolution or the pool; with `pooled`, of a linear layer."""
        if pooled:
            return (self.batch_size, self.features)
        return (self.batch_size, self.channels, self.image_size, self.image_size)

    def describe(self) -> str:
        """The layers in torch's notation."""
        return (
            f"Conv2d({self.channels}, {self.channels}, 3, padding=1) on {self.input_shape()}, "
            f"Linear({self.features}, {self.features}) after AdaptiveAvgPool2d({_POOLED_SIDE})"
        )


def stack(shape: StackShape, conv: int, linear: int, *, pooled: bool = False) -> nn.Sequential:
    """A stack of `conv` convolutions and `linear` linear layers; `pooled` if the input has passed the pool.

    No activation functions: done in place, they would need no memory. Weights have variance 1 / fan-in, so that values
    neither grow nor fade through a hundred layers: numbers below 1e-38 would make a CPU many times slower.
    """
    layers: list[nn.Module] = [nn.Conv2d(shape.channels, shape.channels, 3, padding=1) for _ in range(conv)]
    if linear and not pooled:
        layers += [nn.AdaptiveAvgPool2d(_POOLED_SIDE), nn.Flatten()]
    layers += [nn.Linear(shape.features, shape.features) for _ in range(linear)]
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.weight.mul_(math.sqrt(3))  # torch draws them with variance 1 / (3 fan-in)
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class SingleLayer:
    """A single layer: how to make it, and the shape of its input, for a batch size and a scale."""

    make: Callable[[float], nn.Module]
    input_shape: Callable[[int, float], tuple[int, ...]]


def _scaled(size: int, scale: float) -> int:
    return max(1, round(size * scale))


def _images(batch_size: int, scale: float) -> tuple[int, ...]:
    return (batch_size, 3, 2 * _scaled(112, scale), 2 * _scaled(112, scale))  # even, so that MaxPool2d(2) leaves none


def _linear(scale: float) -> nn.Module:
    return nn.Linear(_scaled(25088, scale), _scaled(4096, scale))


# ReLU is not in place, as nn.ReLU() is not. `scale` shrinks the sides of images and the features of Linear.
LAYERS: Mapping[str, SingleLayer] = {
    "relu": SingleLayer(lambda _: nn.ReLU(), _images),
    "maxpool": SingleLayer(lambda _: nn.MaxPool2d(2), _images),
    "conv": SingleLayer(lambda _: nn.Conv2d(3, 128, 3, padding=1), _images),
    "linear": SingleLayer(_linear, lambda batch_size, scale: (batch_size, _scaled(25088, scale))),
}
REPORT_BATCH_SIZE = 256


def activation_bytes(layer: nn.Module, input_shape: tuple[int, ...]) -> int | None:
    """Bytes of float32 that `layer` adds to what forward leaves behind; None for other kinds of layers.

    That is its output, and what backward needs besides input and parameters: for MaxPool2d an int64 index per output.
    A ReLU or Dropout in place, and Flatten or Identity, leave nothing. Source: what torch's autograd saves for them,
    tools/autograd/derivatives.yaml.
    """
    elements = math.prod(input_shape)
    if isinstance(layer, nn.ReLU):
        return 0 if layer.inplace else elements * FLOAT_BYTES
    if isinstance(layer, nn.Flatten | nn.Identity):
        return 0
    if isinstance(layer, nn.Linear):
        return elements // layer.in_features * layer.out_features * FLOAT_BYTES
    if isinstance(layer, nn.Conv2d):
        return input_shape[0] * layer.out_channels * _pixels(layer, input_shape) * FLOAT_BYTES
    if isinstance(layer, nn.MaxPool2d) and not layer.ceil_mode:
        return math.prod(input_shape[:-2]) * _pixels(layer, input_shape) * (FLOAT_BYTES + _INDEX_BYTES)
    return None


def _pixels(layer: nn.Conv2d | nn.MaxPool2d, input_shape: tuple[int, ...]) -> int:
    """Height x width of the output. Source: torch's documentation of Conv2d and MaxPool2d, "Shape"."""
    kernel, stride, padding, dilation = map(_pair, (layer.kernel_size, layer.stride, layer.padding, layer.dilation))
    sides = [
        (side + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
        for axis, side in enumerate(input_shape[-2:])
    ]
    return math.prod(sides)


def _pair(value: Any) -> tuple[int, ...]:
    assert not isinstance(value, str), "padding by name is in none of our layers"
    return (value, value) if isinstance(value, int) else tuple(value)
