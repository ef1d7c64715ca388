"""Process settings before traces are read or tables made, with the time that each saves.

docs/design/0007 says more about the measurements. None of this changes a result.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_KEPT_BYTES = 16 << 20
_OWN_FILES = 64


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Disable garbage collection in the block, and freeze what it allocated. Imports: a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def stop_garbage_collection() -> None:
    """Stop garbage collection in processes that only read: events have no cycles. Saves a tenth."""
    gc.disable()


def keep_freed_memory() -> None:
    """Let the C library keep what one chunk needed for the next one: reading takes 3 to 9 % less time.

    glibc gives back what is free at the end of its heap, beyond twice the largest block it ever mapped by itself and
    freed: so one such block does it, which is never touched. Elsewhere this changes nothing.
    """
    bytes(_KEPT_BYTES // 2)


def return_freed_memory() -> None:
    """Give memory that is free back to the system, where the C library can.

    Tables of many ranks that are joined leave as much behind in small blocks: 1 GB of 1,024 ranks.
    """
    import ctypes

    with suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def start_no_blas_threads() -> None:
    """Start no BLAS threads: importing NumPy then takes 0.17 s instead of 0.23 s on two cores.

    It has to come before that import.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def allow_open_files(count: int) -> None:
    """Allow `count` open files beside our own, or as many as the system permits; usually it is 1,024 in all."""
    try:
        import resource
    except ImportError:  # not on Windows, where the limit is another one
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OWN_FILES if hard == resource.RLIM_INFINITY else min(count + _OWN_FILES, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def interrupts_end_quietly() -> Iterator[None]:
    """Let Ctrl-C end the program without a traceback in the block, before `main` runs."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def finishing_writes() -> Iterator[None]:
    """End the block by SystemExit at SIGTERM and SIGHUP, so that other threads finish their files.

    These have the signals blocked, but the process has other threads, whose default would end it in the midst of that.
    In another thread than the main one, and where a signal is handled already, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for each in signals:
        signal.signal(each, _end)
    try:
        yield
    finally:
        for each in signals:
            signal.signal(each, signal.SIG_DFL)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)
