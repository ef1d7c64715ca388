"""Roles of the groups of real jobs, none of which describes them."""

import pytest
from beside_checkout import TRACES, needs_shared

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.opening import analyse

pytestmark = needs_shared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("ddp-a100-r0of2", "dp"),
        ("rccl-mi300x-r0of8", "dp"),  # links are so slow that gradients are most of a step
        ("nanogpt-2026-02", "dp_shard"),  # an optimizer whose states are sharded
        ("moe-b200-r0of2", "world"),  # all_to_alls with equal parts, which may be of experts or of sequences
        ("megatron-v100-tp2", None),  # all_reduces of activations, which may be of gradients, tensor by tensor
        ("vllm-b200-r0of8", None),  # its all_reduces are no NCCL calls
    ],
)
def test_role_of_the_group_with_most_calls(name, role):
    first = records(analyse(TRACES / name).groups.head(1))[0]
    assert first["role"] == role
    assert (first["role_from"] == "calls") == (role in ("dp", "dp_shard"))
