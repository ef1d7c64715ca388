"""Measure the time of calls made back to back, on the clock of the device that runs them."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ..sessions.device_queue import LONGEST_BUSY_NS, keep_busy
from ..sessions.step_clock import finish, mark

_SAMPLE = 4
# A device that takes so many times as long as the host needs to queue is not waiting for it.
_HOST_BOUND = 4
_MARGIN = 1.5
_TRIES, _LONGER = 3, 4  # of keeping the device busy, each so many times as long as the one before


def together(device: torch.device) -> None:
    """Wait until all ranks are here and the device is idle."""
    dist.barrier()
    finish(device)


def back_to_back_ns(
    call: Callable[[], object],
    times: int,
    device: torch.device,
    largest: Callable[[float], float] = lambda of_this_rank: of_this_rank,
) -> float:
    """Mean time of one of `times` consecutive calls, in ns; every rank measures at once.

    All ranks begin together. On a GPU, small calls take less time than Python needs to make them: so the device is kept
    busy until all of them are queued, and their own time is what is measured. Ranks agree on how long, by `largest`,
    which returns the largest value of all ranks: a rank that was busy for a shorter time would measure how long the
    others still are. A call before the first timed one makes up for hosts that do not begin at the same moment: it ends
    everywhere when the last rank has come. Where a device had no work left for a moment, all ranks measure again.
    """
    if device.type == "cpu":
        together(device)
        return _timed(call, times, device)[0]
    ahead_ns = largest(_queueing_ns(call, times + 1, device))
    for tries in reversed(range(_TRIES)):
        together(device)
        if ahead_ns:
            keep_busy(device, ahead_ns)
        call()
        time_ns, was_ahead = _timed(call, times, device)
        if tries == 0 or not ahead_ns or not largest(float(not was_ahead)):
            break
        ahead_ns = min(_LONGER * ahead_ns, LONGEST_BUSY_NS)
    return time_ns


def _timed(call: Callable[[], object], times: int, device: torch.device) -> tuple[float, bool]:
    """Mean time of a call in ns, and whether the host had queued all of them before the device began."""
    begin = mark(device)
    for _ in range(times):
        call()
    end = mark(device)
    was_ahead = not begin.reached()
    finish(device)
    return begin.ns_until(end) / times, was_ahead


def _queueing_ns(call: Callable[[], object], times: int, device: torch.device) -> float:
    """Time that the host takes to queue `times` calls, with a margin; 0 if the device takes longer."""
    together(device)
    begun_ns = time.perf_counter_ns()
    for _ in range(_SAMPLE):
        call()
    queued_ns = time.perf_counter_ns() - begun_ns
    finish(device)
    done_ns = time.perf_counter_ns() - begun_ns
    if done_ns > _HOST_BOUND * queued_ns:
        return 0.0
    return min(_MARGIN * queued_ns / _SAMPLE * times, LONGEST_BUSY_NS)


def repeat(call: Callable[[], object], times: int, device: torch.device) -> None:
    """Make the calls, and wait until they are done."""
    for _ in range(times):
        call()
    finish(device)
