"""Tell communicators apart that no trace names, by who waits for whom.

Where nothing says which ranks belong together, calls of the same kernel at the same time are taken for one collective.
They may be several, of ranks that run the same program. Then the ends within a communicator are closer to each other
than to those of another one. But so are the ends within a host of a single communicator. What differs is whom they wait
for: from the arrival of a communicator's own last rank on, moving the data takes equally long each time, whatever other
ranks do.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...core.arrays import Floats, Ints
from .doubts import on_one_clock
from .state import UNMATCHED, Findings, Grouping, State, rows_by_key

# With fewer collectives, the distance of ends by chance is not known.
_LEAST = 16
# Of more collectives, so many are compared.
_MOST = 256
# Clocks are in one block if their ends are at most this many times as far apart as those of the nearest clocks.
_NEARLY = 1.6
# By this factor durations must scatter less if counted from the block's own last arrival.
_CLEARLY = 1.5
_RESOLUTION_NS = 1_000.0


def by_stream(state: State, calls: pd.DataFrame) -> Findings:
    """Group calls of unknown process groups by stream, since NCCL gives each communicator a stream of its own.

    Only if all ranks use streams of the same numbers: otherwise nothing says which streams of two ranks correspond.
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
    """The rows of collectives on GPUs whose process group is not known, as positions in `calls`."""
    nothing = calls["process_group"].isna() & calls["pg_ranks"].isna() & (calls["device"] != "cpu")
    nothing &= ~calls["collective"].isin(["send", "recv", "peer_copy"])
    return np.flatnonzero(nothing.to_numpy() & ~np.isin(state.group, list(state.named)))


def communicators_apart(state: State, calls: pd.DataFrame) -> Findings:
    """Split collectives of unknown process groups where the ranks are clearly several communicators.

    Collectives of one kernel and size are compared together. They are split only if each communicator waits for its
    own last rank (`_wait_apart`), and is no larger than the traces say.
    """
    rows = unknown(state, calls)
    rows = rows[(state.rung[rows] != UNMATCHED) & (state.collective[rows] >= 0)]
    alike = (state.group[rows], state.calls.name[rows], state.calls.size[rows])
    kinds = np.unique(np.column_stack(alike), axis=0, return_inverse=True)[1].ravel()
    for of_kind in rows_by_key(kinds, np.arange(len(rows))).values():
        clocks, start, end = _times(state, rows[of_kind])
        communicator = _blocks(end)
        if communicator is None or not _wait_apart(start, end, communicator):
            continue
        sizes, known = np.bincount(communicator)[communicator], state.group_size[rows[of_kind]].max()
        if known <= 0 or (sizes <= known).all():
            yield from _split(state, rows[of_kind], clocks, communicator)


def _times(state: State, rows: Ints) -> tuple[Ints, Floats, Floats]:
    """The clocks that show these calls, and the starts and ends of collectives that all of them show.

    Starts and ends are of shape (collectives, clocks), on a common clock.
    """
    clocks, at = np.unique(state.clock[rows], return_inverse=True)
    numbers, which = np.unique(state.collective[rows], return_inverse=True)
    shown = np.full((2, len(numbers), len(clocks)), np.nan)
    for side, times in enumerate(on_one_clock(state, rows)):
        shown[side, which, at] = times - state.calls.last_start[rows].min()
    complete = ~np.isnan(shown[0]).any(axis=1)
    start, end = (side[complete][:: -(-int(complete.sum()) // _MOST) or 1] for side in shown)
    return clocks, start, end


def _blocks(end: Floats) -> Ints | None:
    """The block of each clock: ends within a block are closer to each other than to those of any other block.

    None if there is only one block, if one has a single clock, or if blocks cannot be told apart.
    """
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
    """Whether each block takes equally long from the arrival of its own last rank on, but not from that of all ranks.

    If so, no block waits for the ranks of another one. `start` and `end` are of shape (collectives, clocks).
    """
    last_of_all = start.max(axis=1)
    for part in np.unique(block):
        first_end, last = end[:, block == part].min(axis=1), start[:, block == part].max(axis=1)
        from_own, from_all = (np.ptp(np.quantile(first_end - since, [0.1, 0.9])) for since in (last, last_of_all))
        if from_own > from_all / _CLEARLY:
            return False
    return True


def _split(state: State, rows: Ints, clocks: Ints, communicator: Ints) -> Findings:
    """Give each communicator its own collectives and process group."""
    of_row = communicator[np.searchsorted(clocks, state.clock[rows])]
    for part in np.unique(communicator).tolist():
        rows_of_part = rows[of_row == part]
        number = np.unique(state.collective[rows_of_part], return_inverse=True)[1].ravel()
        yield state.decided(rows_of_part)._replace(collective=state.collectives + number)
        members = tuple(state.ranks[clocks[communicator == part]].tolist())
        group, size = np.full_like(rows_of_part, state.groups + 1), np.full_like(rows_of_part, len(members))
        yield Grouping(rows_of_part, group, size, {state.groups + 1: (None, members)})
