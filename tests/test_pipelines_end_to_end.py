"""Real pipelines over gloo with a heavy stage: the schedule is named, and the stage that has more work."""

from __future__ import annotations

import pytest
from capturing import SCRIPTS, torchrun
from samples import with_slow

from commtrace import analyse
from commtrace.cli import main

pytest.importorskip("torch")
NAMES = {"Schedule1F1B": "1F1B", "ScheduleInterleaved1F1B": "interleaved 1F1B", "ScheduleGPipe": "GPipe"}


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
    assert set(table["microbatches"]) == {8}
    heavy = len(stages) // 2
    assert stages.loc[stages["work_frac"].idxmax(), "stage"] == heavy
    assert f"has stage {heavy}, which " in found.verdict
    assert main(["--no-cache", str(tmp_path)]) == 0
    screen = capsys.readouterr().out
    assert "move data" not in screen
    assert "GB/s" not in screen
