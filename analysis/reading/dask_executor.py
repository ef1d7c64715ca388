"""The same functions called by the workers of dask.distributed, wherever its scheduler is.

Both sides unpickle what the other sends: whoever reaches the scheduler or a worker runs code there, and here.

Nothing stays on a worker between two calls, so one that is lost costs only what it was doing, which another then does.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...common.extras import not_installed
from ..core.small_files import NotJson, json_file
from ..errors import ClusterError, MissingLibrary, UnreachableFile, UnreadableFile
from .executor import CALLS_PER_WORKER, Executor
from .versions import differences, versions

if TYPE_CHECKING:
    from distributed import Client

_LOG = logging.getLogger("commtrace.reading")
_T = TypeVar("_T")
_RETRIES = 3
_CONNECTING_S = 30
_PATIENCE_S = 30  # then the log says for whom one waits, again and again
_SCHEDULER_FILE = "name one that `dask scheduler --scheduler-file` wrote, or the scheduler's address"


class DaskExecutor(Executor):
    """Workers that a client of dask.distributed knows. The client stays open."""

    def __init__(self, client: Client) -> None:
        """Raises ClusterError if there are no workers, or they have another version of something."""
        self._client: Any = client  # parts of it have no types
        self._pending: set[Any] = set()
        _check_versions(client)

    @property
    def at_once(self) -> int:
        """How many calls should wait at the scheduler, so that workers never do."""
        with _cluster_errors(self._client):
            threads: int = sum(self._client.nthreads().values())
        return max(1, threads) * CALLS_PER_WORKER

    def submit(self, function: Callable[..., _T], *arguments: Any) -> DaskCall[_T]:
        """Submit a call to a worker. Raises ClusterError."""
        with _cluster_errors(self._client):
            future = self._client.submit(_on_worker, function, arguments, pure=False, retries=_RETRIES)
        self._pending.add(future)
        return DaskCall(self._client, future, self._pending)

    def cancel(self) -> None:
        """Cancel calls that no worker has begun. A client that was closed meanwhile has cancelled its own."""
        for future in self._pending if self._client.status == "running" else ():
            with suppress(Exception):  # the connection may be gone
                future.cancel()
        self._pending.clear()


class DaskCall(Generic[_T]):
    """A call that a worker executes."""

    def __init__(self, client: Any, future: Any, pending: set[Any]) -> None:
        self._client, self._future, self._pending = client, future, pending

    def result(self) -> _T:
        """What the function returned, once it has. Raises what it raised, and ClusterError."""
        with _cluster_errors(self._client):
            while not self._future.done():
                self._wait_a_while()
            result: _T = self._future.result()
            self._future.release()
        self._pending.discard(self._future)
        return result

    def _wait_a_while(self) -> None:
        import distributed

        untyped: Any = distributed
        try:
            untyped.wait(self._future, timeout=_PATIENCE_S)
        except untyped.TimeoutError:
            busy: dict[str, list[str]] = self._client.processing()
            at = [address for address, keys in busy.items() if self._future.key in keys]
            _LOG.info(
                "Dask: %s has not answered for %d s; if it is stuck, kill it: another worker then does its work",
                f"worker {at[0]}" if at else "no worker",
                _PATIENCE_S,
            )


def _on_worker(function: Callable[..., _T], arguments: tuple[Any, ...]) -> _T | UnreadableFile:
    """Call the function; if it cannot read a file, its error names the worker: others may see the file."""
    try:
        result = function(*arguments)
    except UnreadableFile as err:
        raise _with_worker(err) from err
    return _with_worker(result) if isinstance(result, UnreadableFile) else result


def _with_worker(err: UnreadableFile) -> UnreadableFile:
    from distributed import get_worker

    if isinstance(err, UnreachableFile):  # its reason is not on the worker
        return err
    return UnreadableFile(f"{err} (on Dask worker {get_worker().address}; workers need the same paths)")


@contextmanager
def _cluster_errors(client: Any) -> Iterator[None]:
    """Raise ClusterError for errors of Dask in the block."""
    from distributed.scheduler import KilledWorker

    lost = "Dask: the connection to the scheduler is lost, and so is what its workers did"
    again = "start the scheduler and its workers again, then this"
    if client.status in ("closing", "closed"):  # after which each call fails in a way of its own
        raise ClusterError(f"{lost}; {again}")
    try:
        yield
    except KilledWorker as err:
        raise ClusterError(
            f"Dask: {_RETRIES + 1} workers died of one file, probably for want of memory: {err}; give workers more "
            "memory, or fewer threads"
        ) from err
    except CancelledError as err:  # its text is several lines of Dask's own
        raise ClusterError(f"{lost}; {again}") from err
    except UnreachableFile:  # an OSError of the work itself
        raise
    except (OSError, TimeoutError) as err:
        raise ClusterError(f"{lost}: {err}; {again}") from err


@lru_cache(maxsize=1)  # one connection for all that a command does
def dask_client(where: str) -> Client:
    """A client for the address of a scheduler, or for the JSON file that it wrote; closed when the program ends.

    Raises MissingLibrary, ClusterError.
    """
    try:
        import distributed
    except ImportError as err:
        raise MissingLibrary(not_installed("dask", "--dask", "dask")) from err
    untyped: Any = distributed
    # What it logs when a scheduler is lost, reconnecting included, is said by our own error.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    address = where if "://" in where else _address_in(where)
    try:
        kind = untyped.utils.LoopRunner().run_sync(_kind_of, address)
        if kind != "Scheduler":
            raise ClusterError(
                f"--dask {where}: what answers there is no scheduler of Dask{kind and f', but a {kind}'}; name the "
                "address that `dask scheduler` prints"
            )
        client = untyped.Client(address, timeout=_CONNECTING_S)
    except (OSError, TimeoutError, ValueError) as err:
        raise ClusterError(f"--dask {where}: no scheduler can be reached there: {err}; is it running?") from err
    atexit.register(client.close)
    found: Client = client
    return found


def _address_in(where: str) -> str:
    """The address in the file of a scheduler. Raises ClusterError."""
    try:
        content = json_file(Path(where))
    except FileNotFoundError:
        raise ClusterError(
            f"--dask {where}: is neither 'local', nor the address of a scheduler as tcp://host:8786, nor a file "
            "that one wrote with --scheduler-file"
        ) from None
    except (OSError, NotJson) as err:
        raise ClusterError(f"--dask {where}: is not the file of a scheduler: {err}; {_SCHEDULER_FILE}") from err
    address = content.get("address") if isinstance(content, dict) else None
    if not isinstance(address, str):
        raise ClusterError(f"--dask {where}: is not the file of a scheduler: has no address; {_SCHEDULER_FILE}")
    return address


async def _kind_of(address: str) -> str:
    """What answers there: 'Scheduler', another part of Dask, or '' for something else.

    Dask itself waits without end for an answer to its greeting. Raises OSError, TimeoutError, ValueError.
    """
    import distributed

    untyped: Any = distributed
    security = untyped.Security().get_connection_args("client")

    async def answer() -> Any:
        comm = await untyped.comm.connect(address, timeout=_CONNECTING_S, **security)
        try:
            await comm.write({"op": "identity"})
            return await comm.read()
        finally:
            comm.abort()

    try:
        found = await asyncio.wait_for(answer(), 1.1 * _CONNECTING_S)
    except asyncio.TimeoutError:  # no OSError in Python 3.10
        raise TimeoutError(f"what is there has not answered for {_CONNECTING_S} s") from None
    except (OSError, ValueError):
        raise
    except Exception:  # noqa: BLE001 - whatever Dask makes of the bytes of something else
        return ""
    kind = found.get("type") if isinstance(found, dict) else None
    return kind if isinstance(kind, str) else ""


def _check_versions(client: Client) -> None:
    untyped: Any = client

    def versions_here() -> dict[str, str]:
        """Versions of libraries on a worker. Sent as source, so it must not import this program itself."""
        from importlib import import_module
        from importlib.util import find_spec

        if find_spec(package.partition(".")[0]) is None:
            return {}
        found: dict[str, str] = import_module(module).versions()
        return found

    module = versions.__module__
    package = module
    with _cluster_errors(client):
        answers: dict[str, Any] = untyped.run(versions_here, on_error="return")
    # A worker that was lost meanwhile does no harm.
    answers = {address: found for address, found in answers.items() if not isinstance(found, OSError)}
    if not answers:
        raise ClusterError(
            "Dask: the scheduler has no workers; start some, and this again when they are there: dask worker "
            f"{untyped.scheduler.address}"
        )
    for address, found in answers.items():
        if not isinstance(found, dict):
            told = found if isinstance(found, BaseException) else f"it has {type(found).__name__} for its versions"
            wanted = versions()["commtrace"]
            raise ClusterError(f"Dask: worker {address} cannot use commtrace: {told}; install commtrace {wanted} there")
        other = differences(found)
        if other:
            raise ClusterError(f"Dask: worker {address} has {', '.join(other)}; install the same everywhere")
