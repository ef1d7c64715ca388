"""Real pipelines over gloo with a heavy stage: the schedule is named, and the stage that has more work."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from capturing import SCRIPTS, torchrun
from samples import with_slow
from torch_schedules import Drawn, parts

from commtrace import analyse
from commtrace.cli import main

pytest.importorskip("torch")
MICROBATCHES = 8
NAMES = {"Schedule1F1B": "1F1B", "ScheduleInterleaved1F1B": "interleaved 1F1B", "ScheduleGPipe": "GPipe"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks"),
    with_slow(
        [("ScheduleInterleaved1F1B", 2)],
        [("Schedule1F1B", 2), ("Schedule1F1B", 4), ("ScheduleInterleaved1F1B", 4), ("ScheduleGPipe", 2)],
    ),
)
def test_schedule_and_heavy_stage_are_named(name, ranks, tmp_path, capsys):
    done = torchrun(ranks, SCRIPTS / "pipelined.py", tmp_path, name)
    assert done.returncode == 0, done.stderr
    found = analyse(tmp_path)
    table, stages = found.pipeline, found.pipeline_stages
    assert set(table["schedule"]) == {NAMES[name]}
    assert set(table["microbatches"]) == {MICROBATCHES}
    heavy = len(stages) // 2
    assert stages.loc[stages["work_frac"].idxmax(), "stage"] == heavy
    assert f"has stage {heavy}, which " in found.verdict
    assert main(["--no-cache", str(tmp_path)]) == 0
    screen = capsys.readouterr().out
    assert "move data" not in screen
    assert "GB/s" not in screen
    if name == "Schedule1F1B":
        imbalance = table.pivot(index="step", columns="rank", values="imbalance_ns") / 1e3
        true_us = {step: _imbalance_us(takes) for step, takes in _layers_of_steps(tmp_path, ranks).items()}
        for step, of_ranks in true_us.items():
            assert imbalance.loc[step].to_dict() == pytest.approx(of_ranks, rel=0.1, abs=0.02 * sum(of_ranks.values()))


def _layers_of_steps(folder: Path, ranks: int) -> dict[int, dict[tuple[str, int], float]]:
    """What the layers of each stage slept in each step, forward (F) and backward (B), in us: from the traces."""
    found: dict[int, dict[tuple[str, int], float]] = defaultdict(lambda: defaultdict(float))
    for rank in range(ranks):
        events = json.loads((folder / f"rank{rank}.json").read_bytes())["traceEvents"]
        steps = {
            int(event["name"].partition("#")[2]): (event["ts"], event["ts"] + event["dur"])
            for event in events
            if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
        }
        for event in events:
            kind = {"Sleep": "F", "SleepBackward": "B"}.get(event.get("name"))
            if kind is not None and event["cat"] == "cpu_op":
                step = next(step for step, (begin, end) in steps.items() if begin <= event["ts"] < end)
                found[step][kind, rank] += event["dur"]
    return found


def _imbalance_us(slept: dict[tuple[str, int], float]) -> dict[int, float]:
    """What the imbalance costs each rank of a 1F1B whose microbatches take equal shares of what its stages took."""
    ranks = 1 + max(rank for _, rank in slept)
    takes = {(*key, number): us / MICROBATCHES for key, us in slept.items() for number in range(MICROBATCHES)}
    made = Drawn("1F1B", ranks, 1, MICROBATCHES, takes, defaultdict(float), None)
    return {rank: own["imbalance"] for rank, own in parts(made).items()}
