"""The steps of a run that are compared."""

from __future__ import annotations

import pandas as pd

from ..results.analysis import Analysis
from . import step_values


def whole_steps(analysis: Analysis) -> pd.DataFrame:
    """The breakdown of each step whose end the trace shows."""
    last = step_values.last_steps(analysis.run.annotations)
    if analysis.run.recorded_steps:  # the last step that was read is whole if another one follows in the recording
        ending = {steps[-1] for steps in analysis.run.recorded_steps.values() if steps}
        last = [step for step in last if step in ending]
    return step_values.closed_steps(that_count(analysis, analysis.breakdown_steps), last)


def that_count(analysis: Analysis, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table that are neither of steps of other kinds, nor of those that are unlike all others once.

    What happens once is in no typical step, and would hide by how much typical ones differ. What happens again is what
    steps differ by.
    """
    steps = analysis.steps
    unlike, whole = steps[steps["left_out"].isin(["long", "short"])]["step"], _whole(steps)["step"]
    # The first ones are as long in every run that had not warmed up, which is said of it.
    is_once = whole.min() < unlike.min() and not whole.between(unlike.min(), unlike.max()).any()
    left_out = steps["left_out"].isin(["kind", "long", "short"] if is_once else ["kind"])
    return table[~table["step"].isin(steps[left_out]["step"])]


def _whole(steps: pd.DataFrame) -> pd.DataFrame:
    """Those like most others, whether runs that are compared have them or not."""
    return steps[steps["left_out"].isna() | (steps["left_out"] == "other")]


def lengths_of_steps(analysis: Analysis) -> dict[str, pd.Series[float]]:
    """Lengths of the steps in ns by source."""
    return step_values.step_lengths(analysis.run.step_times, whole_steps(analysis))
