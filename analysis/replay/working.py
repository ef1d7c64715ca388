"""How long a rank's CPU worked before each call that matters to its device.

Those calls are launches and calls that wait for the device. All other calls, such as cudaEventQuery,
cudaStreamIsCapturing or cudaMalloc, are part of the work in which they happen. Threads that launch take turns, as those
of forward and backward do: what passes between two launches is work of the later one, whatever thread made the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.arrays import Ints
from .playing import Playing, once
from .programs import NONE


@dataclass(frozen=True)
class Work:
    """What each activity takes on the device, and the CPU work since the launch before its own; columns of shape (n,).

    Communication takes no time here. `waits` calls that wait for the device lie between the launches: `launching_ns`
    comes after the last of them, `blocking_ns` before. `held_by` is the one of them before which, or in which, most of
    `blocking_ns` passed; NONE where there is none.
    """

    on_device_ns: Ints
    launching_ns: Ints
    blocking_ns: Ints
    held_by: Ints
    waits: Ints


@once
def work_of(member: Playing) -> Work:
    """The work of a rank. Without a GPU, that of its CPU is the distance from the activity before."""
    on_device = np.where(member.program.is_comm, 0, member.duration)
    return Work(on_device, *_before_calls(member), _waits_before(member))


def _before_calls(member: Playing) -> tuple[Ints, Ints, Ints]:
    """CPU work after and before calls that wait, and which of these holds most of it."""
    program = member.program
    launching, blocking = np.zeros((2, len(program)), dtype=np.int64)
    held = np.full(len(program), NONE)
    if program.issued_by is not None:
        return np.where(program.paced, member.delay, 0), blocking, held
    known = program.launch != NONE
    is_launch, is_block = np.zeros((2, len(program.call_start)), dtype=bool)
    is_launch[program.launch[known]] = True
    is_block[list(member.edges.blocks)] = True
    calls = np.flatnonzero(is_launch | is_block)
    if not known.any():
        return launching, blocking, held
    begin, end = program.call_start[calls], program.call_end[calls]
    free = np.maximum.accumulate(np.where(is_block[calls], end, begin))
    # A call that had not to wait took its time for something else.
    at_once = np.zeros(len(program.call_start), dtype=bool)
    at_once[[call for call, late in member.returns.items() if late < 0]] = True
    needless = ~is_launch[calls] & at_once[calls]
    begun = int(begin[0]) if program.begun_ns is None else program.begun_ns
    work = np.maximum(np.where(needless, end, begin) - np.append(begun, free[:-1]), 0)
    launches, blocks = np.flatnonzero(is_launch[calls]), np.flatnonzero(~is_launch[calls])
    following = np.searchsorted(launches, blocks)
    blocked, most = np.zeros(len(launches) + 1, dtype=np.int64), np.full(len(launches) + 1, NONE)
    np.add.at(blocked, following, work[blocks])
    longest_last = np.argsort(work[blocks], kind="stable")
    most[following[longest_last]] = calls[blocks[longest_last]]
    of = np.searchsorted(calls[launches], program.launch[known])
    launching[known], blocking[known], held[known] = work[launches][of], blocked[of], most[of]
    return launching, blocking, held


def _waits_before(member: Playing) -> Ints:
    """How often the CPU waits for the device between the launch before and each activity's launch."""
    program = member.program
    known = program.launch != NONE
    launches = np.unique(program.launch[known])
    blocks = np.setdiff1d(np.array(list(member.edges.blocks), dtype=np.int64), launches)
    counts = np.bincount(np.searchsorted(launches, blocks), minlength=len(launches) + 1)
    result = np.zeros(len(program), dtype=np.int64)
    result[known] = counts[np.searchsorted(launches, program.launch[known])]
    return result
