"""Captures of a machine: what a file of them keeps, and what a comparison of two runs learns from it."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from builders import MS, Trace

from commtrace import Analysis, Comparison, analyse
from commtrace.analysis.comparison import history
from commtrace.analysis.comparison.analysis import Judgement
from commtrace.analysis.comparison.apart import apart, warming_steps
from commtrace.analysis.comparison.decision import DecisionBasis, StepOutcome, captures_for, decided
from commtrace.analysis.comparison.differences import OTHER_WORK, Allowance, compared, judged
from commtrace.analysis.comparison.history import (
    KnownSpread,
    add_to_history,
    keep_in_history,
    past_capture,
    read_history,
)
from commtrace.analysis.comparison.significance import SpreadOfRuns, error_of_steps, pooled_spread
from commtrace.analysis.comparison.step_values import TRACED, Capture
from commtrace.analysis.errors import UnreadableFile
from commtrace.analysis.show.comparison import explanation
from commtrace.cli import main

STEPS = 8
RUNS = (0.0, 0.4, -0.3, 0.2, -0.5, 0.1)
"""By how many per cent captures of one program differ here: a standard deviation of 0.35 %."""


def traced(folder: Path, percent: float = 0.0, cold: int = 0) -> Analysis:
    """Steps of 10 ms that take so much longer, the first `cold` of them half as long again."""
    trace, begin = Trace(0, 1), MS + crc32(folder.name.encode())
    for number in range(STEPS):
        warm = 1 + percent / 100 + (number % 3 - 1) / 1000
        end = begin + round(10 * MS * warm * (1.5 if number < cold else 1.0))
        trace.step(number, begin, end).kernel("gemm", begin, end - begin, launch=begin)
        begin = end
    trace.write(folder)
    return analyse(folder, details=True)


@pytest.fixture
def capture(tmp_path: Path) -> Callable[..., Analysis]:
    def made(name: str, percent: float = 0.0, cold: int = 0) -> Analysis:
        return traced(tmp_path / name, percent, cold)

    return made


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six captures of one program, made once."""
    folder = tmp_path_factory.mktemp("past")
    for number, percent in enumerate(RUNS):
        assert keep_in_history(folder / "history.jsonl", traced(folder / f"past-{number}", percent)) is None
    return folder / "history.jsonl"


@pytest.fixture
def file(tmp_path: Path, six: Path) -> Path:
    """A file with these."""
    return Path(copy(six, tmp_path / "history.jsonl"))


# --- what a comparison learns ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_against_one_finds_five_per_cent_once_six_captures_are_known(file, capture):
    a, b, alike = capture("a", 0.15), capture("b", 5.2), capture("alike", -0.2)
    assumed, known = Comparison((a,), (b,)), Comparison((a,), (b,), history=read_history(file))
    assert (assumed.decision.outcome, known.decision.outcome) == (StepOutcome.open, StepOutcome.longer)
    assert (assumed.decision.known_runs, known.decision.known_runs) == (0, 6)
    assert known.decision.runs_spread_frac == pytest.approx(np.std(np.array(RUNS), ddof=1) / 100, rel=0.02)
    assert (assumed.decision.beyond_steps, assumed.decision.beyond_runs) == (True, False)
    steps, runs, more = assumed.decision.statements
    assert steps == "+5.0% is beyond what the steps of these runs differ by (under 0.1% within a run)."
    assert runs.startswith("+5.0% is no more than chance if runs differ by 5.0%, which is assumed: no capture shows")
    assert more == (
        "1 more capture of each, alternating, would settle +5.0%, if runs differ by no more than steps within a run do."
    )
    assert known.decision.statements[1:] == (
        "+5.0% is more than chance: 6 runs of this program differ by 0.3%.",
        "That B takes longer is settled, with 99% confidence.",
    )
    assert known.slower_by(0.03)[0] is Judgement.slower
    assert Comparison((a,), (alike,), history=read_history(file)).slower_by(0.03)[0] is Judgement.within


@pytest.mark.slow
def test_what_the_history_lacks_is_said(file, capture, tmp_path):
    other = Trace(0, 2).kernel("gemm", 0, 9 * MS)
    other.step(0, 0, 10 * MS)
    other.write(tmp_path / "other")
    elsewhere = analyse(tmp_path / "other", details=True)
    assert read_history(file).spread(((elsewhere,), (elsewhere,)), "step windows of the traces") is None
    both = Comparison((capture("a"),), (capture("b", 3),), history=read_history(tmp_path / "none.jsonl"))
    assert "none.jsonl has fewer than two other runs of this program on such GPUs" in both.decision.statements[1]


def test_a_run_that_is_compared_is_not_its_own_evidence(file, capture):
    b = capture("b", 40)
    keep_in_history(file, b)
    known = Comparison((capture("a"),), (b,), history=read_history(file)).decision
    assert (known.outcome, known.known_runs) == (StepOutcome.longer, 6)


def test_a_cold_capture_of_the_history_is_named_and_does_not_widen_the_spread(file, capture):
    keep_in_history(file, capture("cold", 60))
    found = Comparison((capture("a"),), (capture("b", 5),), history=read_history(file)).decision
    assert (found.outcome, found.known_runs) == (StepOutcome.longer, 6)
    assert "6 runs of this program differ by 0.3%, without cold, which stands apart" in found.statements[1]


def test_cycles_of_a_run_are_one_run(tmp_path, capture):
    path, one = tmp_path / "history.jsonl", past_capture(capture("a"))
    for name, percent in (("a", 0), ("a", 0.1), ("b", 2), ("b", 2.1), ("c", 1), ("c", 1.1)):
        longer = {number: ns * (1 + percent / 100) for number, ns in one.lengths[TRACED].items()}
        add_to_history(path, past(one, name, longer))
    known = read_history(path).spread(((capture("x"),), (capture("y", 1),)), TRACED)
    assert known is not None
    assert (known.runs, known.spread.freedom) == (3, 2)
    assert known.spread.deviation == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("is_seeded", [True, False])
def test_runs_of_the_same_steps_are_compared_without_what_belongs_to_the_number(tmp_path, capture, is_seeded):
    """Steps differ by 5 %, by their number where data are seeded; runs differ by 0.4 % besides, two windows by more."""
    path, one, chance = tmp_path / "history.jsonl", past_capture(capture("a")), np.random.default_rng(4)
    of_number = chance.normal(0, 0.05, 40)
    for run in range(8):
        numbers, level = np.arange(10) + 20 * (run % 2), chance.normal(0, 0.004)
        work = of_number[numbers] if is_seeded else chance.normal(0, 0.05, 10)
        add_to_history(path, past(one, str(run), dict(zip(numbers.tolist(), 1e7 * np.exp(level + work), strict=True))))
    known = read_history(path).spread(((capture("x"),), (capture("y", 1),)), TRACED)
    assert known is not None
    if is_seeded:
        assert (known.runs, known.spread.freedom) == (8, 6)
        assert 0.002 < known.spread.deviation < 0.007
        assert known.spread.error < 0.0001
    else:
        assert (known.runs, known.spread.freedom) == (8, 7)
        assert known.spread.deviation > 0.01
        assert known.spread.error > 0.01


def past(one: history.PastCapture, run: str, steps_ns: dict[int, float]) -> history.PastCapture:
    """A run like this one, of these steps."""
    lengths = {TRACED: {number: round(ns) for number, ns in steps_ns.items()}}
    return history.PastCapture(**{**_fields(one), "run_id": run, "run": run, "lengths": lengths})


def _fields(one: history.PastCapture) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


# --- the file --------------------------------------------------------------------------------------------------------


def test_half_written_and_foreign_lines_cost_nothing_else(file, capture):
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([b"{}\n", b'"text"\n', *lines[:3], lines[3][:50]]))
    assert keep_in_history(file, capture("next", 0.3)) is None
    found = read_history(file)
    assert ([one.run for one in found.captures], found.unread) == (["past-0", "past-1", "past-2", "next"], 3)
    for strange in (b"\xff\xfe\n", b"[" * 100_000 + b"\n", lines[0].replace(b'"commtrace_history":2', b'"a":1')):
        file.write_bytes(strange + lines[0])
        assert (len(read_history(file).captures), read_history(file).unread) == (1, 1)


def test_the_file_stays_small_and_keeps_what_is_newest(tmp_path, capture, monkeypatch):
    monkeypatch.setattr(history, "HISTORY_BYTES", 4000)
    path, one = tmp_path / "history.jsonl", past_capture(capture("a"))
    for number in range(40):
        add_to_history(path, history.PastCapture(**{**_fields(one), "run": str(number)}))
        assert path.stat().st_size <= 4000
    runs = [int(each.run) for each in read_history(path).captures]
    assert runs == list(range(runs[0], 40))
    assert len(runs) >= 3
    assert read_history(path).unread == 0


def test_many_may_add_at_once(tmp_path, capture, monkeypatch):
    monkeypatch.setattr(history, "HISTORY_BYTES", 20_000)
    path, one = tmp_path / "history.jsonl", past_capture(capture("a"))

    def add(name: str) -> None:
        for _ in range(10):
            add_to_history(path, history.PastCapture(**{**_fields(one), "run": name}))

    threads = [threading.Thread(target=add, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_history(path)
    assert found.unread == 0
    assert len(found.captures) > 20


def test_a_file_that_cannot_be_is_an_error_with_its_name(tmp_path, capture):
    one = capture("a")
    for path in (tmp_path, tmp_path / "no" / "where.jsonl"):
        with pytest.raises(UnreadableFile, match="cannot be added to the history"):
            keep_in_history(path, one)
    with pytest.raises(UnreadableFile, match="the history cannot be read"):
        read_history(tmp_path)


@pytest.mark.slow
def test_commands_keep_and_read_it(tmp_path, file, capture, capsys):
    capture("a", 0.1), capture("b", 5)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert main(["compare", "--by", "measure", "--fail-above", "3", a, b]) == 4
    assert main(["compare", "--by", "measure", "--fail-above", "3", "--history", str(file), a, b]) == 3
    assert main(["compare", "--by", "measure", "--fail-above", "3", "--history", str(file), b, a]) == 0
    capsys.readouterr()
    assert main(["summary", "--history", str(file), a]) == 0
    assert main(["watch", "--once", "--patience", "0", "--history", str(file), b]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["run"] for line in lines] == [*(f"past-{number}" for number in range(6)), "a", "b"]
    assert len({line["program"] for line in lines}) == 1


# --- what stands apart -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_run_of_a_side_that_stands_apart_is_named_and_left_out(capture):
    a = tuple(capture(f"a{k}", percent) for k, percent in enumerate((0.0, 0.3, 0.1)))
    b = tuple(capture(f"b{k}", percent) for k, percent in enumerate((5.0, 5.2, 31.0, 5.1)))
    found = Comparison(a, b)
    assert (found.decision.apart, found.decision.outcome) == (("b2",), StepOutcome.longer)
    assert found.step["captures_b"] == 3
    assert found.decision.change_frac == pytest.approx(0.05, abs=0.003)
    assert any(each.startswith("b2 stands apart from the other captures") for each in found.decision.statements)


def test_first_steps_before_a_run_has_warmed_up_are_named_and_left_out(capture):
    found = Comparison((capture("a"),), (capture("b", cold=2),))
    assert found.decision.warming == ("b",)
    assert found.decision.change_frac == pytest.approx(0, abs=0.001)
    assert found.decision.steps_spread_frac < 0.002
    assert "The first 2 steps are left out of b: the run had not warmed up." in found.decision.statements


@pytest.mark.slow
def test_what_holds_of_several_runs_is_one_sentence(capture):
    b = tuple(capture(f"b{number}", cold=2) for number in range(3))
    found = Comparison(tuple(capture(f"a{number}") for number in range(3)), b)
    said = [each for each in found.decision.statements if "warmed up" in each]
    assert said == ["The first 2 steps are left out of b0, b1 and b2: these runs had not warmed up."]
    assert [each for each in explanation(found) if "do not count" in each] == [
        "Steps 0-1 of B take up to 15.0 ms instead of 10.0, and do not count: commtrace summary says why."
    ]


@pytest.mark.parametrize(("groups", "out"), [
    ([[0, 1, 2, 30, 1, 0]], [(0, 3)]),
    ([[0, 1, 2, 30, 31, 1, 0, 2, 1]], [(0, 3), (0, 4)]),  # which hide each other
    ([[0, 1, 2], [10, 11, 12]], []),  # that is the change
    ([[0, 1, 1], [10, 11, 90]], [(1, 2)]),
    ([[0, 1], [10, 90]], []),  # nobody can say which of two
    ([[0.0, 0.001, 0.0, 0.5, 0.001]], []),  # half a per cent is no matter
    ([[]], []),
])  # fmt: skip
def test_runs_that_stand_apart(groups, out):
    assert sorted(apart([np.array(group, float) / 100 for group in groups])) == out


def test_runs_seldom_stand_apart_by_chance():
    chance = np.random.default_rng(1)
    alone = sum(bool(apart([chance.normal(0, 0.02, 6)])) for _ in range(1000))
    of_two = sum(bool(apart([chance.normal(0, 0.02, 3), chance.normal(1, 0.02, 3)])) for _ in range(1000))
    assert (alone, of_two) == (pytest.approx(1, abs=4), pytest.approx(1, abs=4))


def test_steps_of_a_steady_run_have_all_warmed_up():
    chance = np.random.default_rng(2)
    assert sum(warming_steps(chance.lognormal(0, 0.02, 12)) > 0 for _ in range(1000)) <= 10
    assert warming_steps(np.array([15, 13, 10, 10.1, 9.9, 10, 10.2, 10])) == 2
    assert warming_steps(np.array([15, 10, 14, 10, 10, 10, 10])) == 1
    assert warming_steps(np.array([15, 15, 10, 10.0])) == 0


# --- how often it is right -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("runs", [0.0, 0.005])
def test_a_history_of_six_makes_few_false_alarms_and_finds_five_per_cent(runs):
    """Of steps that differ by 0.6 % within a run, and runs that do not differ more, or by 0.5 % besides."""
    chance, alarms, found, pairs = np.random.default_rng(3), 0, 0, 400
    for _ in range(pairs):
        levels = np.exp(chance.normal(0, runs, 8))
        captures = [Capture(np.arange(9), 1e7 * level * chance.lognormal(0, 0.006, 9)) for level in levels]
        medians = np.log([np.median(each.values) for each in captures[2:]])
        errors = [error_of_steps(np.log(each.values)).size for each in captures[2:]]
        known = SpreadOfRuns(pooled_spread(medians), 5, float(np.sqrt(np.mean(np.square(errors)))))
        for factor in (1.0, 1.05):
            b = Capture(captures[1].steps, captures[1].values * factor)
            (row,) = judged([compared(captures[:1], [b], Allowance(known))])
            alarms += factor == 1 and row["significant"]
            found += factor > 1 and row["significant"]
    assert alarms / pairs <= 0.02  # 1 % by promise, and two standard deviations
    assert found / pairs >= 0.9


def test_steps_that_are_less_steady_than_those_of_the_history_take_more_captures_to_settle_a_change():
    def more(spread_ns: int) -> int | None:
        row: dict[str, Any] = dict.fromkeys(("captures_a", "captures_b"), 1) | dict.fromkeys(("steps_a", "steps_b"), 10)
        row |= dict.fromkeys(("a_ns", "b_ns"), 10 * MS) | dict.fromkeys(("spread_a_ns", "spread_b_ns"), spread_ns)
        known = KnownSpread(SpreadOfRuns(0.003, 5, error=0.001), 6, elsewhere=False, apart=())
        basis = DecisionBasis(row, row, 0.003, 6, known, None, (), (), stand_clear=False)
        return captures_for(basis, 0.02)

    steady, restless = more(0), more(200_000)
    assert steady == more(20_000)  # of five blocks that is less than the error of the known runs
    assert (steady, restless) == (2, 8)


def test_what_is_more_than_runs_differ_by_may_still_be_chance_of_the_steps():
    """Captures of a side repeat each other to 0.1 %, but what is long in A is not long in B."""
    noise = np.array([1, -1, 0, 1, 0, -1]) * 5e3
    runs = Allowance(SpreadOfRuns(0.0), separate=True)

    def side(steps: list[int]) -> list[Capture]:
        return [Capture(np.arange(6), np.array(steps) * 1e6 + np.roll(noise, by)) for by in range(3)]

    a, b = side([10, 12, 11, 10, 12, 11]), side([12, 11, 12, 11, 12, 11])
    (row,) = judged([compared(a, b, runs)])
    basis = DecisionBasis(row, None, 0.001, 6, None, None, (), (), stand_clear=False)
    differ, settle = decided(basis).statements
    assert (row["note"], row["significant"]) == (OTHER_WORK, False)
    assert differ.endswith("(0.1%), but no more than chance, as the n-th steps of A and B do other work.")
    assert settle == "Captures of more steps, or of the same work on both sides, would settle it."
    assert decided(basis).more_captures is None
    (same,) = judged([compared(a, [Capture(one.steps, one.values * 1.045) for one in a], runs)])
    assert same["significant"]


def test_a_single_step_does_not_show_by_how_much_runs_differ(tmp_path):
    sides = []
    for name, ms in (("a", 10), ("b", 15)):
        trace = Trace(0, 1).kernel("gemm", 0, ms * MS)
        trace.step(0, 0, ms * MS)
        trace.write(tmp_path / name)
        sides.append((analyse(tmp_path / name, details=True),))
    decision = Comparison(*sides).decision
    assert decision.outcome is StepOutcome.unknown
    assert decision.statements[-1] == (
        "2 more captures of each, alternating, would settle +50.0%, if runs differ by 5.0%."
    )
