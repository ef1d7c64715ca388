"""The worked examples of the pages on late ranks, hangs and verdicts."""

import pytest
from given_runs import analysis_of_run
from worked_examples import assert_a_changed_number_is_noticed, assert_true, examples

EXAMPLES = examples(
    "lateness",
    "late-work",
    "ranks-and-hosts",
    "hangs",
    "verdicts",
    "remedies",
    "replay",
    "critical-path",
    "releases",
    "pipelines",
    "experts",
    "memory",
)


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    assert_true(text, analysis_of_run)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    assert_a_changed_number_is_noticed(text, analysis_of_run)
