"""Blocks its main thread for good, below Python, and gets a SIGTERM: `blocked.py`. Exits 7 when the watchdog works."""

import ctypes
import os
import signal
import threading

from commtrace.profiling.base.interrupts import Interrupts

calls = []


def leave(signum: signal.Signals) -> None:
    calls.append(signum.name)
    print(*calls, flush=True)
    os._exit(7)


Interrupts(lambda: calls.append("freed"), leave, grace_s=0.2).start()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
mutex = ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)
