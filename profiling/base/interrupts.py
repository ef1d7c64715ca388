"""SIGINT, SIGTERM and SIGHUP as exceptions that never hit a half-written file, and a watchdog for blocked ranks."""

import functools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
_POLL_S = 0.1
# For `grace_s`: twice this, plus writing files, fits into the 30 s that torchrun gives a worker before killing it.
BLOCKED_GRACE_S = 8.0


class Interrupts:
    """While active, raises KeyboardInterrupt for SIGINT and SystemExit(128 + number) for SIGTERM and SIGHUP.

    Only in the main thread, and only for signals the program does not handle itself. Inside `shield()` a signal waits
    until the block ends. It also waits inside `leaving`, a function that is shielded except for its first moment: that
    is when Python runs the handlers for a rank that was blocked until its peer ended.

    Python runs signal handlers between bytecodes only, and a rank inside a collective whose peer is gone may never
    reach the next one. So a separate thread is told about the signal too: unless `stop()` is called within `grace_s`,
    it calls `free`, and after the same time again `give_up`. Time inside `busy()` does not count. A KeyboardInterrupt
    that has been raised is the program's own: what it then does, and for how long, it would also do without us. Only
    inside a `shield()` the time runs again, anew for each: there it is we who may wait for peers that have stopped. Nor
    does it run for a signal that the program has come to handle itself meanwhile.

    Python drops exceptions raised in finalizers and similar callbacks; that thread has them raised again outside.
    """

    def __init__(
        self,
        free: Callable[[], None],
        give_up: Callable[[signal.Signals], None],
        grace_s: float,
        leaving: CodeType | None = None,
    ) -> None:
        self.received: signal.Signals | None = None
        self._free = free
        self._give_up = give_up
        self._grace_s = grace_s
        self._leaving = leaving
        self._shields = 0
        self._raised = False
        self._dropped = False
        self._busy = False
        self._stopped = threading.Event()
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_hook = sys.unraisablehook
        self._wakeup_fd: int | None = None

    def start(self) -> None:
        """Install the handlers and the watchdog."""
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in _SIGNALS:
            previous = signal.getsignal(signum)
            if previous in _DEFAULTS:
                self._previous[signum] = previous
                signal.signal(signum, self._handle)
        if self._previous:
            self._start_watchdog()

    def stop(self) -> None:
        """Put back what was there before, except where the program has put something of its own meanwhile."""
        self._stopped.set()
        self._put_back()  # ends the watchdog

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back; the next `shield()` raises for one that came."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Hold signals back until the block ends; when it ends without an error, raise for one that came."""
        with self.held():
            self._watch_again()
            yield
        if self.received and not self._shields and not self._raised:
            self._raise(self.received)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """The block is slow but waits for no other rank: the watchdog's clock stands still."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def forget_caught(self) -> None:
        """The program has caught a KeyboardInterrupt and gone on: the next one counts as the first."""
        if self._raised and self.received is signal.SIGINT:
            self.received, self._raised = None, False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(signum)
        if not self._shields and not self._is_leaving(frame):
            self._raise(signal.Signals(signum))

    def _is_leaving(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not self._leaving:
            frame = frame.f_back
        return frame is not None

    def _raise(self, signum: signal.Signals) -> None:
        self._raised = True
        if signum is signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + signum)

    def _watch_again(self) -> None:
        """After a KeyboardInterrupt: the watchdog has left the program its time, and is needed again."""
        left_alone = self._raised and self.received is signal.SIGINT
        if left_alone and self._shields == 1 and self._wakeup_fd is not None:
            with suppress(BlockingIOError):  # it has not even read what was written before
                os.write(self._wakeup_fd, bytes([signal.SIGINT]))

    def _notice_dropped(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Let the watchdog send the signal once more, instead of a traceback on stderr."""
        ours = self._raised and unraisable.exc_type in (KeyboardInterrupt, SystemExit)
        if ours and self.received is not None and self._wakeup_fd is not None:
            self._raised, self._dropped = False, True
            os.write(self._wakeup_fd, bytes([self.received]))
        else:
            self._previous_hook(unraisable)

    def _start_watchdog(self) -> None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if previous != -1:  # something else (asyncio) uses it: do without a watchdog
            signal.set_wakeup_fd(previous)
            os.close(reading)
            os.close(writing)
            return
        self._wakeup_fd = writing
        self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._notice_dropped
        # A forked child (a DataLoader worker) shares the pipe: its signals are not ours.
        os.register_at_fork(after_in_child=functools.partial(_leave_to_parent, weakref.ref(self)))
        threading.Thread(target=self._watch, args=(reading,), name="commtrace-watchdog", daemon=True).start()

    def _watch(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as wakeups:
            while byte := wakeups.read(1):
                if byte[0] not in self._previous:
                    continue
                signum = signal.Signals(byte[0])
                if self._out_of_time(signum):
                    threading.Thread(target=self._free, daemon=True).start()  # which may block as well
                if self._out_of_time(signum):
                    self._give_up(signum)

    def _out_of_time(self, signum: signal.Signals) -> bool:
        """Wait for `stop()`; true if it was not called in time."""
        if self._is_left_alone(signum):
            return False
        left_s = self._grace_s
        while left_s > 0:
            if self._stopped.wait(_POLL_S) or self._is_left_alone(signum):
                return False
            if self._dropped:
                self._dropped = False
                signal.pthread_kill(threading.main_thread().ident or 0, signum)
            if not self._busy:
                left_s -= _POLL_S
        return True

    def _is_left_alone(self, signum: signal.Signals) -> bool:
        """Whether what runs is the program's own: its handler, or what follows a KeyboardInterrupt that was raised."""
        if signal.getsignal(signum) != self._handle:
            return True
        return signum is signal.SIGINT and self._raised and not self._shields

    def _forget(self) -> None:
        """In a forked child: do nothing from now on."""
        if self._wakeup_fd is not None:
            self._put_back()

    def _put_back(self) -> None:
        if self._wakeup_fd is not None:
            current = signal.set_wakeup_fd(-1)
            if current not in (-1, self._wakeup_fd):
                signal.set_wakeup_fd(current)
            os.close(self._wakeup_fd)
            self._wakeup_fd = None
            if sys.unraisablehook == self._notice_dropped:
                sys.unraisablehook = self._previous_hook
        for signum, previous in self._previous.items():
            if signal.getsignal(signum) == self._handle:
                signal.signal(signum, previous)


def _leave_to_parent(reference: "weakref.ref[Interrupts]") -> None:
    interrupts = reference()
    if interrupts is not None:
        interrupts._forget()  # noqa: SLF001  (this module's own)
