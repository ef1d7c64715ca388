"""What became of an operation: moments are numbers in the graph, -1 for none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .ops import Op


@dataclass(slots=True)
class Ran:
    """One operation of one rank.

    The CPU is at it from `begin` to `done`, for `cost_us` of which nothing holds it up, which ends at `drained` for a
    call that blocks. On the GPU it runs from `start` to `end`; `needed` is when the last rank that it needs had
    started. `collectives` are the numbers of those it takes part in, `turn` its number among its group's on this rank.
    """

    rank: int
    step: int
    key: int
    op: Op
    begin: int
    done: int
    cost_us: float
    drained: int = -1
    stream: int = -1
    start: int = -1
    end: int = -1
    needed: int = -1
    noise_us: float = 0.0
    turn: int = 0
    collectives: list[int] = field(default_factory=list)


class StepRan(NamedTuple):
    """A step of one rank: moments at which its CPU began it and was done, and when a profiler that ends there had."""

    step: int
    begin: int
    done: int
    stopped: int
