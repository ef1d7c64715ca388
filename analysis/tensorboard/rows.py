"""A line on a run for the list of runs, made by a process of its own."""

from __future__ import annotations

import json
import sys
from typing import Any

from ..core.escaping import printable
from ..errors import AnalysisError
from ..results.analysis import Analysis
from ..results.opening import analyse
from ..show.first_screen import COMMUNICATION, first_screen


def run_row(analysis: Analysis) -> dict[str, Any]:
    """What the first screen of the run says first; None for what is not known, times in ns."""
    screen = first_screen(analysis)
    steps = {part.column: part for part in screen.parts}
    remedy = screen.remedies[0] if screen.remedies and screen.is_priced else None
    return {
        "verdict": screen.verdict,
        "headline": screen.headline,
        "step_ns": analysis.typical_step.parts["window_ns"] if steps else None,
        "exposed_comm_ns": sum(steps[column].ns for column in COMMUNICATION) if steps else None,
        "exposed_comm_frac": sum(steps[column].frac for column in COMMUNICATION) if steps else None,
        "remedy": remedy.what if remedy else None,
        "gain_ns": remedy.gain_ns if remedy else None,
        "gain_frac": remedy.gain_frac if remedy else None,
    }


def print_row(run: str) -> None:
    """Print the row of the run at this path as JSON; where it cannot be read, `why` says so."""
    try:
        row = run_row(analyse(run, keep_going=True, cache=True))
    except AnalysisError as err:
        row = {"state": "failed", "why": printable(" ".join(str(err).split()))}
    sys.stdout.write(json.dumps(row))
