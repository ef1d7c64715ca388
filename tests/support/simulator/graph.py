"""Moments that follow from others: each is the latest of those it comes after, with a delay each."""

from __future__ import annotations

from typing import NamedTuple

from .ops import NO_CAUSE

Link = tuple[int, float, int]
"""Earlier moment, delay in us, and the cause that the delay is due to, or NO_CAUSE."""


class Solved(NamedTuple):
    """When each moment is, in us, inf for never; and the last cause on the way that decided it."""

    times: list[float]
    causes: list[int]


class Deadlock(Exception):
    """Moments wait for each other."""


class Moments:
    """A max-plus graph under construction. Moment 0 is time 0."""

    def __init__(self) -> None:
        self.links: list[list[Link]] = [[]]

    def new(self, *links: Link) -> int:
        """A moment that comes after these."""
        self.links.append(list(links))
        return len(self.links) - 1

    def link(self, moment: int, earlier: int, delay_us: float, cause: int = NO_CAUSE) -> None:
        """Let a moment come after one more."""
        self.links[moment].append((earlier, delay_us, cause))

    def solved(self) -> Solved:
        """All times. Raises Deadlock."""
        links = self.links
        times, causes = [0.0] * len(links), [NO_CAUSE] * len(links)
        later: list[list[int]] = [[] for _ in links]
        for moment, before in enumerate(links):
            for earlier, _, _ in before:
                later[earlier].append(moment)
        unknown = [len(before) for before in links]
        known = [moment for moment, count in enumerate(unknown) if not count]
        for moment in known:  # grows meanwhile
            latest, why = 0.0, NO_CAUSE
            for earlier, delay, cause in links[moment]:
                time = times[earlier] + delay
                if time > latest:
                    latest, why = time, (cause if cause != NO_CAUSE else causes[earlier])
            times[moment], causes[moment] = latest, why
            for follower in later[moment]:
                unknown[follower] -= 1
                if not unknown[follower]:
                    known.append(follower)
        if len(known) < len(links):
            raise Deadlock(f"{len(links) - len(known)} moments wait for each other")
        return Solved(times, causes)
