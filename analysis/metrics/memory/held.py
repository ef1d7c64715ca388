"""What is known of the memory of one device of a rank in one cycle, whatever recorded it: the common model.

Each reader of memory makes a `DeviceMemory` of what it reads: Kineto's instants here (`of_events`), snapshots
elsewhere. All that is said of memory is computed from it: peaks, what is held at them, and what grows.

Moments are places in the order of the events, and not times: events may share a time, or have none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.arrays import Flags, Ints
from ...core.intervals import Times
from ...core.schema import bare, grouped

NOT_RECORDED = -(2**63)
"""A time, a thread or a number of bytes that is not known."""
BEFORE = -1
"""The moment before the first event; that at which a block was allocated that is older than what was recorded."""

_Texts = NDArray[Any]
"""Texts, None where one is not known: of dtype object."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of memory and their lives; all of shape (blocks,).

    A block is held from the event `allocated` on, BEFORE where that was not recorded, until the event `freed`, which is
    the number of events where it outlived them. `thread` called the allocator, NOT_RECORDED where that is not known.
    Where the source knows it, `line` is the first line of the user's own code (`train.py:31`), and `category` what the
    block is for, one of `categories.BLOCK_CATEGORIES`. `alike_bytes` are sizes that can be compared between blocks:
    where only some are known exactly, those that all would have if none were.
    """

    address: Ints
    size_bytes: Ints
    alike_bytes: Ints
    allocated: Ints
    freed: Ints
    thread: Ints
    line: _Texts
    category: _Texts

    @classmethod
    def of(
        cls,
        size_bytes: Ints,
        allocated: Ints,
        freed: Ints,
        *,
        alike_bytes: Ints | None = None,
        address: Ints | None = None,
        thread: Ints | None = None,
        line: _Texts | None = None,
        category: _Texts | None = None,
    ) -> Blocks:
        """Blocks of which nothing else is known than what is given."""
        blocks = len(size_bytes)
        numbers = (np.full(blocks, NOT_RECORDED) if one is None else one for one in (address, thread))
        texts = (np.full(blocks, None, dtype=object) if one is None else one for one in (line, category))
        known_address, known_thread = numbers
        alike = size_bytes if alike_bytes is None else alike_bytes
        return cls(known_address, size_bytes, alike, allocated, freed, known_thread, *texts)

    @classmethod
    def none(cls) -> Blocks:
        """No block."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls.of(nothing, nothing, nothing)

    def __len__(self) -> int:
        return len(self.size_bytes)

    def held_at(self, event: int) -> Flags:
        """Which of them are held once this event has happened."""
        return (self.allocated <= event) & (event < self.freed)


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device of a rank in one cycle. What is of shape (events,) is in the order of the events.

    `time_ns` is when each happened, on the clock of the rank's trace, NOT_RECORDED if that is not known;
    `allocated_bytes` and `reserved_bytes` are the totals from then on: what is in use, and what the allocator holds
    with its cache, NOT_RECORDED likewise. The first event found `found_bytes` allocated. Where no totals are recorded,
    it and `allocated_bytes` count from what was held before the first event, and `counts_all` is false. `thread` called
    the allocator. `blocks` are those whose lives are known, none if their addresses are not (`knows_blocks`): what else
    is allocated is older than the first event. `device_bytes` is all the memory that the device has.
    """

    rank: int
    cycle: int
    device: str
    time_ns: Times
    allocated_bytes: Ints
    reserved_bytes: Ints
    thread: Ints
    blocks: Blocks = field(default_factory=Blocks.none)
    found_bytes: int = 0
    counts_all: bool = True
    knows_blocks: bool = True
    device_bytes: int | None = None

    @property
    def counts_since_capture(self) -> bool:
        """Whether totals leave out what was allocated before the capture, as torch's of the CPU do."""
        return self.device == "cpu" and self.counts_all

    @property
    def events(self) -> int:
        """Number of its events."""
        return len(self.allocated_bytes)

    @property
    def peak(self) -> int:
        """The event from which on most is allocated, BEFORE if it is what the first one found; the first of several."""
        return self.peak_within(BEFORE, self.events - 1)

    def peak_within(self, first: int, last: int) -> int:
        """The first of these moments, both included, from which on most is allocated."""
        later = self.allocated_bytes[first + 1 : last + 1]
        if not len(later) or later.max() <= self.allocated_at(first):
            return first
        return first + 1 + int(np.argmax(later))

    def allocated_at(self, event: int) -> int:
        """What is allocated once this event has happened; BEFORE the first one, what it found."""
        return self.found_bytes if event == BEFORE else int(self.allocated_bytes[event])

    @property
    def peak_reserved_bytes(self) -> int | None:
        """The most that the allocator holds; None where that is not recorded."""
        most = int(self.reserved_bytes.max(initial=NOT_RECORDED))
        return None if most == NOT_RECORDED else most

    def reserved_at(self, event: int) -> int | None:
        """What the allocator holds from this event on; None where that is not recorded, as BEFORE the first one."""
        reserved = NOT_RECORDED if event == BEFORE else int(self.reserved_bytes[event])
        return None if reserved == NOT_RECORDED else reserved

    def time_at(self, event: int) -> int | None:
        """When this event was; None where that is not known, as BEFORE the first one."""
        time_ns = NOT_RECORDED if event == BEFORE else int(self.time_ns[event])
        return None if time_ns == NOT_RECORDED else time_ns

    def older_bytes(self, event: int) -> int | None:
        """What is allocated once this event has happened, and in none of the known blocks: it is older than the events.

        None where totals are not recorded.
        """
        if not self.counts_all:
            return None
        return self.allocated_at(event) - int(self.blocks.size_bytes[self.blocks.held_at(event)].sum())

    def event_at(self, time_ns: int) -> int:
        """The last event at this time or before, BEFORE where there is none; of memory whose times are known."""
        return int(np.searchsorted(self.time_ns, time_ns, side="right")) - 1


class _Changes(NamedTuple):
    """Allocations and releases of one device in their order, all of shape (events,)."""

    address: Ints
    change_bytes: Ints
    thread: Ints


def memory_of(memory_events: pd.DataFrame) -> list[DeviceMemory]:
    """The memory of each device of each rank in each cycle, as Kineto's instants tell it."""
    return [
        of_events(rows, rank, cycle, device)
        for (rank, cycle, device), rows in grouped(memory_events, ["rank", "cycle", "device"])
    ]


def most_held_by(memory_events: pd.DataFrame) -> dict[tuple[int, str], int]:
    """The most that is held on each device of each rank: reserved, or else allocated; nothing if neither is known."""
    most: dict[tuple[int, str], int] = {}
    for (rank, device), rows in grouped(memory_events, ["rank", "device"]):
        held = max(int(_numbers(rows[name]).max()) for name in ("reserved_bytes", "allocated_bytes"))
        if held != NOT_RECORDED:
            most[rank, device] = held
    return most


def of_events(events: pd.DataFrame, rank: int, cycle: int, device: str) -> DeviceMemory:
    """The memory of one device from its rows of `memory_events`.

    Kineto writes an instant for each allocation and release: address, bytes, and both totals since torch 1.10. In their
    order each total is the one before plus the bytes. Torch leaves out the release of a block of the CPU that it did
    not see allocated (`ProfiledCPUMemoryReporter::Delete` in c10/core/CPUAllocator.cpp).
    """
    events = events.iloc[np.argsort(events["time_ns"].to_numpy(), kind="stable")]
    changes = _Changes(*(_numbers(events[name]) for name in _Changes._fields))
    changes = changes._replace(change_bytes=np.where(changes.change_bytes == NOT_RECORDED, 0, changes.change_bytes))
    allocated = _numbers(events["allocated_bytes"])
    counts_all = not (allocated == NOT_RECORDED).any()
    knows_blocks = not (changes.address == NOT_RECORDED).any()
    return DeviceMemory(
        rank=rank,
        cycle=cycle,
        device=device,
        time_ns=events["time_ns"].to_numpy(dtype=np.int64),
        allocated_bytes=allocated if counts_all else np.cumsum(changes.change_bytes),
        reserved_bytes=_numbers(events["reserved_bytes"]),
        thread=changes.thread,
        blocks=_blocks(changes) if knows_blocks else Blocks.none(),
        found_bytes=int(allocated[0] - changes.change_bytes[0]) if counts_all else 0,
        counts_all=counts_all,
        knows_blocks=knows_blocks,
    )


def _blocks(changes: _Changes) -> Blocks:
    """Pair each allocation with the release that follows at its address.

    A release without an allocation is of an older block. Where an address is allocated twice, the first block had been
    released by then, although that was not recorded.
    """
    events = len(changes.address)
    order = np.argsort(changes.address, kind="stable")
    order = order[changes.change_bytes[order] != 0]  # of nothing, such as of empty tensors
    begins = changes.change_bytes[order] > 0
    releases = changes.change_bytes[order] < 0
    address = changes.address[order]
    if not len(order):
        return Blocks.none()
    again = address[1:] == address[:-1]
    following = np.append(np.where(again, order[1:], events), events)
    older = releases & ~np.append(False, again & begins[:-1])
    known, before = order[begins], order[older]
    event = np.append(known, before)
    blocks = Blocks.of(
        np.abs(changes.change_bytes[event]),
        np.append(known, np.full(len(before), BEFORE)),
        np.append(following[begins], before),
        address=changes.address[event],
        thread=np.append(changes.thread[known], np.full(len(before), NOT_RECORDED)),
    )
    return _in_order(blocks)


def _in_order(blocks: Blocks) -> Blocks:
    """In the order in which they were allocated, and of those that are older, released."""
    order = np.lexsort((blocks.freed, blocks.allocated))
    return replace(blocks, **{name: getattr(blocks, name)[order] for name in Blocks.__dataclass_fields__})


def _numbers(column: pd.Series[Any]) -> Ints:
    """A column of integers, NOT_RECORDED where it is NA."""
    values: Ints = bare(column) if column.dtype == "int64" else column.to_numpy(dtype=np.int64, na_value=NOT_RECORDED)
    return values
