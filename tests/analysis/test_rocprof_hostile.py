"""Files of rocprofv3 that are damaged, or made to do harm: an error of one line, or what is left."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reading_checks import assert_read_or_told
from rocprof_files import (
    ENDING,
    GENERIC,
    LAYOUTS,
    Process,
    document_of,
    launched,
    write_database,
    write_json,
)
from samples import with_slow

import commtrace.analysis.recording.database
from commtrace import analyse
from commtrace.analysis.errors import DamagedTrace, NotATrace, TooLarge, TraceError
from commtrace.analysis.formats.rocprof.ranks import processes_as_ranks
from commtrace.analysis.formats.rocprof.reader import read_rocprof
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace
from commtrace.cli import main

GEMM = "gemm(float*)"
KERNELS = f"rocpd_kernel_dispatch{ENDING.format(0)}"
MARKED = ("MARKER_CORE_RANGE_API", "roctxThreadRangeA")


def read(path: Path, *, keep_going: bool = False) -> list[RawTrace]:
    """All ranks of a file, with everything. Raises TraceError."""
    options = ReadOptions(details=True, keep_going=keep_going)
    return [read_rocprof(rank, options) for rank in processes_as_ranks([path]).paths]


def small(pid: int = 7) -> Process:
    process = Process(pid)
    for step in range(3):
        begin = 1_000 * (step + 1)
        process.call(*MARKED, begin - 500, begin + 300, text=f"step {step}")
        launched(process, GEMM, begin, begin + 200)
        launched(process, GENERIC, begin + 200, begin + 250, stream=2)
    process.copy((None, 0), 100, 200)
    return process


@pytest.fixture(scope="module", params=[*LAYOUTS, "json"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """How a sound file of two processes is called, and its bytes."""
    folder, processes = tmp_path_factory.mktemp("whole"), [small(7), small(8)]
    if request.param == "json":
        return "9_results.json", write_json(folder / "9_results.json", processes).read_bytes()
    path = write_database(folder / "9_results.db", processes, layout=request.param)
    return "9_results.db", path.read_bytes()


def assert_told(path: Path) -> None:
    """What is read is consistent, and what is wrong is an error that names the file; never anything else."""
    assert_read_or_told(path, read)


@pytest.mark.parametrize("seed", with_slow(range(3), range(3, 30)))
def test_cut_anywhere(tmp_path: Path, whole: tuple[str, bytes], seed: int) -> None:
    name, data = whole
    path = tmp_path / name
    path.write_bytes(data[: random.Random(seed).randrange(40, len(data) - 1)])
    assert_told(path)
    with pytest.raises(TraceError, match=r"ends too early|is not as rocprofv3 writes JSON"):
        read(path)


@pytest.mark.parametrize("seed", with_slow(range(4), range(4, 200)))
def test_zeroed_pages_and_random_bytes(tmp_path: Path, whole: tuple[str, bytes], seed: int) -> None:
    name, sound = whole
    rng, data = random.Random(seed), bytearray(sound)
    for _ in range(rng.choice((1, 1, 2, 8))):
        size = rng.choice((1, 1, 8, 4096))
        at = rng.randrange(len(data) // 4096) * 4096 if size == 4096 else rng.randrange(len(data))
        data[at : at + size] = bytes(size) if rng.random() < 0.5 else rng.randbytes(size)
    path = tmp_path / name
    path.write_bytes(data)
    assert_told(path)


def changed(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("'soon'", "has 'soon' as start, expected a whole number"),
        ("NULL", "has 'None' as start, expected a whole number"),
        ("x'00ff'", "as start, expected a whole number"),
        ("-7", "has an event from -7 to"),
        ("9223372036854775807", "has an event from 9223372036854775807"),
    ],
)
def test_values_that_are_not_times(tmp_path: Path, value: str, message: str) -> None:
    path = changed(
        write_database(tmp_path / "9_results.db", [small()]), f"UPDATE {KERNELS} SET start = {value} WHERE id = 1"
    )
    with pytest.raises(DamagedTrace, match=message):
        read_rocprof(path, ReadOptions())
    left = read_rocprof(path, ReadOptions(keep_going=True))
    assert len(left.activities["ts"]) == 8 * 6  # of seven
    assert left.damage is not None


def test_times_that_no_row_has(tmp_path: Path) -> None:
    path = write_database(tmp_path / "9_results.db", [small()], layout="timestamps")
    changed(path, f"UPDATE {KERNELS} SET start_id = 999 WHERE id = 1")
    with pytest.raises(DamagedTrace, match="has '999' as start, expected a whole number"):
        read_rocprof(path, ReadOptions())


@pytest.mark.parametrize(
    "table",
    ["string", "info_node", "info_process", "info_thread", "info_agent", "track", "event", "region", "memory_copy",
     "metadata"],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["3", "tracks"])
def test_tables_that_are_gone(tmp_path: Path, table: str, layout: str) -> None:
    """What a table told is missing then; kernels are there."""
    path = write_database(tmp_path / "9_results.db", [small()], layout=layout, without=[f"rocpd_{table}"])
    (found,) = read(path)
    assert found.names.count(GENERIC) == 1


@pytest.mark.parametrize("table", ["kernel_dispatch", "info_kernel_symbol"])
def test_tables_that_are_needed(tmp_path: Path, table: str) -> None:
    path = write_database(tmp_path / "9_results.db", [small()], without=[f"rocpd_{table}"])
    with pytest.raises(TraceError, match=r"has no table rocpd_kernel_dispatch|names of kernels are not in its table"):
        read(path)


def test_columns_that_are_gone_or_of_another_type(tmp_path: Path) -> None:
    lacking = ["rocpd_kernel_dispatch.stream_id", "rocpd_kernel_dispatch.queue_id", "rocpd_info_agent.type_index",
               "rocpd_info_process.environment", "rocpd_event.extdata", "rocpd_info_agent.extdata"]  # fmt: skip
    path = write_database(tmp_path / "9_results.db", [small()], without=lacking)
    assert len(read(path)) == 1
    ending = ENDING.format(0)
    changed(
        write_database(path, [small()]),
        f"UPDATE rocpd_info_agent{ending} SET type_index = 'x', extdata = '[', product_name = 7",
        f"UPDATE rocpd_info_process{ending} SET environment = '{{\"RANK\": [1]}}'",
        f"UPDATE rocpd_event{ending} SET extdata = x'04224d18', stack_id = 'y'",
        f"UPDATE rocpd_info_node{ending} SET hostname = 7",
        f"UPDATE {KERNELS} SET workgroup_size_x = 0, grid_size_y = 'z', agent_id = 99",
    )
    (found,) = read(path)
    assert (found.header.host, found.header.rank) == (None, None)
    assert len(found.activities["ts"]) == 8 * 7
    path = write_database(tmp_path / "8_results.db", [small()], without=["rocpd_kernel_dispatch.start"])
    with pytest.raises(DamagedTrace, match="has no column start_id"):
        read(path)


def test_marks_that_are_compressed_are_counted(tmp_path: Path) -> None:
    path = write_database(tmp_path / "9_results.db", [small()])
    changed(path, f"UPDATE rocpd_event{ENDING.format(0)} SET extdata = x'04224d18'")
    assert any("3 marks are compressed in it and not read" in note for note in analyse(path, cache=False).run.notes)


def test_views_triggers_and_columns_that_compute_are_not_run(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id FROM n"
    path = write_database(tmp_path / "9_results.db", [small()], without=["rocpd_memory_copy"])
    views = (f"CREATE VIEW {name} AS {endless}" for name in (f"rocpd_memory_copy{ENDING.format(0)}", "rocpd_string"))
    changed(path, *views, f"ALTER TABLE {KERNELS} ADD COLUMN more AS (zeroblob(100000000))")
    assert len(read(path)[0].activities["ts"]) == 8 * 6


def test_two_processes_of_one_number(tmp_path: Path) -> None:
    path = write_database(tmp_path / "merged.db", [small(1), small(1)])
    with pytest.raises(DamagedTrace, match="holds two processes of one number"):
        read(path)


@pytest.mark.parametrize("write", [write_database, write_json])
def test_a_file_of_several_ranks_is_not_one(tmp_path: Path, write: Callable[..., Path]) -> None:
    path = write(tmp_path / f"9_results.{'db' if write is write_database else 'json'}", [small(7), small(8)])
    with pytest.raises(NotATrace, match=r"holds 2 processes, so as many ranks; .*/rank0-pid7"):
        read_rocprof(path, ReadOptions())
    with pytest.raises(NotATrace, match="holds no process 9"):
        read_rocprof(path / "rank0-pid9", ReadOptions())


@pytest.mark.parametrize("write", [write_database, write_json])
def test_more_than_the_memory_allows(tmp_path: Path, write: Callable[..., Path]) -> None:
    process = Process(7)
    for number in range(2_000):
        process.kernel(GEMM, 10 * number, 10 * number + 5)
    path = write(tmp_path / f"9_results.{'db' if write is write_database else 'json'}", [process])
    with pytest.raises(TooLarge, match="--memory GB"):
        read_rocprof(path, ReadOptions(memory_gb=0.0005))


def test_work_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_database(tmp_path / "9_results.db", [small()])
    monkeypatch.setattr(commtrace.analysis.recording.database, "_STEPS", 0)
    monkeypatch.setattr(commtrace.analysis.recording.database, "_STEPS_PER_BYTE", 0)
    monkeypatch.setattr(commtrace.analysis.recording.database, "_STEPS_AT_ONCE", 1)
    with pytest.raises(TraceError):
        read_rocprof(path, ReadOptions())


WRONG: dict[str, Callable[[Any], object]] = {
    "no process": lambda made: made["rocprofiler-sdk-tool"].clear(),
    "another kind of list": lambda made: made.update({"rocprofiler-sdk-tool": {"a": 1}}),
    "no metadata": lambda made: made["rocprofiler-sdk-tool"][0].pop("metadata"),
    "a time as text": lambda made: kernel(made).update(start_timestamp="5"),
    "a time before all": lambda made: kernel(made).update(start_timestamp=-1),
    "a time behind all": lambda made: kernel(made).update(end_timestamp=2**63 - 1),
    "a time of more than 64 bits": lambda made: kernel(made).update(end_timestamp=2**65),
    "no agent": lambda made: kernel(made)["dispatch_info"].pop("agent_id"),
}


def kernel(made: Any) -> Any:
    return made["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"][0]


@pytest.mark.parametrize("wrong", WRONG)
def test_json_that_is_of_another_form(tmp_path: Path, wrong: str) -> None:
    made = document_of([small()])
    WRONG[wrong](made)
    path = tmp_path / "9_results.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    assert_told(path)
    with pytest.raises(TraceError, match=r"is not as rocprofv3 writes JSON|which is not possible|holds no process"):
        read(path)


def test_json_whose_numbers_lead_nowhere(tmp_path: Path) -> None:
    made = document_of([small()])
    process = made["rocprofiler-sdk-tool"][0]
    process["strings"]["buffer_records"] = process["strings"]["buffer_records"][:2]
    process["buffer_records"]["hip_api"][0].update(kind=-1, operation=10**6)
    process["buffer_records"]["rccl_api"][0].update(operation=-5)
    process["kernel_symbols"] = []
    kernel(made)["dispatch_info"]["workgroup_size"] = {"x": 0, "y": -1, "z": 2**40}
    kernel(made)["stream_id"] = {"handle": 2**64 - 1}
    process["agents"] = []
    path = tmp_path / "9_results.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    (found,) = read(path)
    assert found.names[0] == "unknown"
    assert any("names of kernels are not among its kernel_symbols" in note for note in analyse(path).run.notes)


def test_json_nested_without_end(tmp_path: Path) -> None:
    path = tmp_path / "9_results.json"
    path.write_text('{"rocprofiler-sdk-tool": ' + "[" * 100_000, encoding="utf-8")
    assert_told(path)
    path.write_text('{"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}, "other": ' + "[" * 100_000, encoding="utf-8")
    assert_told(path)


def test_names_in_another_encoding(tmp_path: Path) -> None:
    made = json.dumps(document_of([small()])).encode().replace(GEMM.encode(), b"gemm\x8d(float*)")
    path = tmp_path / "9_results.json"
    path.write_bytes(made)
    assert "gemm\ufffd(float*)" in read(path)[0].names


@pytest.mark.parametrize("name", ["a b?mode=rw#x%41_results.db", "üΩ.db", "--x.db", "'\";.db"])
def test_odd_names_of_files(tmp_path: Path, name: str) -> None:
    assert analyse(write_database(tmp_path / name, [small(7), small(8)]), cache=False).run.ranks == [0, 1]


def test_a_journal_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_database(tmp_path / "9_results.db", [small()])
    Path(f"{path}-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(4096))
    assert main(["breakdown", str(path)]) == 1
    assert "has 9_results.db-wal beside it" in capsys.readouterr().err
