"""Bytes of single operators by hand; tests/shared/test_tracelens_work.py compares with TraceLens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cpu_work import NONE, listed, operator, scalar, several, tensor

from commtrace.analysis.metrics.compute.moved_bytes import moved_bytes, moves
from commtrace.analysis.metrics.compute.operators import ProfiledOperator, list_item_bytes


def sgd(momentum: float, *, first: bool) -> tuple[tuple[object, str, str], ...]:
    """Arguments of aten::_fused_sgd_ behind its lists."""
    return (*map(scalar, (0.0, momentum, 0.001, 0.0, False, False, first)), NONE, NONE)


HALF, BRAIN = "c10::Half", "c10::BFloat16"
QUERY = tensor(2, 4, 8, 16, of=BRAIN)
LONG = tensor(2, 3, of="long int")
FLOAT_8 = tensor(2, 32, of="c10::Float8_e4m3fn"), tensor(32, 5, of="c10::Float8_e4m3fn")
ADAM_VALUES = tuple(map(scalar, (0.001, 0.9, 0.999, 0.01, 1e-8)))
TWO = several([2, 3], [4])
"""10 elements."""


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (operator("aten::mm", tensor(2, 3), tensor(3, 5)), 4 * (6 + 15 + 10)),
        (operator("aten::mm", tensor(2, 3), tensor(3, 5), tensor(2, 5)), 124),  # the last is the output, not one more
        (operator("aten::mm", tensor(2, 3, of=HALF), tensor(3, 5, of=HALF), scalar(6)), 2 * (6 + 15) + 4 * 10),
        (operator("aten::addmm", tensor(5), tensor(2, 3), tensor(3, 5), scalar(1), scalar(1)), 4 * (5 + 6 + 15 + 10)),
        (operator("aten::addmm", tensor(5), tensor(2, 3), tensor(3, 5), scalar(1), scalar(1), tensor(2, 5)), 144),
        (operator("aten::baddbmm", tensor(7, 2, 5), tensor(7, 2, 3), tensor(7, 3, 5), scalar(0), scalar(1)), 7 * 164),
        (
            operator(
                "aten::_scaled_mm",
                *(tensor(2, 3, of="c10::Float8_e5m2"), tensor(3, 5, of="c10::Float8_e4m3fn"), tensor(), tensor()),
                *(NONE, NONE, scalar(15), scalar(False), tensor(2, 5, of=BRAIN)),
            ),
            6 + 15 + 4 + 4 + 2 * 10,
        ),
        (
            operator(
                "aten::convolution",
                *(tensor(2, 4, 9), tensor(8, 4, 3), tensor(8), listed(2), listed(0), listed(1)),
                *(scalar(False), listed(0), scalar(1)),
            ),
            4 * (2 * 4 * 9 + 8 * 4 * 3 + 8 + 2 * 8 * 4),
        ),
        # transposed, in two groups of 3 channels: (9 - 1) * 2 - 2 * 1 + 2 + 1 + 1 = 18 places
        (
            operator(
                "aten::convolution",
                *(tensor(2, 4, 9), tensor(4, 3, 3), NONE, listed(2), listed(1), listed(1)),
                *(scalar(True), listed(1), scalar(2)),
            ),
            4 * (2 * 4 * 9 + 4 * 3 * 3 + 2 * 6 * 18),
        ),
        (
            operator(
                "aten::convolution_backward",
                *(tensor(2, 8, 4), tensor(2, 4, 9), tensor(8, 4, 3), listed(8), listed(2), listed(0), listed(1)),
                *(scalar(False), listed(0), scalar(1), listed(False, True, True)),
            ),
            4 * (64 + 72 + 96 + 96 + 8),
        ),
        (operator("aten::_scaled_dot_product_flash_attention", QUERY, QUERY, QUERY, scalar(0.0)), 4 * 1024 * 2),
        # a mask, and values of another size than queries
        (
            operator(
                "aten::_scaled_dot_product_efficient_attention",
                *(QUERY, QUERY, tensor(2, 4, 8, 3, of=BRAIN), tensor(8, 8, of=BRAIN), scalar(True)),
            ),
            2 * (1024 + 1024 + 192 + 64 + 192),
        ),
        (
            operator("flash_attn::_flash_attn_backward", *(QUERY,) * 5, tensor(2, 4, 8), *(QUERY,) * 3),
            2 * 5 * 1024 + 4 * 64 + 2 * 3 * 1024,
        ),
        (operator("aten::relu", tensor(2, 3)), 48),
        (operator("aten::relu_", tensor(2, 3)), 48),
        (operator("aten::neg", LONG), 96),
        (operator("aten::exp", tensor(2, 3)), 48),
        (operator("aten::add", tensor(2, 3), tensor(2, 3), scalar(1)), 72),
        (operator("aten::add_", tensor(2, 3), tensor(2, 3), scalar(1)), 72),
        (operator("aten::mul", tensor(2, 1, 3), tensor(4, 1)), 4 * (6 + 4 + 24)),  # broadcast
        (operator("aten::mul", tensor(0, 3), tensor(3)), 12),
        (operator("aten::mul", tensor(2, of=BRAIN), tensor(2)), 4 + 8 + 8),
        (operator("aten::mul", tensor(2, of=BRAIN), tensor(2, of=HALF)), 4 + 4 + 8),
        (operator("aten::mul", tensor(2, of=BRAIN), tensor(of="double")), 4 + 8 + 4),  # a number does not widen
        (operator("aten::mul", tensor(2), tensor(2, of="long int")), 8 + 16 + 8),
        (operator("aten::add", tensor(2, of="int"), tensor(2, of="long"), scalar(1)), 8 + 16 + 16),
        (operator("aten::pow", tensor(2, 3), scalar(2)), 48),
        (operator("aten::eq", LONG, scalar(1)), 48 + 6),
        (operator("aten::where", tensor(2, 3, of="bool"), tensor(2, 3), tensor()), 6 + 24 + 4 + 24),
        (operator("aten::copy_", tensor(2, 3), tensor(2, 3, of=BRAIN), scalar(False)), 24 + 12),
        (operator("aten::zero_", tensor(2, 3)), 24),
        (operator("aten::native_layer_norm", tensor(2, 3), listed(3), tensor(3), tensor(3), scalar(1e-5)), 24 * 3),
        (operator("aten::layer_norm", tensor(2, 3), listed(3), NONE, NONE, scalar(1e-5)), 48),
        (
            operator(
                "aten::native_layer_norm_backward",
                *(tensor(2, 3), tensor(2, 3), listed(3), tensor(2, 1), tensor(2, 1), tensor(3), tensor(3)),
                listed(True, True, False),
            ),
            4 * (6 + 6 + 2 + 2 + 3 + 3 + 6 + 3),
        ),
        (operator("aten::cudnn_batch_norm", tensor(2, 3, 4), *(tensor(3),) * 4), 4 * (24 + 12 + 24)),
        (operator("aten::_softmax", tensor(2, 3, of=HALF), scalar(-1), scalar(True)), 12 + 24),
        (operator("aten::sum", tensor(2, 3, 4), NONE), 96 + 4),
        (operator("aten::sum", tensor(2, 3, 4), listed(-1, 0), scalar(False), NONE), 96 + 12),
        (operator("aten::sum", tensor(2, 3, 4), listed(), scalar(False), NONE), 96 + 4),
        (operator("aten::mean", tensor(2, 3, of=BRAIN), listed(1), scalar(True), scalar(6)), 12 + 8),
        (operator("aten::sum", tensor(), NONE), 8),
        # scales of one number in float32, and of a number in 8 bits for each 32 of a row or column
        (
            operator(
                "aten::_scaled_mm_v2",
                *(*FLOAT_8, several([]), listed(0), listed(), several([5, 1]), listed(3), listed(1)),
                *(tensor(5, of=BRAIN), scalar(15), listed(), scalar(False)),
            ),
            64 + 160 + 4 + 5 + 10 + 2 * 10,
        ),
    ],
)
def test_bytes(one: ProfiledOperator, expected: int) -> None:
    assert moved_bytes(one) == (expected, "")
    assert moves(one.name)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (operator("aten::cat", TWO, scalar(0)), 2 * 20),
        (operator("aten::_foreach_sqrt", TWO), 2 * 20),
        (operator("aten::_foreach_mul_", TWO, tensor()), 2 * 20 + 4),
        (operator("aten::_foreach_addcdiv_", TWO, TWO, TWO, listed(1.0, 2.0)), 4 * 20),
        (operator("aten::_foreach_zero_", TWO), 20),
        (operator("aten::_foreach_norm", TWO, scalar(2.0), NONE), 20 + 2 * 2),
        # parameters and two moments are read and written, gradients read; with amsgrad a third moment
        (
            operator(
                "aten::_fused_adamw_", *(TWO,) * 4, several(), several([], []),
                *ADAM_VALUES, scalar(False), scalar(False), NONE, NONE,
            ),
            7 * 20 + 2 * 4,
        ),
        (
            operator(
                "aten::_fused_adam_", *(TWO,) * 5, several([], []),
                *ADAM_VALUES, scalar(True), scalar(False), tensor(), tensor(),
            ),
            10 * 20 + 2 * 4,
        ),
        (operator("aten::_fused_sgd_", TWO, TWO, TWO, *sgd(0.9, first=False)), 5 * 20),
        (operator("aten::_fused_sgd_", TWO, TWO, TWO, *sgd(0.9, first=True)), 4 * 20),
        (operator("aten::_fused_sgd_", TWO, TWO, several(), *sgd(0.0, first=True)), 3 * 20),
    ],
)  # fmt: skip
def test_bytes_of_lists_follow_from_the_kernel(one: ProfiledOperator, expected: int) -> None:
    assert moved_bytes(replace(one, list_item_bytes=2)) == (expected, "")
    value, reason = moved_bytes(one)
    assert value is None
    assert reason.endswith("nor does the kernel's name say it")


ATEN = "void at::native::(anonymous namespace)::"
APPLY = f"{ATEN}multi_tensor_apply_kernel<{ATEN[5:]}"


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (f"{ATEN}CatArrayBatchedCopy_vectorized<{ATEN[5:]}OpaqueType<2u>, unsigned int, 1, 128, 1, 16, 8>(char*)", 2),
        ("void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned int)4>, int>", 4),
        (f"{ATEN}CatArrayBatchedCopy<c10::BFloat16, unsigned int, 2, 64, 64>(c10::BFloat16*)", 2),
        (
            f"{ATEN}CatArrayBatchedCopy_aligned16_contig<c10::complex<double>, unsigned int, 1>(c10::complex<double>*)",
            16,
        ),
        (
            f"{APPLY}FusedOptimizerTensorListMetadata<4>, {ATEN[5:]}FusedAdamMathFunctor<float, 4, (ADAM_MODE)1>, int>",
            4,
        ),
        (f"{APPLY}TensorListScalarListMetadata<float, 2>, {ATEN[5:]}BinaryOpScalarListFunctor<c10::Half, 2, 1> >()", 2),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)", None),  # of apex
        (f"{ATEN}elementwise_kernel<128, 4, at::native::CUDAFunctor_add<float> >(int)", None),
        (f"{ATEN}CatArrayBatchedCopy<something_new, unsigned int>()", None),
    ],
)
def test_kernels_tell_the_size_of_an_element(kernel: str, expected: int | None) -> None:
    assert list_item_bytes(kernel) == expected


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (ProfiledOperator("aten::mm", [[2, 3], [3, 5]]), "aten::mm: no type of the first matrix recorded"),
        (operator("aten::mm", tensor(2), tensor(2)), "aten::mm: these are no two matrices"),
        (operator("aten::mm", tensor(2, 3), tensor(3, 5), scalar(99)),
         "aten::mm: the output's type is 99, which stands for no dtype that is known here"),
        (operator("aten::relu", NONE), "aten::relu: the first input is not a tensor"),
        (ProfiledOperator("aten::relu"), "aten::relu: no types or no dimensions of inputs were recorded"),
        (operator("aten::add", tensor(2), tensor(3)), "aten::add: shapes of inputs do not broadcast"),
        (operator("aten::add", ([[2], [2]], "TensorList", ""), tensor(2)),
         "aten::add: input 0 is a list of tensors, whose types are not recorded"),
        (operator("aten::add", tensor(2, -3), tensor(2, 3)), "aten::add: input 0 has a negative dimension"),
        # integers and a float without dimensions: of Python, or a tensor
        (operator("aten::add", LONG, tensor(of="double")), "aten::add: the type of the output is not recorded"),
        (operator("aten::div", LONG, LONG), "aten::div: the type of the output is not recorded"),
        (operator("aten::sum", LONG, NONE), "aten::sum: the type of the output is not recorded"),
        (operator("aten::sum", tensor(2, 3), listed(2), scalar(False), NONE),
         "aten::sum: a dimension to reduce is none of the input's"),
        (operator("flash_attn_3::fwd", *(tensor(1, 2, 3, 4, of="c10::Float8_e4m3fn"),) * 3),
         "flash_attn_3::fwd: the type of the output is not recorded"),
        (operator("aten::embedding", tensor(9, 3), LONG), "rows that are read twice are not known from shapes"),
        (operator("aten::cat", several([2], [2]), scalar(0)),
         "aten::cat: the type of the tensors in a list is not recorded, nor does the kernel's name say it"),
        (operator("aten::cat", several(), scalar(0)),
         "aten::cat: shapes of the tensors are not recorded, as for every list of more than 30 tensors"),
        (operator("aten::_foreach_add_", several([2], [2]), several([2])),
         "aten::_foreach_add_: its lists are not equally long"),
        (operator("aten::_fused_adamw_", *(several([2]),) * 4, several(), several([]), *ADAM_VALUES, scalar(True)),
         "aten::_fused_adamw_: shapes of input 4 are not recorded, as for every list of more than 30 tensors"),
        (operator("aten::_scaled_mm_v2", *FLOAT_8, several([]), listed(0, 2)),
         "aten::_scaled_mm_v2: the scales of the first matrix do not fit their recipes"),
        (operator("aten::_grouped_mm", tensor(4, 3), tensor(2, 3, 5), tensor(2, of="int")),
         "groups of a grouped product need not cover all rows, and their sizes are not in the trace"),
        (operator("aten::topk", tensor(2)), "no formula for aten::topk"),
    ],
)  # fmt: skip
def test_what_a_trace_does_not_tell(one: ProfiledOperator, reason: str) -> None:
    assert moved_bytes(one) == (None, reason)
