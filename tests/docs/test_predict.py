"""docs/predict.md shows what the command prints."""

from predict_page import PAGE, page_as_printed


def test_its_table_is_what_is_printed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_as_printed(page) == page
    assert "rank 2 as fast as the others" in page
