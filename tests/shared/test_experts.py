"""Experts in traces of others: a mixture on one rank of two, a decoder with DeepEP, and embeddings, which are none."""

from __future__ import annotations

import pytest
from beside_checkout import TRACES, needs_shared

from commtrace.analysis.results.opening import analyse

pytestmark = needs_shared


def test_one_rank_of_two_knows_its_own_tokens():
    """Ten forward passes in a step, each with an exchange of counts and two of rows, of [4096, 4096] each."""
    table = analyse(TRACES / "moe-b200-r0of2").experts
    assert table["layer"].tolist() == list(range(10))
    assert set(table["sent_tokens"]) == set(table["received_tokens"]) == {8192}
    assert table[["imbalance_factor", "cost_ns", "wait_combine_ns"]].isna().all(axis=None)
    assert set(table["note"]) == {"not seen on rank 1"}
    assert table["expert_ns"].between(900_000, 1_100_000).all()


@pytest.mark.slow
def test_deep_ep_tells_time_only():
    """58 layers, as many as DeepSeek-V3 has with experts, on 8 ranks."""
    table = analyse(TRACES / "lightllm-sglang-427996").experts
    assert len(table) == 58 * 8
    assert table["received_tokens"].isna().all()
    assert table[["expert_ns", "cost_ns"]].notna().all(axis=None)
    assert set(table["note"]) == {"no sizes are recorded"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchrec-v100-w4", "torchrec-a2a-063", "dlrm-v100-w8"])
def test_embeddings_are_no_experts(name):
    found = analyse(TRACES / name)
    assert (found.calls["collective"] == "all_to_all").any()
    assert not len(found.experts)
