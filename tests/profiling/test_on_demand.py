"""Captures of a running job on demand, and which steps are traced without any: observers in this process, and ranks."""

import errno
import json
import os
import re
import shutil
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from capturing import begun, leftovers, metas, trace, traced_steps
from torch.profiler import ProfilerActivity, profile

from commtrace.analysis.cli.scale.trigger import trigger_command
from commtrace.analysis.errors import NothingListens
from commtrace.common import disk, trigger
from commtrace.common.trigger import Plan, Pulse, Request, WrongRequest
from commtrace.profiling.base import run_directory as rundir
from commtrace.profiling.base.keeping import Keeping
from commtrace.profiling.base.schedule import Schedule
from commtrace.profiling.errors import RunDirError, UsageError
from commtrace.profiling.ranks.process_group import Identity
from commtrace.profiling.script.config import UNTIL_PLANNED, RunConfig, Target
from commtrace.profiling.script.run_command import _StepOptions
from commtrace.profiling.script.watch import listener
from commtrace.profiling.script.watch.observer import Observer
from commtrace.profiling.sessions.afterwards import conclusion
from commtrace.profiling.sessions.session import Session
from commtrace.profiling.sessions.side_files import Subject

RUN = ("-m", "commtrace", "run")


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(listener, "_EVERY_S", 0.02)


class Job:
    """A training in this process, watched, in `folder / "run"`."""

    def __init__(self, folder: Path, schedule: Schedule, **options: object) -> None:
        self.run = folder / "run"
        self.observer = Observer(
            RunConfig(Target("a.py"), folder, schedule, run_name="run", **options), ["python", "a.py"]
        )
        self.observer.attach()
        model = torch.nn.Linear(4, 4)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.model = model

    def train(self, steps: int, until=lambda: False) -> None:
        for _ in range(steps):
            self.model(torch.ones(2, 4)).sum().backward()
            self._optimizer.step()
            time.sleep(0.001)
            if until():
                return

    def captured(self) -> list[Path]:
        """The folders of captures on demand that are over."""
        found = [folder for folder in self.run.parent.glob("run-step*") if 0 in metas(folder)]
        return [folder for folder in found if metas(folder)[0]["complete"]]


@pytest.fixture
def job(tmp_path):
    """Starts jobs; the last one ends with the test."""
    started = []

    def start(schedule: Schedule | None = None, **options: object) -> Job:
        started.append(Job(tmp_path, schedule or Schedule(1, 1, 1), **options))
        return started[-1]

    yield start
    started[-1].observer.finish(None)


def ear_of(rank: int, run: Path) -> listener.Listener:
    """The ear of one of two ranks, after some steps of 1 ms; its thread is not started."""
    ear = listener.Listener(run, Identity(rank, rank, 2, "host"))
    ear.stepped(1)
    time.sleep(0.01)
    ear.stepped(11)
    return ear


def by_signal(run: Path) -> None:
    os.kill(os.getpid(), signal.SIGUSR2)


def by_file(run: Path) -> None:
    (run / "trigger").touch()


def by_command(run: Path) -> None:
    trigger_command(run, steps=2, ranks="0-3", patience=20.0)


@pytest.mark.slow
def test_a_run_is_analysed_although_the_launcher_ends_its_rank_once_the_script_has_failed(job, monkeypatch) -> None:
    analysed = []
    monkeypatch.setattr(conclusion, "_verdict", lambda run, *_: analysed.append(run))
    running = job(keeping=Keeping(analyse=True))
    running.train(10)
    with monkeypatch.context() as patched:
        patched.setattr(listener.Listener, "stop", lambda _: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit) as ended:
            running.observer.finish(RuntimeError("a peer is gone"))
    assert ended.value.code == 128 + signal.SIGTERM
    assert running.observer.stopped_by == signal.SIGTERM
    assert analysed == [running.run]


@pytest.mark.quick_cases("by_command")
@pytest.mark.parametrize("ask", [by_signal, by_file, by_command])
def test_a_running_job_is_captured_on_demand(job, ask, capfd) -> None:
    running = job()
    running.train(100)
    asking = threading.Thread(target=ask, args=(running.run,)) if ask is by_command else None
    if asking:
        running.train(1000, until=lambda: trigger.pulses_of(running.run))
        asking.start()
    else:
        ask(running.run)
    running.train(8000, until=running.captured)
    if asking:
        asking.join()
    (folder,) = running.captured()
    found, steps = metas(folder)[0], 2 if asking else 5
    first = int(folder.name.removeprefix("run-step"))
    assert traced_steps(trace(folder / found["traces"][0])) == list(range(first, first + steps))
    assert [step["step"] for step in found["steps"] if step["phase"] == "active"] == list(range(first, first + steps))
    assert (found["complete"], found["reason"]) == (True, None)
    assert found["clock_probe_reason"] == "captured on demand, for which no rank waits"
    assert not (running.run / "trigger").exists()
    said = capfd.readouterr()
    assert f"steps {first:,} to {first + steps - 1:,} are traced on demand, into {folder}\n" in said.err
    assert f"done: 1 rank traced in {folder}" in said.err
    if asking:
        assert said.out.startswith(
            f"steps {first:,} to {first + 1:,} will be traced into {folder}; the job is at step "
        )
    running.observer.finish(None)
    assert leftovers(running.run) == []


@pytest.mark.slow
def test_one_job_is_captured_again_and_again(job) -> None:
    running = job()
    for times in range(1, 4):
        running.train(100)
        by_file(running.run)
        by_signal(running.run)  # of one moment, which is one request
        running.train(8000, until=lambda times=times: len(running.captured()) == times)
    running.train(300)
    assert len(running.captured()) == 3


def test_before_its_steps_have_come_they_are_traced_at_once(job) -> None:
    running = job(Schedule(5000, 1, 2))
    running.train(100)
    by_file(running.run)
    running.train(3000, until=lambda: metas(running.run)[0]["traces"])
    found = metas(running.run)[0]
    assert found["schedule"]["wait"] < 3000
    assert len(traced_steps(trace(running.run / found["traces"][0]))) == 5
    assert len(found["steps"]) < 1000  # of a long wait, only the last steps are kept


def test_ranks_leave_it_to_the_first_to_say_which_steps_come(job, monkeypatch, capfd) -> None:
    running = job(Schedule(5000, 1, 2))
    running.train(100)
    monkeypatch.setattr(Session, "is_first", False)
    by_file(running.run)
    running.train(3000, until=lambda: metas(running.run)[0]["traces"])
    assert metas(running.run)[0]["traces"]
    assert ", into " not in capfd.readouterr().err


@pytest.mark.slow
def test_a_minute_is_a_step_that_rank_0_names(job, capfd) -> None:
    running = job(Schedule(UNTIL_PLANNED, 1, 3), from_minute=0.005)
    running.train(5000, until=lambda: metas(running.run) and metas(running.run)[0]["traces"])
    running.observer.finish(None)
    found = metas(running.run)[0]
    assert (found["complete"], len(traced_steps(trace(running.run / found["traces"][0])))) == (True, 3)
    said, first = capfd.readouterr().err, found["schedule"]["wait"] + 1
    assert "3 steps are traced after 0.005 minutes" in said
    assert said.count(f"commtrace: steps {first:,} to {first + 2:,} are traced, into {running.run}\n") == 1


def test_a_script_that_ends_before_its_minute_says_so(job, capfd) -> None:
    running = job(Schedule(UNTIL_PLANNED, 1, 3), from_minute=5)
    running.train(20)
    running.observer.finish(None)
    assert metas(running.run)[0]["reason"] == "the script ended before minute 5 (--from-minute)"


@pytest.mark.quick_cases("5")
@pytest.mark.parametrize("first", [0, 5, 12])
def test_after_a_profiler_of_the_scripts_own_ours_begins(job, first) -> None:
    """Before, early in, or in the steps that were to be traced."""
    running = job(_StepOptions().schedule())
    running.train(first)
    with profile(activities=[ProfilerActivity.CPU]) as theirs:
        running.train(30)
    assert len([event for event in theirs.events() if event.name == "aten::linear"]) == 30
    if first < 12:
        running.train(3000, until=running.captured)
        (folder,) = running.captured()
        assert len(traced_steps(trace(folder / metas(folder)[0]["traces"][0]))) == 5
    else:  # what was traced until then is there
        running.train(100)
        assert traced_steps(trace(running.run / metas(running.run)[0]["traces"][0])) == [10, 11]


@pytest.mark.slow_cases("save")
@pytest.mark.parametrize("beside", ["eval", "save"])
def test_where_a_step_holds_more_than_training_others_are_traced_too(job, beside, tmp_path, capfd) -> None:
    running = job(_StepOptions().schedule())
    running.train(5)
    running.model.eval()  # before the traced steps
    running.train(7)
    running.model.eval() if beside == "eval" else torch.save({}, tmp_path / "checkpoint")
    running.train(3000, until=running.captured)
    what = "an evaluation (Module.eval)" if beside == "eval" else "a checkpoint (torch.save)"
    goes_on = "later steps are traced as well if the training goes on for some seconds"
    assert f"commtrace: step 11 holds {what}; {goes_on}\n" in capfd.readouterr().err
    running.train(100)
    assert len(running.captured()) == 1
    assert metas(running.run)[0]["complete"]


@pytest.mark.parametrize(("steps", "said"), [(9, True), (12, True), (15, False)])
def test_what_early_steps_hold_is_said_where_these_are_kept(job, steps, said, capfd) -> None:
    running = job(_StepOptions().schedule())
    running.train(6)
    running.model.eval()
    running.train(steps - 6)
    running.observer.finish(None)
    assert ("step 5 holds an evaluation" in capfd.readouterr().err) == said


def test_a_model_with_an_eval_of_its_own_is_evaluated_too(job, capfd) -> None:
    """As those of transformers, whose `eval` calls `train`."""

    class Model(torch.nn.Linear):
        def eval(self):
            return self.train(False)

    running = job(_StepOptions().schedule())
    running.train(6)
    Model(1, 1).train()
    Model(1, 1).eval()
    running.train(3)
    running.observer.finish(None)
    assert "step 5 holds an evaluation" in capfd.readouterr().err


def test_what_every_step_holds_is_part_of_it(job, capfd) -> None:
    """A frozen part of a model that is set to `eval()` in each step."""
    running = job(_StepOptions().schedule())
    for _ in range(60):
        running.model.eval()
        running.train(1)
    assert "holds an evaluation" not in capfd.readouterr().err


def test_a_profiler_that_ends_early_costs_nothing(job) -> None:
    running = job(_StepOptions().schedule())
    running.train(4)
    with profile(activities=[ProfilerActivity.CPU]):
        running.train(4)
    running.train(40)
    assert metas(running.run)[0]["complete"]
    assert traced_steps(trace(running.run / metas(running.run)[0]["traces"][0])) == [10, 11, 12, 13, 14]


# --- a job goes on, whatever state its folder is in ----------------------------------------------------------------


def removed(run: Path, monkeypatch) -> None:
    """At once: a rank may be writing into it just now."""
    gone = run.rename(run.with_name("gone"))
    shutil.rmtree(gone, ignore_errors=True)


def full(run: Path, monkeypatch) -> None:
    def no_space(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    by_file(run)
    monkeypatch.setattr(disk, "write", no_space)


def read_only(run: Path, monkeypatch) -> None:
    """As it is for everybody but root: no file can be made or removed."""

    def denied(*args: object, **options: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    by_file(run)
    monkeypatch.setattr(disk, "create", denied)
    monkeypatch.setattr(trigger, "take_back", denied)


def a_folder_in_its_place(run: Path, monkeypatch) -> None:
    (run / "trigger").mkdir()


def a_pipe_in_its_place(run: Path, monkeypatch) -> None:
    os.mkfifo(run / "trigger")


def nonsense_as_a_plan(run: Path, monkeypatch) -> None:
    (run / ".trigger" / "plan").write_text('{"number": 1e400, "from_step": "7", "ranks": {}}')


@pytest.mark.quick_cases("read_only")
@pytest.mark.parametrize(
    "harm", [removed, full, read_only, a_folder_in_its_place, a_pipe_in_its_place, nonsense_as_a_plan]
)
def test_a_job_goes_on_whatever_its_folder_is_like(job, harm, monkeypatch, capfd) -> None:
    running = job()
    running.train(200)
    harm(running.run, monkeypatch)
    by_signal(running.run)
    before = capfd.readouterr().err.count("\n")
    running.train(300)
    running.observer.finish(None)
    monkeypatch.undo()
    assert capfd.readouterr().err.count("\n") <= 4, before
    assert not any(thread.name == "commtrace-listener" for thread in threading.enumerate())


WRONG_REQUESTS = [
    ("{", "found no JSON"),
    ('{"steps": 2,}', "found no JSON"),
    ("[" * 100_000, "found no JSON"),
    (b"\xff", "found no JSON"),
    (f'{{"steps": {"9" * 5000}}}', "found no JSON"),
    (b" " * (1 << 20) + b"{}", "found more than 1,048,576 bytes"),
    ("[]", "found []"),
    ("7", "found 7"),
    ("null", "found null"),
    ('{"step": 2}', 'expected no other fields than "steps" and "ranks"; found "step"'),
    ('{"steps": 2, "steps": 900}', "found one of them twice"),
    ('{"steps": 0}', 'expected as "steps" a whole number from 1 to 1,000; found 0'),
    ('{"steps": 5000}', "found 5000"),
    ('{"steps": true}', "found true"),
    ('{"steps": 2.5}', "found 2.5"),
    ('{"steps": NaN}', "found NaN"),
    ('{"steps": "2"}', 'found "2"'),
    ('{"ranks": "0-7"}', 'expected as "ranks" a list of ranks such as [0, 1, 2], or null for all; found "0-7"'),
    ('{"ranks": 3}', "found 3"),
    ('{"ranks": []}', "found []"),
    ('{"ranks": ["a"]}', 'found ["a"]'),
    ('{"ranks": [-1]}', "found [-1]"),
    ('{"ranks": [0, 1e2]}', "found [0, 100.0]"),
    ('{"ranks": [8, 9]}', '"ranks" names none of the job, which has ranks 0-7; found [8, 9]'),
]


@pytest.mark.parametrize(("text", "why"), WRONG_REQUESTS, ids=lambda value: str(value)[:30])
def test_a_request_that_makes_no_sense_says_what_is_wrong(tmp_path, text, why) -> None:
    (tmp_path / "trigger").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(WrongRequest) as wrong:
        trigger.request_of(tmp_path, 8)
    assert why in str(wrong.value)
    assert len(str(wrong.value)) < 250


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("", Request()),
        ("{}", Request()),
        ('{"steps": 2, "ranks": null}', Request(2)),
        ('{"ranks": [7, 0, 7, 99]}', Request(5, (0, 7, 99))),
    ],
)
def test_what_may_be_asked_for(tmp_path, text, request_) -> None:
    (tmp_path / "trigger").write_text(text)
    assert trigger.request_of(tmp_path, 8) == request_


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "7", "null", "[" * 100_000, '{"other": 1}', '{"steps": 0}', '{"steps": true}', '{"steps": 2.5}'),
        *('{"number": -1}', f'{{"from_step": {1 << 63}}}', '{"ranks": ["a"]}', '{"ranks": [-1]}', '{"ranks": {}}'),
    ],
)
def test_a_plan_that_makes_no_sense_is_none(tmp_path, text) -> None:
    (tmp_path / ".trigger").mkdir()
    (tmp_path / ".trigger" / "plan").write_text(text)
    assert trigger.plan_of(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("pulse-1", {}),
        ("pulse-00", {}),
        ("pulse-0", {"every_s": float("inf")}),
        ("pulse-0", {"every_s": True}),
        ("pulse-0", {"step": 1 << 63}),
        ("pulse-0", {"unix_ns": -1}),
        ("pulse-0", {"unix_ns": None}),
    ],
)
def test_a_pulse_that_is_no_ranks_own_is_none(tmp_path, name, change) -> None:
    (tmp_path / ".trigger").mkdir()
    pulse = {"rank": 0, "step": 5, "unix_ns": 1, "step_ns": None, "every_s": 1.0}
    (tmp_path / ".trigger" / name).write_text(json.dumps(pulse | change))
    assert trigger.pulses_of(tmp_path) == {}
    (tmp_path / ".trigger" / "pulse-0").write_text(json.dumps(pulse))
    assert trigger.pulses_of(tmp_path) == {0: Pulse(0, 5, 1, None, 1.0)}


@pytest.mark.slow
def test_a_wrong_request_captures_nothing_and_is_answered_beside_it(job, capfd) -> None:
    running = job()
    running.train(100)
    (running.run / "trigger").write_text('{"ranks": "0-7"}')
    running.train(2000, until=(running.run / "trigger.refused").exists)
    why = 'expected as "ranks" a list of ranks such as [0, 1, 2], or null for all; found "0-7"'
    assert (running.run / "trigger.refused").read_text() == f"trigger: refused: {why}\n"
    running.train(200)
    assert not (running.run / "trigger").exists()
    assert list(running.run.parent.iterdir()) == [running.run]
    assert capfd.readouterr().err.count(f"commtrace: {running.run / 'trigger'}: refused: {why}\n") == 1
    trigger.ask(running.run, Request(1))
    running.train(8000, until=running.captured)
    assert not (running.run / "trigger.refused").exists()


def test_a_request_that_is_still_being_written_is_not_taken(tmp_path) -> None:
    ear, text = ear_of(0, tmp_path), '{"steps": 1, "ranks": [0]}'
    for written in range(len(text) + 1):
        (tmp_path / "trigger").write_text(text[:written])
        ear._look()
        assert ear.take() is None
    ear._look()
    plan = ear.take()
    assert (plan.steps, plan.ranks) == (1, (0,))
    assert not (tmp_path / "trigger.refused").exists()


def test_what_a_file_asks_for_is_not_lost_by_a_signal(tmp_path) -> None:
    ear, plans = ear_of(0, tmp_path), []
    trigger.ask(tmp_path, Request(2, (0, 9)))
    ear.ask()
    for _ in range(4):
        ear._look()
        plan = ear.take()
        plans += [] if plan is None else [(plan.steps, plan.ranks)]
    assert plans == [(5, None), (2, (0, 9))]


def test_a_signal_to_another_rank_replaces_no_request(tmp_path) -> None:
    ear = ear_of(1, tmp_path)
    trigger.ask(tmp_path, Request(2, (0, 9)))
    ear.ask()
    ear._look()
    assert trigger.request_of(tmp_path) == Request(2, (0, 9))
    trigger.take_back(tmp_path)
    ear._look()
    assert trigger.request_of(tmp_path) == Request()


def test_a_refusal_ends_the_waiting_of_the_command(tmp_path) -> None:
    (tmp_path / ".trigger").mkdir()
    trigger.beat(tmp_path, Pulse(0, 5, time.time_ns(), None, 1.0))
    trigger.refuse(tmp_path, "an older one")

    def refuse() -> None:
        while trigger.request_of(tmp_path) is None:
            time.sleep(0.01)
        trigger.refuse(tmp_path, "no folder can be made")

    job = threading.Thread(target=refuse)
    job.start()
    with pytest.raises(NothingListens, match="trigger: refused: no folder can be made"):
        trigger_command(tmp_path, steps=2, ranks=None, patience=20.0)
    job.join()


# --- clocks and forks ------------------------------------------------------------------------------------------------


def set_clock(monkeypatch, by_s: float) -> None:
    time_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + round(by_s * 1e9))


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("by_s", [-3600, -2, 2, 86_400])
def test_a_trace_in_which_the_clock_was_set_is_not_kept(job, monkeypatch, capfd, by_s) -> None:
    running = job(Schedule(3, 1, 4))
    running.train(7)
    set_clock(monkeypatch, by_s)
    running.train(100)
    found = metas(running.run)[0]
    how = "forward" if by_s > 0 else "back"
    assert (found["complete"], found["traces"]) == (False, [])
    assert found["reason"].startswith(f"the clock of this host was set {how} by {abs(by_s):,.0f}.")
    assert f"rank 0: no trace: {found['reason']}" in capfd.readouterr().err
    by_file(running.run)
    running.train(8000, until=running.captured)
    assert len(running.captured()) == 1


@pytest.mark.parametrize(("before", "by_s"), [(2, 3600), (100, -3600), (7, 0.0005)])
def test_a_clock_that_is_set_at_other_times_or_hardly_does_no_harm(job, monkeypatch, before, by_s) -> None:
    """Before the traced steps, after them, or by as much as NTP slews it."""
    running = job(Schedule(3, 1, 4))
    running.train(before)
    set_clock(monkeypatch, by_s)
    running.train(100)
    assert metas(running.run)[0]["complete"]


def test_cycles_keep_their_numbers_where_one_is_lost(monkeypatch, tmp_path) -> None:
    session = Session(tmp_path / "run", Schedule(0, 1, 2, 3), torch.device("cpu"), Subject())
    with session:
        for step in range(9):
            if step == 5:
                set_clock(monkeypatch, 60)
            session.step()
    names = [path.name.split(".")[1] for path in (tmp_path / "run").glob("*.pt.trace.*")]
    assert sorted(names) == ["0000", "0002"]
    assert metas(tmp_path / "run")[0]["reason"].startswith("the clock of this host was set forward by 60.0")


@pytest.mark.slow
def test_a_forked_child_neither_answers_nor_removes_what_ranks_tell(job) -> None:
    """Before, during and after a capture: as workers of a data loader come and go."""
    running = job()
    for steps in (50, 50, 1, 1, 1, 50):
        running.train(steps)
        child = os.fork()
        if not child:
            with suppress(BaseException):
                running.train(20)
                running.observer.finish(None)
            os._exit(0)
        by_file(running.run)
        running.train(5)
        assert os.waitpid(child, 0)[1] == 0
    running.train(8000, until=running.captured)
    running.train(200, until=lambda: not (running.run / "trigger").exists())
    assert trigger.pulses_of(running.run).keys() == {0}
    assert len({meta["pid"] for folder in running.captured() for meta in metas(folder).values()}) == 1


# --- links, and what others may have put there -----------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path):
    """A folder of somebody's, with files that must stay as they are."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("plan", "pulse-0", "trigger", "mine"):
        (folder / name).write_text("mine")
    yield folder
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(
        ("plan", "pulse-0", "trigger", "mine"), "mine"
    )


def test_a_link_as_the_folder_of_ranks_is_not_followed(tmp_path, elsewhere, capfd) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".trigger").symlink_to(elsewhere)
    ears = [ear_of(rank, run) for rank in range(2)]
    ears[0].ask()
    for ear in ears:
        ear._look()
        assert ear.take() is None
        trigger.leave(run, 0)
    assert (trigger.pulses_of(run), trigger.plan_of(run)) == ({}, None)
    assert (run / ".trigger").is_symlink()
    assert f"{run / 'trigger'}: refused: the ranks cannot be told: .trigger is no folder" in capfd.readouterr().err
    assert list(tmp_path.glob("run-step*")) == []


@pytest.mark.slow_cases("plan")
@pytest.mark.parametrize("name", ["plan", "pulse-0"])
def test_a_link_in_the_folder_of_ranks_is_replaced(job, elsewhere, name) -> None:
    running = job()
    running.train(1000, until=lambda: trigger.pulses_of(running.run))
    (running.run / "link").symlink_to(elsewhere / name)
    (running.run / "link").rename(running.run / ".trigger" / name)  # at once: the rank writes there just now
    by_file(running.run)
    running.train(8000, until=running.captured)
    running.train(100)
    assert len(running.captured()) == 1


@pytest.mark.quick_cases("mine")
@pytest.mark.parametrize("target", ["mine", "trigger", "nothing", "."])
def test_a_link_as_a_request_is_refused(job, elsewhere, target) -> None:
    running = job()
    running.train(100)
    (running.run / "trigger.refused").symlink_to(elsewhere / "mine")
    (running.run / "trigger").symlink_to(elsewhere / target)
    running.train(2000, until=lambda: not (running.run / "trigger").is_symlink())
    running.train(100)
    assert "found something that is a link" in (running.run / "trigger.refused").read_text()
    assert not (running.run / "trigger.refused").is_symlink()
    assert running.captured() == []


@pytest.mark.slow
@pytest.mark.parametrize("planted", ["a link", "a link to nothing", "a folder", "a file"])
def test_a_capture_goes_into_a_folder_of_its_own(job, elsewhere, monkeypatch, planted) -> None:
    """Whatever has the name of a later step's folder already."""
    running = job()
    running.train(100)
    taken = [running.run.with_name(f"run-step{step}") for step in range(100, 1200, 2)]
    for path in taken:
        if planted == "a folder":
            path.mkdir()
        elif planted == "a file":
            path.write_text("mine")
        else:
            path.symlink_to(elsewhere / ("" if planted == "a link" else "nothing"))
    by_file(running.run)
    running.train(8000, until=running.captured)
    (folder,) = running.captured()
    assert int(folder.name.removeprefix("run-step")) % 2 == 1
    assert not folder.is_symlink()
    assert not any(path.is_dir() and any(path.iterdir()) for path in taken if planted == "a folder")


def test_where_every_name_is_taken_nothing_is_captured(job, monkeypatch) -> None:
    running = job()
    running.train(100)
    monkeypatch.setattr(trigger, "folder_of_plan", lambda run, plan: run)
    by_file(running.run)
    running.train(2000, until=(running.run / "trigger.refused").exists)
    assert "run and the next 99 are there already" in (running.run / "trigger.refused").read_text()
    assert list(running.run.parent.iterdir()) == [running.run]


@pytest.mark.slow
def test_a_folder_that_no_rank_came_to_is_removed(job) -> None:
    running = job()
    running.train(100)
    by_file(running.run)
    while not list(running.run.parent.glob("run-step*")):
        running.train(1)
    running.observer.finish(None)
    assert [folder for folder in running.run.parent.glob("run-step*") if not metas(folder)] == []


@pytest.mark.parametrize("made", ["a link", "nothing", "a file"])
def test_a_rank_captures_only_into_the_folder_that_rank_0_made(tmp_path, made) -> None:
    (tmp_path / "elsewhere").mkdir()
    if made == "a link":
        (tmp_path / "run-step5").symlink_to(tmp_path / "elsewhere")
    elif made == "a file":
        (tmp_path / "run-step5").touch()
    with pytest.raises(RunDirError, match="expected the folder that rank 0 has made for this capture"):
        rundir.check_made(tmp_path / "run-step5")


@pytest.mark.parametrize("number", [1, 2, 7, (1 << 31) - 1, 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize("far", [0, 1 << 20, (1 << 63) - 1])
def test_no_plan_that_is_put_there_deafens_a_rank(tmp_path, number, far) -> None:
    ear = ear_of(1, tmp_path)
    trigger.make_folder(tmp_path)
    trigger.decide(tmp_path, Plan(number, far or 15))
    ear._look()
    taken = ear.take()
    assert (taken is None) == bool(far)
    for real in range(1, 4):
        plan = Plan(real, 20 + real, 2)
        trigger.decide(tmp_path, plan)
        ear._look()
        assert ear.take() == plan
        ear._look()
        assert ear.take() is None  # once


def test_a_request_keeps_its_ranks(tmp_path) -> None:
    trigger.ask(tmp_path, Request(2, (0, 5)))
    assert trigger.request_of(tmp_path) == Request(2, (0, 5))


# --- ranks ---------------------------------------------------------------------------------------------------------

RANKS = """
import os, sys, time
import torch, torch.distributed as dist
from pathlib import Path
from commtrace.profiling.script.watch import listener
listener._EVERY_S = 0.05
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), Path(sys.argv[1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ends, until_s = torch.zeros(1), time.time() + 240
(folder / f"pid-{rank}").write_text(str(os.getpid()))
while not ends.item():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.002)
    ends.fill_(time.time() > until_s or (folder / "end").exists())
    dist.all_reduce(ends)
del model, optimizer
import gc; gc.collect()
time.sleep(0.2)
dist.destroy_process_group()
sys.exit(3)
"""


@pytest.mark.slow
def test_ranks_begin_at_one_step_in_all_three_ways(tmp_path) -> None:
    """To a rank that is not 0, by a file, and by the command; at last of one rank only."""
    script, run = tmp_path / "script.py", tmp_path / "out" / "run"
    script.write_text(RANKS)

    def until(is_so) -> None:
        until_s = time.monotonic() + 240
        while not is_so():
            assert time.monotonic() < until_s
            time.sleep(0.02)

    def captures() -> list[Path]:
        return sorted(run.parent.glob("run-step*"), key=lambda folder: int(folder.name.partition("step")[2]))

    def complete(number: int, ranks: int) -> bool:
        found = captures()
        return len(found) == number and [meta["complete"] for meta in metas(found[-1]).values()] == [True] * ranks

    with begun(*RUN, "--workers", 2, "--out", run.parent, "--run-name", "run", script, tmp_path) as process:
        until(lambda: len(trigger.pulses_of(run)) == 2)
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGUSR2)
        until(lambda: complete(1, 2))
        (run / "trigger").touch()
        until(lambda: complete(2, 2))
        trigger_command(run, steps=2, ranks="1", patience=30.0)
        until(lambda: complete(3, 1))
        (tmp_path / "end").touch()
        err = process.communicate()[1]
    assert process.returncode == 3, err
    for folder, ranks in zip(captures(), ([0, 1], [0, 1], [1]), strict=True):
        first, steps = int(folder.name.partition("step")[2]), 2 if ranks == [1] else 5
        assert sorted(metas(folder)) == ranks
        for meta in metas(folder).values():
            content = trace(folder / meta["traces"][0])
            assert traced_steps(content) == list(range(first, first + steps))
            # Each in its own place: of the gradients, and of the word to end.
            assert sum(event.get("name") == "gloo:all_reduce" for event in content["traceEvents"]) == 2 * steps
        assert json.loads((folder / "run.json").read_text())["world_size"] == 2
    assert f"done: 1 rank of 2 traced in {captures()[-1]}" in err
    assert err.count("are traced on demand") == 3
    assert leftovers(run) == []


@pytest.mark.slow
def test_ranks_go_on_while_rank_0_compiles_and_are_captured_then(tmp_path) -> None:
    """Rank 0 comes to its first step when rank 1 has made several."""
    script, run = tmp_path / "script.py", tmp_path / "out" / "run"
    (tmp_path / "end").touch()
    late = "from datetime import timedelta\nfrom commtrace.profiling.script.watch import observer\n"
    late += "observer.PATIENCE, observer._LOOK_S = timedelta(seconds=0.1), 0\n"
    script.write_text(
        RANKS.replace("while not ends.item():", f"{late}time.sleep(0 if rank else 2)\nfor step in range(50):")
        .replace("    model(torch.ones", "    model.require_backward_grad_sync = step >= 8\n    model(torch.ones")
        .replace("    dist.all_reduce(ends)", "    step < 8 or dist.all_reduce(ends)")
    )
    with begun(*RUN, "--workers", 2, "--out", run.parent, "--run-name", "run", script, tmp_path) as process:
        err = process.communicate()[1]
    assert process.returncode == 3, err
    assert "rank 0 has made no step of an optimizer yet; the other ranks go on, and are captured when it has" in err
    for meta in metas(run).values():
        assert (meta["complete"], meta["reason"]) == (True, None)
        assert traced_steps(trace(run / meta["traces"][0])) == [10, 11, 12, 13, 14]


@pytest.mark.parametrize(
    ("ranks", "why"),
    [(None, "no job listens there; expected one that commtrace run"), ("9", "not heard of")],
)
def test_a_request_that_nobody_would_answer_is_refused(tmp_path, ranks, why) -> None:
    (tmp_path / ".trigger").mkdir()
    if ranks:
        trigger.beat(tmp_path, Pulse(0, 5, time.time_ns(), None, 1.0))
    with pytest.raises(NothingListens, match=why):
        trigger_command(tmp_path, steps=5, ranks=ranks, patience=1.0)
    assert trigger.request_of(tmp_path) is None


def test_a_job_that_answers_later_is_said(tmp_path) -> None:
    (tmp_path / ".trigger").mkdir()
    trigger.beat(tmp_path, Pulse(0, 5, time.time_ns(), None, 1.0))
    with pytest.raises(NothingListens, match="no answer within 0 seconds; the request stays there, and the job will"):
        trigger_command(tmp_path, steps=2, ranks=None, patience=0.0)
    assert trigger.request_of(tmp_path) == Request(2)


def test_a_job_that_ends_without_an_answer_is_said(tmp_path) -> None:
    (tmp_path / ".trigger").mkdir()
    trigger.beat(tmp_path, Pulse(0, 5, time.time_ns(), None, 1.0))

    def end() -> None:
        while trigger.request_of(tmp_path) is None:
            time.sleep(0.01)
        trigger.leave(tmp_path, 0)

    job = threading.Thread(target=end)
    job.start()
    with pytest.raises(NothingListens, match="the job has ended before it could answer"):
        trigger_command(tmp_path, steps=2, ranks=None, patience=20.0)
    job.join()
    assert trigger.request_of(tmp_path) is None


def test_a_job_that_ends_before_the_steps_that_were_asked_for_says_so(job, capfd) -> None:
    running = job()
    running.train(100)
    by_file(running.run)
    running.train(3000, until=lambda: any(metas(folder) for folder in running.run.parent.glob("run-step*")))
    (folder,) = running.run.parent.glob("run-step*")
    running.observer.finish(None)
    first = folder.name.removeprefix("run-step")
    reason = metas(folder)[0]["reason"]
    assert reason.startswith("the script ended after step ")
    assert reason.endswith(f", before step {first}, the first that was to be traced")
    assert f"no trace: {reason}\n" in capfd.readouterr().err


def test_a_rank_that_hears_too_late_says_so_and_goes_on(job, capfd) -> None:
    running = job()
    running.train(100)
    running.observer._listener._plan = Plan(1, 7)  # a stand-in for a file system on which the plan came late
    running.train(3)
    assert "the capture from step 7 on is without rank 0, which heard of it at step 100" in capfd.readouterr().err
    assert running.captured() == []


# --- which steps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "traced"),
    [
        *((2, []), (3, []), (4, [2]), (8, [2, 3, 4, 5, 6])),
        *((steps, [2, 3, 4, 5, 6, 7, 8]) for steps in (10, 11, 12)),  # one whole step of those asked for is not enough
        *((13, [10, 11]), (15, [10, 11, 12, 13]), (40, [10, 11, 12, 13, 14])),
    ],
)
def test_later_steps_are_traced_and_earlier_ones_of_short_scripts(job, steps, traced, capfd) -> None:
    running = job(_StepOptions().schedule())
    running.train(steps)
    running.observer.finish(None)
    found = metas(running.run)[0]
    assert found["complete"] == (steps == 40)
    of_trace = traced_steps(trace(running.run / found["traces"][0])) if found["traces"] else []
    assert [step for step in of_trace if step < steps - 1] == traced
    if steps == 8:
        assert capfd.readouterr().err.endswith(
            f"1 trace in {running.run}, but incomplete: the script ended before step 10, from which 5 steps were to be "
            "traced; steps 2 to 6 are traced instead, in which much still warms up; --from-step names others\n"
        )


def test_options_say_when_traced_steps_begin() -> None:
    assert _StepOptions(from_step=500).schedule() == Schedule(499, 1, 5, extends=True)
    assert not _StepOptions(repeat=2).schedule().extends
    assert _StepOptions(wait=2, active=3).schedule() == Schedule(2, 1, 3)
    assert _StepOptions(from_minute=30).schedule() == Schedule(UNTIL_PLANNED, 1, 5)
    with pytest.raises(UsageError, match="a warm-up of 1 steps: tracing begins at step 0, and cannot before step 1"):
        _StepOptions(from_step=0).schedule()
    for wrong in ({"from_step": 9, "wait": 1}, {"from_minute": 0.0}, {"from_minute": 1, "repeat": 2}):
        with pytest.raises(UsageError):
            _StepOptions(**wrong).schedule()


@pytest.mark.slow
def test_a_daemon_that_may_profile_as_well_is_no_hindrance(tmp_path, monkeypatch) -> None:
    """None runs here, and Kineto waits 10 s for it twice."""
    monkeypatch.setenv("KINETO_USE_DAEMON", "1")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\nmodel = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(40):\n    model(torch.ones(2, 2)).sum().backward()\n    optimizer.step()\nsys.exit(5)\n"
    )
    with begun(*RUN, "--out", tmp_path, "--run-name", "run", script) as process:
        err = process.communicate()[1]
    assert process.returncode == 5, err
    found = metas(tmp_path / "run")[0]
    assert found["complete"]
    assert traced_steps(trace(tmp_path / "run" / found["traces"][0])) == [10, 11, 12, 13, 14]


@pytest.mark.slow
def test_a_slowdown_is_caught_by_a_watch_alone(tmp_path) -> None:
    """Rank 1 begins to sleep in every step; nobody asks for anything."""
    script, run = tmp_path / "script.py", tmp_path / "out" / "run"
    script.write_text(RANKS.replace("time.sleep(0.002)", "time.sleep(0.05 if rank and late() else 0.002)").replace(
        "ends, until_s", "late = (folder / 'late').exists; ends, until_s").replace("= 0.05", "= 0.2"))  # fmt: skip
    job = begun(*RUN, "--workers", 2, "--out", run.parent, "--run-name", "run", script, tmp_path)
    options = ["--trigger-above", 100, "--every", 0.2]
    with job as process, begun("-m", "commtrace", "watch", run, *options) as watching:
        until_s = time.monotonic() + 240
        while len(trigger.pulses_of(run)) < 2 or max(p.step for p in trigger.pulses_of(run).values()) < 800:
            assert time.monotonic() < until_s
            time.sleep(0.1)
        (tmp_path / "late").touch()
        while not [*run.parent.glob("run-step*/*_1.meta.json")]:
            assert time.monotonic() < until_s
            time.sleep(0.1)
        time.sleep(3)
        (tmp_path / "end").touch()
        assert process.wait(60) == 3
        said = watching.communicate()[1]
    (folder,) = run.parent.glob("run-step*")
    first = int(folder.name.partition("step")[2])
    assert [traced_steps(trace(folder / meta["traces"][0])) for meta in metas(folder).values()] == [
        [first, first + 1]
    ] * 2
    assert f"steps {first:,} to {first + 1:,} are traced into {folder}" in said
    leads = re.escape(f"; next: commtrace compare {run} {folder}")
    assert re.search(rf"others wait for rank 1 \((100|9\d)%\){leads}", said), said
    assert re.search(r"job: rank 1 on \S+ is late by (4\d|5\d)\.\d ms since", said), said
    assert "job: rank 0" not in said
    assert watching.returncode == 0
