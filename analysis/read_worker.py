"""A process that reads trace files for another one: tasks come on stdin, what was found goes to stdout.

Both are streams of frames: the length in 8 bytes, then that many bytes of msgpack. A worker ends when its stdin does,
and so never outlives the process it reads for.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import IO

import msgspec

from . import errors
from .cache import Cache
from .kineto import RawTrace, read_kineto

_TELL_EVERY_S = 0.1


class Task(msgspec.Struct, array_like=True):
    """Read this file. `number` is the caller's; `cache` the folder of the cache, empty beside the file, None for none.

    For the rest see `read_kineto`.
    """

    number: int
    path: bytes
    comm_names: str
    keep_damaged: bool
    cache: bytes | None


class Position(msgspec.Struct, array_like=True, tag="position"):
    """How far a file is read, in bytes."""

    number: int
    bytes: int


class Found(msgspec.Struct, array_like=True, tag="found"):
    """A file was read."""

    number: int
    trace: RawTrace


class Failed(msgspec.Struct, array_like=True, tag="failed"):
    """A file cannot be used; `error` is the name of the error, `message` UTF-8 but for file names that are none."""

    number: int
    error: str
    message: bytes


Answer = Position | Found | Failed


def send(stream: IO[bytes], message: msgspec.Struct) -> None:
    """Write one frame."""
    payload = msgspec.msgpack.encode(message)
    stream.write(len(payload).to_bytes(8, "little"))
    stream.write(payload)
    stream.flush()


def frame(stream: IO[bytes]) -> bytes | None:
    """The bytes of the next frame, None at the end of the stream."""
    length = stream.read(8)
    if len(length) < 8:
        return None
    payload = stream.read(int.from_bytes(length, "little"))
    return payload if len(payload) == int.from_bytes(length, "little") else None


def main() -> None:
    """Serve until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the caller's to react to
    gc.disable()  # events hold no cycles, and looking for some takes a tenth of the time
    tasks, answers = sys.stdin.buffer, sys.stdout.buffer
    try:
        while (payload := frame(tasks)) is not None:
            _serve(msgspec.msgpack.decode(payload, type=Task), answers)
    except BrokenPipeError:  # the caller is gone
        sys.stdout = None  # or the interpreter complains about it at its end


def _serve(task: Task, answers: IO[bytes]) -> None:
    told = time.monotonic()

    def tell(position: int) -> None:
        nonlocal told
        if time.monotonic() - told > _TELL_EVERY_S:
            told = time.monotonic()
            send(answers, Position(task.number, position))

    read = read_kineto if task.cache is None else Cache(_path(task.cache) if task.cache else None).read
    try:
        found = read(
            _path(task.path), re.compile(task.comm_names, re.IGNORECASE), keep_damaged=task.keep_damaged, progress=tell
        )
    except errors.TraceError as err:
        send(answers, Failed(task.number, type(err).__name__, str(err).encode("utf-8", "surrogateescape")))
    else:
        send(answers, Found(task.number, found))


def _path(name: bytes) -> Path:
    return Path(os.fsdecode(name))
