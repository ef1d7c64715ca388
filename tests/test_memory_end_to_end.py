"""Real training over gloo that records allocations: the rank that leaks is named, and what it keeps once is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from capturing import SCRIPTS, torchrun

from commtrace import Analysis, analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.show.memory import memory_screen

pytest.importorskip("torch")
KEPT, LEAKS, FILLS_ONCE, STEPS = 64 << 20, 1, 0, 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Analysis:
    folder: Path = tmp_path_factory.mktemp("growing")
    done = torchrun(2, SCRIPTS / "growing_memory.py", folder)
    assert done.returncode == 0, done.stderr
    return analyse(folder, details=True)


def test_the_leak_is_named_with_its_rank_and_region(trained):
    growing = [row for row in records(trained.allocations) if row["grows_bytes"] is not None]
    assert [(row["rank"], row["region"], row["operator"], row["grows_bytes"], row["steps"]) for row in growing] == [
        (LEAKS, "keep_history", "aten::zeros", KEPT, STEPS)
    ]
    assert trained.memory.set_index("rank")["grows_bytes"].to_dict() == {LEAKS: KEPT, FILLS_ONCE: 0}
    said = [line for line in memory_screen(trained).splitlines() if "grows" in line or "leak" in line]
    assert said[0].strip() == "rank 1 grows by 64 MiB per step: keep_history"
    assert not any("rank 0" in line for line in said)


def test_what_is_kept_is_held_at_the_peak(trained):
    kept = trained.allocations.query("region == 'keep_history'")
    assert dict(zip(kept["rank"], kept["size_bytes"], strict=True)) == {LEAKS: STEPS * KEPT, FILLS_ONCE: KEPT}
    assert set(kept["category"]) == {"unknown"}


def test_each_step_ends_with_so_much_more(trained):
    ends = trained.memory_steps.query("rank == @LEAKS").set_index("step")["end_allocated_bytes"]
    assert ends.diff().dropna().tolist() == [KEPT] * (STEPS - 1)
    assert trained.memory_steps.query("rank == @FILLS_ONCE")["end_allocated_bytes"].nunique() == 1


def test_gradients_and_activations_of_the_model_are_told(trained):
    """Weights of 256 x 512 and 512 x 8 and their biases, each rounded up by the allocator of the CPU to nothing."""
    parameters = 4 * (256 * 512 + 512 + 512 * 8 + 8)
    for row in records(trained.memory):
        assert row["gradients_bytes"] == parameters
        assert row["phase"] == "optimizer"  # Adam's temporaries come on top of all gradients
        assert row["before_the_trace_bytes"] is None


@pytest.mark.slow
@pytest.mark.parametrize(("how", "per"), [("marked", "step"), ("unmarked", "cycle")])
def test_a_leak_of_every_second_step_is_named_and_what_becomes_full_is_not(tmp_path, how, per):
    script = [sys.executable, str(SCRIPTS / "leaking_memory.py"), str(tmp_path), how]
    subprocess.run(script, check=True, capture_output=True, timeout=300)
    found = analyse(tmp_path, details=True, cache=False)
    growing = [row for row in records(found.allocations) if row["grows_bytes"] is not None]
    assert [(row["region"], row["grows_bytes"], row["grows_per"], row["steps"]) for row in growing] == [
        ("leaks", 2 << 20, per, 6)
    ]
    assert {row["category"] for row in records(found.allocations) if row["region"] == "leaks"} == {"unknown"}


@pytest.mark.slow
def test_checkpointing_saves_what_was_foreseen(tmp_path):
    peaks, found = {}, {}
    for how in ("plain", "checkpointed"):
        (tmp_path / how).mkdir()
        done = subprocess.run(
            [sys.executable, SCRIPTS / "checkpointed_layers.py", tmp_path / how, how],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found[how] = analyse(tmp_path / how, details=True)
        [peaks[how]] = found[how].memory["peak_allocated_bytes"].tolist()
    layers = found["plain"].table("checkpointing").set_index("region").loc["layers.*"]
    assert layers["saves_low_bytes"] == layers["saves_high_bytes"]
    assert layers["saves_low_bytes"] == pytest.approx(peaks["plain"] - peaks["checkpointed"], rel=0.01)
    assert layers["recompute_ns"] > 0
    assert "layers.*" in memory_screen(found["plain"]).partition("What checkpointing would save\n")[2].splitlines()[0]
    again = found["checkpointed"].table("checkpointing")
    assert (again["saves_high_bytes"] == 0).all()
