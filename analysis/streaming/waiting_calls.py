"""Calls of many logs put together to collectives, in bounded memory.

A collective is known by its communicator, kind and number. It is done once all its ranks have shown their calls, or
none can show one any more; then only what is summed of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
LANE_BITS, _KIND_BITS = 39, 5
"""A key without so many bits is a lane: the calls of a kind in a communicator."""
_PAGE = 12  # bits: numbers that are done are marked in pages of so many


class CallColumns(NamedTuple):
    """Calls as columns: `key` says of which collective, `place` which rank of the communicator."""

    key: Ints
    place: Ints
    size: Ints
    size_bytes: Ints
    dur_us: NDArray[np.float64]
    ended_us: Ints
    by_gpu: NDArray[np.bool_]
    busbw_gb_per_s: NDArray[np.float64]

    def taken(self, rows: NDArray[np.bool_] | Ints) -> CallColumns:
        """Some of the calls."""
        return CallColumns._make(column[rows] for column in self)

    @classmethod
    def joined(cls, parts: list[CallColumns]) -> CallColumns:
        """All of these."""
        return cls._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


def key_of(communicator: Ints, kind: Ints, sn: Ints) -> Ints:
    """One number for a collective. Its parts: `parts_of`."""
    return (communicator << (LANE_BITS + _KIND_BITS)) | (kind << LANE_BITS) | sn


def parts_of(key: Ints) -> tuple[Ints, Ints, Ints]:
    """Communicator, kind and number."""
    stream = key >> LANE_BITS
    return stream >> _KIND_BITS, stream & ((1 << _KIND_BITS) - 1), key & ((1 << LANE_BITS) - 1)


@dataclass
class WaitingCalls:
    """Calls whose collectives are not done; `most` at a time. `take` is given those that are done, by collective."""

    most: int
    take: Callable[[CallColumns], None]
    repeated: int = 0
    given_up: int = 0
    waiting: CallColumns | None = None
    _new: list[CallColumns] = field(default_factory=list)
    _new_rows: int = 0
    _done: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    def add(self, calls: CallColumns) -> bool:
        """Take calls in; whether it is time to call `settle`."""
        self._new.append(calls)
        self._new_rows += len(calls.key)
        return self._new_rows >= self.most // 4

    def settle(self, is_over: Callable[[Ints], NDArray[np.bool_]]) -> None:
        """Hand on what is done: complete collectives, and those of which `is_over` says that no more calls will come.

        If too many still wait, those that came first are given up.
        """
        parts = [*([] if self.waiting is None else [self.waiting]), *map(self._not_done, self._new)]
        self._new, self._new_rows = [], 0
        if not parts:
            return
        calls = self._once(CallColumns.joined(parts))
        keys, first, inverse, counts = np.unique(calls.key, return_index=True, return_inverse=True, return_counts=True)
        done = (counts >= calls.size[first]) | is_over(keys)
        left = int(counts[~done].sum())
        if left > self.most // 2:
            oldest = np.argsort(np.where(done, np.iinfo(np.int64).max, first), kind="stable")
            surplus = np.searchsorted(np.cumsum(counts[oldest]), left - self.most // 4) + 1
            given_up = oldest[: min(int(surplus), int((~done).sum()))]
            done[given_up] = True
            self.given_up += len(given_up)
        self._mark(keys[done])
        of_done = done[inverse]
        self.waiting = calls.taken(~of_done)
        self.take(calls.taken(of_done))

    def _once(self, calls: CallColumns) -> CallColumns:
        """Without calls that a log repeats; the first one stays, and the order."""
        order = np.lexsort((calls.place, calls.key))
        key, place = calls.key[order], calls.place[order]
        again = np.append(False, (key[1:] == key[:-1]) & (place[1:] == place[:-1]))[: len(key)]
        if not again.any():
            return calls
        self.repeated += int(again.sum())
        return calls.taken(np.sort(order[~again]))

    def _not_done(self, calls: CallColumns) -> CallColumns:
        """Without calls of collectives that are done already."""
        pages = calls.key >> _PAGE
        late = np.zeros(len(pages), dtype=bool)
        for page in np.unique(pages).tolist():
            marked = self._done.get(page)
            if marked is not None:
                own = pages == page
                late[own] = marked[calls.key[own] & ((1 << _PAGE) - 1)]
        if not late.any():
            return calls
        self.repeated += int(late.sum())
        return calls.taken(~late)

    def _mark(self, keys: Ints) -> None:
        pages = keys >> _PAGE
        for page in np.unique(pages).tolist():
            marked = self._done.setdefault(page, np.zeros(1 << _PAGE, dtype=bool))
            marked[keys[pages == page] & ((1 << _PAGE) - 1)] = True
