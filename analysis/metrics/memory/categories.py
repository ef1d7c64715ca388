"""What each block of memory is for, by the phase in which it was allocated and how long it was held.

The program goes from one phase to the next: forward, backward, optimizer, forward ... A block that is released in the
phase in which it was allocated is a temporary. One of a forward pass that is held into a backward pass is an
activation; one of a backward pass that outlives it, a gradient; one of an optimizer's step that outlives it and is held
through a whole step, or to the end, is state of the optimizer.

Nothing in these events says which tensor a block holds, so other rules cannot be had from them. Source of the terms:
torch/profiler/_memory_profiler.py, `Category`, which needs stacks and shapes, and is of one rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import Flags
from ...core.steps import NO_STEP
from ..regions.nesting import BACKWARD, RECOMPUTE
from .held import BEFORE, DeviceMemory
from .places import OPTIMIZER, Places, is_backward
from .rounds import IN_STEPS, Rounds, segments

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
ACTIVATIONS, TEMPORARIES = "activations", "temporaries"
COMMUNICATION_BUFFERS, UNKNOWN_USE, OLDER = "communication buffers", "unknown", "before the trace"
BLOCK_CATEGORIES = (PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, TEMPORARIES, COMMUNICATION_BUFFERS, UNKNOWN_USE, OLDER)
"""What blocks are for, in the order in which people look for it. The last one was allocated before the first event."""


def categories_of(memory: DeviceMemory, places: Places, passes: Rounds) -> NDArray[Any]:
    """The category of each block, one of BLOCK_CATEGORIES; what the source knows counts. `passes` are steps or cycles.

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
    segment, _ = segments(places)
    same = segment[begin] == segment[end]
    covers = held_through_one(memory, passes)
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
    category[_like_parameters(memory, places, passes, known & forward & covers, category == GRADIENTS)] = PARAMETERS
    category[places.is_communicating[begin]] = COMMUNICATION_BUFFERS
    category[~known] = OLDER
    told = blocks.category != None  # noqa: E711 - of each
    category[told] = blocks.category[told]
    return category


def held_through_one(memory: DeviceMemory, passes: Rounds) -> Flags:
    """Whether each block is held from the beginning of some step or cycle to its end, at least."""
    blocks = memory.blocks
    covers = np.zeros(len(blocks), dtype=bool)
    for start_event, end_event in passes.bounds:
        covers |= (blocks.allocated <= start_event) & (blocks.freed > end_event)
    return covers


def _like_parameters(memory: DeviceMemory, places: Places, passes: Rounds, may_be: Flags, gradients: Flags) -> Flags:
    """Which blocks from outside of all steps are as large as a gradient: each parameter has one of its size.

    Where no steps are marked, those from before the end of the first backward pass.
    """
    outside = places.step[np.maximum(memory.blocks.allocated, 0)] == NO_STEP
    if passes.per != IN_STEPS and passes.bounds:
        outside &= memory.blocks.allocated <= passes.bounds[0][1]
    sizes = memory.blocks.size_bytes
    found: Flags = may_be & outside & np.isin(sizes, np.unique(sizes[gradients]))
    return found
