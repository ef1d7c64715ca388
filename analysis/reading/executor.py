"""Functions called elsewhere, so that what concerns one file or one rank is done there: in processes, or by Dask.

Only results travel. See docs/design/0033.
"""

from __future__ import annotations

import logging
import os
import pickle
import selectors
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import IO, Any, Generic, Protocol, TypeVar, cast

from .spawn import Worker, start_worker
from .worker import Answer, frame, log_again, write_frame

_LOG = logging.getLogger("commtrace.reading")
_T = TypeVar("_T")
_R = TypeVar("_R", covariant=True)
_Self = TypeVar("_Self", bound="Executor")
CALLS_PER_WORKER = 4  # submitted before their results are asked for: enough for workers never to wait
_AHEAD_BYTES = 32 << 10  # fits into a pipe whose worker is still busy
# Neither has a descriptor of its own, which a fork would inherit.
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Pending(Protocol[_R]):
    """A call that was submitted."""

    def result(self) -> _R:
        """What the function returned, once it has. Raises what it raised."""


class Executor(Protocol):
    """Calls functions of modules, here or elsewhere. Leaving its `with` block cancels unfinished calls."""

    @property
    def at_once(self) -> int:
        """How many calls should be submitted at a time, so that nobody waits for work."""

    def submit(self, function: Callable[..., _T], *arguments: Any) -> Pending[_T]:
        """Submit a call of the function."""

    def cancel(self) -> None:
        """Cancel all unfinished calls."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


def results(executor: Executor, function: Callable[..., _T], calls: Iterable[tuple[Any, ...]]) -> Iterator[_T]:
    """What the function returns for each of these arguments, in their order; its exceptions are raised.

    Later calls are submitted as results are taken, so those that are done early do not pile up.
    """
    waiting = iter(calls)
    is_done = False
    try:
        pending = deque(executor.submit(function, *call) for call in islice(waiting, executor.at_once))
        while pending:
            result = pending.popleft().result()
            pending.extend(executor.submit(function, *call) for call in islice(waiting, 1))
            yield result
        is_done = True
    finally:
        if not is_done:  # nobody wants the other results
            executor.cancel()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessCall(Generic[_T]):
    """A call that a process executes.

    `answer` says how it ended, None until then; `value` is the result, or the error. An answer `unknown` is of a call
    that no process could do.
    """

    def __init__(
        self,
        executor: Processes,
        function: Callable[..., _T],
        arguments: tuple[Any, ...],
        progress: Callable[[int], None] | None,
    ) -> None:
        self._executor, self._function, self._arguments = executor, function, arguments
        self.progress = progress
        self.payload: bytes | None = None
        self.answer: Answer | None = None
        self.value: Any = None

    def packed(self) -> bytes:
        """The call as it travels, kept in `payload`."""
        if self.payload is None:
            self.payload = pickle.dumps((self._function, self._arguments, self.progress is not None), protocol=5)
        return self.payload

    def result(self) -> _T:
        """What the function returned, once it has. Raises what it raised. If no process can do the call, this does."""
        while self.answer is None and self._executor.is_busy:
            for _ in self._executor.wait():
                pass
        if self.answer is None:
            self._executor.withdraw(self)
        if self.answer is Answer.error:
            raise self.value
        if self.answer is Answer.result:
            return cast("_T", self.value)
        return self._function(*self._arguments)


class Processes(Executor):
    """Processes of this machine; with none, this one does it all, when results are asked for.

    No process is replaced while others are at work, and no call is done twice by other processes: one that costs a
    process its life is done by this one.
    """

    def __init__(self, count: int) -> None:
        """They start when the first call is submitted, and end with the block or this object."""
        self._wanted = count if sys.executable else 0
        self._is_closed = False
        self._selector = _Selector()
        self._queue: deque[ProcessCall[Any]] = deque()
        self._in_hand: dict[int, deque[ProcessCall[Any]]] = {}
        self.workers: list[Worker] = []
        weakref.finalize(self, _end, self.workers)

    @property
    def at_once(self) -> int:
        """How many calls should be submitted at a time: without processes, one."""
        return max(1, self._wanted * CALLS_PER_WORKER)

    @property
    def is_busy(self) -> bool:
        """Whether a process is at work."""
        return any(self._in_hand.values())

    def submit(
        self,
        function: Callable[..., _T],
        *arguments: Any,
        progress: Callable[[int], None] | None = None,
        is_next: bool = False,
    ) -> ProcessCall[_T]:
        """Let the function be called, before all other calls that no process has yet if it `is_next`.

        If there is a `progress`, the function is given one of that name, and what it is called with now and then is
        what this one is called with, while somebody waits.
        """
        if self._wanted and not self._is_closed and not self._queue and not self.is_busy:
            self._start()
        call = ProcessCall(self, function, arguments, progress)
        self._queue.insert(0 if is_next else len(self._queue), call)
        any(map(self._hand_out, sorted(self._at_work(), key=lambda worker: len(self._in_hand[worker.pid]))))
        return call

    def withdraw(self, call: ProcessCall[Any]) -> None:
        """Withdraw a call, unless a process has it already."""
        with suppress(ValueError):
            self._queue.remove(call)

    def close(self) -> None:
        """Let processes end as soon as no call is left for them: their memory is free then."""
        self._is_closed = True
        for worker in self._at_work():
            self._hand_out(worker)

    def wait(self) -> Iterator[ProcessCall[Any]]:
        """Wait for a process to say something; the calls that ended by that."""
        for key, _ in self._selector.select():
            if key.data.pid in self._in_hand:  # nobody has cancelled everything since
                yield from self._receive(key.data)

    def cancel(self) -> None:
        """Stop everything that is not done: what processes do is lost, they only read and compute."""
        for worker in self._at_work():
            self._selector.unregister(_out(worker))
        self._queue.clear()
        self._in_hand.clear()
        _end(self.workers)

    def _at_work(self) -> list[Worker]:
        return [key.data for key in self._selector.get_map().values()]

    def _start(self) -> None:
        """Start processes up to the number wanted, and replace those that died while idle."""
        for key, _ in self._selector.select(0):
            self._lose(key.data)
        if len(self._at_work()) < len(self.workers):
            self.cancel()
        while len(self.workers) < self._wanted:
            try:
                worker = start_worker(self.workers)
            except OSError as err:  # no more processes are allowed: the existing ones work, or this one
                _LOG.info("%d of %d processes could be started: %s", len(self.workers), self._wanted, err.strerror)
                self._wanted = len(self.workers)
                return
            _LOG.debug("process %d started", worker.pid)
            self.workers.append(worker)
            self._in_hand[worker.pid] = deque()
            self._selector.register(_out(worker), selectors.EVENT_READ, worker)

    def _hand_out(self, worker: Worker) -> bool:
        """Send the worker its next call; False if it gets none.

        A worker gets another call while it still has one, so that it can go on while this process is busy; but not if
        this process would have to wait until it is taken, and the last calls are for workers that have none.
        """
        stdin, in_hand = worker.stdin, self._in_hand.get(worker.pid)
        assert stdin is not None
        if in_hand is None or stdin.closed or len(in_hand) > 1:
            return False
        if not self._queue:
            if self._is_closed:
                with suppress(BrokenPipeError):
                    stdin.close()
            return False
        if in_hand and (len(self._queue) < len(self.workers) or len(self._queue[0].packed()) > _AHEAD_BYTES):
            return False
        call = self._queue.popleft()
        payload, call.payload = call.packed(), None
        in_hand.append(call)
        with suppress(BrokenPipeError):  # `_receive` will see that it is gone
            write_frame(stdin, payload)
        return True

    def _receive(self, worker: Worker) -> Iterator[ProcessCall[Any]]:
        """Take one answer, and give the call that it ends, if it ends one; or all that a dead worker had."""
        told = frame(_out(worker))
        if told is None:
            yield from self._lose(worker)
            return
        in_hand, answer = self._in_hand[worker.pid], Answer(told[0])
        call = in_hand[0]
        if answer not in (Answer.progress, Answer.log):
            in_hand.popleft()
        if answer is Answer.result:
            self._hand_out(worker)  # so that it goes on, or ends, while the result is used
        value: Any = None if answer is Answer.unknown else pickle.loads(memoryview(told)[1:])  # noqa: S301 - of our own process
        del told  # as large as the value
        if answer is Answer.progress:
            if call.progress is not None:
                call.progress(value)
            return
        if answer is Answer.log:
            log_again(value)
            return
        if answer is Answer.unknown:
            _LOG.info("process %d could not do what it was asked for; this process does it", worker.pid)
        call.answer, call.value = answer, value
        del value
        yield call
        if answer in (Answer.error, Answer.unknown):  # what is to be done now may depend on that
            self._hand_out(worker)

    def _lose(self, worker: Worker) -> list[ProcessCall[Any]]:
        """Expect nothing more from a worker; the calls that it had."""
        self._selector.unregister(_out(worker))
        lost = self._in_hand.pop(worker.pid)
        if lost:
            _LOG.info("process %d died; this process does its %d calls", worker.pid, len(lost))
        for call in lost:
            call.answer = Answer.unknown
        return list(lost)


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()  # it only reads and computes, there is nothing to lose
    for worker in workers:
        for stream in (worker.stdin, worker.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        worker.wait()
    workers.clear()


def _out(worker: Worker) -> IO[bytes]:
    assert worker.stdout is not None
    return worker.stdout
