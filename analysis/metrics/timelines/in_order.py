"""Assign calls to positions on a timeline: in order, and with the largest total gain.

Calls of one rank and collectives of a timeline are in the same order, but either may lack some. So this is the
alignment of two sequences, by dynamic programming. A call's margin is what the total would lose if the call were
assigned in any other way: only a large one says that nothing else fits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.arrays import Floats, Ints

_NEVER = -np.inf


class Assigned(NamedTuple):
    """Position of each call, -1 if it is left out, and its margin over the next best choice; shape (calls,)."""

    position: Ints
    margin: Floats


def assign_in_order(position: Ints, gain: Floats) -> Assigned:
    """Assign calls, which are in order, to increasing positions so that the sum of their gains is largest.

    `position` holds the candidates of each call, and `gain` what each of them gains: -inf if it is impossible. Both are
    of shape (calls, candidates). A call that is left out gains 0.
    """
    possible = gain > _NEVER
    tried = np.unique(position[possible])
    count = len(position)
    if not len(tried):
        return Assigned(np.full(count, -1), np.full(count, np.inf))
    dense = np.full((count, len(tried)), _NEVER)
    row, column = np.nonzero(possible)
    dense[row, np.searchsorted(tried, position[row, column])] = gain[row, column]
    before, after = _best_before(dense), _best_before(dense[::-1, ::-1])[::-1, ::-1]
    placed = before[:, :-1] + dense + after[:, 1:]
    left_out = (before + after).max(axis=1)
    choices = np.column_stack([left_out, placed])
    path = _path(dense, before)
    chosen = choices[np.arange(count), path + 1]
    choices[np.arange(count), path + 1] = _NEVER
    margin = chosen - choices.max(axis=1)
    return Assigned(np.where(path >= 0, tried[path], -1), margin)


def assign_alone(position: Ints, gain: Floats) -> Assigned:
    """Assign each call to its best position, whatever the other calls take; arguments as of `assign_in_order`."""
    each = np.arange(len(position))
    best = gain.argmax(axis=1)
    gained, others = gain[each, best], gain.copy()
    others[each, best] = _NEVER
    taken = gained > 0
    margin = np.where(taken, gained - np.maximum(others.max(axis=1), 0.0), -gained)
    return Assigned(np.where(taken, position[each, best], -1), margin)


def _best_before(gain: Floats) -> Floats:
    """[i, k]: the largest total gain of the rows before i within the first k columns; shape (rows, columns + 1)."""
    best = np.zeros((len(gain), gain.shape[1] + 1))
    for i in range(len(gain) - 1):
        reached = np.maximum.accumulate(best[i, :-1] + gain[i])
        best[i + 1] = np.maximum(best[i], np.concatenate([[0.0], reached]))
    return best


def _path(gain: Floats, before: Floats) -> Ints:
    """The column of each row in the best assignment, -1 if the row is left out; `before` is `_best_before(gain)`."""
    chosen = np.full(len(gain), -1)
    k = gain.shape[1]
    for i in range(len(gain) - 1, -1, -1):
        taken = before[i, :k] + gain[i, :k]
        if k and taken.max() > before[i, k]:
            k = int(taken.argmax())
            chosen[i] = k
    return chosen
