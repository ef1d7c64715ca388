"""FLOPs of single operators by hand, and the reasons for those that a trace does not tell.

tests/profiling/test_flop_counter.py compares with torch, tests/shared/test_tracelens_work.py with TraceLens.
"""

from __future__ import annotations

import numpy as np
import pytest
from cpu_work import NONE, listed, operator, scalar, several, tensor
from hypothesis import given
from hypothesis import strategies as st

from commtrace.analysis.metrics.compute.flops import (
    ATTENTION_BACKWARD,
    ATTENTION_FORWARD,
    causally_masked_frac,
    counted_once,
    counts,
    flops,
    handing_over,
)
from commtrace.analysis.metrics.compute.operators import ProfiledOperator, matrix_dtype

QUERY = tensor(2, 4, 8, 16)
"""[batch, heads, length, head]; what takes length before heads reads 4 positions of 8 heads."""
CONVOLUTION = (tensor(2, 4, 9, 9), tensor(8, 2, 3, 3), tensor(8), listed(2, 2), listed(1, 1), listed(1, 1))


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (operator("aten::mm", tensor(2, 3), tensor(3, 5)), 2 * 2 * 3 * 5),
        (operator("aten::mm", tensor(2, 3), tensor(3, 5), tensor(2, 5)), 60),  # the last is the output
        (operator("aten::addmm", tensor(5), tensor(2, 3), tensor(3, 5), scalar(1), scalar(1)), 60),
        (operator("aten::bmm", tensor(7, 2, 3), tensor(7, 3, 5)), 7 * 60),
        (operator("aten::baddbmm", tensor(1), tensor(7, 2, 3), tensor(7, 3, 5), scalar(1), scalar(1)), 7 * 60),
        (operator("aten::_scaled_mm", tensor(2, 3), tensor(3, 5), tensor(), tensor()), 60),
        (operator("aten::_scaled_mm_v2", tensor(2, 3), tensor(3, 5), several([]), listed(0)), 60),
        (operator("aten::_scaled_mm_v2", *(tensor(2, 2, of="c10::Float4_e2m1fn_x2"),) * 2), 2 * 2 * 4 * 2),
        (operator("aiter::gemm_a16w16", tensor(2, 3), tensor(5, 3)), 60),
        # 5 x 5 places, 3 x 3 weights, 2 images, 8 channels out, 2 of the 4 channels in for each
        (
            operator("aten::convolution", *CONVOLUTION, scalar(False), listed(0, 0), scalar(2)),
            2 * 25 * 9 * 2 * 8 * 2,
        ),
        # the same one as the backends name it, padding before stride
        (operator("aten::mkldnn_convolution", *CONVOLUTION[:3], listed(1), listed(2), listed(1), scalar(2)), 14_400),
        (operator("aten::cudnn_convolution", *CONVOLUTION[:2], listed(1), listed(2), listed(1), scalar(2)), 14_400),
        (operator("aten::_slow_conv2d_forward", *CONVOLUTION[:2], listed(3), tensor(8), listed(2), listed(1)), 14_400),
        # transposed: at each place of the input
        (
            operator(
                "aten::convolution",
                *(tensor(2, 4, 9), tensor(4, 8, 3), NONE, listed(2), listed(0), listed(1)),
                *(scalar(True), listed(0), scalar(1)),
            ),
            2 * 9 * 3 * 2 * 4 * 8,
        ),
        (operator("aten::_scaled_dot_product_flash_attention", QUERY, QUERY, QUERY), 2 * 2 * (2 * 4 * 8 * 8 * 16)),
        # keys of half the heads, longer, values of another size
        (
            operator(
                "aten::_scaled_dot_product_cudnn_attention", QUERY, tensor(2, 2, 10, 16), tensor(2, 2, 10, 3), NONE
            ),
            2 * (2 * 4 * 8 * 10) * (16 + 3),
        ),
        (operator("aten::_flash_attention_forward", QUERY, QUERY, QUERY, NONE, NONE), 4 * (2 * 8 * 4 * 4 * 16)),
        (operator("flash_attn::_flash_attn_forward", QUERY, QUERY, QUERY), 4 * (2 * 8 * 4 * 4 * 16)),
        (
            operator("aten::_scaled_dot_product_efficient_attention_backward", QUERY, QUERY, QUERY, QUERY),
            5 * 2 * (2 * 4 * 8 * 8 * 16),
        ),
        # nothing to do
        (operator("aten::mm", tensor(0, 3), tensor(3, 5)), 0),
        (operator("aten::_scaled_dot_product_flash_attention", *(tensor(0, 4, 8, 16),) * 3), 0),
        (operator("aten::_scaled_dot_product_flash_attention", *(tensor(2, 0, 8, 16),) * 3), 0),
        # exact beyond 64 bits
        (operator("aten::mm", tensor(10**9, 10**9), tensor(10**9, 10**9)), 2 * 10**27),
    ],
)
def test_flops(one: ProfiledOperator, expected: int) -> None:
    assert flops(one) == (expected, "")
    assert counts(one.name)


CAUSAL = {name: where for name, where in (ATTENTION_FORWARD | ATTENTION_BACKWARD).items() if where.causal is not None}


@given(
    name=st.sampled_from(sorted(CAUSAL)),
    queries=st.integers(1, 200),
    keys=st.integers(1, 200),
    mask=st.sampled_from(["True", "1", "2"]),
)
def test_a_causal_mask_leaves_out_what_lies_above_its_diagonal(name: str, queries: int, keys: int, mask: str) -> None:
    where = CAUSAL[name]
    heads = [tensor(2, *((n, 3) if where.length_first else (3, n)), 4) for n in (queries, keys, keys)]
    assert where.causal is not None
    between = (NONE,) * (where.causal - where.first - len(heads))
    one = operator(name, *(NONE,) * where.first, *heads, *between, ([], "Scalar", mask))
    flash = "flash_attn" in name or ("flash_attention" in name and "for_cpu" not in name)
    from_bottom_right = flash or mask == "2"
    kept = np.tri(queries, keys, keys - queries if from_bottom_right else 0).mean()
    # of the square on the diagonal half is left out, not what lies on the diagonal
    assert causally_masked_frac(one) == pytest.approx(1 - kept, abs=0.51 / max(queries, keys))


@pytest.mark.parametrize("transposed", [False, True])
def test_backward_of_a_convolution_counts_what_the_mask_asks_for(transposed: bool) -> None:
    def of(*mask: bool) -> int | None:
        weight, out = (tensor(4, 8, 3), tensor(2, 8, 19)) if transposed else (tensor(8, 4, 3), tensor(2, 8, 4))
        place = (listed(8), listed(2), listed(0), listed(1), scalar(transposed), listed(0), scalar(1))
        return flops(operator("aten::convolution_backward", out, tensor(2, 4, 9), weight, *place, listed(*mask))).value

    one_product = 2 * (9 if transposed else 4) * 3 * 2 * 4 * 8
    assert of(False, False, True) == 0
    assert of(True, False, False) == (2 * 9 * 3 * 2 * 4 * 8 if transposed else one_product)
    assert of(False, True, False) == one_product
    assert of(True, True, True) == 2 * one_product


@pytest.mark.parametrize("transposed", [False, True])
def test_groups_divide_both_gradients_of_a_convolution(transposed: bool) -> None:
    """Depthwise, 384 channels: at each place of the output one filter of 7 x 7, twice."""
    x = out = tensor(64, 384, 14, 14)
    place = (NONE, listed(1, 1), listed(3, 3), listed(1, 1), scalar(transposed), listed(0, 0), scalar(384))
    one = operator("aten::convolution_backward", out, x, tensor(384, 1, 7, 7), *place, listed(True, True, False))
    assert flops(one).value == 2 * 2 * 64 * 14 * 14 * 384 * 7 * 7


PACKED = tensor(100, 4, 16)
OFFSETS = tensor(7, of="int")


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (ProfiledOperator("aten::mm"), "aten::mm: no dimensions of the first matrix recorded"),
        (ProfiledOperator("aten::mm", [[2, 3]]), "aten::mm: no dimensions of the second matrix recorded"),
        (operator("aten::mm", tensor(), tensor()), "aten::mm: the first matrix has 0 dimensions instead of 2"),
        (ProfiledOperator("aten::mm", [[[2, 3], [2, 3]], [3, 5]]), "aten::mm: the first matrix is not one tensor"),
        (ProfiledOperator("aten::mm", ["", ""]), "aten::mm: the first matrix is not one tensor"),
        (ProfiledOperator("aten::mm", [None, None]), "aten::mm: the first matrix is not one tensor"),
        (ProfiledOperator("aten::mm", [[2, 3.5], [3, 5]]), "aten::mm: the first matrix is not one tensor"),
        (operator("aten::mm", tensor(2, -1), tensor(3, 5)), "aten::mm: the first matrix has a negative dimension"),
        (operator("aten::mm", tensor(2, 4), tensor(3, 5)), "aten::mm: inner dimensions differ"),
        (operator("aten::bmm", tensor(1, 2, 3), tensor(2, 3, 5)), "aten::bmm: batches or inner dimensions differ"),
        (operator("aten::relu", tensor(2)), "no formula for aten::relu"),
        (
            ProfiledOperator("aten::convolution", [[2, 4, 9, 9], [8, 2, 3, 3], []]),
            "aten::convolution: no value of transposed recorded",
        ),
        (
            operator("aten::convolution", *CONVOLUTION[:3], NONE, NONE, NONE, scalar(False), NONE, scalar(1)),
            "aten::convolution: stride is not recorded",
        ),
        (
            operator("aten::convolution", *CONVOLUTION[:3], listed(1, 1, 1), NONE, NONE, scalar(False)),
            "aten::convolution: stride has 3 numbers instead of 2",
        ),
        (
            operator("aten::convolution", *CONVOLUTION[:3], listed(0), NONE, NONE, scalar(False), NONE, scalar(1)),
            "aten::convolution: stride is 0",
        ),
        (
            operator("aten::cudnn_convolution", tensor(1, 1, 2), tensor(1, 1, 9), *(listed(1),) * 3, scalar(1)),
            "aten::cudnn_convolution: the output would have a negative dimension",
        ),
        (
            operator("aten::convolution_backward", *(tensor(1, 1, 1),) * 3, *(NONE,) * 4, scalar(False), *(NONE,) * 3),
            "aten::convolution_backward: output mask is not recorded",
        ),
        (
            operator("aten::_scaled_dot_product_flash_attention", QUERY, tensor(2, 3, 8, 16), tensor(2, 3, 8, 16)),
            "aten::_scaled_dot_product_flash_attention: query, key and value do not fit each other",
        ),
    ],
)
def test_what_a_trace_does_not_tell(one: ProfiledOperator, reason: str) -> None:
    assert flops(one) == (None, reason)


@pytest.mark.parametrize(
    "one",
    [
        operator("aten::_flash_attention_forward", *(PACKED,) * 3, OFFSETS, OFFSETS),
        operator("aten::_efficient_attention_forward", *(QUERY,) * 3, NONE, OFFSETS, OFFSETS),
        operator("aten::_flash_attention_backward", *(PACKED,) * 5, tensor(4, 100), OFFSETS, OFFSETS),
        operator("flash_attn::_flash_attn_varlen_forward", *(PACKED,) * 3, OFFSETS, OFFSETS),
        operator("flash_attn_3::_flash_attn_forward", *(PACKED,) * 3, *(NONE,) * 4, OFFSETS, OFFSETS),
        operator("flash_attn_3::fwd", *(QUERY,) * 3, *(NONE,) * 8, tensor(2, of="int")),
        operator("flash_attn_3::bwd", *(PACKED,) * 5, tensor(4, 100), *(NONE,) * 3, OFFSETS, OFFSETS),
    ],
    ids=lambda one: one.name,
)
def test_lengths_of_packed_sequences_are_in_no_trace(one: ProfiledOperator) -> None:
    value, reason = flops(one)
    assert value is None
    assert reason.endswith("sequences are packed or paged, and their lengths are not in the trace")


def test_a_formula_is_needed_for_an_operator_to_count() -> None:
    composite = (
        "aten::linear",
        "aten::matmul",
        "aten::conv2d",
        "aten::scaled_dot_product_attention",
    )
    assert not any(map(counts, composite))


def test_the_outermost_counts() -> None:
    #            convolution  _convolution  cudnn  add       mm after it, from where that ended
    starts, ends = [0, 1, 2, 3, 10], [10, 9, 8, 4, 12]
    assert counted_once(starts, ends, [True, True, True, False, True]).tolist() == [True, False, False, False, True]
    assert counted_once(starts, ends, [False, False, True, False, True]).tolist() == [False, False, True, False, True]
    # the same interval: the first is the outer one
    assert counted_once([5, 5], [7, 7], [True, True]).tolist() == [True, False]
    assert counted_once([], [], []).tolist() == []


@pytest.mark.parametrize(
    ("nested", "handing"),
    [
        (["aten::mm", "aten::mm", "aten::matmul", "aten::bmm"], [0, 1]),  # vmap
        (["aten::convolution", "aten::convolution", "aten::_convolution", "aten::mkldnn_convolution"], [0]),
        (["aten::linear", "aten::addmm", "aten::redistribute", "aten::addmm"], [1]),  # a DTensor
        (["aten::addmm", "aten::_scaled_mm"], [0]),  # matrices of float8
        (["aten::convolution", "aten::_convolution", "aten::cudnn_convolution"], []),
        (["aten::_scaled_dot_product_flash_attention", "aten::_flash_attention_forward"], []),
        (["aten::convolution_backward", "aten::mm"], []),
        (["aten::matmul", "aten::mm"], []),
    ],
)
def test_an_operator_that_calls_its_like_hands_over(nested: list[str], handing: list[int]) -> None:
    # Twice, one after the other, and a product behind that.
    names = [*nested, *nested, "aten::mm"]
    depth = [*range(len(nested))] * 2
    starts = [100 * (place // len(nested)) + inner for place, inner in enumerate(depth)] + [200]
    ends = [100 * (place // len(nested)) + 99 - inner for place, inner in enumerate(depth)] + [299]
    found = handing_over(names, starts, ends, [counts(name) for name in names])
    assert np.flatnonzero(found).tolist() == [*handing, *(len(nested) + place for place in handing)]


@pytest.mark.slow
@given(st.data())
def test_the_outermost_are_those_that_no_other_holds(data: st.DataObject) -> None:
    spans: list[tuple[int, int, bool]] = []

    def nest(start: int, end: int) -> None:
        while start < end and len(spans) < 12:
            first = data.draw(st.integers(start, end - 1))
            last = data.draw(st.integers(first + 1, end))
            spans.append((first, last, data.draw(st.booleans())))
            nest(first, last)
            start = last

    nest(0, 20)
    order = data.draw(st.permutations(range(len(spans))))
    unequal = [n for n in order if not any(spans[n][:2] == spans[m][:2] for m in range(n))]
    chosen = [spans[n] for n in unequal]

    def held(one: tuple[int, int, bool]) -> bool:
        return any(o[2] and o != one and o[0] <= one[0] and one[1] <= o[1] for o in chosen)

    expected = [one[2] and not held(one) for one in chosen]
    starts, ends, flags = ([one[place] for one in chosen] for place in range(3))
    assert counted_once(starts, ends, [bool(flag) for flag in flags]).tolist() == expected


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (operator("aten::addmm", tensor(5), *(tensor(2, 2, of="c10::BFloat16"),) * 2), "bfloat16"),
        (operator("aten::mm", *(tensor(2, 2, of="c10::Float8_e4m3fn"),) * 2), "float8_e4m3fn"),
        (operator("aten::_scaled_mm_v2", *(tensor(2, 2, of="c10::Float8_e5m2"),) * 2, several([])), "float8_e5m2"),
        (operator("aten::relu", tensor(5)), None),
        (operator("aten::cat", ([[2, 2], [2, 2]], "TensorList", ""), scalar(1)), None),
        (ProfiledOperator("aten::mm"), None),
    ],
)
def test_the_dtype_is_that_of_matrices(one: ProfiledOperator, expected: str | None) -> None:
    assert matrix_dtype(one) == expected
