"""A model of a few hundred parameters in the place of ResNet-18: `tiny_model.py ROOT ARGUMENTS OF PROFILING...`.

ROOT is a data set that tiny_cifar10 wrote. For tests of what surrounds a model: ResNet-18 takes a second a step here.
"""

import sys
from collections import OrderedDict
from pathlib import Path

import tiny_cifar10
from torch import nn

from commtrace.cli import main
from commtrace.profiling.workloads import models
from commtrace.profiling.workloads.torchvision_import import torchvision


def tiny() -> nn.Module:
    """Two convolutions with batch normalisation and a linear layer; images of any size, 10 classes."""
    return nn.Sequential(
        OrderedDict(
            first=nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU()),
            second=nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            head=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(8, 10)),
        )
    )


REPLACED = {"resnet18": tiny}
BLOCKS = {"resnet18": lambda model: OrderedDict(model.named_children())}


def replace_resnet18() -> None:
    """For the rest of this process."""
    models.MODELS.update(REPLACED)  # type: ignore[attr-defined]
    models.BLOCKS.update(BLOCKS)  # type: ignore[attr-defined]


if __name__ == "__main__":
    replace_resnet18()
    for attribute, value in tiny_cifar10.checksums(Path(sys.argv[1])).items():
        setattr(torchvision("datasets").CIFAR10, attribute, value)
    sys.exit(main(sys.argv[2:]))
