"""All the time of a device, part by part: exact on any run, against a count tick by tick, and as people read it."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from builders import MS, US, Collective, Trace, analysed, traces_of, write_run
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse, load_run
from commtrace.analysis.tables.account import WINDOW_PARTS
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
RUNS = [
    ROOT / "traces" / "resnet18-ddp-w2",
    *sorted(path for path in (ROOT / "tests" / "data").iterdir() if any(path.glob("*.json*"))),
]
IDLE = [part for part in WINDOW_PARTS if part.startswith("idle_")]
CAUSES = [part for part in IDLE if part != "idle_unknown_ns"]


def assert_it_adds_up(found: Analysis) -> None:
    """Every ns of every window is in one part, and every ns of exposed wait is for one rank."""
    for account, breakdown, keys in (
        (found.account, found.breakdown, ["rank", "device"]),
        (found.account_steps, found.breakdown_steps, ["rank", "device", "step"]),
    ):
        waited, expected = Counter[tuple[object, ...]](), Counter[tuple[object, ...]]()
        for row, other in zip(records(account), records(breakdown), strict=True):
            key = tuple(row[name] for name in keys)
            assert key == tuple(other[name] for name in keys)
            assert sum(row[part] or 0 for part in WINDOW_PARTS) == row["window_ns"] == other["window_ns"]
            assert min(row[part] or 0 for part in WINDOW_PARTS) >= 0
            assert sum(row[part] or 0 for part in IDLE) == other["idle_ns"]
            if row["exposed_wait_ns"] is not None:
                expected[key] += row["exposed_wait_ns"]
        for row in records(found.account_waits):
            counted = "step" in keys or not found.counted_steps or row["step"] in found.counted_steps
            if counted and ("step" not in keys or row["step"] is not None):
                waited[tuple(row[name] for name in keys)] += row["exposed_wait_ns"]
        assert {key: ns for key, ns in waited.items() if key in expected} == +expected


@pytest.mark.quick_cases("host-bound-True", "host-bound-False")
@pytest.mark.parametrize("details", [True, False])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_run_adds_up(run, details):
    found = analyse(run, details=details)
    assert_it_adds_up(found)
    on_gpus = found.account[found.account["device"] != "cpu"]
    known = on_gpus[[cause for cause in CAUSES if cause != "idle_gc_ns"]].notna()
    assert known.all(axis=None) if details else not known.any(axis=None)


@pytest.mark.slow
@pytest.mark.parametrize("details", [True, False])
def test_the_mean_of_its_parts_is_the_typical_step(details):
    found = analyse(ROOT / "tests" / "data" / "nccl-straggler", details=details)
    whole, parts = found.typical_step.parts, {part.column: part.mean_ns for part in found.typical_parts}
    for part in [part for part in WINDOW_PARTS if part not in IDLE]:
        assert parts.get(part, 0.0) == pytest.approx(whole.get(part, 0.0), abs=1)
    assert sum(ns for part, ns in parts.items() if part in IDLE) == pytest.approx(whole["idle_ns"], abs=1)
    assert found.account_parts["mean_ns"].sum() == round(whole["window_ns"])
    assert found.account_parts["share_frac"].sum() == pytest.approx(1)
    assert [part.mean_ns for part in found.typical_parts] == sorted(parts.values(), reverse=True)


# --- tick by tick --------------------------------------------------------------------------------------------------

GROUPS = {"a": (0, 1), "b": (0, 2), "c": (0, 1, 2)}
TIMES = st.integers(0, 30)


@st.composite
def runs(draw: st.DrawFn) -> list[Trace]:
    """Three ranks that compute, copy and communicate in several groups at once, with or without steps."""
    collectives = []
    for turn in range(draw(st.integers(0, 4))):
        group = draw(st.sampled_from(sorted(GROUPS)))
        arrivals = {rank: (10 * turn + draw(TIMES)) * US for rank in GROUPS[group]}
        collectives.append(Collective(arrivals, transfer=draw(st.integers(1, 8)) * US, group=group))
    traces = traces_of(3, collectives, host="node0")
    steps = draw(st.sampled_from(((), (30,), (20, 45))))
    for trace in traces:
        for _ in range(draw(st.integers(1, 5))):
            start, dur = draw(TIMES) * US, draw(st.integers(0, 9)) * US
            launch = draw(st.none() | st.integers(0, start // US).map(lambda time: time * US))
            if draw(st.booleans()):
                trace.kernel("gemm", start, dur, launch=launch)
            else:
                trace.memcpy("HtoD", start, dur, launch=launch)
        for name in draw(st.lists(st.sampled_from(("aten::mm", "fx (dynamo_timed)", "c10d::barrier")), max_size=3)):
            trace.op(name, draw(TIMES) * US, draw(st.integers(1, 9)) * US)
        if draw(st.booleans()):
            trace.event("python_function", "Python GC", draw(TIMES) * US, 4 * US)
        bounds = [0, *(end * US for end in steps), 200 * US]
        for number, start in enumerate(bounds[:-1] if steps else ()):
            trace.step(number, start, bounds[number + 1])
    return traces


def ticks_of(found: Analysis, rank: int, begin: int, end: int) -> tuple[Counter[str], Counter[int]]:
    """What each us of [begin, end) of a rank counts as, and for which rank it waits, in us."""
    ran = records(found.run.activities[found.run.activities["rank"] == rank])
    calls = [row for row in records(found.participation) if row["rank"] == rank and row["wait_ns"] is not None]
    counts, waits = Counter[str](), Counter[int]()
    for tick in range(begin, end, US):
        kinds = {row["kind"] for row in ran if row["start_ns"] <= tick < row["start_ns"] + row["dur_ns"]}
        since = [(tick - row["start_ns"], row) for row in calls]
        waiting = [row for after, row in since if 0 <= after < row["wait_ns"]]
        if "compute" in kinds:
            counts["overlap_ns" if "comm" in kinds else "compute_alone_ns"] += 1
        elif any(row["wait_ns"] <= after < row["dur_ns"] for after, row in since):
            counts["exposed_transfer_ns"] += 1
        elif waiting:
            counts["exposed_wait_ns"] += 1
            last = max(row["start_ns"] + row["wait_ns"] for row in waiting)
            first = (row for row in waiting if row["start_ns"] + row["wait_ns"] == last)
            waits[min(first, key=lambda row: (row["start_ns"], row["call_id"]))["waited_for"]] += 1
        else:
            counts[
                "exposed_unsplit_ns" if "comm" in kinds else "exposed_memory_ns" if kinds else "idle_unknown_ns"
            ] += 1
    return counts, waits


@pytest.mark.slow
@given(runs())
@settings(max_examples=15, deadline=None)
def test_every_tick_counts_once(traces):
    with TemporaryDirectory() as folder:
        for trace in traces:
            trace.write(Path(folder), gz=False)
        found = Analysis(load_run([Path(folder)], details=True), whole=True)
    assert_it_adds_up(found)
    for table, step_of in ((found.account, False), (found.account_steps, True)):
        for row in records(table):
            ran = found.run.activities[found.run.activities["rank"] == row["rank"]]
            begin = int(ran["start_ns"].min())
            if step_of:
                begin = int(ran[["start_ns", "idle_since_ns"]][ran["step"] >= row["step"]].min().min())
            counts, waits = ticks_of(found, row["rank"], begin, begin + row["window_ns"])
            for part in [part for part in WINDOW_PARTS if part not in IDLE]:
                split = row["exposed_wait_ns"] is not None or part not in ("exposed_wait_ns", "exposed_transfer_ns")
                assert (row[part] == counts[part] * US) if split else (row[part] is None and not counts[part]), part
            assert sum(row[part] or 0 for part in IDLE) == counts["idle_unknown_ns"] * US
            assert waited_for(found, row["rank"], row["step"] if step_of else None) == waits


def waited_for(found: Analysis, rank: int, step: int | None) -> Counter[int]:
    """For whom a rank waited, in us."""
    result = Counter[int]()
    for row in records(found.account_waits):
        if row["rank"] == rank and step in (None, row["step"]):
            result[row["waited_for"]] += row["exposed_wait_ns"] // US
    return result


# --- whom a wait was for, and what cannot be known -----------------------------------------------------------------


def late_run(folder: Path, *, late_ns: int = 5 * MS) -> Path:
    """Four ranks; rank 2 is late for six of eight collectives, rank 0 for the others."""
    arrivals = [[late_ns * (rank == (0 if turn > 5 else 2)) + turn * 20 * MS for rank in range(4)] for turn in range(8)]
    return write_run(folder, 4, [Collective(each, transfer=2 * MS) for each in arrivals], host="node0")


@pytest.mark.slow
def test_the_wait_is_for_whom_it_was(tmp_path):
    found = analyse(late_run(tmp_path))
    (wait,) = [part for part in found.typical_parts if part.column == "exposed_wait_ns"]
    assert [(each.rank, round(each.mean_ns)) for each in wait.waited_for] == [
        (2, 6 * 3 * 5 * MS // 4),
        (0, 2 * 3 * 5 * MS // 4),
    ]
    assert min(wait.of_ranks, key=lambda rank: wait.of_ranks[rank]) == 2
    (row,) = [row for row in records(found.account_parts) if row["column"] == "exposed_wait_ns"]
    assert row["waited_for"] == "rank 2: 22.5 ms, rank 0: 7.5 ms"
    assert row["least_rank"] == 2
    origins = {row["origin_rank"] for row in records(found.account_waits) if row["waited_for"] == 2}
    assert origins - {None} == {2}


def test_of_one_rank_alone_exposed_communication_is_not_split(tmp_path):
    found = analysed(tmp_path, Trace(world=2).kernel("gemm", 0, 10 * US).nccl("all_reduce", 10 * US, 30 * US))
    (row,) = records(found.account)
    assert (row["exposed_wait_ns"], row["exposed_transfer_ns"], row["exposed_unsplit_ns"]) == (None, None, 30 * US)
    assert not len(found.account_waits)
    assert [part.name for part in found.typical_parts] == ["exposed, not split", "compute alone"]


def test_without_details_idle_time_is_one_number(tmp_path):
    found = analysed(tmp_path, Trace().kernel("gemm", 0, 10 * US).kernel("gemm", 30 * US, 10 * US))
    (row,) = records(found.account)
    assert row["idle_unknown_ns"] == 20 * US
    assert {row[cause] for cause in CAUSES} == {None}
    assert "--no-details" in row["note"]
    assert [part.name for part in found.typical_parts] == ["compute alone", "idle"]


@pytest.mark.slow
def test_a_split_known_in_one_of_two_cycles_is_not_known_in_all(tmp_path):
    for rank in (0, 1):
        own = {"ranks": (0, 1), "Seq": 1}
        first = Trace(rank, 2, host="node0").nccl("all_reduce", 10 * US * rank, 40 * US - 10 * US * rank, **own)
        first.write(tmp_path, f"node0_{1000 + rank}.1.pt.trace.json.gz")
    alone = Trace(0, 2, host="node0", base_ns=None).kernel("gemm", 1 * MS, MS)
    alone.nccl("all_reduce", 2 * MS, 30 * US, ranks=(0, 1), Seq=9)
    alone.write(tmp_path, "node0_1000.2.pt.trace.json.gz")
    found = analyse(tmp_path)
    assert_it_adds_up(found)
    row = records(found.account)[0]
    assert (row["exposed_wait_ns"], row["exposed_unsplit_ns"]) == (None, 70 * US)


# --- the command ---------------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["table", "account", *args]) == 0
    return capsys.readouterr().out


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    run = str(late_run(tmp_path))
    text = printed(capsys, run)
    assert text.index("exposed wait") < text.index("exposed transfer")
    assert "rank 2: 22.5 ms" in text
    assert len(rows(printed(capsys, "--format", "csv", "--by", "device", run))) == 4
    waits = rows(printed(capsys, "--format", "csv", "--by", "culprit", run))
    assert sum(int(row["exposed_wait_ns"]) for row in waits) == 8 * 3 * 5 * MS
    assert main(["table", "account", "--by", "step", run]) == 1
    assert "no activity belongs to a step" in capsys.readouterr().err


@pytest.mark.slow
def test_what_people_see_adds_up_to_all(tmp_path, capsys):
    shares = [float(row["share_frac"]) for row in rows(printed(capsys, "--format", "csv", str(late_run(tmp_path))))]
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)


def test_of_one_rank_alone_it_is_not_known_for_whom_it_waits(tmp_path, capsys):
    Trace(world=2).kernel("gemm", 0, 10 * US).nccl("all_reduce", 10 * US, 30 * US).write(tmp_path)
    assert main(["table", "account", "--by", "culprit", str(tmp_path)]) == 1
    assert "needs the traces of all ranks" in capsys.readouterr().err


@pytest.mark.slow
def test_no_wait_at_all_is_a_result(tmp_path, capsys):
    run = str(late_run(tmp_path, late_ns=0))
    assert "no device waited" in printed(capsys, "--by", "culprit", run)
