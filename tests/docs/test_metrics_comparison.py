"""The worked examples of the page on comparing two configurations."""

import pytest
from given_runs import analysis_of_run
from worked_examples import Given, assert_a_changed_number_is_noticed, assert_true, examples

from commtrace.analysis.comparison.analysis import Comparison

EXAMPLES = examples("comparison")


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    assert_true(text, comparison)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    assert_a_changed_number_is_noticed(text, comparison)


def comparison(given: Given) -> Comparison:
    """The runs A and B, whose tables are given as `<table> of A` and `<table> of B`."""
    sides = [{n[: -len(end)]: rows for n, rows in given.items() if n.endswith(end)} for end in ("_of_A", "_of_B")]
    return Comparison(*((analysis_of_run(side),) for side in sides))
