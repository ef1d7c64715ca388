"""Sweeps that train: killed and resumed, out of memory and out of data. Gloo on CPU, tiny images."""

import json

import pytest
from capturing import leftovers, metas, python, trace
from sweeping import CELLS, TINY, statuses

from profiling import sweep_dir


@pytest.mark.slow
def test_killed_sweep_is_resumed_by_the_same_command(resumed_sweep) -> None:
    _, _, seen = resumed_sweep
    assert list(seen["after_kill"].values()) == ["done", "open", "open", "open"]
    assert seen["orphans"] == []
    assert list(seen["after_interrupt"].values()) == ["done", "done", "open", "open"]


@pytest.mark.slow
def test_interrupted_sweep_says_how_to_go_on_and_leaves_nobody(resumed_sweep) -> None:
    folder, _, seen = resumed_sweep
    out, err, code = seen["interrupted"]
    assert (out, code) == ("", 130)
    assert err.splitlines()[-1].endswith(f"python -m profiling sweep --resume {folder}")
    assert "Traceback" not in err
    assert seen["ranks_left"] == []


@pytest.mark.slow
def test_second_sweep_on_the_same_directory_is_refused(resumed_sweep) -> None:
    out, err, code = resumed_sweep[2]["second"]
    assert (out, code) == ("", 1)
    assert "another sweep works in it" in err


@pytest.mark.slow
def test_resumed_sweep_ends_in_the_table_of_the_whole_grid(resumed_sweep) -> None:
    folder, out, seen = resumed_sweep
    rows = [line.split() for line in out.splitlines()[2:6]]
    full = {(1, 2): 25000, (1, 4): 12500, (2, 2): 12500, (2, 4): 6250}
    assert [row[:5] for row in rows] == [
        [f"resnet18-ddp-w{workers}-b{batch}", "done", "3", "of", str(steps)] for (workers, batch), steps in full.items()
    ]
    assert (folder / CELLS[0] / "run.json").stat().st_mtime_ns == seen["first_cell"], "what was done is not run again"
    assert sorted(path.name for path in (folder / "set-aside").iterdir()) == [f"{CELLS[1]}.1", f"{CELLS[2]}.1"]
    for run in CELLS:
        assert sweep_dir.missing(folder / run) is None
        assert leftovers(folder / run) == []


@pytest.mark.slow
def test_cells_have_what_readers_need(resumed_sweep) -> None:
    folder = resumed_sweep[0]
    for workers in (1, 2):
        found = metas(folder / f"resnet18-ddp-w{workers}-b4")
        assert sorted(found) == list(range(workers))
        for meta in found.values():
            assert (meta["batch_size_per_rank"], meta["dataset_samples"]) == (4, 50000)
            assert meta["full_epoch_steps"] == 50000 // workers // 4
            assert [(e["epoch"], e["phase"], e["steps"], e["samples"]) for e in meta["epochs"]] == [
                (0, "warmup", 3, 12),
                (1, "timed", 3, 12),
            ]
            assert all(e["dur_ns"] == e["data_ns"] + e["step_ns"] and e["step_ns"] > 0 for e in meta["epochs"])
        run = json.loads((folder / f"resnet18-ddp-w{workers}-b4" / "run.json").read_text())
        assert (run["world_size"], run["config"]["parallel"], run["config"]["model"]) == (workers, "ddp", "resnet18")
        assert run["command"][:4] == ["python", "-m", "profiling", "train"], "what a user can repeat by hand"


@pytest.mark.slow
def test_profiled_steps_come_after_the_timed_epoch(resumed_sweep) -> None:
    folder = resumed_sweep[0]
    for run in CELLS:
        for meta in metas(folder / run).values():
            timed = meta["epochs"][-1]
            end_ns = timed["start_unix_ns"] + timed["dur_ns"]
            assert [step["phase"] for step in meta["steps"]] == ["idle", "warmup", "active"]
            assert meta["steps"][0]["start_unix_ns"] >= end_ns
            content = trace(folder / run / meta["traces"][0])
            base_ns = content["baseTimeNanoseconds"]
            starts = [event["ts"] for event in content["traceEvents"] if event.get("ph") == "X" and "dur" in event]
            assert base_ns + min(starts) * 1000 > end_ns


@pytest.mark.slow
def test_out_of_memory_by_a_real_limit(tmp_path) -> None:
    options = [
        "--parallel",
        "single",
        "--workers",
        "1",
        "--batch-size",
        "256",
        "--batch-size-until-oom",
        "--steps-per-epoch",
        "1",
    ]
    done = python(
        *("-m", "profiling", "sweep", *TINY, *options, "--memory-limit", "1GB"),
        *("--out", tmp_path, "--run-name", "memory"),
    )
    assert done.returncode == 0, done.stderr
    fits, last = "resnet18-single-w1-b256", "resnet18-single-w1-b1024"
    assert statuses(tmp_path / "memory") == {fits: "done", last: "out_of_memory"}
    reason = next(line for line in done.stdout.splitlines() if line.startswith(f"{last}: "))
    assert "out of memory with --batch-size 1024: " in reason
    assert "you tried to allocate" in reason


@pytest.mark.slow
def test_out_of_data_is_another_thing(tmp_path) -> None:
    options = ["--workers", "2", "--batch-size", "2", "--batch-size-until-oom", "--dataset-samples", "9"]
    done = python("-m", "profiling", "sweep", *TINY, *options, "--out", tmp_path, "--run-name", "data")
    assert done.returncode == 0, done.stderr
    assert statuses(tmp_path / "data") == {"resnet18-ddp-w2-b2": "done", "resnet18-ddp-w2-b8": "out_of_data"}
    assert "9 images are less than one batch of 8 on each of 2 ranks: the batch would be the data set" in done.stdout
    assert done.stdout.splitlines()[2].split()[:3] == ["resnet18-ddp-w2-b2", "done", "2"], "a whole epoch"
    assert "scaled" not in done.stdout
