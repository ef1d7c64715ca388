"""Copies and fills by direction, memory of the host and stream, on traces built in memory."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from builders import US, Trace
from nsight_exports import documents_in, export_of

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

PINNED, PAGEABLE = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)"


def copy(trace: Trace, name: str, start: int, dur: int, size: object = None, **where: int) -> Trace:
    cat = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
    return trace.kernel(name, start * US, dur * US, cat=cat, args={} if size is None else {"bytes": size}, **where)


def of_trace(folder: Path, *traces: Trace) -> list[Row]:
    for trace in traces:
        trace.write(folder)
    return records(analyse(folder).copies)


def ways(rows: list[Row]) -> list[tuple[object, ...]]:
    return [(r["direction"], r["memory"], r["stream"], r["copies"], r["size_bytes"]) for r in rows]


def test_a_row_for_each_direction_memory_and_stream(tmp_path):
    trace = copy(Trace(), PINNED, 0, 9, 100)
    for number, (name, stream) in enumerate((
        (PINNED, 8), (PINNED, 8), ("Memcpy HtoD (Pageable -> Device)", 8), (PAGEABLE, 8),
        ("Memcpy DtoD (Device -> Device)", 8), ("Memset (Device)", 8), ("Memcpy PtoP (Device -> Device)", 9),
    )):  # fmt: skip
        copy(trace, name, 20 + 10 * number, 8 - number, 1000, stream=stream)
    assert ways(of_trace(tmp_path, trace.kernel("gemm", 100 * US, US))) == [
        ("HtoD", "pinned", 8, 2, 2000),
        ("HtoD", "pinned", 7, 1, 100),
        ("HtoD", "pageable", 8, 1, 1000),
        ("DtoH", "pageable", 8, 1, 1000),
        ("DtoD", None, 8, 1, 1000),
        ("memset", None, 8, 1, 1000),
        ("PtoP", None, 9, 1, 1000),
    ]


def test_exposed_is_what_nothing_else_hides(tmp_path):
    trace = Trace().kernel("gemm", 0, 10 * US).kernel("gemm", 30 * US, 10 * US)
    copy(copy(trace, PINNED, 5, 10, 1), PINNED, 12, 8, 1)  # exposed from 10 to 20
    copy(trace, PAGEABLE, 18, 14, 1)  # exposed from 20 to 30
    rows = of_trace(tmp_path, trace)
    assert {r["direction"]: (r["total_ns"], r["exposed_ns"]) for r in rows} == {
        "HtoD": (18 * US, 8 * US),
        "DtoH": (14 * US, 10 * US),
    }


def test_a_kernel_of_another_device_hides_nothing(tmp_path):
    trace = copy(Trace(), PINNED, 0, 10, 1).kernel("gemm", 0, 10 * US, device=1)
    assert [(r["device"], r["exposed_ns"]) for r in of_trace(tmp_path, trace)] == [("0", 10 * US)]


@pytest.mark.parametrize("size", [None, "many", 2.5, -1, 2**62, 2**70])
def test_sizes_that_are_not_known_are_counted(tmp_path, size):
    trace = copy(copy(Trace(), PINNED, 0, 10, size), PAGEABLE, 20, 10, size)
    pinned, pageable = sorted(of_trace(tmp_path, copy(trace, PAGEABLE, 40, 5, 20_000)), key=lambda r: r["copies"])
    assert (pinned["size_bytes"], pinned["bandwidth_gb_per_s"], pinned["unsized"]) == (None, None, 1)
    assert (pageable["size_bytes"], pageable["bandwidth_gb_per_s"], pageable["unsized"]) == (20_000, 4.0, 1)
    assert "how many bytes" in pinned["note"]
    assert "how many bytes" in pageable["note"]


def test_rocm_does_not_say_whether_memory_is_pinned(tmp_path):
    (row,) = of_trace(tmp_path, copy(Trace(), "Memcpy HtoD (Host -> Device)", 0, 10, 10))
    assert (row["direction"], row["memory"], row["size_bytes"]) == ("HtoD", None, 10)
    assert "pinned" in row["note"]


def test_a_copy_whose_name_says_nothing(tmp_path):
    (row,) = of_trace(tmp_path, copy(Trace(), "dma_request", 0, 10, 10))
    assert (row["direction"], row["memory"], row["size_bytes"]) == (None, None, 10)
    assert "direction" in row["note"]


def test_a_copy_that_takes_no_time_has_no_bandwidth(tmp_path):
    (row,) = of_trace(tmp_path, copy(Trace(), PINNED, 0, 0, 10).kernel("gemm", 0, US))
    assert (row["size_bytes"], row["bandwidth_gb_per_s"], row["exposed_ns"]) == (10, None, 0)


def test_recordings_keep_sizes(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    copy(copy(Trace(), PINNED, 0, 10, 4096), PAGEABLE, 20, 10).write(run)
    assert main(["pack", "-o", str(tmp_path / "packed"), str(run)]) == 0
    assert records(analyse(tmp_path / "packed").copies) == records(analyse(run).copies)


def test_an_export_of_nsight_has_the_same(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    trace = copy(copy(Trace(), PINNED, 0, 10, 4096), PAGEABLE, 20, 10, 77, stream=9)
    wanted = of_trace(run, copy(trace, "Memset (Device)", 40, 5, 8))
    export = export_of(documents_in(run)).write(tmp_path / "x.sqlite")
    assert len(wanted) == 3
    assert records(analyse(export).copies) == wanted


def test_the_command(tmp_path, capsys):
    for rank in (0, 1):
        copy(Trace(rank=rank, world=2), PINNED, 0, 10, 4096).write(tmp_path)
    assert main(["table", "copies", "--format", "csv", str(tmp_path)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["rank"], r["direction"], r["size_bytes"]) for r in rows] == [
        ("0", "HtoD", "4096"),
        ("1", "HtoD", "4096"),
    ]


def test_no_copy_is_a_result(tmp_path, capsys):
    Trace().nccl("all_reduce", 0, 10 * US).write(tmp_path)
    assert main(["table", "copies", str(tmp_path)]) == 0
    assert "no device copied" in capsys.readouterr().out
