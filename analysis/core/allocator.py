"""What a snapshot of torch's caching allocator holds, as plain records and arrays. No file is read here.

Source of the meaning of fields: `torch.cuda.memory._snapshot` and c10/cuda/CUDACachingAllocator.cpp. Sizes are bytes,
times nanoseconds since 1970 on the host's clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class AllocatorAction(IntEnum):
    """What the allocator did in an entry of its history."""

    alloc = 0
    free_requested = 1
    free_completed = 2
    segment_alloc = 3
    segment_free = 4
    segment_map = 5
    segment_unmap = 6
    oom = 7
    snapshot = 8


class BlockState(IntEnum):
    """Whether a block is in use: by a tensor, by another stream only, or not at all."""

    inactive = 0
    allocated = 1
    awaiting_free = 2


class StackFrame(NamedTuple):
    """A place in a program: function, file and line."""

    name: str
    filename: str
    line: int


NO_STACK = -1
"""In columns of stacks: none was recorded."""


def _column() -> array[int]:
    return array("q")


@dataclass(frozen=True)
class SegmentColumns:
    """Memory taken from the device, as it was when the snapshot was made: one value per segment."""

    address: array[int] = field(default_factory=_column)
    size: array[int] = field(default_factory=_column)
    stream: array[int] = field(default_factory=_column)
    is_expandable: array[int] = field(default_factory=_column)
    is_private: array[int] = field(default_factory=_column)
    """Whether it belongs to a pool of its own, as those of CUDA graphs do."""


@dataclass(frozen=True)
class BlockColumns:
    """Parts of segments, in use or free, as they were when the snapshot was made."""

    address: array[int] = field(default_factory=_column)
    size: array[int] = field(default_factory=_column)
    requested: array[int] = field(default_factory=_column)
    """The bytes asked for; those of the block where the file does not say."""
    state: array[int] = field(default_factory=_column)
    stack: array[int] = field(default_factory=_column)
    segment: array[int] = field(default_factory=_column)


@dataclass(frozen=True)
class EntryColumns:
    """The newest entries of the history, oldest first.

    `size` is what was requested, of a segment its own, of `oom` the failed request. `address` of `oom` is what was
    free on the device.
    """

    action: array[int] = field(default_factory=_column)
    address: array[int] = field(default_factory=_column)
    size: array[int] = field(default_factory=_column)
    stream: array[int] = field(default_factory=_column)
    time_ns: array[int] = field(default_factory=_column)
    """Empty where entries have no times, as before torch 2.2."""
    stack: array[int] = field(default_factory=_column)


@dataclass(frozen=True)
class DeviceSnapshot:
    """The allocator of one device."""

    segments: SegmentColumns = field(default_factory=SegmentColumns)
    blocks: BlockColumns = field(default_factory=BlockColumns)
    entries: EntryColumns = field(default_factory=EntryColumns)


class AnnotatedSpan(NamedTuple):
    """A region that was marked while history was recorded; an end is None where the history does not hold it."""

    name: str
    device: int
    start_ns: int | None
    end_ns: int | None


@dataclass(frozen=True)
class Snapshot:
    """The content of one file, which says neither its rank nor its job."""

    devices: Mapping[int, DeviceSnapshot]
    spans: Sequence[AnnotatedSpan]
    frames: Sequence[StackFrame]
    stacks: Sequence[Sequence[int]]
    """Indices into `frames`, innermost first."""
    settings: Mapping[str, str]
    """Those of the allocator that are plain values, as texts."""
    notes: Sequence[str] = ()
    kept_bytes: int = 0
    """The memory that it takes, at most."""
