"""What is left of damaged files, of files cut anywhere, and what a damaged rank does to the others."""

from __future__ import annotations

import functools
import gzip
import json
import random
import re
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from builders import LAYOUTS, MS, Collective, Trace, analysed, traces_of, write_bytes, write_run
from oracle import Tables, oracle_tables, tables_of
from samples import with_slow
from small_trace import content, good_events, read, trace

from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import DamagedTrace, NotATrace, TraceError
from commtrace.analysis.metrics.damaged import resting_on
from commtrace.analysis.recording.recording import RawTrace
from commtrace.analysis.recording.sizes import USUAL_SIZES, ReadSizes
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import load_run
from commtrace.analysis.run.file_tables import trace_file
from commtrace.cli import main


@functools.lru_cache(maxsize=64)
def wanted_of(text: bytes, events: int) -> Tables:
    """The tables of the document with its first so many events only."""
    document = json.loads(text)
    return oracle_tables(json.dumps({**document, "traceEvents": document["traceEvents"][:events]}).encode())


@functools.lru_cache(maxsize=64)
def told_by(path: Path, packed: bytes) -> Tables:
    """Of many cuts the same is left, and making tables of it is what takes long."""
    return tables_of(trace_file(path, msgspec.msgpack.decode(packed, type=RawTrace)))


def assert_what_is_left(path: Path, text: bytes, sizes: ReadSizes) -> int:
    """How many events are left of a damaged file; its numbers are those of these events."""
    with pytest.raises(TraceError):
        read(path, sizes=sizes)
    try:
        found = read(path, keep_damaged=True, sizes=sizes)
    except TraceError:
        return 0
    events = good_events(found)
    wanted, told = (
        wanted_of(text, events),
        told_by(path, msgspec.msgpack.encode(msgspec.structs.replace(found, damage=""))),
    )
    # The zero of times, and the launches of activities that are gone, may be on the other side of the damage.
    shift = wanted["header"][-1] - told["header"][-1]
    assert [(*row[:4], row[4] + shift, *row[5:]) for row in told["activities"]] == wanted["activities"]
    assert [(*row[:2], row[2] + shift, *row[3:]) for row in told["marks"]] == wanted["marks"]
    assert {(c, t, start + shift, i) for c, t, start, i in told["launches"]} >= set(wanted["launches"])
    assert told["kernel_args"] == wanted["kernel_args"]
    assert told["record_args"] == wanted["record_args"]
    return events


@pytest.mark.parametrize("layout", ["kineto", "kineto of torch 2.13", "compact", "crlf", "events first"])
@pytest.mark.parametrize("gz", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("places", with_slow([30], [100]))
def test_cut_at_any_byte(tmp_path, layout, gz, places):
    text = LAYOUTS[layout](trace().document() | {"host_name": "naïve 核 🚀"})
    content = gzip.compress(text[:1500]) + gzip.compress(text[1500:]) if gz else text
    path, left = tmp_path / "rank0.json", []
    last = len(content) - 8 * gz - 1
    for length in sorted({*random.Random(places).sample(range(last), min(places, last)), last}):
        path.write_bytes(content[:length])
        left.append(assert_what_is_left(path, text, ReadSizes(chunk_bytes=700)))
    assert left == sorted(left)
    assert left[-1] == len(trace().events)


def test_a_large_file_tells_the_same_though_its_events_are_counted_later(tmp_path):
    """A small one is counted at once; a large one only once it is known to be damaged."""
    text, large = content(), ReadSizes(slow_to_count_bytes=0)
    for length in range(len(text) // 2, len(text) - 9, 307):
        path = write_bytes(tmp_path / "rank0.json", text[:length])
        kept, error = read(path, keep_damaged=True), error_of(path)
        assert error_of(path, large) == error
        assert read(path, keep_damaged=True, sizes=large) == kept


def error_of(path: Path, sizes: ReadSizes = USUAL_SIZES) -> str:
    with pytest.raises(DamagedTrace, match=r"[1-9][0-9]* events") as caught:
        read(path, sizes=sizes)
    return str(caught.value)


# --- what a damaged rank does to the others --------------------------------------------------------------------------


@pytest.fixture
def run_with_a_damaged_rank(tmp_path) -> Path:
    """Three ranks, six collectives; of rank 1 only what stands before its fifth."""
    truth = [Collective((k * 100 * MS, k * 100 * MS + 9 * MS, k * 100 * MS + 3 * MS)) for k in range(6)]
    for made in traces_of(3, truth):
        made.step(1, 0, 600 * MS).kernel("gemm", 20 * MS, 60 * MS)
        made.events[:0] = made.events[-3:]
        del made.events[-3:]
        made.write(tmp_path, f"rank{made.rank}.json", gz=False)
    path = tmp_path / "rank1.json"
    text = path.read_bytes()
    path.write_bytes(text[: [m.start() for m in re.finditer(rb'"cat": "kernel"', text)][5]])
    return tmp_path


@pytest.mark.slow
def test_tables_say_which_rank_is_partial(run_with_a_damaged_rank):
    run = load_run([run_with_a_damaged_rank], keep_going=True, details=True)
    assert run.partial_ranks == [1]
    (damaged,) = [row for row in records(run.traces) if row["partial"]]
    assert (damaged["rank"], damaged["complete"]) == (1, False)
    assert "ends in the middle of its events" in damaged["incomplete_reason"]
    assert run.failed == (damaged["incomplete_reason"],)
    found = Analysis(run)
    for table in (found.breakdown, found.breakdown_steps, found.ranks):
        assert {(row["rank"], row["partial"]) for row in records(table)} == {(0, False), (1, True), (2, False)}
    for table in (found.kernels, found.operators, found.bandwidth, found.bandwidth_ceiling, found.verdicts):
        assert len(table)
        assert table["partial"].all()
    for table in (found.calls, found.clocks):
        assert {(row["rank"], row["partial"]) for row in records(table)} == {(0, False), (1, True), (2, False)}
    for table in (found.collectives, found.participation, found.lateness):
        assert len(table)
        assert table["partial"].all()


@pytest.mark.slow
def test_what_the_others_do_among_themselves_is_not_partial(tmp_path):
    pairs = [{0: k * 100 * MS, 1: k * 100 * MS + 9 * MS} for k in range(3)]
    truth = [Collective({g + r: t for r, t in pair.items()}, group=str(g)) for pair in pairs for g in (0, 2)]
    for made in traces_of(4, truth):
        made.write(tmp_path, f"rank{made.rank}.json", gz=False)
    path = tmp_path / "rank3.json"
    path.write_bytes(path.read_bytes()[: path.read_bytes().rindex(b'"kernel"')])
    found = Analysis(load_run([tmp_path], keep_going=True))
    for table in (found.collectives, found.bandwidth):
        assert dict(zip(table["process_group"], table["partial"], strict=True)) == {"0": False, "2": True}
    for table in (found.participation, found.lateness):
        own = table.groupby(table["rank"] >= 2)["partial"]
        assert own.all().to_dict() == own.any().to_dict() == {False: False, True: True}
    assert found.verdicts["partial"].iloc[0]


def test_who_might_take_part_counts_unless_all_are_known():
    rows = [("0 1 2 3", "0 1", True), ("0 1 2 3", "0 3", True), ("0 1 2 3", "0", False), (None, "0 1", True),
            (None, "0 1", False), ("0 1", "0", False)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["pg_ranks", "ranks", "complete"]).astype({"complete": "boolean"})
    assert resting_on(table, {3}).tolist() == [False, True, True, False, True, False]
    assert not resting_on(table, set()).any()


@pytest.mark.slow
def test_no_table_is_partial_where_no_file_is_damaged(tmp_path):
    found = analysed(tmp_path, *traces_of(2, [Collective((0, 5 * MS))]))
    names = "breakdown kernels bandwidth verdicts calls collectives participation fits lateness clocks hangs"
    for name in names.split():
        assert getattr(found, name)["partial"].eq(False).all()


def test_collectives_that_are_cut_are_not_complete(run_with_a_damaged_rank):
    whole, cut = records(Analysis(load_run([run_with_a_damaged_rank], keep_going=True)).collectives)[3:5]
    assert (whole["complete"], whole["ranks"], whole["arrival_skew_ns"]) == (True, "0 1 2", 9 * MS)
    assert (cut["complete"], cut["ranks"], cut["note"]) == (False, "0 2", "not seen on rank 1")
    assert cut["transfer_ns"] is None
    assert cut["busbw_gb_per_s"] is None


@pytest.mark.slow
def test_what_a_damaged_rank_computed_meanwhile_is_not_known(run_with_a_damaged_rank):
    found = Analysis(load_run([run_with_a_damaged_rank], keep_going=True))
    for row in records(found.participation):
        assert (row["exposed_wait_ns"] is None) == (row["rank"] == 1 or row["wait_ns"] is None)
    assert len(found.lateness)
    assert found.lateness["because"].isna().all()
    assert found.lateness["extra_compute_ns"].isna().all()
    assert found.ranks["because"].isna().all()


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"world": None, "groups": None}])
def test_without_sizes_a_damaged_rank_makes_nothing_complete(tmp_path, fields):
    for rank in range(3):
        made = Trace(rank, host="node", **fields)
        for number in range(4):
            made.kernel("ncclDevKernel_AllReduce_Sum_f32", number * 100 * MS + rank * MS, (9 - rank) * MS)
        made.write(tmp_path, f"rank{rank}.json", gz=False)
    path = tmp_path / "rank1.json"
    assert Analysis(load_run([tmp_path])).collectives["complete"].all()
    path.write_bytes(path.read_bytes()[: path.read_bytes().rindex(b'"kernel"')])
    table = Analysis(load_run([tmp_path], keep_going=True)).collectives
    assert table["complete"].tolist() == [True, True, True, False]


def test_a_rank_that_lost_its_zero_of_times_has_a_clock_of_its_own(tmp_path):
    truth = [Collective((k * 100 * MS, k * 100 * MS + 9 * MS)) for k in range(12)]
    for made in traces_of(2, truth, host="node-1"):
        made.write(tmp_path, f"rank{made.rank}.json", layout="events first", gz=False)
    path = tmp_path / "rank1.json"
    path.write_bytes(path.read_bytes()[: path.read_bytes().rindex(b'"kernel"')])
    run = load_run([tmp_path], keep_going=True)
    assert run.hosts == {0: "node-1", 1: None}
    assert "rank 1: the zero of its times is lost to the damage, so its clock is taken as unknown" in run.notes
    skews = Analysis(run).collectives["arrival_skew_ns"].dropna()
    assert (skews < 200 * MS).all()


def test_a_gpu_run_cut_before_its_activities_is_no_cpu_run(tmp_path):
    made = Trace(0, 2, backend=None).op("aten::mm", 0, 5).kernel("gemm", 9, 5)
    path = made.write(tmp_path, "rank0.json", gz=False)
    path.write_bytes(path.read_bytes()[: path.read_bytes().index(b'"kernel"')])
    assert not len(load_run([path], keep_going=True).activities)


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        (b"host_name", b'"host_name": 5, "other":'),
        (b"pg_config", b'"pg_config": null, "other":'),
        (b"ranks", b'"ranks": null, "other":'),
        (b"distributedInfo", b'"deviceProperties": [{"id": 0, "name": null}], "distributedInfo":'),
    ],
    ids=["host", "groups", "ranks of a group", "devices"],
)
@pytest.mark.parametrize("layout", ["kineto", "events first"])
def test_a_field_that_is_not_as_it_should_be_is_left_out_alone(tmp_path, key, bad, layout):
    for made in traces_of(2, [Collective((0, 1 * MS))], host="node-1"):
        made.write(tmp_path, f"x{made.rank}.json", layout=layout, gz=False)
    path = tmp_path / "x1.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"%s":' % key, bad, 1))
    with pytest.raises(NotATrace):
        load_run([tmp_path])
    run = load_run([tmp_path], keep_going=True)
    assert (run.ranks, run.partial_ranks, run.world_size) == ([0, 1], [1], 2)
    assert run.hosts == {0: "node-1", 1: None if key == b"host_name" else "node-1"}
    assert abs(run.activities["start_ns"].diff().iloc[-1]) == 1 * MS  # as the zero of times is known


@pytest.mark.parametrize("name", ["node_1.meta.json", "run.json"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_side_file_that_was_cut_is_left_out_alone(capsys, tmp_path, name, ranks):
    write_run(tmp_path, ranks, [Collective((0,) * ranks)])
    (tmp_path / name.replace("1", str(ranks - 1))).write_bytes(b'{"rank": ')
    for options, rows in (((), 0), (("--keep-going",), ranks)):
        assert main(["breakdown", str(tmp_path), "-f", "csv", *options]) == 1
        captured = capsys.readouterr()
        assert len(captured.out.splitlines()[1:]) == rows
        assert re.fullmatch(r"error: \S+: side file cannot be read: .*; repair or remove it\n", captured.err)


def test_a_damaged_file_that_does_not_say_its_rank_is_left_out(tmp_path):
    write_run(tmp_path, 2, [Collective((0, 1 * MS))])
    text = LAYOUTS["events first"](Trace(2, 3).kernel("gemm", 0, 5).kernel("gemm", 9, 5).document())
    write_bytes(tmp_path / "x.0001.pt.trace.json", text[: text.rindex(b'"kernel"')])
    run = load_run([tmp_path], keep_going=True)
    assert run.ranks == [0, 1]
    assert "does not say which rank it is" in run.failed[1]


@pytest.mark.slow
def test_the_summary_warns(capsys, run_with_a_damaged_rank, monkeypatch):
    monkeypatch.chdir(run_with_a_damaged_rank)  # long paths take lines of the screen
    assert main([".", "--keep-going"]) == 1
    captured = capsys.readouterr()
    shown = " ".join(captured.out.split()).replace(" warning ", " ")
    assert "rank 1 is partial: nothing after the damage in its file is counted" in shown
    assert "used in part: " in shown
    assert captured.err.count("ends in the middle of its events") == 1
    assert captured.err.count("\n") == 1


@pytest.mark.quick_cases("table-table calls")
@pytest.mark.parametrize("command", ["breakdown", "ranks", "table calls", "table collectives"])
@pytest.mark.parametrize("output_format", with_slow(["table"], ["markdown"]))
def test_people_see_the_column_where_it_matters_only(capsys, run_with_a_damaged_rank, command, output_format):
    main([*command.split(), str(run_with_a_damaged_rank), "--keep-going", "--format", output_format])
    assert "partial" in capsys.readouterr().out
    (run_with_a_damaged_rank / "rank1.json").unlink()
    assert main([*command.split(), str(run_with_a_damaged_rank), "--format", output_format]) == 0
    assert "partial" not in capsys.readouterr().out
