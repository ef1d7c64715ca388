"""Tables of memory against what is known of simulated training: every figure to the byte."""

import random
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from allocations import trained
from builders import US, Trace

from commtrace import analyse, compare
from commtrace.analysis.core.schema import records
from commtrace.analysis.metrics.memory.categories import BLOCK_CATEGORIES
from commtrace.analysis.metrics.memory.held import BEFORE, memory_of
from commtrace.analysis.metrics.memory.table import CATEGORY_COLUMNS
from commtrace.analysis.render.plots.areas import memory_over_a_step
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.show.memory import memory_screen
from commtrace.analysis.tables.memory import memory_rows
from commtrace.analysis.timeline.counters import held_memory
from commtrace.cli import main

LEAK = 64 << 20
SEEDS = range(12)


def analysed(job, folder, **how) -> Analysis:
    job.trace.write(folder, **how)
    return analyse(folder, details=True, cache=False, whole=True)


@pytest.fixture(scope="module", params=SEEDS)
def drawn(request, tmp_path_factory):
    draw = random.Random(request.param)
    job = trained(request.param, steps=draw.randrange(3, 7), layers=draw.randrange(2, 6), leak=draw.choice([0, LEAK]))
    return job, analysed(job, tmp_path_factory.mktemp("drawn"))


def test_the_peak_and_its_categories_are_exact(drawn):
    job, found = drawn
    [row] = records(found.memory)
    assert (row["rank"], row["device"]) == (0, "0")
    assert (row["peak_allocated_bytes"], row["peak_reserved_bytes"]) == (job.peak, job.reserved)
    parts = {category: row[column] for category, column in CATEGORY_COLUMNS.items() if row[column]}
    assert parts == job.at_peak
    assert sum(row[column] for column in CATEGORY_COLUMNS.values()) == job.peak


def test_peaks_and_ends_of_steps_are_exact(drawn):
    job, found = drawn
    rows = records(found.memory_steps)
    assert {row["step"]: row["peak_allocated_bytes"] for row in rows} == dict(job.peaks)
    assert {row["step"]: row["end_allocated_bytes"] for row in rows} == job.ends
    for row in rows:
        assert sum(row[column] for column in CATEGORY_COLUMNS.values()) == row["peak_allocated_bytes"]


def test_places_are_exact_and_add_up_to_the_peak(drawn):
    job, found = drawn
    rows = records(found.allocations)
    assert sum(row["size_bytes"] for row in rows) == job.peak
    forward = [row for row in rows if row["phase"] != "backward" and row["category"] != "before the trace"]
    sums = pd.DataFrame(forward).groupby(["category", "region"], dropna=False)["size_bytes"].sum()
    told = {(category, None if pd.isna(region) else region): size for (category, region), size in sums.items() if size}
    backward = {"gradients", "temporaries"}
    known = {key: size for key, size in job.places_at_peak.items() if key[1] is not None or key[0] not in backward}
    assert {key: size for key, size in told.items() if key in known} == known


def test_only_what_grows_in_every_step_is_said_to_grow(drawn):
    job, found = drawn
    growing = [row for row in records(found.allocations) if row["grows_bytes"] is not None]
    leaks = job.held["unknown"] > 0
    assert [(row["region"], row["operator"], row["grows_bytes"]) for row in growing] == (
        [("layer_1", "aten::clone", LEAK)] if leaks else []
    )
    assert found.memory["grows_bytes"].tolist() == [LEAK if leaks else 0]
    said = memory_screen(found)
    assert ("rank 0 grows by 64 MiB per step: layer_1" in said) is leaks
    assert leaks or not {"grows", "leak"} & set(said.replace(",", " ").split())


def test_what_is_made_once_does_not_grow(tmp_path):
    found = analysed(trained(3, fills=LEAK), tmp_path)
    assert found.memory["grows_bytes"].tolist() == [0]
    assert found.allocations["grows_bytes"].isna().all()
    assert found.allocations.query("operator == 'aten::clone'")["size_bytes"].tolist() == [LEAK]


@pytest.mark.parametrize("steps", [1, 2])
def test_of_few_steps_nothing_is_said_to_grow(tmp_path, steps):
    found = analysed(trained(3, steps=steps, leak=LEAK), tmp_path)
    assert found.memory["grows_bytes"].isna().all()
    assert found.allocations["grows_bytes"].isna().all()
    assert "takes 3" in found.memory["note"].iloc[0]


def test_layouts_and_recordings_say_the_same(tmp_path):
    job = trained(5, leak=LEAK)
    first = analysed(job, tmp_path / "gz")
    assert main(["pack", "-o", str(tmp_path / "packed"), str(tmp_path / "gz")]) == 0
    others = [
        analysed(job, tmp_path / "plain", gz=False),
        analysed(job, tmp_path / "compact", layout="compact"),
        analyse(tmp_path / "packed", details=True, cache=False, whole=True),
    ]
    for other in others:
        for name in ("memory", "memory_steps", "allocations"):
            pd.testing.assert_frame_equal(first.table(name), other.table(name))


def test_without_addresses_only_sums_are_known(tmp_path):
    job = trained(7, leak=LEAK, totals=False, addresses=False)
    found = analysed(job, tmp_path)
    [row] = records(found.memory)
    assert 0 < row["peak_allocated_bytes"] < job.peak
    assert row["peak_reserved_bytes"] is None
    assert row["activations_bytes"] is None
    assert not len(found.allocations)
    assert "totals were not recorded" in row["note"]
    assert "addresses were not recorded" in row["note"]


def test_a_run_without_allocations_has_no_table(tmp_path):
    Trace(0, 1).step(1, 0, 90 * US).op("aten::mm", US, US).kernel("gemm", 2 * US, US).write(tmp_path)
    assert not len(analyse(tmp_path, details=True, cache=False).memory)
    assert main(["memory", "--no-cache", str(tmp_path)]) == 1


def events_of(*rows: tuple[int, int, int]) -> pd.DataFrame:
    """Events of one device: time, address and change, with totals from 1,000."""
    total, made = 1000, []
    for time, address, change in rows:
        total += change
        made.append((0, 0, "0", time, 1, address, change, total, pd.NA))
    names = ["rank", "cycle", "device", "time_ns", "thread", "address", "change_bytes", "allocated_bytes"]
    types = {"thread": "Int64", "address": "Int64", "change_bytes": "Int64", "allocated_bytes": "Int64"}
    return pd.DataFrame(made, columns=[*names, "reserved_bytes"]).astype({**types, "reserved_bytes": "Int64"})


def test_blocks_are_paired_by_address_in_their_order():
    [memory] = memory_of(events_of((5, 9, 100), (7, 9, -100), (7, 9, 60), (8, 4, -300), (9, 9, -60), (9, 5, 40)))
    lives = list(zip(memory.blocks.size_bytes, memory.blocks.allocated, memory.blocks.freed, strict=True))
    assert lives == [(300, BEFORE, 3), (100, 0, 1), (60, 2, 4), (40, 5, 6)]
    assert (memory.found_bytes, memory.peak, memory.older_bytes(0)) == (1000, 0, 700)
    assert {memory.older_bytes(event) for event in range(memory.events)} == {700}


def test_a_block_that_is_allocated_twice_was_released_in_between():
    [memory] = memory_of(events_of((5, 9, 100), (6, 9, 50), (7, 3, 0), (8, 9, -50)))
    lives = list(zip(memory.blocks.size_bytes, memory.blocks.allocated, memory.blocks.freed, strict=True))
    assert lives == [(100, 0, 1), (50, 1, 3)]


def test_ranks_are_compared_and_the_one_that_holds_most_is_named(tmp_path):
    for rank, leak in enumerate((0, 0, LEAK)):
        job = trained(rank, leak=leak)
        job.trace.rank, job.trace.world = rank, 3
        job.trace.write(tmp_path)
    said = memory_screen(analyse(tmp_path, details=True, cache=False))
    assert said.startswith("Rank 2 holds ")
    assert "more than the median of 3 devices" in said.splitlines()[0]
    assert [line for line in said.splitlines() if "grows" in line] == ["  rank 2 grows by 64 MiB per step: layer_1"]


@pytest.mark.slow
def test_the_first_screen_says_it_only_where_memory_limits(tmp_path):
    job = trained(1)
    for whole, is_said in ((job.reserved * 100 // 95, True), (2 * job.reserved, False)):
        job.trace.more = {"deviceProperties": [{"id": 0, "name": "H100", "totalGlobalMem": whole}]}
        found = analysed(job, tmp_path / str(whole))
        assert found.memory["device_bytes"].tolist() == [whole]
        assert ("Memory is nearly full: peak" in found.summary()) is is_said


@pytest.mark.parametrize(
    "command", [["memory"], ["table", "memory"], ["table", "allocations"], ["memory", "--by", "step"]]
)
@pytest.mark.parametrize("how", ["csv", "json", "markdown"])
def test_commands_write_every_format(tmp_path, capsys, command, how):
    job = trained(1)
    job.trace.write(tmp_path)
    assert main([*command, "--no-cache", "--format", how, str(tmp_path)]) == 0
    assert str(job.peak) in capsys.readouterr().out.replace(",", "") or "allocations" in command


def test_categories_have_each_a_column():
    assert list(CATEGORY_COLUMNS) == list(BLOCK_CATEGORIES)


def test_the_timeline_has_counters_of_what_is_held(tmp_path):
    job = trained(2)
    found = analysed(job, tmp_path)
    [memory] = memory_of(found.run.memory_events)
    end = 1 << 62
    tracks = {track.name: track.content for track in held_memory([memory], 0, 0, end, lambda times: times)}
    assert list(tracks) == ["memory allocated GPU 0", "memory reserved GPU 0"]
    for name, most in zip(tracks, (job.peak, job.reserved), strict=True):
        assert tracks[name].value.max() * 2**20 == most
        assert (np.diff(tracks[name].time_ns) >= 0).all()
    assert b"memory allocated GPU 0" in found.timeline()
    middle = int(memory.time_ns[memory.events // 2])
    [later, _] = held_memory([memory], 0, middle + 1, end, lambda times: times)
    assert later.content.time_ns[0] == middle + 1
    assert later.content.value[0] * 2**20 == memory.allocated_bytes[memory.events // 2]


def test_the_page_draws_the_step_with_the_peak_by_category(drawn):
    job, found = drawn
    [curve] = found.of(memory_rows).curves
    sums = [sum(point[category] for category in BLOCK_CATEGORIES) for point in curve["points"]]
    assert max(sums) == job.peak
    assert curve["step"] == found.memory["step"].iloc[0]
    at_peak = curve["points"][sums.index(job.peak)]
    assert {category: at_peak[category] for category in BLOCK_CATEGORIES if at_peak[category]} == job.at_peak
    times = [point["time_ns"] for point in curve["points"]]
    assert times == sorted(times)
    figure = memory_over_a_step(curve["points"], BLOCK_CATEGORIES, "Memory", found.memory_steps)
    for category in {name for point in curve["points"] for name in BLOCK_CATEGORIES if point[name]}:
        assert f"<title>{category}</title>" in figure.svg


@pytest.mark.slow
def test_the_page_has_a_section_on_memory(tmp_path):
    page = analysed(trained(4, leak=LEAK), tmp_path).report()
    assert "Memory over step" in page.html
    assert "Rank 0 grows by 64 MiB per step: layer_1." in page.html


def test_a_comparison_says_what_grew(tmp_path):
    for leak in (0, LEAK):
        trained(6, leak=leak).trace.write(tmp_path / str(leak))
    [row] = records(
        compare(tmp_path / "0", tmp_path / str(LEAK), cache=False).comparison.query("measure == 'peak_memory'")
    )
    assert row["difference_bytes"] > 0
    assert row["note"].startswith("unknown +256 MiB")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_stands_in_an_instant_is_a_number_or_unknown(tmp_path, seed):
    """Odd devices, sizes no device has, releases without allocation, totals that are missing."""
    draw = random.Random(seed)
    trace = Trace(0, 1).kernel("gemm", 5 * US, 50 * US).op("aten::mm", US, 9 * US)
    for step in range(draw.randrange(4)):
        trace.step(step, step * 1_000 * US, (step + 1) * 1_000 * US)
    odd = [0, 1, -1, 512, -512, 2**40, -(2**40), 2**62, -(2**62), 2**63 - 1, -(2**63) + 1]
    for _ in range(draw.randrange(1, 40)):
        keys = ("Addr", "Bytes", "Total Allocated", "Total Reserved")
        args = {key: draw.choice(odd) for key in keys if draw.random() < 0.9}
        args |= {"Device Type": draw.choice([0, 1, 6]), "Device Id": draw.choice([-1, 0, 7])}
        if draw.random() < 0.8:
            args["Addr"] = draw.randrange(5)
        where = {"pid": 1, "tid": draw.choice([7, "x", 1000]), "ts": draw.randrange(4_000)}
        trace.events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "args": args} | where)
    trace.more = {
        "deviceProperties": [{"id": 0, "name": "x", "totalGlobalMem": draw.choice([0, -1, "a", None, 2**70])}]
    }
    found = analysed(trace_of(trace), tmp_path)
    assert len(found.memory)
    assert memory_screen(found)
    assert found.memory["device_bytes"].isna().all()
    for row in records(found.memory):
        parts = [row[column] for column in CATEGORY_COLUMNS.values()]
        if None not in parts:
            assert sum(parts) == row["peak_allocated_bytes"]


def trace_of(trace: Trace) -> SimpleNamespace:
    """A job that is only its trace."""
    return SimpleNamespace(trace=trace)


def test_a_queue_that_was_full_before_the_trace_does_not_grow(tmp_path):
    """In each step a batch comes, and one goes that is older than the trace; nothing more is held than before."""
    trace, held = Trace(0, 1), 10 * LEAK
    for step in range(5):
        begin = step * 1000 * US
        trace.step(step, begin, begin + 1000 * US).kernel("gemm", begin, 500 * US)
        for at, address, size in ((100, 1000 + step, LEAK), (200, 1 + step, -LEAK)):
            held += size
            args = {"Addr": address, "Bytes": size, "Total Allocated": held, "Total Reserved": 20 * LEAK}
            trace.events.append({
                "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": trace.pid, "tid": 1,
                "ts": (begin + at * US) / 1000, "args": {**args, "Device Type": 1, "Device Id": 0},
            })  # fmt: skip
    trace.write(tmp_path)
    found = analyse(tmp_path, details=True, cache=False, whole=True)
    assert found.memory["grows_bytes"].tolist() == [0]
    assert found.allocations["grows_bytes"].isna().all()
