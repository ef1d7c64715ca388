"""What a verdict says of a step that is much longer than the others: what fills it, where one thing does."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import MS, US, Trace

from commtrace import analyse
from commtrace.analysis.core.schema import Row, records

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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("event", "said"),
    [
        (_operator("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), "their CPUs waited for a batch for"),
        (_operator("aten::unique"), "their CPUs were in `aten::unique`"),
        (_annotation("Python GC"), "Python collected garbage for"),
        (_annotation("log_images"), "their CPUs were in `log_images`."),
        (_decoding, "their CPUs were in `aten::roll`, inside `log_images`."),
        (lambda *_: None, "their CPUs were in Python outside of operators for"),
    ],
    ids=["batch", "operator", "garbage", "annotation", "both", "python"],
)
def test_what_fills_most_of_the_idle_time_is_said(tmp_path: Path, seed: int, event: Event, said: str) -> None:
    row, _, ms = _run(tmp_path, seed, event)
    why = str(row["why"])
    assert row["verdict"] == "event-bound"
    assert f"Devices are idle {ms:.1f} ms longer" in why
    assert said in why.split(". ")[0] + "."
    assert "train_step" not in why


@pytest.mark.parametrize("seed", range(3))
def test_copies_are_named_with_what_they_are_for(tmp_path: Path, seed: int) -> None:
    why = str(_run(tmp_path, seed, _copying)[0]["why"])
    assert why.startswith("Copies take ")
    assert " ms longer, mostly in `Memcpy DtoH`, inside `log_images`" in why


@pytest.mark.parametrize("seed", range(3))
def test_many_kernels_are_named_by_what_launched_them(tmp_path: Path, seed: int) -> None:
    why = str(_run(tmp_path, seed, _previewing)[0]["why"])
    assert why.startswith("Devices compute ")
    assert " ms longer, mostly inside `preview`" in why


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_named_that_fills_less_than_half(tmp_path: Path, seed: int) -> None:
    def several(trace: Trace, begin: int, ns: int) -> None:
        for number in range(4):
            trace.op(f"aten::part{number}", begin + number * (ns // 4), ns // 4, thread=_THREAD)

    why = str(_run(tmp_path, seed, several)[0]["why"])
    assert " ms longer. " in why
    assert "aten::part" not in why
