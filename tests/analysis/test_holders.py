"""Which operator or annotation holds idle time, and how the verdict names it."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import MS, US, Trace

from commtrace import analyse
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.metrics.causes.cpu_work import GARBAGE
from commtrace.analysis.metrics.device.holders import Ranges, Stretches, holders
from commtrace.analysis.metrics.device.largest_gaps import HELD_RANGE, HeldBy
from commtrace.analysis.metrics.verdicts.of_idle import IDLE_CAUSES, QUEUED, Idling, blocking_operator, idling

_STEPS, _STEP = 4, 40 * MS


def _nested(draw: random.Random, begin: int, end: int, depth: int) -> list[tuple[str, int, int]]:
    """Ranges within these times, some within others, some touching."""
    cuts = sorted(draw.sample(range(begin, end + 1), min(draw.randrange(0, 4) * 2, (end - begin) // 2 * 2)))
    found = []
    for start, stop in zip(cuts[::2], cuts[1::2], strict=True):
        found.append((draw.choice("abcde"), start, stop))
        found += _nested(draw, start, stop, depth - 1) if depth else []
    return found


def _moments(ranges: list[tuple[str, int, int]], moments: set[int]) -> dict[str, set[int]]:
    """Name -> those of the moments at which a range of that name was there."""
    names = {name for name, _, _ in ranges}
    return {
        name: {at for at in moments if any(n == name and start <= at < end for n, start, end in ranges)}
        for name in names
    }


def _may_hold(ranges: list[tuple[str, int, int]], moments: set[int]) -> set[tuple[str, int]]:
    """Every range that may be named for these moments, and how long it was there: one, but for ties."""
    whole = {name: held for name, held in _moments(ranges, moments).items() if held}
    most = max(map(len, whole.values()), default=0)
    named = set()
    for held in (held for held in whole.values() if len(held) == most):
        enough = {name: len(at) for name, at in _moments(ranges, held).items() if 4 * len(at) >= 3 * most}
        named |= {(name, ns) for name, ns in enough.items() if ns == min(enough.values())}
    return named


@pytest.mark.parametrize("seed", range(40))
def test_the_range_that_holds_most_or_the_innermost_one_with_most_of_that(seed: int) -> None:
    draw = random.Random(seed)
    drawn = _nested(draw, 0, 80, 3)
    cuts = sorted(draw.sample(range(81), 12))
    stretches = [(first, last, draw.randrange(3)) for first, last in pairwise(cuts) if draw.random() < 0.6]
    events = pd.DataFrame(drawn, columns=["name", "start_ns", "end_ns"])
    events = events.assign(dur_ns=events["end_ns"] - events["start_ns"]).sample(frac=1, random_state=seed)
    starts, ends, groups = (np.array([each[place] for each in stretches], dtype=np.int64) for place in range(3))
    found = holders([Stretches(Ranges.of(events), starts, ends, groups, np.ones(len(starts), dtype=np.int64))])
    for group in range(3):
        moments = {at for start, end, number in stretches if number == group for at in range(start, end)}
        may_be = _may_hold(drawn, moments)
        assert (group in found.index) == bool(may_be)
        if may_be:
            row = found.loc[group]
            assert (row["name"], row["ns"]) in may_be
            assert int(row["start_ns"]) in _moments(drawn, moments)[row["name"]]


def _run(folder: Path, within: list[tuple[str, int, int]], *, kind: str = "cpu_op", thread: int = 1) -> Row:
    """What is said of a GPU that works for 5 of 40 ms, launched by a thread that is in these ranges: start and us."""
    trace = Trace(0, 1)
    for step in range(_STEPS):
        begin = step * _STEP
        trace.step(step, begin, begin + _STEP)
        trace.annotation("train_step", begin, _STEP - US, thread=thread)
        trace.op("aten::mm", begin + 34 * MS, MS, thread=thread)
        trace.kernel("gemm", begin + 35 * MS, 5 * MS, launch=begin + 35 * MS - 10 * US, thread=thread)
        for name, since, took in within:
            if kind == "cpu_op":
                trace.op(name, begin + since * US, took * US, thread=thread)
            else:
                trace.annotation(name, begin + since * US, took * US, thread=thread)
    return records(analyse(trace.write(folder), details=True, cache=False).verdicts)[0]


@pytest.mark.slow_cases("0")
@pytest.mark.parametrize("seed", range(4))
def test_an_operator_that_holds_most_idle_time_is_in_the_headline(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    took, pieces = draw.randrange(18_500, 33_000), draw.randrange(1, 30)
    calls = [("aten::narrow", 100 + number * (took // pieces), took // pieces) for number in range(pieces)]
    inside = [("aten::slice", start + 1, length // 3) for _, start, length in calls]
    row = _run(tmp_path, [*calls, *inside], thread=draw.choice((1, 2)))
    assert row["headline"].endswith(", most of the time in `aten::narrow`")
    assert f"for {took // pieces * pieces / 1000:.1f} ms they were in `aten::narrow`" in row["why"]


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("seed", range(3))
def test_of_one_that_holds_a_third_the_headline_says_how_much(tmp_path: Path, seed: int) -> None:
    took = random.Random(seed).randrange(11_000, 16_500)
    row = _run(tmp_path, [("aten::cat", 500, took)])
    assert row["headline"].endswith(f", for {took / 1000:.1f} ms in `aten::cat`")
    assert f"for {took / 1000:.1f} ms they were in `aten::cat`" in row["why"]


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("seed", range(3))
def test_none_is_named_where_each_holds_little(tmp_path: Path, seed: int) -> None:
    took = random.Random(seed).randrange(1_000, 10_000)
    row = _run(tmp_path, [(f"aten::op{number}", 100 + number * took, took) for number in range(3)])
    assert "they were in" not in row["because"]


def test_annotations_are_named_but_none_around_everything(tmp_path: Path) -> None:
    row = _run(tmp_path, [("tokenize", 1_000, 25_000)], kind="user_annotation")
    assert row["headline"].endswith(", most of the time in `tokenize`")
    assert "train_step" not in row["because"]


def test_none_holds_what_is_less_than_nothing() -> None:
    ranges = Ranges(np.array(["a"], dtype=object), np.array([0]), np.array([10]))
    assert not len(holders([Stretches.alike(ranges, np.array([0]), np.array([10]), weight=-1)]))


def test_compiled_graphs_count_as_one(tmp_path: Path) -> None:
    graphs = [(f"## Call CompiledFxGraph f{number}ab ##", 100 + number * 8_000, 7_000) for number in range(4)]
    row = _run(tmp_path, graphs, kind="user_annotation")
    assert row["headline"].endswith(", most of the time in `CompiledFxGraph`")


@pytest.mark.slow
def test_gaps_name_the_same_operator(tmp_path: Path) -> None:
    inside = [("aten::as_strided", 200 + 100 * number, 20) for number in range(300)]
    _run(tmp_path, [("aten::split", 100, 31_000), *inside, ("aten::add", 32_000, 1_500)])
    analysis = analyse(tmp_path, details=True, cache=False)
    assert "for 31.0 ms they were in `aten::split`" in analysis.verdicts["because"].iloc[0]
    assert set(analysis.gaps["operator"].dropna()) == {"aten::split"}


def _calls(*rows: tuple[str, str | None, str | None, int, int]) -> pd.DataFrame:
    """Rows of the table `syncs_steps`: kind, operator, annotation, step, ms."""
    columns = ["kind", "operator", "annotation", "step", "total_ns"]
    return pd.DataFrame([(*row[:4], row[4] * MS) for row in rows], columns=columns)


def test_the_operator_in_which_cpus_wait_for_devices() -> None:
    """Copies to pageable memory wait as well; allocating does not, nor do other steps count."""
    calls = _calls(
        ("sync", "aten::item", None, 1, 2), ("copy", "aten::copy_", None, 1, 3), ("copy", "aten::copy_", None, 2, 2),
        ("alloc", "aten::cat", None, 1, 90), ("sync", "aten::item", None, 3, 90),
    )  # fmt: skip
    assert blocking_operator(calls, (1, 2), "sync-bound") == "aten::copy_"
    assert blocking_operator(calls, (), "sync-bound") == "aten::item"
    assert blocking_operator(calls, (1, 2), "allocator-bound") == "aten::cat"
    assert blocking_operator(calls, (1, 2), "launch-bound") is None
    outside = _calls(("sync", None, "loss", 1, 4), ("sync", "aten::item", None, 1, 1), ("sync", None, None, 1, 2))
    assert blocking_operator(outside, (1,), "sync-bound") == "loss"
    spread = _calls(*(("sync", f"aten::op{number}", None, 1, 1) for number in range(3)))
    assert blocking_operator(spread, (1,), "sync-bound") is None


def test_a_headline_says_that_launched_work_begins_late() -> None:
    causes = dict.fromkeys([*IDLE_CAUSES, "drained_ns", "gc_ns"], 0.0) | {
        "queued_ns": 6.0 * MS,
        "operator_ns": 4.0 * MS,
    }
    held = {HELD_RANGE: HeldBy("aten::mm", 4.0 * MS)}

    def said(verdict: str, **causes_ns: float) -> Idling | None:
        return idling(verdict, causes | causes_ns, held, 10.0 * MS)

    assert said("launch-bound") == Idling(QUEUED)
    assert said("launch-bound", queued_ns=0.0, unknown_ns=6.0 * MS) is None
    assert said("launch-bound", queued_ns=1.0, gc_ns=3.0 * MS) == Idling(GARBAGE)
    assert said("launch-bound", queued_ns=1.0) == Idling("launch-bound", in_range=held[HELD_RANGE])
