"""What models are tested on."""

from pathlib import Path

import pytest
import tiny_cifar10
import torch

from commtrace.profiling.errors import DataError
from commtrace.profiling.workloads.data import CIFAR10_MEAN, CIFAR10_STD, DataSpec, synthetic
from commtrace.profiling.workloads.held_out import TEST_BATCH, HeldOut, cifar10_test, synthetic_test
from commtrace.profiling.workloads.torchvision_import import torchvision


def spec(root: Path = Path("none"), **changes) -> DataSpec:
    return DataSpec(**{"batch_size": 4, "image_size": 32, "root": root, **changes})


def numbered(samples: int, rank: int, ranks: int) -> HeldOut:
    return HeldOut(samples, rank, ranks, lambda numbers: (torch.tensor(numbers), torch.tensor(numbers)))


@pytest.mark.parametrize(("samples", "ranks"), [(1, 1), (1, 3), (250, 1), (250, 2), (201, 2), (400, 3), (299, 3)])
def test_every_image_counts_once_and_ranks_have_equal_batches(samples, ranks) -> None:
    shares = [list(numbered(samples, rank, ranks)) for rank in range(ranks)]
    counted = [int(number) for share in shares for batch in share for number in batch.images[: batch.counted]]
    assert sorted(counted) == list(range(samples))
    assert len({tuple(len(batch.images) for batch in share) for share in shares}) == 1
    assert all(len(batch.images) <= TEST_BATCH for batch in shares[0])


def test_a_bound_leaves_the_first_images() -> None:
    (half,) = numbered(200, 1, 2).bounded(5)
    assert (half.images.tolist(), half.counted) == ([1, 3, 0], 2)
    assert numbered(200, 0, 1).bounded(0).samples == 200
    assert numbered(200, 0, 1).bounded(500).samples == 200


@pytest.mark.slow
def test_synthetic_test_images_are_of_the_classes_that_are_trained_on_and_new() -> None:
    settings = spec(batch_size=200, image_size=16, dataset_samples=1000, seed=5)
    images, labels = next(synthetic(settings))
    held_out = synthetic_test(settings)
    assert held_out.samples == 200
    (first, *_) = held_out
    means = torch.stack([images[labels == label].mean(0) for label in range(10)])
    nearest = torch.cdist(first.images.flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == first.labels).float().mean() > 0.9
    assert torch.cdist(first.images.flatten(1), images.flatten(1)).min() > 1


def test_synthetic_test_images_do_not_depend_on_the_ranks() -> None:
    settings = {"dataset_samples": 35, "image_size": 8}
    (whole,) = synthetic_test(spec(**settings))
    (half,) = synthetic_test(spec(rank=1, world_size=2, **settings))
    assert torch.equal(half.images[:3], whole.images[1::2])
    assert (half.counted, len(half.images)) == (3, 4)
    assert synthetic_test(spec(dataset_samples=1)).samples == 1


def test_cifar10_is_tested_as_it_is_trained_but_not_cropped(tmp_path, monkeypatch) -> None:
    tiny_cifar10.write(tmp_path, 8)
    kind = torchvision("datasets").CIFAR10
    for name, value in tiny_cifar10.checksums(tmp_path).items():
        monkeypatch.setattr(kind, name, value)
    transforms = torchvision("transforms")
    way = transforms.Compose([transforms.ToTensor(), transforms.Normalize(CIFAR10_MEAN, CIFAR10_STD)])
    reference = kind(tmp_path, train=False, transform=way)
    (batch,) = cifar10_test(spec(tmp_path))
    assert torch.allclose(batch.images, torch.stack([image for image, _ in reference]))
    assert batch.labels.tolist() == [label for _, label in reference]
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(DataError, match="test_batch: expected CIFAR-10's file, found no such file"):
        cifar10_test(spec(tmp_path))
