"""Which steps the profiler sees: cycles of wait, warmup and active steps. Knows no torch."""

import sys
from dataclasses import dataclass

from ...contract.rank import Phase
from ..errors import UsageError

# The default number of unprofiled steps after the schedule, with which the profiled ones are compared, and by which
# two captures are. On two cores that two ranks share, the medians of 10 steps spread by 2.8 %, of 20 by 1.9 %.
TRAILING_STEPS = 20

FROM_STEP = 10
"""The first traced step, where nobody says another one: queues of data are neither full nor being filled any more."""
WARMUP = 1
"""Steps that the profiler discards before these."""
ACTIVE = 5
"""Steps that are traced, where nobody says how many."""
EARLY_FROM = 2
"""From here on, steps are recorded in case that the program ends before the first one; step 1 warms up for them."""


@dataclass(frozen=True)
class Schedule:
    """`repeat` cycles of `wait` unprofiled, `warmup` profiled but discarded, and `active` traced steps.

    Steps count from 0, as the `ProfilerStep#N` annotations do. From step `early_from` of the first wait on, steps are
    recorded too, and discarded unless the program ends before the first active one. It `extends` to whole periods of a
    loop that is longer than a step. Raises UsageError if a count makes no sense.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 1
    early_from: int | None = None
    extends: bool = False

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 1)):
            found = getattr(self, name)
            if found < least:
                raise UsageError(f"profiler schedule: {name} must be at least {least}, found {found}")

    @property
    def cycle_steps(self) -> int:
        """Steps in one cycle."""
        return self.wait + self.warmup + self.active

    @property
    def total_steps(self) -> int:
        """Steps until the last cycle is written."""
        return self.cycle_steps * self.repeat

    def phase(self, step: int) -> Phase:
        """What the profiler does during `step`."""
        if step >= self.total_steps:
            return "idle"
        position = step % self.cycle_steps
        if position < self.wait:
            return "idle" if self.early_from is None or not self.early_from - 1 <= step < self.wait else "warmup"
        return "warmup" if position < self.wait + self.warmup else "active"

    def starts_cycle(self, step: int) -> bool:
        """Whether the profiler is off during `step`, and warms up or traces in the next one."""
        return self.phase(step) == "idle" and self.phase(step + 1) != "idle"

    def idle_until(self, step: int) -> int:
        """The last idle step before the next cycle, seen from one that is idle; 0 from others."""
        position = step % self.cycle_steps
        if step >= self.total_steps:
            return sys.maxsize
        if self.phase(step) != "idle":
            return 0
        return step - position + self.wait - 1 if self.early_from is None or step >= self.wait else self.early_from - 2

    def is_early(self, step: int) -> bool:
        """Whether `step` is recorded only in case that no active one follows."""
        return self.early_from is not None and self.early_from <= step < self.wait

    @property
    def first_profiled(self) -> int:
        """The first step of which the profiler takes notice."""
        return self.wait if self.early_from is None else self.early_from - 1

    @property
    def first_active(self) -> int:
        """The first step of the first cycle that is traced."""
        return self.wait + self.warmup

    def ends_cycle(self, step: int) -> bool:
        """Whether `step` is the last active one of its cycle."""
        return step < self.total_steps and step % self.cycle_steps == self.cycle_steps - 1


def window(
    from_step: int | None = None,
    *,
    wait: int | None = None,
    warmup: int = WARMUP,
    active: int | None = None,
    repeat: int = 1,
) -> Schedule:
    """The schedule of whoever gives some of these, and of `run` and `capture()` where nobody gives any.

    Without `from_step` and `wait`, earlier steps are recorded too, as the program may be shorter; without `active`,
    whole periods of a loop are traced that is longer than a step. Raises UsageError.
    """
    if from_step is not None and wait is not None:
        raise UsageError("from_step and wait both say when the traced steps begin; leave one out")
    early_from = None
    if wait is None:
        first_step = FROM_STEP if from_step is None else from_step
        wait = first_step - warmup
        if wait < 0:
            begins = f"begins at step {first_step}{' by default' if from_step is None else ''}"
            raise UsageError(
                f"a warm-up of {warmup} steps: tracing {begins}, and cannot before step {warmup}; trace from a later "
                "step, or warm up for fewer"
            )
        early_from = EARLY_FROM if from_step is None and wait > EARLY_FROM else None
    extends = active is None and repeat == 1
    return Schedule(wait, warmup, ACTIVE if active is None else active, repeat, early_from, extends)


def check_leading_steps(schedule: Schedule, least: int, why: str) -> None:
    """Raise UsageError when fewer than `least` steps come before the first active one."""
    found = schedule.wait + schedule.warmup
    if found < least:
        raise UsageError(
            f"--wait {schedule.wait} --warmup {schedule.warmup}: need at least {least} steps before the active ones, "
            f"found {found}, because {why}; raise --wait or --warmup"
        )


def check_wait(schedule: Schedule, why: str) -> None:
    """Raise UsageError when the profiler is on from the beginning."""
    if schedule.wait < 1:
        raise UsageError(f"--wait {schedule.wait}: need at least 1, because {why}; raise --wait")


def check_steps(schedule: Schedule, steps: int) -> None:
    """Raise UsageError when `steps` end before the schedule does."""
    if steps < schedule.total_steps:
        raise UsageError(
            f"--steps {steps}: the schedule needs {schedule.total_steps} steps ({schedule.repeat} x (wait "
            f"{schedule.wait} + warmup {schedule.warmup} + active {schedule.active})); raise --steps or shorten it"
        )
