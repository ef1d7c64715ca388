"""docs/verdicts-of-real-runs.md says what commtrace says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from beside_checkout import TRACES, needs_shared

from commtrace import analyse

pytestmark = needs_shared

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "verdicts-of-real-runs.md"
_ROW = re.compile(r"^\| (?P<name>[\w-]+): [^|]+ \| (?P<said>[^|]+) \| [^|]+ \|$", re.MULTILINE)
_QUICK = ("tracelens-bert-h100", "tracelens-sglang", "dlrm-v100-w8")
_SAID = {row["name"]: row["said"] for row in _ROW.finditer(_PAGE.read_text(encoding="utf-8"))}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in _SAID]
)
def test_the_headline_is_that_on_the_page(name: str) -> None:
    run = analyse(TRACES / name, details=True, workers=1).verdicts.iloc[0]
    assert f"{run['headline']} ({run['verdict']})." == _SAID[name]


def test_every_set_is_on_the_page() -> None:
    assert set(_SAID) == {path.name for path in TRACES.iterdir() if path.is_dir()} - {"holes"}
