"""After how many steps a loop repeats, by what a rank counts."""

import pytest

from commtrace.profiling.sessions import loop_watch
from commtrace.profiling.sessions.loop_watch import LoopWatch, steps_of_periods


class _Counted:
    evaluated = 0


@pytest.mark.parametrize(
    ("collectives", "evaluations", "period"),
    [
        ([1, 1, 1, 7] * 4, [], 4),
        ([3] * 16, [3, 7, 11, 15], 4),
        ([3] * 16, [], None),
        # The first two steps make groups.
        ([20, 9] + [5, 5] * 6, [], None),
        ([1, 1, 1, 7, 1, 1, 1, 1, 1, 1], [], None),
        # A hundredth more is no other sort of step.
        ([100, 101] * 6, [], None),
    ],
)
def test_the_period_by_collectives_and_evaluations(monkeypatch, collectives, evaluations, period) -> None:
    counted, issued = _Counted(), 0
    monkeypatch.setattr(loop_watch, "collectives_issued", lambda: issued)
    watch = LoopWatch(counted)
    for step, more in enumerate(collectives):
        issued += more
        counted.evaluated += step in evaluations
        watch.ended(step)
    assert watch.period == period


def test_two_periods_and_the_ends_are_traced() -> None:
    assert [steps_of_periods(2, 5), steps_of_periods(4, 5), steps_of_periods(2, 20)] == [6, 10, 20]
