"""Replay the history of an allocator backwards from its last state, so that totals are exact up to the end.

A history holds only the newest entries, and in them requests rather than blocks. The segments at the end say which
blocks are in use then, and their sizes. From there each entry is undone: before an allocation its block was not there,
before a release it was. What is left when all are undone is older than the history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.allocator import NO_STACK, AllocatorAction, BlockState, DeviceSnapshot
from ...core.arrays import Flags, Ints

_ROUND_BYTES = 512
"""Requests are rounded up to it: `kMinBlockSize` in c10/core/AllocatorConfig.h."""
_NEVER = -1


@dataclass(frozen=True)
class Lives:
    """Blocks and when they were in use; all of shape (blocks,), in the order of their allocation.

    Entries are counted from 0. A block is allocated at entry `allocated`, -1 if that is older than the history; its
    release is asked for at `requested_free` and done at `completed_free`, the number of entries if not in the history.
    `is_known` says that `size_bytes` is that of the block at the end; else it is the request rounded up to 512.
    """

    address: Ints
    stream: Ints
    requested_bytes: Ints
    size_bytes: Ints
    is_known: Flags
    allocated: Ints
    requested_free: Ints
    completed_free: Ints
    stack: Ints
    free_stack: Ints


@dataclass(frozen=True)
class Replayed:
    """The allocator of one device over its history; of shape (entries + 1,): before the first entry, and after each.

    `allocated` is what tensors use: it falls where a release is asked for. `active` also counts what other streams
    still use: it falls where the release is done. `contradictions` are entries that fit no earlier or later one.
    """

    allocated_bytes: Ints
    active_bytes: Ints
    reserved_bytes: Ints
    lives: Lives
    contradictions: int

    @property
    def peak(self) -> int:
        """Where most is allocated; the first of several."""
        return int(np.argmax(self.allocated_bytes))


class _Life:
    """A block while entries are undone."""

    __slots__ = ("allocated", "completed", "free_stack", "known", "request", "requested", "size", "stack", "stream")

    def __init__(self, stream: int, requested: int, size: int, known: bool, request: int, completed: int) -> None:
        self.stream, self.requested, self.size, self.known = stream, requested, size, known
        self.request, self.completed = request, completed
        self.allocated = _NEVER
        self.stack = self.free_stack = NO_STACK


def rounded(request_bytes: int) -> int:
    """The block that a request takes at least: a multiple of 512 bytes."""
    return max(_ROUND_BYTES, -(-request_bytes // _ROUND_BYTES) * _ROUND_BYTES)


def undone(device: DeviceSnapshot) -> Replayed:
    """Undo the history of a device, entry by entry."""
    undoing = _Undoing(device)
    entries = device.entries
    columns = (entries.action, entries.address, entries.size, entries.stream, entries.stack)
    for number in range(len(entries.action) - 1, -1, -1):
        undoing.undo(number, *(column[number] for column in columns))
    return undoing.undone()


class _Undoing:
    """What is in use before the entries that were undone so far."""

    def __init__(self, device: DeviceSnapshot) -> None:
        self._count = len(device.entries.action)
        self._lives: list[tuple[int, _Life]] = []
        self._at: dict[int, _Life] = {}
        self._contradictions = 0
        self._reserved_end = sum(device.segments.size)
        self._reserved_change = np.zeros(self._count + 1, dtype=np.int64)
        kept = device.blocks
        streams = device.segments.stream
        for row, state in enumerate(kept.state):
            if state != BlockState.inactive:
                request = self._count if state == BlockState.allocated else _NEVER
                segment = kept.segment[row]
                life = _Life(streams[segment], kept.requested[row], kept.size[row], True, request, self._count)
                life.stack = kept.stack[row]
                self._add(kept.address[row], life)

    def _add(self, address: int, life: _Life) -> _Life:
        self._at[address] = life
        self._lives.append((address, life))
        return life

    def undo(self, number: int, action: int, address: int, size: int, stream: int, stack: int) -> None:
        """Undo one entry."""
        if action == AllocatorAction.alloc:
            self._undo_alloc(number, address, size, stream, stack)
        elif action == AllocatorAction.free_completed:
            self._begin_after(number, address)
            self._add(address, _Life(stream, size, rounded(size), False, _NEVER, number)).free_stack = stack
        elif action == AllocatorAction.free_requested:
            life = self._at.get(address)
            if life is None or life.request != _NEVER:  # its completion is not in the history
                self._begin_after(number, address)
                life = self._add(address, _Life(stream, size, rounded(size), False, number, number))
            life.request, life.free_stack = number, stack
        elif action in (AllocatorAction.segment_alloc, AllocatorAction.segment_map):
            self._reserved_change[number + 1] += size
        elif action in (AllocatorAction.segment_free, AllocatorAction.segment_unmap):
            self._reserved_change[number + 1] -= size

    def _undo_alloc(self, number: int, address: int, size: int, stream: int, stack: int) -> None:
        life = self._at.pop(address, None)
        if life is None:  # its release is not in the history, nor is it there at the end
            self._contradictions += 1
            return
        if life.requested != size:
            self._contradictions += 1
        life.allocated, life.requested, life.stream = number, size, stream
        if not life.known:
            life.size = rounded(size)
        if stack != NO_STACK:
            life.stack = stack

    def _begin_after(self, number: int, address: int) -> None:
        """Let what is in use at an address that is being released begin after that: its allocation was not recorded."""
        life = self._at.pop(address, None)
        if life is not None:
            self._contradictions += 1
            life.allocated = number

    def undone(self) -> Replayed:
        """All that was found."""
        done = [life for _, life in self._lives if life.request == _NEVER and life.completed < self._count]
        if any(life.allocated != _NEVER for life in done):  # entries of requests were left out; else they are older
            for life in done:
                life.request = life.completed
        lives = self._columns()
        size = lives.size_bytes
        allocated, active = (np.zeros(self._count + 1, dtype=np.int64) for _ in range(2))
        for total, ends in ((allocated, lives.requested_free), (active, lives.completed_free)):
            held = (ends >= 0) & (ends > lives.allocated)
            np.add.at(total, lives.allocated[held] + 1, size[held])
            ended = held & (ends < self._count)
            np.subtract.at(total, ends[ended] + 1, size[ended])
        change = self._reserved_change
        reserved = self._reserved_end - int(change.sum()) + np.cumsum(change)
        return Replayed(np.cumsum(allocated), np.cumsum(active), reserved, lives, self._contradictions)

    def _columns(self) -> Lives:
        ordered = sorted(self._lives, key=lambda pair: (pair[1].allocated, pair[1].request))

        def numbers(values: list[int]) -> NDArray[np.int64]:
            return np.array(values, dtype=np.int64)

        lives = [life for _, life in ordered]
        return Lives(
            address=numbers([address for address, _ in ordered]),
            stream=numbers([life.stream for life in lives]),
            requested_bytes=numbers([life.requested for life in lives]),
            size_bytes=numbers([life.size for life in lives]),
            is_known=np.array([life.known for life in lives], dtype=bool),
            allocated=numbers([life.allocated for life in lives]),
            requested_free=numbers([life.request for life in lives]),
            completed_free=numbers([life.completed for life in lives]),
            stack=numbers([life.stack for life in lives]),
            free_stack=numbers([life.free_stack for life in lives]),
        )
