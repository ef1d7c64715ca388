"""docs/api.md lists the options of reading as their entries say."""

from __future__ import annotations

from options_page import PAGE, page_with_options


def test_the_page_lists_every_option() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_options(page) == page, "docs/api.md is out of date: run python tests/docs/options_page.py"
