"""Which steps of a run are played again: all of them, or of many some that follow each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

_LEAST_STEPS = 2
"""Of one step alone nobody could say by how much it differs from others."""


def steps_to_play(lengths_ns: Mapping[int, float], counted: Collection[int], most: int) -> tuple[int, ...]:
    """No more than `most` steps that follow each other, those most like all that are `counted`; at least two.

    That is: with most counted steps among them, and of these with a mean nearest to that of all. `lengths_ns` are those
    of all recorded steps.
    """
    steps = sorted(lengths_ns)
    size = max(most, _LEAST_STEPS)
    if size >= len(steps):
        return tuple(steps)
    counts = np.isin(steps, list(counted)) if counted else np.ones(len(steps), dtype=bool)
    lengths = np.where(counts, [lengths_ns[step] for step in steps], 0.0)
    many, sums = (np.lib.stride_tricks.sliding_window_view(values, size).sum(axis=1) for values in (counts, lengths))
    off = np.abs(sums / np.maximum(many, 1) - lengths.sum() / counts.sum())
    begin = int(np.lexsort((off, -many))[0])
    return tuple(steps[begin : begin + size])
