"""A signal while blocked below Python for good, when one of two cycles is traced: `... RUN_DIR SIGNAL`.

So it is with gloo, which cannot be aborted, behind a peer that has stopped. The analysis has a stand-in.
"""

import ctypes
import os
import signal
import sys
import threading

import torch

from commtrace import capture
from commtrace.profiling.sessions import session as sessions
from commtrace.profiling.sessions.afterwards import conclusion
from commtrace.profiling.sessions.afterwards.aside import Printed

mutex = ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
libc.pthread_mutex_lock(mutex)
sessions.BLOCKED_GRACE_S = 0.2
conclusion.run_aside = lambda arguments, is_over: Printed(f"the {arguments[0]}" if arguments[0] == "summary" else "")

with capture(sys.argv[1], device="cpu", wait=0, active=1, repeat=2, analyse=True) as session:
    for _ in range(2):
        torch.ones(8, 8) @ torch.ones(8, 8)
        session.step()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.Signals[sys.argv[2]])).start()
    libc.pthread_mutex_lock(mutex)
