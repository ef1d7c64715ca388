"""What the warnings say of steps that lack what the others have."""

from __future__ import annotations

import pandas as pd
import pytest

from commtrace.analysis.metrics.step_doubts import step_doubts
from commtrace.analysis.run.event_tables import marked_steps

ADVICE = "they may be parts of steps: commtrace run has --steps-of and --step-on to say where a step ends"


def doubts(lengths_ms, gradients=None, calls=None, left_out=None) -> list[str]:
    """Sentences on steps 3, 4, ...; `gradients` and `calls` are the steps that hold some, None for all of them."""
    every = range(3, 3 + len(lengths_ms))
    lengths_ns = [round(1e6 * ms) for ms in lengths_ms]
    begins = [sum(lengths_ns[:place]) for place in range(len(lengths_ns))]
    marks = list(zip([f"ProfilerStep#{step}" for step in every], begins, lengths_ns, strict=True))
    holding = every if gradients is None else gradients
    ready = [("torch::autograd::AccumulateGrad", begins[step - 3] + 1, 1) for step in holding]
    rows = [{"name": name, "start_ns": start, "dur_ns": dur} for name, start, dur in (*marks, *ready)]
    reasons = [(left_out or {}).get(step) for step in every]
    steps = pd.DataFrame({"step": every, "window_ns": lengths_ns, "left_out": pd.array(reasons, dtype="string")})
    steps["period"] = pd.array([None] * len(steps), dtype="Int64")
    numbers = pd.array([*(every if calls is None else calls), None], dtype="Int64")
    return list(step_doubts(steps, pd.DataFrame({"step": numbers}), marked_steps(rows).with_gradients))


@pytest.mark.parametrize(
    ("lengths_ms", "held", "said"),
    [
        ([154, 0.7, 178], {}, ["step 4 takes 0.7 ms, the others 154.0 to 178.0 ms"]),
        (
            [154, 0.7, 178, 0.6],
            {"gradients": [3, 5]},
            ["steps 4, 6 hold no backward pass, and take 0.6 to 0.7 ms, the others 154.0 to 178.0 ms"],
        ),
        (
            [154, 20, 150],
            {"gradients": [3, 5], "calls": [3, 5]},
            ["step 4 holds no backward pass and no communication, and takes 20.0 ms, the others 150.0 to 154.0 ms"],
        ),
        (
            [10, 10, 10, 14],
            {"calls": [6]},
            ["steps 3-5 hold no communication, and take 10.0 ms, the others 14.0 ms"],
        ),
    ],
)
def test_steps_that_lack_what_the_others_have(lengths_ms, held, said) -> None:
    assert doubts(lengths_ms, **held) == [f"{each}; {ADVICE}" for each in said]


@pytest.mark.parametrize(
    ("lengths_ms", "held"),
    [
        ([150, 160, 170], {}),
        ([150, 160, 170], {"gradients": [], "calls": []}),  # inference on one device
        ([10, 10, 170], {}),  # a checkpoint, which is said elsewhere
        ([1, 160, 170], {"gradients": [4, 5], "left_out": {3: "beginning"}}),
        ([], {}),
    ],
)
def test_nothing_is_said_of_others(lengths_ms, held) -> None:
    assert doubts(lengths_ms, **held) == []
