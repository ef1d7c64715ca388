"""Steps of real serving traces, found by themselves."""

from __future__ import annotations

import pytest
from beside_checkout import TRACES, needs_shared

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.opening import analyse

pytestmark = needs_shared


@pytest.mark.quick_cases("False-tracelens-vllm-steps0")
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("tracelens-vllm", [("mixed", 46, 8192)]),
        ("tracelens-sglang", [("prefill", 15, 15360)]),
        ("vllm-b200-r0of8", [("prefill", 1, 888)]),
    ],
)
@pytest.mark.parametrize("details", [False, True])
def test_every_step_is_found(name: str, steps: list[tuple[str, int, int]], details: bool) -> None:
    found = analyse(TRACES / name, details=details)
    assert [(row["kind"], row["requests"], row["tokens"]) for row in records(found.steps)] == steps
    assert "no steps marked" not in found.summary()
    assert found.serving["tokens_per_s"].notna().all()
    outside = [ran.outside_steps for ran in found.run.tables.ran]
    assert sum(outside) <= 0.05 * len(found.run.activities)
