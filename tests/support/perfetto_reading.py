"""A timeline as Perfetto reads it: its own message classes, and what its trace processor makes of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent


@dataclass
class ReadSlice:
    """A slice; `end` is None while it is open, `parent` the one it lies in."""

    start: int
    name: str
    notes: dict[str, Any]
    out: list[int]
    into: list[int]
    parent: ReadSlice | None
    end: int = -1


@dataclass
class ReadTrack:
    """A track with its slices in order of their starts, or the points of its counter."""

    group: str
    name: str
    place: int
    slices: list[ReadSlice] = field(default_factory=list)
    points: list[tuple[int, float]] = field(default_factory=list)
    unit: str = ""


def tracks_of(content: bytes) -> list[ReadTrack]:
    """All tracks below a group, in order of their descriptors. Fails where Perfetto would drop something."""
    packets = Trace.FromString(content).packet
    described = {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.HasField("track_descriptor")}
    assert len(described) == sum(p.HasField("track_descriptor") for p in packets)
    texts = interned(packets)
    found = {
        uuid: ReadTrack(described[own.parent_uuid].name, own.name, own.sibling_order_rank, unit=own.counter.unit_name)
        for uuid, own in described.items()
        if own.parent_uuid
    }
    events = [p for p in packets if p.HasField("track_event")]
    open_slices: dict[int, list[ReadSlice]] = {uuid: [] for uuid in found}
    for packet in sorted(events, key=lambda p: p.timestamp):  # stable, as the trace processor's is
        assert packet.timestamp < 2**63
        uuid = packet.track_event.track_uuid
        take(packet, found[uuid], open_slices[uuid], texts)
    assert not any(open_slices.values())
    return list(found.values())


def interned(packets: list[TracePacket]) -> dict[str, dict[int, str]]:
    """The texts by their numbers; each is given once, before the first event that uses it."""
    kinds = ("event_names", "debug_annotation_names", "debug_annotation_string_values")
    texts: dict[str, dict[int, str]] = {kind: {} for kind in kinds}
    for packet in packets:
        for kind in kinds:
            for text in getattr(packet.interned_data, kind):
                assert text.iid not in texts[kind]
                texts[kind][text.iid] = text.name if hasattr(text, "name") else text.str.decode()
        if packet.HasField("track_event"):
            assert packet.track_event.name_iid in {0, *texts["event_names"]}
    return texts


def take(packet: TracePacket, track: ReadTrack, stack: list[ReadSlice], texts: dict[str, dict[int, str]]) -> None:
    """What one event does."""
    event = packet.track_event
    if event.type == TrackEvent.TYPE_COUNTER:
        track.points.append((packet.timestamp, event.double_counter_value))
    elif event.type == TrackEvent.TYPE_SLICE_END:
        stack.pop().end = packet.timestamp
    else:
        assert event.type == TrackEvent.TYPE_SLICE_BEGIN
        assert packet.sequence_flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        notes = {
            texts["debug_annotation_names"][note.name_iid]: texts["debug_annotation_string_values"][
                note.string_value_iid
            ]
            if note.HasField("string_value_iid")
            else note.int_value
            for note in event.debug_annotations
        }
        parent = stack[-1] if stack else None
        name = texts["event_names"][event.name_iid]
        opened = ReadSlice(
            packet.timestamp, name, notes, list(event.flow_ids), list(event.terminating_flow_ids), parent
        )
        track.slices.append(opened)
        stack.append(opened)
