"""The memory of a rank's devices as a snapshot of torch's allocator tells it, in the common model of `held`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ....common.nccl_tests import collective_name
from ....common.wording import counted
from ...core import markers
from ...core.allocator import NO_STACK, AllocatorAction, AnnotatedSpan, DeviceSnapshot, Snapshot
from ...core.intervals import Times
from ...core.schema import Row
from ...core.steps import Mark, steps_at
from ..regions.nesting import DIRECT
from .categories import COMMUNICATION_BUFFERS, GRADIENTS, STATE, UNKNOWN_USE
from .fragments import fragments_at
from .held import BEFORE, NOT_RECORDED, Blocks, DeviceMemory
from .places import OPTIMIZER, Places, is_backward, nowhere
from .replayed import Lives, Replayed, rounded, undone
from .stacks import Told, told_by_stacks
from .table import ExplainedMemory

_BACKENDS = (*markers.OF_BACKENDS, markers.GLOO_MARK)
"""How the spans of collectives begin."""


class SnapshotMemory(NamedTuple):
    """One device of a snapshot: its memory with what is known of it, and what only a snapshot says."""

    explained: ExplainedMemory
    device: DeviceSnapshot
    replayed: Replayed


def memory_of_snapshot(snapshot: Snapshot, rank: int) -> Iterator[SnapshotMemory]:
    """Yield the memory of each device. Event 0 is what the history found, and event N + 1 is its entry N."""
    told = told_by_stacks(snapshot)
    for number, device in snapshot.devices.items():
        known = undone(device)
        memory = _memory(device, known, rank, str(number), told)
        spans = [span for span in snapshot.spans if span.device == number]
        places = _places(memory, device, told, spans)
        yield SnapshotMemory(ExplainedMemory(memory, places, _marks(memory, spans, only_whole=True)), device, known)


def _memory(device: DeviceSnapshot, known: Replayed, rank: int, name: str, told: Sequence[Told]) -> DeviceMemory:
    return DeviceMemory(
        rank=rank,
        cycle=0,
        device=name,
        time_ns=_times(device),
        allocated_bytes=known.allocated_bytes,
        reserved_bytes=known.reserved_bytes,
        thread=np.full(len(known.allocated_bytes), NOT_RECORDED),
        blocks=_blocks(known.lives, told),
        found_bytes=int(known.allocated_bytes[0]),
    )


def _times(device: DeviceSnapshot) -> Times:
    """When each event was, NOT_RECORDED where the snapshot has no times."""
    if not device.entries.time_ns:
        return np.full(1 + len(device.entries.action), NOT_RECORDED)
    times: Times = np.maximum.accumulate(np.array(device.entries.time_ns, dtype=np.int64))
    return np.append(times[0] - 1, times)


def _blocks(lives: Lives, told: Sequence[Told]) -> Blocks:
    """The blocks that tensors used at some time of the history."""
    used = lives.requested_free > lives.allocated
    stacks = [told[number] for number in lives.stack[used].tolist()]
    older = lives.allocated[used] < 0
    category = [
        _use_of_older(one) if is_older and number >= 0 else COMMUNICATION_BUFFERS if one.is_communicating else None
        for one, is_older, number in zip(stacks, older, lives.stack[used].tolist(), strict=True)
    ]
    return Blocks.of(
        lives.size_bytes[used],
        np.where(older, BEFORE, lives.allocated[used] + 1),
        lives.requested_free[used] + 1,
        alike_bytes=np.array([rounded(request) for request in lives.requested_bytes[used].tolist()], dtype=np.int64),
        address=lives.address[used],
        line=_objects([one.line for one in stacks]),
        category=_objects(category),
    )


def _use_of_older(told: Told) -> str:
    """What a block is for that was allocated before the history, by the stack that is still known of it."""
    if told.is_communicating:
        return COMMUNICATION_BUFFERS
    if told.phase == OPTIMIZER:
        return STATE
    return GRADIENTS if is_backward(np.array([told.phase]))[0] else UNKNOWN_USE


def _objects(values: Sequence[object]) -> NDArray[np.object_]:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def _places(
    memory: DeviceMemory, device: DeviceSnapshot, told: Sequence[Told], spans: Sequence[AnnotatedSpan]
) -> Places:
    """Where each event was, as far as stacks and spans tell."""
    stacks = [told[number] for number in _stacks_of_events(device)]
    at = [Told(None, DIRECT, None, False), *stacks]
    return nowhere(memory)._replace(
        phase=np.array([one.phase for one in at], dtype=np.int64),
        operator=_objects([one.operator for one in at]),
        line=_objects([one.line for one in at]),
        is_communicating=np.array([one.is_communicating for one in at], dtype=bool),
        step=steps_at(memory.time_ns, _marks(memory, spans, only_whole=False)),
    )


def _stacks_of_events(device: DeviceSnapshot) -> list[int]:
    """The stack of each entry; of releases, if none of them has any, that of the last allocation."""
    entries = device.entries
    releases = (AllocatorAction.free_requested, AllocatorAction.free_completed)
    pairs = list(zip(entries.action, entries.stack, strict=True))
    if any(stack != NO_STACK for action, stack in pairs if action in releases):
        return list(entries.stack)
    last, found = NO_STACK, []
    for action, stack in pairs:
        last = last if action in releases else stack
        found.append(last)
    return found


def _marks(memory: DeviceMemory, spans: Sequence[AnnotatedSpan], *, only_whole: bool) -> list[Mark]:
    """Marks of steps; one that has not ended lasts to the end. With `only_whole`, of those that the history holds."""
    first, last = int(memory.time_ns[0]), int(memory.time_ns[-1]) + 1
    found = []
    for span in spans:
        number = span.name.removeprefix(markers.PROFILER_STEP)
        if span.name == number or not number.isdecimal() or span.start_ns is None or last <= 0:
            continue
        if not only_whole or (span.end_ns is not None and span.start_ns >= first):
            end = max(last, span.start_ns) if span.end_ns is None else span.end_ns
            found.append((span.name, span.start_ns, end - span.start_ns))
    return found


def calls_of_snapshot(snapshot: Snapshot, rank: int) -> pd.DataFrame:
    """Collectives whose spans the snapshot has, with those columns of `calls` that tell what was in flight.

    A span is that of the call on the host. One that has not ended lasts for good.
    """
    rows = [
        {
            "rank": rank,
            "cycle": 0,
            "collective": collective_name(plain := span.name.partition(":")[2]) or plain,
            "start_ns": span.start_ns,
            "dur_ns": (np.iinfo(np.int64).max // 2 if span.end_ns is None else span.end_ns) - span.start_ns,
        }
        for span in snapshot.spans
        if span.name.startswith(_BACKENDS) and span.start_ns is not None
    ]
    table = pd.DataFrame(rows, columns=["rank", "cycle", "collective", "start_ns", "dur_ns"])
    unknown = pd.array([None] * len(table), dtype="Int64")
    return table.assign(issue_ns=unknown, size_bytes=unknown).astype({"start_ns": "int64", "dur_ns": "int64"})


def fragment_row(one: SnapshotMemory) -> Row:
    """The row of `fragments` of a device, at its peak."""
    memory, known = one.explained.memory, one.replayed
    peak = known.peak
    found = fragments_at(one.device, known, peak)
    reserved, active = int(known.reserved_bytes[peak]), int(known.active_bytes[peak])
    private = sum(
        size for size, own in zip(one.device.segments.size, one.device.segments.is_private, strict=True) if own
    )
    return {
        "rank": memory.rank,
        "device": memory.device,
        "allocated_bytes": int(known.allocated_bytes[peak]),
        "active_bytes": active,
        "reserved_bytes": reserved,
        "inactive_bytes": reserved - active,
        "fragmentation_frac": (reserved - active) / reserved if reserved else None,
        "private_pool_bytes": private,
        **found._asdict(),
        "note": "; ".join(notes_on_snapshot(one)) or None,
    }


def notes_on_snapshot(one: SnapshotMemory) -> list[str]:
    """What a reader of the numbers has to know: how sizes are known, and what the history lacks."""
    known = one.replayed
    lives, peak = known.lives, known.peak
    held = (lives.allocated < peak) & (peak <= lives.requested_free) & (lives.requested_free >= 0)
    rounded = int((held & ~lives.is_known).sum())
    notes = ["sizes are those of blocks"]
    if rounded:
        notes = [f"{rounded:,} of {counted(int(held.sum()), 'block')} count as requested, rounded up to 512"]
    if known.contradictions:
        notes.append(f"{counted(known.contradictions, 'record')} of the history contradict others")
    return notes
