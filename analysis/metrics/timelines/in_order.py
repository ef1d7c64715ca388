"""Assign calls to increasing positions on a timeline with the best total gain, and its lead over others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..clocks.frame import Floats, Ints

_NEVER = -np.inf


class Laid(NamedTuple):
    """Position of each call, -1 if left out, and how much less any other choice for it would gain."""

    position: Ints
    margin: Floats


def lay_in_order(position: Ints, gain: Floats) -> Laid:
    """The increasing positions with the largest total gain.

    For each call, in order, `position` holds candidates and `gain` what each would gain, -inf if it is impossible;
    shapes (calls, candidates). A call that is left out gains nothing.
    """
    possible = gain > _NEVER
    tried = np.unique(position[possible])
    count = len(position)
    if not len(tried):
        return Laid(np.full(count, -1), np.full(count, np.inf))
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
    return Laid(np.where(path >= 0, tried[path], -1), margin)


def lay_alone(position: Ints, gain: Floats) -> Laid:
    """The best position of each call by itself, whatever the others take."""
    each = np.arange(len(position))
    best = gain.argmax(axis=1)
    gained, others = gain[each, best], gain.copy()
    others[each, best] = _NEVER
    taken = gained > 0
    margin = np.where(taken, gained - np.maximum(others.max(axis=1), 0.0), -gained)
    return Laid(np.where(taken, position[each, best], -1), margin)


def _best_before(gain: Floats) -> Floats:
    """Largest gain of the rows before i within the first k columns; shape (rows, columns + 1)."""
    best = np.zeros((len(gain), gain.shape[1] + 1))
    for i in range(len(gain) - 1):
        reached = np.maximum.accumulate(best[i, :-1] + gain[i])
        best[i + 1] = np.maximum(best[i], np.concatenate([[0.0], reached]))
    return best


def _path(gain: Floats, before: Floats) -> Ints:
    """The column of each row on the best path, -1 if it is left out."""
    chosen = np.full(len(gain), -1)
    k = gain.shape[1]
    for i in range(len(gain) - 1, -1, -1):
        taken = before[i, :k] + gain[i, :k]
        if k and taken.max() > before[i, k]:
            k = int(taken.argmax())
            chosen[i] = k
    return chosen
