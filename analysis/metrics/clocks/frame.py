"""How far the clocks of ranks are ahead of a common time, and times without that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ...core.arrays import Flags, Floats, Ints

LARGEST_DRIFT = 50e-6
"""How much faster one clock may be than another: crystals are specified to some 25 ppm each."""


@dataclass(frozen=True)
class Bends:
    """The error of a clock beyond offset and drift, as a line through knots; all of shape (knots,).

    At `at_ns`, ascending times that the clock shows, it is ahead by `by_ns` more. Between knots this changes evenly,
    and outside of them it stays. Where `jumps`, the clock jumped between this knot and the next one, at an unknown
    moment: times in between are uncertain by the whole jump.
    """

    at_ns: Ints
    by_ns: Ints
    jumps: Flags

    def added(self, times_ns: Ints) -> Ints:
        """How far the clock is ahead because of its bends, in ns, when it shows these times."""
        first = self.at_ns[0]  # counted from it, as a double does not hold ns since 1970
        added: Ints = np.rint(np.interp(times_ns - first, self.at_ns - first, self.by_ns)).astype(np.int64)
        return added

    def unclear(self, times_ns: Ints) -> Flags:
        """Whether each of these times lies where the clock jumped, so that it cannot be compared."""
        after = np.searchsorted(self.at_ns, times_ns)
        inside = (after > 0) & (after < len(self.at_ns)) & (times_ns < self.at_ns[-1])
        inside &= times_ns != self.at_ns[after.clip(0, len(self.at_ns) - 1)]
        result: Flags = inside & self.jumps[after.clip(1, len(self.at_ns) - 1) - 1]
        return result

    @property
    def largest_ns(self) -> int:
        """How wrong the clock is by offset and drift alone, in ns."""
        return int(np.abs(self.by_ns).max())

    def __str__(self) -> str:
        """`time:ns` of each knot, with `>` to the next one where the clock jumped, else a space."""
        marks = np.where(self.jumps, ">", " ")
        return "".join(f"{at}:{by}{mark}" for at, by, mark in zip(self.at_ns, self.by_ns, marks, strict=True)).rstrip()

    @classmethod
    def parsed(cls, text: str) -> Bends:
        """The reverse of `str`."""
        knots = [part.split(":") for part in text.replace(">", " ").split()]
        jumps = [mark == ">" for mark in text if mark in "> "] + [False]
        at_ns, by_ns = (np.array([int(knot[column]) for knot in knots], dtype=np.int64) for column in (0, 1))
        return cls(at_ns, by_ns, np.array(jumps))


@dataclass(frozen=True)
class ClockFrame:
    """How far each clock is ahead: offset + drift x (t - origin) + its bends, where t is the time it shows.

    All of shape (clocks,), but for `bends`, by clock, which few have. Clocks of one `component` can be compared; their
    origins are what they show at one moment.
    """

    offset_ns: Floats
    drift: Floats
    origin_ns: Ints
    component: Ints
    bends: Mapping[int, Bends] = field(default_factory=dict)

    @classmethod
    def unlinked(cls, component: Ints, zero_ns: int) -> ClockFrame:
        """Clocks without errors, in these components, as they are before anything is known.

        `zero_ns` is the origin of all of them.
        """
        count = len(component)
        return cls(np.zeros(count), np.zeros(count), np.full(count, zero_ns, dtype=np.int64), component.copy())

    def ahead(self, clock: int | Ints, times_ns: Ints) -> Ints:
        """How far a clock is ahead when it shows each of these times, in ns; `clock` is one, or one per time."""
        error = self.offset_ns[clock] + self.drift[clock] * (times_ns - self.origin_ns[clock])
        ahead: Ints = np.rint(error).astype(np.int64)
        for which, bends in self.bends.items():
            ahead = ahead + np.where(np.asarray(clock) == which, bends.added(times_ns), 0)
        return ahead

    def common(self, clock: int | Ints, times_ns: Ints) -> Ints:
        """The times on the common clock of their component: without the error of the clock that showed them."""
        aligned: Ints = times_ns - self.ahead(clock, times_ns)
        return aligned

    def moved(self, clocks: Ints | Flags, level_ns: float | Floats, slope: float | Floats = 0.0) -> ClockFrame:
        """The frame with these clocks further ahead by `level_ns` at the origin, and faster by `slope`."""
        offset, drift, origin = self.offset_ns.copy(), self.drift.copy(), self.origin_ns.copy()
        offset[clocks] += level_ns
        origin[clocks] += np.rint(level_ns).astype(np.int64)
        drift[clocks] += slope
        return replace(self, offset_ns=offset, drift=drift, origin_ns=origin)

    def linked(self, component: int, base: int, level_ns: float, slope: float = 0.0) -> ClockFrame:
        """The frame with a component as part of `base`: its clocks are ahead by `level_ns` more, faster by `slope`."""
        clocks = self.component == component
        return replace(self.moved(clocks, level_ns, slope), component=np.where(clocks, base, self.component))

    def referred(self) -> ClockFrame:
        """The frame with the first clock of each component right, and the errors of the others against it."""
        first = self.firsts
        # With s the time since its origin on a clock, the common time since then is s (1 - drift).
        drift = (self.drift - self.drift[first]) / (1 - self.drift[first])
        return replace(self, offset_ns=self.offset_ns - self.offset_ns[first], drift=drift)

    def since(self, first_ns: Ints) -> ClockFrame:
        """The frame with other origins: those at which the first clock of each component shows its `first_ns`.

        `first_ns` is by clock; the frame must come from `referred`.
        """
        first = self.firsts
        since_ns = (first_ns[first] - self.origin_ns[first]) / (1 - self.drift)
        return replace(
            self,
            offset_ns=self.offset_ns + self.drift * since_ns,
            origin_ns=self.origin_ns + np.rint(since_ns).astype(np.int64),
        )

    @property
    def firsts(self) -> Ints:
        """The first clock of each clock's component; shape (clocks,)."""
        _, first, which = np.unique(self.component, return_index=True, return_inverse=True)
        firsts: Ints = first[which]
        return firsts
