"""Free memory inside of segments: how much the allocator holds and cannot give, and the largest piece of it."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import NamedTuple

import numpy as np

from ...core.allocator import AllocatorAction, DeviceSnapshot
from ...core.arrays import Ints
from .replayed import Replayed


class Fragments(NamedTuple):
    """Free memory of a device at one moment of its history.

    `largest_request_bytes` is the largest request of the history; `failed_request_bytes` the last one that failed, with
    what the device itself had free then, None if none failed.
    """

    free_blocks: int
    largest_free_bytes: int
    largest_request_bytes: int | None
    failed_request_bytes: int | None
    device_free_bytes: int | None


def fragments_at(device: DeviceSnapshot, replayed: Replayed, moment: int) -> Fragments:
    """Free blocks once `moment` entries have happened: what no active block takes of each segment."""
    begin, end = segments_at(device, moment)
    lives = replayed.lives
    active = (lives.allocated < moment) & (moment <= lives.completed_free)
    free = _gaps(begin, end, lives.address[active], lives.size_bytes[active])
    entries = device.entries
    action, size = np.array(entries.action, dtype=np.int64), np.array(entries.size, dtype=np.int64)
    requests = size[action == AllocatorAction.alloc]
    failed = np.flatnonzero(action == AllocatorAction.oom)
    return Fragments(
        free_blocks=len(free),
        largest_free_bytes=int(free.max(initial=0)),
        largest_request_bytes=int(requests.max()) if len(requests) else None,
        failed_request_bytes=int(size[failed[-1]]) if len(failed) else None,
        device_free_bytes=entries.address[int(failed[-1])] if len(failed) else None,
    )


def segments_at(device: DeviceSnapshot, moment: int) -> tuple[Ints, Ints]:
    """Begin and end of each segment once `moment` entries have happened, ascending."""
    ranges = _Ranges()
    for address, size in zip(device.segments.address, device.segments.size, strict=True):
        ranges.add(address, address + size)
    entries = device.entries
    for number in range(len(entries.action) - 1, moment - 1, -1):
        action, begin = entries.action[number], entries.address[number]
        if action in (AllocatorAction.segment_alloc, AllocatorAction.segment_map):
            ranges.remove(begin, begin + entries.size[number])
        elif action in (AllocatorAction.segment_free, AllocatorAction.segment_unmap):
            ranges.add(begin, begin + entries.size[number], joined=action == AllocatorAction.segment_unmap)
    return np.array(ranges.begins, dtype=np.int64), np.array([ranges.end[at] for at in ranges.begins], dtype=np.int64)


def _gaps(begin: Ints, end: Ints, address: Ints, size: Ints) -> Ints:
    """What is free between blocks inside of segments, in bytes; all of it above 0."""
    if not len(begin):
        return begin
    order = np.argsort(address)
    address, until = address[order], (address + size)[order]
    segment = np.searchsorted(begin, address, side="right") - 1
    inside = segment >= 0
    address, until, segment = address[inside], until[inside], segment[inside]
    starts = np.concatenate((begin, until))
    owner = np.concatenate((np.arange(len(begin)), segment))
    stops = np.concatenate((end, address))
    starts = starts[np.lexsort((starts, owner))]
    stops = stops[np.lexsort((stops, owner))]
    gaps: Ints = stops - starts
    free: Ints = gaps[gaps > 0]
    return free


class _Ranges:
    """Ranges of addresses that do not overlap."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.end: dict[int, int] = {}

    def add(self, begin: int, end: int, *, joined: bool = False) -> None:
        """Put a range in; `joined` with those that it touches, as parts of an expandable segment are."""
        if begin >= end or begin in self.end:
            return
        if joined and end in self.end:
            self.begins.remove(end)
            end = self.end.pop(end)
        before = bisect_right(self.begins, begin) - 1
        if joined and before >= 0 and self.end[self.begins[before]] == begin:
            self.end[self.begins[before]] = end
        else:
            insort(self.begins, begin)
            self.end[begin] = end

    def remove(self, begin: int, end: int) -> None:
        """Take a range out, also of the middle of one or of several."""
        at = max(bisect_right(self.begins, begin) - 1, 0)
        while at < len(self.begins) and self.begins[at] < end:
            first = self.begins[at]
            last = self.end[first]
            if last <= begin:
                at += 1
                continue
            del self.begins[at], self.end[first]
            for left, right in ((first, begin), (end, last)):
                self.add(left, right)
                at += left < right
