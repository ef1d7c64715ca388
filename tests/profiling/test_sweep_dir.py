import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from capturing import ROOT

from commtrace.profiling.errors import RunDirError
from commtrace.profiling.sweep import directory as sweep_dir
from commtrace.profiling.sweep import grid
from commtrace.profiling.sweep.directory import SweepFile
from commtrace.profiling.sweep.grid import SweepConfig


def content(**changes) -> SweepFile:
    config = SweepConfig(batch_size=(2,))
    return replace(SweepFile(1, "mine", "2026-01-01T00:00:00+00:00", ["x"], config, grid.cells(config)), **changes)


def test_what_is_written_is_read(tmp_path) -> None:
    cells = [replace(one, status="failed", reason="bad luck", dur_s=1.5) for one in content().cells]
    sweep_dir.write_sweep(tmp_path, content(cells=cells))
    assert sweep_dir.read(tmp_path) == content(cells=cells)


def test_file_has_the_keys_that_readers_depend_on(tmp_path) -> None:
    sweep_dir.write_sweep(tmp_path, content())
    found = json.loads((tmp_path / "sweep.json").read_text())
    assert found.keys() == {"schema_version", "sweep", "created_utc", "command", "config", "cells"}
    assert found["cells"][0].items() >= {
        ("run", "resnet18-ddp-w1-b2"),
        ("model", "resnet18"),
        ("parallel", "ddp"),
        ("workers", 1),
        ("batch_size_per_rank", 2),
        ("status", "open"),
        ("reason", None),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected what a sweep writes: Input data was truncated"),
        ("[]", "expected what a sweep writes: Expected `object`"),
        ('{"schema_version": 1}', "missing required field"),
        (json.dumps({"schema_version": "x"}), "Expected `int`, got `str`"),
    ],
)
def test_damaged_file_is_said(tmp_path, text, message) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(RunDirError, match=rf"sweep.json: .*{message}.*; use another --run-name"):
        sweep_dir.read(tmp_path)


def test_file_of_another_version_is_refused(tmp_path) -> None:
    sweep_dir.write_sweep(tmp_path, content(schema_version=2))
    with pytest.raises(RunDirError, match="expected schema_version 1, found 2"):
        sweep_dir.read(tmp_path)


def test_directory_of_something_else_is_refused(tmp_path) -> None:
    assert sweep_dir.read(tmp_path / "new") is None
    (tmp_path / ".lock").touch()
    (tmp_path / ".0123abcd-0123456789abcdef.partial").touch()
    assert sweep_dir.read(tmp_path) is None
    (tmp_path / "run.json").touch()
    with pytest.raises(RunDirError, match=r"expected a new or empty directory, or a sweep's .*found run\.json"):
        sweep_dir.read(tmp_path)


def test_two_at_once_are_refused(tmp_path) -> None:
    with (
        sweep_dir.locked(tmp_path, print),
        pytest.raises(RunDirError, match=rf"another sweep or lab works in it \(process {os.getpid()}\)"),
        sweep_dir.locked(tmp_path, print),
    ):
        pass
    with sweep_dir.locked(tmp_path, print):
        pass


@pytest.mark.slow
def test_processes_of_a_killed_sweep_are_waited_for(tmp_path) -> None:
    """They hold its lock. That is no second sweep, and it does not last."""
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom commtrace.profiling.sweep import directory as sweep_dir\n"
        f"with sweep_dir.locked(Path({str(tmp_path)!r}), print) as lock:\n"
        "    if os.fork():\n        os.kill(os.getpid(), 9)\n    time.sleep(1.5)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)  # a pipe would wait for the child too
    assert killed.returncode == -9
    with (tmp_path / ".lock").open() as held, pytest.raises(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    said = []
    with sweep_dir.locked(tmp_path, said.append):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
    assert len(said) == 1
    assert "waiting for processes of a command that was killed" in said[0]


def test_death_between_write_and_rename_leaves_the_old_file(tmp_path) -> None:
    code = (
        "import os\nfrom dataclasses import replace\nfrom pathlib import Path\n"
        "from commtrace.profiling.sweep import directory as sweep_dir\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "os.replace = lambda *paths, **folders: os.kill(os.getpid(), 9)\n"
        "with sweep_dir.locked(folder, print):\n"
        "    sweep_dir.write_sweep(folder, replace(sweep_dir.read(folder), sweep='new'))\n"
    )
    sweep_dir.write_sweep(tmp_path, content())
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    assert len(list(tmp_path.glob(".*.partial"))) == 1
    with sweep_dir.locked(tmp_path, print):
        assert sweep_dir.read(tmp_path) == content()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "sweep.json"]


def test_what_is_in_a_cells_place_is_moved_and_never_deleted(tmp_path) -> None:
    assert sweep_dir.set_aside(tmp_path, "cell") is None
    (tmp_path / "cell").mkdir()
    assert sweep_dir.set_aside(tmp_path, "cell") is None, "an empty directory is as good as none"
    for number in (1, 2):
        (tmp_path / "cell").mkdir(exist_ok=True)
        (tmp_path / "cell" / "run.json").write_text(str(number))
        assert sweep_dir.set_aside(tmp_path, "cell") == tmp_path / "set-aside" / f"cell.{number}"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cell").symlink_to(tmp_path / "elsewhere")
    assert sweep_dir.set_aside(tmp_path, "cell").is_symlink()
    assert (tmp_path / "elsewhere").is_dir()
    assert [(tmp_path / "set-aside" / f"cell.{n}" / "run.json").read_text() for n in (1, 2)] == ["1", "2"]


def cell(run_dir: Path, **changes) -> Path:
    """A complete run directory of two ranks, with `changes` to rank 1."""
    run_dir.mkdir()
    (run_dir / "run.json").write_text(json.dumps({"world_size": 2}))
    for rank in (0, 1):
        trace = f"host_{rank}.0000.pt.trace.json.gz"
        (run_dir / trace).touch()
        meta = {"rank": rank, "complete": True, "reason": None, "epochs": [{"phase": "timed"}], "traces": [trace]}
        (run_dir / f"host_{rank}.meta.json").write_text(json.dumps(meta | (changes if rank else {})))
    return run_dir


def test_complete_side_files(tmp_path) -> None:
    assert sweep_dir.missing(cell(tmp_path / "run")) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"complete": False, "reason": "SIGTERM"}, "rank 1 is not complete: SIGTERM"),
        ({"epochs": [{"phase": "warmup"}]}, "rank 1 has no timed epoch"),
        ({"traces": ["gone.gz"]}, "the trace gone.gz is not there"),
        ({"rank": 0}, "expected the side files of 2 ranks, found 2"),
    ],
)
def test_incomplete_side_files_are_said(tmp_path, changes, message) -> None:
    assert message in str(sweep_dir.missing(cell(tmp_path / "run", **changes)))


def test_missing_and_damaged_side_files_are_said(tmp_path) -> None:
    assert "cannot be read" in str(sweep_dir.missing(tmp_path / "none"))
    run_dir = cell(tmp_path / "run")
    (run_dir / "host_1.meta.json").write_text("{")
    assert "cannot be read" in str(sweep_dir.missing(run_dir))
    (run_dir / "host_1.meta.json").write_text("[]")
    assert "is not a JSON object" in str(sweep_dir.missing(run_dir))
    (run_dir / "host_1.meta.json").unlink()
    assert "expected the side files of 2 ranks, found 1" in str(sweep_dir.missing(run_dir))
