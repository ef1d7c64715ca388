"""Random numbers that depend on where they are used, not on the order of use: with and without an injection the same.

Each comes from (seed, purpose, place).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

_OF_STEP, _OF_GROUP, _OF_RANK, _OF_LOSS, _OF_ENDS = range(1, 6)
_BLOCK, _ALIKE_TURNS = 64, 4
CPU, DURATION, LAUNCH, END = range(4)
NOTHING_DRAWN = (0.0, 0.0, 0.0, 0.0)

Row = tuple[float, float, float, float]


def keyed(*key: int) -> np.random.Generator:
    """Random numbers of this key."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


@dataclass
class Draws:
    """All random numbers of a world; standard normal, but for losses."""

    seed: int
    transfers: dict[tuple[object, int], NDArray[np.float64]] = field(default_factory=dict)

    def of_step(self, rank: int, step: int, count: int) -> list[Row]:
        """One row for each of `count` operations: CPU, DURATION, LAUNCH, END."""
        rows: list[Row] = keyed(self.seed, _OF_STEP, rank, step).standard_normal((count, 4)).tolist()
        return rows

    def losses(self, rank: int, step: int, count: int) -> list[float]:
        """0..1 for each of `count` operations."""
        drawn: list[float] = keyed(self.seed, _OF_LOSS, rank, step).random(count).tolist()
        return drawn

    def uneven(self, rank: int, what: tuple[object, ...], turn: int) -> float:
        """0..1: how much later than others a rank ends such calls; half of it always, half as in the turns nearby."""
        key = crc32(repr(what).encode())
        always = keyed(self.seed, _OF_ENDS, rank, key).random()
        nearby = keyed(self.seed, _OF_ENDS, rank, key, 1 + turn // _ALIKE_TURNS).random()
        return (always + nearby) / 2

    def of_rank(self, rank: int) -> tuple[float, float]:
        """Two for a rank as a whole."""
        first, second = keyed(self.seed, _OF_RANK, rank).standard_normal(2).tolist()
        return first, second

    def transfer(self, what: tuple[object, ...], turn: int) -> float:
        """For the time that the transfer number `turn` of a group or pair takes."""
        block = turn // _BLOCK
        if (what, block) not in self.transfers:
            key = crc32(repr(what).encode())
            self.transfers[what, block] = keyed(self.seed, _OF_GROUP, key, block).standard_normal(_BLOCK)
        return float(self.transfers[what, block][turn % _BLOCK])
