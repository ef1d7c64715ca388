"""Programs that leak are named with their place, and programs that only look like it are not, however recorded."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builders import US, Trace
from leaks import (
    BLOCK,
    BY_CHANCE,
    FORMS,
    HARMLESS,
    KEPT_LINE,
    KEPT_OPERATOR,
    KEPT_REGION,
    LEAKS,
    Form,
    Pattern,
    dumped,
    each,
    later,
    program,
    traced,
)  # fmt: skip

from commtrace import analyse, analyse_snapshots
from commtrace.analysis.core.schema import records
from commtrace.analysis.show.memory import memory_screen
from commtrace.analysis.tensorboard.scalars import step_scalars
from commtrace.cli import main

NO_PLACES = "snapshot-no-stacks"
"""All blocks are at one place there, so that what falls elsewhere hides a leak whose blocks come and go."""
NEEDS_PLACES = ("longer", "two_in_one_out", "released_now_and_then")
CASES = [
    (form, pattern, is_leak)
    for form in FORMS
    for patterns, is_leak in ((LEAKS, True), (HARMLESS, False))
    for pattern in patterns
    if not (form.name == NO_PLACES and pattern.__name__ in NEEDS_PLACES)
]
SAMPLE = random.Random(59).sample(CASES, 40)


def told(form: Form, pattern: Pattern, seed: int, folder: Path, steps: int | None = None) -> list[str]:
    """What is said to grow: lines of code, or else regions with operators."""
    found = form.analysed(program(pattern, seed, steps=steps), folder)
    growing = [row for row in records(found.allocations) if row["grows_bytes"] is not None]
    said = [line for line in memory_screen(found).splitlines() if "grows" in line or "leak" in line]
    assert bool(growing) == bool(said)
    assert not growing or "rank 0" in said[0]
    if form.names_line:
        assert all(any(str(row["line"]) in line for line in said) for row in growing)
        return [row["line"] for row in growing]
    return [f"{row['region']} {row['operator']}" for row in growing]


def expected(form: Form, *, is_leak: bool) -> list[str]:
    if not is_leak:
        return []
    if form.names_line:
        return [KEPT_LINE]
    return ["None None" if form.is_snapshot else f"{KEPT_REGION} {KEPT_OPERATOR}"]


@pytest.mark.parametrize(
    ("form", "pattern", "is_leak"), SAMPLE, ids=[f"{form.name}-{pattern.__name__}" for form, pattern, _ in SAMPLE]
)
def test_leaks_are_named_and_nothing_else(form, pattern, is_leak, tmp_path):
    assert told(form, pattern, 0, tmp_path) == expected(form, is_leak=is_leak)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_leaks_are_named_and_nothing_else_whatever_is_drawn(form, seed, tmp_path):
    wrong = []
    for own, pattern, is_leak in CASES:
        if own is form:
            names = told(form, pattern, seed, tmp_path / pattern.__name__)
            wrong += [] if names == expected(form, is_leak=is_leak) else [(pattern.__name__, names)]
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "is_leak"), BY_CHANCE.items(), ids=[pattern.__name__ for pattern in BY_CHANCE])
def test_of_what_chance_decides_most_is_told_rightly(pattern, is_leak, tmp_path):
    form = next(form for form in FORMS if form.name == "snapshot")
    right = [told(form, pattern, seed, tmp_path / str(seed)) == expected(form, is_leak=is_leak) for seed in range(40)]
    assert sum(right) >= (24 if is_leak else 36)


@pytest.mark.parametrize(("record", "whole"), [(traced, 10), (dumped, 9)])  # a history begins within its first step
def test_how_much_is_left_is_exact(record, whole, tmp_path):
    for number, (pattern, missed) in enumerate([(each, 0), (later, 2)]):
        made = program(pattern, 3, steps=10)
        folder = record(made, tmp_path / str(number))
        found = analyse(folder, details=True, cache=False) if record is traced else analyse_snapshots([folder])
        [row] = [row for row in records(found.allocations) if row["grows_bytes"] is not None]
        assert (row["grows_bytes"], row["grows_per"], row["of_steps"]) == (BLOCK, "step", whole)
        assert whole - missed <= row["steps"] <= whole
        assert found.memory["grows_bytes"].tolist() == [BLOCK]


@pytest.mark.parametrize("form", [form for form in FORMS if "unmarked" in form.name], ids=lambda form: form.name)
def test_without_steps_a_leak_is_no_activation(form, tmp_path):
    found = form.analysed(program(each, 1), tmp_path)
    kept = [row for row in records(found.allocations) if row["line"] == KEPT_LINE]
    assert [(row["category"], row["grows_per"]) for row in kept] == [("unknown", "cycle")]
    assert {row["category"] for row in records(found.allocations) if row["line"] == "model.py:40"} == {"activations"}


def released_first(*, totals: bool) -> Trace:
    """Two steps; the first event releases 300 of 1,000 bytes, later ones allocate 100 and 50, and release 100."""
    trace, held = Trace(0, 1).kernel("gemm", 0, 900 * US), 1000
    for number in range(3):
        trace.step(number, number * 300 * US, (number + 1) * 300 * US)
    for at, address, change in ((10, 1, -300), (20, 2, 100), (310, 3, 50), (320, 2, -100)):
        held += change
        args = {"Addr": address, "Bytes": change, "Device Type": 1, "Device Id": 0}
        args |= {"Total Allocated": held, "Total Reserved": 5000} if totals else {}
        trace.events.append({
            "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": trace.pid, "tid": 1, "ts": at,
            "args": args,
        })  # fmt: skip
    return trace


@pytest.mark.parametrize(("totals", "before"), [(True, 1000), (False, 0)])
def test_what_a_trace_begins_with_counts(totals, before, tmp_path):
    """Without totals, bytes are those above it: that it is a lower bound is said."""
    released_first(totals=totals).write(tmp_path)
    found = analyse(tmp_path, details=True, cache=False, whole=True)
    steps = records(found.memory_steps)
    assert [row["peak_allocated_bytes"] - before for row in steps] == [0, -150, -250]
    assert [row["end_allocated_bytes"] - before for row in steps] == [-200, -250, -250]
    [row] = records(found.memory)
    assert (row["peak_allocated_bytes"], row["peak_ns"], row["step"]) == (before, None, None)
    assert "it may have been more before" in row["note"]
    assert ("totals were not recorded" in row["note"]) is not totals
    assert memory_screen(found)


def test_tensorboard_has_the_peaks_of_steps(tmp_path):
    pytest.importorskip("tensorboard")
    for rank in range(3):
        traced(program(each, rank, steps=4), tmp_path, rank=rank, world=3)
    found = analyse(tmp_path, details=True, cache=False)
    scalars = {(one.tag, one.step): one.value for one in step_scalars(found)}
    for step, rows in found.memory_steps.groupby("step"):
        peaks = rows["peak_allocated_bytes"] / 1e9
        assert scalars["peak_allocated_gb/max", step] == peaks.max()
        assert scalars["peak_allocated_gb/median", step] == peaks.median()
        assert scalars["peak_reserved_gb/max", step] == rows["peak_reserved_bytes"].max() / 1e9
    assert main(["export", "tensorboard-scalars", "--no-cache", "-o", str(tmp_path / "logs"), str(tmp_path)]) == 0
    [file] = (tmp_path / "logs").iterdir()
    assert b"peak_allocated_gb/max" in file.read_bytes()
    assert not [one for one in step_scalars(analyse(tmp_path, details=False, cache=False)) if "peak" in one.tag]
