"""The worked examples of the pages on what devices did: breakdowns, calls, kernels."""

import pytest
from given_runs import analysis_of_run
from worked_examples import assert_a_changed_number_is_noticed, assert_true, examples

EXAMPLES = examples(
    "breakdown",
    "steps",
    "serving",
    "account",
    "compute",
    "contention",
    "regions",
    "idle",
    "copies",
    "counters",
    "launches",
    "calls",
    "cpu-runs",
    "kernels",
    "roles",
)


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    assert_true(text, analysis_of_run)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    assert_a_changed_number_is_noticed(text, analysis_of_run)
