"""Sweeps that train until they are out of memory, or out of data. Gloo on CPU, tiny images."""

import pytest
from capturing import python
from sweeping import TINY, statuses


@pytest.mark.slow
def test_out_of_memory_by_a_real_limit(tmp_path) -> None:
    options = [
        "--parallel",
        "single",
        "--workers",
        "1",
        "--batch-size",
        "64",
        "--batch-size-until-oom",
        "--steps-per-epoch",
        "1",
    ]
    done = python(
        *("-m", "commtrace", "sweep", *TINY, *options, "--memory-limit", "650MB"),
        *("--out", tmp_path, "--run-name", "memory"),
    )
    assert done.returncode == 0, done.stderr
    # How many images fit differs between processors, whose kernels need more memory or less.
    found = statuses(tmp_path / "memory")
    size = max(int(cell.rpartition("-b")[2]) for cell in found)
    last = f"resnet18-single-w1-b{size}"
    assert len(found) > 1
    assert found == {**dict.fromkeys(found, "done"), last: "out_of_memory"}
    reason = next(line for line in done.stdout.splitlines() if line.startswith(f"{last}: "))
    assert f"out of memory with --batch-size {size}: " in reason
    # Which of the two fails first differs between processors as well: an image's tensor, or oneDNN's scratch space.
    assert "you tried to allocate" in reason or "could not create a primitive" in reason


@pytest.mark.slow
def test_out_of_data_is_another_thing(tmp_path) -> None:
    options = ["--workers", "2", "--batch-size", "2", "--batch-size-until-oom", "--dataset-samples", "9"]
    done = python("-m", "commtrace", "sweep", *TINY, *options, "--out", tmp_path, "--run-name", "data")
    assert done.returncode == 0, done.stderr
    assert statuses(tmp_path / "data") == {"resnet18-ddp-w2-b2": "done", "resnet18-ddp-w2-b8": "out_of_data"}
    assert "9 images are fewer than one batch of 8 for each of 2 ranks" in done.stdout
    assert done.stdout.splitlines()[2].split()[:3] == ["resnet18-ddp-w2-b2", "done", "2"], "a whole epoch"
    assert "scaled" not in done.stdout
