"""Runs too large for one process: the same tables, rank by rank; and the processes that make them."""

import logging
import operator
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from builders import Collective, write_bytes, write_run

from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.errors import DamagedTrace, NothingMeasured, TooLarge
from commtrace.analysis.reading import executor
from commtrace.analysis.reading.executor import CALLS_PER_WORKER, Processes, results
from commtrace.analysis.reading.pool import executor_of_ranks
from commtrace.analysis.reading.spawn import start_worker
from commtrace.analysis.reading.trace_input import TraceInput
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import USUAL_SIZES, ReadSizes
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import analyse, analyse_with
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
RUNS = [
    ROOT / "traces" / "resnet18-ddp-w2",
    *(DATA / name for name in ("gloo-collectives", "nccl-straggler", "nccl-pipeline", "nccl-two-hosts", "nccl-hang")),
    *(DATA / name for name in ("nccl-periodic", "nccl-rooted")),
]
TABLES = [entry.name for entry in CATALOG.values() if entry.of is InputKind.run]


SPREAD = ReadSizes(ranks_bytes=0)
"""Every run of several files is spread, however small it is."""


def tables_of(run: Path, **options) -> dict[str, str]:
    """Every table of a run as CSV, or why it has none; and its summary."""
    found = analyse_with(run, ReadOptions(**options))
    tables: dict[str, str] = {"summary": found.summary(everything=True), "notes": "\n".join(found.run.notes)}
    for name in TABLES:
        try:
            tables[name] = as_csv(name, found.table(name))
        except NothingMeasured as err:
            tables[name] = str(err)
    return tables


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_table_is_the_same(run):
    assert tables_of(run, workers=1, sizes=SPREAD) == tables_of(run, workers=1)


@pytest.mark.slow
def test_every_table_is_the_same_with_what_cpus_did():
    run = DATA / "nccl-rooted"
    elsewhere = tables_of(run, details=True, workers=2, dask="local")  # so all that is given and made travels
    assert elsewhere == tables_of(run, details=True, workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_what_devices_did_is_the_same_wherever_it_is_found(run):
    spread = analyse_with(run, ReadOptions(workers=1, sizes=SPREAD))
    early = None if spread.early is None else spread.early._replace(devices=None)
    ways = [analyse(run, workers=1), spread, replace(spread, early=early)]  # here, while reading, rank by rank
    for name in ("breakdown", "breakdown_steps", "participation", "account_waits"):
        assert len({as_csv(name, found.table(name)) for found in ways}) == 1, name


@pytest.mark.slow
def test_whoever_makes_them_and_from_whatever_file(tmp_path):
    run = DATA / "nccl-straggler"
    assert main(["pack", "--output", str(tmp_path / run.name), str(run)]) == 0
    for comm_names in ((), ("my_.*",)):
        whole = tables_of(tmp_path / run.name, workers=1, comm_names=comm_names)
        assert tables_of(tmp_path / run.name, workers=2, comm_names=comm_names, sizes=SPREAD) == whole


@pytest.mark.slow
def test_tables_of_all_ranks_are_never_in_one_process_unless_asked_for():
    found = analyse_with(DATA / "nccl-straggler", ReadOptions(workers=1, sizes=SPREAD))
    for name in ("breakdown", "breakdown_steps", "verdicts", "lateness", "ranks", "gpus", "kernels", "bandwidth"):
        assert len(found.table(name))
    for name in ("hangs", "copies"):
        assert not len(found.table(name))
    assert found.summary(everything=False)
    assert found.run.spread is not None
    assert "whole" not in vars(found.run.spread)
    assert len(found.run.activities) == sum(ran.activities for ran in found.run.tables.ran)
    assert "whole" in vars(found.run.spread)


@pytest.mark.parametrize(
    ("files", "each_bytes", "workers", "at_work"),
    [
        (4, 999, 8, None),  # less than four processes are worth
        (8, 500, 8, 4),
        (4, 1_000, 8, 4),
        (4, 9_000, 8, 4),  # of which each has a file
        (4, 9_000, 3, 3),
        (4, 9_000, 1, 0),  # this process, rank by rank
        (1, 9_000, 8, None),  # which has nobody else's tables to make
    ],
)
def test_processes_grow_with_what_is_to_be_read(tmp_path, files, each_bytes, workers, at_work):
    traces = [TraceInput(write_bytes(tmp_path / f"{number}.json", b" " * each_bytes)) for number in range(files)]
    found = executor_of_ranks(traces, ReadOptions(workers=workers, sizes=ReadSizes(ranks_bytes=1_000)))
    assert (None if found is None else found.at_once // CALLS_PER_WORKER) == at_work


@pytest.mark.slow
def test_damage_costs_the_same(tmp_path):
    run = write_run(tmp_path / "run", 3, [Collective((0, 10, 20))] * 5)
    damaged = run / "node_1.0001.pt.trace.json.gz"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    whole = tables_of(run, keep_going=True, workers=1)
    with pytest.raises(DamagedTrace) as of_whole:
        analyse(run, workers=1)
    assert tables_of(run, keep_going=True, workers=1, sizes=SPREAD) == whole
    with pytest.raises(DamagedTrace) as of_spread:
        analyse_with(run, ReadOptions(workers=2, sizes=SPREAD))
    assert str(of_spread.value) == str(of_whole.value)


def test_a_run_that_does_not_fit_says_so(tmp_path):
    run = write_run(tmp_path / "run", 2, [Collective((0, 10))] * 50)
    with pytest.raises(TooLarge, match=r"and 0\.0001 GB may be used here"):
        analyse_with(run, ReadOptions(memory_gb=1e-4, workers=1, sizes=SPREAD))


@pytest.mark.slow
def test_files_may_be_gone_once_they_are_read(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(DATA / "nccl-straggler", run)
    found = analyse_with(run, ReadOptions(workers=1, sizes=SPREAD))
    shutil.rmtree(run)
    assert as_csv("breakdown", found.breakdown) == as_csv("breakdown", analyse(DATA / "nccl-straggler").breakdown)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [USUAL_SIZES, SPREAD], ids=["here", "rank by rank"])
def test_without_files_it_is_known_how_late_ranks_were_but_not_what_their_cpus_did(tmp_path, sizes):
    run = tmp_path / "run"
    shutil.copytree(DATA / "nccl-two-hosts", run)
    found, whole = (analyse_with(run, ReadOptions(workers=1, sizes=sizes)) for _ in range(2))
    as_it_was = whole.late_work
    shutil.rmtree(run)
    for kinds in (["total"], ["kernel"]):
        left, of_whole = (table[table["kind"].isin(kinds)] for table in (found.late_work, as_it_was))
        assert len(left)
        assert as_csv("late_work", left) == as_csv("late_work", of_whole)
    assert set(found.late_work["kind"]) < set(as_it_was["kind"])


@pytest.mark.slow
def test_the_processes_that_read_make_the_tables(monkeypatch):
    begun = []
    monkeypatch.setattr(executor, "start_worker", lambda others: begun.append(1) or start_worker(others))
    found = analyse_with(DATA / "nccl-straggler", ReadOptions(workers=2, sizes=SPREAD))
    assert len(found.idle)
    assert len(begun) == 2


def calls(count: int) -> list[tuple[str]]:
    """Arguments of `eval`, which every process knows: squares, in varying times; 13 costs a worker its life."""
    dies = f"__import__('os')._exit(1) if __import__('os').getpid() != {os.getpid()} else 169"
    waits = "__import__('time').sleep"
    return [(dies,) if n == 13 else (f"{waits}({n % 3 / 1000}) or {n} ** 2",) for n in range(count)]


@pytest.mark.parametrize("count", [0, 2, 5])
def test_results_come_in_order_and_a_lost_process_costs_none(count):
    with Processes(count) as executor:
        assert list(results(executor, eval, calls(40))) == [n * n for n in range(40)]
        assert list(results(executor, eval, ())) == []
        assert list(results(executor, eval, calls(3))) == [0, 1, 4]


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("raised", [ValueError("x"), TooLarge("x")])
def test_an_error_is_raised_where_its_result_would_be(count, raised):
    with Processes(count) as executor:
        found = results(executor, _raised_if_error, [(9,), (raised,), (25,)])
        assert next(found) == 9
        with pytest.raises(type(raised), match="x"):
            next(found)


def _raised_if_error(value):
    if isinstance(value, Exception):
        raise value
    return value


def test_what_cannot_travel_back_is_made_here():
    with Processes(2) as executor:
        (found, _) = results(executor, eval, [("lambda: 9",), ("5",)])
    assert found() == 9


@pytest.mark.parametrize("count", [0, 3])
def test_calls_and_results_may_be_larger_than_a_pipe(count):
    given = bytes(range(256)) * 4096
    with Processes(count) as executor:
        found = list(results(executor, operator.mul, ((given, n) for n in range(1, 9))))
    assert [len(one) for one in found] == [n * len(given) for n in range(1, 9)]


def test_no_more_calls_are_taken_than_are_worth_it():
    taken = []
    with Processes(2) as executor:
        found = results(executor, eval, ((f"{taken.append(n) or n}",) for n in range(1000)))
        assert [next(found) for _ in range(10)] == list(range(10))
        assert len(taken) == 10 + executor.at_once


def test_no_process_is_left_behind(process_ids):
    with Processes(2) as executor:
        found = results(executor, eval, calls(10))
        assert next(found) == 0
        assert len(process_ids()) == 2
    assert not process_ids()


def test_work_that_nobody_wants_any_more_ends_at_once(process_ids):
    with Processes(2) as executor:
        found = results(executor, eval, [("0",), ("__import__('time').sleep(600)",)])
        assert next(found) == 0
        found.close()
        assert not process_ids()
        assert list(results(executor, eval, calls(3))) == [0, 1, 4]


def test_processes_that_died_while_nobody_needed_them_are_replaced(process_ids):
    with Processes(2) as executor:
        assert list(results(executor, eval, calls(3))) == [0, 1, 4]
        before = process_ids()
        os.kill(executor.workers[0].pid, signal.SIGKILL)
        os.waitid(os.P_PID, executor.workers[0].pid, os.WEXITED | os.WNOWAIT)
        assert list(results(executor, eval, calls(3))) == [0, 1, 4]
        assert not before & process_ids()
        assert len(process_ids()) == 2


@pytest.fixture
def process_ids():
    """A function that tells the children of this process."""

    def children() -> set[str]:
        own = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
        return set(Path(own).read_text(encoding="ascii").split())

    before = children()
    return lambda: children() - before


@pytest.mark.slow
def test_what_is_asked_for_is_found_in_one_visit_to_each_rank(caplog):
    run = DATA / "nccl-rooted"
    found = analyse_with(run, ReadOptions(details=True, workers=0, dask="local"))
    names = ("idle", "mfu", "syncs", "gpus", "shapes")  # not `kernels`, which rests on what ranks said of contention
    with caplog.at_level(logging.INFO, "commtrace.analysis"):
        found.want(*names)
        tables = {name: as_csv(name, found.table(name)) for name in names}
    assert caplog.messages.count("looking at what each rank did") == 1
    whole = analyse(run, details=True, workers=1)
    assert tables == {name: as_csv(name, whole.table(name)) for name in names}


@pytest.mark.slow
def test_what_cannot_be_made_says_so_only_to_who_asks(caplog):
    found = analyse_with(DATA / "nccl-rooted", ReadOptions(workers=1, sizes=SPREAD))
    found.want("mfu", "copies")
    assert len(found.table("copies")) == len(analyse(DATA / "nccl-rooted", workers=1).table("copies"))
    for _ in range(2):
        with pytest.raises(NothingMeasured, match="without operators"):
            found.table("mfu")


@pytest.mark.slow
def test_a_limit_on_memory_decides_where_tables_are_made_and_not_what_is_read():
    run = DATA / "nccl-straggler"
    json_bytes = 15 * sum(path.stat().st_size for path in run.glob("*.pt.trace.json.gz"))
    tight, ample = (
        analyse_with(run, ReadOptions(details=True, workers=1, memory_gb=4e-9 * json_bytes * times))
        for times in (0.9, 99)
    )
    assert tight.run.spread is not None
    assert ample.run.spread is None
    assert as_csv("idle", tight.idle) == as_csv("idle", ample.idle)
    assert tight.summary() == ample.summary()
