"""Files that ask for more memory, or work, than there is are refused in one line. The long run is in tests/attacks."""

import pickle
import random

import pytest
from bombs import BOMBS, TEXTS, as_recording, dump_with, nested_tuples, shared, small_content
from msgspec import msgpack
from msgspec.structs import replace

from commtrace.analysis.core.budget import Budget
from commtrace.analysis.errors import DamagedTrace, TooLarge, TraceError
from commtrace.analysis.formats.flight_recorder.dump import read_dump
from commtrace.analysis.formats.recordings.columns import CodedColumn
from commtrace.analysis.formats.recordings.reader import read_recording
from commtrace.analysis.recording.options import ReadOptions
from commtrace.cli import main

LIMITED = ReadOptions(memory_gb=0.3)


def test_a_budget_is_drawn_and_given_back():
    budget = Budget(1000)
    budget.draw("it", 600)
    with pytest.raises(TooLarge, match=r"it would take 1\.1e-06 GB of memory or more, and 1e-06 GB may be used here"):
        budget.draw("it", 500)
    assert budget.left_bytes == 400
    budget.give_back(600)
    budget.check("it", 1000)
    Budget(None).draw("it", 10**30)


def test_work_ends_and_more_of_it_belongs_to_larger_files():
    small, large = Budget(None), Budget(None, 10**7)
    large.work("it", 20_000_000)
    with pytest.raises(DamagedTrace, match="it takes more work to read"):
        small.work("it", 20_000_000)


@pytest.mark.parametrize("field", TEXTS)
def test_what_becomes_text_has_an_end(field, tmp_path):
    for data in (
        pickle.dumps(dump_with(field, shared()), 2),
        nested_tuples(field, 1000),
        nested_tuples(field, 150_000),
    ):
        path = tmp_path / "dump_0"
        path.write_bytes(data)
        with pytest.raises(DamagedTrace):
            read_dump(path, 10**8)


def test_a_tuple_of_texts_is_read_with_every_protocol(tmp_path):
    for protocol in range(6):
        path = tmp_path / "dump_0"
        path.write_bytes(pickle.dumps(dump_with("version", "2.9"), protocol))
        assert [name.name for name in read_dump(path, 10**8).groups] == ["0"]


@pytest.mark.parametrize("rows", [2**28, 2**40, 2**62])
def test_rows_that_a_recording_only_claims_are_refused(rows, tmp_path):
    content = small_content(tmp_path)
    ran = content.sorts["activities"]
    count, path = ran["ts"].rows, tmp_path / "a.ctrace"
    among = CodedColumn(count, "among", planes=bytes(count), distinct=CodedColumn(rows))
    path.write_bytes(
        as_recording(msgpack.encode(replace(content, sorts=content.sorts | {"activities": ran | {"stream": among}})))
    )
    with pytest.raises(TraceError):
        read_recording(path, LIMITED)


@pytest.mark.parametrize("rows", [2**28, 2**40, 2**62])
def test_annotations_that_a_recording_only_claims_are_refused_before_details_are_left_out(rows, tmp_path):
    content, path = small_content(tmp_path), tmp_path / "a.ctrace"
    claimed = replace(content.annotations, kind=CodedColumn(rows))
    path.write_bytes(as_recording(msgpack.encode(replace(content, detailed=True, annotations=claimed))))
    with pytest.raises(TraceError):
        read_recording(path, LIMITED)


@pytest.mark.parametrize("bomb", ["objects", "kinds", "repeats", "pads"])
def test_a_small_recording_that_asks_for_much_is_refused(bomb, tmp_path):
    path = BOMBS["recording"][bomb](tmp_path, random.Random(1), 5)
    with pytest.raises(TraceError):
        read_recording(path, ReadOptions(memory_gb=0.02))


def test_cells_that_share_their_pages_are_refused_in_one_line(tmp_path, capsys):
    for place in ("kernels", "processes", "names"):
        folder = tmp_path / place
        folder.mkdir()
        path = BOMBS["nsight"]["chains"](folder, random.Random(1), 20, place)
        code = main(["breakdown", "--no-cache", "--memory", "0.02", str(path)])
        said = capsys.readouterr().err
        assert code == 0 or said.count("error: ") == 1
