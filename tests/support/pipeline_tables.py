"""Tables of operations of pipelined training with known truth: what waits for what, and how long steps take.

The rules are those by which StragglerAnalysis (OSDI '25) replays such tables. Times in us.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

Operation = tuple[int, int, str, int]
"""dp_rank, stage, type, and which of its type in the step."""
Takes = Callable[[Operation], float]
WAYS = ("forward", "backward")
COMPUTE = ("forward-compute", "backward-compute", "gc", "layernorm-grads-all-reduce", "optimizer")


@dataclass(frozen=True)
class Pipeline:
    """So many replicas of so many stages, and microbatches, scheduled one forward, one backward."""

    replicas: int
    stages: int
    microbatches: int

    def rank(self, dp: int, stage: int) -> int:
        """The rank there."""
        return stage * self.replicas + dp

    def computes(self, stage: int) -> Iterator[tuple[str, int]]:
        """Way and microbatch of each compute of a stage, in order."""
        ahead = min(self.stages - stage - 1, self.microbatches)
        yield from (("forward", number) for number in range(ahead))
        for number in range(self.microbatches):
            if ahead + number < self.microbatches:
                yield "forward", ahead + number
            yield "backward", number

    def partner(self, stage: int, way: str, end: str) -> int | None:
        """The stage at the other end of a send or receive; None for none."""
        other = stage + (1 if (way == "forward") == (end == "send") else -1)
        return other if 0 <= other < self.stages else None

    def on(self, dp: int, stage: int) -> Iterator[tuple[Operation, list[Operation]]]:
        """The operations there, each with those of the same rank that it waits for."""

        def own(kind: str, index: int = 0) -> Operation:
            return dp, stage, kind, index

        yield own("params-all-gather"), []
        last: Operation | None = None
        for way, index in self.computes(stage):
            compute, waits = own(f"{way}-compute", index), [last] if last else [own("params-all-gather")]
            if self.partner(stage, way, "recv") is not None:
                before = [own(f"{way}-recv", index - 1)] if index else []
                yield own(f"{way}-recv", index), [*before, *([last] if last else [])]
                waits.append(own(f"{way}-recv", index))
            yield compute, waits
            if self.partner(stage, way, "send") is not None:
                before = [own(f"{way}-send", index - 1)] if index else []
                yield own(f"{way}-send", index), [*before, compute]
            last = compute
        for kind in ("gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
                     "optimizer-clip-main-grad", "optimizer"):  # fmt: skip
            if kind != "embedding-grads-all-reduce" or stage in (0, self.stages - 1):
                assert last is not None
                yield own(kind), [last]
                last = own(kind)

    def members(self, of: Operation) -> tuple[Operation, ...]:
        """Who takes part in an operation, itself included."""
        dp, stage, kind, index = of
        if kind.endswith(("-send", "-recv")):
            way, end = kind.split("-")
            other = self.partner(stage, way, end)
            assert other is not None
            return tuple(sorted((of, (dp, other, f"{way}-{'recv' if end == 'send' else 'send'}", index))))
        if kind in ("params-all-gather", "grads-reduce-scatter"):
            return tuple((each, stage, kind, index) for each in range(self.replicas))
        if kind == "embedding-grads-all-reduce":
            return tuple((dp, each, kind, index) for each in sorted({0, self.stages - 1}))
        if kind == "optimizer-clip-main-grad":
            return tuple((a, b, kind, index) for a in range(self.replicas) for b in range(self.stages))
        return (of,)

    def played(self, takes: Takes, later_us: float = 0.0) -> dict[Operation, tuple[float, float]]:
        """Start and end of every operation of a step, if `takes` is compute, or transfer after the last arrival.

        What waits for another stream begins so much `later_us` than what it waits for ends.
        """
        waits = {
            of: own for dp in range(self.replicas) for stage in range(self.stages) for of, own in self.on(dp, stage)
        }
        start: dict[Operation, float] = {}
        found: dict[Operation, tuple[float, float]] = {}
        waiting = list(waits)
        while waiting:
            left = []
            for of in waiting:
                if of not in start and all(each in found for each in waits[of]):
                    start[of] = max((found[each][1] + later_us * (each[2] != of[2]) for each in waits[of]), default=0.0)
                members = self.members(of)
                if all(each in start for each in members):
                    end = max(start[each] for each in members) + takes(members[0])
                    found |= {each: (start[each], end) for each in members}
                elif of not in found:
                    left.append(of)
            assert len(left) < len(waiting), "nothing can go on"
            waiting = [of for of in left if of not in found]
        return found


def drawn(pipeline: Pipeline, rng: np.random.Generator, slow_stage: float) -> dict[Operation, float]:
    """How long everything takes in a step, in us: whole 0.1 us, by its first member."""
    typical = {"forward-compute": 9000.0, "backward-compute": 18000.0, "optimizer": 3000.0, "gc": 200.0}
    found = {}
    for dp in range(pipeline.replicas):
        for stage in range(pipeline.stages):
            for of, _ in pipeline.on(dp, stage):
                usual = typical.get(of[2], 400.0)
                factor = slow_stage if stage == pipeline.stages - 1 and of[2].endswith("-compute") else 1.0
                found[of] = round(usual * factor * float(rng.lognormal(0, 0.1)), 1)
    return found


def table_of(pipeline: Pipeline, steps: list[dict[Operation, tuple[float, float]]]) -> pd.DataFrame:
    """The table of these steps, in the form that StragglerAnalysis has."""
    rows: list[dict[str, Any]] = [
        {"dp_rank": dp, "stage": stage, "rank": pipeline.rank(dp, stage), "step": number, "optype": kind,
         "seq_id": index, "start_us": begin, "dur_us": end - begin}
        for number, step in enumerate(steps)
        for (dp, stage, kind, index), (begin, end) in step.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)


def step_us(step: dict[Operation, tuple[float, float]]) -> float:
    """How long a step is."""
    return max(end for _, end in step.values())


def without_jitter(pipeline: Pipeline, taken: list[dict[Operation, float]]) -> float:
    """The length of a step whose compute takes its mean, and whose transfers take their median, by type and number."""
    by_kind: dict[tuple[str, int], list[float]] = defaultdict(list)
    for step in taken:
        for of, took in step.items():
            if pipeline.members(of)[0] == of:
                by_kind[of[2], of[3]].append(took)
    usual = {key: float(np.mean(values) if key[0] in COMPUTE else np.median(values)) for key, values in by_kind.items()}
    return step_us(pipeline.played(lambda of: usual[of[2], of[3]]))
