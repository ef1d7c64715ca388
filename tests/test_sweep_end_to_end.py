"""From a sweep that was killed, interrupted and resumed to the tables that people publish."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from capturing import ROOT, environment, leftovers, metas, python, trace
from sweeping import CELLS, runs, start, statuses, wait_for_ranks

from commtrace import analyse, analyse_sweep
from commtrace.analysis.core.schema import Row, records
from commtrace.profiling.sweep import directory as sweep_dir


@pytest.fixture(scope="module")
def resumed_sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """A sweep, killed in its second cell, interrupted in its third, and resumed: its folder, its table, what was seen.

    Killed means SIGKILL, after which the very same command is given at once.
    """
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("sweeps") / "killed"
    seen: dict[str, Any] = {}
    with start(folder) as process:
        ranks = wait_for_ranks(folder, CELLS[1], 1)
        seen["launched"] = [*ranks, process.pid]
        process.kill()
    seen["after_kill"] = statuses(folder)
    with start(folder) as process:
        wait_for_ranks(folder / "set-aside" / f"{CELLS[1]}.1", ".", 1)  # moved there: the cell begins anew
        with start(folder) as second:
            seen["second"] = (*second.communicate(timeout=120), second.returncode)
        seen["orphans"] = [pid for pid in seen["launched"] if runs(pid)]
        seen["first_cell"] = (folder / CELLS[0] / "run.json").stat().st_mtime_ns
        ranks = wait_for_ranks(folder, CELLS[2], 2)
        process.send_signal(signal.SIGINT)
        seen["interrupted"] = (*process.communicate(timeout=120), process.returncode)
        seen["ranks_left"] = [pid for pid in ranks if runs(pid)]
    seen["after_interrupt"] = statuses(folder)
    done = python("-m", "commtrace", "sweep", "--resume", folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, seen


@pytest.fixture(scope="module")
def folder(resumed_sweep: tuple[Path, str, dict[str, Any]]) -> Path:
    return resumed_sweep[0]


@pytest.fixture(scope="module")
def epochs(folder: Path) -> dict[tuple[int, int], float]:
    """Epoch of every (workers, batch size) in ns, from the side files alone: the slowest rank, as a whole epoch."""
    found: dict[tuple[int, int], float] = {}
    for cell in CELLS:
        sides = [json.loads(path.read_text()) for path in (folder / cell).glob("*.meta.json")]
        times = [
            meta["epochs"][-1]["step_ns"] * meta["full_epoch_steps"] / meta["epochs"][-1]["steps"] for meta in sides
        ]
        found[len(sides), sides[0]["batch_size_per_rank"]] = max(times)
    return found


@pytest.mark.slow
def test_scaling_follows_from_the_side_files(folder: Path, epochs: dict[tuple[int, int], float]) -> None:
    rows = records(analyse_sweep(folder).scaling)
    assert [(row["workers"], row["batch_size_per_worker"]) for row in rows] == sorted(epochs, key=lambda key: key[::-1])
    for row in rows:
        workers, batch = row["workers"], row["batch_size_per_worker"]
        assert row["status"] == "done"
        assert row["epoch_ns"] == pytest.approx(epochs[workers, batch], abs=1)
        assert row["speedup_fixed_work"] == pytest.approx(epochs[1, batch] / epochs[workers, batch])
        assert row["speedup_scaled_work"] == pytest.approx(workers * epochs[1, batch] / epochs[workers, batch])


@pytest.mark.slow
def test_subtraction_stands_beside_what_was_measured(folder: Path, epochs: dict[tuple[int, int], float]) -> None:
    rows: list[Row] = records(analyse_sweep(folder).subtraction)
    assert [row["batch_size_per_worker"] for row in rows] == [2, 4]
    for row in rows:
        batch = row["batch_size_per_worker"]
        # Either epoch is rounded to ns, and the difference again.
        assert row["subtracted_comm_ns"] == pytest.approx(epochs[2, batch] - epochs[1, batch] / 2, abs=1.5)
        steps = records(analyse(folder / row["run"]).breakdown_steps)
        per_rank = {rank: [s for s in steps if s["rank"] == rank] for rank in (0, 1)}
        exposed = [sum(s["exposed_comm_ns"] for s in own) / len(own) * row["epoch_steps"] for own in per_rank.values()]
        assert min(exposed) <= row["exposed_comm_ns"] <= max(exposed)
        parts = row["exposed_wait_ns"] + row["exposed_transfer_ns"]
        assert 0 < parts <= row["exposed_comm_ns"]
        assert row["busbw_gb_per_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["scaling", "subtraction", "subtraction --mistake all"])
@pytest.mark.parametrize("layout", ["table", "latex"])
def test_the_commands_print_them(folder: Path, command: str, layout: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "commtrace", "table", *command.split(), "--format", layout, str(folder)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "resnet18" in done.stdout


# --- what the sweep left ---------------------------------------------------------------------------------------------


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
    assert err.splitlines()[-1].endswith(f"commtrace sweep --resume {folder}")
    assert "Traceback" not in err
    assert seen["ranks_left"] == []


@pytest.mark.slow
def test_second_sweep_on_the_same_directory_is_refused(resumed_sweep) -> None:
    out, err, code = resumed_sweep[2]["second"]
    assert (out, code) == ("", 1)
    assert "another sweep or lab works in it" in err


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
        assert run["command"][:2] == ["commtrace", "train"], "what a user can repeat by hand"


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
