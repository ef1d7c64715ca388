"""From true time to the times that a rank's trace shows."""

from __future__ import annotations

from dataclasses import dataclass

from .world import Clocks, World

EPOCH_NS = 1_759_300_074_000_000_000
"""What a right clock shows at true time 0, in ns since 1970."""


@dataclass(frozen=True)
class RankClock:
    """The clocks of one rank; us of true time -> ns since 1970, whole microseconds if `whole_us`."""

    offset_us: float
    ppm: float
    gpu_error_us: float
    whole_us: bool

    def cpu_ns(self, true_us: float) -> int:
        """What the host's clock shows."""
        shown = EPOCH_NS + round((true_us + self.offset_us + true_us * self.ppm / 1e6) * 1000)
        return shown // 1000 * 1000 if self.whole_us else shown

    def gpu_ns(self, true_us: float) -> int:
        """What the times of its GPU say."""
        return self.cpu_ns(true_us + self.gpu_error_us)


def clock_of(world: World, rank: int) -> RankClock:
    """The clocks of a rank."""
    clocks: Clocks = world.clocks
    host = world.host_of(rank)
    return RankClock(
        _nth(clocks.offset_us, host), _nth(clocks.ppm, host), _nth(clocks.gpu_error_us, rank), world.layout.whole_us
    )


def _nth(values: tuple[float, ...], index: int) -> float:
    """The value at a place, the first ones again where there are too few, 0 where there are none."""
    return values[index % len(values)] if values else 0.0
