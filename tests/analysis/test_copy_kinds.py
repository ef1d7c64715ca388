"""Copies and fills whose names do not say what they are, as torch 2.14 writes them with `cupti_monitor`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from builders import US, Trace
from cupti_monitor import convert, converted

from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.copy_names import DIRECTIONS, MEMORIES
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.errors import NothingMeasured, NotPredictable
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

TABLES = [entry.name for entry in CATALOG.values() if entry.of is InputKind.run]
WAYS = (
    "Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Managed Static)",
    "Memcpy DtoD (Device -> Device)", "Memcpy PtoP (Device -> Device)", "Memcpy HtoH (Pageable -> Pinned)",
    "Memset (Device)", "Memset (Unknown)",
)  # fmt: skip


def training(rank: int) -> Trace:
    """A step with a collective, and copies of every direction on a stream of their own."""
    trace = Trace(rank, 2).step(1, 0, 1000 * US).kernel("gemm", 10 * US, 300 * US)
    trace.nccl("all_reduce", (330 + rank) * US, 100 * US)
    for place, name in enumerate(WAYS):
        category = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
        trace.kernel(name, (500 + 40 * place) * US, 30 * US, stream=9, cat=category, args={"bytes": 1000 * place})
    return trace.step(2, 1000 * US, 500 * US).kernel("gemm", 1010 * US, 300 * US)


def pair(folder: Path) -> tuple[Path, Path]:
    """A run in the old form and the new one."""
    old, new = folder / "old", folder / "new"
    for rank in range(2):
        path = training(rank).write(old)
        assert convert(path, new / path.name) == len(WAYS)
    return old, new


def csv_or_why(result: Analysis, name: str) -> str:
    try:
        table = result.table(name)
    except (NothingMeasured, NotPredictable) as err:
        return str(err)
    return as_csv(name, table[[column for column in table if column != "trace"]])


@pytest.mark.slow
def test_all_tables_are_those_of_whole_names(tmp_path):
    old, new = (analyse(run, details=True) for run in pair(tmp_path))
    for table in TABLES:
        assert csv_or_why(new, table) == csv_or_why(old, table), table


@pytest.mark.slow
def test_recordings_too(tmp_path):
    old, new = pair(tmp_path)
    packed = tmp_path / "packed"
    assert main(["pack", "-o", str(packed), str(new)]) == 0
    there, here = analyse(old, details=True), analyse(packed, details=True)
    for table in TABLES:
        assert csv_or_why(here, table) == csv_or_why(there, table), table


def of_events(folder: Path, *copies: dict[str, object]) -> list[Row]:
    trace = Trace().kernel("gemm", 100 * US, US)
    for nth, kinds in enumerate(copies):
        trace.kernel("Memcpy", 0, 10 * US, stream=20 + nth, cat="gpu_memcpy", args={"bytes": 8, **kinds})
    trace.write(folder)
    return records(analyse(folder).copies)


def test_numbers_of_cupti_say_the_same_as_names(tmp_path):
    names, numbers = [], []
    for number, direction in DIRECTIONS.items():
        for memory, name in MEMORIES.items():
            source = name.lower().replace(" ", "_")
            names.append({"copy kind": direction, "src kind": source, "dst kind": 3})
            numbers.append({"copy kind": number, "src kind": memory, "dst kind": "device"})
    found = of_events(tmp_path / "numbers", *numbers)
    assert len(found) == len(DIRECTIONS) * len(MEMORIES)
    assert found == of_events(tmp_path / "names", *names)


@pytest.mark.parametrize("kind", [None, 0, 99, -1, "sideways", "", True, [1], {"of": 1}, 1.0, 2**70])
def test_a_direction_that_is_not_known_is_na(tmp_path, kind):
    (row,) = of_events(tmp_path, {"copy kind": kind, "src kind": kind, "dst kind": kind})
    assert (row["direction"], row["memory"], row["copies"], row["size_bytes"]) == (None, None, 1, 8)
    assert "in which direction" in row["note"]


def test_memory_that_is_not_known_is_na(tmp_path):
    (row,) = of_events(tmp_path, {"copy kind": "HtoD", "src kind": 12, "dst kind": "device"})
    assert (row["direction"], row["memory"]) == ("HtoD", None)
    assert "is pinned" in row["note"]


def test_a_name_that_says_it_is_believed(tmp_path):
    trace = Trace().kernel("gemm", 100 * US, US)
    args = {"bytes": 8, "copy kind": "HtoD", "src kind": "pinned", "dst kind": "device"}
    trace.kernel("Memcpy DtoH (Device -> Pageable)", 0, 10 * US, cat="gpu_memcpy", args=args)
    trace.write(tmp_path)
    (row,) = records(analyse(tmp_path).copies)
    assert (row["direction"], row["memory"]) == ("DtoH", "pageable")


def test_graph_nodes_of_events_and_hosts_are_no_work_and_no_riddle(tmp_path, capsys):
    old = training(0)
    new = training(0)
    for place, category in enumerate(("graph_event_node", "graph_host_node")):
        args = {"device": 0, "context": 1, "stream": 7, "correlation": 900 + place}
        new.events.append({
            "ph": "X", "cat": category, "name": "EventRecord", "pid": 0, "tid": 7, "ts": 1400.0, "dur": 50.0,
            "args": args,
        })  # fmt: skip
    old.write(tmp_path / "old")
    new.write(tmp_path / "new")
    screens = []
    for run in ("old", "new"):
        assert main(["table", "breakdown", "--no-cache", "--format", "csv", str(tmp_path / run)]) == 0
        screens.append(capsys.readouterr())
    assert screens[0] == screens[1]


def test_the_converter_changes_copies_only():
    event = {"ph": "X", "cat": "kernel", "name": "Memcpy HtoD (Pinned -> Device)", "args": {}}
    assert converted(event) is event
    copied = converted(event | {"cat": "gpu_memcpy"})
    assert (copied["name"], copied["args"]["copy kind"]) == ("Memcpy", "HtoD")


def test_files_are_compact_and_packed_as_before(tmp_path):
    path = training(0).write(tmp_path / "old")
    convert(path, tmp_path / path.name)
    content = (tmp_path / path.name).read_bytes()
    text = gzip.decompress(content) if path.name.endswith(".gz") else content
    assert json.loads(text)["traceEvents"]
    assert b'"ph":"X"' in text
