"""Functions called in other processes, so that what concerns one file or one rank is computed there.

Only results travel. Calls and results are pickled: both sides are this program.
"""

from __future__ import annotations

import pickle
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from select import select
from selectors import EVENT_READ, DefaultSelector
from types import TracebackType
from typing import IO, Any, Protocol, TypeVar

from ..core.process import keep_freed_memory
from .spawn import Worker, start_worker
from .worker import frame, write_frame

_T = TypeVar("_T")


class Crew(Protocol):
    """Whoever calls functions; for a `with` block."""

    def __enter__(self) -> Crew:
        """Ready to work."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Work that has not been done is dropped."""

    def results(self, function: Callable[..., _T], calls: Iterable[tuple[Any, ...]]) -> Iterator[_T]:
        """What the function returns for each of these arguments, in their order; its exceptions are raised."""


class LocalCrew:
    """Processes of this machine; with fewer than two, this process does it all."""

    def __init__(self, workers: int) -> None:
        """Processes are started when there is work, and end with the block, or with this object."""
        self._wanted = workers if workers > 1 and sys.executable else 0
        self._workers: list[Worker] = []
        weakref.finalize(self, _end, self._workers)

    def __enter__(self) -> LocalCrew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self._workers)

    def results(self, function: Callable[..., _T], calls: Iterable[tuple[Any, ...]]) -> Iterator[_T]:
        """What the function returns for each of these arguments, in their order.

        A process that dies loses its call, which this process then does.
        """
        self._start()
        is_done = False
        try:
            with DefaultSelector() as selector:
                yield from _Round(function, calls, selector, self._workers).results()
                is_done = True
        finally:
            if not is_done:  # some still have calls, whose results nobody wants
                _end(self._workers)

    def _start(self) -> None:
        if any(not _is_alive(worker) for worker in self._workers):
            _end(self._workers)
        with suppress(OSError):  # no more processes are allowed: the existing ones work, or this one
            while len(self._workers) < self._wanted:
                self._workers.append(start_worker(self._workers, serve_calls))


class _Round:
    """One function for many arguments. Each worker has one call at a time: while it is busy, nobody reads its pipe."""

    def __init__(
        self,
        function: Callable[..., Any],
        calls: Iterable[tuple[Any, ...]],
        selector: DefaultSelector,
        workers: list[Worker],
    ) -> None:
        self._function, self._selector = function, selector
        self._calls = enumerate(calls)
        self._done: dict[int, tuple[bool, Any]] = {}
        self._in_hand: dict[int, tuple[int, tuple[Any, ...]]] = {}
        self._workers = list(workers)

    def results(self) -> Iterator[Any]:
        """In order. What is done early waits."""
        for worker in self._workers:
            self._selector.register(_out(worker), EVENT_READ, worker)
            self._hand_out(worker)
        number = 0
        while True:
            while number not in self._done:
                if not self._wait() and not self._do_here():
                    return
            is_fine, found = self._done.pop(number)
            if not is_fine:
                raise found
            yield found
            number += 1

    def _hand_out(self, worker: Worker) -> None:
        call = next(self._calls, None)
        if call is None:
            return
        self._in_hand[worker.pid] = call
        assert worker.stdin is not None
        with suppress(BrokenPipeError):  # `_wait` will see that it is gone
            write_frame(worker.stdin, pickle.dumps((self._function, call[1]), protocol=5))

    def _wait(self) -> bool:
        """Take what has come in; False if nobody is at work."""
        if not self._in_hand:
            return False
        for key, _ in self._selector.select():
            worker = key.data
            answer = frame(_out(worker))
            call = self._in_hand.pop(worker.pid, None)
            if answer is not None and call is not None:
                self._hand_out(worker)
                self._done[call[0]] = pickle.loads(answer)  # noqa: S301 - from a process of our own
            else:
                self._selector.unregister(key.fileobj)
                if call is not None:
                    self._do(*call)
        return True

    def _do_here(self) -> bool:
        """Do the next call in this process; False if there are no more."""
        call = next(self._calls, None)
        if call is not None:
            self._do(*call)
        return call is not None

    def _do(self, number: int, arguments: tuple[Any, ...]) -> None:
        self._done[number] = _called(self._function, arguments)


def serve_calls(calls: IO[bytes], answers: IO[bytes]) -> None:
    """Call what comes in until nothing more does, or the other side is gone."""
    keep_freed_memory()
    with suppress(BrokenPipeError):
        while (payload := frame(calls)) is not None:
            answer = _called(*pickle.loads(payload))  # noqa: S301 - from the process that started this one
            write_frame(answers, pickle.dumps(answer, protocol=5))


def _called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Whether the function returned, and what it returned, or else raised."""
    try:
        return True, function(*arguments)
    except Exception as err:  # noqa: BLE001 - it is raised where the result would be
        return False, err


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()  # it only computes, there is nothing to lose
    for worker in workers:
        for stream in (worker.stdin, worker.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        worker.wait()
    workers.clear()


def _is_alive(worker: Worker) -> bool:
    """Whether it still reads calls: the pipe of one that does not has an end to be read."""
    return not select([_out(worker)], [], [], 0)[0]


def _out(worker: Worker) -> IO[bytes]:
    assert worker.stdout is not None
    return worker.stdout
