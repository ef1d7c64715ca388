"""What a verdict says of a step that is much longer than the others: what fills it, where one thing does."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from builders import MS, US, Trace

from commtrace import analyse
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.metrics.verdicts.of_longer import ByThemselves

_STEPS, _STEP, _THREAD = 8, 10 * MS, 1
Event = Callable[[Trace, int, int], None]
"""Adds to a trace what happens once: from here, for so many ns."""


def _run(folder: Path, seed: int, event: Event) -> tuple[Row, int, float]:
    """What is said of a GPU that works for 8 of every 10 ms, and in one step waits while something happens.

    With the step and how many ms that takes.
    """
    draw, trace, at = random.Random(seed), Trace(0, 1), 0
    place, took = draw.randrange(1, _STEPS - 1), draw.randrange(40, 400) * MS
    for step in range(_STEPS):
        begin, more = at, took if step == place else 0
        at += _STEP + more
        trace.step(step, begin, at).annotation("train_step", begin, at - begin - US, thread=_THREAD)
        if more:
            event(trace, begin + MS, more - MS)
        trace.op("aten::mm", begin + more + MS, MS, thread=_THREAD)
        trace.kernel("gemm", begin + more + 2 * MS, 8 * MS, launch=begin + more + 2 * MS - 10 * US, thread=_THREAD)
    [row, *_] = records(analyse(trace.write(folder), details=True, cache=False).verdicts)
    assert row["headline"].startswith(f"Step {place} takes {(took + _STEP) / MS:.1f} ms instead of 10.0")
    return row, place, took / MS


def _operator(name: str) -> Event:
    return lambda trace, begin, ns: trace.op(name, begin, ns, thread=_THREAD) and None


def _annotation(name: str) -> Event:
    return lambda trace, begin, ns: trace.annotation(name, begin, ns, thread=_THREAD) and None


def _decoding(trace: Trace, begin: int, ns: int) -> None:
    """One operator, inside an annotation."""
    trace.annotation("log_images", begin, ns, thread=_THREAD)
    trace.op("aten::roll", begin + ns // 10, ns // 10 * 9, thread=_THREAD)


def _copying(trace: Trace, begin: int, ns: int) -> None:
    """Copies of many tensors, one after the other, for each of which the CPU waits."""
    trace.annotation("log_images", begin, ns, thread=_THREAD)
    for number in range(10):
        at = begin + number * (ns // 10)
        trace.op("aten::copy_", at + US, ns // 10 - 2 * US, thread=_THREAD)
        trace.memcpy("DtoH", at + 20 * US, ns // 10 - 40 * US, launch=at + 2 * US, thread=_THREAD)


def _previewing(trace: Trace, begin: int, ns: int) -> None:
    """Kernels of many names, inside an annotation."""
    trace.annotation("preview", begin, ns, thread=_THREAD)
    for number in range(20):
        at = begin + number * (ns // 20)
        trace.annotation("forward", at + US, ns // 20 - 2 * US, thread=_THREAD)
        trace.kernel(f"kernel_{number}", at + 20 * US, ns // 20 - 40 * US, launch=at + 10 * US, thread=_THREAD)


@pytest.mark.quick_cases("batch-1", "batch-2", "operator-0", "garbage-0", "python-0", "python-1", "python-2")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("event", "said"),
    [
        (_operator("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), "CPUs wait for a batch for"),
        (_operator("aten::unique"), "CPUs are in `aten::unique` for"),
        (_annotation("Python GC"), "Python collects garbage for"),
        (_annotation("log_images"), "CPUs are in `log_images` for"),
        (_decoding, "CPUs are in `aten::roll` for"),
        (lambda *_: None, "CPUs are in Python outside of operators for"),
    ],
    ids=["batch", "operator", "garbage", "annotation", "both", "python"],
)
def test_what_fills_most_of_the_idle_time_is_said(tmp_path: Path, seed: int, event: Event, said: str) -> None:
    row, _, ms = _run(tmp_path, seed, event)
    why = str(row["why"])
    assert row["verdict"] == "event-bound"
    assert f": {said} " in row["headline"]
    assert f"Devices are idle {ms:.1f} ms longer" in why
    assert ("were in `aten::roll`, inside `log_images`" in why) == (event is _decoding)
    assert "train_step" not in row["because"]


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("seed", range(3))
def test_copies_are_named_with_what_they_are_for(tmp_path: Path, seed: int) -> None:
    row = _run(tmp_path, seed, _copying)[0]
    assert ": copies take " in row["headline"]
    assert row["headline"].endswith(" ms longer, mostly in `Memcpy DtoH`")
    assert row["why"].startswith("That is inside `log_images`. ")


@pytest.mark.parametrize("seed", range(3))
def test_many_kernels_are_named_by_what_launched_them(tmp_path: Path, seed: int) -> None:
    headline = str(_run(tmp_path, seed, _previewing)[0]["headline"])
    assert ": devices compute " in headline
    assert headline.endswith(" ms longer, mostly inside `preview`")


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_named_that_fills_less_than_half(tmp_path: Path, seed: int) -> None:
    def several(trace: Trace, begin: int, ns: int) -> None:
        for number in range(4):
            trace.op(f"aten::part{number}", begin + number * (ns // 4), ns // 4, thread=_THREAD)

    row = _run(tmp_path, seed, several)[0]
    assert row["headline"].endswith(" ms that were traced")
    assert " ms longer. " in row["why"]
    assert "aten::part" not in row["because"]


def _by_device(more: dict[int, dict[str, int]]) -> pd.DataFrame:
    """The breakdown by step of ranks that take 100 ms, in step 3 as long as the longest: who has less waits."""
    rows = []
    for rank, parts in more.items():
        for step in range(1, 6):
            compute, copies, idle = (parts.get(part, 0) * (step == 3) for part in ("compute", "copies", "idle"))
            whole = max(sum(each.values()) for each in more.values()) * (step == 3)
            waits = 30 * MS + whole - compute - copies - idle
            rows.append({
                "rank": rank, "step": step, "window_ns": 100 * MS + whole, "compute_ns": 70 * MS + compute,
                "overlap_ns": 5 * MS, "exposed_comm_ns": waits, "exposed_wait_ns": waits, "exposed_transfer_ns": 0,
                "exposed_unsplit_ns": 0, "exposed_memory_ns": copies, "idle_ns": idle,
            })  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("more", "ranks", "part"),
    [
        ([{}, {"compute": 80 * MS}, {}, {}], [1], "compute_alone_ns"),
        ([{}, {}, {"compute": 80 * MS}, {"compute": 75 * MS}], [2, 3], "compute_alone_ns"),
        ([{}, {}, {"copies": 80 * MS}], [2], "exposed_memory_ns"),
        ([{"idle": 60 * MS, "compute": 20 * MS}, {"idle": 10 * MS}], [0], "idle_ns"),
    ],
    ids=["a rank", "a stage", "copies", "its CPU"],
)
def test_ranks_that_take_longer_by_themselves(more: list[dict[str, int]], ranks: list[int], part: str) -> None:
    found = ByThemselves.of(_by_device(dict(enumerate(more))), [3], [1, 2, 4, 5], 80 * MS)
    assert found is not None
    assert (found.ranks, found.part) == (tuple(ranks), part)


@pytest.mark.parametrize(
    "more",
    [
        [{"compute": 80 * MS}, {"compute": 80 * MS}, {"compute": 80 * MS}, {}],
        [{"compute": 80 * MS}, {"idle": 70 * MS}],
        [{"compute": 80 * MS}, {"compute": 30 * MS}, {}, {}],
        [{"compute": 30 * MS}, {}, {}, {}],
        [{}, {}],
    ],
    ids=["most do", "the other one idles", "another has much", "that is little of it", "all wait"],
)
def test_no_rank_is_said_to_take_longer_by_itself(more: list[dict[str, int]]) -> None:
    assert ByThemselves.of(_by_device(dict(enumerate(more))), [3], [1, 2, 4, 5], 80 * MS) is None
