"""FLOPs of what torch.utils.flop_counter does not know, by hand, for drawn shapes."""

from __future__ import annotations

import random

import pytest
from cpu_work import NONE, listed, operator, scalar, several, tensor

from commtrace.analysis.metrics.compute.flops import counts, flops, most_flops, multiplied_dtype
from commtrace.analysis.metrics.compute.operators import ProfiledOperator

BF16, FP8, BYTES, INT = "c10::BFloat16", "c10::Float8_e4m3fn", "unsigned char", "int"


@pytest.fixture(params=range(4))
def sizes(request: pytest.FixtureRequest) -> tuple[int, int, int]:
    draw = random.Random(request.param)
    return draw.randint(1, 300), 2 * draw.randint(1, 200), draw.randint(1, 300)


def products(m: int, k: int, n: int) -> list[ProfiledOperator]:
    """One product of [m, k] and [k, n], as libraries and templates record it."""
    out, bias, scale = tensor(m, n, of=BF16), tensor(n, of=BF16), tensor(1)
    return [
        operator("_C::cutlass_scaled_mm", out, tensor(m, k, of=FP8), tensor(k, n, of=FP8), scale, scale, NONE),
        operator("sgl_kernel::fp8_scaled_mm", tensor(m, k, of=FP8), tensor(k, n, of=FP8), scale, scale),
        operator("_C::cutlass_scaled_fp4_mm", out, tensor(m, k // 2, of=BYTES), tensor(n, k // 2, of=BYTES), scale),
        operator("fbgemm::f8f8bf16_rowwise", tensor(m, k, of=FP8), tensor(n, k, of=FP8), scale, scale),
        operator("aiter::gemm_a8w8", tensor(m, k, of=FP8), tensor(n, k, of=FP8), scale, scale),
        operator("aten::_weight_int8pack_mm", tensor(m, k, of=BF16), tensor(n, k, of="signed char"), scale),
        operator("mkldnn::_linear_pointwise", tensor(1, m, k), tensor(n, k), tensor(n), NONE, NONE, NONE),
        operator("mkldnn::_linear_pointwise", tensor(m, k), tensor(m, n), tensor(n, k), NONE, NONE),
        operator("triton_tem_fused_mm_0", tensor(m, k), tensor(k, n), tensor(m, n), scalar(3)),
        operator("triton_tem_fused_addmm_relu_3", tensor(m, k), tensor(n, k), bias, tensor(1, m, n)),  # other views
        operator("triton_tem_fused__unsafe_view_mm_silu_12", tensor(1, m, k), tensor(k, n), out, out),
        operator("triton_tem_fused__scaled_mm_2", tensor(m, k, of=FP8), tensor(k, n, of=FP8), scale, scale, out),
    ]


def test_products(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    for one in products(m, k, n):
        assert flops(one) == (2 * m * k * n, ""), one.name
        assert counts(one.name)


def test_batches_and_convolutions(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    batch = 1 + m % 7
    bmm = operator("triton_tem_fused_bmm_1", tensor(batch, m, k), tensor(batch, k, n), tensor(batch, m, n))
    assert flops(bmm).value == 2 * batch * m * k * n
    wide = tensor(batch, k, m, 5), tensor(n, k, 3, 1), tensor(n), tensor(batch, n, m, 3)
    assert flops(operator("triton_tem_fused_convolution_relu_4", *wide)).value == 2 * batch * n * m * 3 * k * 3
    assert flops(operator("aten::mv", tensor(m, k), tensor(k))).value == 2 * m * k
    assert flops(operator("aten::addmv_", tensor(m), tensor(m, k), tensor(k), scalar(0), scalar(1))).value == 2 * m * k


def test_flex_attention_is_known_without_a_mask_of_blocks(sizes: tuple[int, int, int]) -> None:
    queries, head, keys = sizes
    qkv = tensor(2, 6, queries, head), tensor(2, 3, keys, head), tensor(2, 3, keys, 16)
    rows = tensor(2, 6, queries)
    whole, blocks = (tensor(1, 1, 1, of=INT), tensor(1, 1, 1, 1, of=INT)), (tensor(1, 1, 4, of=INT),) * 2
    full = 2 * 2 * 6 * queries * keys * (head + 16)
    name = "triton_tem_fused_flex_attention_0"
    assert flops(operator(name, *qkv, rows, rows, *whole, *whole)) == (full, "")
    masked = operator(name, *qkv, rows, rows, *blocks, *blocks)
    assert flops(masked) == (None, f"{name}: which blocks its mask leaves is not in the trace")
    assert most_flops(masked) == full
    back = operator("triton_tem_fused_flex_attention_backward_zeros_1", *qkv, rows, rows, *qkv, *whole)
    assert flops(back).value == 2 * 2 * 6 * queries * keys * (3 * head + 2 * 16)
    grouped = operator(name, tensor(2, 3, 2, queries, head), *qkv[1:], rows, rows, *whole)  # queries that share a key
    assert flops(grouped).value == full


def test_fused_experts_multiply_each_token_by_its_experts(sizes: tuple[int, int, int]) -> None:
    tokens, k, n = sizes
    for of, dtype in ((BF16, "bfloat16"), (FP8, "float8_e4m3fn")):
        weights = tensor(8, 2 * n, k, of=of), tensor(8, k, n, of=of)
        routed = tensor(tokens, 2), tensor(tokens, 2, of=INT)
        one = operator("vllm::inplace_fused_experts", tensor(tokens, k, of=BF16), *weights, *routed, NONE)
        assert flops(one).value == tokens * 2 * (2 * k * 2 * n + 2 * n * k)
        assert multiplied_dtype(one) == dtype
    apart = operator("vllm::inplace_fused_experts", tensor(tokens, k), *weights, *routed, NONE, tensor(32, of=INT))
    assert flops(apart).value is None
    assert most_flops(apart) == flops(one).value


@pytest.mark.parametrize("name", ["aten::_cudnn_rnn", "aten::miopen_rnn"])
def test_recurrent_layers(name: str, sizes: tuple[int, int, int]) -> None:
    length, features, hidden = sizes
    layer = [4 * hidden, features], [4 * hidden, hidden], [4 * hidden], [4 * hidden]
    next_layer = [4 * hidden, hidden], [4 * hidden, hidden], [4 * hidden], [4 * hidden]
    x, weights = tensor(length, 3, features), several(*layer, *next_layer)
    products = 2 * length * 3 * 4 * hidden * (features + hidden + 2 * hidden)
    assert flops(operator(name, x, weights)).value == products
    assert flops(operator(name, tensor(3 * length, features), weights)).value == products  # packed sequences
    for of_weights, times in ((True, 2), (False, 1)):
        back = operator(f"{name}_backward", x, weights, listed(True, True, True, of_weights))
        assert flops(back).value == times * products
    assert flops(operator(name, x, several())).value is None  # more than 30 weights


def test_grouped_products_are_bounded_by_their_rows(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    ends = tensor(4, of=INT)
    whole = operator("aten::_grouped_mm", tensor(4, m, k, of=BF16), tensor(4, k, n, of=BF16), NONE)
    assert flops(whole).value == most_flops(whole) == 4 * 2 * m * k * n
    for one in (
        operator("aten::_grouped_mm", tensor(m, k), tensor(4, k, n), ends),
        operator("aten::_grouped_mm", tensor(m, k), tensor(k, n), ends),
        operator("aten::_scaled_grouped_mm", tensor(m, k, of=FP8), tensor(4, k, n, of=FP8), tensor(m), tensor(4), ends),
    ):
        assert flops(one).value is None
        assert most_flops(one) == 2 * m * k * n


def test_packed_attention_is_bounded_by_its_longest_sequence(sizes: tuple[int, int, int]) -> None:
    tokens, head, longest = sizes
    qkv = tensor(tokens, 6, head), tensor(tokens, 2, head), tensor(tokens, 2, head)
    ends = tensor(9, of=INT)
    pairs = 6 * tokens * min(tokens, longest)
    lengths = scalar(longest), scalar(longest)
    forward = operator("aten::_flash_attention_forward", *qkv, ends, ends, *lengths)
    assert most_flops(forward) == 2 * pairs * 2 * head
    library = operator("flash_attn::_flash_attn_varlen_forward", *qkv, ends, ends, *lengths)
    assert most_flops(library) == 2 * pairs * 2 * head
    back = operator("aten::_flash_attention_backward", qkv[0], *qkv, qkv[0], qkv[0], ends, ends, *lengths)
    assert most_flops(back) == 2 * pairs * 5 * head
    assert flops(forward).value is flops(back).value is None


def test_the_type_that_is_multiplied_is_not_that_of_the_output() -> None:
    expected = [*("float8_e4m3fn",) * 2, "float4_e2m1fn_x2", *("float8_e4m3fn",) * 2, "bfloat16"]
    assert [multiplied_dtype(one) for one in products(2, 4, 6)[:6]] == expected


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (operator("triton_tem_fused_mm_0", tensor(2, 3), tensor(3, 5)), "its matrices are not recorded"),
        (operator("triton_tem_fused_mm_0", tensor(2, 3), tensor(3, 5), tensor(7)), "do not fit each other"),
        (operator("triton_tem_fused_add_mm_0", *(tensor(4, 4),) * 5), "one pair of matrices or two"),
        (operator("aten::_cudnn_rnn", tensor(2), several([4, 2])), "1 dimensions instead of 2 or 3"),
        (operator("fbgemm::f8f8bf16", tensor(2, 3), tensor(3, 5)), "inner dimensions differ"),
        (
            operator("vllm::inplace_fused_experts", tensor(2, 8), tensor(4, 6, 4), tensor(4, 8, 3), tensor(2, 1)),
            "packed",
        ),
    ],
)
def test_what_is_not_recorded(one: ProfiledOperator, reason: str) -> None:
    value, why = flops(one)
    assert value is None
    assert reason in why
