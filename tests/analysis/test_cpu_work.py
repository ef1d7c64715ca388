"""What launching threads did while a device had no work, beside the same nanosecond by nanosecond."""

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from commtrace.analysis.core.intervals import spans, total
from commtrace.analysis.metrics.causes.cpu_work import CpuWork

THREADS, LONG = (1, 2), 300
Event = tuple[int, str, int, int]
"""Thread, name, start, end."""
NAMES = {
    "range": ["forward", "loss", "compiled graph abcdefghijklmnopqrstuvwxyz0"],
    "operator": ["aten::mm", "aten::copy_", "c10d::allreduce_", "custom op zyxwvutsrqponmlkjihgfedcba1"],
    "call": ["cudaDeviceSynchronize", "cudaMalloc", "cudaLaunchKernel"],
    "module": ["nn.Module: Net_0", "nn.Module: Block_1"],
}


def drawn(draw: random.Random, kind: str) -> list[Event]:
    """Events that nest on each thread; ends of all but modules stick out at times, as of clocks cut to microseconds."""
    made: list[Event] = []
    beyond = [0] if kind == "module" else [0, 0, 0, 1, 2]

    def fill(thread: int, begin: int, end: int, depth: int) -> None:
        while begin < end and draw.random() < 0.85:
            start = draw.randint(begin, end)
            stop = draw.randint(start, end)
            made.append((thread, draw.choice(NAMES[kind]), start, stop + draw.choice(beyond)))
            if depth < 4:
                fill(thread, start, stop, depth + 1)
            begin = stop

    for thread in THREADS:
        fill(thread, 0, LONG, 0)
    return made


def table(events: list[Event]) -> pd.DataFrame:
    columns = list(zip(*events, strict=True)) or [[], [], [], []]
    start, end = (np.array(column, dtype=np.int64) for column in columns[2:])
    return pd.DataFrame({
        "thread": np.array(columns[0], dtype=np.int64),
        "name": pd.array(list(columns[1]), dtype="string"),
        "start_ns": start,
        "dur_ns": end - start,
    })  # fmt: skip


def plain(name: str) -> str:
    """Without hashes, and what marks a module."""
    return " ".join(word for word in name.removeprefix("nn.Module: ").split() if len(word) < 24)


def chain_at(events: list[Event], thread: int, time: int) -> list[str]:
    """Names of the events around a time of a thread, the innermost first; an event ends with the one around it."""
    stack: list[tuple[int, str]] = []
    for _, name, start, end in sorted((e for e in events if e[0] == thread), key=lambda e: (e[2], -e[3])):
        if start > time:
            break
        while stack and stack[-1][0] <= start:
            stack.pop()
        stack.append((min(end, stack[-1][0]) if stack else end, plain(name)))
    return [name for end, name in reversed(stack) if end > time]


@pytest.mark.parametrize("seed", range(12))
def test_what_threads_did_adds_up_from_single_nanoseconds(seed: int) -> None:
    draw = random.Random(seed)
    ranges, operators, calls, modules = (drawn(draw, kind) for kind in NAMES)
    steps = [(1, f"ProfilerStep#{number}", number * 100, number * 100 + 100) for number in range(3)]
    launches = sorted((draw.randrange(LONG), draw.choice(THREADS), number) for number in range(draw.randint(1, 12)))
    work = CpuWork(
        SimpleNamespace(
            activities=pd.DataFrame(
                {
                    "device": pd.array(["cuda:0"] * len(launches), dtype="string"),
                    "kind": pd.array(["compute"] * len(launches), dtype="string"),
                    "stream": 7,
                    "dur_ns": 1,
                    "correlation": pd.array([number for *_, number in launches], dtype="Int64"),
                }
            ),
            launches=pd.DataFrame(launches, columns=["start_ns", "thread", "correlation"]),
            annotations=table([*ranges, *steps]),
            cpu_operators=table(operators),
            operator_calls=table([]),
            functions=table([]),
            runtime_calls=table(calls),
            modules=table(modules),
        )
    )
    drawn_idle = [(start, start + draw.randint(1, 40)) for start in draw.sample(range(LONG), 6)]
    idle = spans(*(np.array(column, dtype=np.int64) for column in zip(*drawn_idle, strict=True)))

    took: Counter[tuple[str, str, str | None, str | None]] = Counter()
    by_step: Counter[int] = Counter()
    blocking = [call for call in calls if call[1] != "cudaLaunchKernel"]
    for begin, end in zip(idle.starts.tolist(), idle.ends.tolist(), strict=True):
        for time in range(begin, end):
            by_step[time // 100] += time < LONG
            thread = next((by for start, by, _ in launches if start > time), launches[-1][1])
            around = chain_at(ranges, thread, time) or chain_at(ranges, 1, time)
            of_operators = chain_at(operators, thread, time)
            of_calls, of_modules = chain_at(blocking, thread, time), chain_at(modules, thread, time)
            inside = of_operators[0] if of_operators else None
            what = (of_calls[0], inside) if of_calls else (inside or "outside of any operator", None)
            took[("work", *what, around[0] if around else None)] += 1
            named = {"range": around, "operator": of_operators or ["outside of any operator"], "call": of_calls}
            for kind, names in {**named, "module": of_modules}.items():
                for name in set(names):
                    took[kind, name, None, None] += 1
    found = work.during(idle)
    assert found == dict(took)
    assert sum(ns for (kind, *_), ns in found.items() if kind == "work") == total(idle)
    assert work.by_step(idle) == {step: ns for step, ns in by_step.items() if ns}
