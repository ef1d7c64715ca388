"""What overlapping costs in real traces; what is expected was found by a script of its own."""

import pytest
from beside_checkout import TRACES, needs_shared

from commtrace import analyse
from commtrace.analysis.core.schema import records

pytestmark = needs_shared


@pytest.mark.slow
def test_a_product_of_matrices_beside_all_gathers():
    """On 8 H100: within the two ranks that also run it alone 1.66 and 1.69 times as long."""
    found = analyse(TRACES / "nanogpt-h100-w8", whole=True).contention_kernels
    rows = [row for row in records(found) if row["operator"] == "aten::bmm" and row["collective"] == "all_gather"]
    within = {row["rank"]: row["slowdown"] for row in rows if not row["pooled"]}
    assert within == {0: pytest.approx(1.66, abs=0.01), 1: pytest.approx(1.69, abs=0.01)}
    pooled = [row for row in rows if row["pooled"]]
    assert [row["rank"] for row in pooled] == [2, 3, 4, 5, 6, 7]
    assert all(row["slowdown_low"] <= row["slowdown"] <= row["slowdown_high"] for row in rows)
    assert all(1.6 < row["slowdown"] < 1.8 for row in pooled)


@pytest.mark.slow
def test_a_rank_that_runs_it_beside_communication_only_is_not_slower_at_it():
    """Rank 5 runs 40 of 40 calls beside NCCL."""
    rows = records(analyse(TRACES / "nanogpt-h100-w8").shapes)
    (row,) = (row for row in rows if row["inputs"] == "2x768x768 2x768x3072 2x768x3072")
    assert row["ranks"] == 8
    assert row["slowest_rank"] != 5


@pytest.mark.parametrize("run", ["ddp-a100-r0of2", "torchrec-v100-w4"])
def test_without_shapes_nothing_is_compared(run):
    found = analyse(TRACES / run).contention
    assert len(found)
    assert not found["paired_ns"].any()
    assert found["slowdown"].isna().all()
    assert found["note"].notna().all()
