from dataclasses import replace
from pathlib import Path

import pytest

from commtrace.profiling.errors import UsageError
from commtrace.profiling.sweep import grid
from commtrace.profiling.sweep.grid import SweepConfig


def names(found) -> list[str]:
    return [one.run for one in found]


def test_cells_are_the_product_with_smaller_batches_first() -> None:
    config = SweepConfig(model=("vgg16",), parallel=("single", "ddp"), batch_size=(32, 8), workers=(1, 4))
    assert names(grid.cells(config)) == [
        *("vgg16-single-w1-b8", "vgg16-single-w1-b32", "vgg16-single-w4-b8", "vgg16-single-w4-b32"),
        *("vgg16-ddp-w1-b8", "vgg16-ddp-w1-b32", "vgg16-ddp-w4-b8", "vgg16-ddp-w4-b32"),
    ]


def test_lists_on_the_command_line_are_repeated_or_joined() -> None:
    given = grid.from_command_line({"batch_size": ["32,128", " 512"], "model": ["vgg16"], "seed": 3})
    assert given == {"batch_size": (32, 128, 512), "model": ("vgg16",), "seed": 3}
    assert grid.from_command_line({"workers": ["2,1,2"]}) == {"workers": (2, 1)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": ["resnet19"]}, "--model: expected one of resnet18, vgg16, vgg16-swapped, found resnet19"),
        ({"parallel": ["ddp,spam"]}, "--parallel: expected one of single, .*pipeline, found ddp,spam"),
        ({"batch_size": ["32,x"]}, "--batch-size: expected a whole number, found 32,x"),
        ({"batch_size": ["32,"]}, "--batch-size: expected a whole number, found 32,"),
        ({"workers": ["0"]}, "--workers: expected a whole number >= 1, found 0"),
        ({"steps_per_epoch": -1}, "--steps-per-epoch: expected a whole number >= 0, found -1"),
        ({"data": "imagenet"}, "--data: expected one of synthetic, cifar10, found 'imagenet'"),
        ({"amp": "fp8"}, "--amp: expected one of bf16, found 'fp8'"),
        ({"wait": 0}, "--wait: expected a whole number >= 1, found 0"),
    ],
)
def test_senseless_values_are_named(given, message) -> None:
    with pytest.raises(UsageError, match=message):
        grid.from_command_line(given)


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "sweep.toml").write_text(text, encoding="utf-8")
    return tmp_path / "sweep.toml"


def test_file_has_the_options_without_dashes(tmp_path) -> None:
    path = write(
        tmp_path,
        'model = "vgg16"\nbatch-size = [32, 128]\nworkers = 2\nbatch-size-until-oom = true\nrun-name = "mine"\n'
        "seed = 5",
    )
    given = grid.from_file(path)
    assert given == {
        "model": ("vgg16",),
        "batch_size": (32, 128),
        "workers": (2,),
        "batch_size_until_oom": True,
        "run_name": "mine",
        "seed": 5,
    }
    assert grid.changed(SweepConfig(), given) == SweepConfig(
        model=("vgg16",), batch_size=(32, 128), workers=(2,), batch_size_until_oom=True, seed=5
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_size = 3", "unknown key 'batch_size'; the nearest is 'batch-size'"),
        ("bacth-size = 3", "unknown key 'bacth-size'; the nearest is 'batch-size'"),
        ("worker = 3", "unknown key 'worker'; the nearest is 'workers'"),
        ('seed = "3"', "--seed: expected a whole number, found '3'"),
        ("seed = true", "--seed: expected a whole number, found True"),
        ("workers = []", "--workers: expected at least one, found none"),
        ('workers = ["1"]', "--workers: expected a whole number, found 1"),
        ("workers = [1", "expected TOML in UTF-8"),
    ],
)
def test_faults_of_a_file_are_named_with_it(tmp_path, text, message) -> None:
    with pytest.raises(UsageError, match=rf"sweep.toml: .*{message}"):
        grid.from_file(write(tmp_path, text))


def test_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"--config .*/none.toml: cannot be read: No such file"):
        grid.from_file(tmp_path / "none.toml")


def test_arguments_of_a_cell_are_those_that_train_understands(tmp_path, monkeypatch) -> None:
    """The command line that a user may repeat makes the very configuration that was checked."""
    from commtrace.cli import main
    from commtrace.profiling.train import task as training

    seen = []
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(training, "run_training", lambda config, workers, args: seen.append((config, workers)) or 0)
    config = SweepConfig(batch_size=(7,), workers=(3,), seed=9, memory_limit="2GiB", steps_per_epoch=0, active=5)
    config = replace(config, amp="bf16", channels_last=True, bucket_cap_mb=0)
    (one,) = grid.cells(config)
    assert main(["train", *grid.train_arguments(config, one, tmp_path)]) == 0
    assert seen == [(grid.train_config(config, one, tmp_path), 3)]
    assert seen[0][0].memory_limit_bytes == 2 * 2**30
    assert (seen[0][0].warmup_epochs, seen[0][0].timed_epochs) == (1, 1)


def test_batches_grow_after_the_largest_that_is_done() -> None:
    config = SweepConfig(batch_size=(8, 32), workers=(1, 2), batch_size_until_oom=True)
    found = [replace(one, status="done") for one in grid.cells(config)]
    found[3] = replace(found[3], status="out_of_memory")
    assert names(grid.with_larger(found, config)) == [
        *("resnet18-ddp-w1-b8", "resnet18-ddp-w1-b32", "resnet18-ddp-w1-b128"),
        *("resnet18-ddp-w2-b8", "resnet18-ddp-w2-b32"),
    ]
    assert grid.with_larger(found, replace(config, batch_size_until_oom=False)) == found


def test_contradictions_leave_the_grid_alone() -> None:
    recorded = SweepConfig()
    wider = replace(recorded, model=("vgg16",), batch_size=(1,), workers=(9,), batch_size_until_oom=True)
    assert grid.contradictions(recorded, wider) == []
    assert grid.contradictions(recorded, replace(wider, seed=1)) == ["--seed 0, now 1"]
