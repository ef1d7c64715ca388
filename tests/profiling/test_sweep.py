"""Which cells a sweep runs, and in what state it leaves them: with cells that take no time."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from commtrace.cli import main
from commtrace.profiling.errors import DataError, DeviceError, RunDirError, UsageError
from commtrace.profiling.sweep import bench as sweep
from commtrace.profiling.sweep import directory as sweep_dir
from commtrace.profiling.sweep.grid import Cell
from commtrace.profiling.sweep.progress import remaining, table

MEMORY_SAMPLES = 100  # what fits, in these tests


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


class Cells:
    """Stands in for training: remembers what was run, and leaves a complete run directory."""

    def __init__(self, **fates: str) -> None:
        self.ran: list[str] = []
        self.fates = fates  # by the last part of the name, as in b32="failed"

    def __call__(self, one: Cell, arguments, folder: Path, lock: int) -> Cell:
        self.ran.append(one.run)
        fate = self.fates.get(one.run.rpartition("-")[2], "done")
        if fate == "interrupt":
            signal.raise_signal(signal.SIGTERM)
        if one.batch_size_per_rank > MEMORY_SAMPLES:
            return replace(one, status="out_of_memory", reason="out of memory", dur_s=1.0)
        if fate == "done":
            complete(folder / one.run, one.workers)
        return replace(one, status=fate, reason=None if fate == "done" else f"it {fate}", dur_s=2.0)


def complete(run_dir: Path, workers: int) -> None:
    run_dir.mkdir()
    (run_dir / "run.json").write_text(json.dumps({"world_size": workers}))
    for rank in range(workers):
        epoch = {"phase": "timed", "steps": 4, "step_ns": 10**9 * (rank + 1), "data_ns": 10**8}
        meta = {"rank": rank, "complete": True, "traces": [], "epochs": [epoch], "full_epoch_steps": 8}
        (run_dir / f"host_{rank}.meta.json").write_text(json.dumps(meta))


def request(folder: Path, *, resume: bool = False, **given) -> sweep.Request:
    return sweep.Request(folder, {"device": "cpu", **given}, ["sweep"], resume=resume)


def statuses(folder: Path) -> dict[str, str]:
    found = sweep_dir.read(folder)
    assert found is not None
    return {one.run.removeprefix("resnet18-ddp-"): one.status for one in found.cells}


def test_every_cell_once_and_nothing_again(tmp_path, capsys) -> None:
    cells = Cells()
    assert sweep.run_sweep(request(tmp_path), run_cell=cells) == 0
    first = capsys.readouterr().out
    assert cells.ran == [f"resnet18-ddp-w{workers}-b{batch}" for workers in (1, 2) for batch in (8, 32)]
    again = Cells()
    assert sweep.run_sweep(request(tmp_path), run_cell=again) == 0
    assert again.ran == []
    assert capsys.readouterr().out == first


def test_table_has_the_slowest_rank_scaled_to_the_data_set(tmp_path, capsys) -> None:
    sweep.run_sweep(request(tmp_path, batch_size=(8,)), run_cell=Cells())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "cell"
    assert lines[2].split() == ["resnet18-ddp-w1-b8", "done", "4", "of", "8", "2.000", "0.200"]
    assert lines[3].split() == ["resnet18-ddp-w2-b8", "done", "4", "of", "8", "4.000", "0.200"]
    assert lines[4] == "epoch: scaled from its timed steps to the whole data set"
    assert lines[-2:] == [
        f"  scaling:      commtrace table scaling {tmp_path}",
        f"  subtraction:  commtrace table subtraction {tmp_path}",
    ]


def test_progress_says_what_is_done_and_left(tmp_path, capsys) -> None:
    sweep.run_sweep(request(tmp_path, workers=(1,)), run_cell=Cells())
    assert capsys.readouterr().err.splitlines() == [
        "cell 1/2  resnet18-ddp-w1-b8; 2 left",
        "resnet18-ddp-w1-b8: done after 2.0 s",
        "cell 2/2  resnet18-ddp-w1-b32; 1 left, about 0:00:02",
        "resnet18-ddp-w1-b32: done after 2.0 s",
    ]


def test_exhausted_memory_ends_the_cell_and_larger_ones_but_not_the_sweep(tmp_path, capsys) -> None:
    cells = Cells()
    assert sweep.run_sweep(request(tmp_path, batch_size=(4, 101, 400)), run_cell=cells) == 0
    expected = {"b4": "done", "b101": "out_of_memory", "b400": "skipped"}
    assert statuses(tmp_path) == {f"w{w}-{batch}": status for w in (1, 2) for batch, status in expected.items()}
    assert [run for run in cells.ran if run.endswith("b400")] == []
    assert "resnet18-ddp-w1-b400: 101 per rank was out of memory already" in capsys.readouterr().out


def test_batches_grow_until_something_is_exhausted(tmp_path) -> None:
    grid = {"batch_size": (2, 8), "workers": (1,), "batch_size_until_oom": True}
    assert sweep.run_sweep(request(tmp_path, **grid), run_cell=Cells(b32="out_of_data")) == 0
    assert statuses(tmp_path) == {"w1-b2": "done", "w1-b8": "done", "w1-b32": "out_of_data"}
    assert sweep.run_sweep(request(tmp_path / "2", **grid), run_cell=Cells()) == 0
    assert list(statuses(tmp_path / "2").items())[-2:] == [("w1-b32", "done"), ("w1-b128", "out_of_memory")]


def test_failed_cells_are_said_and_run_again(tmp_path, capsys) -> None:
    assert sweep.run_sweep(request(tmp_path, workers=(1,)), run_cell=Cells(b8="failed")) == 1
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == f"error: 1 of 2 cells failed; see {tmp_path}/resnet18-ddp-w1-b8.log"
    assert "resnet18-ddp-w1-b8: it failed" in out.splitlines()
    again = Cells()
    assert sweep.run_sweep(request(tmp_path, workers=(1,)), run_cell=again) == 0
    assert again.ran == ["resnet18-ddp-w1-b8"]


def test_interrupted_and_resumed_ends_in_the_same_table(tmp_path, capsys) -> None:
    assert sweep.run_sweep(request(tmp_path / "a"), run_cell=Cells()) == 0
    whole = capsys.readouterr().out
    assert sweep.run_sweep(request(tmp_path / "b"), run_cell=Cells(b32="interrupt")) == 143
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].endswith(f"to go on: commtrace sweep --resume {tmp_path / 'b'}")
    assert statuses(tmp_path / "b") == {"w1-b8": "done", "w1-b32": "open", "w2-b8": "open", "w2-b32": "open"}
    rest = Cells()
    assert sweep.run_sweep(request(tmp_path / "b", resume=True), run_cell=rest) == 0
    assert "resnet18-ddp-w1-b8" not in rest.ran
    assert capsys.readouterr().out == whole.replace(str(tmp_path / "a"), str(tmp_path / "b"))


def test_stopped_before_anything_is_written(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sweep_dir, "read", lambda folder: signal.raise_signal(signal.SIGINT))
    assert sweep.run_sweep(request(tmp_path / "new"), run_cell=Cells()) == 130
    assert capsys.readouterr().err == "stopped by SIGINT before anything was written\n"
    assert not (tmp_path / "new").exists()


def test_signals_are_as_before_afterwards(tmp_path) -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    sweep.run_sweep(request(tmp_path, workers=(1,)), run_cell=Cells(b32="interrupt"))
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_half_written_cell_is_set_aside(tmp_path, capsys) -> None:
    half = tmp_path / "resnet18-ddp-w1-b8"
    sweep.run_sweep(request(tmp_path, workers=(1,)), run_cell=Cells(b8="interrupt"))
    half.mkdir()
    (half / "host_0.meta.json").write_text('{"complete": false}')
    sweep.run_sweep(request(tmp_path, workers=(1,)), run_cell=Cells())
    assert statuses(tmp_path)["w1-b8"] == "done"
    aside = tmp_path / "set-aside" / "resnet18-ddp-w1-b8.1"
    assert (aside / "host_0.meta.json").read_text() == '{"complete": false}'
    assert f"its old files are now in {aside}" in capsys.readouterr().err


def test_cell_whose_files_are_gone_is_run_again(tmp_path, capsys) -> None:
    sweep.run_sweep(request(tmp_path), run_cell=Cells())
    (tmp_path / "resnet18-ddp-w2-b8" / "host_1.meta.json").unlink()
    again = Cells()
    sweep.run_sweep(request(tmp_path), run_cell=again)
    assert again.ran == ["resnet18-ddp-w2-b8"]
    assert "was done, but" in capsys.readouterr().err


def test_grid_may_grow_and_what_is_not_asked_for_stays(tmp_path) -> None:
    sweep.run_sweep(request(tmp_path, workers=(1,), batch_size=(2,)), run_cell=Cells(b2="interrupt"))
    wider = Cells()
    sweep.run_sweep(request(tmp_path, workers=(1,), batch_size=(4,)), run_cell=wider)
    assert wider.ran == ["resnet18-ddp-w1-b4"]
    assert statuses(tmp_path) == {"w1-b2": "open", "w1-b4": "done"}
    rest = Cells()
    sweep.run_sweep(sweep.Request(tmp_path, {}, ["sweep"], resume=True), run_cell=rest)
    assert rest.ran == ["resnet18-ddp-w1-b2"]


def test_other_options_than_the_recorded_are_refused(tmp_path) -> None:
    sweep.run_sweep(request(tmp_path, seed=1), run_cell=Cells())
    before = (tmp_path / "sweep.json").read_bytes()
    with pytest.raises(UsageError, match="were made with --steps-per-epoch 4, now 2; --seed 1, now 0"):
        sweep.run_sweep(request(tmp_path, steps_per_epoch=2), run_cell=Cells())
    with pytest.raises(UsageError, match="--seed 1, now 3"):
        sweep.run_sweep(request(tmp_path, resume=True, seed=3), run_cell=Cells())
    assert (tmp_path / "sweep.json").read_bytes() == before
    assert sweep.run_sweep(request(tmp_path, resume=True), run_cell=Cells()) == 0


def test_what_is_wrong_with_every_cell_is_an_error_and_leaves_nothing(tmp_path, monkeypatch) -> None:
    with pytest.raises(UsageError, match="CIFAR-10 images are 32 pixels wide"):
        sweep.run_sweep(request(tmp_path, data="cifar10", image_size=8), run_cell=Cells())
    with pytest.raises(DataError, match="CIFAR-10 is not there"):
        sweep.run_sweep(request(tmp_path, data="cifar10", data_root=str(tmp_path)), run_cell=Cells())
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(DeviceError, match="finds no GPU here"):
        sweep.run_sweep(request(tmp_path, device="cuda"), run_cell=Cells())
    assert list(tmp_path.iterdir()) == []


def test_more_workers_than_gpus_are_skipped(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    cells = Cells()
    assert sweep.run_sweep(request(tmp_path, device="cuda", workers=(2, 4), batch_size=(8,)), run_cell=cells) == 0
    assert statuses(tmp_path) == {"w2-b8": "done", "w4-b8": "skipped"}
    assert cells.ran == ["resnet18-ddp-w2-b8"]


def test_remaining_time_is_a_line_through_what_took_how_long() -> None:
    def one(batch: int, dur_s: float | None = None) -> Cell:
        return Cell("x", "resnet18", "ddp", 2, batch, "done" if dur_s else "open", None, dur_s)

    assert remaining([one(4)], [one(4)]) is None
    assert remaining([one(4), one(8)], [one(2, 10.0), one(4)]) == "0:00:20"
    assert remaining([one(100)], [one(10, 15.0), one(20, 20.0)]) == "0:01:00"
    assert remaining([one(1)], [one(10, 20.0), one(40, 5.0)]) == "0:00:24"
    assert remaining([one(8000)], [one(10, 15.0), one(20, 20.0)]) == "1:06:50"


def test_table_survives_files_that_vanish(tmp_path) -> None:
    done = Cell("gone", "resnet18", "ddp", 1, 8, "done")
    assert table([done], tmp_path).splitlines()[2].split() == ["gone", "done", "-", "-", "-"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume", "none"], "--resume none: expected a sweep's directory, found no sweep.json"),
        (["--resume", "x", "--run-name", "y"], "--resume x: names the directory already"),
        (["--run-name", ".."], "--run-name ..: expected one folder name"),
        (["--run-name", "a/b"], "--run-name a/b: expected one folder name"),
        (["--model", "resnet19"], "--model: expected one of resnet18"),
        (["--memory-limit", "much"], "--memory-limit much: expected a size"),
        (["--config", "none.toml"], "--config none.toml: cannot be read"),
    ],
)
def test_usage_errors_are_one_line(options, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_command_line_goes_before_the_file(tmp_path, monkeypatch) -> None:
    seen: list[sweep.Request] = []
    monkeypatch.setattr(sweep, "run_sweep", lambda found: seen.append(found) or 0)
    (tmp_path / "sweep.toml").write_text('batch-size = [2, 4]\nworkers = 3\nrun-name = "mine"\nout = "there"')
    assert main(["sweep", "--config", str(tmp_path / "sweep.toml"), "--workers", "1,2", "--seed", "0"]) == 0
    (found,) = seen
    assert found.folder == Path("there/mine")
    assert found.given == {"batch_size": (2, 4), "workers": (1, 2), "seed": 0, "run_name": "mine", "out": "there"}
    assert found.command[:2] == ["commtrace", "sweep"]


def test_inside_torchrun_it_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setenv("RANK", "0")
    assert main(["sweep"]) == 2
    assert "run it without torchrun" in capsys.readouterr().err


def test_help_has_examples_and_modes(capsys) -> None:
    assert main(["sweep", "--help"]) == 0
    out = capsys.readouterr().out
    assert "commtrace sweep --resume traces/grid" in out
    assert "pipeline" in out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: would be refused in a read-only folder")
def test_read_only_folder_is_said(tmp_path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunDirError, match="cannot be written"):
        sweep.run_sweep(request(tmp_path / "new"), run_cell=Cells())
