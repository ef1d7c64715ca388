"""Files of other profilers are named in the refusal, by what is in them, with what to do instead."""

from __future__ import annotations

import gzip
import io
import pickle
import random
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pytest
from protobufs import integer, message, varint

from commtrace.analysis.formats.others import foreign_file
from commtrace.cli import main


def perfetto(drawn: random.Random, packets: int = 50) -> bytes:
    """A clock snapshot or a track first, then events, as Perfetto's SDK and torch write them."""
    begin = drawn.choice([
        integer(10, drawn.randint(1, 2**31)) + message(6, bytes(20)),
        message(60, integer(1, 7) + message(2, b"thread")),
        integer(8, drawn.randint(1, 2**62)) + integer(58, 64),
        message(33, bytes(9)),
        integer(3, 10_001) + message(89, bytes(5)),
    ])  # fmt: skip
    event = integer(8, 5) + message(11, integer(9, 1) + message(23, b"gemm" * drawn.randint(1, 90))) + integer(10, 3)
    return message(1, begin) + b"".join(message(1, event) for _ in range(packets))


def snapshot(drawn: random.Random) -> bytes:
    blocks = [{"size": drawn.randint(1, 2**30), "state": "active_allocated", "frames": []} for _ in range(30)]
    content = {"segments": [{"device": 0, "address": 7, "blocks": blocks}], "device_traces": [[]]}
    return pickle.dumps(content, protocol=drawn.choice([2, 3, 4, 5]))


def zipped(drawn: random.Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("rank0.json", "x" * drawn.randint(1, 900))
    return file.getvalue()


def tarred(drawn: random.Random) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("rank0.json")
        entry.size = drawn.randint(1, 900)
        archive.addfile(entry, io.BytesIO(bytes(entry.size)))
    return file.getvalue()


def rocprof(drawn: random.Random) -> bytes:
    heads = [
        '"Kind","Agent_Id","Queue_Id","Kernel_Name"',
        "Index,KernelName,gpu-id",
        '"Name","Calls","TotalDurationNs"',
    ]
    return (drawn.choice(heads) + "\n" + "1,2,3\n" * 9).encode()


def chakra(drawn: random.Random) -> bytes:
    metadata = message(1, f"0.0.{drawn.randint(1, 9)}") + message(2, message(1, "rank") + integer(3, 1))
    node = integer(1, 7) + message(2, "ncclDevKernel") + integer(3, 7)
    return varint(len(metadata)) + metadata + (varint(len(node)) + node) * 20


SAID = {
    perfetto: ("in Perfetto's format",),
    zipped: ("is a zip archive", "python3 -m zipfile -e"),
    tarred: ("is a tar archive", "tar -xf"),
    rocprof: ("is a CSV table of rocprof", "torch.profiler"),
    chakra: ("is a Chakra execution trace", "Kineto trace"),
    snapshot: ("is a snapshot of torch's memory allocator", "https://pytorch.org/memory_viz"),
}


@pytest.mark.parametrize("write", SAID)
@pytest.mark.parametrize("name", ["trace.bin", "trace.json"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_refusal_names_the_format_and_what_to_do(tmp_path, capsys, write, name, packed, seed):
    content = write(random.Random(seed))
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    for given in (path, tmp_path):
        assert main(["summary", str(given)]) == 1
        said = capsys.readouterr().err
        assert all(part in said for part in SAID[write]), said
        assert path.name in said


@pytest.mark.parametrize("seed", range(4))
def test_hang_names_a_snapshot_of_memory(tmp_path, capsys, seed):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(snapshot(random.Random(seed)))
    assert main(["hang", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"{path}: is a snapshot of torch's memory allocator" in said
    assert "flight recorder" in said


def test_another_pickle_is_named_as_one(tmp_path, capsys):
    path = tmp_path / "model.json"
    path.write_bytes(pickle.dumps({"weights": [1.0] * 9}, protocol=4))
    assert main([str(path)]) == 1
    assert "is a pickle of Python" in capsys.readouterr().err


@pytest.mark.parametrize("begin", [b"\n\n{", b"\nhello, this is a log\n", b"\n"])
def test_a_text_is_none_of_them(tmp_path, capsys, begin):
    path = tmp_path / "a.json"
    path.write_bytes(begin)
    assert main([str(path)]) == 1
    assert not any(part in capsys.readouterr().err for parts in SAID.values() for part in parts)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("rocpd_op", "is a database of rocmProfileData (rpd), which is not read; capture with rocprofv3"),
        ("rocpd_kernel_dispatch_00008a4f", "has no column kernel_id; capture it again with rocprofv3"),
        ("rocpd_string_00008a4f", "has no table rocpd_kernel_dispatch...; capture it again with rocprofv3"),
    ],
)
def test_a_database_of_rocm_is_named(tmp_path: Path, capsys, table, told):
    path = tmp_path / "trace.rpd"
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE {table} (id INTEGER, start INTEGER, end INTEGER)")
    database.close()
    assert main([str(path)]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "table",
    [
        "META_DATA_EXPORT (name TEXT, value TEXT)",
        "TARGET_INFO_SESSION_START_TIME (utcEpochNs INT)",
        "OSRT_API (start INT, end INT)",
        "ENUM_NSYS_EVENT_TYPE (id INT, name TEXT)",
    ],
)
def test_an_nsight_export_without_cuda_is_one(tmp_path, capsys, table):
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE {table}")
    database.close()
    assert main([str(path)]) == 1
    assert "shows nothing that a GPU did; capture with --trace=cuda,nvtx" in capsys.readouterr().err


@pytest.mark.parametrize("begin", [b"\n{", b"\n[", b"\n {\n", b"\n\n{"])
def test_json_behind_an_empty_line_is_no_packet(begin: bytes) -> None:
    """The length of a packet may be the number of a brace."""
    assert foreign_file(begin + b'\n  "traceEvents": []}') is None
    assert foreign_file(begin + b'"schemaVersion": 1') is None
