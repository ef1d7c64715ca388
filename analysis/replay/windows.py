"""Where the steps of a rank begin and end among its activities, as `core.steps.step_windows` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..core.arrays import Flags, Ints
from ..core.steps import LATER_STEPS, NO_STEP


@dataclass(frozen=True)
class StepWindows:
    """Activities of a rank that belong to steps: `inside`, those of each of the `steps` from `first` on.

    `by_start` are all activities as they began when they were measured. In the steps `waiting`, positions in `steps`,
    the devices waited for their host before the first activity: the first `before` of `by_start` had ended `after` ns
    earlier. Where none is known, they waited since `after`, whatever is played.
    """

    steps: Ints
    inside: Ints
    first: Ints
    by_start: Ints
    waiting: Ints
    before: Ints
    after: Ints
    firsts: Ints
    """The first activity of each stream in each step: nothing else begins a step, unless activities overlap."""
    lasts: Ints
    """Of all activities, and of those before each wait, the last of each stream to end."""

    @classmethod
    def of(
        cls, lane: Ints, step: Ints, start: Ints, end: Ints, counts: Flags, idle_since: Mapping[int, int]
    ) -> StepWindows:
        """The windows of activities by stream and start; those that do not count are left out.

        `idle_since` is since when the devices waited before the first activity of a step, by step.
        """
        counted = np.flatnonzero(counts)
        inside = counted[step[counted] != NO_STEP]
        inside = inside[np.argsort(step[inside], kind="stable")]
        steps, first = np.unique(step[inside], return_index=True)
        begins_lane = np.diff(lane[inside], prepend=-1) != 0
        begins_lane[first] = True
        by_start = counted[np.argsort(start[counted], kind="stable")]
        waiting: list[tuple[int, int, int]] = []
        lasts = [_last_to_end(lane, end, inside)]
        for place, (number, begin) in enumerate(
            zip(steps.tolist(), _begins(start[inside], first).tolist(), strict=True)
        ):
            since = idle_since.get(number, begin)
            if since < begin:
                before = int(np.searchsorted(start[by_start], begin, side="left"))
                done = by_start[:before]
                waiting.append((place, before, since - int(end[done].max()) if before else since))
                lasts.append(_last_to_end(lane, end, done))
        places, befores, afters = np.array(waiting, dtype=np.int64).reshape(-1, 3).T
        return cls(steps, inside, first, by_start, places, befores, afters, inside[begins_lane], np.concatenate(lasts))

    def lengths(self, start: Ints, end: Ints) -> Iterator[tuple[int, int]]:
        """Yield each step and its length in ns, from all times as played, or from `Graph.play` if not `whole`."""
        if not len(self.steps):
            return
        begins = _begins(start[self.inside], self.first)
        if len(self.waiting):
            done = np.maximum.accumulate(end[self.by_start])
            since = np.where(self.before > 0, done[self.before - 1], 0) + self.after
            begins[self.waiting] = np.minimum(begins[self.waiting], since)
        begins = np.append(begins, end[self.inside].max())
        for step, length in zip(self.steps.tolist(), np.diff(begins).tolist(), strict=True):
            if step != LATER_STEPS:
                yield step, length


def _begins(start: Ints, first: Ints) -> Ints:
    """The earliest start of an activity of each step, or of a later one; `first` has the place of each step's first."""
    begins = np.minimum.reduceat(start, first) if len(first) else start
    earliest: Ints = np.minimum.accumulate(begins[::-1])[::-1].copy()
    return earliest


def _last_to_end(lane: Ints, end: Ints, nodes: Ints) -> Ints:
    """Of these activities, the one of each stream that ends last."""
    by_end = nodes[np.lexsort((end[nodes], lane[nodes]))]
    last: Ints = by_end[np.diff(lane[by_end], append=-1) != 0]
    return last
