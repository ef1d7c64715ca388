"""After how many steps a loop repeats, by what each rank counts for itself: all ranks find the same.

How long steps take would tell as much, but not the same to each rank, and they must trace the same steps.
"""

from statistics import median_low

from ...common.repeats import repeats_after
from ..base.torch_private import collectives_issued
from .other_work import OtherWork

_SETTLED = 2  # the first steps build DDP's buckets and make groups
_LEAST_APART = 1.1
_PERIODS, _ENDS = 2, 2


class LoopWatch:
    """Counts collectives and evaluations of steps; nothing here raises."""

    def __init__(self, other: OtherWork) -> None:
        self._other = other
        self._before: tuple[int, int] | None = None
        self._steps: dict[int, tuple[int, bool]] = {}

    def ended(self, step: int) -> None:
        """Note what was done in a step that ends."""
        issued, evaluated = collectives_issued(), self._other.evaluated
        if self._before is not None and step >= _SETTLED:
            self._steps[step] = issued - self._before[0], evaluated > self._before[1]
        self._before = issued, evaluated

    @property
    def period(self) -> int | None:
        """After how many steps what they do repeats, if each of these was seen twice; else None."""
        if not self._steps:
            return None
        usual = median_low([issued for issued, _ in self._steps.values()])
        sorts = [
            (max(issued, usual) > _LEAST_APART * min(issued, usual), evaluated)
            for issued, evaluated in self._steps.values()
        ]
        return repeats_after(list(self._steps), sorts)


def steps_of_periods(period: int, least: int) -> int:
    """How many steps to trace so that two periods of them are whole, `least` steps at least.

    Those at either end may be cut off, for devices run behind their CPUs.
    """
    return max(_PERIODS * period + _ENDS, least)
