"""The small runs in tests/data, and the tables that were found of them before: `--update-golden` writes those anew."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import sys
from pathlib import Path

import pytest
from reading_checks import assert_parts_join_to_the_whole, assert_three_readings_agree

from commtrace import Analysis, analyse
from commtrace.analysis.render import as_csv

DATA = Path(__file__).resolve().parents[1] / "data"
RUNS = sorted(path.name for path in DATA.iterdir() if path.name.startswith(("gloo-", "nccl-")))
FILES = sorted(path for run in RUNS for path in (DATA / run).glob("*.json.gz"))
TABLES = (
    "breakdown", "breakdown_steps", "calls", "collectives", "participation", "bandwidth", "ranks", "lateness", "clocks",
    "hangs", "verdicts", "kernels", "operators",
)  # fmt: skip


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest) -> tuple[str, Analysis]:
    return request.param, analyse(DATA / request.param, details=True, workers=1, cache=False)


@pytest.mark.slow_cases(
    "gloo-training-verdicts",
    "nccl-pipeline-verdicts",
    "nccl-rooted-verdicts",
    "nccl-straggler-verdicts",
    "nccl-two-hosts-verdicts",
)
@pytest.mark.each
@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_what_it_was(run: tuple[str, Analysis], table: str, request: pytest.FixtureRequest) -> None:
    name, found = run
    text = as_csv(table, found.table(table))
    path = DATA / "golden" / name / f"{table}.csv"
    if request.config.getoption("update_golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    rows, wanted = (list(csv.reader(io.StringIO(each))) for each in (text, path.read_text(encoding="utf-8")))
    assert rows[0] == wanted[0]
    assert len(rows) == len(wanted)
    for number, (row, other) in enumerate(zip(rows[1:], wanted[1:], strict=True)):
        differing = {key: (a, b) for key, a, b in zip(rows[0], row, other, strict=True) if not same(a, b)}
        assert not differing, f"row {number}"


def same(cell: str, other: str) -> bool:
    """Text and whole numbers to the letter; fractions but for their last digits, in which processors differ."""
    if cell == other or cell.lstrip("-").isdigit():
        return cell == other
    try:
        return float(cell) == pytest.approx(float(other), rel=1e-9)
    except ValueError:
        return False


def test_what_counts_as_the_same() -> None:
    assert same("0.30000000000000004", "0.3")
    assert same("rank 1", "rank 1")
    for cell, other in (
        ("3", "4"),
        ("100000000000", "100000000001"),
        ("0.3", "0.31"),
        ("", "0"),
        ("a", "b"),
        ("1", ""),
    ):
        assert not same(cell, other)
        assert not same(other, cell)


def test_every_table_is_written_down_for_every_run() -> None:
    written = {(path.parent.name, path.stem) for path in (DATA / "golden").rglob("*.csv")}
    assert written == {(name, table) for name in RUNS for table in TABLES}


@pytest.mark.parametrize("path", FILES[::5], ids=lambda path: f"{path.parent.name}/{path.name[-32:]}")
def test_files_are_read_alike_in_every_way(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_three_readings_agree(path, tmp_path, monkeypatch)
    monkeypatch.undo()
    assert_parts_join_to_the_whole(path, tmp_path)


def test_generated_traces_are_what_the_simulator_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("make", DATA / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    monkeypatch.setattr(make, "ROOT", tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    make.generated()
    written = {(p.parent.name, p.name): gzip.decompress(p.read_bytes()) for p in tmp_path.rglob("*.gz")}
    kept = [path for path in DATA.glob("*/*.json.gz") if not path.parent.name.startswith("gloo-")]
    assert written == {(p.parent.name, p.name): gzip.decompress(p.read_bytes()) for p in kept}


@pytest.mark.slow
def test_conservation() -> None:
    for name in RUNS:
        for row in analyse(DATA / name, workers=1, cache=False).breakdown.to_dict("records"):
            parts = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
            assert sum(row[part] for part in parts) == row["window_ns"]
