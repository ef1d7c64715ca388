"""Many trace files -> what was read of each, in their order, on as many cores as there are.

Reading begins when a `Reading` is made, in processes of its own, so that the caller can import pandas meanwhile.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from types import TracebackType
from typing import IO

import msgspec

from . import errors
from .cache import Cache
from .errors import TraceError
from .kineto import RawTrace, read_kineto
from .packed import is_regular
from .read_worker import Answer, Found, Position, Task, frame, send

# Below these a file is read before a process has started, or a cache found.
WORTH_A_PROCESS_BYTES = 32 << 20
WORTH_A_CACHE_BYTES = 32 << 20
_PACKED = 15  # so many times larger is a packed file than it looks
_ANSWER = msgspec.msgpack.Decoder(Answer)

Progress = Callable[[int], None]
"""Called with the bytes of all files read so far."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Reading:
    """Trace files being read. Iterate over it once, within a `with` block."""

    def __init__(
        self,
        paths: Sequence[Path],
        comm_names: re.Pattern[str],
        *,
        workers: int = 1,
        keep_damaged: bool = False,
        cache: Cache | None = None,
    ) -> None:
        """With one worker, or little to read, everything happens in this process, while it is asked for.

        With `keep_damaged`, damaged files give what was read before the damage. A `cache` is used for large files only.
        """
        self.paths = list(paths)
        self.sizes = [_size(path) for path in self.paths]
        packed = [path.suffix == ".gz" for path in self.paths]
        self._weights = [size * (_PACKED if gz else 1) for size, gz in zip(self.sizes, packed, strict=True)]
        self._comm_names = comm_names
        self._keep_damaged = keep_damaged
        self._cache = cache
        self._positions = [0] * len(self.paths)
        # What is no plain file may be open in this process only, and can be read only once.
        self._waiting = [number for number, path in enumerate(self.paths) if is_regular(path)]
        self._own = set(range(len(self.paths))) - set(self._waiting)
        self._found: dict[int, RawTrace | TraceError] = {}
        wanted = min(workers, len(self._waiting))
        if workers < 2 or sum(self._weights) < WORTH_A_PROCESS_BYTES or not sys.executable:
            wanted = 0
        self.processes = [_start_worker() for _ in range(wanted)]
        for worker in self.processes:
            self._hand_out(worker)

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.processes:
            worker.kill()  # it only reads, there is nothing to lose
            for stream in (worker.stdin, worker.stdout):
                assert stream is not None
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
            worker.wait()

    def __iter__(self) -> Iterator[RawTrace | TraceError]:
        """What was read of each file, or why it cannot be used, in the order of the files."""
        return self.results(None)

    def results(self, progress: Progress | None) -> Iterator[RawTrace | TraceError]:
        """The same, with progress."""
        if not self.processes:
            yield from (self._read_here(number, progress) for number in range(len(self.paths)))
            return
        with DefaultSelector() as selector:
            for worker in self.processes:
                selector.register(_stdout(worker), EVENT_READ, worker)
            for number in range(len(self.paths)):
                if number in self._own:
                    self._found[number] = self._read_here(number, progress)
                while number not in self._found:
                    for key, _ in selector.select() if selector.get_map() else ():
                        if not self._receive(key.data):
                            selector.unregister(key.fileobj)
                    if progress:
                        progress(sum(self._positions))
                    if not selector.get_map() and number not in self._found:  # somebody killed the workers
                        self._found[number] = self._read_here(number, progress)
                yield self._found.pop(number)

    def _read_here(self, number: int, progress: Progress | None) -> RawTrace | TraceError:
        def tell(position: int) -> None:
            self._positions[number] = position
            if progress:
                progress(sum(self._positions))

        try:
            cache = self._cache_of(number)
            read = cache.read if cache else read_kineto
            return read(self.paths[number], self._comm_names, keep_damaged=self._keep_damaged, progress=tell)
        except TraceError as err:
            return err
        finally:
            tell(self.sizes[number])

    def _cache_of(self, number: int) -> Cache | None:
        return self._cache if self._weights[number] >= WORTH_A_CACHE_BYTES else None

    def _hand_out(self, worker: subprocess.Popen[bytes]) -> None:
        """The next file for an idle worker; or the end, if there is none."""
        stdin = worker.stdin
        assert stdin is not None
        try:
            if self._waiting:
                number = self._waiting.pop(0)
                path = os.fsencode(self.paths[number].absolute())
                cache = self._cache_of(number)
                folder = None if cache is None else os.fsencode(cache.folder.absolute() if cache.folder else b"")
                send(stdin, Task(number, path, self._comm_names.pattern, self._keep_damaged, folder))
            else:
                stdin.close()
        except BrokenPipeError:
            return  # `_receive` will see that it is gone

    def _receive(self, worker: subprocess.Popen[bytes]) -> bool:
        """Take one answer; False when the worker has ended."""
        payload = frame(_stdout(worker))
        if payload is None:
            return False
        answer = _ANSWER.decode(payload)
        if isinstance(answer, Position):
            self._positions[answer.number] = answer.bytes
            return True
        self._positions[answer.number] = self.sizes[answer.number]
        if isinstance(answer, Found):
            self._found[answer.number] = answer.trace
        else:
            self._found[answer.number] = getattr(errors, answer.error)(
                answer.message.decode("utf-8", "surrogateescape")
            )
        self._hand_out(worker)
        return True


def _start_worker() -> subprocess.Popen[bytes]:
    module = f"{__package__}.read_worker"
    root = Path(__file__).resolve().parents[module.count(".")]
    begin = f"import sys; sys.path.insert(0, {str(root)!r}); from {module} import main; main()"
    command = [sys.executable, "-c", begin]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")  # noqa: S603


def _stdout(worker: subprocess.Popen[bytes]) -> IO[bytes]:
    assert worker.stdout is not None
    return worker.stdout


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
