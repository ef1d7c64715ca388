"""Recordings: all that was read comes back, from a small file; anything else is refused, and says so."""

import gzip
import random
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from builders import BASE_NS, US, Trace
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from recordings import as_file, content_in, odd_contents

from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.budget import Budget
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.errors import DamagedTrace, NothingMeasured, NotPredictable, TooLarge, TraceError
from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.formats.recordings.columns import (
    BadColumn,
    CodedColumn,
    coded_doubles,
    coded_integers,
    doubles_from,
    integers_from,
)
from commtrace.analysis.formats.recordings.content import TraceSource, packed, recorded_content, trace_of
from commtrace.analysis.formats.recordings.reader import read_recording
from commtrace.analysis.formats.registry import format_of, name_parts
from commtrace.analysis.reading.packing import targets_of
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace
from commtrace.analysis.recording.values import MISSING
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import analyse, load_run
from commtrace.cli import main
from commtrace.contract.recording import RECORDING_SUFFIX, recording_name

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
RUNS = [
    ROOT / "traces" / "resnet18-ddp-w2",
    *(DATA / name for name in ("gloo-collectives", "nccl-straggler", "nccl-pipeline", "nccl-two-hosts", "nccl-hang")),
]
TABLES = [entry.name for entry in CATALOG.values() if entry.of is InputKind.run]
DETAILED = ReadOptions(details=True)


@pytest.fixture
def trace(tmp_path) -> Path:
    made = Trace(1, 2, groups={"0": [0, 1]}).step(3, 0, 900 * US).kernel("my_gemm", 0, 5 * US)
    made.nccl("all_reduce", 100 * US, 10 * US, elems=7, Seq=3, **{"Comms Id": 18446744073709551557})
    made.nccl("all_reduce", 120 * US, 10 * US, elems=7, Seq=4, **{"Comms Id": 7})
    made.annotation("nccl:all_reduce", 45 * US, 50 * US, dims=[[7, 11]], types=["float"])
    return made.write(tmp_path / "run")


def recorded(path: Path, target: Path, *, details: bool = False) -> RawTrace:
    """What was read of the trace, and recorded at the target."""
    found = read_kineto(path, ReadOptions(details=details))
    target.write_bytes(packed(found, TraceSource(path.name, "Kineto", 1), found.notes))
    return found


def files_of(run: Path) -> list[Path]:
    return sorted(run.glob("*.json.gz"))


INTEGERS = st.one_of(
    arrays.arrays(np.int64, st.integers(0, 60), elements=st.integers(-(2**63), 2**63 - 1)),
    arrays.arrays(np.int64, st.integers(0, 300), elements=st.sampled_from([0, 1, 7, MISSING, 2**62, -5])),
    arrays.arrays(np.int64, st.integers(0, 300), elements=st.integers(0, 900)).map(np.cumsum),
)


@given(INTEGERS)
def test_every_integer_comes_back(values):
    coded = msgspec.msgpack.decode(msgspec.msgpack.encode(coded_integers(values)), type=CodedColumn)
    assert integers_from(coded, len(values)).tolist() == values.tolist()


DOUBLES = st.one_of(
    arrays.arrays(np.float64, st.integers(0, 60), elements=st.floats(width=64)),
    arrays.arrays(np.int64, st.integers(0, 300), elements=st.integers(0, 10**7)).map(lambda v: np.cumsum(v) / 1000),
    arrays.arrays(np.int64, st.integers(0, 99), elements=st.integers(0, 999)).map(
        lambda v: BASE_NS // 1000 + np.cumsum(v) / 4
    ),
    arrays.arrays(np.float64, st.integers(0, 200), elements=st.sampled_from([0.0, -0.0, np.nan, 0.0833, 12.5])),
)


@given(DOUBLES)
def test_every_bit_of_other_numbers_comes_back(values):
    values = np.ascontiguousarray(values, np.float64)
    coded = msgspec.msgpack.decode(msgspec.msgpack.encode(coded_doubles(values)), type=CodedColumn)
    assert doubles_from(coded, len(values)).tobytes() == values.tobytes()


@given(INTEGERS.filter(len), st.data())
def test_a_column_that_is_changed_is_another_one_or_refused(values, data):
    coded = coded_integers(values)
    name = data.draw(st.sampled_from(["rows", "coding", "width", "planes", "absent", "distinct"]))
    change = {
        "rows": st.integers(0, 400),
        "coding": st.sampled_from(["same", "above", "steps", "bends", "among"]),
        "width": st.sampled_from([1, 2, 4, 8]),
        "planes": st.binary(max_size=40),
        "absent": st.binary(max_size=40),
        "distinct": st.sampled_from([None, CodedColumn(3, first=4), coded]),
    }[name]
    changed = msgspec.structs.replace(coded, **{name: data.draw(change)})
    with suppress(BadColumn):
        assert len(integers_from(changed, len(values))) == len(values)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
@pytest.mark.parametrize("details", [False, True])
def test_all_that_was_read_comes_back(tmp_path, run, details):
    for path in files_of(run):
        target = tmp_path / recording_name(path.name)
        found = recorded(path, target, details=details)
        assert read_recording(target, ReadOptions(details=details)) == found
        plain = read_recording(target, ReadOptions())
        plain.lists_bytes = (told := read_kineto(path, ReadOptions())).lists_bytes  # what they take at most
        assert plain == told


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_all_tables_are_the_same(tmp_path, capsys, run):
    assert main(["pack", "-o", str(tmp_path / run.name), str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"{len(files_of(run))} trace")
    there, here = analyse(run, details=True), analyse(tmp_path / run.name, details=True)
    assert there.warnings == here.warnings
    for name in TABLES:
        assert csv_or_why(here, name) == csv_or_why(there, name), name


def csv_or_why(result, name: str) -> str:
    """A table, without the names of files."""
    try:
        table = result.table(name)
    except (NothingMeasured, NotPredictable) as err:
        return str(err)
    table = table.drop(columns=[column for column in ("trace",) if column in table])
    return as_csv(name, table)


@pytest.mark.slow
def test_without_operators_only_what_they_tell_is_missing(tmp_path):
    run, small = DATA / "nccl-straggler", tmp_path / "nccl-straggler"
    assert main(["pack", "--no-details", "-o", str(small), str(run)]) == 0
    there, here = analyse(run), analyse(small)
    for name in ("breakdown", "breakdown_steps", "calls", "collectives", "participation", "bandwidth", "kernels"):
        assert csv_or_why(here, name) == csv_or_why(there, name), name
    unlike = ["operator", "because"]
    assert as_csv("", here.lateness.drop(columns=unlike)) == as_csv("", there.lateness.drop(columns=unlike))
    asked = analyse(small, details=True)
    assert not asked.run.details
    (note,) = asked.run.notes
    assert re.match(r"\S+\.ctrace and \d+ more files: packed --no-details: ", note)
    with pytest.raises(NothingMeasured, match="without operators"):
        asked.operators  # noqa: B018 - computed when asked for


@pytest.mark.slow
def test_a_folder_of_recordings_is_a_run_directory(tmp_path, capsys):
    run = ROOT / "traces" / "resnet18-ddp-w2"
    assert main(["pack", "-o", str(tmp_path / "packed"), str(run)]) == 0
    told = capsys.readouterr().out
    assert "2 traces" in told
    assert f"in {tmp_path / 'packed'}: 1/" in told
    sides = sorted(path.name for path in run.iterdir() if path.name.endswith(".meta.json") or path.name == "run.json")
    found = sorted(path.name for path in (tmp_path / "packed").iterdir())
    assert found == sorted([*sides, *(recording_name(path.name) for path in files_of(run))])
    assert all(name_parts(name) for name in found if name.endswith(RECORDING_SUFFIX))
    assert main(["breakdown", "-f", "csv", str(tmp_path / "packed")]) == 0
    printed = capsys.readouterr().out
    assert main(["breakdown", "-f", "csv", str(run)]) == 0
    assert capsys.readouterr().out == printed


def test_older_recordings_have_no_waits_of_streams(tmp_path, trace):
    target = tmp_path / "run.ctrace"
    wanted = recorded(trace, target, details=True)
    content = content_in(target)
    target.write_bytes(as_file(msgspec.structs.replace(content, sorts={
        name: columns for name, columns in content.sorts.items() if name != "stream_waits"
    })))  # fmt: skip
    assert read_recording(target, DETAILED) == wanted


def test_older_recordings_have_no_modules_and_no_sizes_of_copies(tmp_path):
    trace = Trace().memcpy("HtoD", 0, 10, nbytes=4096).event("python_function", "nn.Module: MLP_0", 0, 10)
    target = tmp_path / "run.ctrace"
    recorded(trace.write(tmp_path), target, details=True)
    assert len(analyse(target, details=True).run.modules) == 1
    content = content_in(target)
    sorts = {name: columns for name, columns in content.sorts.items() if name != "modules"}
    sorts["activities"] = {name: column for name, column in sorts["activities"].items() if name != "size"}
    target.write_bytes(as_file(msgspec.structs.replace(content, sorts=sorts)))
    run = analyse(target, details=True).run
    assert run.activities["size_bytes"].isna().tolist() == [True]
    assert len(run.modules) == 0


def test_a_column_is_written_only_where_it_says_something(tmp_path):
    """So that older versions read all other recordings."""
    for name, made in (("a", Trace().kernel("gemm", 0, 10)), ("b", Trace().memcpy("HtoD", 0, 10))):
        (folder := tmp_path / name).mkdir()
        recorded(made.write(folder), target := tmp_path / f"{name}.ctrace")
        assert ("size" in content_in(target).sorts["activities"]) == (name == "b")


def test_it_is_small(tmp_path):
    for path in files_of(DATA / "nccl-straggler"):
        recorded(path, target := tmp_path / "a.ctrace")
        assert target.stat().st_size < path.stat().st_size / 2


def test_the_same_trace_gives_the_same_bytes(tmp_path, trace):
    recorded(trace, tmp_path / "a.ctrace")
    recorded(trace, tmp_path / "b.ctrace")
    assert (tmp_path / "a.ctrace").read_bytes() == (tmp_path / "b.ctrace").read_bytes()


def test_what_others_write_can_be_opened_elsewhere(tmp_path, trace):
    # docs/recordings.md promises this much to those who have no commtrace.
    recorded(trace, target := tmp_path / "a.ctrace")
    plain = gzip.decompress(target.read_bytes())
    line, _, rest = plain.partition(b"\n")
    content = msgspec.msgpack.decode(rest[32:])
    assert line == b"commtrace-recording"
    assert content["version"] == 1
    assert content["names"][0] == "my_gemm"
    assert content["sorts"]["activities"]["ts"]["rows"] == 3


@pytest.mark.parametrize("kind", ["cut", "bit", "byte", "tail"])
def test_damage_is_refused(tmp_path, kind):
    source = files_of(DATA / "nccl-straggler")[0]
    found = recorded(source, target := tmp_path / "a.ctrace")
    sound, chance, told = target.read_bytes(), random.Random(7), []
    for _ in range(150):
        at, damaged = chance.randrange(len(sound)), bytearray(sound)
        if kind == "cut":
            del damaged[at:]
        elif kind == "bit":
            damaged[at] ^= 1 << chance.randrange(8)
        elif kind == "byte":
            damaged[at : at + 4] = chance.randbytes(4)
        else:
            damaged += sound[:at]
        target.write_bytes(damaged)
        try:  # gzip's own header has bytes that say nothing
            assert read_recording(target, ReadOptions()) == found
        except TraceError as err:
            told.append(str(err))
    assert all(str(target) in text for text in told)
    assert len(told) > (0 if kind == "tail" else 140)


def test_contents_that_make_no_sense_are_refused(tmp_path, trace):
    recorded(trace, target := tmp_path / "a.ctrace")
    content, count = content_in(target), 0
    for changes in odd_contents(content):
        target.write_bytes(as_file(msgspec.structs.replace(content, **changes)))
        with pytest.raises(DamagedTrace, match="is not as commtrace writes it"):
            read_recording(target, ReadOptions())
        count += 1
    assert count > 20


def test_a_newer_version_says_so(tmp_path, trace):
    recorded(trace, target := tmp_path / "a.ctrace")
    target.write_bytes(as_file(msgspec.structs.replace(content_in(target), version=2)))
    with pytest.raises(DamagedTrace, match="is of version 2; this commtrace reads version 1"):
        read_recording(target, ReadOptions())


def test_no_recording_fills_the_memory(tmp_path, trace):
    recorded(trace, target := tmp_path / "a.ctrace")
    content = content_in(target)
    many = {name: CodedColumn(10**11, unit=column.unit) for name, column in content.sorts["activities"].items()}
    target.write_bytes(as_file(msgspec.structs.replace(content, sorts=content.sorts | {"activities": many})))
    with pytest.raises(TooLarge):
        load_run([target])
    target.write_bytes(gzip.compress(b"commtrace-recording\n" + bytes(1 << 22)))
    with pytest.raises(DamagedTrace):
        read_recording(target, ReadOptions())


def test_names_of_communication_may_be_given_later(tmp_path, trace):
    recorded(trace, target := tmp_path / "a.ctrace")
    options = ReadOptions(comm_names=("my_gemm",))
    assert read_recording(target, options).kinds == read_kineto(trace, options).kinds
    assert read_recording(target, ReadOptions()).kinds == read_kineto(trace, ReadOptions()).kinds


def test_beside_its_trace_it_is_read_in_its_place(trace, monkeypatch, capsys):
    before = load_run([trace.parent])
    assert main(["pack", str(trace.parent)]) == 0
    assert "beside them" in capsys.readouterr().out
    beside = trace.with_name(recording_name(trace.name))
    assert beside.is_file()
    monkeypatch.setattr("commtrace.analysis.formats.kineto.reader.read_kineto", None)  # it is not read
    for where in ([trace.parent], [trace]):
        found = load_run(where)
        assert found.activities.equals(before.activities)
        assert found.traces["trace"].tolist() == [trace.name]
        assert not found.notes


@pytest.mark.parametrize("change", ["the trace", "operators are asked for", "other names", "verify", "the recording"])
def test_beside_its_trace_it_is_read_only_if_it_is_what_is_asked_for(trace, change):
    assert main(["pack", "--no-details", str(trace.parent)]) == 0
    beside = trace.with_name(recording_name(trace.name))
    beside.write_bytes(as_file(msgspec.structs.replace(content_in(beside), names=["other", "one", "two"][:2])))
    options = {
        "operators are asked for": {"details": True},
        "other names": {"comm_names": ["gemm"]},
        "verify": {"verify": True},
    }.get(change, {})
    if change == "the trace":
        content = gzip.decompress(trace.read_bytes())
        trace.write_bytes(gzip.compress(content.replace(b"my_gemm", b"my_gelu")))
    if change == "the recording":
        beside.write_bytes(b"\x1f\x8b")
    run = load_run([trace.parent], **options)
    assert "other" not in set(run.activities["name"])
    said = change in ("the trace", "the recording")
    assert any("its recording is" in note and "read again" in note for note in run.notes) == said
    found = load_run([trace.parent], cache=True, **options)
    assert "other" not in set(found.activities["name"])


def test_a_damaged_trace_is_packed_with_its_damage(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    for path in files_of(DATA / "nccl-straggler"):
        shutil.copy(path, run)
    first = files_of(run)[0]
    first.write_bytes(first.read_bytes()[:-4000])
    assert main(["pack", "-o", str(tmp_path / "packed"), str(run)]) == 1
    assert "gzip" in capsys.readouterr().err
    assert main(["pack", "--keep-going", "-o", str(tmp_path / "packed"), str(run)]) == 1
    assert "ends early" in capsys.readouterr().err
    with pytest.raises(DamagedTrace, match="--keep-going"):
        load_run([tmp_path / "packed"])
    there, here = load_run([run], keep_going=True), load_run([tmp_path / "packed"], keep_going=True)
    assert here.partial_ranks == there.partial_ranks == [0]
    assert here.activities.equals(there.activities)


def test_two_traces_of_one_name_are_not_packed_into_one(tmp_path, trace):
    twin = trace.with_name(trace.name.removesuffix(".gz"))
    twin.write_bytes(gzip.decompress(trace.read_bytes()))
    assert main(["pack", str(trace), str(twin)]) == 1


def test_a_recording_is_not_packed_over_itself(tmp_path, trace, capsys):
    assert main(["pack", "-o", str(tmp_path / "packed"), str(trace.parent)]) == 0
    assert main(["pack", str(tmp_path / "packed")]) == 1
    assert "is a recording already" in capsys.readouterr().err
    assert main(["pack", "-o", str(tmp_path / "again"), str(tmp_path / "packed")]) == 0


def test_a_folder_where_nothing_can_be_written(tmp_path, trace, capsys):
    (tmp_path / "file").write_text("")
    assert main(["pack", "-o", str(tmp_path / "file"), str(trace.parent)]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_names_of_recordings():
    assert recording_name("node_1.0001.pt.trace.json.gz") == "node_1.0001.pt.trace.ctrace"
    assert recording_name("rank-3.json") == "rank-3.ctrace"
    assert recording_name("rank-3.gz") == "rank-3.ctrace"
    assert recording_name("trace") == "trace.ctrace"
    assert recording_name("a.ctrace") == "a.ctrace"
    assert targets_of([Path("x/a.json")], None) == [Path("x/a.ctrace")]


def test_a_recording_of_any_name_is_told_by_its_begin(tmp_path, trace):
    recorded(trace, target := tmp_path / "trace.json.gz")
    assert format_of(target).name == "recording"
    assert load_run([target]).activities.equals(load_run([trace]).activities)


@settings(max_examples=20)
@given(st.binary(max_size=300))
def test_any_payload_is_refused(payload):
    with pytest.raises(Exception, match="is "):
        recorded_content(b"commtrace-recording\n" + payload, "it", Budget(None))


def test_a_trace_comes_from_its_content(tmp_path, trace):
    found = recorded(trace, target := tmp_path / "a.ctrace", details=True)
    assert trace_of(content_in(target), "it", Budget(None)) == replace_notes(found)


def replace_notes(found: RawTrace) -> RawTrace:
    return msgspec.structs.replace(found, notes=list(found.notes))


def test_pipes_and_folders_are_not_read_as_recordings(tmp_path):
    (tmp_path / "a.ctrace").mkdir()
    with pytest.raises(TraceError):
        read_recording(tmp_path / "a.ctrace", ReadOptions())
    with pytest.raises(TraceError):
        read_recording(tmp_path / "none.ctrace", replace(DETAILED, keep_going=True))
