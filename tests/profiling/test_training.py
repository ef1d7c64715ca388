"""`train --epochs`, mostly in this process, with a tiny model in the place of ResNet-18."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_cifar10
import tiny_model
import torch
from capturing import ROOT, leftovers, metas, python, trace
from torch.optim import SGD

from commtrace import cli
from commtrace.profiling.train import loop as train
from commtrace.profiling.train import scalars
from commtrace.profiling.train.config import OptimizerConfig
from commtrace.profiling.train.learning.optimizers import optimizer_of
from commtrace.profiling.workloads import models
from commtrace.profiling.workloads.torchvision_import import torchvision

ALONE = ["--parallel", "single", "--device", "cpu"]
SHORT = ["--wait", "1", "--warmup", "1", "--active", "1", "--steps", "3"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.fixture(autouse=True)
def _tiny_and_alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in tiny_model.REPLACED.items():
        monkeypatch.setitem(models.MODELS, name, value)


def train_here(out: Path, *options: object, code: int = 0) -> Path:
    command = ["train", *ALONE, *SHORT, *map(str, options), "--out", str(out), "--run-name", "run"]
    assert cli.main(command) == code
    return out / "run"


def training(run_dir: Path) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads((run_dir / "training.json").read_text(), parse_constant=refuse)


@pytest.fixture
def watched(monkeypatch) -> SimpleNamespace:
    """The learning rate and the number of images of every step that the optimizer takes."""
    seen = SimpleNamespace(rates=[], images=[])

    class Watched(SGD):
        def step(self, *args, **kwargs):
            seen.rates.append(self.param_groups[0]["lr"])
            return super().step(*args, **kwargs)

    def step(trainee, batch):
        seen.images.append(len(batch[0]))
        return genuine(trainee, batch)

    genuine = train.train_step
    monkeypatch.setattr(train, "train_step", step)
    monkeypatch.setattr(train, "optimizer_of", lambda parameters, settings: Watched(parameters, settings.lr))
    return seen


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Path:
    """Two ranks under DDP that train for three epochs on a tiny learnable data set of CIFAR-10's format."""
    root = tmp_path_factory.mktemp("learned")
    tiny_cifar10.write(root, 64, learnable=True)
    options = ["--data", "cifar10", "--data-root", root, "--epochs", "3", "--warmup-epochs", "1", "--batch-size", "8"]
    scaling = ["--lr-scaling", "linear", "--lr-reference-batch", "8", "--optimizer-lr", "0.01"]
    script = ROOT / "tests/support/tiny_model.py"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    command = ["train", "--device", "cpu", *options, *scaling, *SHORT, "--out", root, "--run-name", "run"]
    done = python(*launcher, root, *command, folders=(ROOT / "tests/support",))
    assert done.returncode == 0, done.stderr
    assert "test loss" in done.stderr
    return root / "run"


def test_accuracy_rises_in_three_epochs(learned) -> None:
    content = training(learned)
    assert (content["planned_epochs"], content["workers"], content["dataset_samples"]) == (3, 2, 320)
    for part in ("train", "test"):
        accuracy = [epoch[part]["accuracy"] for epoch in content["epochs"]]
        loss = [epoch[part]["loss"] for epoch in content["epochs"]]
        assert accuracy[2] > accuracy[0] + 0.1, part
        assert loss[2] < loss[0], part
    assert content["epochs"][2]["test"]["accuracy"] > 0.3, "guessing gives a tenth"


def test_scores_are_of_all_ranks_and_times_of_the_slowest(learned) -> None:
    content, sides = training(learned), metas(learned)
    for number, epoch in enumerate(content["epochs"]):
        assert (epoch["train"]["samples"], epoch["test"]["samples"]) == (320, 64)
        assert (epoch["steps"], epoch["full_steps"], epoch["global_batch_size"]) == (20, 20, 16)
        for name in ("dur_ns", "data_ns", "step_ns"):
            assert epoch[name] == max(side["epochs"][number][name] for side in sides.values())
    assert [epoch["phase"] for epoch in content["epochs"]] == ["warmup", "timed", "timed"]
    assert [epoch["first_lr"] for epoch in content["epochs"]] == [0.01, 0.02, 0.02]


def test_traced_steps_hold_nothing_of_it(learned) -> None:
    """The all_reduces and broadcasts of a step of DDP, and no counting of right answers."""
    for side in metas(learned).values():
        (name,) = side["traces"]
        events = [str(event.get("name")) for event in trace(learned / name)["traceEvents"]]
        assert sorted({name for name in events if name.startswith("gloo:")}) == ["gloo:all_reduce", "gloo:broadcast"]
        assert events.count("gloo:all_reduce") == 1, "one bucket holds all of the tiny model's gradients"
        assert "aten::argmax" not in events


def test_tensorboard_has_the_scores_of_every_epoch(learned) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert len(list(learned.glob("events.out.tfevents.*"))) == 1, "of rank 0 only"
    events = EventAccumulator(str(learned))
    events.Reload()
    epochs = training(learned)["epochs"]
    for tag, part, name in (
        ("loss/train", "train", "loss"),
        ("loss/test", "test", "loss"),
        ("accuracy/train", "train", "accuracy"),
        ("accuracy/test", "test", "accuracy"),
    ):
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert found == [(epoch["epoch"] + 1, pytest.approx(epoch[part][name], rel=1e-6)) for epoch in epochs]
    assert len(events.Tags()["scalars"]) == 7


# --- rates and batches ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_step_has_the_published_rate(tmp_path, watched) -> None:
    """Two warm-up epochs of 5 steps from 0.1 up to 0.1 x 8 / 4, which step 10 is the first to have."""
    sizes = ["--batch-size", 8, "--dataset-samples", 40]
    scaling = ["--lr-scaling", "linear", "--lr-reference-batch", 4]
    run_dir = train_here(tmp_path, "--epochs", 3, "--warmup-epochs", 2, *sizes, *scaling)
    assert watched.rates[:10] == pytest.approx([0.1 + 0.1 * step / 10 for step in range(10)], rel=1e-12)
    assert watched.rates[10:] == [0.2] * 8, "the last epoch, and the profiled steps"
    content = training(run_dir)
    assert (content["base_lr"], content["full_lr"], content["warmup_steps"]) == (0.1, 0.2, 10)
    assert (content["lr_scaling"], content["lr_reference_batch"], content["optimizer"]) == ("linear", 4, "sgd")
    assert [epoch["last_lr"] for epoch in content["epochs"]] == pytest.approx([0.14, 0.19, 0.2])


@pytest.mark.slow
@pytest.mark.parametrize("data", ["synthetic", "cifar10"])
def test_the_loader_follows_the_schedule(tmp_path, watched, monkeypatch, data) -> None:
    options = ["--dataset-samples", 40]
    if data == "cifar10":
        tiny_cifar10.write(tmp_path, 8)
        for name, value in tiny_cifar10.checksums(tmp_path).items():
            monkeypatch.setattr(torchvision("datasets").CIFAR10, name, value)
        options = ["--data", "cifar10", "--data-root", tmp_path]
    schedule = ["--batch-size", 8, "--batch-size-schedule", "0:8,1:20"]
    run_dir = train_here(tmp_path, "--epochs", 3, *schedule, *options)
    assert watched.images == [8] * 5 + [20] * 2 + [20] * 2 + [20] * 3, "the last three are profiled"
    assert [epoch["batch_size"] for epoch in training(run_dir)["epochs"]] == [8, 20, 20]
    side = metas(run_dir)[0]
    assert (side["batch_size_per_rank"], side["full_epoch_steps"]) == (20, 2), "those of the traced steps"
    assert [epoch["samples"] for epoch in side["epochs"]] == [40, 40, 40]
    assert set(watched.rates) == {0.1}


@pytest.mark.slow
def test_a_batch_may_shrink_again(tmp_path, watched) -> None:
    schedule = ["--batch-size", 8, "--batch-size-schedule", "1:20,2:8", "--dataset-samples", 40]
    run_dir = train_here(tmp_path, "--epochs", 3, *schedule)
    assert watched.images == [8] * 5 + [20] * 2 + [8] * 5 + [8] * 3
    assert metas(run_dir)[0]["batch_size_per_rank"] == 8


@pytest.mark.slow
def test_epochs_may_be_bounded(tmp_path, watched) -> None:
    sizes = ["--batch-size", 8, "--dataset-samples", 80, "--steps-per-epoch", 3, "--test-samples", 5]
    (epoch,) = training(train_here(tmp_path, "--epochs", 1, *sizes))["epochs"]
    assert (epoch["steps"], epoch["full_steps"], epoch["train"]["samples"]) == (3, 10, 24)
    assert epoch["test"]["samples"] == 5
    assert len(watched.images) == 3 + 3


def test_a_batch_larger_than_the_data_set_ends_the_run_before_the_first_epoch(tmp_path, capsys, watched) -> None:
    options = ["--epochs", 3, "--batch-size", 8, "--batch-size-schedule", "2:64", "--dataset-samples", 40]
    train_here(tmp_path, *options, code=4)
    assert "40 images are fewer than one batch of 64; use a smaller" in capsys.readouterr().err
    assert watched.images == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lr-scaling", "linear"], "--lr-scaling linear: is for training in epochs; say how many with --epochs"),
        (["--batch-size-schedule", "1:64"], "--batch-size-schedule: is for training in epochs"),
        (["--test-samples", "5"], "--test-samples: is for training in epochs"),
        (["--epochs", "2", "--timed-epochs", "1"], "--epochs 2 --timed-epochs 1: every epoch of a training is timed"),
        (["--epochs", "2", "--warmup-epochs", "3"], "--warmup-epochs 3: expected at most 2"),
        (["--epochs", "2", "--batch-size-schedule", "2:64"], "2:64: epoch 2 is not among those of --epochs 2"),
        (["--epochs", "3", "--batch-size-schedule", "2:64,1:32"], "expected epochs in ascending order, each once"),
        (["--epochs", "3", "--batch-size-schedule", "1:64,1:32"], "expected epochs in ascending order, each once"),
        (["--epochs", "3", "--batch-size-schedule", "1:0"], "1:0: batch sizes must be at least 1"),
        (
            ["--epochs", "3", "--batch-size-schedule", "0:8"],
            "0:8: the first epoch has --batch-size 32; make them equal",
        ),
        (["--epochs", "3", "--batch-size-schedule", "two"], "expected EPOCH:SIZE,... such as 3:256,6:512"),
        (["--epochs", "1", "--wait", "0", "--warmup", "2"], "--wait 0: need at least 1"),
        (
            ["--epochs", "3", "--batch-size-schedule", "1:64", "--parallel", "pipeline"],
            "the stages of a pipeline exchange arrays of one size",
        ),
    ],
)
def test_contradictions_are_usage_errors(options, message, capsys) -> None:
    assert cli.main(["train", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


# --- optimizers -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_lars_is_the_librarys_and_steps_by_the_papers_rule() -> None:
    """You et al. 2017: local rate = 0.001 x |w| / (|g| + decay x |w|), times g + decay x w; biases as in SGD."""
    weight, bias = (torch.nn.Parameter(value) for value in (torch.tensor([[3.0, 4.0]]), torch.tensor([1.0])))
    optimizer = optimizer_of([weight, bias], OptimizerConfig(lr=2.0, momentum=0.9, weight_decay=0.5, name="lars"))
    assert type(optimizer).__module__.startswith("pytorch_optimizer")
    weight.grad, bias.grad = torch.tensor([[0.0, 2.5]]), torch.tensor([0.25])
    optimizer.step()
    trust = 0.001 * 5 / (2.5 + 0.5 * 5)
    expected = torch.tensor([[3.0, 4.0]]) - 2.0 * trust * torch.tensor([[1.5, 4.5]])
    assert torch.allclose(weight, expected, atol=1e-7)
    assert torch.allclose(bias, torch.tensor([0.5]))


@pytest.mark.slow
def test_training_with_lars(tmp_path) -> None:
    options = ["--epochs", 2, "--batch-size", 8, "--dataset-samples", 800, "--optimizer", "lars", "--optimizer-lr", 5]
    run_dir = train_here(tmp_path, *options)
    content = training(run_dir)
    assert content["optimizer"] == "lars"
    assert content["epochs"][1]["train"]["loss"] < content["epochs"][0]["train"]["loss"]
    run = json.loads((run_dir / "run.json").read_text())
    assert run["config"]["optimizer"]["name"] == "lars"
    assert run["versions"]["pytorch_optimizer"]


def test_without_its_library_lars_says_what_to_install(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pytorch_optimizer", None)
    train_here(tmp_path, "--optimizer", "lars", code=1)
    said = "error: pytorch_optimizer is not installed, and --optimizer lars needs it: pip install "
    assert capsys.readouterr().err.startswith(said)
    assert not (tmp_path / "run").exists()
    train_here(tmp_path, "--optimizer", "sgd")


# --- runs that go wrong -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stopped_run_has_the_epochs_that_it_finished(tmp_path, watched, monkeypatch, capsys) -> None:
    """SIGTERM in the seventh step, the second of the second epoch."""
    genuine = train.train_step

    def stopped(*args):
        if len(watched.images) == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return genuine(*args)

    monkeypatch.setattr(train, "train_step", stopped)
    run_dir = train_here(tmp_path, "--epochs", 3, "--batch-size", 8, "--dataset-samples", 40, code=143)
    content = training(run_dir)
    assert (content["planned_epochs"], len(content["epochs"])) == (3, 1)
    side = metas(run_dir)[0]
    assert (side["complete"], len(side["epochs"])) == (False, 1)
    assert side["reason"].startswith("SIGTERM after 0 of")
    assert leftovers(run_dir) == []


@pytest.mark.slow
def test_a_training_that_diverges_has_no_loss(tmp_path) -> None:
    options = ["--epochs", 2, "--batch-size", 8, "--dataset-samples", 80, "--optimizer-lr", 1e30]
    (_, last) = training(train_here(tmp_path, *options))["epochs"]
    assert last["train"]["loss"] is None
    assert last["test"]["loss"] is None
    assert last["test"]["samples"] == 16


@pytest.mark.slow
def test_without_tensorboard_it_says_so_and_goes_on(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(scalars, "available", lambda: False)
    run_dir = train_here(tmp_path, "--epochs", 1, "--batch-size", 8, "--dataset-samples", 16)
    assert scalars.without_tensorboard() in capsys.readouterr().err
    assert list(run_dir.glob("events.*")) == []
    assert len(training(run_dir)["epochs"]) == 1


@pytest.mark.slow
def test_without_epochs_there_is_no_training_file(tmp_path) -> None:
    run_dir = train_here(tmp_path, "--warmup-epochs", 1, "--timed-epochs", 1, "--dataset-samples", 32)
    assert not (run_dir / "training.json").exists()
    assert list(run_dir.glob("events.*")) == []
    assert [epoch["phase"] for epoch in metas(run_dir)[0]["epochs"]] == ["warmup", "timed"]


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: would train and test on it, alone and under nn.DataParallel"
)
@pytest.mark.parametrize("mode", ["single", "dp"])
def test_training_on_a_gpu(tmp_path, mode) -> None:
    sizes = ["--batch-size", "8", "--dataset-samples", "80"]
    command = ["train", "--parallel", mode, "--device", "cuda", *SHORT, "--epochs", "3", *sizes]
    assert cli.main([*command, "--optimizer-lr", "0.01", "--out", str(tmp_path), "--run-name", "run"]) == 0
    content = training(tmp_path / "run")
    workers = torch.cuda.device_count() if mode == "dp" else 1
    assert (content["workers"], content["epochs"][0]["global_batch_size"]) == (workers, 8 * workers)
    assert content["epochs"][2]["train"]["loss"] < content["epochs"][0]["train"]["loss"]
    assert [epoch["test"]["samples"] for epoch in content["epochs"]] == [16] * 3
