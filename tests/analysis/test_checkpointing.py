"""What checkpointing saves, beside the same programs played with it: layers drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from commtrace.analysis.metrics.memory.categories import ACTIVATIONS, TEMPORARIES
from commtrace.analysis.metrics.memory.held import Blocks, DeviceMemory
from commtrace.analysis.metrics.memory.places import Places
from commtrace.analysis.metrics.memory.recomputing import Recomputed, recomputed_regions
from commtrace.analysis.metrics.regions.nesting import BACKWARD, DIRECT, RegionPaths

HANDED_ON = "out"


class Event(NamedTuple):
    """An allocation, or a release where the size is negative, of a block in the pass of a layer."""

    layer: int
    phase: int
    block: str
    size: int


class Layers(NamedTuple):
    """Layers by the sizes of what each keeps for its backward pass; the last one of a layer is what it hands on.

    `keeps_output`: whether a layer needs that itself in its backward pass, as a ReLU does.
    """

    sizes: Sequence[Sequence[int]]
    keeps_output: bool

    def events(self, *, checkpointed: bool) -> list[Event]:
        """All of a forward and a backward pass."""
        found: list[Event] = []
        last = len(self.sizes) - 1
        for layer, sizes in enumerate(self.sizes):
            own = self._kept(layer, DIRECT, 1)
            found += [*own, Event(layer, DIRECT, f"{HANDED_ON} {layer}", sizes[-1])]
            found += self._kept(layer, DIRECT, -1) if checkpointed else []
        for layer in range(last, -1, -1):
            if layer == last and not self.keeps_output:  # what the loss made of it is done
                found.append(Event(last + 1, BACKWARD, f"{HANDED_ON} {last}", -self.sizes[last][-1]))
            found += self._kept(layer, BACKWARD, 1) if checkpointed else []
            found.append(Event(layer, BACKWARD, f"gradient {layer}", 50))
            found += self._kept(layer, BACKWARD, -1)
            released = layer if self.keeps_output else layer - 1
            if released >= 0:
                found.append(Event(layer, BACKWARD, f"{HANDED_ON} {released}", -self.sizes[released][-1]))
            found.append(Event(layer, BACKWARD, f"gradient {layer}", -50))
        return found

    def _kept(self, layer: int, phase: int, sign: int) -> list[Event]:
        return [Event(layer, phase, f"{number} of {layer}", sign * size)
                for number, size in enumerate(self.sizes[layer][:-1])]  # fmt: skip


def drawn(seed: int, *, keeps_output: bool) -> Layers:
    rng = random.Random(seed)
    sizes = [[rng.randrange(10, 400) for _ in range(rng.randrange(2, 6))] for _ in range(rng.randrange(1, 7))]
    return Layers(sizes, keeps_output)


def peak_of(events: Sequence[Event]) -> int:
    return int(np.cumsum([event.size for event in events]).max())


def recomputed(events: Sequence[Event]) -> list[Recomputed]:
    """As the analysis sees these events; each layer is a region `layers.N`."""
    paths = RegionPaths()
    region = np.array([paths.inside(0, f"layers.{event.layer}") for event in events])
    phase = np.array([event.phase for event in events])
    begun: dict[str, int] = {}
    lives: list[tuple[int, int, int, str]] = []
    for number, event in enumerate(events):
        if event.size > 0:
            begun[event.block] = number
        else:
            lives.append((-event.size, begun.pop(event.block), number, event.block))
    assert not begun
    lives.sort(key=lambda life: life[1])
    sizes, allocated, freed = (np.array(column, dtype=np.int64) for column in list(zip(*lives, strict=True))[:3])
    category = np.array([TEMPORARIES if life[3].startswith("gradient") else ACTIVATIONS for life in lives])
    nothing = np.full(len(events), None, dtype=object)
    memory = DeviceMemory(
        rank=0,
        cycle=0,
        device="0",
        time_ns=np.arange(len(events)),
        allocated_bytes=np.cumsum([event.size for event in events]),
        reserved_bytes=np.zeros(len(events), dtype=np.int64),
        thread=np.zeros(len(events), dtype=np.int64),
        blocks=Blocks.of(sizes, allocated, freed),
    )
    flags = np.ones(len(events), dtype=bool)
    places = Places(paths, region, phase, nothing, nothing, ~flags, flags, np.zeros(len(events), dtype=np.int64))
    return [*recomputed_regions(memory, category, places)]


@pytest.mark.parametrize("seed", range(40))
def test_it_saves_what_the_program_with_checkpoints_saves(seed):
    layers = drawn(seed, keeps_output=False)
    plain, checkpointed = layers.events(checkpointed=False), layers.events(checkpointed=True)
    saved = peak_of(plain) - peak_of(checkpointed)
    [found] = recomputed(plain)
    assert (found.saves_low_bytes, found.saves_high_bytes) == (saved, saved)
    assert found.region == "layers.*"


@pytest.mark.parametrize("seed", range(40))
def test_it_is_an_interval_where_layers_keep_what_they_hand_on(seed):
    layers = drawn(seed, keeps_output=True)
    for own in layers.sizes:
        own.sort()  # what is handed on is no larger than this
    plain, checkpointed = layers.events(checkpointed=False), layers.events(checkpointed=True)
    [found] = recomputed(plain)
    assert found.saves_low_bytes <= peak_of(plain) - peak_of(checkpointed) <= found.saves_high_bytes


def test_what_is_held_at_the_peak_is_counted():
    layers = Layers([[100, 30], [200, 40]], keeps_output=False)
    [found] = recomputed(layers.events(checkpointed=False))
    assert found.activations_bytes == 100 + 30 + 200  # of the last one, what it hands on is gone
    assert found.regions == ("layers.0", "layers.1")


def test_nothing_is_said_of_runs_without_activations():
    assert recomputed([Event(0, BACKWARD, "gradient 0", 50), Event(0, BACKWARD, "gradient 0", -50)]) == []
