"""Runs too large for one process: the same tables, rank by rank; and the processes that make them."""

import operator
import os
import shutil
from pathlib import Path

import pytest
from builders import Collective, write_run

import commtrace.analysis.reading.pool
from commtrace.analysis.catalog import CATALOG, InputKind
from commtrace.analysis.errors import DamagedTrace, NothingMeasured, TooLarge
from commtrace.analysis.reading.crew import LocalCrew
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
RUNS = [
    ROOT / "traces" / "resnet18-ddp-w2",
    *(DATA / name for name in ("gloo-collectives", "nccl-straggler", "nccl-pipeline", "nccl-two-hosts", "nccl-hang")),
    *(DATA / name for name in ("nccl-periodic", "nccl-rooted")),
]
TABLES = [entry.name for entry in CATALOG.values() if entry.of is InputKind.run]


@pytest.fixture
def spread(monkeypatch) -> None:
    """Every run of several files is spread, however small it is."""
    monkeypatch.setattr(commtrace.analysis.reading.pool, "SPREAD_FROM_BYTES", 0)


def tables_of(run: Path, **options) -> dict[str, str]:
    """Every table of a run as CSV, or why it has none; and its summary."""
    found = analyse(run, **options)
    tables: dict[str, str] = {"summary": found.summary(everything=True), "notes": "\n".join(found.run.notes)}
    for name in TABLES:
        try:
            tables[name] = as_csv(name, found.table(name))
        except NothingMeasured as err:
            tables[name] = str(err)
    return tables


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_table_is_the_same(run, monkeypatch):
    whole = tables_of(run, workers=1)
    monkeypatch.setattr(commtrace.analysis.reading.pool, "SPREAD_FROM_BYTES", 0)
    assert tables_of(run, workers=1) == whole


def test_whoever_makes_them_and_from_whatever_file(tmp_path, monkeypatch):
    run = DATA / "nccl-straggler"
    assert main(["pack", "--output", str(tmp_path / run.name), str(run)]) == 0
    whole = tables_of(tmp_path / run.name, workers=1)
    monkeypatch.setattr(commtrace.analysis.reading.pool, "SPREAD_FROM_BYTES", 0)
    assert tables_of(tmp_path / run.name, workers=2) == whole
    named = tables_of(tmp_path / run.name, workers=2, comm_names=["my_.*"])
    monkeypatch.setattr(commtrace.analysis.reading.pool, "SPREAD_FROM_BYTES", 1 << 60)
    assert named == tables_of(tmp_path / run.name, workers=2, comm_names=["my_.*"])


@pytest.mark.usefixtures("spread")
def test_tables_of_all_ranks_are_never_in_one_process_unless_asked_for():
    found = analyse(DATA / "nccl-straggler", workers=1)
    for name in ("breakdown", "breakdown_steps", "verdicts", "lateness", "ranks", "gpus", "bandwidth", "hangs"):
        assert len(found.table(name)) or name == "hangs"
    assert found.summary(everything=False)
    assert found.run.spread is not None
    assert "whole" not in vars(found.run.spread)
    assert len(found.run.activities) == sum(ran.activities for ran in found.run.tables.ran)
    assert "whole" in vars(found.run.spread)


def test_damage_costs_the_same(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", 3, [Collective((0, 10, 20))] * 5)
    damaged = run / "node_1.0001.pt.trace.json.gz"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    whole = tables_of(run, keep_going=True, workers=1)
    with pytest.raises(DamagedTrace) as of_whole:
        analyse(run, workers=1)
    monkeypatch.setattr(commtrace.analysis.reading.pool, "SPREAD_FROM_BYTES", 0)
    assert tables_of(run, keep_going=True, workers=1) == whole
    with pytest.raises(DamagedTrace) as of_spread:
        analyse(run, workers=2)
    assert str(of_spread.value) == str(of_whole.value)


@pytest.mark.usefixtures("spread")
def test_a_run_that_does_not_fit_says_so(tmp_path):
    run = write_run(tmp_path / "run", 2, [Collective((0, 10))] * 50)
    with pytest.raises(TooLarge, match=r"and 0\.0001 GB may be used here"):
        analyse(run, memory_gb=1e-4, workers=1)


@pytest.mark.usefixtures("spread")
def test_files_may_be_gone_once_they_are_read(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(DATA / "nccl-straggler", run)
    found = analyse(run, workers=1)
    shutil.rmtree(run)
    assert as_csv("breakdown", found.breakdown) == as_csv("breakdown", analyse(DATA / "nccl-straggler").breakdown)


def calls(count: int) -> list[tuple[str]]:
    """Arguments of `eval`, which every process knows: squares, in varying times; 13 costs a worker its life."""
    dies = f"__import__('os')._exit(1) if __import__('os').getpid() != {os.getpid()} else 169"
    waits = "__import__('time').sleep"
    return [(dies,) if n == 13 else (f"{waits}({n % 3 / 1000}) or {n} ** 2",) for n in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_order_and_a_lost_process_costs_none(workers):
    with LocalCrew(workers) as crew:
        assert list(crew.results(eval, calls(40))) == [n * n for n in range(40)]
        assert list(crew.results(eval, ())) == []
        assert list(crew.results(eval, calls(3))) == [0, 1, 4]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_where_its_result_would_be(workers):
    with LocalCrew(workers) as crew:
        results = crew.results(eval, [("9",), ("int('x')",), ("25",)])
        assert next(results) == 9
        with pytest.raises(ValueError, match="invalid literal"):
            next(results)


def test_calls_and_results_may_be_larger_than_a_pipe():
    given = bytes(range(256)) * 4096
    with LocalCrew(3) as crew:
        found = list(crew.results(operator.mul, ((given, n) for n in range(1, 9))))
    assert [len(one) for one in found] == [n * len(given) for n in range(1, 9)]


def test_no_process_is_left_behind(process_ids):
    with LocalCrew(2) as crew:
        results = crew.results(eval, calls(10))
        assert next(results) == 0
        assert len(process_ids()) == 2
    assert not process_ids()


@pytest.fixture
def process_ids():
    """A function that tells the children of this process."""

    def children() -> set[str]:
        own = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
        return set(Path(own).read_text(encoding="ascii").split())

    before = children()
    return lambda: children() - before
