"""Keep a GPU busy, so that work queued meanwhile runs without waiting for the host."""

from functools import cache

import torch

from ..base.torch_private import busy_cycles
from .step_clock import finish, mark

LONGEST_BUSY_NS = 1e9
"""A queue holds some thousand kernels; then the host waits, however long the device is kept busy."""
_CYCLES = 1_000_000


def keep_busy(device: torch.device, duration_ns: float) -> None:
    """Keep the current stream of a GPU busy for about `duration_ns`, while the host goes on."""
    busy_cycles(round(duration_ns / _ns_per_cycle(device)))


@cache
def _ns_per_cycle(device: torch.device) -> float:
    begin = mark(device)
    busy_cycles(_CYCLES)
    end = mark(device)
    finish(device)
    return max(begin.ns_until(end), 1) / _CYCLES
