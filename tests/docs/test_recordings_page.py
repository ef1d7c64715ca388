"""docs/recordings.md lists the columns that are declared."""

from __future__ import annotations

from recordings_page import PAGE, page_with_columns


def test_the_page_lists_the_columns_that_are_declared() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_columns(page) == page, "docs/recordings.md is out of date: run tests/docs/recordings_page.py"
