"""How long calls take: back to back between two marks, on the clock of the device that does them."""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist

from ..step_clock import CudaMark, HostMark

_Mark = CudaMark | HostMark


def together(device: torch.device) -> None:
    """Return on all ranks at about the same time, with nothing left to do on the device."""
    dist.barrier()
    _finish(device)


def back_to_back_ns(call: Callable[[], object], times: int, device: torch.device) -> float:
    """Mean time of one of `times` calls made one right after another, in ns."""
    begin = _mark(device)
    for _ in range(times):
        call()
    end = _mark(device)
    _finish(device)
    return _ns(begin, end) / times


def one_by_one_ns(call: Callable[[], object], times: int, device: torch.device) -> list[int]:
    """Time of each of `times` calls made one right after another, in ns."""
    marks = [_mark(device)]
    for _ in range(times):
        call()
        marks.append(_mark(device))
    _finish(device)
    return [_ns(begin, end) for begin, end in pairwise(marks)]


def repeat(call: Callable[[], object], times: int, device: torch.device) -> None:
    """Make the call, and see it done."""
    for _ in range(times):
        call()
    _finish(device)


def _mark(device: torch.device) -> _Mark:
    return CudaMark(device) if device.type == "cuda" else HostMark()


def _ns(begin: _Mark, end: _Mark) -> int:
    return begin.ns_until(end)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
