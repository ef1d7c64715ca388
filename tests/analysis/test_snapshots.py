"""Snapshots of torch's allocator are read, and replayed backwards to what a played allocator knows of itself."""

from __future__ import annotations

import pickle
import random
import tracemalloc
from contextlib import suppress

import pytest
from allocator import MIB, START_US, Allocator, called, device_of, played, snapshot, write
from hostile_snapshots import HOSTILE, sound
from hypothesis import given
from hypothesis import strategies as st

from commtrace.analysis.core.allocator import AllocatorAction, StackFrame
from commtrace.analysis.errors import NotATrace, TooLarge, TraceError
from commtrace.analysis.formats.snapshots.entry import looks_like_snapshot
from commtrace.analysis.formats.snapshots.snapshot import read_snapshot
from commtrace.analysis.metrics.memory.replayed import Replayed, undone

_LIMIT_BYTES = 40_000_000


def totals(of: Replayed) -> list[tuple[int, int, int]]:
    return list(zip(of.allocated_bytes.tolist(), of.active_bytes.tolist(), of.reserved_bytes.tolist(), strict=True))


@given(seed=st.integers(0, 1 << 32), name=st.sampled_from(["s.pickle", "s.json"]))
def test_replayed_backwards_every_total_is_what_the_allocator_had(tmp_path_factory, seed, name):
    allocator, kept = played(seed)
    if not allocator.entries:
        return
    first = max(0, len(allocator.entries) - kept) if kept else 0
    found = undone(device_of(snapshot(allocator, max_entries=kept), tmp_path_factory.mktemp("s") / name))
    assert found.contradictions == 0
    assert totals(found) == allocator.told_totals(first)
    assert totals(found)[-1] == allocator.total


@pytest.mark.parametrize("protocol", range(6))
def test_all_protocols_and_json_say_the_same(tmp_path, protocol):
    content = sound(random.Random(7))
    as_json = read_snapshot(write(content, tmp_path / "s.json"))
    assert read_snapshot(write(content, tmp_path / "s.pickle", protocol)) == as_json
    assert looks_like_snapshot(tmp_path / "s.json")
    assert protocol < 2 or looks_like_snapshot(tmp_path / "s.pickle")


def test_what_a_snapshot_holds(tmp_path):
    allocator = Allocator(device=1)
    kept = allocator.malloc(3 * MIB, frames=called("step", 12))
    shared = allocator.malloc(100, frames=called("init", 3))
    allocator.use_on(shared, 7)
    allocator.mark("nccl:all_reduce", "START")
    allocator.free(shared)
    allocator.mark("nccl:all_reduce", "END")
    allocator.mark("ProfilerStep#3", "START")
    found = read_snapshot(write(snapshot(allocator), tmp_path / "s.pickle"))
    device = found.devices[1]
    assert list(found.devices) == [1]
    assert [AllocatorAction(code).name for code in device.entries.action] == [
        "segment_alloc", "alloc", "segment_alloc", "alloc", "free_requested",
    ]  # fmt: skip
    assert list(device.segments.size) == [20 * MIB, 2 * MIB]
    assert device.entries.time_ns[0] == (START_US + 1) * 1_000
    stack = found.stacks[device.entries.stack[1]]
    assert [found.frames[number] for number in stack][2] == StackFrame("step", "/code/train.py", 12)
    assert [(span.name, span.start_ns is None, span.end_ns is None) for span in found.spans] == [
        ("nccl:all_reduce", False, False), ("ProfilerStep#3", False, True),
    ]  # fmt: skip
    told = undone(device)
    assert told.lives.address.tolist() == [kept, shared]
    assert told.allocated_bytes[-1] == 3 * MIB
    assert told.active_bytes[-1] == 3 * MIB + 512


@pytest.mark.parametrize(
    "without", [("time_us",), ("frames",), ("time_us", "frames", "external_annotations", "allocator_settings")]
)
def test_older_snapshots_lack_keys(tmp_path, without):
    allocator, _ = played(5)
    device = device_of(snapshot(allocator, without=without), tmp_path / "s.pickle")
    assert bool(device.entries.time_ns) == ("time_us" not in without)
    assert totals(undone(device)) == allocator.told_totals(0)


def test_the_oldest_blocks_have_a_history_and_no_address(tmp_path):
    content = snapshot(played(6)[0])
    newest = device_of(content, tmp_path / "new.pickle")
    for segment in content["segments"]:
        for block in segment["blocks"]:
            del block["address"]
            block["history"] = [{"real_size": block.pop("requested_size"), "frames": block.pop("frames")}]
    oldest = device_of(content, tmp_path / "old.pickle")
    assert oldest.blocks == newest.blocks


@pytest.mark.parametrize("skipped", ["free_requested", "free_completed"])
def test_actions_that_were_left_out_contradict_nothing(tmp_path, skipped):
    allocator = Allocator()
    held = [allocator.malloc(size, frames=called("f", 1)) for size in (MIB, 2 * MIB, 100)]
    allocator.free(held[1])
    allocator.free(allocator.malloc(2 * MIB))
    content = snapshot(allocator)
    content["device_traces"][0] = [one for one in content["device_traces"][0] if one["action"] != skipped]
    found = undone(device_of(content, tmp_path / "s.pickle"))
    assert found.contradictions == 0
    assert totals(found)[-1] == allocator.total
    assert max(found.allocated_bytes) == 3 * MIB + 512
    assert found.allocated_bytes[0] == 0


def test_a_history_that_has_a_hole_says_so(tmp_path):
    allocator = Allocator()
    first = allocator.malloc(3 * MIB)
    allocator.free(first)
    assert allocator.malloc(5 * MIB) == first
    content = snapshot(allocator)
    content["device_traces"][0].pop()  # the second allocation
    found = undone(device_of(content, tmp_path / "s.pickle"))
    assert found.contradictions == 1
    assert totals(found)[-1] == allocator.total


def test_a_snapshot_without_history_has_its_last_state(tmp_path):
    allocator, _ = played(9)
    content = snapshot(allocator)
    content["device_traces"] = [[]]
    found = undone(device_of(content, tmp_path / "s.pickle"))
    assert totals(found) == [allocator.total]


@pytest.mark.slow_cases("0-shared", "1-shared", "2-shared", "3-shared", "4-shared", "5-shared", "6-shared", "7-shared")
@pytest.mark.parametrize("sort", HOSTILE)
@pytest.mark.parametrize("block", range(8))
def test_hostile_pickles_are_refused_and_run_nothing(tmp_path, sort, block):
    target, path = tmp_path / "ran", tmp_path / "snapshot.pickle"
    for seed in range(7 * block, 7 * block + 7):
        path.write_bytes(HOSTILE[sort](random.Random(seed), target))
        tracemalloc.start()
        try:
            with pytest.raises(TraceError) as caught:
                read_snapshot(path, _LIMIT_BYTES)
            assert tracemalloc.get_traced_memory()[1] <= _LIMIT_BYTES
        finally:
            tracemalloc.stop()
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        assert not target.exists()


def test_changed_bytes_end_in_nothing_but_an_error_of_ours(tmp_path):
    chance = random.Random(3)
    path = tmp_path / "snapshot.pickle"
    for _ in range(300):
        content = bytearray(pickle.dumps(sound(chance), protocol=chance.randrange(6)))
        for _ in range(chance.randrange(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        with suppress(TraceError):
            for device in read_snapshot(path, _LIMIT_BYTES).devices.values():
                undone(device)


def test_a_large_snapshot_needs_its_budget(tmp_path):
    allocator = Allocator()
    for _ in range(2_000):
        allocator.free(allocator.malloc(MIB))
    path = write(snapshot(allocator), tmp_path / "s.pickle")
    with pytest.raises(TooLarge, match=r"s\.pickle: what it holds"):
        read_snapshot(path, 1_000_000)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"traceEvents": []}', "is a trace of torch.profiler"),
        (pickle.dumps({"entries": [], "version": "2.9", "pg_config": {}}), "is a dump of the flight recorder"),
        (pickle.dumps({"weights": [1.0]}), "holds neither segments nor device_traces"),
        (b"step 3: loss 2.5", "is neither a pickle nor JSON"),
        (b'{"weights": 1}', "holds neither segments nor device_traces"),
    ],
)
def test_other_files_are_named(tmp_path, content, said):
    path = tmp_path / "given"
    path.write_bytes(content)
    with pytest.raises(NotATrace, match=said):
        read_snapshot(path)
