"""torch's caching allocator, played here, and the snapshots that torch would write of it: everything is known.

It takes and splits segments as c10/cuda/CUDACachingAllocator.cpp does: small and large pools for each stream, blocks of
whole 512 bytes, the best fit, neighbours merged when free, a release that waits for other streams, expandable segments,
and cached segments given back before a request fails.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from commtrace.analysis.core.allocator import DeviceSnapshot
from commtrace.analysis.formats.snapshots.snapshot import read_snapshot

MIB = 1 << 20
_MIN_BLOCK, _SMALL = 512, MIB
_SMALL_BUFFER, _LARGE_BUFFER, _MIN_LARGE, _ROUND_LARGE = 2 * MIB, 20 * MIB, 10 * MIB, 2 * MIB
_FIRST_ADDRESS = 0x7F_0000_000000
_EXPANDABLE_ROOM = 1 << 40
START_US = 1_758_581_237_000_000

Frames: TypeAlias = "tuple[tuple[str, str, int], ...]"
"""Function, file and line, innermost first."""
Total = tuple[int, int, int]
"""Allocated, active and reserved bytes."""

TORCH: Frames = (
    ("__call__", "/usr/lib/python3/site-packages/torch/nn/modules/module.py", 1751),
    ("forward", "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", 125),
)
BOTTOM: Frames = (("<module>", "/code/train.py", 99),)


def called(name: str, line: int, filename: str = "/code/train.py") -> Frames:
    """A stack: torch's own code, called from this line, in the main program."""
    return (*TORCH, (name, filename, line), *BOTTOM)


class OutOfMemory(Exception):
    """The device has no room for a request."""


@dataclass
class Segment:
    """Memory taken from the device."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool = False


@dataclass
class Piece:
    """A block as it is now: a part of a segment."""

    address: int
    size: int
    segment: Segment
    state: str = "inactive"
    requested: int = 0
    frames: Frames = ()
    streams: set[int] = field(default_factory=set)
    life: Life | None = None


@dataclass
class Life:
    """A block from its allocation on: numbers of entries, None while it lasts."""

    address: int
    requested: int
    size: int
    frames: Frames
    allocated: int
    category: str = "unknown"
    requested_free: int | None = None
    completed_free: int | None = None

    @property
    def told_bytes(self) -> int:
        """What can be known of its size: all if it is in use at the end, else the request rounded up to 512."""
        return self.size if self.completed_free is None else max(512, -(-self.requested // 512) * 512)


@dataclass
class Allocator:
    """The allocator of one device; `entries` are all that happened, and `totals` what held after each of them."""

    device: int = 0
    capacity: int = 80 << 30
    expandable: bool = False
    entries: list[dict[str, Any]] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    now_us: int = START_US
    _pieces: list[Piece] = field(default_factory=list)
    _segments: list[Segment] = field(default_factory=list)
    _stacks: dict[Frames, list[dict[str, Any]]] = field(default_factory=dict)
    _next_address: int = _FIRST_ADDRESS

    def malloc(self, size: int, stream: int = 0, frames: Frames = (), category: str = "unknown") -> int:
        """Allocate, and return the address. Raises OutOfMemory."""
        block = max(_MIN_BLOCK, -(-size // _MIN_BLOCK) * _MIN_BLOCK)
        piece = self._found(block, stream) or self._taken(size, block, stream, frames)
        left = piece.size - block
        if self._is_split(piece, left):
            self._pieces.append(Piece(piece.address + block, left, piece.segment))
            piece.size = block
        piece.state, piece.requested, piece.frames, piece.streams = "active_allocated", size, frames, set()
        piece.life = Life(piece.address, size, piece.size, frames, len(self.entries), category)
        self.lives.append(piece.life)
        self._record("alloc", piece.address, size, piece.segment.stream, frames)
        return piece.address

    def use_on(self, address: int, stream: int) -> None:
        """Use a block on another stream, as `record_stream`."""
        piece = self._at(address)
        if stream != piece.segment.stream:
            piece.streams.add(stream)

    def free(self, address: int, frames: Frames = ()) -> None:
        """Release a block; one that other streams use stays active until they are waited for."""
        piece = self._at(address)
        assert piece.state == "active_allocated"
        assert piece.life is not None
        piece.state = "active_pending_free"
        piece.life.requested_free = len(self.entries)
        self._record("free_requested", address, piece.requested, piece.segment.stream, frames)
        if not piece.streams:
            self._complete(piece, frames)

    def synchronize(self) -> None:
        """Wait for all streams, which completes releases."""
        for piece in [piece for piece in self._pieces if piece.state == "active_pending_free"]:
            self._complete(piece, ())

    def empty_cache(self) -> None:
        """Give segments back that nothing uses."""
        self.synchronize()
        for segment in list(self._segments):
            inside = [piece for piece in self._pieces if piece.segment is segment]
            if segment.expandable:
                self._unmap_end(segment, inside)
            elif len(inside) == 1 and inside[0].state == "inactive":
                self._pieces.remove(inside[0])
                self._segments.remove(segment)
                self._record("segment_free", segment.address, segment.size, segment.stream, ())

    def pause(self, us: int) -> None:
        """Let time pass."""
        self.now_us += us

    def mark(self, name: str, stage: str) -> None:
        """Begin or end an annotated region."""
        self.annotations.append({"name": name, "stage": stage, "device": self.device, "time_us": self.now_us})

    @property
    def total(self) -> Total:
        """Allocated, active and reserved bytes now."""
        sizes = {"active_allocated": 0, "active_pending_free": 0, "inactive": 0}
        for piece in self._pieces:
            sizes[piece.state] += piece.size
        allocated = sizes["active_allocated"]
        return allocated, allocated + sizes["active_pending_free"], sum(segment.size for segment in self._segments)

    def largest_free(self) -> int:
        """The largest free block."""
        return max((piece.size for piece in self._pieces if piece.state == "inactive"), default=0)

    def told_totals(self, first: int) -> list[Total]:
        """What a history from entry `first` on can tell: totals before it and after each, by `Life.told_bytes`."""
        told: list[Total] = []
        for after in range(first - 1, len(self.entries)):
            allocated = active = 0
            for life in self.lives:
                if life.allocated <= after:
                    asked, done = life.requested_free, life.completed_free
                    allocated += life.told_bytes * (asked is None or asked > after)
                    active += life.told_bytes * (done is None or done > after)
            told.append((allocated, active, self.totals[after][2] if after >= 0 else 0))
        return told

    def segments(self) -> list[dict[str, Any]]:
        """The segments as a snapshot has them."""
        return [self._segment(segment) for segment in sorted(self._segments, key=lambda one: one.address)]

    def _segment(self, segment: Segment) -> dict[str, Any]:
        inside = sorted((one for one in self._pieces if one.segment is segment), key=lambda one: one.address)
        active = [piece for piece in inside if piece.state != "inactive"]
        allocated = [piece for piece in active if piece.state == "active_allocated"]
        return {
            "device": self.device,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": sum(piece.size for piece in allocated),
            "active_size": sum(piece.size for piece in active),
            "requested_size": sum(piece.requested for piece in active),
            "stream": segment.stream,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": segment.expandable,
            "frames": [],
            "blocks": [self._block(piece) for piece in inside],
        }

    def _block(self, piece: Piece) -> dict[str, Any]:
        in_use = piece.state != "inactive"
        return {
            "address": piece.address,
            "size": piece.size,
            "requested_size": piece.requested if in_use else 0,
            "state": piece.state,
            "frames": self._stack(piece.frames) if in_use else [],
        }

    def _stack(self, frames: Frames) -> list[dict[str, Any]]:
        """One list for all that have the same stack, as torch makes it."""
        if frames not in self._stacks:
            self._stacks[frames] = [
                {"name": name, "filename": filename, "line": line} for name, filename, line in frames
            ]
        return self._stacks[frames]

    def _record(self, action: str, address: int, size: int, stream: int, frames: Frames) -> None:
        key = "device_free" if action == "oom" else "addr"
        self.now_us += 1
        self.entries.append({
            "action": action, key: address, "size": size, "stream": stream, "time_us": self.now_us,
            "compile_context": "N/A", "user_metadata": "", "frames": self._stack(frames),
        })  # fmt: skip
        self.totals.append(self.total)

    def _at(self, address: int) -> Piece:
        return next(piece for piece in self._pieces if piece.address == address)

    def _found(self, block: int, stream: int) -> Piece | None:
        """The smallest free block that is large enough."""
        fits = [
            piece
            for piece in self._pieces
            if piece.state == "inactive" and piece.size >= block and piece.segment.stream == stream
            if piece.segment.small == (block <= _SMALL)
        ]
        return min(fits, key=lambda piece: (piece.size, piece.address), default=None)

    def _taken(self, request: int, block: int, stream: int, frames: Frames) -> Piece:
        """A new segment, or the new end of an expandable one. Raises OutOfMemory."""
        small = block <= _SMALL
        if self.expandable:
            size = -(-block // _SMALL_BUFFER) * _SMALL_BUFFER if small else -(-block // _LARGE_BUFFER) * _LARGE_BUFFER
        elif small:
            size = _SMALL_BUFFER
        else:
            size = _LARGE_BUFFER if block < _MIN_LARGE else -(-block // _ROUND_LARGE) * _ROUND_LARGE
        if sum(segment.size for segment in self._segments) + size > self.capacity:
            self.empty_cache()
            free = self.capacity - sum(segment.size for segment in self._segments)
            if size > free:
                self._record("oom", free, request, stream, frames)
                raise OutOfMemory(f"tried to allocate {request} bytes")
        return self._mapped(size, stream, small, frames) if self.expandable else self._new(size, stream, small, frames)

    def _new(self, size: int, stream: int, small: bool, frames: Frames) -> Piece:
        segment = Segment(self._next_address, size, stream, small)
        self._next_address += size + _ROUND_LARGE
        self._segments.append(segment)
        piece = Piece(segment.address, size, segment)
        self._pieces.append(piece)
        self._record("segment_alloc", segment.address, size, stream, frames)
        return piece

    def _mapped(self, size: int, stream: int, small: bool, frames: Frames) -> Piece:
        known = [one for one in self._segments if one.stream == stream and one.small == small]
        if known:
            segment = known[0]
        else:
            segment = Segment(self._next_address, 0, stream, small, expandable=True)
            self._next_address += _EXPANDABLE_ROOM
            self._segments.append(segment)
        inside = sorted((one for one in self._pieces if one.segment is segment), key=lambda one: one.address)
        at = segment.address + segment.size
        segment.size += size
        if inside and inside[-1].state == "inactive":
            inside[-1].size += size
            piece = inside[-1]
        else:
            piece = Piece(at, size, segment)
            self._pieces.append(piece)
        self._record("segment_map", at, size, stream, frames)
        return piece

    def _unmap_end(self, segment: Segment, inside: list[Piece]) -> None:
        last = max(inside, key=lambda piece: piece.address)
        whole = last.size // _SMALL_BUFFER * _SMALL_BUFFER
        if last.state != "inactive" or not whole:
            return
        last.size -= whole
        segment.size -= whole
        at = segment.address + segment.size
        if not last.size:
            self._pieces.remove(last)
        if not segment.size:
            self._segments.remove(segment)
        self._record("segment_unmap", at, whole, segment.stream, ())

    def _is_split(self, piece: Piece, left: int) -> bool:
        if piece.segment.small or piece.segment.expandable:
            return left >= _MIN_BLOCK
        return left > _SMALL

    def _complete(self, piece: Piece, frames: Frames) -> None:
        assert piece.life is not None
        piece.life.completed_free = len(self.entries)
        requested, address, stream = piece.requested, piece.address, piece.segment.stream
        piece.state, piece.requested, piece.frames, piece.life = "inactive", 0, (), None
        self._merge(piece)
        self._record("free_completed", address, requested, stream, frames)

    def _merge(self, piece: Piece) -> None:
        """Join a free block with free neighbours in its segment."""
        for other in [one for one in self._pieces if one.segment is piece.segment and one.state == "inactive"]:
            if other.address + other.size == piece.address:
                piece.address, piece.size = other.address, piece.size + other.size
                self._pieces.remove(other)
            elif piece.address + piece.size == other.address:
                piece.size += other.size
                self._pieces.remove(other)


def played(seed: int) -> tuple[Allocator, int | None]:
    """An allocator after a program drawn by chance, and how many entries are kept of it."""
    chance = random.Random(seed)
    sizes = [1, 511, 513, 40_000, MIB, MIB + 1, 3 * MIB, 21 * MIB + 1]
    allocator = Allocator(expandable=chance.random() < 0.3, capacity=chance.choice([80 << 30, 200 * MIB]))
    held: list[int] = []
    for _ in range(chance.randrange(120)):
        what = chance.random()
        if what < 0.55 or not held:
            size = chance.choice([*sizes, chance.randrange(1, 30 * MIB)])
            with suppress(OutOfMemory):
                held.append(allocator.malloc(size, chance.choice([0, 0, 7]), called("f", chance.randrange(3))))
        elif what < 0.62:
            allocator.use_on(chance.choice(held), 7)
        elif what < 0.95:
            allocator.free(held.pop(chance.randrange(len(held))), called("g", 1))
        elif what < 0.98:
            allocator.synchronize()
        else:
            allocator.empty_cache()
    return allocator, chance.choice([None, 1, 10, 50])


def snapshot(
    *allocators: Allocator, max_entries: int | None = None, without: Iterable[str] = (), devices: int | None = None
) -> dict[str, Any]:
    """What `torch.cuda.memory._snapshot` gives: the newest entries, and no keys that are in `without`, as once."""
    count = devices or 1 + max(one.device for one in allocators)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for one in allocators:
        traces[one.device] = one.entries[-max_entries:] if max_entries else list(one.entries)
    content = {
        "segments": [segment for one in allocators for segment in one.segments()],
        "device_traces": traces,
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
            "expandable_segments": any(one.expandable for one in allocators), "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False,
            "roundup_power2_divisions": {"1": 0, "2": 0, "65536": 0},
        },
        "external_annotations": sorted((mark for one in allocators for mark in one.annotations), key=_time),
    }  # fmt: skip
    dropped = frozenset(without)
    return _without(content, dropped) if dropped else content


def _time(mark: dict[str, Any]) -> int:
    return int(mark["time_us"])


def _without(content: Any, dropped: frozenset[str]) -> Any:
    if isinstance(content, dict):
        return {key: _without(value, dropped) for key, value in content.items() if key not in dropped}
    return [_without(value, dropped) for value in content] if isinstance(content, list) else content


def write(content: dict[str, Any], path: Path, protocol: int = pickle.DEFAULT_PROTOCOL) -> Path:
    """Write a snapshot as a pickle, or as JSON where the name says so."""
    if path.suffix == ".json":
        path.write_text(json.dumps(content), encoding="utf-8")
    else:
        path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def device_of(content: dict[str, Any], path: Path, number: int = 0) -> DeviceSnapshot:
    """Write a snapshot, and read one device of it."""
    return read_snapshot(write(content, path)).devices[number]
