"""Traces of torch in Perfetto's format say what JSON of the same window says."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pftraces
import pytest
from cupti_monitor import converted
from nsight_exports import documents
from protobufs import integer, message

from commtrace import analyse
from commtrace.analysis.errors import AnalysisError, TraceError
from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.formats.pftrace.reader import read_pftrace
from commtrace.analysis.recording.checks import is_consistent
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.run.file_tables import trace_file
from commtrace.cli import main

NOT_TOLD = ("distributedInfo", "deviceProperties", "host_name")
"""Of a document, what .pftrace does not have."""
TABLES = ("activities", "launches", "runtime_calls", "cpu_ops", "operator_calls", "annotations", "comm_args")


def made(name: str, folder: Path) -> list[dict[str, Any]]:
    """Documents as torch 2.14 writes them, without what .pftrace cannot say."""
    plain = []
    for document in documents(name, folder):
        kept = {key: value for key, value in document.items() if key not in NOT_TOLD}
        kept["traceEvents"] = [
            without_kinds(converted(event)) for event in document["traceEvents"] if event.get("ph") == "X"
        ]
        plain.append(pftraces.clamped(kept))
    return plain


def without_kinds(event: dict[str, Any]) -> dict[str, Any]:
    """Copies do not say their direction; kernels and calls of the runtime have no id of an operator."""
    if event.get("cat") in (*pftraces.STAGES, "cuda_runtime"):
        left_out = ("copy kind", "src kind", "dst kind", "flags", "External id")
        args = {key: value for key, value in event.get("args", {}).items() if key not in left_out}
        known = (*pftraces.KEPT, *pftraces.META, "registers per thread")
        if event["cat"] != "cuda_runtime":
            args = {key: value for key, value in args.items() if key in known}
        return event | {"args": args}
    return event


@pytest.mark.parametrize("name", ["straggler", "sharded", "graph", "pipeline"])
@pytest.mark.parametrize("packed", [True, False])
def test_every_table_is_that_of_json(tmp_path: Path, name: str, packed: bool) -> None:
    for number, document in enumerate(made(name, tmp_path / "made")[:2]):
        json_path = tmp_path / f"rank{number}.json"
        json_path.write_text(json.dumps(document), encoding="utf-8")
        path = pftraces.write(document, tmp_path / f"rank{number}.pftrace", packed=packed)
        options = ReadOptions(details=True)
        own, theirs = trace_file(path, read_pftrace(path, options)), trace_file(path, read_kineto(json_path, options))
        for table in TABLES:
            rows, wanted = (sorted(map(repr, getattr(f, table).to_numpy().tolist())) for f in (own, theirs))
            assert len(rows) == len(wanted), table
            assert rows == wanted, table
        assert len(own.activities) > 10


@pytest.mark.slow
def test_ranks_are_found_and_compared(tmp_path: Path) -> None:
    for number, document in enumerate(made("straggler", tmp_path / "made")):
        pftraces.write(document, tmp_path / "run" / f"rank{number}.pftrace")
        (tmp_path / "json").mkdir(exist_ok=True)
        (tmp_path / "json" / f"rank{number}.json").write_text(json.dumps(document), encoding="utf-8")
    found, wanted = analyse(tmp_path / "run", details=True), analyse(tmp_path / "json", details=True)
    for table in ("breakdown", "collectives", "participation", "bandwidth", "ranks", "kernels"):
        ours, theirs = found.table(table), wanted.table(table)
        assert str(ours.to_dict("list")) == str(theirs.to_dict("list")), table


def test_what_it_lacks_is_said_once(tmp_path: Path) -> None:
    for number, document in enumerate(made("straggler", tmp_path / "made")):
        pftraces.write(document, tmp_path / "run" / f"rank{number}.pftrace")
    notes = [note for note in analyse(tmp_path / "run").run.notes if "ends no later than the next" in note]
    assert len(notes) == 1
    assert "export_chrome_trace('trace.json')" in notes[0]


def test_json_is_preferred_where_both_lie_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, document in enumerate(made("straggler", tmp_path / "made")):
        pftraces.write(document, tmp_path / "run" / f"rank{number}.pftrace")
        (tmp_path / "run" / f"rank{number}.json").write_text(json.dumps(document), encoding="utf-8")
    assert main(["table", "breakdown", "--no-cache", str(tmp_path / "run")]) == 0
    assert "left out 4 .pftrace files beside traces, which say more" in capsys.readouterr().err


def test_a_timeline_of_this_project_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = made("straggler", tmp_path / "made")[0]
    path = pftraces.write(document, tmp_path / "rank0.pftrace")
    assert main(["timeline", "--no-cache", "-o", str(tmp_path / "drawn.pftrace"), str(path)]) == 0
    capsys.readouterr()
    assert main([str(tmp_path / "drawn.pftrace")]) == 1
    assert "without any event of torch.profiler" in capsys.readouterr().err


def test_a_writer_by_time_may_nest(tmp_path: Path) -> None:
    def event(time: int, kind: int, name: int = 0) -> bytes:
        begun = integer(3, 1) + integer(9, kind) + integer(11, 5) + (integer(10, name) if name else b"")
        return message(1, integer(8, time) + integer(10, 1) + message(11, begun))

    names = message(1, integer(1, 1) + message(2, "cpu_op"))
    names += b"".join(message(2, integer(1, n) + message(2, f"aten::op{n}")) for n in (1, 2))
    track = message(1, message(60, integer(1, 5) + message(4, integer(1, 7) + integer(2, 8))))
    path = tmp_path / "a.pftrace"
    path.write_bytes(
        track + message(1, integer(10, 1) + message(12, names))
        + event(1000, 1, 1) + event(2000, 1, 2) + event(3000, 2) + event(9000, 2)
    )  # fmt: skip
    operators = trace_file(path, read_pftrace(path, ReadOptions(details=True))).cpu_ops
    assert dict(zip(operators["name"], operators["dur_ns"], strict=True)) == {"aten::op1": 8000, "aten::op2": 1000}


def mutants(content: bytes, count: int) -> Iterator[bytes]:
    drawn = random.Random(3)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(drawn.randint(1, 3)):
            at = drawn.randrange(len(changed))
            if drawn.random() < 0.5:
                changed[at] = drawn.choice([0, 1, 127, 128, 255, changed[at] ^ (1 << drawn.randrange(8))])
            else:
                del changed[at : at + drawn.randint(1, 30)]
        yield bytes(changed)


def test_no_damage_breaks_the_reader(tmp_path: Path) -> None:
    document = made("straggler", tmp_path / "made")[0]
    document["traceEvents"] = document["traceEvents"][::3]
    path, were_read = tmp_path / "a.pftrace", 0
    for mutant in mutants(pftraces.encoded(document), 150):
        path.write_bytes(mutant)
        try:
            raw = read_pftrace(path, ReadOptions(details=True, memory_gb=0.3))
        except AnalysisError:
            continue
        assert is_consistent(raw)
        were_read += 1
    assert were_read > 20


@pytest.mark.parametrize("content", [b"", b"\x0a\x00" * 300_000, message(1, message(11, b"\x22\x00" * 300_000))])
def test_what_is_empty_or_too_much_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.pftrace"
    path.write_bytes(content)
    with pytest.raises(TraceError):
        read_pftrace(path, ReadOptions(memory_gb=0.02))
