"""docs/coming-from-hta.md shows what both libraries print, and leaves out no call of HTA."""

import inspect

import pytest
from hta_page import PAGE, page_as_printed
from second_opinion import hta


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_outputs_are_what_both_print() -> None:
    hta()
    page = PAGE.read_text(encoding="utf-8")
    assert page_as_printed(page) == page


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_call_is_there() -> None:
    calls = {name for name, _ in inspect.getmembers(hta().TraceAnalysis, inspect.isfunction) if name[0] != "_"}
    page = PAGE.read_text(encoding="utf-8")
    assert {name for name in calls if f"`{name}`" not in page} == {"get_queue_length_summary_from_time_series"}
