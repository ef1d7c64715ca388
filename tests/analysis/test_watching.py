"""Following a run: which cycles are reported when, and never twice, whatever happens to the files or to the watch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from builders import MS, Collective, analysed, traces_of
from hypothesis import given
from hypothesis import strategies as st
from watched import Heard, Watched, as_said, name_of, rows_in, touch, write_cycle, write_side

from commtrace import analyse_cycles
from commtrace.analysis.errors import NoTraces, UnreadableFile, WatchedAlready
from commtrace.analysis.reading.trace_input import TraceInput
from commtrace.analysis.watching.done import DoneCycles, LastTrace, Writers, is_whole, joined_ranges, open_cycles
from commtrace.analysis.watching.follow import Ending
from commtrace.analysis.watching.ledger import Ledger, numbered
from commtrace.analysis.watching.limits import Limit, Limits, limit_in, passed
from commtrace.analysis.watching.row_file import RowFile, as_line
from commtrace.analysis.watching.rows import unusable_row
from commtrace.common import disk

T = 1_759_300_074_000_000_000
"""A time as torch names traces by it, in ns."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The analysis of two ranks, the second of which is late."""
    truth = [Collective((10 * MS, 13 * MS), 10 * MS, elems=250_000_000)]
    traces = [trace.step(1, 0, 40 * MS).kernel("gemm", 0, 9 * MS) for trace in traces_of(2, truth)]
    return analysed(tmp_path_factory.mktemp("made"), *traces)


@pytest.fixture
def watched(tmp_path: Path, made: Any) -> Watched:
    """A folder that is not there yet, and rows beside it."""
    return Watched(tmp_path / "run", tmp_path / "rows.jsonl", as_said(made))


# --- which cycles there are ------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 60)))
def test_ranges_hold_the_numbers_they_were_made_of(numbers: set[int]) -> None:
    ranges = joined_ranges((number, number) for number in numbers)
    assert sorted(numbers) == [number for first, last in ranges for number in range(first, last + 1)]
    assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges))


def test_numbers_of_a_capture_are_those_of_cycles() -> None:
    done = DoneCycles(ranges=((0, 3),), last={"a": LastTrace(3, 3), "b": LastTrace(3, 3)})
    assert open_cycles({"a": [4, 5], "b": [5]}, done) == {4: {"a": 4}, 5: {"a": 5, "b": 5}}


def test_traces_named_by_times_are_counted() -> None:
    traces = {"a": [T, T + 100], "b": [T + 7, T + 105, T + 204]}
    assert open_cycles(traces, DoneCycles()) == {
        0: {"a": T, "b": T + 7},
        1: {"a": T + 100, "b": T + 105},
        2: {"b": T + 204},
    }


def test_counting_goes_on_where_traces_were_removed() -> None:
    done = DoneCycles().with_cycle(0, {"a": T, "b": T + 7}).with_cycle(1, {"a": T + 100, "b": T + 105})
    assert done.is_done("a", T + 100)
    assert open_cycles({"a": [T + 200], "b": [T + 204]}, done) == {2: {"a": T + 200, "b": T + 204}}


def test_a_trace_that_comes_after_its_cycle_was_reported_makes_no_other_one() -> None:
    done = DoneCycles().with_cycle(0, {"a": T, "b": T + 7}).with_cycle(1, {"a": T + 100})
    assert open_cycles({"a": [], "b": [T + 105]}, done) == {}
    assert open_cycles({"a": [T + 200], "b": [T + 105, T + 201]}, done) == {2: {"a": T + 200, "b": T + 201}}


def test_a_later_cycle_does_not_hide_one_that_is_still_to_be_reported() -> None:
    done = DoneCycles().with_cycle(0, {"a": T}).with_cycle(2, {"a": T + 200})
    traces = {"a": [number for number in (T, T + 100, T + 200) if not done.is_done("a", number)]}
    assert open_cycles(traces, done) == {1: {"a": T + 100}}
    assert open_cycles({"a": [T + 300]}, done.with_cycle(1, {"a": T + 100}).with_cycle(2, {"a": T + 200})) == {
        3: {"a": T + 300}
    }


def test_a_job_that_was_started_again_goes_on_with_the_next_cycle() -> None:
    done = DoneCycles().with_cycle(0, {"host_10": T, "host_11": T + 3})
    traces = {"host_10": [], "host_11": [], "host_20": [T + 900], "host_21": [T + 903]}
    assert open_cycles(traces, done) == {1: {"host_20": T + 900, "host_21": T + 903}}


ALL = DoneCycles().with_cycle(0, {"a": 0, "b": 0})
ONE = DoneCycles().with_cycle(0, {"a": 0})


@pytest.mark.parametrize(
    ("opened", "done", "world", "ended", "whole"),
    [
        ({0: "ab"}, DoneCycles(), 2, "", True),
        ({0: "a"}, DoneCycles(), 2, "", False),
        ({0: "a"}, DoneCycles(), None, "", False),  # there may be any number of ranks
        ({0: "a"}, DoneCycles(), 2, "b", True),  # b has ended before its first trace
        ({0: "a", 1: "ab"}, DoneCycles(), 2, "", True),  # b has a later one
        ({1: "a"}, ALL, 2, "", False),
        ({1: "ab"}, ALL, None, "", True),  # as many as of the cycle before
        ({1: "ab"}, ALL, 64, "", True),  # only these two are traced
        ({1: "a"}, ONE, 2, "", True),  # b has none of the cycle before
        ({1: "a"}, ALL, 2, "b", True),
        ({1: "b"}, ONE, 2, "", False),  # b comes back, a is still expected
    ],
)
def test_when_a_cycle_is_whole(
    opened: dict[int, str], done: DoneCycles, world: int | None, ended: str, whole: bool
) -> None:
    cycles = {cycle: dict.fromkeys(workers, cycle) for cycle, workers in opened.items()}
    assert is_whole(min(cycles), cycles, done, Writers(world, frozenset(ended))) is whole


# --- when they are reported ------------------------------------------------------------------------------------------


def test_a_cycle_is_reported_when_all_ranks_have_their_trace_of_it(watched: Watched) -> None:
    folder, clock = watched.folder, watched.clock
    for rank in (0, 1):
        clock.at(3, lambda rank=rank: write_side(folder, rank))
    clock.at(9, lambda: touch(folder, 0, [0]))
    clock.at(19, lambda: touch(folder, 0, [1]))
    clock.at(29, lambda: touch(folder, 1))
    for rank in (0, 1):
        clock.at(35, lambda rank=rank: write_side(folder, rank, reason=None))
    assert watched.run() is Ending.complete
    assert watched.heard.cycles == [0, 1]
    assert watched.heard.at_s == [20, 30]
    assert watched.read == [([name_of(0, cycle), name_of(1, cycle)], False) for cycle in (0, 1)]
    assert watched.heard.notes == [f"{folder}: {what} yet" for what in ("no such folder", "no traces")]
    assert [row["cycle"] for row in rows_in(watched.rows_path)] == [0, 1]


def test_nothing_is_written_into_a_folder_without_traces(watched: Watched) -> None:
    # `capture` refuses a directory that has files in it.
    watched.folder.mkdir()
    assert watched.run(idle_s=10) is Ending.idle
    assert list(watched.folder.iterdir()) == []


def test_a_rank_without_a_trace_is_waited_for_once(watched: Watched) -> None:
    for rank in (0, 1):
        write_side(watched.folder, rank)
    touch(watched.folder, 0, [0])
    for cycle in (1, 2):
        watched.clock.at(10 * cycle, lambda cycle=cycle: touch(watched.folder, cycle, [0]))
    assert watched.run(patience_s=60, idle_s=100) is Ending.idle
    assert watched.heard.cycles == [0, 1, 2]
    assert watched.heard.at_s == [60, 60, 60]


def test_who_is_missing_is_named(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run")
    write_cycle(watched.folder, 0, [0, 2], world=4)
    watched.run(patience_s=10, idle_s=20)
    (row,) = watched.heard.rows
    assert (row["ranks"], row["world_size"], row["missing"]) == (2, 4, "1, 3")


@pytest.mark.slow
def test_how_many_ranks_there_are_is_asked_of_a_trace_without_side_files(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run")
    write_cycle(watched.folder, 0, [0])
    watched.clock.at(6, lambda: write_cycle(watched.folder, 0, [1]))
    watched.run(idle_s=20)
    assert watched.heard.at_s == [6]
    assert watched.heard.rows[0]["missing"] is None


def test_a_file_that_is_still_written_is_tried_again_when_it_stops_growing(watched: Watched, made: Any) -> None:
    write_side(watched.folder, 0)
    touch(watched.folder, 0, [0])
    touch(watched.folder, 0, [1], b"cut")
    for second in range(1, 200, 10):
        watched.clock.at(second, lambda: (watched.folder / name_of(1, 0)).write_bytes(b"cut"))  # a new time of change
    watched.clock.at(205, lambda: touch(watched.folder, 0, [1]))
    watched.run(idle_s=20, patience_s=60)
    assert watched.heard.at_s == [208]
    assert not any(keep_going for _, keep_going in watched.read)


@pytest.mark.slow
def test_a_file_that_stays_cut_is_used_up_to_there_in_the_end(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run")
    write_cycle(watched.folder, 0)
    write_cycle(watched.folder, 1)
    cut = watched.folder / name_of(1, 0)
    cut.write_bytes(cut.read_bytes()[:-40])
    assert watched.run(idle_s=200, patience_s=60) is Ending.idle
    assert watched.heard.cycles == [1, 0]
    assert watched.heard.at_s == [0, 60]
    whole, damaged = watched.heard.rows
    assert (whole["partial"], damaged["partial"]) == (False, True)
    assert whole["note"] is None
    assert name_of(1, 0) in damaged["note"]
    assert watched.watch.unusable == 1
    assert len(watched.read) == 4  # one trace for the number of ranks, the whole cycle, the cut one twice


def test_a_cycle_without_a_usable_file_has_a_row_that_says_so(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run")
    touch(watched.folder, 0, content=b"no trace")
    watched.run(idle_s=200, patience_s=60)
    (row,) = watched.heard.rows
    assert (row["ranks"], row["step_ns"], row["verdict"]) == (0, None, None)
    assert "none of the 2 files could be used" in row["note"]


@pytest.mark.slow
def test_recordings_count_like_traces(tmp_path: Path) -> None:
    from commtrace.analysis.reading.packing import pack
    from commtrace.analysis.reading.pool import Reading
    from commtrace.analysis.recording.options import ReadOptions

    watched = Watched(tmp_path / "run")
    write_cycle(watched.folder, 0)
    traces = sorted(watched.folder.glob("*.json.gz"))
    with Reading(list(map(TraceInput, traces)), ReadOptions(workers=1)) as reading:
        assert len(list(pack(reading, ReadOptions(), None, None))) == 2
    traces[1].unlink()  # one beside its recording, of one only that
    watched.run(once=True)
    (row,) = watched.heard.rows
    assert (row["ranks"], row["missing"]) == (2, None)
    assert sorted(watched.read[-1][0]) == [name_of(0, 0), name_of(1, 0, ".pt.trace.ctrace")]


def test_a_rank_that_ended_early_is_not_waited_for(watched: Watched) -> None:
    touch(watched.folder, 0, [0])
    write_side(watched.folder, 0, reason="another rank ended first")
    write_side(watched.folder, 1, reason="SIGTERM after 3 of 9 scheduled steps")
    assert watched.run() is Ending.complete
    assert watched.heard.at_s == [0]
    assert watched.watch.ended_early == ["SIGTERM after 3 of 9 scheduled steps", "another rank ended first"]


def test_once_leaves_what_is_not_whole(watched: Watched) -> None:
    touch(watched.folder, 0)
    touch(watched.folder, 1, [0])
    for rank in (0, 1):
        write_side(watched.folder, rank)
    assert watched.run(once=True) is Ending.once
    assert watched.heard.cycles == [0]
    assert watched.watch.left == {1: "has traces of 1 rank of 2"}
    assert watched.run(once=True, patience_s=0) is Ending.once
    assert watched.heard.cycles == [0, 1]


def test_another_run_in_the_same_folder_begins_anew(watched: Watched) -> None:
    touch(watched.folder, 0)
    write_side(watched.folder, 0)
    (watched.folder / "run.json").write_text('{"run": "first"}', encoding="utf-8")

    def replace() -> None:
        for path in watched.folder.iterdir():
            path.unlink()
        touch(watched.folder, 0)
        write_side(watched.folder, 0)
        (watched.folder / "run.json").write_text('{"run": "second"}', encoding="utf-8")

    watched.clock.at(10, replace)
    watched.run(idle_s=30)
    assert watched.heard.cycles == [0, 0]
    assert len({row["run_id"] for row in watched.heard.rows}) == 2
    watched.run(once=True)
    assert watched.heard.cycles == [0, 0]


@pytest.mark.parametrize("state", [None, "state.json"])
@pytest.mark.parametrize("run_jsons", [(None, None), ("a", "b"), (None, "b"), ("a", None)])
def test_a_folder_that_is_made_again_is_another_run(
    watched: Watched, tmp_path: Path, state: str | None, run_jsons: tuple[str | None, str | None]
) -> None:
    def begun(run_json: str | None) -> None:
        touch(watched.folder, 0)
        touch(watched.folder, 1)
        if run_json is not None:
            (watched.folder / "run.json").write_text(run_json)

    begun(run_jsons[0])
    watched.clock.at(10, lambda: shutil.rmtree(watched.folder))
    watched.clock.at(20, lambda: begun(run_jsons[1]))
    watched.run(idle_s=60, patience_s=1, state=state and tmp_path / state)
    assert watched.heard.cycles == [0, 1, 0, 1]
    assert len({row["run_id"] for row in watched.heard.rows}) == 2


def test_a_folder_that_is_moved_away_and_back_is_the_same_run(watched: Watched, tmp_path: Path) -> None:
    touch(watched.folder, 0)
    watched.clock.at(10, lambda: watched.folder.rename(tmp_path / "away"))
    watched.clock.at(20, lambda: touch(tmp_path / "away", 1))
    watched.clock.at(30, lambda: (tmp_path / "away").rename(watched.folder))
    watched.run(idle_s=60, patience_s=1)
    assert watched.heard.cycles == [0, 1]


def test_a_copy_of_the_folder_in_its_place_is_the_same_run_by_its_run_json(watched: Watched, tmp_path: Path) -> None:
    touch(watched.folder, 0)
    (watched.folder / "run.json").write_text("a")

    def copied() -> None:
        shutil.copytree(watched.folder, tmp_path / "copy")
        shutil.rmtree(watched.folder)
        (tmp_path / "copy").rename(watched.folder)
        touch(watched.folder, 1)

    watched.clock.at(10, copied)
    watched.run(idle_s=60, patience_s=1, state=tmp_path / "state.json")
    assert watched.heard.cycles == [0, 1]


def test_a_folder_that_is_removed_while_a_cycle_is_analysed_ends_nothing(watched: Watched, made: Any) -> None:
    def removing(paths: Any, keep_going: bool) -> Any:
        if not removed:
            removed.append(paths)
            shutil.rmtree(watched.folder)
        return made

    removed: list[Any] = []
    watched._analyse = removing
    touch(watched.folder, 0)
    write_side(watched.folder, 0)
    watched.clock.at(20, lambda: touch(watched.folder, 0))
    watched.run(idle_s=60, patience_s=1)
    assert watched.heard.cycles == [0, 0]


def test_a_run_json_that_comes_after_the_traces_changes_nothing(watched: Watched) -> None:
    touch(watched.folder, 0)
    write_side(watched.folder, 0)
    watched.clock.at(5, lambda: (watched.folder / "run.json").write_text("{}", encoding="utf-8"))
    watched.clock.at(15, lambda: touch(watched.folder, 1))
    watched.run(idle_s=30)
    watched.run(once=True)
    assert watched.heard.cycles == [0, 1]


def test_a_trace_from_a_clock_that_was_set_back_is_named(watched: Watched) -> None:
    def write(*numbers: int) -> None:
        watched.folder.mkdir(exist_ok=True)
        for number in numbers:
            (watched.folder / f"host_7.{number}.pt.trace.json").write_bytes(b"whole")

    write(T, T + 100)
    write_side(watched.folder, 0, world=1)
    watched.clock.at(10, lambda: write(T + 50))
    watched.clock.at(20, lambda: write(T + 200))
    watched.run(idle_s=30)
    assert watched.heard.cycles == [0, 1, 2]
    assert watched.heard.notes == [
        "host_7: wrote a trace that its name says is older than one that was reported; left out"
    ]


@pytest.mark.slow
def test_what_is_not_a_file_is_not_waited_for(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run")
    write_cycle(watched.folder, 0)
    os.mkfifo(watched.folder / name_of(0, 1))
    (watched.folder / name_of(0, 2)).mkdir()
    (watched.folder / name_of(0, 3)).symlink_to(name_of(0, 3))
    (watched.folder / "node_9.meta.json").write_text("{", encoding="utf-8")
    assert watched.run(idle_s=10, patience_s=5) is Ending.idle
    assert watched.heard.cycles == [0]


def test_a_folder_that_cannot_be_read_for_a_while(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(watched.folder, 0)
    write_side(watched.folder, 0)
    listed = os.scandir

    def fails(path: Any) -> Any:
        raise OSError(116, "Stale file handle")

    watched.clock.at(5, lambda: monkeypatch.setattr(os, "scandir", fails))
    watched.clock.at(15, lambda: monkeypatch.setattr(os, "scandir", listed))
    watched.clock.at(16, lambda: touch(watched.folder, 1))
    watched.run(idle_s=30)
    assert watched.heard.cycles == [0, 1]
    assert watched.heard.notes == [f"{watched.folder}: cannot be read at the moment: Stale file handle"]
    monkeypatch.setattr(os, "scandir", fails)
    with pytest.raises(UnreadableFile, match="Stale file handle"):
        watched.run()


@pytest.mark.slow
def test_what_is_remembered_does_not_grow_with_the_cycles(watched: Watched) -> None:
    sizes = []
    write_side(watched.folder, 0)
    for cycle in range(10, 40):
        touch(watched.folder, cycle)
        watched.run(once=True)
        sizes.append((watched.folder / ".commtrace-watch.json").stat().st_size)
    assert watched.heard.cycles == list(range(10, 40))
    assert max(sizes) == min(sizes)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_limits() -> None:
    row = {"exposed_comm_frac": 0.25, "exposed_wait_frac": None, "step_ns": 3_200_000}
    limits = [limit_in(text) for text in ("exposed=20", "wait=0", "step-ms=3.1", "exposed=25")]
    assert passed(row, limits) == "exposed 25.0 % > 20 %, step 3.2 ms > 3.1 ms"
    assert passed(row, limits[3:]) is None
    for text in ("exposed", "exposed=", "exposed=-1", "exposed=nan", "step=3", "wait=1e3", "exposed=20%"):
        with pytest.raises(ValueError, match="is not a limit, such as exposed=20"):
            limit_in(text)


def test_a_watch_ends_at_a_limit_or_goes_on(watched: Watched) -> None:
    for cycle in range(3):
        touch(watched.folder, cycle)
    write_side(watched.folder, 0)
    low, high = Limit("wait", 1.0), Limit("wait", 99.0)
    assert watched.run(Limits((high,)), once=True) is Ending.once
    assert (watched.heard.cycles, watched.watch.passed) == ([0, 1, 2], None)
    touch(watched.folder, 3)
    touch(watched.folder, 4)
    assert watched.run(Limits((low,)), once=True) is Ending.limit
    assert watched.heard.cycles[3:] == [3]
    assert watched.watch.passed.startswith("cycle 3: wait ")
    assert watched.run(Limits((high,), go_on=True), once=True) is Ending.once
    assert watched.watch.passed is None
    assert watched.heard.cycles[3:] == [3, 4]


def test_a_limit_that_was_passed_before_an_interruption_counts_at_the_end(watched: Watched) -> None:
    limits = Limits((Limit("wait", 1.0),), go_on=True)
    write_side(watched.folder, 0)
    for cycle in range(2):
        touch(watched.folder, cycle)
    assert watched.run(limits, once=True) is Ending.once
    assert watched.run(limits, once=True) is Ending.once
    assert watched.watch.passed.startswith("cycle 0: wait ")
    assert watched.run(Limits((Limit("wait", 2.0),), go_on=True), once=True) is Ending.once
    assert watched.watch.passed is None


# --- nothing lost, nothing twice -------------------------------------------------------------------------------------


class Killed(BaseException):
    """As a signal that cannot be caught."""


OPERATIONS = ("create", "write", "sync", "rename")


def killed_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> list[str]:
    """From the operation of this number on, nothing works any more; of a write, half is done."""
    done: list[str] = []

    def dying(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any) -> Any:
            done.append(name)
            if len(done) == moment and name == "write":
                work(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if len(done) >= moment:
                raise Killed
            return work(*arguments)

        return instead

    for name in OPERATIONS:
        monkeypatch.setattr(disk, name, dying(name, getattr(disk, name)))
    monkeypatch.setattr("commtrace.analysis.watching.row_file.sync", disk.sync)
    return done


@pytest.mark.parametrize("moment", range(1, 19))
def test_killed_at_any_moment_nothing_is_lost_or_twice(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    write_side(watched.folder, 0)
    for cycle in range(2):
        touch(watched.folder, cycle)
    with monkeypatch.context() as patched:
        done = killed_at(patched, moment)
        with pytest.raises(Killed):
            watched.run(once=True)
    assert len(done) >= moment
    shown = watched.heard.cycles
    watched.heard = Heard()
    assert watched.run(once=True) is Ending.once
    rows = rows_in(watched.rows_path)
    assert [row["cycle"] for row in rows] == [0, 1]
    assert {*shown, *watched.heard.cycles} == {0, 1}
    state = json.loads((watched.folder / ".commtrace-watch.json").read_text(encoding="utf-8"))
    assert state["reported"] == [[0, 1]]


def test_without_the_state_the_rows_say_what_was_reported(watched: Watched) -> None:
    write_side(watched.folder, 0)
    (watched.folder / "run.json").write_text("{}", encoding="utf-8")
    for cycle in range(3):
        touch(watched.folder, cycle)
    watched.run(once=True)
    (watched.folder / ".commtrace-watch.json").unlink()
    touch(watched.folder, 3)
    watched.heard = Heard()
    watched.run(once=True)
    assert watched.heard.cycles == [2, 3]  # the last row may not have been shown
    assert [row["cycle"] for row in rows_in(watched.rows_path)] == [0, 1, 2, 3]


def test_rows_of_several_runs_in_one_file(watched: Watched, tmp_path: Path, made: Any) -> None:
    other = Watched(tmp_path / "other", watched.rows_path, as_said(made))
    for one in (watched, other, watched):
        write_side(one.folder, 0)
        touch(one.folder, len(one.heard.cycles))
        one.run(once=True)
    assert [(row["run"], row["cycle"]) for row in rows_in(watched.rows_path)] == [("run", 0), ("other", 0), ("run", 1)]


def test_runs_of_one_name_without_a_run_json_are_told_apart(watched: Watched, tmp_path: Path, made: Any) -> None:
    other = Watched(tmp_path / "elsewhere" / watched.folder.name, watched.rows_path, as_said(made))
    other.folder.parent.mkdir()
    for one in (watched, other, watched, other):
        write_side(one.folder, 0, world=1) if not one.folder.exists() else None
        touch(one.folder, 0)
        one.run(once=True)
    assert [row["cycle"] for row in rows_in(watched.rows_path)] == [0, 0]


def test_a_full_disk_leaves_no_part_of_a_row(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    write_side(watched.folder, 0)
    touch(watched.folder, 0)
    watched.run(once=True)
    touch(watched.folder, 1)
    before = watched.rows_path.read_bytes()
    written = disk.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return written(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(disk, "write", full)
        with pytest.raises(UnreadableFile, match=r"rows\.jsonl: cannot be written: No space left"):
            watched.run(once=True)
    assert watched.rows_path.read_bytes() == before
    watched.run(once=True)
    assert watched.heard.cycles == [0, 1]


@pytest.mark.parametrize(
    "content", ["notes", '{"a": 1}\n', "[1]\n", '{"run": "x", "run_id": null, "cycle": "0"}\n', "\n"]
)
def test_a_file_of_something_else_stays_as_it_is(watched: Watched, content: str) -> None:
    watched.rows_path.write_text(content, encoding="utf-8")
    write_side(watched.folder, 0)
    touch(watched.folder, 0)
    with pytest.raises(UnreadableFile, match="line 1 is not a row of a watch; name another file"):
        watched.run(once=True)
    assert watched.rows_path.read_text(encoding="utf-8") == content


def test_a_row_that_was_begun_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = as_line(numbered("run", "id", 0, unusable_row("a \udcff name")))
    for cut in (1, len(row) // 2, len(row) - 1):
        path.write_bytes(row + row[:cut])
        file = RowFile(path)
        found = file.rows_of("id")
        file.close()
        assert found.ranges == ((0, 0),)
        assert path.read_bytes() == row


VERSION_2 = '{"schema_version": 2, "run": "run", "run_id": "a", "run_json": null, "reported": [], "workers": {}}'


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "is not the state of a watch"),
        ('{"schema_version": 1}', "is not the state of a watch"),
        (
            '{"schema_version": 2, "run": "run", "run_id": "a", "run_json": null, "reported": [], "workers": {}}',
            "schema_version 2, exp",
        ),
    ],
)
def test_a_state_that_is_not_understood(watched: Watched, content: str, what: str) -> None:
    touch(watched.folder, 0)
    (watched.folder / ".commtrace-watch.json").write_text(content, encoding="utf-8")
    with pytest.raises(UnreadableFile, match=what):
        watched.run(once=True)


def test_two_watches_at_once(watched: Watched, tmp_path: Path) -> None:
    write_side(watched.folder, 0)
    touch(watched.folder, 0)
    first = Ledger(watched.folder)
    first.begin("run", None)
    with pytest.raises(WatchedAlready, match="another watch uses it; end that one, or name a --state"):
        watched.run(once=True)
    assert watched.run(once=True, state=tmp_path / "own.json") is Ending.once
    first.close()
    assert watched.run(once=True) is Ending.once
    assert (tmp_path / "own.json").is_file()
    rows = Ledger(watched.folder, tmp_path / "a.json", tmp_path / "same.jsonl")
    with pytest.raises(WatchedAlready, match="another watch writes to it"):
        Ledger(watched.folder, tmp_path / "b.json", tmp_path / "same.jsonl")
    rows.close()


def test_where_the_folder_cannot_be_written_to(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != watched.folder and may(path, mode))
    write_side(watched.folder, 0)
    touch(watched.folder, 0)
    before = sorted(watched.folder.iterdir())
    watched.run(once=True)
    watched.run(once=True)
    assert watched.heard.cycles == [0]
    assert sorted(watched.folder.iterdir()) == before
    assert [path.suffix for path in sorted((tmp_path / "cache/commtrace/watch").iterdir())] == [".json", ".lock"]


# --- in Python -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_cycles_of_a_run_in_python(tmp_path: Path) -> None:
    for cycle in (0, 1):
        write_cycle(tmp_path / "run", cycle, late=3 * (cycle + 1) * MS)
    found = analyse_cycles(tmp_path / "run")
    assert found.cycles["cycle"].tolist() == [0, 1]
    assert found.cycles["blamed_rank"].tolist() == [1, 1]
    assert found.cycles["exposed_wait_frac"].is_monotonic_increasing
    assert found.cycles["limits"].isna().all()
    assert list((tmp_path / "run").glob(".*")) == []
    assert repr(found) == f"<CycleAnalysis of {tmp_path / 'run'}; see .cycles>"
    with pytest.raises(NoTraces, match="holds no traces"):
        _ = analyse_cycles(tmp_path / "nowhere").cycles
