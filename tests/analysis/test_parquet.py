"""`commtrace export parquet`: what is in the files is what is in the tables."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from builders import Collective, traces_of
from pandas.testing import assert_frame_equal

from commtrace import Analysis, analyse
from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.core.kinds import COMM
from commtrace.analysis.errors import MissingLibrary, NothingMeasured, NotPredictable
from commtrace.analysis.exports.parquet import PARQUET_SUFFIX, check_pyarrow, write_parquet
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.results.opening import analyse_with
from commtrace.cli import main
from commtrace.common import disk
from commtrace.contract.comms import COMMS_TOOL

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
CAPTURED = ROOT / "traces" / "resnet18-ddp-w2"
RUNS = [CAPTURED, *(DATA / name for name in ("gloo-collectives", "host-bound", "nccl-hang", "nccl-two-hosts"))]
FROM_DETAILS = ["cpu_operators", "runtime_calls", "launching_calls"]


@pytest.fixture(name="parquet")
def _parquet() -> object:
    return pytest.importorskip("pyarrow.parquet")


def written(analysis: Analysis, folder: Path) -> dict[str, int]:
    """Number of rows of each table that was written into the folder."""
    folder.mkdir(exist_ok=True)
    files = {}

    def new_file(name: str):
        files[name] = (folder / name).open("wb")
        return files[name]

    rows = write_parquet(analysis, new_file).rows
    for file in files.values():
        file.close()
    return rows


def table_or_none(analysis: Analysis, name: str) -> pd.DataFrame | None:
    """A table of the run, None if it cannot be made."""
    try:
        return analysis.table(name)
    except (NothingMeasured, NotPredictable):
        return None


@pytest.mark.parametrize("details", [True, False])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_files_hold_the_tables(run, details, tmp_path, parquet):
    analysis = analyse(run, details=details)
    rows = written(analysis, tmp_path)
    assert set(rows) == {file.name.removesuffix(PARQUET_SUFFIX) for file in tmp_path.iterdir()}
    for entry in CATALOG.values():
        if entry.of is not InputKind.run:
            continue
        table = table_or_none(analysis, entry.name)
        table = entry.schema.empty() if table is None else table
        assert rows[entry.name] == len(table)
        assert_frame_equal(pd.read_parquet(tmp_path / f"{entry.name}{PARQUET_SUFFIX}"), table, check_exact=True)


@pytest.mark.parametrize("run", [CAPTURED, DATA / "host-bound"], ids=lambda run: run.name)
def test_what_devices_and_cpus_did_is_there(run, tmp_path, parquet):
    analysis = analyse(run, details=True)
    rows = written(analysis, tmp_path)
    found = pd.read_parquet(tmp_path / "activities.parquet")
    wanted = analysis.run.activities
    assert_frame_equal(found.drop(columns="common_start_ns"), wanted, check_exact=True)
    file = parquet.ParquetFile(tmp_path / "activities.parquet")
    assert file.num_row_groups == len(analysis.run.ranks)
    if run != CAPTURED:
        assert all(rows[name] for name in FROM_DETAILS)
        calls = pd.read_parquet(tmp_path / "runtime_calls.parquet")
        assert_frame_equal(calls.drop(columns="common_start_ns"), analysis.run.runtime_calls, check_exact=True)


def test_moments_of_all_ranks_are_on_one_clock(tmp_path, parquet):
    """A collective's last arrival is on every rank before its first end, on the common clock only."""
    analysis = analyse(DATA / "nccl-two-hosts")
    written(analysis, tmp_path)
    activities = pd.read_parquet(tmp_path / "activities.parquet")
    assert (activities["common_start_ns"] != activities["start_ns"]).any()
    ran = activities[activities["kind"] == COMM]
    arrived = analysis.participation.merge(ran, on=["rank", "device", "start_ns", "dur_ns"])
    assert len(arrived) == len(analysis.participation)
    assert overlap(arrived, "common_start_ns").all()
    assert not overlap(arrived, "start_ns").all()


def overlap(calls: pd.DataFrame, start: str) -> pd.Series[bool]:
    """Whether the calls of each collective all run at some moment: each starts before the first of them ends."""
    moments = pd.DataFrame({"start": calls[start], "end": calls[start] + calls["dur_ns"]})
    of_collective = moments.groupby(calls["collective_id"])
    return of_collective["start"].max() <= of_collective["end"].min()


def test_ranks_that_are_read_one_by_one_give_the_same_files(tmp_path, parquet):
    run = DATA / "nccl-straggler"
    spread = analyse_with(run, ReadOptions(details=True, workers=2, sizes=ReadSizes(ranks_bytes=0, process_bytes=0)))
    assert spread.run.spread is not None
    written(spread, tmp_path / "spread")
    written(analyse(run), tmp_path / "whole")
    for file in (tmp_path / "whole").iterdir():
        assert_frame_equal(pd.read_parquet(tmp_path / "spread" / file.name), pd.read_parquet(file), check_exact=True)


def test_columns_say_what_they_mean(tmp_path, parquet):
    written(analyse(CAPTURED), tmp_path)
    schema = parquet.read_schema(tmp_path / "breakdown_steps.parquet")
    columns = CATALOG["breakdown_steps"].schema.columns
    assert {field.name: field.metadata[b"meaning"].decode() for field in schema} == {
        name: meaning for name, (_, meaning) in columns.items()
    }
    assert schema.field("exposed_comm_ns").metadata[b"unit"] == b"nanoseconds"
    assert b"unit" not in schema.field("rank").metadata
    assert str(schema.field("exposed_comm_ns").type) == "int64"
    assert str(schema.field("device").type) == "string"
    assert schema.metadata[b"table"] == b"breakdown_steps"
    assert schema.metadata[b"rows"] == b"one row per rank, device and step"
    assert schema.metadata[b"run"] == CAPTURED.name.encode()
    assert schema.metadata[b"commtrace"]
    assert b"empty_because" not in schema.metadata


def test_an_empty_table_has_columns_and_says_why(tmp_path, parquet):
    rows = written(analyse(DATA / "host-bound", details=False), tmp_path)
    because = {
        name: parquet.read_schema(tmp_path / f"{name}{PARQUET_SUFFIX}").metadata.get(b"empty_because", b"").decode()
        for name in rows
    }
    assert "was read without calls of the runtime" in because["critical_path"]
    assert because["cpu_operators"] == "read without details"
    assert because["breakdown"] == ""
    assert all(because[name] for name in CATALOG if name in rows and not rows[name])
    empty = pd.read_parquet(tmp_path / "critical_path.parquet")
    assert list(empty) == list(CATALOG["critical_path"].schema.columns)


def test_the_command_writes_them(tmp_path, monkeypatch, capsys, parquet):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "parquet", str(CAPTURED), "--no-cache"]) == 0
    out, err = capsys.readouterr()
    folder = tmp_path / "resnet18-ddp-w2-parquet"
    files = list(folder.iterdir())
    rows = sum(parquet.read_metadata(file).num_rows for file in files)
    size = sum(file.stat().st_size for file in files)
    assert out == f"{folder.name}: {len(files)} tables, {rows:,} rows, {size / 1e6:,.1f} MB\n"
    assert "note: without rows: launching_calls, " in err
    (folder / "breakdown.parquet").write_bytes(b"old")
    assert main(["export", "parquet", str(CAPTURED), "--no-cache"]) == 0
    assert len(pd.read_parquet(folder / "breakdown.parquet")) == 2
    assert sorted(folder.iterdir()) == sorted(files)


def test_a_ceiling_is_compared_with(tmp_path, parquet):
    for trace in traces_of(2, [Collective((0, 0), 10_000, elems=250_000)]):
        trace.write(tmp_path / "run")
    best = {"time": 8.0, "alg_bw": 125.0, "bus_bw": 125.0, "nwrong": 0}
    measured = [{"collective": "all_reduce", "size": 1_000_000, "in_place": best}]
    content = {"tool": COMMS_TOOL, "world_size": 2, "complete": True, "results": measured}
    (tmp_path / "comms.json").write_text(json.dumps(content))
    command = ["export", "parquet", str(tmp_path / "run"), "-o", str(tmp_path / "x")]
    assert main([*command, "--ceiling", str(tmp_path / "comms.json")]) == 0
    found = pd.read_parquet(tmp_path / "x" / "bandwidth_ceiling.parquet")
    assert found["of_ceiling_frac"].tolist() == [0.8]


def test_without_pyarrow_it_is_said_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", "parquet", str(tmp_path / "not-read"), "-o", str(tmp_path / "x")]) == 1
    assert "pyarrow is not installed, and `export parquet` needs it: pip install 'pyarrow>=" in capsys.readouterr().err
    with pytest.raises(MissingLibrary):
        check_pyarrow()


@pytest.mark.parametrize("last", [5, 60])
def test_a_full_disk_leaves_the_files_of_the_last_time(last, tmp_path, monkeypatch, capsys, parquet):
    """Whether one of the first files or one of the last cannot be written."""
    command = ["export", "parquet", str(CAPTURED), "-o", str(tmp_path), "--no-cache"]
    assert main(command) == 0
    (tmp_path / "of-somebody.parquet").write_bytes(b"theirs")
    before = {file.name: (file.read_bytes(), file.stat().st_ino) for file in tmp_path.iterdir()}
    write, descriptors = disk.write, set()

    def full(descriptor: int, data: memoryview) -> int:
        descriptors.add(descriptor)
        if len(descriptors) >= last:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(disk, "write", full)
    capsys.readouterr()
    assert main(command) == 1
    assert capsys.readouterr().err.endswith(f"error: {tmp_path}: cannot be written to: No space left on device\n")
    assert {file.name: (file.read_bytes(), file.stat().st_ino) for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_leaves_the_files_of_the_last_time(tmp_path, number):
    (tmp_path / "ranks.parquet").write_bytes(b"before")
    code = (
        "import os, sys, time; from pathlib import Path; from commtrace.analysis.cli.output import replacing_in\n"
        "with replacing_in(Path(sys.argv[1])) as new_file:\n"
        "    for name in ('ranks', 'calls'): new_file(name + '.parquet').write(b'half')\n"
        "    print(len(os.listdir(sys.argv[1])), flush=True)\n"
        "    os.kill(os.getpid(), int(sys.argv[2])); time.sleep(60)\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path), str(int(number))]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("3\n", "", 128 + number)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"ranks.parquet": b"before"}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, capsys, parquet):
    (tmp_path / "file").write_text("")
    assert main(["export", "parquet", str(CAPTURED), "-o", str(tmp_path / "file" / "x"), "--no-cache"]) == 1
    assert f"error: {tmp_path / 'file' / 'x'}: cannot be written to: Not a directory" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_an_error(tmp_path, capsys, parquet):
    folder = tmp_path / "x"
    folder.mkdir(mode=0o500)
    assert main(["export", "parquet", str(CAPTURED), "-o", str(folder), "--no-cache"]) == 1
    assert f"error: {folder}: cannot be written to: Permission denied" in capsys.readouterr().err


def test_pyarrow_is_only_imported_to_export():
    code = "import sys; import commtrace.analysis.cli.commands.export; print('pyarrow.parquet' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
