"""Jobs that become slower, told by the pulses of their ranks, which a watch has captured: pulses are made here."""

import json
import time

import pytest

from commtrace.analysis.watching.job import Job
from commtrace.analysis.watching.slowdowns import slice_through
from commtrace.common import trigger
from commtrace.common.trigger import Plan, Pulse, Request


class Pulses:
    """The ranks of a job, as a watch of it sees them."""

    def __init__(self, run, ranks: int = 2) -> None:
        self.run, self.ranks, self.step = run, ranks, 0
        (run / ".trigger").mkdir(parents=True)
        trigger.decide(run, Plan())
        self.watch = Job(run, lambda paths, keep_going: None, 1.5)

    def beat(self, *steps_ms: float) -> list[str]:
        """Pulses of all ranks, one after the other, with steps of this length; what the watch says meanwhile."""
        said = []
        for step_ms in steps_ms:
            self.step += 10
            for rank in range(self.ranks):
                trigger.beat(self.run, Pulse(rank, self.step, time.time_ns(), round(step_ms * 1e6), 1.0))
            said += self.watch.look()
        return said


STEADY = (100, 103, 98, 101, 99, 100, 102)


def test_steps_that_stay_longer_are_captured_once(tmp_path) -> None:
    pulses = Pulses(tmp_path / "run")
    assert pulses.beat(*STEADY, 900, *STEADY) == []  # one long one is an evaluation
    assert trigger.request_of(pulses.run) is None
    said = pulses.beat(160, 170)
    assert said == ["ranks 0-1: steps take 160.0 ms, and took 100.0 ms; asking for 2 steps of all ranks"]
    assert trigger.request_of(pulses.run) == Request(2, None)
    trigger.take_back(pulses.run)
    trigger.decide(pulses.run, Plan(1, 400, 2))
    assert pulses.beat(170) == [f"steps 400 to 401 are traced into {tmp_path / 'run-step400'}"]
    assert pulses.beat(*[170] * 5) == []  # the traces are awaited


@pytest.mark.parametrize("steps_ms", [STEADY, (*STEADY, 140, 140, 140), (100, 400, 400, 400), (*STEADY, 400, 100, 400)])
def test_what_is_no_slowdown(tmp_path, steps_ms) -> None:
    """Steps as before, hardly longer, of a job that is too young, or long now and then."""
    pulses = Pulses(tmp_path / "run")
    assert pulses.beat(*steps_ms) == []
    assert trigger.request_of(pulses.run) is None


def test_the_slice_is_made_of_the_groups_of_the_rank(tmp_path) -> None:
    groups = [
        {"name": "0", "desc": "", "backend": "", "ranks": list(ranks)} for ranks in (range(16), (4, 5), (1, 5, 9))
    ]
    meta = {"schema_version": 1, "rank": 5, "world_size": 16, "host": "n", "process_groups": groups}
    (tmp_path / "n_5.meta.json").write_text(json.dumps(meta))
    assert slice_through(5, tmp_path) == (1, 4, 5, 9)
    (tmp_path / "n_5.meta.json").write_text(json.dumps(meta | {"process_groups": groups[:1]}))
    assert slice_through(5, tmp_path) is None
    assert slice_through(7, tmp_path) is None


def test_a_folder_that_takes_no_files_is_said(tmp_path, monkeypatch) -> None:
    pulses = Pulses(tmp_path / "run")
    pulses.beat(*STEADY)
    monkeypatch.setattr(trigger, "ask", _no_space)
    said = pulses.beat(300, 300)
    assert said[-1] == f"{pulses.run}: nothing can be written there, so no capture: No space left on device"


def test_pulses_from_before_the_watch_say_when_the_job_ended(tmp_path) -> None:
    pulses = Pulses(tmp_path / "run", ranks=1)
    trigger.beat(pulses.run, Pulse(0, 10, time.time_ns() - 3600 * 10**9, 10**8, 1.0))
    assert list(pulses.watch.look()) == []
    assert not pulses.watch.is_alive
    pulses.beat(100)
    assert pulses.watch.is_alive


@pytest.mark.parametrize("jump_s", [-86_400, -3600, 3600, 86_400])
def test_a_clock_that_jumps_makes_no_job_dead_or_alive(tmp_path, monkeypatch, jump_s) -> None:
    """As one is set while the job runs, by NTP or by hand."""
    pulses, monotonic = Pulses(tmp_path / "run"), time.monotonic
    pulses.beat(*STEADY)
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    assert pulses.watch.is_alive
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + jump_s * 10**9)
    assert pulses.beat(*STEADY) == []
    assert pulses.watch.is_alive
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 64)
    assert list(pulses.watch.look()) == []
    assert not pulses.watch.is_alive


def test_a_job_whose_ranks_have_left_has_ended(tmp_path) -> None:
    pulses = Pulses(tmp_path / "run")
    pulses.beat(*STEADY)
    for rank in range(2):
        trigger.leave(pulses.run, rank)
    assert list(pulses.watch.look()) == []
    assert not pulses.watch.is_alive


@pytest.mark.parametrize("number", [1, 5, (1 << 63) - 1])
def test_a_plan_of_any_number_does_not_hide_the_answer(tmp_path, number) -> None:
    pulses = Pulses(tmp_path / "run")
    pulses.beat(*STEADY)
    trigger.decide(pulses.run, Plan(number, 7, 2))
    pulses.beat(300, 300)
    trigger.decide(pulses.run, Plan(1, 400, 2))
    assert pulses.beat(300) == [f"steps 400 to 401 are traced into {tmp_path / 'run-step400'}"]


def test_a_refusal_ends_the_waiting_for_a_plan(tmp_path) -> None:
    pulses = Pulses(tmp_path / "run")
    pulses.beat(*STEADY, 300, 300)
    trigger.refuse(pulses.run, "the ranks cannot be told: No space left on device")
    assert pulses.beat(300) == [f"{pulses.run}: trigger: refused: the ranks cannot be told: No space left on device"]
    assert pulses.beat(300) == []
    assert pulses.beat(*STEADY) == []
    assert len(pulses.beat(300, 300)) == 1


def _no_space(*args: object) -> None:
    raise OSError(28, "No space left on device")
