"""What `analyse`, `compare` and `analyse_sweep` are told about reading, and what their tables say of themselves."""

import copy
import json
import pickle
from pathlib import Path

import pandas as pd
import pytest
from builders import MS, Collective, traces_of, write_run
from default_sizes import default_sizes
from pandas.testing import assert_frame_equal
from sweep_builders import Cell, write_sweep

import commtrace.analysis.reading.cache
import commtrace.analysis.reading.executor
from commtrace import analyse, analyse_sweep, compare
from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.errors import DamagedTrace
from commtrace.cli import main


@pytest.fixture
def run_dir(tmp_path):
    return write_run(tmp_path / "run", 3, [Collective((0, 0, 0))])


@pytest.fixture
def sweep(tmp_path):
    traces = [t.step(0, 0, 90 * MS) for t in traces_of(2, [Collective((0, 20 * MS), 30 * MS)])]
    return write_sweep(tmp_path / "sweep", [Cell(1, epoch_s=10), Cell(2, epoch_s=6, traced=traces)])


@pytest.fixture
def started(monkeypatch) -> list[int]:
    """The pid of every process that was started to read, however little there is."""
    begun: list[int] = []
    start = commtrace.analysis.reading.executor.start_worker

    def noted(others):
        worker = start(others)
        begun.append(worker.pid)
        return worker

    default_sizes(monkeypatch, process_bytes=0)
    monkeypatch.setattr(commtrace.analysis.reading.executor, "start_worker", noted)
    return begun


@pytest.fixture
def reads(monkeypatch) -> list[Path]:
    """Every file that is read and then kept, however small it is."""
    done: list[Path] = []
    store = commtrace.analysis.reading.cache._store

    def noted(place, key, found, path):
        done.append(path)
        store(place, key, found, path)

    default_sizes(monkeypatch, cache_bytes=0)
    monkeypatch.setattr(commtrace.analysis.reading.cache, "_store", noted)
    return done


@pytest.mark.slow
def test_as_many_processes_read_as_asked_for(run_dir, started):
    alone = analyse(run_dir, workers=1)
    assert not started
    together = analyse(run_dir, workers=2)
    assert len(started) == 2
    assert_frame_equal(together.calls, alone.calls)
    assert_frame_equal(together.breakdown, alone.breakdown)


@pytest.mark.slow
def test_else_one_per_core(run_dir, started, monkeypatch):
    monkeypatch.setattr(commtrace.analysis.reading.pool, "cores", lambda: 3)
    analyse(run_dir)
    assert len(started) == 3


def test_nothing_is_kept_unless_asked_for(run_dir, reads):
    before = sorted(run_dir.iterdir())
    analyse(run_dir)
    assert not reads
    assert sorted(run_dir.iterdir()) == before


@pytest.mark.slow_cases("in a folder")
@pytest.mark.parametrize("beside", [True, False], ids=["beside the traces", "in a folder"])
def test_what_was_read_is_kept_for_the_next_time(run_dir, tmp_path, reads, beside):
    cache = True if beside else str(tmp_path / "kept")
    first = analyse(run_dir, cache=cache)
    assert len(reads) == 3
    assert_frame_equal(analyse(run_dir, cache=cache).collectives, first.collectives)
    assert len(reads) == 3
    place = run_dir / commtrace.analysis.reading.cache.FOLDER if beside else tmp_path / "kept"
    assert len(list(place.iterdir())) == 3


@pytest.mark.slow
def test_both_sides_of_a_comparison_are_read_so(tmp_path, reads, started):
    a, b = (write_run(tmp_path / name, 2, [Collective((0, 0))]) for name in "ab")
    for _ in range(2):
        compare(a, b, workers=1, cache=tmp_path / "kept")
    assert len(reads) == 4
    assert not started
    compare(a, b, workers=2)
    assert len(started) == 4


def test_damage_is_an_error_unless_it_may_be_left_out(run_dir):
    damaged = run_dir / "node_1.0001.pt.trace.json.gz"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(DamagedTrace):
        analyse(run_dir)
    assert analyse(run_dir, keep_going=True).run.partial_ranks == [1]
    both = compare(run_dir, run_dir, keep_going=True)
    assert [analysis.run.partial_ranks for analysis in (*both.a, *both.b)] == [[1], [1]]


@pytest.mark.slow
def test_cells_of_a_sweep_are_read_so(sweep, tmp_path, reads, started):
    plain = analyse_sweep(sweep, workers=1).subtraction
    assert not started
    assert not reads
    for _ in range(2):
        assert_frame_equal(analyse_sweep(sweep, workers=1, cache=tmp_path / "kept").subtraction, plain)
    assert len(reads) == 2
    assert_frame_equal(analyse_sweep(sweep, workers=2).subtraction, plain)
    assert len(started) == 2


@pytest.mark.slow
def test_and_by_the_command(capsys, sweep, reads, started):
    def shown(*options):
        assert main(["table", "subtraction", str(sweep), *options]) == 0
        return capsys.readouterr().out

    plain = shown("--workers", "1", "--no-cache")
    assert "subtracted" in plain
    assert not reads
    for _ in range(2):
        assert shown("--workers", "1") == plain
    assert len(reads) == 2
    assert shown("--workers", "1", "--cache", str(sweep / "kept")) == plain
    assert len(reads) == 4
    assert not started
    assert shown("--workers", "2", "--no-cache") == plain
    assert len(started) == 2


# What tables say of themselves


def meanings(name: str) -> dict[str, str]:
    return {column: meaning for column, (_, meaning) in CATALOG[name].schema.columns.items()}


def says(table: pd.DataFrame, name: str) -> bool:
    return table.attrs == {"table": name, "columns": meanings(name)}


@pytest.mark.slow
def test_every_table_of_a_run_says_what_its_columns_mean() -> None:
    result = analyse(Path(__file__).parent.parent / "data/nccl-straggler", details=True)
    names = [entry.name for entry in CATALOG.values() if entry.of is InputKind.run]
    assert [name for name in names if not says(result.table(name), name)] == []
    assert says(result.run.activities, "activities")
    assert says(result.over_time(10**9), "bandwidth_times")
    assert says(result.predict({"without_straggler": 1}), "predictions")
    assert not result.matches.attrs  # no table of the catalog, nor called like the one it was made from


@pytest.mark.slow
def test_and_so_do_tables_of_several_runs(run_dir, sweep) -> None:
    both = compare(run_dir, run_dir)
    assert says(both.comparison, "comparison")
    assert says(both.changed_kernels, "changed_kernels")
    found = analyse_sweep(sweep)
    for name in ("timings", "scaling", "subtraction"):
        assert says(getattr(found, name), name)


def test_meanings_outlive_what_pandas_does_with_tables(run_dir) -> None:
    result = analyse(run_dir)
    table = result.breakdown
    derived = (table[table["rank"] > 0], table.sort_values("idle_ns"), pd.concat([table, table]), table.copy())
    for one in (*derived, pickle.loads(pickle.dumps(table))):
        assert says(one, "breakdown")
        assert copy.deepcopy(one.attrs)["columns"] is one.attrs["columns"]  # which pandas does in every operation
    assert len(table.merge(result.ranks, on="rank")) == len(table)
    assert pd.concat([table, result.ranks]).attrs == {}
    assert json.loads(json.dumps(table.attrs)) == table.attrs  # as pandas writes them to Parquet


@pytest.mark.slow
def test_who_changes_what_one_table_says_changes_no_other(run_dir) -> None:
    result = analyse(run_dir)
    result.breakdown.attrs["table"] = "mine"
    assert says(analyse(run_dir).breakdown, "breakdown")
    with pytest.raises(TypeError, match="cannot be changed"):
        result.breakdown.attrs["columns"]["rank"] = "mine"
    with pytest.raises(TypeError, match="cannot be changed"):
        result.breakdown.attrs["columns"].update(rank="mine")


def test_a_row_of_participation_says_what_it_is_of(run_dir) -> None:
    result = analyse(run_dir)
    collectives = {row["collective_id"]: row for row in result.collectives.to_dict("records")}
    calls = {row["call_id"]: row for row in result.calls.to_dict("records")}
    assert len(result.participation) == len(calls)
    for row in result.participation.to_dict("records"):
        for column in ("collective", "process_group", "size_bytes"):
            assert str(row[column]) == str(collectives[row["collective_id"]][column])
        assert str(row["step"]) == str(calls[row["call_id"]]["step"])
