"""A signal in a traced step, and a `profiler.stop()` that waits for peers: `leaving_blocked.py RUN_DIR SIGNAL`.

A stand-in for CUDA: torch synchronises the device when a profiler stops, and behind a kernel of NCCL whose peers have
stopped that takes until the communicators are aborted. Here stop() waits below Python, until abort_process_groups() is
called.
"""

import ctypes
import signal
import sys

import torch

from commtrace import capture
from commtrace.profiling.ranks import process_group
from commtrace.profiling.sessions import session as sessions

mutex = ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
libc.pthread_mutex_lock(mutex)
stop = torch.profiler.profile.stop


def abort() -> None:
    print("aborted", flush=True)
    libc.pthread_mutex_unlock(mutex)


def stop_behind_peers(profiler: torch.profiler.profile) -> None:
    libc.pthread_mutex_lock(mutex)
    stop(profiler)


process_group.abort_process_groups = abort
sessions.BLOCKED_GRACE_S = 0.3
torch.profiler.profile.stop = stop_behind_peers

with capture(sys.argv[1], device="cpu", wait=1, active=5) as session:
    for step in range(7):
        torch.ones(8, 8) @ torch.ones(8, 8)
        if step == 3:
            signal.raise_signal(signal.Signals[sys.argv[2]])
        session.step()
