"""How far an epoch is, told without a terminal."""

import pytest

from commtrace.profiling.train import progress
from commtrace.profiling.train.progress import TrainReporter


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def trained(reporter: TrainReporter, clock: list[float], epochs: int, steps: int, step_s: float) -> None:
    def step(batch: int) -> int:
        clock[0] += step_s
        return batch

    reporter.plan(epochs * steps)
    for epoch in range(epochs):
        reporter.begin_epoch(f"epoch {epoch} of {epochs}", steps)
        assert [reporter.counted(step)(batch) for batch in range(steps)] == list(range(steps))


def test_an_epoch_tells_within_five_seconds_how_long_all_take(clock, capsys):
    with TrainReporter(rank=0, steps=5) as reporter:
        trained(reporter, clock, 3, 100, 1.0)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "epoch 0 of 3: step 4 of 100; about 5 min to the end of all epochs"
    assert told[1] == "epoch 0 of 3: step 34 of 100; about 4 min to the end of all epochs"
    assert told[-1] == "epoch 2 of 3: step 74 of 100; about 26 s to the end of all epochs"
    assert len(told) == 1 + (300 - 4) // 30


def test_short_epochs_say_nothing_and_other_ranks_never_do(clock, capsys):
    with TrainReporter(rank=0, steps=5) as reporter:
        trained(reporter, clock, 2, 10, 0.1)
    with TrainReporter(rank=1, steps=5) as reporter:
        trained(reporter, clock, 3, 100, 1.0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "told"), [(7, "7 s"), (99, "99 s"), (101, "2 min"), (5_000, "83 min"), (12_000, "3 h 20 min")]
)
def test_how_long_is_said(seconds, told):
    assert progress._duration(seconds) == told
