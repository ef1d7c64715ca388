"""The models of `--model`, built from torchvision's and initialised from torch's current seed."""

from collections.abc import Callable, Mapping

from torch import nn

from .torchvision_import import torchvision


def cifar_resnet18() -> nn.Module:
    """ResNet-18 for 32 x 32 images: a 3x3 stem of stride 1, no max pool, 10 classes; 11,173,962 parameters."""
    model: nn.Module = torchvision("models").resnet18(weights=None, num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


def vgg16() -> nn.Module:
    """torchvision's VGG-16: 1000 classes, any image of 32 pixels and up; 138,357,544 parameters."""
    model: nn.Module = torchvision("models").vgg16(weights=None)
    return model


MODELS: Mapping[str, Callable[[], nn.Module]] = {"resnet18": cifar_resnet18, "vgg16": vgg16}
