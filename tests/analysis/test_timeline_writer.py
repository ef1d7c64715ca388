"""Lanes and bytes of timelines, for any slices and any numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from perfetto_reading import tracks_of

from commtrace.analysis.timeline import wire
from commtrace.analysis.timeline.counters import in_runs
from commtrace.analysis.timeline.lanes import event_order, lanes, nesting_lanes, outermost
from commtrace.analysis.timeline.packets import Writer
from commtrace.analysis.timeline.slices import (
    Counter,
    Fan,
    Group,
    Integers,
    Slices,
    Texts,
    Track,
    nested,
    nesting,
    on_lanes,
)

SMALLEST, LARGEST = -(2**63), 2**63 - 1
INT64 = st.integers(SMALLEST, LARGEST)
SLICES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=40)


def arrays(pairs) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends, by start, of those that start together the longest first."""
    ordered = sorted(((start, start + dur) for start, dur in pairs), key=lambda s: (s[0], -s[1]))
    return tuple(np.array([s[key] for s in ordered], dtype=np.int64) for key in (0, 1))


@given(SLICES)
def test_slices_of_a_lane_do_not_overlap_and_no_lane_is_too_many(pairs):
    start, end = arrays(pairs)
    found = lanes(start, end)
    for lane in set(found.tolist()):
        own = found == lane
        assert (start[own][1:] >= end[own][:-1]).all()
    at_once = [int(((start <= time) & (end > time)).sum()) for time in start.tolist()]
    assert found.max(initial=-1) + 1 <= max(at_once, default=0) + 1
    if all(dur for _, dur in pairs):
        assert found.max(initial=-1) + 1 == max(at_once, default=0)


@pytest.mark.slow
@given(SLICES)
def test_slices_of_a_nesting_lane_lie_within_each_other_or_apart(pairs):
    start, end = arrays(pairs)
    lane = nesting_lanes(start, end)
    for number in set(lane.tolist()):
        own = [*zip(start[lane == number].tolist(), end[lane == number].tolist(), strict=True)]
        for place, (_, end_of_one) in enumerate(own):
            assert all(end_of_one <= start_of or end_of <= end_of_one for start_of, end_of in own[place + 1 :])
    names = Texts(np.arange(len(start)), tuple(map(str, range(len(start)))))
    tracks = nesting("CPU", Slices(start, end, names, shades=Texts(names.codes % 2 - 1, ("blue",))))
    read = [s for track in tracks_of(written(0, *tracks)) for s in track.slices]
    assert sorted((s.start, s.end, int(s.name)) for s in read) == sorted(
        zip(start.tolist(), end.tolist(), range(len(start)), strict=True)
    )
    assert all((s.shade == "blue") == (int(s.name) % 2 == 1) for s in read)


@given(SLICES, st.lists(st.integers(0, 8), min_size=40, max_size=40))
def test_events_come_in_order_and_close_what_they_opened(pairs, parts):
    start, end = arrays(pairs)
    own = lanes(start, end) == 0
    start, end = start[own], end[own]
    middle = np.minimum(start + np.array(parts[: len(start)], dtype=np.int64), end)
    around = Slices(start, end, Texts.same("call", len(start)))
    both = nested(
        around,
        Slices(start, middle, Texts.same("wait", len(start))),
        Slices(middle, end, Texts.same("transfer", len(start))),
    )
    begun, ended = event_order(both.start_ns, both.end_ns)
    events = {
        int(place): (int(time), "begin", row)
        for row, (place, time) in enumerate(zip(begun, both.start_ns, strict=True))
    }
    events |= {
        int(place): (int(time), "end", row) for row, (place, time) in enumerate(zip(ended, both.end_ns, strict=True))
    }
    assert sorted(events) == list(range(2 * len(both)))
    stack, last = [], -1
    for place in sorted(events):
        time, what, row = events[place]
        assert time >= last
        last = time
        if what == "begin":
            stack.append(row)
        else:
            assert stack.pop() == row
    assert outermost(start, end) == len(start)


@given(st.lists(INT64, min_size=1, max_size=20), st.integers(1, 2**29 - 1))
def test_any_number_is_read_back(values, field):
    written = wire.rows(len(values), wire.numbers(field, np.array(values, dtype=np.int64)))
    assert [number_in(row.tobytes(), field) for row in written] == values
    assert [number_in(wire.number(field, value), field) for value in values] == values


def number_in(message: bytes, field: int) -> int:
    """The only number in a message, as protobuf has varints."""
    found, shift = [0, 0], 0
    position = 0
    for which in (0, 1):
        shift = 0
        while True:
            byte = message[position]
            found[which] |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if byte < 0x80:
                break
    assert position == len(message)
    assert found[0] == field << 3
    return found[1] - 2**64 if found[1] >= 2**63 else found[1]


def written(zero_ns: int, *tracks: Track) -> bytes:
    writer = Writer(zero_ns)
    return writer.begun() + b"".join(writer.group(Group("group", tracks), 0))


@pytest.mark.slow
@given(INT64, st.lists(st.tuples(st.integers(0, LARGEST), st.integers(0, LARGEST)), min_size=1, max_size=9), INT64)
def test_times_notes_and_arrows_are_exact(zero, pairs, number):
    since = sorted(tuple(sorted(pair)) for pair in pairs)
    largest = LARGEST - zero
    since = [(a, b) for a, b in since if b <= largest]
    start, end = (np.array([zero + pair[key] for pair in since], dtype=np.int64) for key in (0, 1))
    count = len(since)
    notes = {"n": Integers(np.full(count, number), np.arange(count) % 2 == 0)}
    out = Fan(np.arange(count) * 10 + 1, np.arange(count) % 3)
    into = Integers(np.arange(count) + 5, np.arange(count) % 2 == 1)
    slices = Slices(start, end, Texts(np.arange(count) % 2, ("even", "odd")), notes, out, into)
    found = sorted(
        ((s.start, s.end, s.name, s.notes.get("n"), tuple(s.out), tuple(s.into))
         for track in tracks_of(written(zero, *on_lanes("track", slices))) for s in track.slices), key=str,
    )  # fmt: skip
    expected = [
        (a, b, ("even", "odd")[i % 2], None if i % 2 else number,
         tuple(10 * i + 1 + k for k in range(i % 3)), (i + 5,) if i % 2 else ())
        for i, (a, b) in enumerate(since)
    ]  # fmt: skip
    assert found == sorted(expected, key=str)


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=9))
def test_counters_are_exact(values):
    times = np.arange(len(values), dtype=np.int64) * 2**40
    (track,) = tracks_of(written(0, Track("c", Counter(times, np.array(values), "GB/s"))))
    assert track.points == list(zip(times.tolist(), values, strict=True))
    assert track.unit == "GB/s"


@given(st.text(st.characters(exclude_categories=()), max_size=40))
def test_any_name_can_be_read_and_controls_nothing(name):
    one = np.array([5], dtype=np.int64)
    content = written(0, Track(name, Slices(one, one + 1, Texts.same(name, 1), {name: Texts.same(name, 1)})))
    Trace.FromString(content)  # which checks that texts are UTF-8
    (track,) = tracks_of(content)
    ((label, value),) = track.slices[0].notes.items()
    for shown in (track.name, track.slices[0].name, label, value):
        assert shown.isprintable()
        assert shown == name or not name.isprintable()


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranks_in_runs_are_the_ranks(ranks):
    text = in_runs(" ".join(map(str, sorted(ranks))))
    found = set()
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == ranks


def test_groups_stand_within_groups_and_headings_have_lines():
    one = np.array([5], dtype=np.int64)
    slices = [Slices(one + k, one + k + 1, Texts.same(f"s{k}", 1)) for k in range(3)]
    inner = Group("inner", (Track("leaf", slices[0], "about the leaf"),), slices[1], "about inner")
    content = b"".join(
        [(writer := Writer(0)).begun(), *writer.group(Group("outer", (inner, Track("last", slices[2]))))]
    )
    assert [(t.path, t.place, t.description, [s.name for s in t.slices]) for t in tracks_of(content)] == [
        (("outer", "inner"), 0, "about inner", ["s1"]),
        (("outer", "inner", "leaf"), 0, "about the leaf", ["s0"]),
        (("outer", "last"), 1, "", ["s2"]),
    ]


@given(st.lists(st.booleans(), max_size=6))
def test_tracks_without_content_are_left_out(filled):
    times = np.arange(3, dtype=np.int64)
    full = [Counter(times, times * 1.5, "ranks"), Slices(times, times + 1, Texts.same("s", 3))]
    empty = [Counter(times[:0], times[:0] * 1.5, "ranks"), Slices(times[:0], times[:0], Texts.same("s", 0))]
    tracks = [Track(f"t{i}", (full if is_full else empty)[i % 2]) for i, is_full in enumerate(filled)]
    read = tracks_of(b"".join([(writer := Writer(0)).begun(), *writer.group(Group("g", tuple(tracks)), 0)]))
    assert [t.name for t in read] == [f"t{i}" for i, is_full in enumerate(filled) if is_full]
