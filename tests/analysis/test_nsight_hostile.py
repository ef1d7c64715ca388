"""Exports that are damaged, or made to do harm: an error of one line, or what is left, and nothing written."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import struct
from pathlib import Path

import pytest
from nsight_exports import ALL_REDUCE, KERNEL, SYSTEM_NS, add, documents, export_of, payload, process, small
from reading_checks import assert_read_or_told
from samples import with_slow

import commtrace.analysis.recording.database
from commtrace import analyse
from commtrace.analysis.errors import AnalysisError, DamagedTrace, NotATrace, TooLarge, TraceError
from commtrace.analysis.formats.nsight.ranks import ranks_in
from commtrace.analysis.formats.nsight.reader import read_nsight
from commtrace.analysis.recording.checks import is_consistent
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace
from commtrace.cli import main

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


def read(path: Path, *, keep_going: bool = False) -> list[RawTrace]:
    """All ranks of an export, with everything. Raises TraceError."""
    options = ReadOptions(details=True, keep_going=keep_going)
    return [read_nsight(rank, options) for rank in ranks_in([path]).paths]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of an export of four ranks."""
    folder = tmp_path_factory.mktemp("whole")
    return export_of(documents("plain", folder / "kineto")).write(folder / "report.sqlite").read_bytes()


def assert_told(path: Path) -> None:
    """What is read is consistent, and what is wrong is an error that names the file; never anything else."""
    assert_read_or_told(path, read)


@pytest.mark.parametrize("seed", with_slow(range(6), range(6, 40)))
def test_cut_anywhere(tmp_path: Path, whole: bytes, seed: int) -> None:
    cut = random.Random(seed).randrange(len(whole))
    path = tmp_path / "report.sqlite"
    path.write_bytes(whole[:cut])
    assert_told(path)
    with pytest.raises(TraceError, match="is not an SQLite database" if cut < 16 else "ends too early"):
        read(path)


@pytest.mark.parametrize("seed", with_slow(range(8), range(8, 300)))
def test_zeroed_pages_and_random_bytes(tmp_path: Path, whole: bytes, seed: int) -> None:
    rng, data = random.Random(seed), bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 8))):
        size = rng.choice((1, 1, 8, 4096))
        at = rng.randrange(len(data) // 4096) * 4096 if size == 4096 else rng.randrange(len(data))
        data[at : at + size] = bytes(size) if rng.random() < 0.5 else rng.randbytes(size)
    path = tmp_path / "report.sqlite"
    path.write_bytes(data)
    assert_told(path)


def with_journal(path: Path, mode: str, folder: Path) -> Path:
    """A copy of an export, taken while a program had changed it and not yet finished, with the journal beside it."""
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA journal_mode={mode}")
        connection.execute("PRAGMA cache_size=1")  # so that what is not committed is in the file as well
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute(f"UPDATE {KERNELS} SET start = start + 7")
        if mode == "wal":
            connection.commit()
        folder.mkdir()
        for file in (path, *path.parent.glob(f"{path.name}-[wj]*")):
            shutil.copy(file, folder / file.name)
        connection.rollback()
    connection.close()
    return folder / path.name


@pytest.mark.slow_cases("True-wal--wal-wal_checkpoint(TRUNCATE)")
@pytest.mark.parametrize(
    ("mode", "ending", "statement"),
    [("wal", "-wal", "wal_checkpoint(TRUNCATE)"), ("persist", "-journal", "integrity_check")],
)
@pytest.mark.parametrize("by_link", [False, True])
def test_a_journal_beside_it(tmp_path, capsys, whole, mode, ending, statement, by_link):
    path = tmp_path / "report_rank0.sqlite"
    path.write_bytes(whole)
    copy = given = with_journal(path, mode, tmp_path / "copy")
    assert Path(f"{copy}{ending}").stat().st_size > 0
    if by_link:
        given = tmp_path / "link.sqlite"
        given.symlink_to(copy)
    capsys.readouterr()
    assert main(["breakdown", str(given)]) == 1
    told = capsys.readouterr().err
    assert f"has {copy.name}{ending} beside it" in told
    assert f"sqlite3 {copy.name} 'PRAGMA {statement}'" in told
    with sqlite3.connect(copy) as connection:  # what the message says to do
        connection.execute(f"PRAGMA {statement}").fetchall()
    connection.close()
    assert main(["breakdown", str(given), "--no-cache"]) == 0
    assert not Path(f"{copy}{ending}").exists() or not any(Path(f"{copy}{ending}").read_bytes()[:8])


@pytest.mark.slow
def test_a_cache_does_not_hide_a_journal(tmp_path, capsys, whole):
    path = tmp_path / "report.sqlite"
    path.write_bytes(whole)
    assert main(["breakdown", str(path)]) == 0
    Path(f"{path}-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(4096))
    assert main(["breakdown", str(path)]) == 1
    assert "report.sqlite-wal beside it" in capsys.readouterr().err
    Path(f"{path}-wal").write_bytes(b"")
    assert main(["breakdown", str(path)]) == 0


def changed(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("'soon'", "has 'soon' as start, expected a whole number"),
        ("NULL", "has 'None' as start, expected a whole number"),
        ("1.5e300", "as start, expected a whole number"),
        ("x'00ff'", "as start, expected a whole number"),
        ("-7", "has an event from -7 to"),
        ("9223372036854775807", "has an event from 9223372036854775807"),
    ],
)
def test_values_that_are_not_times(tmp_path: Path, value: str, message: str) -> None:
    path = small().write(tmp_path / "report.sqlite")
    changed(path, f"UPDATE {KERNELS} SET start = {value} WHERE correlationId = 0")
    with pytest.raises(DamagedTrace, match="table CUPTI_ACTIVITY_KIND_KERNEL") as found:
        read(path)
    assert message in str(found.value)
    (left,) = read(path, keep_going=True)
    assert left.names[0] == ALL_REDUCE
    assert left.damage is not None
    assert len(left.activities["ts"]) == 8  # one number


def test_optional_values_that_make_no_sense_are_missing(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    changed(path, f"UPDATE {KERNELS} SET correlationId = 'x', gridX = NULL, gridY = -3")
    found = analyse(path).run.activities
    assert found["correlation"].isna().all()
    assert found["blocks_per_sm"].isna().all()


@pytest.mark.parametrize("seed", with_slow(range(5), range(5, 200)))
def test_payloads_of_any_bytes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    export = small([(ALL_REDUCE, 0, 100), (ALL_REDUCE, 200, 300)])
    for place, name in enumerate(["ncclCommInitRank", "ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd"]):
        data = bytearray(payload(rng.randrange(900, 906), 7, rng.choice((1, 1 << 50, 1 << 63)), 2, rng.randrange(2)))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        start = SYSTEM_NS - 75 + 15 * place
        export.range(process(7) + 7, name, start, start + 10, data=bytes(data[: rng.choice((80, 80, 20))]), nccl=True)
    export.range(process(7) + 7, "ncclAllGather", SYSTEM_NS + 170, SYSTEM_NS + 195, nccl=True,
                 data=payload(901, 7, rng.choice((1 << 49, 1 << 62, 5))))  # fmt: skip
    path = export.write(tmp_path / "report.sqlite")
    assert all(map(is_consistent, read(path)))
    assert len(analyse(path, cache=False).calls) in (2, 3)


def test_names_that_are_gone(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    changed(path, f"DELETE FROM StringIds WHERE value = '{KERNEL}'")
    with pytest.raises(DamagedTrace, match="1 name of kernels are not in its table StringIds"):
        read(path)
    changed(path, "DROP TABLE StringIds")
    with pytest.raises(DamagedTrace, match="StringIds"):
        read(path)


def test_a_column_that_is_gone(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite", without=[f"{KERNELS}.streamId"])
    with pytest.raises(DamagedTrace, match="table CUPTI_ACTIVITY_KIND_KERNEL has no column streamId"):
        read(path)


def test_views_triggers_and_columns_that_compute_are_not_run(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start FROM n"
    changed(path, f"CREATE VIEW CUPTI_ACTIVITY_KIND_MEMCPY AS {endless}", f"CREATE VIEW NVTX_EVENTS AS {endless}")
    (found,) = read(path)
    assert len(found.activities["ts"]) == 16
    computed = "zeroblob(100000000)"
    changed(path, f"ALTER TABLE {KERNELS} ADD COLUMN gridW AS ({computed})",
            f"CREATE TRIGGER t AFTER INSERT ON {KERNELS} BEGIN DELETE FROM StringIds; END")  # fmt: skip
    assert len(read(path)[0].activities["ts"]) == 16
    changed(path, f"ALTER TABLE {KERNELS} DROP COLUMN gridW", f"ALTER TABLE {KERNELS} DROP COLUMN gridX",
            f"ALTER TABLE {KERNELS} ADD COLUMN gridX AS ({computed})")  # fmt: skip
    assert analyse(path).run.activities["blocks_per_sm"].isna().all()


def test_pages_that_repeat_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two levels of pages that hold one page 400 times each: many rows in a small file."""
    monkeypatch.setattr(commtrace.analysis.recording.database, "_STEPS", 1_000_000)
    export = small([(KERNEL, n, n + 1) for n in range(400)])
    path = export.write(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as connection:
        ((root,),) = connection.execute(f"SELECT rootpage FROM sqlite_master WHERE name = '{KERNELS}'")
        ((size,),) = connection.execute("PRAGMA page_size")
    connection.close()
    data = bytearray(path.read_bytes())
    leaf = struct.unpack_from(">I", data, (root - 1) * size + 8)[0]  # the last child of the root
    for page, child in ((root, len(data) // size + 1), (len(data) // size + 1, leaf)):
        content = bytearray(size)
        cells = 300
        struct.pack_into(">BHHHBI", content, 0, 5, 0, cells, size - cells * 5, 0, child)
        for number in range(cells):
            struct.pack_into(">H", content, 12 + 2 * number, size - (number + 1) * 5)
            struct.pack_into(">IB", content, size - (number + 1) * 5, child, number % 128)
        data[(page - 1) * size : page * size] = content
    struct.pack_into(">I", data, 28, len(data) // size)
    path.write_bytes(data)
    with pytest.raises(DamagedTrace, match="takes more work to read than any table"):
        read_nsight(path, ReadOptions())


def test_more_than_the_memory_allows(tmp_path: Path) -> None:
    path = small([(KERNEL, n, n + 1) for n in range(2000)]).write(tmp_path / "report.sqlite")
    with pytest.raises(TooLarge, match="--memory GB"):
        read_nsight(path, ReadOptions(memory_gb=0.0003))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    tmp_path.chmod(0o500)
    try:
        assert analyse(path).run.ranks == [0]
    finally:
        tmp_path.chmod(0o700)


def test_nothing_is_left_beside_an_export(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as connection:  # an export in this mode makes SQLite write beside it, even to read
        connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    before = path.read_bytes()
    analyse(path, details=True, cache=False)
    assert [one.name for one in tmp_path.iterdir()] == ["report.sqlite"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "name", ["a b?mode=rw#x%41.sqlite", "üΩ.sqlite", "rank0-pid7.sqlite", "--x.sqlite", "'\";.sqlite"]
)
def test_odd_names_of_files(tmp_path: Path, name: str) -> None:
    export = small()
    add(export, [(ALL_REDUCE, 0, 30)], pid=8, gpu=1)
    assert analyse(export.write(tmp_path / name), cache=False).run.ranks == [0, 1]


def test_odd_texts(tmp_path: Path) -> None:
    export = small([("k\0\n\x1b[31m\ud800"[:-1] + "é" * 5000, 0, 100)])
    export.range(process(7) + 7, "step \x1b]0;", SYSTEM_NS, SYSTEM_NS + 5)
    path = export.write(tmp_path / "report.sqlite")
    changed(path, "UPDATE StringIds SET value = CAST(x'ff6b' AS TEXT) WHERE value LIKE 'cuda%'")
    assert main(["table", "kernels", str(path)]) == 0
    assert len(read(path)) == 1


def test_an_error_is_one_line(tmp_path: Path, whole: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(whole[: len(whole) // 2])
    assert main(["breakdown", str(path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {path}")
    assert err.count("\n") == 1


def test_a_pipe_is_not_an_export(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    os.mkfifo(path)
    with pytest.raises(AnalysisError):
        read_nsight(path, ReadOptions())


def test_an_export_of_several_ranks_is_not_one(tmp_path: Path) -> None:
    export = small()
    add(export, [(ALL_REDUCE, 0, 30)], pid=8, gpu=1)
    path = export.write(tmp_path / "several.sqlite")
    with pytest.raises(NotATrace, match="2 of its processes used GPUs"):
        read_nsight(path, ReadOptions())


def test_kernels_of_no_process_are_not_left_out_silently(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    changed(path, f"UPDATE {KERNELS} SET globalPid = NULL WHERE correlationId = 0")
    with pytest.raises(DamagedTrace, match=r"KERNEL has rows of no process \(globalPid\)"):
        read(path)
    (left,) = read(path, keep_going=True)
    assert left.damage is not None


def test_an_export_may_have_any_name(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    other = path.rename(tmp_path / "report.json")
    assert len(analyse(other).run.activities)
