"""SIGUSR2 asks for a capture, as `commtrace trigger` does, unless the script has a use of its own for it."""

import os
import signal
import threading
from types import FrameType

from .listener import Listener

_SIGNAL = signal.SIGUSR2


class AskingSignal:
    """Takes the signal from `handle` on. One that comes before there is a listener is remembered."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._listener: Listener | None = None
        self._has_come = False

    def handle(self) -> None:
        """Take the signal for a request, unless the script has a handler. Without any it ends a process."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(_SIGNAL) in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(_SIGNAL, self._received)
            signal.siginterrupt(_SIGNAL, False)

    def goes_to(self, listener: Listener | None) -> None:
        """Pass requests on to this from now on; None for nobody."""
        self._listener = listener
        if listener is not None and self._has_come:
            listener.ask()

    def ignore(self) -> None:
        """A request that comes too late must not end the process."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) == self._received:
            signal.signal(_SIGNAL, signal.SIG_IGN)

    def _received(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  (the signature of a handler)
        if self._listener is not None and os.getpid() == self._pid:
            self._listener.ask()
        else:
            self._has_come = True
