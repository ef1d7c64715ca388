"""`commtrace lab`: which commands it plans, which it runs, in what state it leaves them, and once for real."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from capturing import ROOT, environment

from commtrace.cli import main
from commtrace.command_line import parser_for
from commtrace.contract.lab import LabExperiment, LabTask
from commtrace.profiling.errors import RunDirError, UsageError
from commtrace.profiling.lab import bench
from commtrace.profiling.lab.lab_command import experiment_numbers
from commtrace.profiling.lab.plan import Here, plan

LAPTOP = Here(gpus=0, cores=2, free_bytes=8 * 10**9, name="laptop: 2 cores")
SERVER = Here(gpus=0, cores=64, free_bytes=10**12, name="server: 64 cores")
ONE_GPU = Here(gpus=1, cores=16, free_bytes=10**11, name="one: 1 x GPU")
FOUR_GPUS = Here(gpus=4, cores=64, free_bytes=10**12, name="four: 4 x GPU")


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


# --- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("data_root", [None, "data"])
@pytest.mark.parametrize("here", [LAPTOP, SERVER, ONE_GPU, FOUR_GPUS], ids=lambda here: here.name)
def test_every_planned_command_is_one(here: Here, data_root: str | None, quick: bool) -> None:
    for experiment in plan(here, quick=quick, data_root=data_root):
        assert experiment.tasks or experiment.impossible
        for task in experiment.tasks:
            words = [*task.arguments, "--out", "lab", "--run-name", task.folder]
            command = parser_for(words)
            context = command.make_context("commtrace", list(words))
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            command.make_context(name, rest, parent=context)
            assert task.expected_s > 0


def test_two_cores_take_minutes_and_fewer_if_quick() -> None:
    def expected_s(**options: Any) -> float:
        tasks = {task.folder: task for each in plan(LAPTOP, **options) for task in each.tasks}
        return sum(task.expected_s for task in tasks.values())

    assert 60 < expected_s(quick=True) < expected_s() < 600


def test_all_workers_and_sizes_are_those_of_the_machine() -> None:
    speedup = {here.name: shlex.join(plan(here)[1].tasks[0].arguments) for here in (LAPTOP, SERVER, FOUR_GPUS)}
    assert "--workers 1,2 " in speedup[LAPTOP.name]
    assert "--workers 1,2,4 " in speedup[SERVER.name]
    assert "--parallel dp,ddp --workers 1,2,4 --batch-size 32,128,512 --steps-per-epoch 0 " in speedup[FOUR_GPUS.name]
    lonely = [experiment.name for experiment in plan(ONE_GPU) if experiment.impossible]
    assert lonely == ["speedup", "communication", "all-reduce"]


def test_the_large_batch_is_compared_fairly_too() -> None:
    """The same epochs of the same images, and the rate scaled with the batch."""
    tasks = {task.folder: task.arguments for task in plan(LAPTOP)[4].tasks}
    base, scaled = tasks["small-batch"], tasks["large-batch-scaled-rate"]

    def value(arguments: Sequence[str], option: str) -> str:
        return arguments[arguments.index(option) + 1]

    for option in ("--epochs", "--dataset-samples", "--optimizer-lr", "--workers"):
        assert value(base, option) == value(scaled, option)
    assert value(scaled, "--lr-scaling") == "linear"
    workers = int(value(base, "--workers"))
    assert int(value(scaled, "--lr-reference-batch")) == workers * int(value(base, "--batch-size"))
    assert int(value(scaled, "--batch-size")) > int(value(base, "--batch-size"))
    assert "--lr-scaling" not in tasks["large-batch"]


def test_real_images_are_not_all_at_once_in_the_memory_of_a_cpu() -> None:
    arguments = plan(LAPTOP, data_root="cifar")[0].tasks[0].arguments
    assert "--batch-size-until-oom" not in arguments
    assert shlex.join(arguments).count("--data cifar10 --data-root cifar") == 1
    assert "--batch-size-until-oom" in plan(FOUR_GPUS, data_root="cifar")[0].tasks[0].arguments


@pytest.mark.parametrize(
    ("text", "numbers"), [(None, [1, 2, 3, 4, 5, 6, 7, 8]), ("1-3", [1, 2, 3]), ("7,2-3", [2, 3, 7]), ("4", [4])]
)
def test_numbers_of_experiments(text: str | None, numbers: list[int]) -> None:
    assert experiment_numbers(text) == numbers


@pytest.mark.parametrize("text", ["0", "9", "3-1", "x", "", "1,,2", "-2"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected numbers from 1 to 8"):
        experiment_numbers(text)


# --- what is run -----------------------------------------------------------------------------------------------------


class Commands:
    """Stands in for the commands: remembers what was run, and leaves a folder."""

    def __init__(self, **fates: int | str) -> None:
        self.ran: list[str] = []
        self.fates = fates  # exit code by folder, or "interrupt"

    def __call__(self, arguments: Sequence[str], log: Path, lock: int) -> int:
        name = arguments[0] if arguments[0] == "report" else arguments[arguments.index("--run-name") + 1]
        self.ran.append(name)
        fate = self.fates.get(name.replace("-", "_"), 0)
        if fate == "interrupt":
            signal.raise_signal(signal.SIGTERM)
        log.write_text("error: no memory\n" if fate else "")
        if name != "report":
            (log.parent / name).mkdir(exist_ok=True)
            (log.parent / name / "file").write_text("")
        return int(fate)


TWO = [
    LabExperiment("speedup", [LabTask("speedup", ["sweep"], 5.0)]),
    LabExperiment("communication", [LabTask("speedup", ["sweep"], 5.0)]),
    LabExperiment("layers", [LabTask("single", ["layers"], 5.0), LabTask("model", ["layers", "--model"], 5.0)]),
    LabExperiment("all-reduce", [], "one GPU"),
]


def request(folder: Path, chosen: Sequence[int] = (1, 2, 3, 4), options: Sequence[str] = ("cpu",)) -> bench.LabRequest:
    return bench.LabRequest(folder, "a machine", TWO, list(options), chosen, ["lab", "--out", "x y"])


def statuses(folder: Path) -> dict[str, str]:
    content = json.loads((folder / "lab.json").read_text())
    return {task["folder"]: task["status"] for each in content["experiments"] for task in each["tasks"]}


def test_every_command_once_and_nothing_again(tmp_path, capfd) -> None:
    commands = Commands()
    assert bench.run_lab(request(tmp_path), run=commands) == 0
    assert commands.ran == ["speedup", "single", "model", "report"]
    out, err = capfd.readouterr()
    assert out == f"{tmp_path}/lab.html\n"
    assert "  2  communication  with one above\n" in err
    assert "  4  all-reduce     NA: one GPU\n" in err
    assert "experiment 3 of 4: single; about 10 s left" in err
    again = Commands()
    assert bench.run_lab(request(tmp_path), run=again) == 0
    assert again.ran == ["report"]
    assert "nothing is missing" in capfd.readouterr().err


def test_what_fails_has_its_reason_and_others_go_on(tmp_path, capsys) -> None:
    commands = Commands(single=1)
    assert bench.run_lab(request(tmp_path), run=commands) == 1
    assert commands.ran == ["speedup", "single", "model", "report"]
    assert "error: single: no memory; see single.log" in capsys.readouterr().err
    assert statuses(tmp_path) == {"speedup": "done", "single": "failed", "model": "done"}
    again = Commands()
    assert bench.run_lab(request(tmp_path), run=again) == 0
    assert again.ran == ["single", "report"]
    assert (tmp_path / "set-aside" / "single.1").is_dir()


def test_an_interrupt_keeps_what_was_measured_and_says_how_to_go_on(tmp_path, capsys) -> None:
    assert bench.run_lab(request(tmp_path), run=Commands(single="interrupt")) == 128 + signal.SIGTERM
    assert (
        "stopped by SIGTERM; what was measured is kept; to go on: commtrace lab --out 'x y'" in capsys.readouterr().err
    )
    assert statuses(tmp_path) == {"speedup": "done", "single": "open", "model": "open"}
    again = Commands()
    assert bench.run_lab(request(tmp_path), run=again) == 0
    assert again.ran == ["single", "model", "report"]


def test_only_chosen_experiments_and_later_the_others(tmp_path) -> None:
    commands = Commands()
    assert bench.run_lab(request(tmp_path, chosen=[2]), run=commands) == 0
    assert bench.run_lab(request(tmp_path, chosen=[1, 3]), run=commands) == 0
    assert commands.ran == ["speedup", "report", "single", "model", "report"]


def test_what_was_deleted_is_measured_again(tmp_path) -> None:
    bench.run_lab(request(tmp_path), run=Commands())
    (tmp_path / "model" / "file").unlink()
    (tmp_path / "model").rmdir()
    again = Commands()
    assert bench.run_lab(request(tmp_path), run=again) == 0
    assert again.ran == ["model", "report"]


def test_a_lab_of_other_sizes_is_refused(tmp_path) -> None:
    bench.run_lab(request(tmp_path), run=Commands())
    with pytest.raises(UsageError, match="was measured with cpu, now asked for cpu quick; use another --run-name"):
        bench.run_lab(request(tmp_path, options=["cpu", "quick"]), run=Commands())


def test_a_lab_of_another_machine_is_refused(tmp_path) -> None:
    bench.run_lab(request(tmp_path), run=Commands())
    with pytest.raises(UsageError, match="was measured on a machine, and this is another; use another --run-name"):
        bench.run_lab(replace(request(tmp_path), machine="another: 8 cores"), run=Commands())


def test_a_busy_machine_is_said(tmp_path, capfd, monkeypatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (999.0, 0.0, 0.0))
    bench.run_lab(request(tmp_path), run=Commands())
    assert "note: other programs use this machine now" in capfd.readouterr().err


def test_a_folder_of_something_else_is_left_alone(tmp_path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunDirError, match=r"or a lab's with its lab.json; found thesis.tex"):
        bench.run_lab(request(tmp_path), run=Commands())
    (tmp_path / "lab.json").write_text("{}")
    with pytest.raises(RunDirError, match="expected what a lab writes"):
        bench.run_lab(request(tmp_path), run=Commands())


def test_the_plan_alone_writes_nothing(tmp_path, capsys) -> None:
    options = ["--dry-run", "--device", "cpu", "--quick", "--experiments", "4,7", "--out", str(tmp_path)]
    assert main(["lab", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  4  all-reduce     about ")
    assert lines[2].startswith("       commtrace comms all_reduce ")
    assert lines[-1].endswith(" in all")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--experiments", "9"], "--experiments 9: expected numbers from 1 to 8, such as 1-3,5"),
        (["--run-name", "a/b"], "expected one folder name"),
    ],
)
def test_bad_options_are_one_line(options, message, tmp_path, capsys) -> None:
    assert main(["lab", "--device", "cpu", "--out", str(tmp_path), *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


def test_under_torchrun_it_is_refused(monkeypatch, capsys) -> None:
    monkeypatch.setitem(os.environ, "RANK", "0")
    assert main(["lab", "--device", "cpu"]) == 2
    assert "without torchrun" in capsys.readouterr().err


# --- for real --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_quick_lab_for_real(tmp_path) -> None:
    """One that trains, one that measures, one that swaps layers; the commands of the others have tests of their own."""
    chosen = ["--quick", "--experiments", "1,4,7,8", "--device", "cpu"]
    command = [sys.executable, "-m", "commtrace", "lab", *chosen, "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "lab" / "lab.html").read_text()
    assert "4 of 8 experiments measured on " in page
    assert {folder for folder, status in statuses(tmp_path / "lab").items() if status != "done"} == {
        *("speedup", "layers-single", "layers-vgg16"),
        *("small-batch", "large-batch", "large-batch-scaled-rate", "growing-batch"),
    }
