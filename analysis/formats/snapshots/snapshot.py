"""Read one snapshot of torch's allocator. Only this module knows its keys.

Snapshots differ by version: torch before 2.2 writes no `time_us`, before 2.1 no `frames` in blocks but a `history` of
them, before 2.6 no `external_annotations`. Source: torch/csrc/cuda/Module.cpp and memory_snapshot.cpp, which agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....common.wording import counted
from ...core.allocator import NO_STACK, AllocatorAction, AnnotatedSpan, BlockState, DeviceSnapshot, Snapshot, StackFrame
from ...core.budget import Budget
from ...errors import DamagedTrace, NotATrace
from ...recording.plain_content import budget_of, is_pickle, plain_bytes, plain_content, scalar_text, whole_number
from ..flight_recorder.entry import begins_like_dump
from ..others import SNAPSHOT, begins_like_kineto, foreign_file

_KEYS = frozenset({"segments", "device_traces"})
_READS = "expected a snapshot of torch's memory allocator, as torch.cuda.memory._dump_snapshot writes it"
_FIRST_BYTES = 4 << 10
_JSON_BLANKS = b" \t\r\n"
_ACTIONS = {action.name: action for action in AllocatorAction}
_STATES = {
    "inactive": BlockState.inactive,
    "active_allocated": BlockState.allocated,
    "active_pending_free": BlockState.awaiting_free,
    "active_awaiting_free": BlockState.awaiting_free,  # as torch's documentation has it
}
_NS = 1_000
_MOST_DEVICES = 1_024
_MOST_FRAMES = 1_000  # of a stack
# As they are kept: an entry or block, also while it is replayed, a stack, one of its frames, a frame itself, a span.
_ROW_BYTES, _STACK_BYTES, _PLACE_BYTES, _FRAME_BYTES, _SPAN_BYTES = 400, 200, 8, 400, 300
_MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)


def read_snapshot(path: Path, limit_bytes: int | None = None) -> Snapshot:
    """Read a snapshot, a pickle or JSON. Raises TraceError; TooLarge if it needs more memory than `limit_bytes`."""
    budget = budget_of(path, limit_bytes)
    data = plain_bytes(path, budget)
    foreign = foreign_file(data)
    if foreign not in (None, SNAPSHOT) and not is_pickle(data):
        raise NotATrace(f"{path}: {foreign}; {_READS}")
    if begins_like_dump(data[:_FIRST_BYTES]):
        raise NotATrace(f"{path}: is a dump of the flight recorder, which `commtrace hang` reads; {_READS}")
    if not is_pickle(data) and data.lstrip(_JSON_BLANKS)[:1] not in (b"{", b"["):
        raise NotATrace(f"{path}: is neither a pickle nor JSON; {_READS}")
    if not is_pickle(data) and begins_like_kineto(data[:_FIRST_BYTES]):
        raise NotATrace(f"{path}: is a trace of torch.profiler; {_READS}")
    content = plain_content(path, data, budget)
    if not isinstance(content, dict) or not _KEYS & content.keys():
        raise NotATrace(f"{path}: holds neither segments nor device_traces; {_READS}")
    try:
        return _Reading(f"{path}: what it holds", budget).snapshot(content)
    except _MALFORMED as err:
        what = f"{type(err).__name__}: {err}"
        raise DamagedTrace(f"{path}: is not as torch writes a snapshot ({what[:200]}); dump it again") from err


class _Reading:
    """One snapshot while it is read. A pickle may refer to one list from many places: each visit counts as work."""

    def __init__(self, what: str, budget: Budget) -> None:
        self._what, self._budget = what, budget
        self._kept_bytes = 0
        self._devices: dict[int, DeviceSnapshot] = {}
        self._frames: dict[StackFrame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._by_identity: dict[int, int] = {}  # torch writes a stack that many entries have once
        self._frame_by_identity: dict[int, int] = {}
        self._unknown: Counter[str] = Counter()

    def snapshot(self, content: Mapping[str, Any]) -> Snapshot:
        """The whole content. Raises TooLarge, DamagedTrace, and errors of wrong types."""
        for segment in self._listed(content.get("segments")):
            self._add_segment(segment)
        for number, entries in enumerate(self._listed(content.get("device_traces"))):
            if entries:
                self._add_entries(number, self._listed(entries))
        settings = content.get("allocator_settings") or {}
        notes = [
            f"{counted(count, 'record')} of the unknown sort {name!r} left out" for name, count in self._unknown.items()
        ]
        return Snapshot(
            devices=dict(sorted(self._devices.items())),
            spans=self._spans(self._listed(content.get("external_annotations"))),
            frames=list(self._frames),
            stacks=list(self._stacks),
            settings={
                scalar_text(key): scalar_text(value)
                for key, value in settings.items()
                if isinstance(value, str | int | float | None)
            },
            notes=notes,
            kept_bytes=self._kept_bytes,
        )

    def _listed(self, given: Any) -> list[Any]:
        """A list, whose visit is counted. Raises TypeError."""
        if given is None:
            return []
        if not isinstance(given, list):
            raise TypeError(f"a {type(given).__name__} stands where a list is expected")
        self._budget.work(self._what, len(given))
        return given

    def _keep(self, size: int) -> None:
        self._budget.draw(self._what, size)
        self._kept_bytes += size

    def _device(self, number: int) -> DeviceSnapshot:
        if not 0 <= number < _MOST_DEVICES:
            raise ValueError(f"a device has number {number}")
        found = self._devices.get(number)
        if found is None:
            found = self._devices[number] = DeviceSnapshot()
        return found

    def _add_segment(self, segment: Mapping[str, Any]) -> None:
        device = self._device(whole_number(segment.get("device", 0)))
        kept = device.segments
        blocks = self._listed(segment["blocks"])
        self._keep(_ROW_BYTES * (1 + len(blocks)))
        address, number = whole_number(segment["address"]), len(kept.size)
        kept.address.append(address)
        kept.size.append(_size(segment["total_size"]))
        kept.stream.append(whole_number(segment.get("stream", 0)))
        kept.is_expandable.append(bool(segment.get("is_expandable", False)))
        pool = segment.get("segment_pool_id") or (0, 0)
        kept.is_private.append(whole_number(pool[0]) != 0 or whole_number(pool[1]) != 0)
        at = address
        for block in blocks:
            begin = block.get("address")
            at = at if begin is None else whole_number(begin)
            history = block.get("history") or [{}]
            size = _size(block["size"])
            requested = block.get("requested_size", history[0].get("real_size"))
            device.blocks.address.append(at)
            device.blocks.size.append(size)
            device.blocks.requested.append(size if requested is None else _size(requested))
            device.blocks.state.append(_STATES[block["state"]])
            device.blocks.stack.append(self._stack(block.get("frames", history[0].get("frames"))))
            device.blocks.segment.append(number)
            at += size

    def _add_entries(self, number: int, entries: list[Any]) -> None:
        kept = self._device(number).entries
        self._keep(_ROW_BYTES * len(entries))
        timed = all("time_us" in entry for entry in entries)
        for entry in entries:
            action = _ACTIONS.get(entry["action"])
            if action is None:
                self._unknown[_name(entry["action"])] += 1
                continue
            address = entry.get("device_free") if action is AllocatorAction.oom else entry.get("addr")
            kept.action.append(action)
            kept.address.append(whole_number(address or 0))
            kept.size.append(_size(entry["size"]))
            kept.stream.append(whole_number(entry.get("stream") or 0))
            kept.stack.append(self._stack(entry.get("frames")))
            if timed:
                kept.time_ns.append(whole_number(entry["time_us"]) * _NS)

    def _stack(self, frames: Any) -> int:
        """The number of a stack, the same for equal ones."""
        if not frames:
            return NO_STACK
        number = self._by_identity.get(id(frames))  # what was read lives as long as this
        if number is None:
            listed = self._listed(frames)[:_MOST_FRAMES]
            stack = tuple([self._frame(frame) for frame in listed])
            number = self._stacks.get(stack)
            if number is None:
                self._keep(_STACK_BYTES + _PLACE_BYTES * len(stack))
                number = self._stacks[stack] = len(self._stacks)
            self._by_identity[id(frames)] = number
        return number

    def _frame(self, frame: Mapping[str, Any]) -> int:
        number = self._frame_by_identity.get(id(frame))
        if number is None:
            found = StackFrame(
                scalar_text(frame.get("name", "")), scalar_text(frame["filename"]), whole_number(frame.get("line", 0))
            )
            number = self._frames.get(found)
            if number is None:
                self._keep(_FRAME_BYTES)
                number = self._frames[found] = len(self._frames)
            self._frame_by_identity[id(frame)] = number
        return number

    def _spans(self, annotations: list[Any]) -> list[AnnotatedSpan]:
        """Spans from their starts and ends; of equal names on one device the innermost ends first."""
        self._keep(_SPAN_BYTES * len(annotations))
        open_starts: dict[tuple[str, int], list[int]] = {}
        spans: list[AnnotatedSpan] = []
        for one in annotations:
            key = scalar_text(one.get("name", "")), whole_number(one.get("device", 0))
            time_ns = whole_number(one["time_us"]) * _NS
            if scalar_text(one.get("stage", "")) == "START":
                open_starts.setdefault(key, []).append(time_ns)
            else:
                starts = open_starts.get(key)
                spans.append(AnnotatedSpan(*key, starts.pop() if starts else None, time_ns))
        spans += [AnnotatedSpan(*key, start, None) for key, starts in open_starts.items() for start in starts]
        return sorted(spans, key=lambda span: span.end_ns if span.start_ns is None else span.start_ns)  # type: ignore[arg-type, return-value]


def _name(value: Any) -> str:
    """The beginning of a text. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} stands where a text is expected")
    return value[:40]


def _size(value: Any) -> int:
    """A size in bytes. Raises TypeError, ValueError."""
    size = whole_number(value)
    if size < 0:
        raise ValueError(f"a size is {size}")
    return size
