"""Real files of others: however they are read, cut anywhere, and one of them alone."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path

import pytest
from beside_checkout import FILES, TRACES, needs_shared
from oracle import oracle_tables
from reading_checks import (
    assert_parts_join_to_the_whole,
    assert_three_readings_agree,
    share_picked,
)
from samples import a_sample
from small_trace import good_events, read

from commtrace.analysis.errors import NotATrace, TraceError
from commtrace.analysis.run.file_tables import trace_file
from commtrace.cli import main

pytestmark = needs_shared
# Of eight like files, two; the others differ in nothing that a reader sees.
CHOSEN = [p for p in FILES if not any(f"rank{n}-" in p.name or f"worker{n}_" in p.name for n in range(2, 8))]


def of_file(path: Path) -> str:
    return f"{path.parent.name}/{path.name[-32:]}"


def test_the_real_files_are_there():
    assert len(CHOSEN) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in FILES if "rank0" in path.name], ids=of_file)
def test_parts_join_to_the_whole(tmp_path, path):
    assert_parts_join_to_the_whole(path, tmp_path)


@pytest.mark.quick_cases("tracelens-falcon-mi300/image_detection__1016002.json.gz")
@pytest.mark.parametrize("path", a_sample(CHOSEN, 3, seed=5), ids=of_file)
def test_three_readings_agree(tmp_path, monkeypatch, path):
    assert_three_readings_agree(path, tmp_path, monkeypatch)


@pytest.mark.slow
def test_from_kinetos_own_files_events_are_picked():
    rewritten = ("vllm", "tracelens")  # by other tools, as compact JSON
    written_by_kineto = [p for p in CHOSEN if not any(s in str(p) for s in rewritten) and p.stat().st_size > 40_000]
    assert written_by_kineto
    assert all(share_picked(path) > 0.99 for path in written_by_kineto)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "gz"),
    [
        ("dlrm-v100-w8/worker0_step_12.1694128201545.pt.trace.json.gz", False),
        ("moe-b200-r0of2/ref_ep_moe_fwd.json.gz", True),
    ],
    ids=["plain", "gz"],
)
def test_real_traces_cut_at_150_places(tmp_path, capsys, source, gz):
    packed = (TRACES / source).read_bytes()
    text = gzip.decompress(packed)
    content = packed if gz else text
    document, chance = json.loads(text), random.Random(11)
    whole = oracle_tables(text)
    order = [e for e in document["traceEvents"] if e]
    before = [0]  # activities among the first n events
    for event in order:
        before.append(
            before[-1] + (event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
        )
    path = tmp_path / "rank0.json"
    for number, length in enumerate(sorted(chance.sample(range(len(content) - 9), 150))):
        path.write_bytes(content[:length])
        with pytest.raises(TraceError):
            read(path)
        try:
            found = read(path, keep_damaged=True)
        except TraceError as err:
            assert "0 events" in str(err) or isinstance(err, NotATrace)  # noqa: PT017
            continue
        told = trace_file(path, found)
        shift = whole["header"][-1] - found.header.base_ns
        columns = ["name", "start_ns", "dur_ns", "stream"]
        rows = [(name, start + shift, dur, stream) for name, start, dur, stream in
                told.activities[columns].itertuples(index=False)]  # fmt: skip
        assert rows == [(r[3], r[4], r[6], r[1]) for r in whole["activities"][: before[good_events(found)]]]
        if number % 50 == 0:
            assert_marked(capsys, path)


def assert_marked(capsys, path: Path) -> None:
    """On the command line: no number without `partial`, and the damage said once."""
    assert main(["breakdown", str(path)]) == 1
    assert capsys.readouterr().out == ""
    assert main(["breakdown", "--keep-going", "--format", "csv", str(path)]) == 1
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert len([line for line in captured.err.splitlines() if "all good" in line]) == 1
    rows = list(csv.DictReader(io.StringIO(captured.out)))
    assert all(row["partial"] == "True" for row in rows)
