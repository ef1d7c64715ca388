"""Test images: each counts once, whatever the number of ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .data import CIFAR10_MEAN, CIFAR10_STD, DataSpec, check_cifar10, class_patterns, numbered_images
from .torchvision_import import torchvision

# Images of one rank that are tested at once.
TEST_BATCH = 100
# Synthetic data are tested on as large a share of the training images as CIFAR-10's 10,000 are of its 50,000.
_TRAINING_TO_TEST = 5
# Where the seeds of synthetic test images begin: those of the ranks are before.
_FIRST_SEED = 500_000


@dataclass(frozen=True)
class TestBatch:
    """Images and labels on the host; only the first `counted` count, the others fill the batch."""

    __test__ = False  # pytest takes classes of this name for its own

    images: Tensor
    labels: Tensor
    counted: int


@dataclass(frozen=True)
class HeldOut:
    """One rank's share of `samples` test images. `load` returns images and labels by number."""

    samples: int
    rank: int
    ranks: int
    load: Callable[[Sequence[int]], tuple[Tensor, Tensor]]

    def bounded(self, most: int) -> "HeldOut":
        """The share of the first `most` images; 0: all of them."""
        return replace(self, samples=min(self.samples, most)) if most else self

    def __iter__(self) -> Iterator[TestBatch]:
        """Yield batches: as many and as large on every rank, because sharded models work together.

        Where the images cannot be shared evenly, ranks that have one less begin again from the first, uncounted.
        """
        share = -(-self.samples // self.ranks)
        numbers = [place * self.ranks + self.rank for place in range(share)]
        for begin in range(0, share, TEST_BATCH):
            chosen = numbers[begin : begin + TEST_BATCH]
            images, labels = self.load([number % self.samples for number in chosen])
            yield TestBatch(images, labels, sum(number < self.samples for number in chosen))


def synthetic_test(spec: DataSpec) -> HeldOut:
    """Images of the synthetic classes with other noise; a fifth as many as for training."""
    patterns = class_patterns(spec)

    def load(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        return numbered_images(spec, patterns, [_FIRST_SEED + number for number in numbers])

    return HeldOut(max(1, spec.dataset_samples // _TRAINING_TO_TEST), spec.rank, spec.world_size, load)


def cifar10_test(spec: DataSpec) -> HeldOut:
    """CIFAR-10's test images, normalised as for training, neither cropped nor flipped.

    Raises DataError when the data set is missing or damaged.
    """
    check_cifar10(spec.root)
    dataset = torchvision("datasets").CIFAR10(spec.root, train=False, download=False)
    images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2)  # bytes, as it has them: 30 MB
    labels = torch.tensor(dataset.targets)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (CIFAR10_MEAN, CIFAR10_STD))

    def load(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(numbers)
        return (images[chosen].float() / 255 - mean) / deviation, labels[chosen]

    return HeldOut(len(labels), spec.rank, spec.world_size, load)


TEST_DATA: Mapping[str, Callable[[DataSpec], HeldOut]] = {"synthetic": synthetic_test, "cifar10": cifar10_test}
