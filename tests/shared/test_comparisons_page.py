"""docs/comparisons-of-real-runs.md says what commtrace says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from beside_checkout import TRACES, needs_shared

from commtrace import compare
from commtrace.analysis.show.comparison import headline

pytestmark = needs_shared

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "comparisons-of-real-runs.md"
_ROW = re.compile(r"^\| (?P<a>[\w-]+), (?P<b>[\w-]+): [^|]+ \| (?P<said>[^|]+) \| [^|]+ \|$", re.MULTILINE)
_SAID = {(row["a"], row["b"]): row["said"] for row in _ROW.finditer(_PAGE.read_text(encoding="utf-8"))}
_QUICK = ("tracelens-bert-h100", "tracelens-vllm")


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    [pytest.param(pair, marks=() if pair[0] in _QUICK else pytest.mark.slow, id="-and-".join(pair)) for pair in _SAID],
)
def test_the_headline_is_that_on_the_page(pair: tuple[str, str]) -> None:
    both = compare(TRACES / pair[0], TRACES / pair[1], workers=1)
    assert f"{headline(both)}." == _SAID[pair]


def test_the_page_has_pairs() -> None:
    assert len(_SAID) >= 8
