"""What must hold of every trace file, however it is read: of the project's own files, and of others."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from builders import write_bytes
from oracle import Tables, oracle_tables, tables_of

import commtrace.analysis.formats.kineto.reader
from commtrace.analysis.errors import TraceError
from commtrace.analysis.formats.kineto.joining import Joining
from commtrace.analysis.formats.kineto.part_stream import Indivisible
from commtrace.analysis.formats.kineto.reader import joined_trace, read_kineto, read_part
from commtrace.analysis.formats.kineto.scan import picked
from commtrace.analysis.formats.kineto.stream import EventStream
from commtrace.analysis.recording.checks import is_consistent
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.run.file_tables import trace_file

ROOT = Path(__file__).resolve().parents[2]
OWN_FILES = sorted((ROOT / "traces").rglob("*.pt.trace.json.gz"))
OPTIONS = ReadOptions()


# --- in parts --------------------------------------------------------------------------------------------------------


def in_parts(path: Path, count: int, options: ReadOptions) -> RawTrace:
    parts = Joining()
    for part in range(count):
        parts.add(read_part(path, options, part, count))
    return joined_trace(path, parts, options)


def assert_parts_join_to_the_whole(path: Path, folder: Path) -> None:
    """Packed and plain, and in a compact layout."""
    options = ReadOptions(sizes=ReadSizes(chunk_bytes=16 << 10))
    content = gzip.decompress(path.read_bytes())
    plain = write_bytes(folder / "plain.json", content)
    compact = write_bytes(folder / "compact.json", json.dumps(json.loads(content), separators=(",", ":")).encode())
    divided = 0
    for file in (path, plain, compact):
        try:
            assert in_parts(file, 3, options) == read_kineto(file, options)
            divided += 1
        except Indivisible:
            continue
    # What is not in Kineto's own layout, too small, or a run on the CPU of a machine with GPUs, is read as a whole.
    is_whole = "vllm" in str(path) or path.stat().st_size < 40_000 or not read_kineto(path, options).activities["ts"]
    assert divided == 3 or is_whole


# --- three ways to read ----------------------------------------------------------------------------------------------


def tables(path: Path, options: ReadOptions = OPTIONS) -> Tables:
    return tables_of(trace_file(path, read_kineto(path, options)))


def assert_same_tables(found: Tables, wanted: Tables) -> None:
    assert found.keys() == wanted.keys()
    for key, rows in wanted.items():
        assert found[key] == rows, key


def share_picked(path: Path) -> float:
    counts = {True: 0, False: 0}
    for batch in EventStream(path, picker=lambda around: partial(picked, with_operators=True)):
        counts[batch.picked is not None] += len(batch.taken_apart().texts)
    return counts[True] / max(1, sum(counts.values()))


def without_fast_path(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commtrace.analysis.formats.kineto.reader, "picked", lambda source, end, habits, layout, **_: None)


def assert_three_readings_agree(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Picked from Kineto's layout and from a compact one, decoded in another one, and by plain json."""
    content = gzip.decompress(path.read_bytes())
    fast = tables(path)
    assert_same_tables(fast, oracle_tables(content))
    compact = write_bytes(folder / "compact.json", json.dumps(json.loads(content), separators=(",", ":")).encode())
    assert_same_tables(tables(compact), fast)
    rewritten = write_bytes(folder / "rewritten.json", json.dumps(json.loads(content)).encode())
    assert share_picked(rewritten) == 0
    assert_same_tables(tables(rewritten), fast)
    without_fast_path(monkeypatch)
    assert_same_tables(tables(path), fast)


def assert_read_or_told(path: Path, read: Callable[..., list[RawTrace]]) -> None:
    """What `read` gives is consistent, or it raises an error of ours that names the file, in one line."""
    for keep_going in (False, True):
        told = None
        try:
            found = read(path, keep_going=keep_going)
        except TraceError as err:
            found, told = [], str(err)
        assert all(map(is_consistent, found))
        assert told is None or (str(path) in told and "\n" not in told)
