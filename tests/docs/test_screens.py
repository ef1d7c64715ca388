"""docs/screens.md shows what terminals show."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

GENERATOR = runpy.run_path(str(Path(__file__).with_name("screens_page.py")))


@pytest.mark.slow
def test_the_page_is_what_terminals_show() -> None:
    page = GENERATOR["PAGE"].read_text(encoding="utf-8")
    assert GENERATOR["page"]() == page, "docs/screens.md is out of date: run python tests/docs/screens_page.py"
