"""Steps of others' runs, foretold from the other steps of the same run."""

from __future__ import annotations

import numpy as np
import pytest
from beside_checkout import SHARED
from leave_one_out import errors

from commtrace import analyse
from commtrace.analysis.replay.table import MOST_ERROR_FRAC
from commtrace.analysis.tables.replay import replayed

FOLDER = SHARED / "traces"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.exists(), reason="no shared traces beside the checkout"),
]


def test_a_step_left_out_is_foretold() -> None:
    """Median over the steps, then over the runs that are played well enough and have several steps."""
    found = {}
    for folder in sorted(FOLDER.glob("*-*")):
        analysis = analyse(folder, details=True)
        if analysis.of(replayed).error_frac <= MOST_ERROR_FRAC and (by_step := errors(analysis)):
            found[folder.name] = float(np.median(np.abs(list(by_step.values()))))
    assert len(found) >= 4
    assert np.median(list(found.values())) <= 0.033
