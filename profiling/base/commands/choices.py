"""Choices and sizes that options of several commands share. Knows no torch."""

from typing import Literal

ModelName = Literal["resnet18", "vgg16", "vgg16-swapped"]
DataName = Literal["synthetic", "cifar10"]
DeviceName = Literal["auto", "cpu", "cuda"]
AmpName = Literal["bf16"]
PipelineScheduleName = Literal["gpipe", "1f1b", "interleaved"]

CIFAR_IMAGE_SIZE = 32
CIFAR10_SAMPLES = 50_000  # training images
