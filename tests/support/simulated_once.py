"""What many tests compare with: the mean step of simulated worlds, each simulated and analysed once in a process."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from simulator import World, simulate

from commtrace import analyse
from commtrace.analysis.results.analysis import Analysis


def mean_step_ns(analysis: Analysis) -> float:
    """The mean of all windows of steps, over all ranks."""
    return float(analysis.breakdown_steps["window_ns"].mean())


@functools.lru_cache(maxsize=256)
def true_step_ns(world: World) -> float:
    """`mean_step_ns` of this world."""
    with tempfile.TemporaryDirectory() as folder:
        simulate(world).write(Path(folder))
        return mean_step_ns(analyse(folder))
