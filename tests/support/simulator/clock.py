"""From true time to the times that a rank's trace shows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .world import Clocks, Jump, World

EPOCH_NS = 1_759_300_074_000_000_000
"""What a right clock shows at true time 0, in ns since 1970."""


@dataclass(frozen=True)
class RankClock:
    """The clocks of one rank; us of true time -> ns since 1970, whole microseconds if `whole_us`."""

    offset_us: float
    ppm: float
    gpu_error_us: float
    whole_us: bool
    jumps: tuple[Jump, ...] = ()
    warm_us: float = 0.0
    warming_us: float = 1.0

    def shown_us(self, true_us: float) -> float:
        """What the host's clock shows, in us since `EPOCH_NS`, before it is written."""
        jumped = sum(jump.by_us for jump in self.jumps if true_us >= jump.at_us)
        warmed = self.warm_us * (1 - math.exp(-max(true_us, 0.0) / self.warming_us))
        return true_us + self.offset_us + true_us * self.ppm / 1e6 + jumped + warmed

    def cpu_ns(self, true_us: float) -> int:
        """What the host's clock shows."""
        shown = EPOCH_NS + round(self.shown_us(true_us) * 1000)
        return shown // 1000 * 1000 if self.whole_us else shown

    def gpu_ns(self, true_us: float) -> int:
        """What the times of its GPU say."""
        return self.cpu_ns(true_us + self.gpu_error_us)


def clock_of(world: World, rank: int) -> RankClock:
    """The clocks of a rank."""
    clocks: Clocks = world.clocks
    host = world.host_of(rank)
    return RankClock(
        _nth(clocks.offset_us, host),
        _nth(clocks.ppm, host),
        _nth(clocks.gpu_error_us, rank),
        world.layout.whole_us,
        tuple(jump for jump in clocks.jumps if jump.host == host or jump.rank == rank),
        _nth(clocks.warm_us, host),
        clocks.warming_us,
    )


def _nth(values: tuple[float, ...], index: int) -> float:
    """The value at a place, the first ones again where there are too few, 0 where there are none."""
    return values[index % len(values)] if values else 0.0
