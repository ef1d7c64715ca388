"""From a sweep that was killed, interrupted and resumed to the tables that people publish."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from capturing import ROOT, environment
from sweeping import CELLS

from analysis import analyse, analyse_sweep
from analysis.schema import Row, records


@pytest.fixture(scope="module")
def folder(resumed_sweep: tuple[Path, str, dict[str, Any]]) -> Path:
    return resumed_sweep[0]


@pytest.fixture(scope="module")
def epochs(folder: Path) -> dict[tuple[int, int], float]:
    """Epoch of every (workers, batch size) in ns, from the side files alone: the slowest rank, as a whole epoch."""
    found: dict[tuple[int, int], float] = {}
    for cell in CELLS:
        metas = [json.loads(path.read_text()) for path in (folder / cell).glob("*.meta.json")]
        times = [
            meta["epochs"][-1]["step_ns"] * meta["full_epoch_steps"] / meta["epochs"][-1]["steps"] for meta in metas
        ]
        found[len(metas), metas[0]["batch_size_per_rank"]] = max(times)
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
        assert row["subtracted_comm_ns"] == pytest.approx(epochs[2, batch] - epochs[1, batch] / 2, abs=1)
        steps = records(analyse(folder / row["run"]).breakdown_steps)
        per_rank = {rank: [s for s in steps if s["rank"] == rank] for rank in (0, 1)}
        exposed = [sum(s["exposed_comm_ns"] for s in own) / len(own) * row["epoch_steps"] for own in per_rank.values()]
        assert min(exposed) <= row["exposed_comm_ns"] <= max(exposed)
        parts = row["exposed_wait_ns"] + row["exposed_transfer_ns"]
        assert 0 < parts <= row["exposed_comm_ns"]
        assert row["busbw_gb_per_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("command", [["scaling"], ["subtraction"], ["subtraction", "--mistake", "all"]], ids=" ".join)
@pytest.mark.parametrize("layout", ["table", "latex"])
def test_the_commands_print_them(folder: Path, command: list[str], layout: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "analysis", *command, "--format", layout, str(folder)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "resnet18" in done.stdout
