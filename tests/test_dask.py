"""Runs read by workers of dask.distributed: in this process, and in processes that share no folder and may be lost."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

import commtrace.analysis.reading.dask_executor
from commtrace.analysis.errors import ClusterError, DamagedTrace
from commtrace.analysis.reading.dask_executor import DaskExecutor, dask_client
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import analyse
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


@pytest.fixture
def cluster(tmp_path) -> Iterator[tuple[Path, list["subprocess.Popen[bytes]"]]]:
    """The file of a scheduler, and its two workers, each in a folder of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        folder = tmp_path / f"{name}-{len(started)}"
        folder.mkdir()
        command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *arguments, "--no-dashboard"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": str(ROOT)}
            )
        started.append(process)
        return process

    file = tmp_path / "scheduler.json"
    start("scheduler", "--port", "0", "--scheduler-file", str(file))
    for _ in range(2):
        start("worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny")
    try:
        with Client(scheduler_file=str(file), timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
        yield file, started[1:]
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_workers_elsewhere_one_of_which_is_lost(cluster, tmp_path, monkeypatch):
    scheduler, workers = cluster
    run = DATA / "nccl-straggler"
    command = [sys.executable, "-m", "commtrace", "breakdown", "--no-cache", "-f", "csv", "--dask", str(scheduler)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, run.name], cwd=run.parent, env=env, stdout=subprocess.PIPE)
    time.sleep(4.0)
    workers[0].kill()
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert told.decode() == as_csv("breakdown", analyse(run).breakdown)
    again = subprocess.run([*command, run.name], cwd=run.parent, env=env, capture_output=True, check=True)
    assert again.stdout == told
