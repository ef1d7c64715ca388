"""A timeline as Perfetto reads it: its own message classes, and what its trace processor makes of events."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent


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
    shade: str | None = None


@dataclass
class ReadTrack:
    """A track with its slices in order of their starts, or the points of its counter.

    `group` is what it belongs to, and `name` what it shows, wherever that stands: `path` has the names of the tracks
    around it, the outermost first, and its own.
    """

    group: str
    name: str
    place: int
    path: tuple[str, ...]
    description: str
    slices: list[ReadSlice] = field(default_factory=list)
    points: list[tuple[int, float]] = field(default_factory=list)
    unit: str = ""


def tracks_of(content: bytes) -> list[ReadTrack]:
    """All tracks with content, in order of their descriptors. Fails where Perfetto would drop something."""
    packets = Trace.FromString(content).packet
    described = {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.HasField("track_descriptor")}
    assert len(described) == sum(p.HasField("track_descriptor") for p in packets)
    texts = interned(packets)
    found = {uuid: described_as(uuid, described) for uuid in described}
    events = [p for p in packets if p.HasField("track_event")]
    open_slices: dict[int, list[ReadSlice]] = {uuid: [] for uuid in found}
    for packet in sorted(events, key=lambda p: p.timestamp):  # stable, as the trace processor's is
        assert packet.timestamp < 2**63
        uuid = packet.track_event.track_uuid
        take(packet, found[uuid], open_slices[uuid], texts[packet.trusted_packet_sequence_id])
    assert not any(open_slices.values())
    return [track for track in found.values() if track.slices or track.points]


def described_as(uuid: int, described: dict[int, TrackDescriptor]) -> ReadTrack:
    """A track without its content. The lines of the rank that is seen at once, and of headings, are as all others."""
    own = described[uuid]
    path = [own]
    while path[0].parent_uuid:
        path.insert(0, described[path[0].parent_uuid])
    assert own.parent_uuid or sum(not each.parent_uuid for each in described.values()) == 1, "nothing would be open"
    group, name = (path[-2].name if own.parent_uuid else own.name), own.name
    of_rank = re.fullmatch(r"(rank \d+): (.*)", name)
    if not own.parent_uuid:
        name = "about"
    elif of_rank and len(path) == 2:
        group, name = of_rank.groups()
    elif any(each.parent_uuid == uuid for each in described.values()):
        group, name = own.name, "steps"
    group = re.sub(r"(rank \d+) \(.*\)", r"\1", group)
    names = tuple(each.name for each in path)
    return ReadTrack(group, name, own.sibling_order_rank, names, own.description, unit=own.counter.unit_name)


def interned(packets: list[TracePacket]) -> dict[int, dict[str, dict[int, str]]]:
    """The texts of each sequence by their numbers; each is given once, before the first event that uses it.

    A sequence begins by forgetting those of other files; of one that does not, Perfetto would drop everything.
    """
    kinds = ("event_names", "debug_annotation_names", "debug_annotation_string_values", "correlation_id_str")
    sequences: dict[int, dict[str, dict[int, str]]] = {}
    for packet in packets:
        if packet.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            assert packet.trusted_packet_sequence_id not in sequences
            sequences[packet.trusted_packet_sequence_id] = {kind: {} for kind in kinds}
        texts = sequences[packet.trusted_packet_sequence_id]
        for kind in kinds:
            for text in getattr(packet.interned_data, kind):
                assert text.iid not in texts[kind]
                texts[kind][text.iid] = text.name if hasattr(text, "name") else text.str.decode()
        if packet.HasField("track_event"):
            assert packet.track_event.name_iid in {0, *texts["event_names"]}
    return sequences


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
        if event.HasField("correlation_id_str_iid"):
            opened.shade = texts["correlation_id_str"][event.correlation_id_str_iid]
        track.slices.append(opened)
        stack.append(opened)
