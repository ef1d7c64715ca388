"""The worked examples of the page on comparing two configurations."""

import pandas as pd
import pytest
from given_runs import analysis_of_run
from worked_examples import Given, assert_a_changed_number_is_noticed, assert_true, examples

from commtrace.analysis.comparison.analysis import Comparison
from commtrace.analysis.comparison.trend import RunTrend

EXAMPLES = examples("comparison")


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    assert_true(text, comparison)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    assert_a_changed_number_is_noticed(text, comparison)


class Compared(Comparison):
    """Two runs, and the same as a series."""

    @property
    def trend(self) -> pd.DataFrame:
        return RunTrend((*self.a, *self.b)).trend


def comparison(given: Given) -> Compared:
    """The runs A and B, whose tables are given as `<table> of A` and `<table> of B`."""
    sides = [{n[: -len(end)]: rows for n, rows in given.items() if n.endswith(end)} for end in ("_of_A", "_of_B")]
    return Compared(*((analysis_of_run(side),) for side in sides))
