"""Part of the steps: their rows are those of the whole run, nothing else is there, and what is left out is said."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from rows_of_steps import differences_of_step

from commtrace.analysis.errors import NoSuchSteps, TooLarge
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import USUAL_SIZES, ReadSizes
from commtrace.analysis.results.opening import analyse, analyse_with
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
RESNET = ROOT / "traces" / "resnet18-ddp-w2"
ONE_CLOCK = [
    RESNET,
    *(DATA / name for name in ("gloo-collectives", "gloo-training", "host-bound", "nccl-pipeline", "nccl-straggler")),
]
AT_ONCE = ("at once", USUAL_SIZES)
BY_RANK = ("rank by rank", ReadSizes(ranks_bytes=0))


@pytest.mark.quick_cases("host-bound-at once")
@pytest.mark.parametrize("sizes", [AT_ONCE[1], BY_RANK[1]], ids=[AT_ONCE[0], BY_RANK[0]])
@pytest.mark.parametrize("run", ONE_CLOCK, ids=lambda run: run.name)
def test_rows_of_a_step_are_those_of_the_whole_run(run, sizes):
    options = {"details": True, "workers": 1, "sizes": sizes}
    whole = analyse_with(run, ReadOptions(**options))
    for step in whole.run.steps:
        part = analyse_with(run, ReadOptions(**options, steps=(step,)))
        assert part.run.steps == [step]
        assert differences_of_step(whole, part, step) == []


@pytest.mark.slow
def test_several_steps_are_the_sum_of_each(tmp_path):
    whole = analyse(DATA / "nccl-straggler", details=True)
    first, second, third = whole.run.steps
    part = analyse(DATA / "nccl-straggler", details=True, steps=f"{first}-{second}")
    assert part.run.steps == [first, second]
    assert differences_of_step(whole, part, first) == differences_of_step(whole, part, second) == []
    assert third not in part.run.steps
    kernels = part.run.activities[part.run.activities["step"].isin([first, second])]
    assert part.kernels["calls"].sum() == (kernels["kind"] != "memory").sum()


def test_a_step_from_the_middle_is_not_called_cut():
    run = DATA / "host-bound"
    first, middle, _ = analyse(run).run.steps
    part = analyse(run, steps=[first, middle])
    assert part.steps["left_out"].isna().all()
    # Of this step the whole run knows when the next one began, and so does the part.
    whole = analyse(run).breakdown_steps
    assert part.breakdown_steps["window_ns"].tolist() == whole[whole["step"] < middle + 1]["window_ns"].tolist()
    assert part.run.recorded_steps == {(0, 0): tuple(analyse(run).run.steps)}


def test_steps_that_are_cut_away_leave_their_memory_to_other_files():
    memory_gb = 0.0015  # 450 kB a rank, of which a step is half
    with pytest.raises(TooLarge, match="with all files before it"):
        analyse(DATA / "nccl-straggler", details=False, workers=1, memory_gb=memory_gb)
    last = analyse(DATA / "nccl-straggler", details=False, workers=1, memory_gb=memory_gb, last=1)
    assert len(last.breakdown) == 4


@pytest.mark.slow
def test_what_a_later_step_issues_does_not_look_like_a_hang():
    whole = analyse(DATA / "nccl-hang")
    assert len(whole.hangs)
    first, last = whole.run.steps[0], whole.run.steps[-1]
    assert not len(analyse(DATA / "nccl-hang", steps=[first]).hangs)
    assert len(analyse(DATA / "nccl-hang", steps=[last]).hangs)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [AT_ONCE[1], BY_RANK[1]], ids=[AT_ONCE[0], BY_RANK[0]])
def test_the_last_steps_are_those_that_all_ranks_have(tmp_path, sizes):
    run = tmp_path / "run"
    shutil.copytree(DATA / "nccl-straggler", run)
    steps = analyse(run).run.steps
    last = analyse_with(run, ReadOptions(last=2, workers=1, sizes=sizes)).run
    assert last.steps == steps[-2:]
    assert any(note.startswith(f"read step {steps[-2]}-{steps[-1]} of ") for note in last.notes)

    path = sorted(run.glob("*.pt.trace.json.gz"))[0]
    trace = json.loads(gzip.decompress(path.read_bytes()))
    mark = f"ProfilerStep#{steps[-1]}"
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("name") != mark]
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    found = analyse_with(run, ReadOptions(last=1, workers=1, sizes=sizes))
    assert found.run.steps == steps[-2:-1]
    assert set(found.breakdown_steps["rank"]) == set(found.run.ranks)
    lacking = analyse_with(run, ReadOptions(steps=(steps[-1],), workers=1, sizes=sizes)).run
    assert any(note.endswith(f": no step {steps[-1]} in the trace") for note in lacking.notes)


@pytest.mark.slow
def test_side_by_side_with_part_of_the_ranks():
    part = analyse(DATA / "nccl-straggler", ranks="0-1", last=1)
    whole = analyse(DATA / "nccl-straggler", ranks="0-1")
    assert part.run.ranks == [0, 1]
    assert differences_of_step(whole, part, whole.run.steps[-1]) == []


@pytest.mark.slow
def test_the_cache_holds_whole_files(tmp_path):
    sizes = ReadSizes(cache_bytes=0)
    options = {"cache": str(tmp_path), "workers": 1, "sizes": sizes}
    analyse_with(RESNET, ReadOptions(**options, last=1))
    assert list(tmp_path.iterdir())
    assert analyse_with(RESNET, ReadOptions(**options)).run.steps == analyse(RESNET).run.steps


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--only-steps", "99"], 1, "no trace has step 99; there are 1-3"),
        (["--only-steps", "1,3"], 1, "step 2 would be left out between the chosen ones; give one range, such as 1-3"),
        (["--only-steps", "5-2"], 2, "is not a number or a range"),
        (["--last", "9"], 1, "all ranks together have 3 steps, 1-3; not 9"),
        (["--last", "0"], 2, "Invalid value for --last: 0 is less than 1"),
        (["--last", "1", "--only-steps", "2"], 2, "cannot be given together with"),
    ],
)
def test_what_is_not_there_is_an_error(capsys, options, code, told):
    assert main(["breakdown", *options, str(DATA / "nccl-straggler")]) == code
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_run_without_steps_says_so(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(RESNET, run)
    for path in run.glob("*.pt.trace.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [e for e in trace["traceEvents"] if "ProfilerStep#" not in str(e.get("name"))]
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    for chosen in ({"steps": [3]}, {"last": 1}):
        with pytest.raises(NoSuchSteps, match="mark no steps"):
            analyse(run, **chosen)


def test_last_and_steps_exclude_each_other():
    with pytest.raises(ValueError, match="together"):
        analyse(RESNET, steps=[3], last=1)


@pytest.mark.quick_cases("table gaps")
@pytest.mark.parametrize(
    "command",
    [
        ["summary", "--all"],
        ["compare"],
        ["timeline", "--output", "timeline.pftrace"],
        ["report", "--output", "report.html"],
        ["predict"],
        ["table", "lateness"],
        ["table", "critical-path"],
        ["table", "gaps"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_all_commands_take_them(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    run = str(DATA / "nccl-straggler")
    runs = [run, run] if command[0] == "compare" else [run]
    assert main([*command, "--only-steps", "2", *runs]) == 0, capsys.readouterr().err
