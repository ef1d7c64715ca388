"""Tell communicators apart that no trace names, by who waits for whom.

Where nothing says which ranks belong together, calls of the same kernel at the same time are taken for one collective.
They may be several, of ranks that run the same program. Then ends coincide more closely within each communicator; but
so they do within each host of a single one. The difference is what each waits for: moving the data takes equally long
each time, counted from the arrival of the communicator's own last rank, whatever other ranks do.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..clocks.frame import Floats, Ints
from .doubts import on_one_clock
from .state import UNMATCHED, Findings, Grouping, State, rows_by_key

# With fewer collectives, the distance of ends by chance is not known.
_LEAST = 16
_MOST = 256
_NEARLY = 1.6
_CLEARLY = 1.5
_RESOLUTION_NS = 1_000.0


def by_stream(state: State, calls: pd.DataFrame) -> Findings:
    """Calls whose process group is not known, by the streams they run on: NCCL gives each communicator its own.

    Only if all ranks have the same streams; otherwise the streams of two ranks cannot be identified.
    """
    rows = unknown(state, calls)
    if not len(rows):
        return
    streams = calls["stream"].to_numpy(dtype=np.int64)[rows]
    of_clock = {tuple(np.unique(streams[state.clock[rows] == clock])) for clock in np.unique(state.clock[rows])}
    if len(of_clock) == 1:
        group = state.groups + 1 + np.unique(streams, return_inverse=True)[1].ravel()
        yield Grouping(rows, group, state.group_size[rows], {})


def unknown(state: State, calls: pd.DataFrame) -> Ints:
    """The calls on GPUs whose process group is not known."""
    nothing = calls["process_group"].isna() & calls["pg_ranks"].isna() & (calls["device"] != "cpu")
    nothing &= ~calls["collective"].isin(["send", "recv", "peer_copy"])
    return np.flatnonzero(nothing.to_numpy() & ~np.isin(state.group, list(state.named)))


def communicators_apart(state: State, calls: pd.DataFrame) -> Findings:
    """Split collectives of unknown process groups whose ranks turn out to be several communicators."""
    rows = unknown(state, calls)
    rows = rows[(state.rung[rows] != UNMATCHED) & (state.collective[rows] >= 0)]
    alike = (state.group[rows], state.calls.name[rows], state.calls.size[rows])
    kinds = np.unique(np.column_stack(alike), axis=0, return_inverse=True)[1].ravel()
    for own in rows_by_key(kinds, np.arange(len(rows))).values():
        clocks, start, end = _times(state, rows[own])
        communicator = _blocks(end)
        if communicator is None or not _wait_apart(start, end, communicator):
            continue
        sizes, known = np.bincount(communicator)[communicator], state.group_size[rows[own]].max()
        if known <= 0 or (sizes <= known).all():
            yield from _split(state, rows[own], clocks, communicator)


def _times(state: State, rows: Ints) -> tuple[Ints, Floats, Floats]:
    """The clocks that show these calls, and their starts and ends: (collectives, clocks), NaN where one lacks them."""
    clocks, at = np.unique(state.clock[rows], return_inverse=True)
    numbers, which = np.unique(state.collective[rows], return_inverse=True)
    shown = np.full((2, len(numbers), len(clocks)), np.nan)
    for side, times in enumerate(on_one_clock(state, rows)):
        shown[side, which, at] = times - state.calls.last_start[rows].min()
    complete = ~np.isnan(shown[0]).any(axis=1)
    start, end = (side[complete][:: -(-int(complete.sum()) // _MOST) or 1] for side in shown)
    return clocks, start, end


def _blocks(end: Floats) -> Ints | None:
    """The block of each clock, if ends within a block are always closer to each other than to those of another."""
    collectives, count = end.shape
    if count < 4 or collectives < _LEAST:
        return None
    spread = np.zeros((count, count))
    for clock in range(count):
        apart = end - end[:, [clock]]
        spread[clock] = np.median(np.abs(apart - np.median(apart, axis=0)), axis=0)
    np.fill_diagonal(spread, np.inf)
    nearest = np.maximum(spread.min(axis=1), _RESOLUTION_NS / 2)
    near = spread <= _NEARLY * np.maximum(nearest[:, np.newaxis], nearest)
    block = np.arange(count)
    for _ in range(count):
        block = np.array([block[near[clock] | (np.arange(count) == clock)].min() for clock in range(count)])
    same = block[:, np.newaxis] == block
    np.fill_diagonal(spread, 0.0)
    if same.all() or np.bincount(block)[block].min() < 2 or spread[same].max() >= spread[~same].min():
        return None
    return block


def _wait_apart(start: Floats, end: Floats, block: Ints) -> bool:
    """Whether each block takes equally long after the arrival of its own last rank, but not after that of all."""
    last_of_all = start.max(axis=1)
    for part in np.unique(block):
        first_end, last = end[:, block == part].min(axis=1), start[:, block == part].max(axis=1)
        own, all_of_them = (np.ptp(np.quantile(first_end - since, [0.1, 0.9])) for since in (last, last_of_all))
        if own > all_of_them / _CLEARLY:
            return False
    return True


def _split(state: State, rows: Ints, clocks: Ints, communicator: Ints) -> Findings:
    """Give each communicator its own collectives and process group."""
    of_row = communicator[np.searchsorted(clocks, state.clock[rows])]
    for part in np.unique(communicator).tolist():
        own = rows[of_row == part]
        number = np.unique(state.collective[own], return_inverse=True)[1].ravel()
        yield state.decided(own)._replace(collective=state.collectives + number)
        members = tuple(state.ranks[clocks[communicator == part]].tolist())
        group, size = np.full_like(own, state.groups + 1), np.full_like(own, len(members))
        yield Grouping(own, group, size, {state.groups + 1: (None, members)})
