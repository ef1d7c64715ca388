"""Timelines, read back with Perfetto's own message classes, against the tables."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import MAIN_THREAD, MS, US, Collective, traces_of
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from perfetto_reading import ReadSlice, ReadTrack, tracks_of
from samples import with_slow

from commtrace.analysis.core.intervals import spans
from commtrace.analysis.core.schema import records
from commtrace.analysis.core.steps import windows_of
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.metrics.clocks.table import aligned
from commtrace.analysis.metrics.verdicts.of_idle import IDLE_CAUSES
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.tables.critical_path import path
from commtrace.analysis.timeline import colours
from commtrace.analysis.timeline.drawing import run_timeline
from commtrace.analysis.timeline.ranks import in_words
from commtrace.common.wording import counted

DATA = Path(__file__).parent.parent / "data"
RUNS = with_slow(["nccl-two-hosts", "nccl-pipeline", "gloo-training"], ["nccl-straggler", "nccl-rooted", "nccl-hang"])
_WINDOW = ["rank", "start_ns", "dur_ns"]
TITLES = {"compute": "compute", "memory": "copies", "comm": "communication"}


class Shown:
    """A run, its timeline as Perfetto reads it, and times on the timeline."""

    def __init__(self, found: Analysis, **choice):
        self.found = found
        self.timeline = run_timeline(found, **choice)
        self.content = b"".join(self.timeline.parts)
        self.tracks = tracks_of(self.content)

    def times(self, table: pd.DataFrame) -> list[tuple[int, int]]:
        """Start and end of each row, on the timeline."""
        starts, ends = (
            aligned(table["start_ns"] + more, table["rank"], self.found.clocks) - self.timeline.zero_ns
            for more in (0, table["dur_ns"])
        )
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def of(self, *begin: str) -> list[tuple[str, ReadSlice]]:
        """The slices of all tracks whose names begin so, with the rank's name."""
        return [(t.group, s) for t in self.tracks if t.name.startswith(begin) for s in t.slices]

    def group(self, rank: int) -> str:
        return f"rank {rank}"


@pytest.fixture(scope="module", params=RUNS)
def shown(request) -> Shown:
    return Shown(analyse(DATA / request.param, details=False))


@pytest.mark.slow
def test_every_activity_is_there_to_the_nanosecond(shown):
    expected = Counter()
    activities = shown.found.run.activities
    for row, (start, end) in zip(records(activities), shown.times(activities), strict=True):
        if row["kind"] != "comm":
            where = (
                f"thread {row['stream']}" if row["device"] == "cpu" else f"GPU {row['device']} stream {row['stream']}"
            )
            expected[shown.group(row["rank"]), f"{TITLES[row['kind']]} {where}", row["name"], start, end] += 1
    drawn = Counter(
        (t.group, t.name, s.name, s.start, s.end)
        for t in shown.tracks
        if t.name.startswith(("compute", "copies"))
        for s in t.slices
    )
    assert drawn == expected


def test_every_call_is_there_with_its_wait_and_transfer(shown):
    calls, members = {row["call_id"]: row for row in records(shown.found.calls)}, shown.found.participation
    kinds = dict(zip(*(shown.found.collectives[key] for key in ("collective_id", "collective")), strict=True))
    expected, parts = Counter(), Counter()
    for row, (start, end) in zip(records(members), shown.times(members), strict=True):
        group, call = shown.group(row["rank"]), calls[row["call_id"]]
        name = next(
            n
            for n in (call["collective"], kinds[row["collective_id"]], call["name"])
            if n is not None and not pd.isna(n)
        )
        expected[group, name, start, end, row["call_id"]] += 1
        if row["wait_ns"] is None:
            continue
        moving = min(start + row["wait_ns"], end) if row["wait_ns"] < row["dur_ns"] else end
        wait = "wait" if row["waited_for"] is None else f"wait for rank {row['waited_for']}"
        parts.update((row["call_id"], part, a, b) for part, a, b in
                     ((wait, start, moving), ("transfer", moving, end)) if a < b)  # fmt: skip
    drawn = shown.of("communication")
    whole = [(g, s) for g, s in drawn if "call_id" in s.notes]
    assert Counter((g, s.name, s.start, s.end, s.notes["call_id"]) for g, s in whole) == expected
    within = [s for _, s in drawn if "call_id" not in s.notes and s.name != "released"]
    assert Counter((s.parent.notes["call_id"], s.name, s.start, s.end) for s in within) == parts


def test_notes_of_calls_are_those_of_the_tables(shown):
    calls, members = (
        {row["call_id"]: row for row in records(table)} for table in (shown.found.calls, shown.found.participation)
    )
    uncertainty = shown.found.clocks.set_index("rank")["uncertainty_ns"]
    for _, call in shown.of("communication"):
        if "call_id" in call.notes:
            row, member = calls[call.notes["call_id"]], members[call.notes["call_id"]]
            assert call.notes.get("size_bytes") == row["size_bytes"]
            assert call.notes.get("waited_for") == member["waited_for"]
            assert call.notes["clock_uncertainty_ns"] == uncertainty[row["rank"]]
            assert call.notes["kernel"] == row["name"]


def test_an_arrow_leads_from_the_late_rank_to_each_that_waited(shown):
    members = shown.found.participation
    arrived = {(r["collective_id"], r["rank"]): r["arrived_ns"] for r in records(members)}
    expected = {
        (row["call_id"], shown.group(row["waited_for"]), arrived[row["collective_id"], row["waited_for"]])
        for row in records(members)
        if (row["wait_ns"] or 0) > 0 and (row["collective_id"], row["waited_for"]) in arrived
    }
    begins = {arrow: (group, s) for group, s in shown.of("late") for arrow in s.out}
    ends = [s for _, s in shown.of("communication") for _ in s.into]
    found = set()
    for end in ends:
        group, late = begins[end.into[0]]
        assert late.start < late.end <= end.start
        assert end.name == "released" or end.start == late.end
        found.add((end.parent.notes["call_id"], group, late.end + shown.timeline.zero_ns))
    assert found == expected
    assert len(begins) == len(ends) == len(expected)


def test_lateness_has_its_reason(shown):
    expected = Counter()
    arrived = shown.found.participation.groupby(["collective_id", "rank"])["arrived_ns"].max()
    for row in records(shown.found.lateness):
        end = int(arrived[row["collective_id"], row["rank"]]) - shown.timeline.zero_ns
        expected[shown.group(row["rank"]), row["because"], row["kernel"], end - row["late_ns"], end] += 1
    found = Counter(
        (group, s.notes.get("because"), s.notes.get("kernel"), s.start, s.end)
        for group, s in shown.of("late")
        if s.name != "last"
    )
    assert found == expected


def test_steps_are_those_of_the_breakdown(shown):
    expected = Counter()
    activities = shown.found.run.activities
    for (rank, _, cycle), _ in activities.groupby(["rank", "device", "cycle"]):
        windows = windows_of(activities[(activities["rank"] == rank) & (activities["cycle"] == cycle)])
        bounds = pd.DataFrame(
            [(rank, w.start_ns, w.end_ns - w.start_ns) for w in windows], columns=_WINDOW, dtype="int64"
        )
        for window, times in zip(windows, shown.times(bounds), strict=True):
            expected[(shown.group(rank), f"step {window.step}", *times)] += 1
    drawn = [(g, s) for g, s in shown.of("steps") if not s.name.startswith("wait")]
    assert Counter((g, s.name, s.start, s.end) for g, s in drawn) == expected


def test_a_closed_rank_shows_when_it_waits_in_its_steps(shown):
    """As long as the union of its waits, within steps; the rank whose lines are open has them below."""
    opened = next(iter(shown.found.culprits), shown.found.run.ranks[0])
    checked = 0
    for rank in shown.found.run.ranks:
        lines = [t for t in shown.tracks if t.group == shown.group(rank)]
        seen = [s for t in lines if t.name == "steps" for s in t.slices]
        steps, waits = [s for s in seen if s.name.startswith("step ")], [s for s in seen if s.name.startswith("wait")]
        if rank == opened:
            assert not waits
            continue
        moments = {n for t in lines if t.name.startswith("communication") for s in t.slices if s.name.startswith("wait")
                   for n in range(s.start // 1000, s.end // 1000)}  # fmt: skip
        inside = {n for n in moments if any(s.start // 1000 <= n < s.end // 1000 for s in steps)}
        drawn = sum(s.end - s.start for s in waits)
        assert drawn == pytest.approx(1000 * len(inside), abs=3000 * (len(waits) + len(steps) + 1))
        assert all(s.parent in steps for s in waits)
        checked += len(waits)
    assert checked or not shown.of("late") or len(shown.found.run.ranks) == 1


def test_clocks_are_told(shown):
    told = {group: s.notes for group, s in shown.of("clock")}
    words = {t.group: (t.slices[0].name, t.description) for t in shown.tracks if t.name == "clock"}
    for row in records(shown.found.clocks):
        notes = told[shown.group(row["rank"])]
        assert [notes[k] for k in ("offset_ns", "origin_ns", "uncertainty_ns", "linked", "basis")] == [
            row[k] for k in ("offset_ns", "origin_ns", "uncertainty_ns", "linked", "basis")
        ]
        said, described = words[shown.group(row["rank"])]
        assert said.startswith(f"clock of rank {row['rank']} is ")
        assert said in described
        assert row["basis"] in described
        if row["rank"] != row["linked"]:
            direction = {0: "in step with", 1: "ahead of", -1: "behind"}[
                (row["offset_ns"] > 0) - (row["offset_ns"] < 0)
            ]
            assert f"{direction} that of rank {row['linked']}, uncertain by {in_words(row['uncertainty_ns'])}" in said


@pytest.mark.parametrize(
    ("time_ns", "said"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (12_345, "12.3 us"),
        (4_560_000, "4.56 ms"),
        (123_456, "123 us"),
        (7 * 10**9, "7 s"),
    ],
)
def test_times_are_said_with_three_digits(time_ns, said):
    assert in_words(time_ns) == said


def counters(shown: Shown, begin: str) -> dict[str, ReadTrack]:
    return {t.name: t for t in shown.tracks if t.name.startswith(begin)}


def test_ranks_waiting_are_counted(shown):
    waits = defaultdict(list)
    members = shown.found.participation
    for row, (start, end) in zip(records(members), shown.times(members), strict=True):
        if row["wait_ns"]:
            waits[row["rank"]].append((start, min(start + row["wait_ns"], end)))
    for time, value in counters(shown, "ranks waiting")["ranks waiting"].points:
        assert value == sum(any(a <= time < b for a, b in of_rank) for of_rank in waits.values())


def test_bus_bandwidth_is_that_of_the_collectives_of_busy_groups(shown):
    expected = defaultdict(list)
    for row in records(shown.found.collectives):
        if row["busbw_gb_per_s"] is not None and row["last_start_ns"] is not None:
            ends = (row[k] - shown.timeline.zero_ns for k in ("last_start_ns", "last_end_ns"))
            expected[row["process_group"] or "?", row["pg_ranks"]].append((*ends, row["busbw_gb_per_s"]))
    moving = {group: sum(end - start for start, end, _ in rows) for group, rows in expected.items()}
    quiet = {group for group, ns in moving.items() if ns < 0.02 * sum(moving.values())}
    expected = {group: rows for group, rows in expected.items() if group not in quiet}
    found = counters(shown, "bus bandwidth")
    assert len(found) == len(expected)
    assert {t.path for t in found.values()} == {(shown.found.run.name, "counters", name) for name in found}
    said = f"no bus bandwidth of {counted(len(quiet), 'process group')} that hardly moved data"
    assert (said in shown.timeline.notes) == bool(quiet)
    for rows in expected.values():
        ends = {time for a, b, _ in rows for time in (a, b)}
        (track,) = [t for t in found.values() if {time for time, _ in t.points} == ends]
        assert track.unit == "GB/s"
        for time, value in track.points:
            assert value == pytest.approx(sum(v for a, b, v in rows if a <= time < b), rel=1e-9, abs=1e-9)


def test_all_begins_at_zero(shown):
    starts = [s.start for t in shown.tracks for s in t.slices] + [v[0] for t in shown.tracks for v in t.points]
    assert min(starts) == 0
    ((_, about),) = shown.of("about")
    assert about.notes["0 is at (ns since 1970)"] == f"{shown.timeline.zero_ns:,}"
    assert about.shade is None  # which the viewer would show beside what a person reads
    assert not [name for name in about.notes if "_" in name]
    run = records(shown.found.verdicts.head(1))[0]
    assert (about.notes["verdict"], about.notes.get("why")) == (run["verdict"], run["why"])


def test_slices_on_one_line_nest_or_follow_each_other(shown):
    for track in shown.tracks:
        for before, after in zip(track.slices, track.slices[1:], strict=False):
            assert before.end <= after.start or (before.start <= after.start and after.end <= before.end)
    assert sum(len(t.slices) for t in shown.tracks if t.name not in ("about", "legend")) == shown.timeline.slices


@pytest.mark.slow
def test_steps_and_ranks_can_be_chosen():
    found = analyse(DATA / "nccl-straggler")
    steps = sorted(found.run.activities["step"].dropna().unique().tolist())
    few = Shown(found, steps=steps[1:2], ranks=found.run.ranks[:2])
    assert {t.group for t in few.tracks} == {found.run.name, "counters", *map(few.group, found.run.ranks[:2])}
    assert {s.name for _, s in few.of("steps") if s.parent is None} == {f"step {steps[1]}"}
    kept = found.calls[found.calls["rank"].isin(found.run.ranks[:2]) & (found.calls["step"] == steps[1])]
    drawn = {s.notes["call_id"] for _, s in few.of("communication") if "call_id" in s.notes}
    assert drawn == set(kept["call_id"])
    begun = [arrow for _, s in few.of("late") for arrow in s.out]
    assert sorted(begun) == sorted(arrow for _, s in few.of("communication") for arrow in s.into)


@pytest.mark.slow
def test_what_is_not_there_is_said():
    found = analyse(DATA / "nccl-straggler")
    with pytest.raises(NothingMeasured, match=r"steps 99; there are "):
        found.timeline(steps=[99])
    with pytest.raises(NothingMeasured, match=r"1 rank that the timeline is to show: 77; there are 0"):
        found.timeline(ranks=[0, 77])


@pytest.mark.slow
def test_the_library_gives_the_same_bytes():
    found = analyse(DATA / "gloo-training")
    assert found.timeline() == b"".join(run_timeline(found).parts)


@pytest.mark.slow_cases("gloo-training")
@pytest.mark.parametrize("run", ["nccl-straggler", "gloo-training"])
def test_a_single_rank_is_shown_as_well(run):
    found = analyse(sorted((DATA / run).glob("*.json.gz"))[:1])
    alone = Shown(found)
    assert {t.group for t in alone.tracks} == {found.run.name, alone.group(0)}
    assert len([s for _, s in alone.of("communication") if "call_id" in s.notes]) == len(found.calls) > 0
    assert alone.of("late") == []


# --- what is seen at once --------------------------------------------------------------------------------------------


def placed(shown: Shown) -> dict[str, int]:
    """Place of each track or group below the top."""
    packets = Trace.FromString(shown.content).packet
    described = [packet.track_descriptor for packet in packets if packet.HasField("track_descriptor")]
    (top,) = [each for each in described if not each.parent_uuid]
    return {each.name: each.sibling_order_rank for each in described if each.parent_uuid == top.uuid}


def headings(shown: Shown) -> set[str]:
    hosts = shown.found.run.hosts
    return {f"rank {rank}" if hosts[rank] is None else f"rank {rank} ({hosts[rank]})" for rank in shown.found.run.ranks}


def test_the_lines_of_one_rank_are_open_and_those_of_the_others_below_its_steps(shown):
    """The viewer opens the one group on top, and nothing below it."""
    opened = next(iter(shown.found.culprits), shown.found.run.ranks[0])
    places = placed(shown)
    lines = [name for name in places if name.startswith(f"rank {opened}: ")]
    closed = {name for name in places if name.startswith("rank ")} - set(lines)
    assert {name.split(" (")[0] for name in closed} == {f"rank {r}" for r in shown.found.run.ranks if r != opened}
    assert closed < headings(shown)
    on_top = [places[name] for name in lines if "CPU thread" not in name]
    assert max(on_top) < min([places[name] for name in closed], default=99)
    below = [place for name, place in places.items() if "CPU thread" not in name and name != "legend"]
    assert places.get("counters", 0) in (0, max(below))
    assert all(place > max(below) for name, place in places.items() if "CPU thread" in name or name == "legend")
    for rank in shown.found.run.ranks:
        (steps,) = [t for t in shown.tracks if t.group == f"rank {rank}" and t.name.startswith("steps")] or [None]
        assert steps is None or len(steps.path) == 2


def test_the_verdict_stands_above_all(shown):
    ((_, about),) = shown.of("about")
    headline = records(shown.found.verdicts.head(1))[0]["headline"]
    assert about.name == headline
    (track,) = [t for t in shown.tracks if t.name == "about"]
    assert track.path == (shown.found.run.name,)
    notes = [value for name, value in about.notes.items() if name.startswith("note ")]
    assert notes == list(shown.timeline.notes)
    assert all(said in track.description for said in (headline, *notes))


@pytest.mark.slow
def test_the_late_rank_is_not_opened_where_it_is_not_drawn():
    found = analyse(DATA / "nccl-straggler")
    assert found.culprits == [2]
    assert any(name.startswith("rank 2: ") for name in placed(Shown(found)))
    assert any(name.startswith("rank 1: ") for name in placed(Shown(found, ranks=[1, 3])))


# --- idle time -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RUNS[:1], "nccl-pipeline"])
def test_idle_time_is_all_that_nothing_ran_in_and_adds_up_by_cause(name):
    shown = Shown(analyse(DATA / name, details=True, whole=True))
    ran = shown.found.run.activities
    for row in records(shown.found.idle):
        rank, device = row["rank"], row["device"]
        (track,) = [t for t in shown.tracks if t.group == f"rank {rank}" and t.name == f"idle GPU {device}"]
        busy = shown.times(ran[(ran["rank"] == rank) & (ran["device"] == device)])
        for idle, after in zip(track.slices, [*track.slices[1:], None], strict=True):
            assert not any(start < idle.end and idle.start < end for start, end in busy)
            assert after is None or after.start >= idle.end
        start, end = min(start for start, _ in busy), max(end for _, end in busy)
        between = [s for s in track.slices if s.start >= start]  # the first step may begin before
        drawn = sum(s.end - s.start for s in between)
        covered = sum(b - a for a, b in zip(*union_of(busy), strict=True))
        assert drawn == end - start - covered
        if not shown.found.clocks["drift_ppm"].any():
            by_cause = Counter()
            for s in between:
                by_cause[s.name] += s.end - s.start
            assert by_cause == {said: row[column] for column, said in IDLE_CAUSES.items() if row[column]}


def union_of(times: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    merged = spans(*(np.array(each, dtype=np.int64) for each in zip(*times, strict=True)))
    return merged.starts.tolist(), merged.ends.tolist()


def test_without_details_idle_time_has_no_cause(shown):
    assert {s.name for _, s in shown.of("idle")} == {"idle"}
    assert shown.of("CPU") == []
    assert any("CPU" in note for note in shown.timeline.notes)


# --- CPUs ------------------------------------------------------------------------------------------------------------


def late_cpu(folder: Path) -> Analysis:
    """In each of four steps, rank 2 works 10 ms longer on its CPU before it launches what the others wait for."""
    every, late = 40 * MS, 10 * MS
    truth = [Collective([k * every + 8 * MS + late * (rank == 2) for rank in range(4)], 2 * MS) for k in range(4)]
    for rank, trace in enumerate(traces_of(4, truth)):
        for k in range(4):
            begin, more = k * every, late * (rank == 2)
            trace.step(k, begin, begin + every).kernel("gemm", begin + 1 * MS, 5 * MS)
            trace.annotation("# sparse arch", begin + 6 * MS, 1 * MS + more)
            trace.op("aten::mm", begin + 6 * MS + 100, 900 * US + more).op("aten::in", begin + 6 * MS + 200, 50 * US)
            trace.event(
                "cuda_runtime", "cudaMalloc", begin + 6 * MS + 300, 20 * US, tid=MAIN_THREAD, correlation=9_000 + k
            )
            trace.kernel("gemm", begin + 7 * MS + more, 1 * MS)
        trace.write(folder, f"node_{rank}.pt.trace.json")
    return analyse(folder, details=True)


def cpus(shown: Shown) -> Counter:
    return Counter(
        (t.group, t.name, s.name, s.start, s.end) for t in shown.tracks for s in t.slices if t.name[:3] == "CPU"
    )


def expected_cpus(shown: Shown, ranks: list[int]) -> Counter:
    run, expected = shown.found.run, Counter()
    calls = run.runtime_calls[run.runtime_calls["name"].isin(["cudaMalloc", "cudaStreamSynchronize"])]
    for table in (run.cpu_operators, run.annotations, calls):
        for row, (start, end) in zip(records(table), shown.times(table), strict=True):
            if row["rank"] in ranks:
                expected[f"rank {row['rank']}", f"CPU thread {row['thread']}", row["name"], start, end] += 1
    return expected


@pytest.mark.slow
def test_the_cpu_of_a_rank_that_is_late_because_of_it_is_shown_to_the_nanosecond(tmp_path):
    shown = Shown(late_cpu(tmp_path))
    assert cpus(shown) == expected_cpus(shown, [2])
    within = {s.name: s.parent.name for _, s in shown.of("CPU") if s.parent is not None}
    assert within == {"# sparse arch": "ProfilerStep#3", "aten::mm": "# sparse arch", "aten::in": "aten::mm"} | {
        "cudaMalloc": "aten::in"
    }
    assert {s.shade for _, s in shown.of("CPU") if s.name == "cudaMalloc"} == {colours.OF_BLOCKING}
    assert shown.timeline.notes[0] == (
        "the CPU of rank 2 is drawn, because rank 2 launches its kernels late; "
        "not that of ranks 0-1, 3 (a --bundle has all CPUs)"
    )
    one_step = Shown(shown.found, steps=[1])
    assert {s.name for _, s in one_step.of("CPU")} == {
        "ProfilerStep#1",
        "# sparse arch",
        "aten::mm",
        "aten::in",
        "cudaMalloc",
    }
    assert Shown(shown.found, ranks=[0, 1]).of("CPU") == []


@pytest.mark.slow
def test_the_critical_path_on_a_cpu_says_in_what_it_is():
    """Pieces are cut at the outermost annotations, and add up to what they were."""
    shown = Shown(analyse(DATA / "host-bound", details=True))
    found = shown.found
    pieces = found.of(path).pieces
    on_cpu = [s for _, s in shown.of("critical path") if s.notes["kind"] == "cpu"]
    whole = pieces[pieces["kind"] == "cpu"]
    assert len(on_cpu) > len(whole) > 0
    assert sum(s.end - s.start for s in on_cpu) == whole["dur_ns"].sum()
    names = {s.name.removesuffix(" (rank 0)") for s in on_cpu}
    known = {*found.run.annotations["name"], *found.run.cpu_operators["name"], "outside of operators"}
    assert names <= known | set(whole["name"].dropna())
    assert not any(name.startswith("ProfilerStep#") for name in names)


@pytest.mark.slow
def test_the_cpu_is_shown_where_devices_are_idle_because_of_their_hosts():
    shown = Shown(analyse(DATA / "host-bound", details=True))
    copies = cpus(shown) - expected_cpus(shown, [0])
    assert expected_cpus(shown, [0]) - cpus(shown) == Counter()
    assert {name for _, _, name, _, _ in copies} <= {"cudaMemcpyAsync"}  # to pageable memory, which blocks as well
    assert "because devices are idle (launch-bound)" in shown.timeline.notes[0]


@pytest.mark.slow
def test_the_cpu_of_who_is_late_is_shown_whatever_the_cause():
    shown = Shown(analyse(DATA / "nccl-straggler", details=True))
    (late,) = shown.found.culprits
    assert {group for group, _ in shown.of("CPU")} <= {shown.group(late)}
    assert shown.timeline.notes[0].startswith(f"the CPU of rank {late} is drawn, because rank {late} ")


# --- colours ---------------------------------------------------------------------------------------------------------


def hue(text: str) -> int:
    """The hue that Perfetto's viewer, v52, takes for a text: `hash(text, 360)`."""
    found = 18652613
    for character in text:
        found = int(float(16777619 * (found ^ ord(character)))) & 0xFFFFFFFF  # a product of doubles, then an int32
        found -= 2**32 if found >= 2**31 else 0
    return abs(found) % 360


def test_the_legend_names_only_colours_that_occur(shown):
    (track,) = [t for t in shown.tracks if t.name == "legend"]
    drawn = {hue(s.shade) for t in shown.tracks if t is not track for s in t.slices if s.shade}
    for entry in track.slices:  # names of kernels vary a colour a little
        assert min(abs(hue(entry.shade) - other) for other in drawn) <= 15, entry.name
    assert track.slices[0].start == 0
    assert all(before.end == after.start for before, after in zip(track.slices, track.slices[1:], strict=False))


def test_colours_are_those_of_what_is_shown(shown):
    expected = {"compute": range(244, 259), "copies": range(278, 293), "idle": range(70, 166), "late": range(4, 12)}
    for kind, hues in expected.items():
        assert {hue(s.shade) in hues for _, s in shown.of(kind)} <= {True}
    of_parts = {"wait": range(10, 16), "transfer": range(30, 41), "released": range(30, 41)}
    for _, s in shown.of("communication"):
        assert hue(s.shade) in of_parts.get(s.name.split(" ")[0], range(38, 47)), s.name
