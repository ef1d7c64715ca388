"""A process that calls functions for another one: calls come in on one pipe, results go out on another.

Both are streams of frames: the length in 8 bytes, then that many bytes; of an answer the first says what it is, and
the others, like a call, are a pickle. Only the process that started this one writes to the pipe of calls, and only this
one to that of answers, so no pickle comes from anybody else. A worker ends when its calls do, so it never outlives the
process that it works for.
"""

from __future__ import annotations

import logging
import pickle
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from queue import Queue
from threading import Thread
from typing import IO, Any

from ..core.process import keep_freed_memory
from ..errors import AnalysisError

_REPORT_EVERY_S = 0.1
_LENGTH_BYTES = 8
_LOGGED = ("name", "levelno", "levelname", "created", "msecs", "process", "pathname", "filename", "module", "lineno",
           "funcName")  # fmt: skip


class Answer(IntEnum):
    """What a frame says of the call that the worker has had for longest: `result`, `error` and `unknown` end it."""

    progress = 0  # a position
    result = 1
    error = 2  # an AnalysisError
    unknown = 3  # something else was raised, or the result cannot be pickled: the caller finds out by itself
    log = 4  # what the worker logged, as fields of records


def run_worker(log_level: int) -> None:
    """Serve calls from stdin, and let the caller log what is at least of this level."""
    logging.getLogger("commtrace").setLevel(log_level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller reacts to it
    serve(sys.stdin.buffer, sys.stdout.buffer)
    sys.stdout = None  # or the interpreter complains at its end if the other side is gone


def serve(calls: IO[bytes], answers: IO[bytes]) -> None:
    """Serve calls until the stream ends, or the other side is gone."""
    keep_freed_memory()
    log = _Log()
    outbox = _Outbox(answers)
    try:
        outbox.start()
    except RuntimeError:  # no more threads are allowed: the caller does the work
        return
    try:
        while (payload := frame(calls)) is not None:
            _serve_call(payload, outbox, log)
    except BrokenPipeError:
        pass
    finally:
        outbox.close()


def _serve_call(payload: bytearray, outbox: _Outbox, log: _Log) -> None:
    """Do one call, and send what was logged before its answer."""
    answer = _answer(payload, outbox)
    if log.records:
        outbox.put(Answer.log, pickle.dumps(log.records))
        log.records.clear()
    outbox.put(*answer)


class _Log(logging.Handler):
    """Collect what is logged, for the caller to log; a copy of a process must not write where that one does."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []
        logger = logging.getLogger("commtrace")
        logger.setLevel(logger.getEffectiveLevel())
        logger.handlers, logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append({name: getattr(record, name) for name in _LOGGED} | {"msg": record.getMessage()})


def log_again(records: list[dict[str, Any]]) -> None:
    """Log what a worker logged."""
    for fields in records:
        record = logging.makeLogRecord(fields)
        logging.getLogger(record.name).handle(record)


def _answer(payload: bytearray, outbox: _Outbox) -> tuple[Answer, bytes]:
    """Execute one call: its function, its arguments, and whether the function is given `progress` beside them."""
    try:
        function, arguments, reports = pickle.loads(payload)  # noqa: S301 - from the process that started this one
        further = {"progress": _reporter(outbox)} if reports else {}
        return Answer.result, pickle.dumps(function(*arguments, **further), protocol=5)
    except BrokenPipeError:
        raise
    except AnalysisError as err:
        return Answer.error, pickle.dumps(err, protocol=5)
    except Exception:  # noqa: BLE001 - the caller does the same again, and raises it with its traceback
        return Answer.unknown, b""


def _reporter(outbox: _Outbox) -> Callable[[int], None]:
    last = time.monotonic()

    def report(position: int) -> None:
        nonlocal last
        if time.monotonic() - last > _REPORT_EVERY_S and not outbox.is_full:
            last = time.monotonic()
            outbox.put(Answer.progress, pickle.dumps(position))

    return report


class _Outbox:
    """Sends what is put into it, in a thread: the caller may be busy, and a pipe holds only 64 KiB."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._is_broken = False
        # While one answer is sent, only one more may wait, so that they do not pile up.
        self._waiting: Queue[tuple[Answer, bytes] | None] = Queue(maxsize=1)
        self._thread = Thread(target=self._send_all)

    def start(self) -> None:
        """Begin to send. Raises RuntimeError where no more threads are allowed."""
        self._thread.start()

    def close(self) -> None:
        """Wait until everything is sent, or sending has failed."""
        self._waiting.put(None)
        self._thread.join()

    @property
    def is_full(self) -> bool:
        """Whether `put` would have to wait."""
        return self._waiting.full()

    def put(self, answer: Answer, payload: bytes) -> None:
        """Send this after all others. Raises BrokenPipeError once sending has failed."""
        if self._is_broken:
            raise BrokenPipeError
        self._waiting.put((answer, payload))

    def _send_all(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            answer, payload = waiting
            del waiting  # which would keep what is sent until the next one comes
            if self._is_broken:
                continue  # so that `put` never waits for ever
            try:
                write_frame(self._stream, bytes((answer,)), payload)
            except (OSError, MemoryError):
                self._is_broken = True
                with suppress(OSError):  # the caller sees the end, and does the rest itself
                    self._stream.close()


def write_frame(stream: IO[bytes], *payload: bytes) -> None:
    """Write one frame of these bytes."""
    for data in (sum(map(len, payload)).to_bytes(_LENGTH_BYTES, "little"), *payload):
        left = memoryview(data)
        while left:  # an unbuffered stream may take less than it is given
            left = left[stream.write(left) :]
    stream.flush()


def frame(stream: IO[bytes]) -> bytearray | None:
    """The bytes of the next frame, None at the end of the stream. From an unbuffered stream nothing more is taken."""
    length = _exactly(stream, _LENGTH_BYTES)
    return None if length is None else _exactly(stream, int.from_bytes(length, "little"))


def _exactly(stream: IO[bytes], size: int) -> bytearray | None:
    """Exactly this many bytes; None if the stream ends before."""
    data = bytearray(size)
    left = memoryview(data)
    while left:
        taken = stream.readinto(left)  # type: ignore[attr-defined]  # all binary streams have it
        if not taken:
            return None
        left = left[taken:]
    return data
