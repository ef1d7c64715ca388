"""Find the largest number that fits, with few tries. Knows neither layers nor torch."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """`fits` is the largest number that fit, 0 if none did; `fails` the smallest that failed, None if none did."""

    fits: int
    fails: int | None

    @property
    def exact(self) -> bool:
        """Whether no number lies between the two."""
        return self.fails == self.fits + 1


def largest_fitting(fits: Callable[[int], bool], *, most: int | None = None, max_tries: int) -> Bounds:
    """Try 1, 2, 4, ... until one fails, then halve what lies between; never beyond `most`, nor more than `max_tries`.

    Assumes that 0 fits, which is for the caller to try, and that a number larger than one that fails does too, as a
    larger stack of the same layers does. Takes about 2 log2(n) tries.
    """
    low, high, tries = 0, None, 0
    while tries < max_tries and (high is None or high - low > 1) and low != most:
        number = max(1, 2 * low) if high is None else (low + high) // 2
        number = number if most is None else min(number, most)
        if fits(number):
            low = number
        else:
            high = number
        tries += 1
    return Bounds(low, high)
