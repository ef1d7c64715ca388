import itertools
from contextlib import closing
from pathlib import Path

import pytest
import tiny_cifar10
import torch
from capturing import ROOT, metas, torchrun

from commtrace.profiling.errors import DataError, OutOfDataError
from commtrace.profiling.workloads.data import CIFAR10_MEAN, CIFAR10_STD, DataSpec, check_cifar10, cifar10, synthetic
from commtrace.profiling.workloads.torchvision_import import torchvision

IMAGES_PER_FILE = 8


def spec(root: Path = Path("none"), **changes) -> DataSpec:
    return DataSpec(**{"batch_size": 4, "image_size": 32, "root": root, **changes})


def first(batches, count: int = 1) -> list:
    return list(itertools.islice(batches, count))


@pytest.mark.slow
def test_synthetic_data_is_seeded_and_differs_between_ranks_and_batches() -> None:
    (once,), (again,) = first(synthetic(spec(seed=3))), first(synthetic(spec(seed=3)))
    assert torch.equal(once[0], again[0])
    assert torch.equal(once[1], again[1])
    assert not torch.equal(once[0], first(synthetic(spec(seed=4)))[0][0])
    assert not torch.equal(once[0], first(synthetic(spec(seed=3, rank=1)))[0][0])
    a, b = first(synthetic(spec()), 2)
    assert not torch.equal(a[0], b[0])


@pytest.mark.slow
def test_synthetic_data_has_the_shape_of_cifar10() -> None:
    images, labels = first(synthetic(spec(batch_size=300)))[0]
    assert images.shape == (300, 3, 32, 32)
    assert sorted(set(labels.tolist())) == list(range(10))
    assert first(synthetic(spec(image_size=64)))[0][0].shape == (4, 3, 64, 64)


def test_an_epoch_of_synthetic_data_has_the_length_that_is_asked_for() -> None:
    assert synthetic(spec()).epoch_steps == 50_000 // 4
    found = synthetic(spec(dataset_samples=27, world_size=3))
    assert (found.dataset_samples, found.epoch_steps) == (27, 2)
    with pytest.raises(OutOfDataError, match="11 images are fewer than one batch of 4 for each of 3 ranks"):
        synthetic(spec(dataset_samples=11, world_size=3))


def test_a_synthetic_data_set_is_the_same_for_every_batch_size_and_number_of_ranks() -> None:
    def epochs(count: int, **changes) -> list[set[bytes]]:
        """The images of each epoch, over all ranks."""
        seen: list[set[bytes]] = [set() for _ in range(count)]
        for rank in range(changes.get("world_size", 1)):
            batches = synthetic(spec(image_size=4, dataset_samples=24, distinct=True, rank=rank, **changes))
            for number, (images, labels) in enumerate(first(batches, count * batches.epoch_steps)):
                of_epoch = seen[number // batches.epoch_steps]
                labelled = zip(images, labels.tolist(), strict=True)
                of_epoch |= {image.numpy().tobytes() + bytes([label]) for image, label in labelled}
        return seen

    (once, again), (shared,), (large,) = epochs(2), epochs(1, batch_size=2, world_size=3), epochs(1, batch_size=24)
    assert len(once) == 24
    assert once == again == shared == large
    orders = [first(synthetic(spec(dataset_samples=24, distinct=True, first_epoch=epoch)))[0][0] for epoch in (0, 1)]
    assert not torch.equal(*orders)


def test_ranks_of_a_synthetic_data_set_have_as_many_batches() -> None:
    of_ranks = [
        synthetic(spec(image_size=4, batch_size=5, dataset_samples=28, distinct=True, world_size=3, rank=rank))
        for rank in range(3)
    ]
    for _ in range(3):  # each epoch has one batch per rank, though rank 0 could fill a second one
        images = torch.cat([next(batches)[0] for batches in of_ranks])
        assert len({image.numpy().tobytes() for image in images}) == 15


@pytest.mark.slow
def test_synthetic_classes_can_be_learned_from_one_rank_and_recognised_on_another() -> None:
    (images, labels), (others, other_labels) = (
        first(synthetic(spec(batch_size=200, image_size=16, rank=rank, seed=5)))[0] for rank in (0, 1)
    )
    means = torch.stack([images[labels == label].mean(0) for label in range(10)])
    nearest = torch.cdist(others.flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == other_labels).float().mean() > 0.9
    strangers, stranger_labels = first(synthetic(spec(batch_size=200, image_size=16, seed=6)))[0]
    nearest = torch.cdist(strangers.flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == stranger_labels).float().mean() < 0.5, "another seed, other classes"


@pytest.fixture
def cifar10_root(tmp_path: Path, monkeypatch) -> Path:
    """A tiny data set in CIFAR-10's own format; torchvision is told its checksums."""
    tiny_cifar10.write(tmp_path, IMAGES_PER_FILE)
    kind = torchvision("datasets").CIFAR10
    for name, value in tiny_cifar10.checksums(tmp_path).items():
        monkeypatch.setattr(kind, name, value)
    return tmp_path


forks = pytest.mark.filterwarnings(
    "ignore:.*use of fork:DeprecationWarning", "ignore:This DataLoader will create:UserWarning"
)


@pytest.mark.slow
@forks
def test_cifar10_batches_are_normalised_and_go_on_after_an_epoch(cifar10_root) -> None:
    per_epoch = 5 * IMAGES_PER_FILE // 16
    with closing(cifar10(spec(cifar10_root, batch_size=16))) as batches:
        found = first(batches, 2 * per_epoch + 1)
    images = torch.cat([images for images, _ in found])
    assert images.shape[1:] == (3, 32, 32)
    darkest = -torch.tensor(CIFAR10_MEAN) / torch.tensor(CIFAR10_STD)
    assert torch.allclose(images.amin(dim=(0, 2, 3)), darkest)
    assert not torch.equal(found[0][0], found[per_epoch][0]), "another order and other crops in every epoch"


@pytest.mark.slow
@forks
def test_ranks_share_the_images_of_an_epoch(cifar10_root) -> None:
    def labels(rank: int) -> int:
        with closing(cifar10(spec(cifar10_root, batch_size=20, rank=rank, world_size=2))) as batches:
            return sum(first(batches)[0][1].tolist())

    everything = sum(torchvision("datasets").CIFAR10(cifar10_root).targets)
    assert labels(0) + labels(1) == everything


def test_batch_larger_than_the_data_set_is_said(cifar10_root) -> None:
    with pytest.raises(DataError, match="40 images are fewer than one batch of 41; use"):
        cifar10(spec(cifar10_root, batch_size=41))


@pytest.mark.slow
@forks
def test_training_on_cifar10_from_the_command_line(cifar10_root, tmp_path) -> None:
    from commtrace.cli import main

    options = ["--data", "cifar10", "--data-root", str(cifar10_root), "--parallel", "single", "--device", "cpu"]
    schedule = ["--wait", "0", "--warmup", "1", "--active", "1", "--steps", "3"]
    command = ["train", *options, *schedule, "--batch-size", "2", "--out", str(tmp_path), "--run-name", "run"]
    assert main(command) == 0
    assert len(list((tmp_path / "run").glob("*.pt.trace.json.gz"))) == 1


@pytest.mark.slow
def test_two_ranks_train_for_an_epoch_of_cifar10(tmp_path) -> None:
    tiny_cifar10.write(tmp_path, IMAGES_PER_FILE)
    options = ["--data", "cifar10", "--data-root", tmp_path, "--device", "cpu", "--batch-size", "4"]
    schedule = ["--wait", "1", "--warmup", "1", "--active", "1", "--steps", "3"]
    epochs = ["--warmup-epochs", "1", "--timed-epochs", "1"]
    done = torchrun(
        2,
        *(ROOT / "tests/support/tiny_cifar10.py", tmp_path, "train", *options, *schedule, *epochs),
        *("--out", tmp_path, "--run-name", "run"),
    )
    assert done.returncode == 0, done.stderr
    found = metas(tmp_path / "run")
    assert sorted(found) == [0, 1]
    for meta in found.values():
        assert (meta["complete"], meta["dataset_samples"], meta["full_epoch_steps"]) == (True, 40, 5)
        assert [(epoch["steps"], epoch["samples"]) for epoch in meta["epochs"]] == [(5, 20), (5, 20)]
        assert all(epoch["data_ns"] > 0 for epoch in meta["epochs"])


def test_without_being_told_torchvision_takes_no_other_data_set(tmp_path) -> None:
    tiny_cifar10.write(tmp_path, IMAGES_PER_FILE)
    with pytest.raises(DataError, match="data_batch_1: expected CIFAR-10's file, found another checksum"):
        check_cifar10(tmp_path)


def test_damaged_file_is_named(cifar10_root) -> None:
    check_cifar10(cifar10_root)
    damaged = cifar10_root / "cifar-10-batches-py" / "data_batch_3"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(DataError, match="data_batch_3: expected CIFAR-10's file, found another checksum"):
        cifar10(spec(cifar10_root))
    damaged.unlink()
    with pytest.raises(DataError, match="data_batch_3: expected CIFAR-10's file, found no such file"):
        cifar10(spec(cifar10_root))
