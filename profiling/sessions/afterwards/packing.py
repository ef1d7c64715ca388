"""Pack traces into recordings in the background, and decide which files to keep.

A step only puts a trace into a queue. A thread takes one after the other out, and has the command line of the analysis
pack it in a process of its own.
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue

from ....common.wording import counted
from ....contract.rank import Keep
from ....contract.recording import recording_name
from ...base.console.notices import say
from .aside import run_aside

_POLL_S = 0.02
# Longer than ending a process takes.
_GRACE_S = 5.0
# Shorter waits need no word.
_QUIET_S = 1.0


class Packing:
    """Packs traces one after another. Use it from one thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Path | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._begun: list[str] = []
        self._results: dict[str, str | None] = {}
        self._ended = threading.Event()

    def begin(self, trace: Path) -> None:
        """Queue the trace for packing."""
        self._begun.append(trace.name)
        self._queue.put(trace)
        if self._thread is None:
            # Not a thread for each: a process ends with the thread that started it.
            self._thread = threading.Thread(target=self._work, name="commtrace-packing", daemon=True)
            self._thread.start()

    @property
    def results(self) -> Mapping[str, str | None]:
        """By name of each finished trace: why it was not packed, None if it was."""
        return dict(self._results)

    @property
    def waiting(self) -> list[str]:
        """The traces that are not finished."""
        return [name for name in self._begun if name not in self._results]

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until all are packed, or `is_over`."""
        while self.waiting and not is_over():
            time.sleep(_POLL_S)

    def finish(self) -> None:
        """Give up traces that are not packed by now."""
        self._queue.put(None)
        self._ended.set()
        until_s = time.monotonic() + _GRACE_S
        self.wait(lambda: time.monotonic() > until_s)
        self._results |= dict.fromkeys(self.waiting, "its process could not be ended")

    def _work(self) -> None:
        for trace in iter(self._queue.get, None):
            self._results[trace.name] = "there was no time left" if self._ended.is_set() else self._packed(trace)

    def _packed(self, trace: Path) -> str | None:
        """Pack this trace; return the reason if that fails."""
        why = run_aside(["pack", "--workers", "1", str(trace)], self._ended.is_set).why
        if why is None and not trace.with_name(recording_name(trace.name)).is_file():
            return "nothing was written"  # where a script's handler of SIGCHLD takes exit codes, all look like 0
        return why


class KeptFiles:
    """The traces and recordings of one rank, as of the last `settle`."""

    def __init__(self, run_dir: Path, keep: Keep) -> None:
        self._folder = run_dir.absolute()  # a script may change its directory
        self._keep = keep
        self._traces: list[str] = []
        self._packing = Packing()
        self._known: Mapping[str, str | None] = {}
        self._stuck: set[str] = set()

    def add(self, trace: str) -> None:
        """Add a written trace."""
        self._traces.append(trace)
        if self._keep != "trace":
            self._packing.begin(self._folder / trace)

    def settle(self) -> None:
        """Update what has been packed."""
        self._known = self._packing.results

    def finish(self, is_over: Callable[[], bool], *, tells: bool) -> None:
        """Wait for packing while `is_over` allows. One rank per host prints that (`tells`)."""
        quiet_until_s = time.monotonic() + _QUIET_S
        self._packing.wait(lambda: is_over() or time.monotonic() > quiet_until_s)
        left = self._packing.waiting
        if left and tells:
            say(f"waiting until {counted(len(left), 'trace')} of this rank, and those of others, are packed")
        self._packing.wait(is_over)
        self._packing.finish()
        self.settle()
        for trace, why in self._known.items():
            if why is not None:
                say(f"{trace} was not packed, and is kept as it is: {why}")

    @property
    def recordings(self) -> list[str]:
        """Complete recordings, by cycle."""
        return [recording_name(trace) for trace in self._packed()]

    @property
    def names(self) -> list[str]:
        """The kept files, by cycle."""
        packed, names = self._packed(), []
        for trace in self._traces:
            names += [trace] if trace not in packed or self._keep == "both" or trace in self._stuck else []
            names += [recording_name(trace)] if trace in packed else []
        return names

    def discard(self) -> bool:
        """Remove traces that need not be kept; False if one cannot be removed."""
        for trace in set(self._traces).difference(self.names):
            try:
                (self._folder / trace).unlink(missing_ok=True)
            except OSError as err:
                self._stuck.add(trace)
                say(f"{trace} is kept beside its recording, as it could not be removed: {err.strerror}")
        return not self._stuck

    def reason(self) -> str | None:
        """Why some traces have no recording; None if all have one."""
        return "; ".join(f"{trace}: {why}" for trace, why in self._known.items() if why is not None) or None

    def _packed(self) -> list[str]:
        return [trace for trace in self._traces if self._known.get(trace, "") is None]
