"""What the verdict says of real traces is what somebody sees who looks at their timelines."""

from __future__ import annotations

import pytest
from beside_checkout import TRACES, needs_shared

from commtrace import analyse
from commtrace.analysis.core.schema import records

pytestmark = needs_shared


@pytest.mark.quick_cases("tracelens-vllm-compute-bound-said9")
@pytest.mark.parametrize(
    ("name", "verdict", "said"),
    [
        # Rank 2 sleeps for a second in each step, in Python, within this annotation.
        (
            "torchrec-a2a-063",
            "skew-bound",
            (
                "Rank 2 costs 978.6 of 1,097.5 ms in a step (89%)",
                "Ranks wait 749.3 ms (68%)",
                "outside of any operator",
                "# running sparse",
            ),
        ),
        # Step 4 frees what the caching allocator holds, and allocates it again.
        (
            "torchrec-a2a3",
            "allocator-bound",
            ("25 cudaFree and 9 cudaMalloc take 250.", "Step 4 takes 377.0 ms instead"),
        ),
        # Nothing of the step before is in the trace, behind which the host stands in hipMemcpyWithStream.
        ("tracelens-sglang", "compute-bound", ("Compute fills 492.8 of 494.0 ms in a prefill step (100%)",)),
        # Memory-bound eager code.
        ("tracelens-qwen-h100", "compute-bound", ("Compute fills 31.8 of 35.2 ms in a step (90%)",)),
        # Rank 7 begins the only traced step late.
        (
            "dlrm-v100-w8",
            "launch-bound",
            (
                "idle for 8.7 of 15.7 ms in a step (56%)",
                "rank 7 and 2 ranks nearly as late (2, 6), the first begins the traced step",
            ),
        ),
        (
            "nanogpt-h100-w8",
            "launch-bound",
            ("Late launches cost up to 10.5 of 44.0 ms", "for rank 1", "Optimizer.step#NorMuon.step"),
        ),
        ("nanogpt-2026-02", "host-bound", ("idle for 39.6 of 80.6 ms in a step (49%)", "linear_relu_square_kernel")),
        ("vllm-b200-r0of8", "launch-bound", ("idle for 72.9 of 84.5 ms in a prefill step (86%)",)),
        ("hta-negq-r0of16", "idle", ("idle for 137.3 of 214.0 ms in a step (64%)",)),
        ("tracelens-vllm", "compute-bound", ("Compute fills", "No communication was traced.")),
        ("lightllm-sglang-427996", "transfer-bound", ("Exposed communication takes 58.5 of 104.9 ms",)),
    ],
)
def test_the_first_sentence(name: str, verdict: str, said: tuple[str, ...]) -> None:
    (run,) = records(analyse(TRACES / name, details=True).verdicts.head(1))
    assert run["verdict"] == verdict
    for words in said:
        assert words in run["because"]


@pytest.mark.quick_cases("nanogpt-2026-02-ms1-left_out1")
@pytest.mark.parametrize(
    ("name", "ms", "left_out"),
    [
        ("hta-negq-r0of16", (207, 218), {554: "drain"}),
        ("nanogpt-2026-02", (76, 84), {10: "beginning"}),
        ("torchrec-a2a3", (136, 378), {6: "drain"}),
        ("ddp-v100-r1of2", (331, 366), {}),
    ],
)
def test_a_step_is_a_whole_one(name: str, ms: tuple[int, int], left_out: dict[int, str]) -> None:
    result = analyse(TRACES / name)
    low, high = ms
    assert all(low <= length / 1e6 <= high for length in result.typical_step.lengths_ns)
    assert {row["step"]: row["left_out"] for row in records(result.steps) if row["left_out"]} == left_out
    assert low <= result.typical_step.parts["window_ns"] / 1e6 <= high
