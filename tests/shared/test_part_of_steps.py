"""Steps of real traces read alone: devices did the same, and calls waited as long where clocks need no other steps."""

from __future__ import annotations

import pytest
from beside_checkout import TRACES
from rows_of_steps import differences_of_step, differences_on_devices

from commtrace.analysis.results.opening import analyse

NEEDS_OTHERS = {"exposed_wait_ns", "exposed_transfer_ns", "exposed_unsplit_ns"}
"""Columns that depend on clocks and on calls of other steps that still ran."""


def _run(name: str):
    run = TRACES / name
    if not run.is_dir():
        pytest.skip(f"{name} is not beside the checkout")
    return run


@pytest.mark.slow
def test_steps_on_one_host():
    run = _run("nanogpt-h100-w8")
    whole = analyse(run, details=True)
    for step in whole.run.steps[1:3]:
        assert differences_of_step(whole, analyse(run, details=True, steps=[step]), step) == []


@pytest.mark.slow
def test_steps_that_overlap_on_devices():
    run = _run("torchrec-v100-w4")
    whole = analyse(run, details=True)
    for step in whole.run.steps:
        found = differences_on_devices(whole, analyse(run, details=True, steps=[step]), step)
        assert {one.partition(".")[2] for one in found} <= NEEDS_OTHERS
