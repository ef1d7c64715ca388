"""What each block of memory is for, by the phase in which it was allocated and how long it was held.

The program goes from one phase to the next: forward, backward, optimizer, forward ... A block that is released in the
phase in which it was allocated is a temporary. One of a forward pass that is held into a backward pass is an
activation; one of a backward pass that outlives it, a gradient; one of an optimizer's step that outlives it and is held
through a whole step, or to the end, is state of the optimizer.

Nothing in these events says which tensor a block holds, so other rules cannot be had from them. Source of the terms:
torch/profiler/_memory_profiler.py, `Category`, which needs stacks and shapes, and is of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import markers
from ...core.steps import NO_STEP, Mark
from ..clocks.frame import Flags, Ints
from ..regions.nesting import BACKWARD, RECOMPUTE
from .held import BEFORE, DeviceMemory
from .places import OPTIMIZER, Places, is_backward

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
ACTIVATIONS, TEMPORARIES = "activations", "temporaries"
COMMUNICATION_BUFFERS, UNKNOWN_USE, OLDER = "communication buffers", "unknown", "before the trace"
BLOCK_CATEGORIES = (PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, TEMPORARIES, COMMUNICATION_BUFFERS, UNKNOWN_USE, OLDER)
"""What blocks are for, in the order in which people look for it. The last one was allocated before the first event."""


def categories_of(memory: DeviceMemory, places: Places, marks: Sequence[Mark]) -> NDArray[Any]:
    """The category of each block, one of BLOCK_CATEGORIES; what the source knows counts. `marks` are those of steps.

    Where it is not known by the end for how long a block is held, it is `unknown`.
    """
    blocks, events = memory.blocks, memory.events
    category = np.full(len(blocks), UNKNOWN_USE, dtype=object)
    if not len(blocks):
        return category
    known = blocks.allocated != BEFORE
    begin = np.maximum(blocks.allocated, 0)
    outlives = blocks.freed == events
    end = np.minimum(blocks.freed, events - 1)
    phase = places.phase[begin]
    segment = _segments(places)
    same = segment[begin] == segment[end]
    covers = held_through_a_step(memory, marks)
    into_backward = np.cumsum(is_backward(places.phase))[end] > np.cumsum(is_backward(places.phase))[begin]

    forward = ~is_backward(phase) & (phase != OPTIMIZER)
    category[forward & into_backward & ~covers] = ACTIVATIONS
    category[forward & ~into_backward & ~outlives & ~covers] = TEMPORARIES
    backward = is_backward(phase)
    category[backward & ~same] = GRADIENTS
    category[backward & same & ~outlives] = TEMPORARIES
    category[backward & same & ~outlives & (phase == RECOMPUTE) & (places.phase[end] == BACKWARD)] = ACTIVATIONS
    optimizer = phase == OPTIMIZER
    category[optimizer & ~outlives & ~covers] = TEMPORARIES
    category[optimizer & ~same & (outlives | covers)] = STATE
    category[_like_parameters(memory, places, known & forward & covers, category == GRADIENTS)] = PARAMETERS
    category[places.is_communicating[begin]] = COMMUNICATION_BUFFERS
    category[~known] = OLDER
    told = blocks.category != None  # noqa: E711 - of each
    category[told] = blocks.category[told]
    return category


def _segments(places: Places) -> Ints:
    """The number of the phase that each event is in: these follow each other, recomputation within a backward pass.

    Threads beside that of the steps and autograd's, such as those of gloo, are in no phase of their own.
    """
    alike = np.where(places.phase == RECOMPUTE, BACKWARD, places.phase)
    last = np.maximum.accumulate(np.where(places.is_main, np.arange(len(alike)), 0))
    alike = alike[last]
    return np.append(0, np.cumsum(alike[1:] != alike[:-1]))[: len(alike)]


def held_through_a_step(memory: DeviceMemory, marks: Sequence[Mark]) -> Flags:
    """Whether each block is held from the beginning of some step to its end, at least."""
    blocks = memory.blocks
    covers = np.zeros(len(blocks), dtype=bool)
    for start_event, end_event in step_events(memory, marks).values():
        covers |= (blocks.allocated <= start_event) & (blocks.freed > end_event)
    return covers


def step_events(memory: DeviceMemory, marks: Sequence[Mark]) -> dict[int, tuple[int, int]]:
    """The last event before each step began, and the last one in it; by the number of the step, ascending."""
    found = {}
    for name, start, dur in marks:
        if name.startswith(markers.PROFILER_STEP):
            number = int(name.removeprefix(markers.PROFILER_STEP))
            found[number] = memory.event_at(start - 1), memory.event_at(start + dur)
    return dict(sorted(found.items()))


def _like_parameters(memory: DeviceMemory, places: Places, may_be: Flags, gradients: Flags) -> Flags:
    """Which blocks from outside of all steps are as large as a gradient: each parameter has one of its size."""
    outside = places.step[np.maximum(memory.blocks.allocated, 0)] == NO_STEP
    sizes = memory.blocks.size_bytes
    found: Flags = may_be & outside & np.isin(sizes, np.unique(sizes[gradients]))
    return found
