"""Join calls of many logs to collectives, in bounded memory.

A collective is known by its communicator, kind and number. It is done once all its ranks have shown their calls, or
none can show one any more; then only what is summed of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Flags, Floats, Ints

LANE_BITS, KIND_BITS = 39, 5
"""A key without so many bits is a lane: the calls of a kind in a communicator."""
MOST_COMMUNICATORS = 1 << (63 - LANE_BITS - KIND_BITS)
_COMPLETE, _GIVEN_UP = np.uint8(1), np.uint8(2)
_PAGE = 12  # bits: numbers that are done are marked in pages of so many
_IN_PAGE = (1 << _PAGE) - 1


class WaitingColumns(NamedTuple):
    """Calls as columns: `key` of the collective, `place` of the rank in the communicator."""

    key: Ints
    place: Ints
    size: Ints
    size_bytes: Ints
    dur_us: Floats
    ended_us: Ints
    by_gpu: Flags
    busbw_gb_per_s: Floats

    def taken(self, rows: Flags | Ints) -> WaitingColumns:
        """The calls of these rows."""
        return WaitingColumns._make(column[rows] for column in self)

    @classmethod
    def joined(cls, parts: list[WaitingColumns]) -> WaitingColumns:
        """Concatenate the parts."""
        return cls._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


def key_of(communicator: Ints, kind: Ints, sn: Ints) -> Ints:
    """One number for a collective; `key_parts` takes it apart."""
    return (communicator << (LANE_BITS + KIND_BITS)) | (kind << LANE_BITS) | sn


def key_parts(key: Ints) -> tuple[Ints, Ints, Ints]:
    """Communicator, kind and number."""
    stream = key >> LANE_BITS
    return stream >> KIND_BITS, stream & ((1 << KIND_BITS) - 1), key & ((1 << LANE_BITS) - 1)


def runs_of(ascending: Ints) -> Iterator[tuple[int, slice]]:
    """Yield each distinct value with its slice."""
    values, begins = np.unique(ascending, return_index=True)
    ends = np.append(begins[1:], len(ascending))
    yield from zip(values.tolist(), map(slice, begins.tolist(), ends.tolist()), strict=True)


@dataclass
class WaitingCalls:
    """Calls of unfinished collectives, at most `most` at a time. `take` gets all calls of a finished one.

    `repeated` calls came again after their collective was complete, `late` ones after it was done without them.
    """

    most: int
    take: Callable[[WaitingColumns], None]
    repeated: int = 0
    late: int = 0
    waiting: WaitingColumns | None = None
    _new: list[WaitingColumns] = field(default_factory=list)
    _new_rows: int = 0
    _done: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def add(self, calls: WaitingColumns) -> bool:
        """Add calls; return whether to call `settle`."""
        self._new.append(calls)
        self._new_rows += len(calls.key)
        return self._new_rows >= self.most // 4

    def settle(self, is_over: Callable[[Ints, Ints], Flags]) -> None:
        """Hand on finished collectives: complete ones, and those for which `is_over` expects no more calls.

        It is given their keys, and how many calls of each wait.

        If too many still wait, those that came first are given up.
        """
        parts = [*([] if self.waiting is None else [self.waiting]), *map(self._not_done, self._new)]
        self._new, self._new_rows = [], 0
        if not parts:
            return
        calls = self._once(WaitingColumns.joined(parts))
        keys, first, inverse, counts = np.unique(calls.key, return_index=True, return_inverse=True, return_counts=True)
        complete = counts >= calls.size[first]
        done = complete | is_over(keys, np.where(complete, 0, counts))
        left = int(counts[~done].sum())
        if left > self.most // 2:
            oldest = np.argsort(np.where(done, np.iinfo(np.int64).max, first), kind="stable")
            surplus = np.searchsorted(np.cumsum(counts[oldest]), left - self.most // 4) + 1
            done[oldest[: min(int(surplus), int((~done).sum()))]] = True
        self._mark(keys[done], np.where(complete[done], _COMPLETE, _GIVEN_UP))
        of_done = done[inverse]
        self.waiting = calls.taken(~of_done)
        self.take(calls.taken(of_done))

    def _once(self, calls: WaitingColumns) -> WaitingColumns:
        """Drop calls that a log repeats, in order."""
        order = np.lexsort((calls.place, calls.key))
        key, place = calls.key[order], calls.place[order]
        again = np.append(False, (key[1:] == key[:-1]) & (place[1:] == place[:-1]))[: len(key)]
        if not again.any():
            return calls
        self.repeated += int(again.sum())
        return calls.taken(np.sort(order[~again]))

    def _not_done(self, calls: WaitingColumns) -> WaitingColumns:
        """Drop calls of collectives that are already finished."""
        state = np.zeros(len(calls.key), dtype=np.uint8)
        order = np.argsort(calls.key, kind="stable")
        for page, own in runs_of(calls.key[order] >> _PAGE):
            marked = self._done.get(page)
            if marked is not None:
                rows = order[own]
                state[rows] = marked[calls.key[rows] & _IN_PAGE]
        if not state.any():
            return calls
        self.repeated += int((state == _COMPLETE).sum())
        self.late += int((state == _GIVEN_UP).sum())
        return calls.taken(state == 0)

    def _mark(self, keys: Ints, states: NDArray[np.uint8]) -> None:
        for page, own in runs_of(keys >> _PAGE):
            marked = self._done.setdefault(page, np.zeros(1 << _PAGE, dtype=np.uint8))
            marked[keys[own] & _IN_PAGE] = states[own]
