"""Every operation on files fails once: `python tests/attacks/faults.py`.

Outputs, caches and run directories are written again and again; each time the next of all calls of `disk` (open, write,
fsync, rename and so on) fails, with a full disk, a broken one, too little memory, or half of the bytes written, until
none is left to fail. What was there before is there afterwards, and nothing else.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from attacking import called, complaint, run_attack
from builders import MS, Collective, write_run

from commtrace.analysis.reading.cache import Cache
from commtrace.analysis.reading.trace_input import TraceInput
from commtrace.analysis.recording.options import ReadOptions
from commtrace.common import disk
from commtrace.contract.comms import OutOfBounds
from commtrace.profiling.base import run_directory as rundir
from commtrace.profiling.errors import RunDirError

_ERRORS: dict[str, Callable[[], BaseException]] = {
    "full disk": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "broken disk": lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    "no memory": MemoryError,
}
_OPERATIONS = ("create", "write", "sync", "close", "set_mode", "rename", "make_folder")


class Fault:
    """The operation with this number fails; `calls` counts them."""

    def __init__(self, number: int, error: Callable[[], BaseException], *, after: bool) -> None:
        self.number, self.error, self.after, self.calls = number, error, after, 0

    def around(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        """The operation, which may fail. A descriptor is closed all the same, and half of what is written may be."""

        def call(*arguments: Any) -> Any:
            self.calls += 1
            fails = self.calls == self.number
            if fails and operation.__name__ == "write" and self.after:
                operation(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if fails and operation.__name__ == "close":
                operation(*arguments)
            if fails:
                raise self.error()
            return operation(*arguments)

        return call


@contextmanager
def failing(fault: Fault) -> Iterator[None]:
    """The operations of `disk` fail as the fault says."""
    with ExitStack() as stack:
        for name in _OPERATIONS:
            stack.enter_context(mock.patch.object(disk, name, fault.around(getattr(disk, name))))
        yield


def output(folder: Path, run: Path) -> str | None:
    """What is wrong after an output; None if it was refused, or written."""
    code, out, err = called("table", "calls", "-f", "csv", "-o", folder / "kept", run)
    return complaint(code, out, err) or ("not said" if code == 0 and _content(folder) == _OLD else None)


def cache(folder: Path, run: Path) -> str | None:
    """The same of a cache: that it cannot be written costs time only."""
    kept = Cache(folder / "cache")
    trace = sorted(run.glob("*.pt.trace.json*"))[0]
    found = kept.read(TraceInput(trace), ReadOptions())
    names = [path.name for path in (folder / "cache").glob("*")]
    again = Cache(folder / "cache").read(TraceInput(trace), ReadOptions())
    if again != found or any(name.endswith(".partial") for name in names):
        return f"another content, or left behind: {names}"
    for path in (folder / "cache").iterdir():
        path.unlink()
    (folder / "cache").rmdir()
    return None


def side_file(folder: Path, run: Path) -> str | None:
    """The same of a side file of a run directory."""
    return _refused(lambda: rundir.write_json(folder / "kept", OutOfBounds(999, okay=False)))


def trace(folder: Path, run: Path) -> str | None:
    """The same of a trace, whose writer leaves files of its own."""

    def export(name: str) -> None:
        Path(name).write_bytes(b'{"traceEvents": []}' * 100_000)
        Path(name + ".tmp").write_bytes(b"Kineto's own")

    return _refused(lambda: rundir.write_trace(folder / "kept", export))


def _refused(write: Callable[[], None]) -> str | None:
    try:
        write()
    except RunDirError as err:
        return None if "cannot be written" in str(err) else f"a message that does not say it: {err}"
    except MemoryError:  # the caller's to handle
        return None
    return None


_OLD = {"kept": b"old"}


def _content(folder: Path) -> dict[str, bytes | None]:
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


_WRITERS = (output, cache, side_file, trace)


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`; `tries` bounds the operations of each writer, and nothing is left to chance."""
    run, out = folder / "run", folder / "out"
    write_run(run, 2, [Collective((0, 3 * MS), 10 * MS, elems=250_000)])
    out.mkdir()
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for writer in _WRITERS:
        for what, error in _ERRORS.items():
            for after in (False, True) if what == "full disk" else (False,):
                for number in range(1, tries + 1):
                    (out / "kept").write_bytes(_OLD["kept"])
                    fault = Fault(number, error, after=after)
                    with failing(fault):
                        problem = writer(out, run)
                    left = _content(out)
                    if fault.calls < number:
                        break
                    counts[f"{writer.__name__}, {what}"] += 1
                    if problem or left != _OLD:  # none of the operations comes after the renaming
                        wrong.append(f"{writer.__name__}, {what}, operation {number}: {problem or sorted(left)}")
    return counts, wrong


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
