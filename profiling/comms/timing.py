"""How long calls take: back to back between two marks, on the clock of the device that runs them."""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist

from ..sessions.step_clock import finish, mark


def together(device: torch.device) -> None:
    """Return on all ranks at about the same time, with nothing left to do on the device."""
    dist.barrier()
    finish(device)


def back_to_back_ns(call: Callable[[], object], times: int, device: torch.device) -> float:
    """Mean time of one of `times` calls made one right after another, in ns."""
    begin = mark(device)
    for _ in range(times):
        call()
    end = mark(device)
    finish(device)
    return begin.ns_until(end) / times


def one_by_one_ns(call: Callable[[], object], times: int, device: torch.device) -> list[int]:
    """Time of each of `times` calls made one right after another, in ns."""
    marks = [mark(device)]
    for _ in range(times):
        call()
        marks.append(mark(device))
    finish(device)
    return [begin.ns_until(end) for begin, end in pairwise(marks)]


def repeat(call: Callable[[], object], times: int, device: torch.device) -> None:
    """Make the call, and wait until it is done."""
    for _ in range(times):
        call()
    finish(device)
