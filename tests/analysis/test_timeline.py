"""Timelines, read back with Perfetto's own message classes, against the tables."""

from collections import Counter, defaultdict
from pathlib import Path

import pandas as pd
import pytest
from perfetto_reading import ReadSlice, ReadTrack, tracks_of
from samples import with_slow

from commtrace.analysis.core.schema import records
from commtrace.analysis.core.steps import step_windows
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.metrics.clocks.table import aligned
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.timeline.drawing import run_timeline

DATA = Path(__file__).parent.parent / "data"
RUNS = with_slow(["nccl-two-hosts", "nccl-pipeline", "gloo-training"], ["nccl-straggler", "nccl-rooted", "nccl-hang"])
_WINDOW = ["rank", "start_ns", "dur_ns"]
TITLES = {"compute": "compute", "memory": "copies", "comm": "communication"}


class Shown:
    """A run, its timeline as Perfetto reads it, and times on the timeline."""

    def __init__(self, found: Analysis, **choice):
        self.found = found
        self.timeline = run_timeline(found, **choice)
        self.tracks = tracks_of(b"".join(self.timeline.parts))

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
        host = self.found.run.hosts[rank]
        return f"rank {rank}" if host is None else f"rank {rank} ({host})"


@pytest.fixture(scope="module", params=RUNS)
def shown(request) -> Shown:
    return Shown(analyse(DATA / request.param))


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
        parts.update((row["call_id"], part, a, b) for part, a, b in
                     (("wait", start, moving), ("transfer", moving, end)) if a < b)  # fmt: skip
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
    for (rank, _, _), rows in shown.found.run.activities.groupby(["rank", "device", "cycle"]):
        start = rows["start_ns"].to_numpy()
        steps = rows["step"].fillna(-1).to_numpy(dtype="int64")
        windows = step_windows(start, start + rows["dur_ns"].to_numpy(), steps)
        bounds = pd.DataFrame(
            [(rank, w.start_ns, w.end_ns - w.start_ns) for w in windows], columns=_WINDOW, dtype="int64"
        )
        for window, times in zip(windows, shown.times(bounds), strict=True):
            expected[(shown.group(rank), f"step {window.step}", *times)] += 1
    assert Counter((g, s.name, s.start, s.end) for g, s in shown.of("steps")) == expected


def test_clocks_are_told(shown):
    told = {group: s.notes for group, s in shown.of("clock")}
    for row in records(shown.found.clocks):
        notes = told[shown.group(row["rank"])]
        assert [notes[k] for k in ("offset_ns", "origin_ns", "uncertainty_ns", "linked", "basis")] == [
            row[k] for k in ("offset_ns", "origin_ns", "uncertainty_ns", "linked", "basis")
        ]


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


def test_bus_bandwidth_is_that_of_the_collectives(shown):
    expected = defaultdict(list)
    for row in records(shown.found.collectives):
        if row["busbw_gb_per_s"] is not None and row["last_start_ns"] is not None:
            ends = (row[k] - shown.timeline.zero_ns for k in ("last_start_ns", "last_end_ns"))
            expected[row["process_group"] or "?", row["pg_ranks"]].append((*ends, row["busbw_gb_per_s"]))
    found = counters(shown, "bus bandwidth")
    assert len(found) == len(expected)
    for (group, _), rows in expected.items():
        (track,) = [t for name, t in found.items() if name.split(" (")[0] == f"bus bandwidth of group {group}"
                    and {time for time, _ in t.points} == {time for a, b, _ in rows for time in (a, b)}]  # fmt: skip
        assert track.unit == "GB/s"
        for time, value in track.points:
            assert value == pytest.approx(sum(v for a, b, v in rows if a <= time < b), rel=1e-9, abs=1e-9)


def test_all_begins_at_zero(shown):
    starts = [s.start for t in shown.tracks for s in t.slices] + [v[0] for t in shown.tracks for v in t.points]
    assert min(starts) == 0
    ((_, about),) = shown.of("about")
    assert about.notes["zero_ns"] == shown.timeline.zero_ns
    assert about.notes["slices_on_further_lanes"] == shown.timeline.moved


def test_slices_on_one_line_nest_or_follow_each_other(shown):
    for track in shown.tracks:
        for before, after in zip(track.slices, track.slices[1:], strict=False):
            assert before.end <= after.start or (before.start <= after.start and after.end <= before.end)
    assert sum(len(t.slices) for t in shown.tracks if t.group != "all ranks") == shown.timeline.slices


def test_steps_and_ranks_can_be_chosen():
    found = analyse(DATA / "nccl-straggler")
    steps = sorted(found.run.activities["step"].dropna().unique().tolist())
    few = Shown(found, steps=steps[1:2], ranks=found.run.ranks[:2])
    assert {t.group for t in few.tracks} == {"all ranks", *map(few.group, found.run.ranks[:2])}
    assert {s.name for _, s in few.of("steps")} == {f"step {steps[1]}"}
    kept = found.calls[found.calls["rank"].isin(found.run.ranks[:2]) & (found.calls["step"] == steps[1])]
    drawn = {s.notes["call_id"] for _, s in few.of("communication") if "call_id" in s.notes}
    assert drawn == set(kept["call_id"])
    begun = [arrow for _, s in few.of("late") for arrow in s.out]
    assert sorted(begun) == sorted(arrow for _, s in few.of("communication") for arrow in s.into)


def test_what_is_not_there_is_said():
    found = analyse(DATA / "nccl-straggler")
    with pytest.raises(NothingMeasured, match=r"steps 99; there are "):
        found.timeline(steps=[99])
    with pytest.raises(NothingMeasured, match=r"1 rank that the timeline is to show: 77; there are 0"):
        found.timeline(ranks=[0, 77])


def test_the_library_gives_the_same_bytes():
    found = analyse(DATA / "gloo-training")
    assert found.timeline() == b"".join(run_timeline(found).parts)


@pytest.mark.parametrize("run", ["nccl-straggler", "gloo-training"])
def test_a_single_rank_is_shown_as_well(run):
    found = analyse(sorted((DATA / run).glob("*.json.gz"))[:1])
    alone = Shown(found)
    assert {t.group for t in alone.tracks} == {"all ranks", alone.group(0)}
    assert len([s for _, s in alone.of("communication") if "call_id" in s.notes]) == len(found.calls) > 0
    assert alone.of("late") == []
