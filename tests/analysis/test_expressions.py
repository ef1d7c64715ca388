"""Regular expressions end on any name: those of the project soon, those that somebody gives when their time is over."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import LAYOUTS, MS, Trace, analysed

from commtrace.analysis.core import kinds
from commtrace.analysis.core.expressions import MOST_LETTERS, compiled, cut_name, search
from commtrace.analysis.errors import SlowExpression
from commtrace.analysis.metrics.compute.categories import category
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

ROOT = Path(__file__).parents[2]
SHORT, LONG = 500, 2_000
# Machines are busy: an expression is too slow only if it takes this long, and much longer than for a quarter of it.
TOO_LONG_S, TOO_STEEP = 0.4, 40
SLOW = "(a|b|ab)*(?:c|d)(?<=x)e"
ENDLESS = "(?:(?:a|aa)+)+$"


def expressions() -> dict[tuple[Any, int], re.Pattern[Any]]:
    """Every expression that a module of the project holds, by itself, in a tuple, a list or a dictionary."""
    found: dict[tuple[Any, int], re.Pattern[Any]] = {}

    def collect(value: object, depth: int = 0) -> None:
        if isinstance(value, re.Pattern):
            found[value.pattern, value.flags] = value
        elif isinstance(value, (tuple, list, set, frozenset)) and depth < 4:
            for each in value:
                collect(each, depth + 1)
        elif isinstance(value, dict) and depth < 4:
            collect([*value.keys(), *value.values()], depth + 1)

    for package in ("analysis", "profiling"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if "re." in file.read_text(encoding="utf-8"):
                name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                collect(list(vars(importlib.import_module(f"commtrace.{name}")).values()))
    return found


def subjects(pattern: Any, length: int) -> Iterator[Any]:
    """Texts of this length that repeat a letter, or a word of the expression."""
    source = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
    words = sorted(set(re.findall(r"[A-Za-z_:#]{3,}", source)), key=len)[-5:]
    for part in ("a", "_", " ", "0", ",", "::", "aA", "/", *words, *(f"{word}_" for word in words)):
        text = (part * (length // len(part) + 1))[:length]
        yield text if isinstance(pattern, str) else text.encode()


def worst_s(expression: re.Pattern[Any], length: int) -> float:
    times = []
    for text in subjects(expression.pattern, length):
        for method in (expression.search, expression.fullmatch):
            begun = time.process_time()
            method(text)
            times.append(time.process_time() - begun)
    return max(times)


@pytest.mark.slow
def test_all_of_the_project_end_soon() -> None:
    pytest.importorskip("torch")  # which some modules of `profiling` import
    every = expressions()
    assert len(every) > 100
    slow = {}
    for key, expression in every.items():
        took = worst_s(expression, LONG)
        if took > TOO_LONG_S or (took > TOO_LONG_S / 4 and took > TOO_STEEP * worst_s(expression, SHORT)):
            slow[key] = took
    assert not slow


@pytest.mark.parametrize("letters", [1_000, 40_000, 1_000_000])
@pytest.mark.parametrize("part", ["a", "userbuffers_fp16_sum_inplace_gpu_", "deep_ep::", ",", "at::native::", "fmha"])
def test_a_name_of_any_length_has_a_kind_at_once(part: str, letters: int) -> None:
    name = (part * (letters // len(part) + 1))[:letters]
    begun = time.process_time()
    kinds.kernel_kind(name)
    kinds.collective_in_name(name)
    kinds.name_on_all_ranks(name)
    category(None, cut_name(name))
    assert time.process_time() - begun < 2


def test_long_names_stay_apart() -> None:
    first, second = "k" * 10_000 + "a", "k" * 10_000 + "b"
    assert len(cut_name(first)) == MOST_LETTERS
    assert cut_name(first) != cut_name(second)
    assert cut_name("k" * MOST_LETTERS) == "k" * MOST_LETTERS


@pytest.mark.quick_cases("crlf")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_names_everywhere_in_a_file(tmp_path: Path, layout: str) -> None:
    names = ["x" * 40_000 + str(number) for number in range(3)]
    trace = Trace(world=1).step(1, 0, 9 * MS)
    for number, name in enumerate(names):
        trace.kernel(name, number * MS, 1 * MS).op(f"op{name}", number * MS, 1 * MS)
        trace.annotation(f"range {name}", number * MS, 1 * MS)
    trace.write(tmp_path, layout=layout)
    found = analyse(tmp_path, details=True)
    assert sorted(found.kernels["name"]) == sorted(map(cut_name, names))
    assert found.run.annotations["name"].str.len().max() == MOST_LETTERS
    assert found.summary()


@pytest.mark.parametrize("option", ["--comm-kernel", "--steps"])
@pytest.mark.parametrize("given", ["[", "(" * 5_000 + ")" * 5_000, "(?P<x", "a{1,99999999999999999999}", "(?z)a"])
def test_what_is_no_expression_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, given: str
) -> None:
    path = Trace(world=1).kernel("a", 0, 2 * MS).write(tmp_path)
    assert main(["breakdown", option, given, str(path)]) == 2
    said = capsys.readouterr().err
    assert "is not a regular expression" in said
    assert len(said) < 1_000
    with pytest.raises(ValueError, match="is not a regular expression"):
        analyse(path, **{"comm_names": [given]} if option == "--comm-kernel" else {"step_marker": given})


@pytest.mark.parametrize("given", ["(?i)MINE", "(?x) mi ne # spaced", "(?<!a)mine"])
def test_an_expression_is_used_as_it_is(tmp_path: Path, given: str) -> None:
    path = Trace(world=1).kernel("mine_1", 0, 2 * MS).kernel("other", 2 * MS, 1 * MS).write(tmp_path)
    (row,) = analyse(path, comm_names=["never", given]).breakdown.to_dict("records")
    assert (row["n_comm"], row["n_compute"]) == (1, 1)


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commtrace.analysis.core.expressions._MOST_SECONDS", 0.05)

    class Endless:
        """An expression that never ends by itself, whatever `regex` learns."""

        def search(self, name: str, timeout: float) -> None:
            raise TimeoutError

    monkeypatch.setattr("commtrace.analysis.core.expressions.compiled", lambda *_, **__: Endless())
    with pytest.raises(SlowExpression, match=r"takes more than 0 s on the name 'aaa"):
        search("(a+)+$", "a" * 50)


def test_regex_knows_when_to_stop() -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        compiled(ENDLESS).search("a" * 5_000 + "b", timeout=0.2)
    assert time.monotonic() - begun < 20


def test_a_run_with_such_an_expression_ends_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace.analysis.core.expressions._MOST_SECONDS", 0.2)
    path = Trace(world=1).kernel("a" * 4_000 + "b", 0, 2 * MS).write(tmp_path)
    assert main(["breakdown", "--no-cache", "--comm-kernel", ENDLESS, str(path)]) == 1
    assert "write it without repeated parts" in capsys.readouterr().err
    assert analysed(tmp_path, Trace(world=1).kernel("a", 0, 2 * MS)).breakdown["n_compute"].tolist() == [1]
