"""Runs read by workers of dask.distributed in this process; tests/test_dask_processes.py has processes."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client

import commtrace.analysis.reading.dask_executor
from commtrace.analysis.errors import ClusterError, DamagedTrace
from commtrace.analysis.reading import versions
from commtrace.analysis.reading.dask_executor import DaskExecutor, dask_client
from commtrace.analysis.reading.executor import Processes
from commtrace.analysis.reading.pool import Reading
from commtrace.analysis.reading.trace_input import TraceInput
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import OpenRun, analyse
from commtrace.analysis.results.run_reading import made_elsewhere, read_for_run
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
SHOWN = ("breakdown", "breakdown_steps", "participation", "lateness", "ranks", "bandwidth", "gpus", "kernels")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0") as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("run", ["nccl-straggler", "gloo-collectives"])
def test_tables_are_the_same(client, run):
    whole, spread = analyse(DATA / run), analyse(DATA / run, executor=client)
    assert spread.run.spread is not None
    for name in SHOWN:
        assert as_csv(name, spread.table(name)) == as_csv(name, whole.table(name)), name
    assert spread.summary(everything=True) == whole.summary(everything=True)


@pytest.mark.slow
def test_what_needs_all_ranks_in_one_place_is_there_too(client):
    whole, spread = (analyse(DATA / "nccl-straggler", details=True, **more) for more in ({}, {"executor": client}))
    assert as_csv("replay_steps", spread.replay_steps) == as_csv("replay_steps", whole.replay_steps)


@pytest.mark.slow
def test_damage_is_said_as_ever(client, tmp_path):
    for path in (DATA / "nccl-straggler").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damaged = sorted(tmp_path.glob("*.gz"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-300])
    with pytest.raises(DamagedTrace) as told:
        analyse(tmp_path, executor=client)
    assert str(damaged) in str(told.value)
    assert analyse(tmp_path, executor=client, keep_going=True).run.partial_ranks == [1]


def test_another_version_on_a_worker_is_refused(client, monkeypatch):
    here = versions.versions()
    monkeypatch.setattr(versions, "versions", _in_turn(here | {"commtrace": "0.0.1"}, here))
    with pytest.raises(ClusterError, match=r"has commtrace 0\.0\.1 instead of .*; install the same everywhere"):
        DaskExecutor(client)


def _in_turn(first, other):
    """A function that gives the first once, and then the other."""
    given = iter([first])
    return lambda: next(given, other)


@pytest.mark.slow
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


@pytest.mark.quick_cases("nowhere-is neither 'local', nor the address")
@pytest.mark.parametrize(
    ("where", "told"),
    [("nowhere", "is neither 'local', nor the address"), ("tcp://127.0.0.1:1", "no scheduler can be reached there")],
)
def test_a_scheduler_that_is_not_there(capsys, monkeypatch, where, told):
    monkeypatch.setattr(commtrace.analysis.reading.dask_executor, "_CONNECTING_S", 1)
    dask_client.cache_clear()
    assert main(["breakdown", "--dask", where, str(DATA / "nccl-straggler")]) == 1
    assert told in capsys.readouterr().err


def answering(bytes_sent: bytes) -> str:
    """The address of something that answers whoever connects with these bytes, and then says nothing more."""
    listening = socket.create_server(("127.0.0.1", 0))
    open_ones = []

    def serve():
        while True:
            open_ones.append(listening.accept()[0])
            open_ones[-1].sendall(bytes_sent)

    threading.Thread(target=serve, daemon=True).start()
    return f"tcp://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "no scheduler can be reached there: what is there has not answered for 0.3 s; is it running?"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers there is no scheduler of Dask"),
        ((1 << 60).to_bytes(8, "little"), "what answers there is no scheduler of Dask"),
    ],
    ids=["silent", "HTTP", "an exabyte"],
)
def test_an_address_of_something_else(capsys, monkeypatch, answer, told):
    monkeypatch.setattr(commtrace.analysis.reading.dask_executor, "_CONNECTING_S", 0.3)
    where = answering(answer)
    assert main(["breakdown", "--dask", where, str(DATA / "nccl-straggler")]) == 1
    assert capsys.readouterr().err.startswith(f"error: --dask {where}: {told}")


def test_the_address_of_a_worker(capsys):
    with Client(processes=False, n_workers=1, dashboard_address=":0", protocol="tcp") as client:
        [where] = client.scheduler_info()["workers"]
        assert main(["breakdown", "--dask", where, str(DATA / "nccl-straggler")]) == 1
    told = f"error: --dask {where}: what answers there is no scheduler of Dask, but a Worker; name the address that"
    assert capsys.readouterr().err.startswith(told)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[]", "has no address"),
        (b"5", "has no address"),
        (b"{}", "has no address"),
        (b'{"address": 8786}', "has no address"),
        (b'{"address"', "Input data was truncated"),
        (b"\xff\xfe\x00", "JSON is malformed"),
        (b"", "Input data was truncated"),
    ],
)
def test_a_file_that_no_scheduler_wrote(capsys, tmp_path, content, told):
    where = tmp_path / "scheduler.json"
    where.write_bytes(content)
    assert main(["breakdown", "--dask", str(where), str(DATA / "nccl-straggler")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: --dask {where}: is not the file of a scheduler: {told}")
    assert said.endswith("; name one that `dask scheduler --scheduler-file` wrote, or the scheduler's address\n")


class Answering:
    """A client of Dask whose only worker answers a question for its versions so."""

    status = "running"

    def __init__(self, answer):
        self.answer = answer

    def run(self, *_, **__):
        return {"tcp://10.0.0.1:4000": self.answer}


@pytest.mark.parametrize("answer", [None, ["2.0"], "2.0", 7, ModuleNotFoundError("No module named 'pandas'")])
def test_a_worker_that_does_not_say_its_versions(answer):
    with pytest.raises(ClusterError) as told:
        DaskExecutor(Answering(answer))
    why = answer if isinstance(answer, Exception) else f"it has {type(answer).__name__} for its versions"
    assert str(told.value).startswith(
        f"Dask: worker tcp://10.0.0.1:4000 cannot use commtrace: {why}; install commtrace"
    )


class Returning(Processes):
    """Does the work here, and returns what `change` makes of each result and of that of the call before."""

    def __init__(self, change):
        super().__init__(0)
        self.change, self.before = change, None

    def submit(self, function, *arguments, **_):
        def changed():
            result = function(*arguments)
            self.before, before = result, self.before
            return self.change(result, before)

        return super().submit(changed)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda part, before: None, "NoneType"),
        (lambda part, before: tuple(part), "tuple"),
        (lambda part, before: part.kept, "KeptFile"),
        (lambda part, before: part._replace(kept=None), "ReadPart"),
        (lambda part, before: before or part, r"what it read of .*\.gz"),
    ],
)
def test_a_worker_that_returns_something_else(change, told):
    traces = [TraceInput(path) for path in sorted((DATA / "nccl-straggler").glob("*.gz"))]
    reading = Reading(traces, ReadOptions(), Returning(change), [read_for_run] * len(traces))
    with pytest.raises(
        ClusterError, match=rf"^Dask: a worker was to read .*\.gz, and returned {told}; start the workers"
    ):
        list(made_elsewhere(reading, None))


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


@pytest.mark.slow
def test_the_first_screen_says_as_much_as_without_dask(client):
    """Workers read what CPUs did, too."""
    options = ReadOptions(details_if_recorded=True)
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
