"""Runs read by workers of dask.distributed in this process; tests/test_dask_processes.py has processes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client

import commtrace.analysis.reading.dask_executor
from commtrace.analysis.errors import ClusterError, DamagedTrace
from commtrace.analysis.reading.dask_executor import DaskExecutor, dask_client
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import OpenRun, analyse
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
SHOWN = ("breakdown", "breakdown_steps", "participation", "lateness", "ranks", "bandwidth", "gpus", "kernels")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None) as found:
        yield found


@pytest.mark.parametrize("run", ["nccl-straggler", "gloo-collectives"])
def test_tables_are_the_same(client, run):
    whole, spread = analyse(DATA / run), analyse(DATA / run, client=client)
    assert spread.run.spread is not None
    for name in SHOWN:
        assert as_csv(name, spread.table(name)) == as_csv(name, whole.table(name)), name
    assert spread.summary(everything=True) == whole.summary(everything=True)


def test_what_needs_all_ranks_in_one_place_is_there_too(client):
    whole, spread = (analyse(DATA / "nccl-straggler", details=True, **more) for more in ({}, {"client": client}))
    assert as_csv("replay_steps", spread.replay_steps) == as_csv("replay_steps", whole.replay_steps)


def test_damage_is_said_as_ever(client, tmp_path):
    for path in (DATA / "nccl-straggler").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damaged = sorted(tmp_path.glob("*.gz"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-300])
    with pytest.raises(DamagedTrace) as told:
        analyse(tmp_path, client=client)
    assert str(damaged) in str(told.value)
    assert analyse(tmp_path, client=client, keep_going=True).run.partial_ranks == [1]


def test_another_version_on_a_worker_is_refused(client, monkeypatch):
    module = commtrace.analysis.reading.dask_executor
    monkeypatch.setattr(module, "version", lambda: "0.0.1")
    here = module._versions()
    monkeypatch.undo()
    monkeypatch.setattr(
        commtrace.analysis.reading.dask_executor,
        "_versions",
        _in_turn(here, commtrace.analysis.reading.dask_executor._versions()),
    )
    with pytest.raises(ClusterError, match=r"has commtrace .* instead of 0\.0\.1; install the same everywhere"):
        DaskExecutor(client)


def _in_turn(first, other):
    """A function that gives the first once, and then the other."""
    given = iter([first])
    return lambda: next(given, other)


def test_the_cluster_of_this_machine_needs_no_dask_and_opens_no_port():
    code = "import sys; from commtrace.cli import main; main(sys.argv[1:]); print('distributed' in sys.modules)"
    command = [
        "breakdown",
        "--no-cache",
        "-f",
        "csv",
        "--dask",
        "local",
        "--workers",
        "2",
        str(DATA / "nccl-straggler"),
    ]
    # Any call that would bind a socket is an error.
    guard = "import socket; socket.socket.bind = socket.create_server = None; "
    command = [sys.executable, "-c", guard + code, *command, str(DATA / "nccl-straggler")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.decode() == as_csv("breakdown", analyse(DATA / "nccl-straggler").breakdown) + "False\n"


@pytest.mark.parametrize(
    ("where", "told"),
    [("nowhere", "is neither 'local', nor the address"), ("tcp://127.0.0.1:1", "no scheduler can be reached there")],
)
def test_a_scheduler_that_is_not_there(capsys, monkeypatch, where, told):
    monkeypatch.setattr(commtrace.analysis.reading.dask_executor, "_CONNECTING_S", 1)
    dask_client.cache_clear()
    assert main(["breakdown", "--dask", where, str(DATA / "nccl-straggler")]) == 1
    assert told in capsys.readouterr().err


def test_a_scheduler_without_workers():
    with Client(processes=False, n_workers=0, dashboard_address=":0") as alone, pytest.raises(ClusterError) as told:
        DaskExecutor(alone)
    assert "has no workers; start some" in str(told.value)


def test_a_client_that_was_closed():
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as closed:
        executor = DaskExecutor(closed)
    with pytest.raises(ClusterError, match="the connection to the scheduler is lost"):
        executor.submit(abs, -1)
    with pytest.raises(ClusterError, match="the connection to the scheduler is lost"):
        _ = executor.at_once


def test_small_runs_say_as_much_as_without_dask(client):
    """What the first screen reads more of small runs, workers read as well."""
    options = ReadOptions(details_if_small=True)
    on_dask = replace(options, dask="tcp://given:1")
    with OpenRun(DATA / "nccl-straggler", on_dask, executor=DaskExecutor(client)) as spread:
        told = spread.analysis().summary(everything=True)
    with OpenRun(DATA / "nccl-straggler", options) as whole:
        assert told == whole.analysis().summary(everything=True)


def test_the_log_names_the_worker_that_is_waited_for(client, monkeypatch, caplog):
    monkeypatch.setattr(commtrace.analysis.reading.dask_executor, "_PATIENCE_S", 0.05)
    with caplog.at_level("INFO", logger="commtrace.reading"):
        DaskExecutor(client).submit(time.sleep, 0.3).result()
    named = [f"Dask: worker {address} has not answered" for address in client.scheduler_info()["workers"]]
    assert any(message in caplog.text for message in named)
