"""The data of `--data`: endless batches of (images, labels) on the host."""

import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from ..base.commands.choices import CIFAR10_SAMPLES
from ..errors import DataError, OutOfDataError
from .torchvision_import import torchvision

Batch = tuple[Tensor, Tensor]

CLASSES = 10
# From the data set's training images: what everybody normalises CIFAR-10 with.
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)
_CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_LOADER_WORKERS = 2
_SYNTHETIC_BATCHES = 4
# What tells synthetic classes apart, beside noise of strength 1: learned within dozens of steps, not in the first few.
_PATTERN_PIXELS = 4
_PATTERN_STRENGTH = 0.25


@dataclass(frozen=True)
class DataSpec:
    """The share of the data to load. `batch_size` is per rank, `image_size` in pixels; `pinned` speeds copies to a GPU.

    `dataset_samples` is the length of an epoch of synthetic data, over all ranks; `distinct` says whether its images
    all differ. `first_epoch` says which order and crops a data set begins with.
    """

    batch_size: int
    image_size: int
    root: Path
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    pinned: bool = False
    dataset_samples: int = CIFAR10_SAMPLES
    first_epoch: int = 0
    distinct: bool = False


def epoch_steps(dataset_samples: int, ranks: int, batch_size: int) -> int:
    """Number of whole batches per rank in an epoch. Raises OutOfDataError if there are none."""
    steps = dataset_samples // ranks // batch_size
    if steps == 0:
        raise OutOfDataError(
            f"{dataset_samples} images are fewer than one batch of {batch_size}"
            f"{f' for each of {ranks} ranks' if ranks > 1 else ''}; use a smaller --batch-size"
        )
    return steps


class Batches(Iterator[Batch]):
    """Endless batches of one rank, all of one size: an incomplete last batch of an epoch is left out.

    `dataset_samples` counts an epoch over all ranks, `epoch_steps` is this rank's number of batches in it. Raises
    OutOfDataError when that is none.
    """

    def __init__(self, stream: Generator[Batch, None, None], spec: DataSpec, dataset_samples: int) -> None:
        self.dataset_samples = dataset_samples
        self.epoch_steps = epoch_steps(dataset_samples, spec.world_size, spec.batch_size)
        self._stream = stream

    def __next__(self) -> Batch:
        return next(self._stream)

    def close(self) -> None:
        """Stop the loaders."""
        self._stream.close()


def synthetic(spec: DataSpec) -> Batches:
    """Repeat a few seeded batches, different on every rank: no files, and almost no time per step.

    With `distinct`, a data set as real ones are: the same images, each once in an epoch, whatever the batch size and
    the number of ranks. Only then can trainings be compared: with small batches, a few batches are few images.

    Every class has a coarse pattern of colours, the same on all ranks, under noise: a model can learn them, so its loss
    falls. Raises OutOfDataError when `dataset_samples` are less than one batch per rank.
    """
    return Batches(_data_set(spec) if spec.distinct else _synthetic_stream(spec), spec, spec.dataset_samples)


def _synthetic_stream(spec: DataSpec) -> Generator[Batch, None, None]:
    patterns = class_patterns(spec)
    generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + spec.rank)
    shape = (spec.batch_size, 3, spec.image_size, spec.image_size)
    batches = []
    for _ in range(_SYNTHETIC_BATCHES):
        images = torch.randn(shape, generator=generator)
        labels = torch.randint(CLASSES, (spec.batch_size,), generator=generator)
        for label, pattern in enumerate(patterns):  # and not patterns[labels], a second copy of a huge batch
            images[labels == label] += pattern
        batches.append((images.pin_memory(), labels.pin_memory()) if spec.pinned else (images, labels))
    while True:
        yield from batches


def _data_set(spec: DataSpec) -> Generator[Batch, None, None]:
    """This rank's batches, in another order in every epoch; an incomplete last one is left out."""
    patterns, epoch = class_patterns(spec), spec.first_epoch
    shared = spec.dataset_samples // spec.world_size * spec.world_size  # so that all ranks have as many
    while True:
        order = torch.randperm(spec.dataset_samples, generator=torch.Generator().manual_seed(spec.seed + epoch))
        share = order[spec.rank : shared : spec.world_size].tolist()
        for begin in range(0, len(share) - spec.batch_size + 1, spec.batch_size):
            numbers = share[begin : begin + spec.batch_size]
            images, labels = numbered_images(spec, patterns, [-2 - number for number in numbers])
            yield (images.pin_memory(), labels.pin_memory()) if spec.pinned else (images, labels)
        epoch += 1


def numbered_images(spec: DataSpec, patterns: Tensor, numbers: Sequence[int]) -> Batch:
    """Images and labels, each made from its number and the seed alone. Test images count up, training images down."""
    shape = (3, spec.image_size, spec.image_size)
    images, labels = [], []
    for number in numbers:
        generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + number)
        label = int(torch.randint(CLASSES, (), generator=generator))
        images.append(torch.randn(shape, generator=generator) + patterns[label])
        labels.append(label)
    return torch.stack(images), torch.tensor(labels)


def class_patterns(spec: DataSpec) -> Tensor:
    """One image per class. The generator's seed differs from that of every rank."""
    generator = torch.Generator().manual_seed(spec.seed * 1_000_003 - 1)
    coarse = torch.randn((CLASSES, 3, _PATTERN_PIXELS, _PATTERN_PIXELS), generator=generator)
    return _PATTERN_STRENGTH * functional.interpolate(coarse, size=(spec.image_size, spec.image_size))


def cifar10(spec: DataSpec) -> Batches:
    """CIFAR-10's training images: random crop, horizontal flip, normalised, reshuffled every epoch.

    Raises DataError when the data set is missing or damaged, OutOfDataError when it is smaller than one batch per rank.
    """
    dataset = _cifar10_dataset(spec.root)
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, num_replicas=spec.world_size, rank=spec.rank, shuffle=True, seed=spec.seed, drop_last=True
    )
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=spec.batch_size,
        sampler=sampler,
        num_workers=_LOADER_WORKERS,
        pin_memory=spec.pinned,
        drop_last=True,
        worker_init_fn=_leave_signals_to_parent,
        generator=torch.Generator().manual_seed((spec.seed + spec.first_epoch) * 1_000_003 + spec.rank),
        persistent_workers=True,
    )
    return Batches(_epochs(loader, sampler, spec.first_epoch), spec, len(dataset))


def check_cifar10(root: Path) -> None:
    """Raise DataError with the file's name if CIFAR-10 under `root` is missing or damaged."""
    kind = torchvision("datasets").CIFAR10
    check_integrity = torchvision("datasets.utils").check_integrity
    folder = root / kind.base_folder
    if not folder.is_dir():
        raise DataError(
            f"{folder}: CIFAR-10 is not there; get {_CIFAR10_URL} and unpack it in {root}, or use --data synthetic"
        )
    for name, checksum in (*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])):
        if not check_integrity(folder / name, checksum):
            fault = "another checksum" if (folder / name).is_file() else "no such file"
            raise DataError(f"{folder / name}: expected CIFAR-10's file, found {fault}; unpack {_CIFAR10_URL} again")


def _cifar10_dataset(root: Path) -> Any:
    check_cifar10(root)
    transforms = torchvision("transforms")
    return torchvision("datasets").CIFAR10(
        root,
        train=True,
        download=False,
        transform=transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(CIFAR10_MEAN, CIFAR10_STD),
            ]
        ),
    )


def _epochs(loader: "DataLoader[Any]", sampler: "DistributedSampler[Any]", epoch: int) -> Generator[Batch, None, None]:
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def _leave_signals_to_parent(worker: int) -> None:  # noqa: ARG001  (the signature of a worker_init_fn)
    """Ignore Ctrl-C and SIGTERM in a worker: the rank ends its workers after writing its files."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)


DATA: Mapping[str, Callable[[DataSpec], Batches]] = {"synthetic": synthetic, "cifar10": cifar10}
