"""End a process that a script forked while watched. Knows no torch."""

import ctypes
from contextlib import suppress


def end_without_kineto() -> None:
    """End this process after Python has, with its exit code and its output written.

    What follows there would be destructors of C++. Kineto's, once it has been started, wait for threads that a forked
    child does not have, for ever, or abort. Of handlers at exit, the last one that is registered runs first.
    """
    with suppress(AttributeError, OSError):  # glibc has both; elsewhere it ends as it can
        libc = ctypes.CDLL(None)
        libc.on_exit(libc["_exit"], None)
        libc["__cxa_atexit"](libc.fflush, None, None)
