"""The worked examples of the page on cycles."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from given_runs import analysis_of_run
from worked_examples import Given, assert_a_changed_number_is_noticed, assert_true, examples

from commtrace.analysis.core.tables.cycles import CYCLES
from commtrace.analysis.watching.ledger import numbered
from commtrace.analysis.watching.limits import limit_in, passed
from commtrace.analysis.watching.rows import cycle_row

EXAMPLES = examples("cycles")


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    assert_true(text, one_cycle)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    assert_a_changed_number_is_noticed(text, one_cycle)


def one_cycle(given: Given) -> SimpleNamespace:
    """The given run as the only cycle of a run directory."""
    tables = dict(given)
    limits = [limit_in(row["limit"]) for row in tables.pop("limits", [])]
    row = numbered("example", None, 0, cycle_row(analysis_of_run(tables)))
    return SimpleNamespace(cycles=CYCLES.frame([row | {"limits": passed(row, limits)}]))
