"""Runs read by executors of concurrent.futures, and what is said where these cannot."""

import os
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from commtrace.analysis.errors import ClusterError, DamagedTrace
from commtrace.analysis.reading import versions
from commtrace.analysis.reading.any_executor import AnyExecutor, executor_named
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

RUN = Path(__file__).resolve().parent / "data" / "nccl-straggler"
SHOWN = ("breakdown", "participation", "lateness", "kernels")


class Wrapped(Executor):
    """As people write it around something else: here, what calls at once."""

    def submit(self, fn, /, *args, **kwargs):
        """Call it."""
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as err:  # noqa: BLE001 - whose it is, it goes back to
            future.set_exception(err)
        return future


def processes():
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [processes, lambda: ThreadPoolExecutor(2), Wrapped], ids=["processes", "threads", "own"]
)
def test_tables_are_the_same(make):
    whole = analyse(RUN)
    with make() as executor:
        found = analyse(RUN, executor=executor)
        assert found.run.spread is not None
        for name in SHOWN:
            assert as_csv(name, found.table(name)) == as_csv(name, whole.table(name)), name
        assert found.summary() == whole.summary()


@pytest.mark.slow
def test_the_command(capsys):
    assert main(["breakdown", "-f", "csv", "--executor", "concurrent.futures:ThreadPoolExecutor", str(RUN)]) == 0
    assert capsys.readouterr().out == as_csv("breakdown", analyse(RUN).breakdown)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("nothing", "is not MODULE:NAME; name what makes one, as in concurrent.futures:ProcessPoolExecutor"),
        ("no.such.module:Pool", "ModuleNotFoundError: No module named 'no'"),
        ("os:getpid", "made int, which is no concurrent.futures executor"),
    ],
)
def test_names_of_nothing_that_can_be_used(capsys, given, told):
    assert main(["breakdown", "--executor", given, str(RUN)]) == 1
    assert f"error: --executor {given}: " in (shown := capsys.readouterr().err)
    assert told in shown


def test_dask_and_another_executor_cannot_both_read(capsys):
    assert main(["breakdown", "--dask", "local", "--executor", "os:getpid", str(RUN)]) == 2
    assert "cannot be given together with --dask" in capsys.readouterr().err


def test_damage_is_said_as_ever(tmp_path):
    for path in RUN.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damaged = sorted(tmp_path.glob("*.gz"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-300])
    with ThreadPoolExecutor(2) as executor, pytest.raises(DamagedTrace, match=damaged.name):
        analyse(tmp_path, executor=executor)


def test_workers_that_die_are_said():
    with processes() as executor:
        calling = AnyExecutor(executor)
        with pytest.raises(
            ClusterError, match=r"ProcessPoolExecutor cannot go on: BrokenProcessPool: .* ran out of memory"
        ):
            calling.submit(os._exit, 1).result()
        with pytest.raises(ClusterError, match="ProcessPoolExecutor cannot go on"):
            calling.submit(os.getpid)
        with pytest.raises(ClusterError, match="ProcessPoolExecutor cannot use commtrace: BrokenProcessPool"):
            AnyExecutor(executor)


def test_another_version_on_a_worker_is_refused(monkeypatch):
    with processes() as executor:
        executor.submit(os.getpid).result()
        monkeypatch.setattr(versions, "version", lambda: "0.0.1")
        with pytest.raises(ClusterError, match=r"a worker has commtrace .* instead of 0\.0\.1; install the same"):
            AnyExecutor(executor)


def test_what_is_no_executor():
    with pytest.raises(TypeError, match="int is neither an executor"):
        analyse(RUN, executor=3)


def test_an_executor_is_made_once_for_a_command():
    executor_named.cache_clear()
    name = "concurrent.futures:ThreadPoolExecutor"
    assert executor_named(name) is executor_named(name)
