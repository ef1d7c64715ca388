"""A process that reads trace files for another one: tasks come in on one pipe, results go out on another.

Both are streams of frames: the length in 8 bytes, then that many bytes of msgpack. A worker ends when its tasks do, so
it never outlives the process it reads for.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Queue
from threading import Thread
from typing import IO, Any

import msgspec

from ..core.places.place import path_at
from ..core.process import keep_freed_memory, stop_garbage_collection
from ..errors import TraceError
from ..recording.options import ReadOptions
from ..recording.recording import RawTrace
from .cache import Cache
from .one_file import read_file
from .trace_input import TraceInput

_TELL_EVERY_S = 0.1
_LENGTH_BYTES = 8


Serves = Callable[[IO[bytes], IO[bytes]], None]
"""What a process does with the stream of its tasks, and that of its answers."""


class Task(msgspec.Struct, array_like=True):
    """Read the file of this address, or one of `parts` parts of it. The caller chooses the `number`.

    `cache` is the folder of the cache, empty for the one beside the file, None for no cache, and whether it `keeps`
    anything; that of the options is ignored. A part is never cached, and a damaged one is not used.
    """

    number: int
    path: bytes
    options: ReadOptions
    cache: bytes | None = None
    part: int = 0
    parts: int = 1
    keeps: bool = True


class Position(msgspec.Struct, array_like=True, tag="position"):
    """How far a file, or a part of it, has been read, in bytes of the file on disk."""

    number: int
    part: int
    parts: int
    bytes: int


class Found(msgspec.Struct, array_like=True, tag="found"):
    """A file was read."""

    number: int
    parts: int
    trace: RawTrace


class FoundPart(msgspec.Struct, array_like=True, tag="part"):
    """A part of a file was read: a structure of the file's format, which is sent packed."""

    number: int
    part: int
    parts: int
    found: Any


class PackedPart(msgspec.Struct, array_like=True, tag="part"):
    """The same as it is received, in a buffer that lives as long as this."""

    number: int
    part: int
    parts: int
    found: msgspec.Raw


class Failed(msgspec.Struct, array_like=True, tag="failed"):
    """A file cannot be used, or not in parts.

    `error` is the name of the error, `message` is UTF-8 except for file names that are not.
    """

    number: int
    parts: int
    error: str
    message: bytes


Answer = Position | Found | PackedPart | Failed


def send(stream: IO[bytes], message: msgspec.Struct) -> None:
    """Write one frame."""
    write_frame(stream, msgspec.msgpack.encode(message))


def write_frame(stream: IO[bytes], payload: bytes) -> None:
    """Write one frame of these bytes."""
    for data in (len(payload).to_bytes(_LENGTH_BYTES, "little"), payload):
        left = memoryview(data)
        while left:  # an unbuffered stream may take less than it is given
            left = left[stream.write(left) :]
    stream.flush()


def frame(stream: IO[bytes]) -> bytearray | None:
    """The bytes of the next frame, None at the end of the stream. From an unbuffered stream nothing more is taken."""
    length = _exactly(stream, _LENGTH_BYTES)
    return None if length is None else _exactly(stream, int.from_bytes(length, "little"))


def _exactly(stream: IO[bytes], size: int) -> bytearray | None:
    """This many bytes, None if the stream ends before."""
    data = bytearray(size)
    left = memoryview(data)
    while left:
        taken = stream.readinto(left)  # type: ignore[attr-defined]  # all binary streams have it
        if not taken:
            return None
        left = left[taken:]
    return data


def run_worker(serves: Serves) -> None:
    """Serve what stdin asks for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller reacts to it
    serves(sys.stdin.buffer, sys.stdout.buffer)
    sys.stdout = None  # or the interpreter complains at its end if the other side is gone


def serve(tasks: IO[bytes], answers: IO[bytes]) -> None:
    """Serve until there are no more tasks, or the other side is gone."""
    stop_garbage_collection()
    keep_freed_memory()
    outbox = _Outbox(answers)
    try:
        outbox.start()
    except RuntimeError:  # no more threads are allowed: the caller will read
        return
    try:
        while (payload := frame(tasks)) is not None:
            _serve(msgspec.msgpack.decode(payload, type=Task), outbox)
    except BrokenPipeError:
        pass
    finally:
        outbox.close()


class _Outbox:
    """Sends what is put into it, in a thread: the caller may be busy, and a pipe holds only 64 KiB."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._is_broken = False
        # While one answer is sent, only one more may wait, so that they do not pile up.
        self._waiting: Queue[bytes | None] = Queue(maxsize=1)
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

    def put(self, message: msgspec.Struct) -> None:
        """Send this after all others. Raises BrokenPipeError once sending has failed."""
        if self._is_broken:
            raise BrokenPipeError
        self._waiting.put(msgspec.msgpack.encode(message))

    def _send_all(self) -> None:
        while (payload := self._waiting.get()) is not None:
            if self._is_broken:
                continue  # so that `put` never waits for ever
            try:
                write_frame(self._stream, payload)
            except (OSError, MemoryError):
                self._is_broken = True
                with suppress(OSError):  # the caller sees the end, and reads the rest itself
                    self._stream.close()


def _serve(task: Task, answers: _Outbox) -> None:
    told = time.monotonic()

    def tell(position: int) -> None:
        nonlocal told
        if time.monotonic() - told > _TELL_EVERY_S and not answers.is_full:
            told = time.monotonic()
            answers.put(Position(task.number, task.part, task.parts, position))

    trace = TraceInput(path_at(task.path))
    try:
        if task.parts > 1:
            in_parts = trace.format.reader().parts
            assert in_parts is not None
            part = in_parts.read(trace.path, task.options, task.part, task.parts, tell)
            answers.put(FoundPart(task.number, task.part, task.parts, part))
            return
        cache = None if task.cache is None else Cache(path_at(task.cache) if task.cache else None, task.keeps)
        found = read_file(trace, task.options, cache, tell)
    except TraceError as err:
        message = str(err).encode("utf-8", "surrogateescape")
        answers.put(Failed(task.number, task.parts, type(err).__name__, message))
    else:
        answers.put(Found(task.number, task.parts, found))
