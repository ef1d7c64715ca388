"""What stacks of a snapshot say of an allocation: the user's own line, phase, operator, and whether it communicates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...core.allocator import Snapshot, StackFrame
from ..functions import is_users_file
from ..regions.nesting import BACKWARD, DIRECT, RECOMPUTE
from .places import OPTIMIZER

_OPERATOR = re.compile(r"at::_ops::(\w+)::")
_ENGINE = ("autograd::Engine", "_engine_run_backward")
_TORCH = re.compile(r"[\\/]torch[\\/]")
_OPTIMIZER = re.compile(r"[\\/]torch[\\/]optim[\\/]")
_CHECKPOINT = re.compile(r"[\\/]torch[\\/]utils[\\/]checkpoint\.py$")
_COMMUNICATING = re.compile(
    r"[\\/]torch[\\/]distributed[\\/](?:distributed_c10d|_functional_collectives|fsdp[\\/]|_composable[\\/]fsdp)"
)
_OWN = re.compile(r"[\\/](?:commtrace|profiling)[\\/]")
_BACKSLASH = "\\"
_CELL = ("<ipython-input", "<cell")


class Told(NamedTuple):
    """What a stack says of an allocation; `phase` is one of `places.PHASE_NAMES` by its place."""

    line: str | None
    phase: int
    operator: str | None
    is_communicating: bool


def told_by_stacks(snapshot: Snapshot) -> list[Told]:
    """What each stack says, and as the last one (that of NO_STACK), what it says that there is none.

    Python is on the stack of every thread that runs the program. Where other allocations have stacks, one without
    Python is of autograd's own threads, which run the backward pass.
    """
    frames = snapshot.frames
    found = [_told([frames[number] for number in stack]) for stack in snapshot.stacks]
    nothing = Told(None, BACKWARD if any(one.line is not None for one in found) else DIRECT, None, False)
    return [*found, nothing]


def _told(stack: Sequence[StackFrame]) -> Told:
    is_backward = any(mark in frame.name for frame in stack for mark in _ENGINE)
    phase = DIRECT
    if is_backward:
        phase = RECOMPUTE if _recomputes(stack) else BACKWARD
    elif any(_OPTIMIZER.search(frame.filename) for frame in stack):
        phase = OPTIMIZER
    operators = (_OPERATOR.search(frame.name) for frame in stack)
    operator = next((f"aten::{found[1]}" for found in operators if found), None)
    return Told(_line(stack), phase, operator, any(_COMMUNICATING.search(frame.filename) for frame in stack))


def _recomputes(stack: Sequence[StackFrame]) -> bool:
    """Whether a checkpointed region runs again, inside of the engine."""
    for frame in stack:  # innermost first
        if _CHECKPOINT.search(frame.filename):
            return True
        if any(mark in frame.name for mark in _ENGINE):
            return False
    return False


def _line(stack: Sequence[StackFrame]) -> str | None:
    """`train.py:31`, the innermost line of the user's own code; None if there is none."""
    for frame in stack:
        path = frame.filename
        is_python = path.endswith(".py") or path.startswith(_CELL)
        if is_python and is_users_file(path) and not _TORCH.search(path) and not _OWN.search(path):
            return f"{path.replace(_BACKSLASH, '/').rpartition('/')[2]}:{frame.line}"
    return None
