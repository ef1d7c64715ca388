"""How what is held changes over a step, by category: the points of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import Ints
from ...core.schema import Row
from ...core.steps import Mark
from .categories import BLOCK_CATEGORIES, OLDER
from .held import BEFORE, DeviceMemory
from .rounds import step_events

_MOST_POINTS = 160
"""Of a step: more are not told apart in a picture."""


def curve_of_step(memory: DeviceMemory, category: NDArray[Any], marks: Sequence[Mark], step: int) -> list[Row]:
    """What is held at some moments of a step, with its peak among them: `time_ns` since it began, and each category.

    `category` is that of each block; `marks` are those of the steps. Empty where blocks are not known.
    """
    events = step_events(memory, marks).get(step)
    began = [start for name, start, _ in marks if name.endswith(f"#{step}")]
    if events is None or events[1] == BEFORE or not memory.knows_blocks or not memory.counts_all or not began:
        return []
    first, last = max(events[0], 0), events[1]
    peak = memory.peak_within(first, last)
    points = np.unique(np.append(np.linspace(first, last, min(_MOST_POINTS, last - first + 1)).astype(np.int64), peak))
    held = _by_category(memory, category)[:, points]
    held[BLOCK_CATEGORIES.index(OLDER)] += memory.allocated_bytes[points] - held.sum(axis=0)
    times = np.maximum(memory.time_ns[points] - began[0], 0)
    return [
        {"time_ns": int(time), **dict(zip(BLOCK_CATEGORIES, sizes, strict=True))}
        for time, sizes in zip(times, held.T.tolist(), strict=True)
    ]


def _by_category(memory: DeviceMemory, category: NDArray[Any]) -> Ints:
    """Bytes of known blocks that are held from each event on, of shape (categories, events)."""
    blocks, events = memory.blocks, memory.events
    changes = np.zeros((len(BLOCK_CATEGORIES), events + 1), dtype=np.int64)
    codes = np.array([BLOCK_CATEGORIES.index(each) for each in category], dtype=np.int64)
    np.add.at(changes, (codes, np.maximum(blocks.allocated, 0)), blocks.size_bytes)
    np.add.at(changes, (codes, blocks.freed), -blocks.size_bytes)
    return np.cumsum(changes, axis=1)[:, :events]
