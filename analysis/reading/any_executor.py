"""The same functions called by any executor of `concurrent.futures`: processes, loky, MPI, or what somebody wrapped.

Its workers see the same files under the same paths, and have the same commtrace.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from concurrent import futures
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import ClusterError
from .executor import CALLS_PER_WORKER, Executor
from .versions import differences, versions

if TYPE_CHECKING:
    from distributed import Client

_T = TypeVar("_T")
_WORKERS_IF_UNKNOWN = 16
_HOW_MANY = "num_workers", "_max_workers"
"""Attributes that say how many workers an executor has: that of mpi4py, and that of the standard library and loky."""


class AnyExecutor(Executor):
    """An executor of `concurrent.futures`, which stays open."""

    def __init__(self, executor: futures.Executor) -> None:
        """Raises ClusterError if it cannot be used, or a worker has another version of something."""
        self._executor, self._pending = executor, set[futures.Future[Any]]()
        self.name = type(executor).__name__
        try:
            there = self._executor.submit(versions).result()
        except Exception as err:
            raise ClusterError(f"{self.name} cannot use commtrace: {type(err).__name__}: {err}") from err
        other = differences(there)
        if other:
            raise ClusterError(f"{self.name}: a worker has {', '.join(other)}; install the same everywhere")

    @property
    def at_once(self) -> int:
        """How many calls should be submitted at a time, so that nobody waits for work."""
        known = (getattr(self._executor, name, None) for name in _HOW_MANY)
        workers = next((number for number in known if isinstance(number, int) and number > 0), _WORKERS_IF_UNKNOWN)
        return workers * CALLS_PER_WORKER

    def submit(self, function: Callable[..., _T], *arguments: Any) -> AnyCall[_T]:
        """Submit a call of the function. Raises ClusterError."""
        try:
            future = self._executor.submit(function, *arguments)
        except RuntimeError as err:  # BrokenExecutor is one, and so is one that is shut down
            raise self.lost(err) from err
        self._pending.add(future)
        return AnyCall(self, future, self._pending)

    def cancel(self) -> None:
        """Cancel calls that no worker has begun."""
        for future in self._pending:
            future.cancel()
        self._pending.clear()

    def lost(self, err: BaseException) -> ClusterError:
        """The error to raise where the executor cannot go on."""
        return ClusterError(
            f"{self.name} cannot go on: {type(err).__name__}: {err}; if its workers ran out of memory, give them "
            "more, or use fewer"
        )


class AnyCall(Generic[_T]):
    """A call that was submitted."""

    def __init__(self, executor: AnyExecutor, future: futures.Future[_T], pending: set[futures.Future[Any]]) -> None:
        self._executor, self._future, self._pending = executor, future, pending

    def result(self) -> _T:
        """What the function returned, once it has. Raises what it raised, and ClusterError."""
        try:
            return self._future.result()
        except (futures.BrokenExecutor, futures.CancelledError) as err:
            raise self._executor.lost(err) from err
        finally:
            self._pending.discard(self._future)


def executor_of(given: futures.Executor | Client) -> Executor:
    """Call functions by an executor of `concurrent.futures`, or a client of dask.distributed. Raises ClusterError."""
    if isinstance(given, futures.Executor):
        return AnyExecutor(given)
    if not hasattr(given, "nthreads"):
        kind = type(given).__name__
        raise TypeError(f"{kind} is neither an executor of concurrent.futures nor a client of dask.distributed")
    from .dask_executor import DaskExecutor

    return DaskExecutor(given)


@lru_cache(maxsize=1)  # one for all that a command does
def executor_named(name: str) -> AnyExecutor:
    """The executor that is made by calling `MODULE:NAME`; ended with the program. Raises ClusterError."""
    module, _, attribute = name.partition(":")
    how = "name what makes one, as in concurrent.futures:ProcessPoolExecutor"
    if not (module and attribute):
        raise ClusterError(f"--executor {name}: is not MODULE:NAME; {how}")
    try:
        made = getattr(import_module(module), attribute)()
    except Exception as err:
        raise ClusterError(f"--executor {name}: {type(err).__name__}: {err}; {how}") from err
    if not isinstance(made, futures.Executor):
        raise ClusterError(
            f"--executor {name}: made {type(made).__name__}, which is no concurrent.futures executor; {how}"
        )
    atexit.register(made.shutdown, wait=False)
    return AnyExecutor(made)
