"""What is counted in each step: with real threads, files, models and collections, and no more than an order of time."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from commtrace.contract.rank import StepWork
from commtrace.profiling.sessions.step_work import WorkCounters


@pytest.fixture
def counters() -> Iterator[WorkCounters]:
    counting = WorkCounters()
    counting.start()
    yield counting
    counting.stop()


def work(counters: WorkCounters, *steps: Callable[[], object]) -> list[StepWork]:
    """What was done in each of these steps, as it is known after the last one."""
    marks = [counters.now()]
    for step in steps:
        step()
        marks.append(counters.now())
    found = [counters.between(begin, end) for begin, end in pairwise(marks)]
    assert all(found)
    return found


def spin() -> None:
    until = time.thread_time_ns() + 20_000_000
    while time.thread_time_ns() < until:
        pass


def test_a_thread_that_sleeps_is_blocked_and_one_that_computes_runs(counters: WorkCounters) -> None:
    asleep, busy = work(counters, lambda: time.sleep(0.02), spin)
    assert asleep.wall_ns >= 20_000_000
    assert asleep.cpu_ns < 10_000_000
    assert asleep.voluntary_switches >= 1
    assert busy.cpu_ns >= 20_000_000
    assert busy.cpu_ns + (busy.ready_ns or 0) <= busy.wall_ns * 1.05
    assert (asleep.gc_ns, asleep.eval_ns, asleep.checkpoint_ns, asleep.compile_ns) == (0, 0, 0, 0)


def test_garbage_is_counted_by_generation(counters: WorkCounters) -> None:
    gc.disable()
    try:
        none, some = work(counters, spin, lambda: (gc.collect(0), gc.collect(), gc.collect()))
    finally:
        gc.enable()
    assert (none.gc_ns, sum(none.gc_collections)) == (0, 0)
    assert (some.gc_collections[0], some.gc_collections[-1]) == (1, 2)
    assert 0 < some.gc_ns <= some.wall_ns


def train(model: torch.nn.Module) -> None:
    torch.manual_seed(0)
    model(torch.ones(2, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()


def test_an_evaluation_lasts_from_eval_to_train_and_may_take_several_steps(counters: WorkCounters) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())

    def begin() -> None:
        time.sleep(0.002)
        model.eval()
        time.sleep(0.004)

    first, second, third, fourth = work(counters, begin, lambda: model(torch.ones(1, 4)), model.train, spin)
    assert 4_000_000 <= first.eval_ns <= first.wall_ns - 2_000_000
    assert second.eval_ns == second.wall_ns
    assert third.eval_ns > 0
    assert fourth.eval_ns == 0


@pytest.mark.parametrize("never", ["trained meanwhile", "in eval mode before", "without weights", "for good"])
def test_what_is_no_evaluation(counters: WorkCounters, never: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())
    if never == "in eval mode before":
        model.eval()
        model.train()
        model.eval()
    if never == "without weights":
        model.requires_grad_(requires_grad=False)

    def step() -> None:
        model.eval()
        if never == "trained meanwhile":
            train(model)
        if never != "for good":
            model.train()

    (found,) = work(counters, step if never != "in eval mode before" else spin)
    assert found.eval_ns == 0


def test_checkpoints_are_timed_also_where_saving_fails(counters: WorkCounters, tmp_path: Path) -> None:
    def fail() -> None:
        with pytest.raises(RuntimeError):
            torch.save({}, tmp_path / "none" / "checkpoint")

    saved, failed, neither = work(counters, lambda: torch.save({}, tmp_path / "checkpoint"), fail, spin)
    assert 0 < saved.checkpoint_ns <= saved.wall_ns
    assert 0 < failed.checkpoint_ns <= failed.wall_ns
    assert neither.checkpoint_ns == 0


@pytest.mark.slow
def test_compiling_is_timed(counters: WorkCounters) -> None:
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    first, second = work(counters, lambda: compiled(torch.ones(3)), lambda: compiled(torch.ones(3)))
    assert 0 < first.compile_ns <= first.wall_ns
    assert second.compile_ns == 0


def test_steps_of_another_thread_are_not_compared(counters: WorkCounters) -> None:
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(counters.now()))
    begin = counters.now()
    thread.start()
    thread.join()
    assert counters.between(begin, elsewhere[0]) is None


def test_everything_is_put_back() -> None:
    before = (torch.nn.Module.train, torch.save, list(gc.callbacks))
    counting = WorkCounters()
    assert counting.now() is None
    counting.start()
    assert torch.save is not before[1]
    counting.stop()
    counting.stop()
    assert (torch.nn.Module.train, torch.save, list(gc.callbacks)) == before
    assert counting.now() is None
