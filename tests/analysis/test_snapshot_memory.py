"""What snapshots tell of memory is what the allocator that was played for them knows."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from allocator import MIB, Allocator, Frames, OutOfMemory, called, device_of, played, snapshot, write
from hypothesis import given
from hypothesis import strategies as st

from commtrace import analyse_snapshots
from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import DuplicateRank, NothingMeasured, NoTraces, TraceError, UnknownRank
from commtrace.analysis.metrics.memory.fragments import fragments_at, segments_at
from commtrace.analysis.metrics.memory.replayed import undone
from commtrace.cli import main

BACKWARD: Frames = (("torch::autograd::Engine::thread_main(...)", "??", 0),)
OPTIMIZER: Frames = (
    ("_init_group", "/usr/lib/python3/site-packages/torch/optim/adam.py", 150), *called("main", 60),
)  # fmt: skip
GATHER: Frames = (
    ("unshard", "/usr/lib/python3/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 290),
    *called("main", 44),
)


def training(
    steps: int = 6, *, leaks_until: int | None = None, marked: bool = True, leak_bytes: int = 2 * MIB
) -> Allocator:
    """Steps with activations, gradients, an optimizer, a gathered buffer, and what is kept by mistake."""
    one = Allocator()
    for _ in range(3):
        one.malloc(10 * MIB, frames=called("init", 3))
    state: list[int] = []
    for step in range(steps):
        if marked:
            one.mark(f"ProfilerStep#{step}", "START")
        acts = [one.malloc(4 * MIB, frames=called("forward", 20 + layer)) for layer in range(4)]
        one.free(one.malloc(2 * MIB, frames=called("forward", 30)), called("forward", 30))
        if step < (steps if leaks_until is None else leaks_until):
            one.malloc(leak_bytes, frames=called("keep", 31))
        one.mark("nccl:_all_gather_base", "START")
        gathered = one.malloc(40 * MIB, frames=GATHER)
        one.free(gathered, GATHER)
        one.mark("nccl:_all_gather_base", "END")
        gradients = [one.malloc(10 * MIB, frames=BACKWARD) for _ in range(3)]
        for address in acts:
            one.free(address, BACKWARD)
        if not state:
            state = [one.malloc(10 * MIB, frames=OPTIMIZER) for _ in range(3)]
        one.free(one.malloc(MIB, frames=OPTIMIZER), OPTIMIZER)
        for address in gradients:
            one.free(address, called("zero", 70))
        one.pause(1_000)
        if marked:
            one.mark(f"ProfilerStep#{step}", "END")
    return one


def written(folder: Path, *allocators: Allocator, **options: Any) -> Path:
    for rank, one in enumerate(allocators):
        write(snapshot(one, **options), folder / f"memory_rank_{rank}.pickle")
    return folder


def test_peak_place_step_and_collective(tmp_path):
    one = training(leaks_until=0)
    [row] = records(analyse_snapshots([written(tmp_path, one)]).memory)
    assert row["peak_allocated_bytes"] == max(total[0] for total in one.totals)
    assert row["peak_reserved_bytes"] == max(total[2] for total in one.totals)
    assert (row["step"], row["line"], row["collective"]) == (1, "train.py:44", "all_gather")


def test_categories_at_the_peak(tmp_path):
    [row] = records(analyse_snapshots([written(tmp_path, training(leaks_until=0))]).memory)
    found = {name: value // MIB for name, value in row.items() if name.endswith("_bytes") and value}
    assert found["activations_bytes"] == 16
    assert found["communication_buffers_bytes"] == 40
    assert found["optimizer_state_bytes"] == 30


@pytest.mark.parametrize("max_entries", [None, 120])
def test_a_leak_is_named_with_its_rank_and_line(tmp_path, capsys, max_entries):
    steps = 10
    folder = written(tmp_path, training(steps, leaks_until=0), training(steps), max_entries=max_entries)
    found = analyse_snapshots([folder])
    [row] = [row for row in records(found.allocations) if row["grows_bytes"]]
    assert (row["rank"], row["line"], row["grows_bytes"]) == (1, "train.py:31", 2 * MIB)
    assert main(["memory", str(folder)]) == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if "rank 1 grows" in line and "train.py:31" in line]
    assert "rank 0 grows" not in said


@pytest.mark.parametrize("until", [0, 1, 3, 5])
def test_what_stops_growing_is_no_leak(tmp_path, until):
    found = analyse_snapshots([written(tmp_path, training(8, leaks_until=until))])
    assert not [row for row in records(found.allocations) if row["grows_bytes"]]


@pytest.mark.parametrize("without", [(), ("time_us",)])
def test_without_steps_growth_is_by_time(tmp_path, without):
    allocators = training(24, marked=False, leaks_until=0), training(24, marked=False)
    folder = tmp_path
    for rank, one in enumerate(allocators):
        content = snapshot(one)
        content["external_annotations"] = []
        for entry in content["device_traces"][0]:
            for key in without:
                del entry[key]
        write(content, folder / f"memory_rank_{rank}.pickle")
    [row] = [row for row in records(analyse_snapshots([folder]).allocations) if row["grows_bytes"]]
    assert (row["rank"], row["line"], row["grows_per"]) == (1, "train.py:31", "cycle")


@given(seed=st.integers(0, 1 << 32))
def test_the_largest_free_block_at_the_end_is_that_of_the_allocator(tmp_path_factory, seed):
    allocator, kept = played(seed)
    if not allocator.entries:
        return
    device = device_of(snapshot(allocator, max_entries=kept), tmp_path_factory.mktemp("s") / "s.pickle")
    known, last = undone(device), len(device.entries.action)
    assert fragments_at(device, known, last).largest_free_bytes == allocator.largest_free()
    for moment in {0, last // 2, last}:
        begin, end = segments_at(device, moment)
        assert int((end - begin).sum()) == known.reserved_bytes[moment]
        assert (begin[1:] >= end[:-1]).all()


@pytest.mark.parametrize("falls", [False, True])
def test_fragments_of_what_never_exceeds_its_beginning(tmp_path, falls):
    """Without a history, as `_dump_snapshot` writes it by itself, and with one in which memory is only freed."""
    one = Allocator()
    held = [one.malloc(10 * MIB) for _ in range(4)]
    begun, before = len(one.entries), list(one.total)
    if falls:
        for address in held[:2]:
            one.free(address)
    content = snapshot(one)
    content["device_traces"] = [content["device_traces"][0][begun:]]
    [row] = records(analyse_snapshots([write(content, tmp_path / "memory_snapshot_rank_0.pickle")]).fragments)
    assert (row["allocated_bytes"], row["active_bytes"], row["reserved_bytes"]) == tuple(before)
    assert row["inactive_bytes"] == before[2] - before[1]


def test_fragments_and_the_request_that_failed(tmp_path):
    one = Allocator(capacity=100 * MIB)
    held = [one.malloc(10 * MIB, frames=called("f", 1)) for _ in range(10)]
    for address in held[::2]:
        one.use_on(address, 7)
        one.free(address)
    with pytest.raises(OutOfMemory):
        one.malloc(60 * MIB, frames=called("g", 9))
    [row] = records(analyse_snapshots([written(tmp_path, one)]).fragments)
    assert row["failed_request_bytes"] == 60 * MIB
    assert row["device_free_bytes"] == 100 * MIB - one.total[2]
    assert row["largest_request_bytes"] == 10 * MIB
    assert row["reserved_bytes"] == row["active_bytes"] + row["inactive_bytes"] == 100 * MIB


def test_what_another_stream_uses_is_active_and_not_allocated(tmp_path):
    one = Allocator()
    address = one.malloc(30 * MIB)
    one.use_on(address, 7)
    one.free(address)
    one.malloc(20 * MIB)
    device = device_of(snapshot(one), tmp_path / "s.pickle")
    known = undone(device)
    assert known.allocated_bytes.max() == 30 * MIB
    assert known.active_bytes.max() == 50 * MIB


def test_blocks_that_are_rounded_are_told(tmp_path):
    one = Allocator()
    one.free(one.malloc(2_097_152 + 1_000_000))
    one.malloc(1_000)
    [row] = records(analyse_snapshots([written(tmp_path, one)]).memory)
    assert row["note"].startswith("1 of 1 block count as requested, rounded up to 512")
    two = Allocator()
    two.malloc(19 * MIB + MIB // 2)  # takes its whole segment, of 20 MiB
    [row] = records(analyse_snapshots([written(tmp_path, two)]).memory)
    assert row["peak_allocated_bytes"] == 20 * MIB
    assert row["note"].startswith("sizes are those of blocks")


def test_device_memory_outside_of_torch(tmp_path, capsys):
    folder = written(tmp_path, *[training() for _ in range(4)])
    for rank in range(4):
        used = {"step": 0, "peak_allocated_bytes": 1, "peak_reserved_bytes": 1, "device_bytes": 80 << 30}
        side = {
            "schema_version": 1, "rank": rank, "device": {"type": "cuda", "index": 0},
            "step_memory": [used | {"outside_bytes": (10 if rank == 3 else 1) << 30}],
        }  # fmt: skip
        (folder / f"node_{rank}.meta.json").write_text(json.dumps(side))
    found = analyse_snapshots([folder])
    assert [row["outside_bytes"] >> 30 for row in records(found.memory)] == [1, 1, 1, 10]
    assert {row["device_bytes"] for row in records(found.memory)} == {80 << 30}
    assert main(["memory", str(folder)]) == 0
    assert "rank 3 holds 9 GiB more outside of torch than the others" in capsys.readouterr().out


def test_the_rank_is_in_the_name(tmp_path, capsys):
    one = write(snapshot(training()), tmp_path / "snapshot.pickle")
    assert main(["memory", "-f", "csv", str(one)]) == 0
    said = capsys.readouterr()
    assert [row["rank"] for row in csv.DictReader(io.StringIO(said.out))] == ["0"]
    assert "shown as rank 0" in said.err
    other = write(snapshot(training()), tmp_path / "other.pickle")
    with pytest.raises(UnknownRank, match="let its name end in the rank"):
        analyse_snapshots([one, other])
    (tmp_path / "a").mkdir()
    same = [write(snapshot(training()), folder / "memory_rank_3.pickle") for folder in (tmp_path, tmp_path / "a")]
    with pytest.raises(DuplicateRank):
        analyse_snapshots(same)


def test_several_devices_of_a_rank(tmp_path):
    allocators = [Allocator(device=number) for number in range(2)]
    for number, one in enumerate(allocators):
        one.malloc((1 + number) * 20 * MIB)
    write(snapshot(*allocators), tmp_path / "memory_rank_0.pickle")
    found = records(analyse_snapshots([tmp_path]).memory)
    assert [(row["device"], row["peak_allocated_bytes"]) for row in found] == [("0", 20 * MIB), ("1", 40 * MIB)]


@pytest.mark.parametrize("by", ["device", "step", "place", "fragments"])
@pytest.mark.parametrize("output", ["table", "csv", "json", "markdown"])
def test_every_table_can_be_printed(tmp_path, capsys, by, output):
    folder = written(tmp_path, training(), training())
    assert main(["memory", "--by", by, "-f", output, str(folder)]) == 0
    assert capsys.readouterr().out


def test_damaged_ones_are_left_out_if_asked(tmp_path, capsys):
    folder = written(tmp_path, training(), training())
    (folder / "memory_rank_1.pickle").write_bytes((folder / "memory_rank_1.pickle").read_bytes()[:-9])
    with pytest.raises(TraceError, match=r"memory_rank_1\.pickle"):
        analyse_snapshots([folder])
    found = analyse_snapshots([folder], keep_going=True)
    assert list(found.memory["rank"]) == [0]
    assert len(found.failed) == 1


def test_what_holds_none_says_so(tmp_path):
    with pytest.raises(NoTraces, match="holds no snapshot"):
        analyse_snapshots([tmp_path])
    empty = write({"segments": [], "device_traces": [[]]}, tmp_path / "memory_rank_0.pickle")
    with pytest.raises(NothingMeasured, match="holds nothing and recorded no history"):
        analyse_snapshots([empty])


def test_ten_thousand_blocks_take_no_time(tmp_path):
    chance, one = random.Random(1), Allocator()
    for _ in range(300):
        one.malloc(chance.randrange(1, 3 * MIB), frames=called("f", chance.randrange(90)))
    found = analyse_snapshots([written(tmp_path, one)])
    assert found.allocations["size_bytes"].sum() == found.memory["peak_allocated_bytes"].sum() == one.total[0]
