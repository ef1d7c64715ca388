"""The worked examples of the page on the largest batch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from worked_examples import Given, assert_a_changed_number_is_noticed, assert_true, examples

from commtrace import BatchFits, fit_batches
from commtrace.analysis.tables.memory import DEVICE_MEMORY, MEMORY_STEPS

EXAMPLES = examples("memory-batches")


def fits_of(given: Given) -> BatchFits:
    """What is found of runs with these peaks."""
    runs = [
        SimpleNamespace(
            table={
                "memory": DEVICE_MEMORY.frame([_known(DEVICE_MEMORY.columns, row) | {"partial": False}]),
                "memory_steps": MEMORY_STEPS.frame([]),
            }.__getitem__
        )
        for row in given["runs"]
    ]
    return fit_batches(*runs, batches=[row["batch"] for row in given["runs"]])


def _known(columns: object, row: dict[str, object]) -> dict[str, object]:
    return {name: row.get(name) for name in columns}


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    assert_true(text, fits_of)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    assert_a_changed_number_is_noticed(text, fits_of)
