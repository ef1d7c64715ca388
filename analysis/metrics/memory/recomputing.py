"""What the peak would be if regions computed their activations again: checkpointing, played on the lives of blocks.

A region that is checkpointed releases what it allocated when its forward pass ends, and allocates it again when its
backward pass begins. It keeps what goes in, which a region before it has handed on, so of each region what it hands on
stays: blocks that are released before its own backward pass begins, since those after it have no more use for them.
Where there is none, the bounds are that it is the largest block, and that nothing was handed on.
Source: torch/utils/checkpoint.py, "How It Works".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.arrays import Flags, Ints
from ..regions.nesting import BETWEEN_NAMES, DIRECT
from .categories import ACTIVATIONS
from .held import BEFORE, DeviceMemory
from .places import Places, is_backward


class Recomputed(NamedTuple):
    """A class of regions, as `layers.*`, and what the peak would be lower by if each of them were checkpointed.

    `regions` are their paths; `activations_bytes` is what they hold at the peak.
    """

    region: str
    regions: tuple[str, ...]
    activations_bytes: int
    saves_low_bytes: int
    saves_high_bytes: int


def recomputed_regions(memory: DeviceMemory, category: NDArray[Any], places: Places) -> Iterator[Recomputed]:
    """Yield each class of regions that holds activations at the peak; `category` is that of each block."""
    blocks = memory.blocks
    here = np.append(places.is_main, False)[blocks.allocated]  # BEFORE is nowhere
    kept = np.flatnonzero((category == ACTIVATIONS) & here)
    at_peak = blocks.held_at(memory.peak)[kept]
    if not at_peak.any():
        return
    paths = places.paths
    classes, class_of = paths.folded()
    depths = np.array(paths.depths)
    region = places.region[blocks.allocated[kept]]
    for depth in range(1, int(depths[region[at_peak]].max()) + 1):
        within = paths.cut(depth)
        instance = within[region]
        of_class = np.where(depths[instance] == depth, class_of[instance], -1)
        first, last = _released(kept, instance, within[places.region], memory, places)
        is_handed_on = blocks.freed[kept] <= last
        for number in np.unique(of_class[at_peak & (of_class >= 0)]).tolist():
            own = of_class == number
            most = own & ~is_handed_on
            least = most & ~_largest(blocks.size_bytes[kept], instance, first, own, is_handed_on)
            low, high = (_saved(memory, kept[some], first[some], last[some]) for some in (least, most))
            yield Recomputed(
                classes.text(number),
                tuple(paths.text(path) for path in np.unique(instance[own]).tolist()),
                int(blocks.size_bytes[kept[own & at_peak]].sum()),
                low,
                high,
            )


def _released(kept: Ints, instance: Ints, around: Ints, memory: DeviceMemory, places: Places) -> tuple[Ints, Ints]:
    """The first event at which each of the blocks would be released, and the first at which it would be back.

    `instance` is the region of each, `around` that of each event of the memory.
    """
    blocks = memory.blocks
    allocated, freed = blocks.allocated[kept], blocks.freed[kept]
    main = np.flatnonzero(places.is_main)
    forward = np.where(places.phase[main] == DIRECT, around[main], -1)
    ends = np.append(np.flatnonzero(forward[1:] != forward[:-1]), len(main) - 1)  # of visits to a region
    first = main[ends[np.searchsorted(main[ends], allocated).clip(max=len(ends) - 1)]] + 1
    last = freed.copy()
    backward = np.flatnonzero(is_backward(places.phase))
    for path in np.unique(instance).tolist():
        begins = backward[around[backward] == path]
        own = np.flatnonzero(instance == path)
        place = np.searchsorted(begins, first[own])
        back = np.append(begins, memory.events)[place]
        last[own] = np.minimum(freed[own], back)
    return first, np.maximum(first, last)


def _largest(sizes: Ints, instance: Ints, first: Ints, own: Flags, is_handed_on: Flags) -> Flags:
    """The largest of the blocks of each visit to a region that hands nothing on, as far as is known."""
    rows = np.flatnonzero(own)
    visits = pd.DataFrame(
        {"instance": instance[rows], "first": first[rows], "size": sizes[rows], "known": is_handed_on[rows]}
    ).groupby(["instance", "first"])
    found = np.zeros(len(own), dtype=bool)
    found[rows[visits["size"].idxmax()[~visits["known"].any()].to_numpy()]] = True
    return found


def _saved(memory: DeviceMemory, blocks: Ints, first: Ints, last: Ints) -> int:
    """By how much the peak is lower if these blocks are not there from the first of these events to before the last."""
    change = np.zeros(memory.events + 1, dtype=np.int64)
    sizes = memory.blocks.size_bytes[blocks]
    np.add.at(change, first.clip(max=memory.events), -sizes)
    np.add.at(change, last.clip(max=memory.events), sizes)
    played = memory.allocated_bytes + np.cumsum(change[:-1])
    return memory.allocated_at(memory.peak) - max(int(played.max()), memory.allocated_at(BEFORE))


ForwardTimes = Mapping[tuple[int, str], Mapping[str, float]]
"""For how long a device runs the forward pass of each region in a step, without regions inside, in ns, by its path."""


def forward_times(regions_ranks: pd.DataFrame) -> ForwardTimes:
    """The forward times of each rank and device, from the table of this name: of all that would run again."""
    forward = regions_ranks[regions_ranks["phase"].isna()]
    again = forward[["compute_ns", "exposed_transfer_ns", "exposed_unsplit_ns", "exposed_memory_ns"]].sum(axis=1)
    times: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    for rank, device, region, ns in zip(
        forward["rank"].tolist(), forward["device"].tolist(), forward["region"].tolist(), again.tolist(), strict=True
    ):
        times[rank, device][region] = ns
    return times


def forward_ns(times: Mapping[str, float], regions: Collection[str]) -> float | None:
    """The forward time of these regions with those inside, in ns; None if none of them is known."""
    found = [ns for region, ns in times.items() if any(around in regions for around in _around(region))]
    return sum(found) if found else None


def _around(region: str) -> Iterator[str]:
    """Yield the path of a region and those around it."""
    while region:
        yield region
        region = region.rpartition(BETWEEN_NAMES)[0]
