"""docs/predict.md shows what the command prints."""

from predict_page import PAGE, page_as_printed, page_with_options


def test_its_table_is_what_is_printed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_as_printed(page) == page
    assert "rank 2 as fast as the others" in page


def test_it_lists_what_can_be_asked_as_help_does() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_options(page) == page, "docs/predict.md is out of date: run python tests/docs/predict_page.py"
