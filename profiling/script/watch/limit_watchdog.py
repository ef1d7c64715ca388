"""Watch a capture of unknown length, and end it before it grows too large."""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..config import Limits

# Ignored where nobody handles it, so that one which comes late does no harm; Go's runtime picked it for that.
_SIGNAL = signal.SIGURG
_POLL_S = 0.2
_STATM = "/proc/self/statm"


class LimitWatchdog:
    """Call `end` with the reason, in the main thread, when a limit is reached.

    A profiler has to be stopped by the thread that started it, and the script has that thread: hence the signal. It is
    sent again as long as that thread says `not_now`.
    """

    def __init__(self, limits: Limits, end: Callable[[str], None], not_now: Callable[[], bool] = lambda: False) -> None:
        self._limits = limits
        self._end = end
        self._not_now = not_now
        self._reason: str | None = None
        self._stopped = threading.Event()
        self._previous: Any = None

    def start(self) -> None:
        """Start to watch; in the main thread only."""
        self._previous = signal.signal(_SIGNAL, self._reached)
        signal.siginterrupt(_SIGNAL, False)
        threading.Thread(target=self._watch, name="commtrace-limits", daemon=True).start()

    def stop(self) -> None:
        """Stop to watch."""
        self._stopped.set()
        # None stands for a handler that is not Python's, which cannot be put back.
        if self._previous is not None and signal.getsignal(_SIGNAL) == self._reached:
            signal.signal(_SIGNAL, self._previous)

    def _watch(self) -> None:
        until_s = time.monotonic() + self._limits.seconds
        most_bytes = _resident_bytes() + self._limits.memory_gb * 1e9
        while not self._stopped.wait(min(_POLL_S, max(0.0, until_s - time.monotonic()))):
            if time.monotonic() >= until_s:
                self._reason = f"{self._limits.seconds:g} s have passed (--max-seconds)"
            elif _resident_bytes() > most_bytes:
                self._reason = f"the process has grown by {self._limits.memory_gb:g} GB (--max-memory-gb)"
            else:
                continue
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
            if self._stopped.wait(_POLL_S):
                return

    def _reached(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  (the signature of a handler)
        if self._reason is not None and not self._stopped.is_set() and not self._not_now():
            self._stopped.set()
            self._end(self._reason)


def _resident_bytes() -> int:
    """Resident memory of this process in bytes; 0 if not known."""
    try:
        with open(_STATM, encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
