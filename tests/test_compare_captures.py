"""Real captures side by side: equal ones do not differ, and of slowed ones the slowed part is named.

What is compared is captured by turns. Now and then equal captures differ all the same, once in a hundred comparisons
by promise, and a machine busy with other work hides a part: so everything may be tried again, once. What is wrong then
fails, unless the script's own clock says that equal steps were not equally long.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from capturing import SCRIPTS, python
from noise import expect

from commtrace import Analysis, Comparison, analyse
from commtrace.analysis.cli.commands import compare as cli_compare
from commtrace.analysis.core.schema import records
from commtrace.cli import main

pytest.importorskip("torch")
pytestmark = pytest.mark.alone
SLEEP_NS = 150_000_000
TURNS = 3
ATTEMPTS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of captures of an attempt, which are made when it is first asked for."""
    root = tmp_path_factory.mktemp("compared")

    @cache
    def captured(attempt: int) -> Path:
        done = python(SCRIPTS / "compared.py", root / str(attempt), TURNS)
        assert done.returncode == 0, done.stderr
        return root / str(attempt)

    return captured


@pytest.fixture(scope="module")
def captures(folder: Callable[[int], Path]) -> Callable[[int, str], tuple[Analysis, ...]]:
    """The captures of a name and attempt, each read once."""

    @cache
    def read(attempt: int, name: str) -> tuple[Analysis, ...]:
        return tuple(analyse(folder(attempt) / f"{name}-{turn}", details=True) for turn in range(TURNS))

    return read


@pytest.fixture(scope="module")
def noise_ns(folder: Callable[[int], Path]) -> Callable[..., float]:
    """By how much steps of these names differ from steps of the same name, by the script's clock: standard deviation.

    The largest of all attempts.
    """

    def of(*names: str) -> float:
        return max(
            stdev(
                ns for turn in range(TURNS) for ns in json.loads((folder(attempt) / f"{name}-{turn}.json").read_text())
            )
            for attempt in range(ATTEMPTS)
            for name in names
        )

    return of


def measures(found: Comparison) -> dict[str, dict[str, Any]]:
    return {row["measure"]: row for row in records(found.comparison)}


def significant(found: Comparison) -> list[str]:
    """Everything that differs significantly, by name."""
    tables = (found.comparison, found.changed_kernels, found.changed_operators)
    return [row[next(iter(row))] for table in tables for row in records(table) if row["significant"]]


@pytest.mark.parametrize("count", [1, TURNS])
def test_captures_of_one_configuration_do_not_differ(captures: Any, noise_ns: Any, count: int) -> None:
    for attempt in range(ATTEMPTS):
        found = Comparison(captures(attempt, "plain")[:count], captures(attempt, "again")[:count])
        step = measures(found)["step"]
        assert (step["captures_a"], step["captures_b"]) == (count, count)
        assert step["significant"] is not None
        assert measures(found)["peak_memory"]["a_bytes"] > 0
        if not significant(found):
            return
    expect(False, noise_ns("plain", "again"), 0.1 * step["a_ns"], f"differ: {significant(found)}")


def test_a_sleep_shows_as_idle_time(captures: Any, noise_ns: Any) -> None:
    for attempt in range(ATTEMPTS):
        found = Comparison(captures(attempt, "plain"), captures(attempt, "sleep"))
        step, idle = (measures(found)[name] for name in ("step", "idle"))
        named = {"step", "idle"} <= set(significant(found))
        if named and all(row["difference_ns"] == pytest.approx(SLEEP_NS, rel=0.4) for row in (step, idle)):
            return
    expect(False, noise_ns("plain", "sleep"), 0.1 * SLEEP_NS, f"{significant(found)} {step} {idle}")


def test_a_larger_layer_is_named_in_compute_operator_and_memory(captures: Any, noise_ns: Any) -> None:
    # How long computing takes varies with all else that a busy machine does: where it is 5 times as long, that need not
    # be significant there. What differs most, and what is allocated, does not vary.
    for attempt in range(ATTEMPTS):
        found = Comparison(captures(attempt, "plain"), captures(attempt, "layer"))
        rows, first = measures(found), records(found.changed_operators)[0]
        assert rows["peak_memory"]["significant"]
        most = max((row for row in rows.values() if row["measure"] != "step"), key=lambda r: r["difference_ns"] or 0)
        named = (first["operator"], first["a_ns"]) == ("aten::conv2d", 0)
        if named and most["measure"] == "compute" and most["change_frac"] > 1:
            return
    expect(False, noise_ns("plain", "layer"), 0.1 * rows["step"]["b_ns"], f"{first} {most}: {found.decision}")


def test_ci_stops_at_the_slower_side(
    folder: Callable[[int], Path],
    captures: Any,
    noise_ns: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(paths: list[Path], reading: object, *, details: bool) -> Analysis:
        (path,) = paths
        name, _, turn = path.name.partition("-")
        one: Analysis = captures(int(path.parent.name), name)[int(turn)]
        return one

    monkeypatch.setattr(cli_compare, "analysis_of", read)
    for attempt in range(ATTEMPTS):
        plain, slow = (
            [str(folder(attempt) / f"{name}-{turn}") for turn in range(TURNS)] for name in ("plain", "sleep")
        )
        assert main(["compare", "--fail-above", "50", *slow, "--against", *plain]) == 0
        capsys.readouterr()
        code = main(["compare", "--fail-above", "50", *plain, "--against", *slow])
        said = capsys.readouterr().err
        if code == 3 and said.startswith("slower: the steps of B take "):
            return
    expect(False, noise_ns("plain", "sleep"), 0.1 * SLEEP_NS, said)
