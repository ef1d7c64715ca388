import pytest

from commtrace.profiling.base.schedule import Schedule, check_leading_steps, check_steps
from commtrace.profiling.errors import UsageError


def test_phases_of_two_cycles_and_after() -> None:
    schedule = Schedule(wait=1, warmup=1, active=2, repeat=2)
    phases = [schedule.phase(step) for step in range(10)]
    assert phases == ["idle", "warmup", "active", "active"] * 2 + ["idle", "idle"]
    assert [step for step in range(10) if schedule.ends_cycle(step)] == [3, 7]
    assert [step for step in range(10) if schedule.starts_cycle(step)] == [0, 4]


def test_cycles_without_wait_follow_one_another() -> None:
    schedule = Schedule(wait=0, warmup=0, active=1, repeat=3)
    assert [schedule.phase(step) for step in range(4)] == ["active", "active", "active", "idle"]
    assert [step for step in range(4) if schedule.starts_cycle(step)] == []


@pytest.mark.parametrize("counts", [(3, 1, 2, 2), (1, 0, 1, 1), (0, 1, 1, 2)])
def test_how_long_nothing_is_profiled(counts) -> None:
    """Until the last idle step before a cycle, at the end of which the profiler begins."""
    schedule = Schedule(*counts)
    for step in range(schedule.total_steps):
        last = schedule.idle_until(step)
        if schedule.phase(step) == "idle":
            assert schedule.starts_cycle(last)
            assert {schedule.phase(between) for between in range(step, last + 1)} == {"idle"}
        else:
            assert last == 0
    assert schedule.idle_until(schedule.total_steps) > 10**9


def test_phases_are_those_of_torch() -> None:
    import torch

    from commtrace.profiling.sessions.profiler import _ACTIONS

    ours = Schedule(wait=2, warmup=1, active=3, repeat=2)
    theirs = torch.profiler.schedule(wait=2, warmup=1, active=3, repeat=2)
    save = torch.profiler.ProfilerAction.RECORD_AND_SAVE
    for step in range(20):
        assert theirs(step) == (save if ours.ends_cycle(step) else _ACTIONS[ours.phase(step)])


@pytest.mark.parametrize(("counts", "name"), [((-1, 1, 1), "wait"), ((0, -1, 1), "warmup"), ((0, 1, 0), "active")])
def test_senseless_counts_are_refused_by_name(counts, name) -> None:
    with pytest.raises(UsageError, match=f"{name} must be at least"):
        Schedule(*counts)


def test_repeat_has_to_end() -> None:
    with pytest.raises(UsageError, match="repeat must be at least 1"):
        Schedule(1, 1, 1, 0)


def test_too_few_leading_steps_says_why() -> None:
    check_leading_steps(Schedule(1, 1, 1), 2, "of buckets")
    with pytest.raises(UsageError, match=r"--wait 0 --warmup 1: need at least 2 .* found 1, because of buckets"):
        check_leading_steps(Schedule(0, 1, 1), 2, "of buckets")


def test_too_few_steps_says_how_many() -> None:
    check_steps(Schedule(1, 1, 1, 2), 6)
    with pytest.raises(UsageError, match="--steps 5: the schedule needs 6 steps"):
        check_steps(Schedule(1, 1, 1, 2), 5)
