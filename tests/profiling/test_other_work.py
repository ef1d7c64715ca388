"""When a rank evaluates or writes a checkpoint, by what a training calls for either."""

import io
import time
from collections.abc import Iterator

import pytest
import torch

from commtrace.common import trigger
from commtrace.profiling.base.patches import Patches
from commtrace.profiling.ranks.process_group import Identity
from commtrace.profiling.script.watch.listener import Listener
from commtrace.profiling.sessions.other_work import OtherWork


@pytest.fixture
def other() -> Iterator[OtherWork]:
    work, patches = OtherWork(), Patches()
    work.attach(patches)
    yield work
    patches.undo()


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())


def since(other: OtherWork, begin_ns: int, last_step_ns: int = 0, least_ns: int = 0) -> str | None:
    return other.since(begin_ns, last_step_ns=last_step_ns, least_ns=least_ns)


def test_what_has_ended_is_known_until_the_next_look(other, model) -> None:
    began_ns = time.perf_counter_ns()
    assert since(other, began_ns) is None
    model.eval()
    model.train()
    assert since(other, began_ns) == "evaluation"
    torch.save({}, io.BytesIO())
    assert since(other, began_ns) == "checkpoint"
    assert since(other, time.perf_counter_ns()) is None


def test_an_evaluation_that_goes_on_is_told_from_a_part_that_is_frozen(other, model) -> None:
    before_ns = time.perf_counter_ns()
    model.eval()
    now_ns = time.perf_counter_ns()
    assert since(other, now_ns, before_ns) == "evaluation"
    assert since(other, now_ns, before_ns, least_ns=10**12) is None  # so short is what sets a part to eval() in a step
    assert since(other, now_ns, last_step_ns=now_ns) is None  # steps were made since
    with torch.no_grad():
        model[0].weight += 1
    assert since(other, now_ns, before_ns) is None  # it trains


def test_a_pulse_tells_of_an_evaluation_while_no_step_is_made(tmp_path, other, model, monkeypatch) -> None:
    monkeypatch.setattr("commtrace.profiling.script.watch.listener._EVALUATION_NS", 0)
    trigger.make_folder(tmp_path)
    ear = Listener(tmp_path, Identity(0, 0, 1, "node7"), other=other)
    ear.stepped(10)
    ear._look()
    ear.stepped(20)
    ear._look()
    trained = trigger.pulses_of(tmp_path)[0]
    assert (trained.host, trained.step, trained.beside) == ("node7", 20, None)
    assert trained.step_ns
    ear._look()
    assert trigger.pulses_of(tmp_path)[0] == trained  # nothing is new
    model.eval()
    time.sleep(2 * 10 * trained.step_ns / 1e9)
    ear._look()
    evaluating = trigger.pulses_of(tmp_path)[0]
    assert (evaluating.step, evaluating.step_ns, evaluating.beside) == (20, None, "evaluation")
    ear._look()
    assert trigger.pulses_of(tmp_path)[0] == evaluating  # nothing is new, so soon
    monkeypatch.setattr("commtrace.profiling.script.watch.listener._GOES_ON_NS", 0)
    ear._look()
    going_on = trigger.pulses_of(tmp_path)[0]
    assert (going_on.unix_ns > evaluating.unix_ns, going_on.beside) == (True, "evaluation")


def test_a_rank_that_hangs_behind_a_checkpoint_says_that_this_is_over(tmp_path, other) -> None:
    trigger.make_folder(tmp_path)
    ear = Listener(tmp_path, Identity(0, 0, 1, "node7"), other=other)
    ear.stepped(10)
    ear._look()
    torch.save({}, tmp_path / "checkpoint")
    ear._look()
    assert trigger.pulses_of(tmp_path)[0].beside == "checkpoint"
    ear._look()
    over = trigger.pulses_of(tmp_path)[0]
    assert (over.step, over.beside) == (10, None)
    ear._look()
    assert trigger.pulses_of(tmp_path)[0] == over  # and nothing more, so that it is silent
