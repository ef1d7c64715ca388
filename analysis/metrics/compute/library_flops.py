"""FLOPs of products that torch.utils.flop_counter does not know: of libraries, recurrent layers, Inductor's templates.

Shapes are those of the operator's inputs in a trace. As in flop_counter a multiplication and its addition are two.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import isqrt, prod

from .operators import NotRecorded, ProfiledOperator, Shape

FlopCount = Callable[[ProfiledOperator], int]


def _with_transposed(operator: ProfiledOperator, x: int = 0, weight: int = 1) -> int:
    """Rows of [..., k], each times a weight [n, k], as in a linear layer."""
    rows, (n, k) = operator.shape(x, "the input"), operator.shape(weight, "the weight", ndim=2)
    if not rows or rows[-1] != k:
        raise NotRecorded("inner dimensions differ")
    return 2 * prod(rows) * n


def _pointwise_linear(operator: ProfiledOperator) -> int:
    """(input, weight, bias, ...), or with another input that is added: (input, other, weight, bias, ...)."""
    is_added = operator.has_tensor(2) and len(operator.shape(2, "the weight or the bias")) == 2
    return _with_transposed(operator, weight=2 if is_added else 1)


def _product(operator: ProfiledOperator, first: int) -> int:
    (m, k), (k2, n) = (operator.shape(first + place, "a matrix", ndim=2) for place in range(2))
    if k != k2:
        raise NotRecorded("inner dimensions differ")
    return 2 * m * n * k


def _of_float4(operator: ProfiledOperator) -> int:
    """[m, k/2] and [n, k/2]: a byte holds two numbers."""
    return 2 * _with_transposed(operator, 1, 2)


def _matrix_times_vector(operator: ProfiledOperator, matrix: int) -> int:
    return 2 * prod(operator.shape(matrix, "the matrix", ndim=2))


def _fused_experts(operator: ProfiledOperator) -> int:
    """Each token by two layers of each of its experts: [t, k], weights [e, 2n, k] and [e, k, n], of experts [t, top].

    Source: vLLM, vllm/model_executor/layers/fused_moe/fused_moe.py, and SGLang after it.
    """
    tokens, k = operator.shape(0, "the tokens", ndim=2)
    _, gate_and_up, k1 = operator.shape(1, "weights of the first layer", ndim=3)
    _, k2, n = operator.shape(2, "weights of the second layer", ndim=3)
    chosen = operator.shape(3, "weights of experts", ndim=2)
    if k != k1 or k != k2 or chosen[0] != tokens:
        raise NotRecorded("tokens and weights do not fit each other: numbers may be packed")
    return 2 * prod(chosen) * k * (gate_and_up + n)


def _fused_experts_here(operator: ProfiledOperator) -> int:
    """The same if no map of experts says which are here."""
    if any(tensor.dtype == "int32" and len(tensor.shape) == 1 for tensor in operator.tensors_alone()):
        raise NotRecorded("some experts are on other ranks, and how many tokens have these is not in the trace")
    return _fused_experts(operator)


def _recurrent(operator: ProfiledOperator) -> int:
    """Every matrix among the weights is multiplied once for each element of the sequences, as cells do one by one.

    The input is [length, batch, features], with batches first likewise, or [elements, features] of packed sequences.
    """
    return 2 * _elements(operator) * sum(prod(w) for w in operator.tensor_list(1, "the weights") if len(w) == 2)


def _recurrent_backward(operator: ProfiledOperator) -> int:
    """Gradients of the inputs, and of the weights if they are asked for."""
    *_, of_weights = operator.flags(len(operator.values or ()) - 1, "output mask", 4)
    return _recurrent(operator) * (2 if of_weights else 1)


def _recurrent_layer(operator: ProfiledOperator, times: int = 1) -> int:
    """One layer and direction on a CPU, by its weights of the input and of the state before."""
    matrices = (operator.shape(place, "the weights", ndim=2) for place in (1, 2))
    return 2 * times * _elements(operator) * sum(map(prod, matrices))


def _elements(operator: ProfiledOperator) -> int:
    x = operator.shape(0, "the input")
    if len(x) not in (2, 3):
        raise NotRecorded(f"the input has {len(x)} dimensions instead of 2 or 3")
    return prod(x[:-1])


def template_formula(name: str) -> FlopCount | None:
    """The formula of a kernel that Inductor makes from a template, by the operator that its name says; None if none.

    Source: torch 2.13, torch/_inductor/kernel: inputs of the template come first, the output last.
    """
    found = _TEMPLATE.match(name)
    return None if found is None else _TEMPLATES[found["backward"] or found["product"]]


def template_bound(name: str) -> FlopCount | None:
    """What such a kernel has at most: flex attention, if its mask leaves all blocks."""
    found = _TEMPLATE.match(name)
    if found is None or not (found["backward"] or found["product"]).startswith("flex"):
        return None
    return partial(_flex_attention_unmasked, backward=found["backward"] is not None)


def _template_product(operator: ProfiledOperator, batched: bool = False) -> int:
    """Of [m, k] and [k, n], by how many elements they and the result have: buffers may be passed as other views."""
    tensors = [tensor.shape for tensor in operator.tensors_alone()]
    if len(tensors) < 3:
        raise NotRecorded("its matrices are not recorded")
    a, b, *between, out = tensors
    if len(between) > 1 and (a, b) == (between[0], between[1]):
        raise NotRecorded("it may multiply one pair of matrices or two")
    batch = out[0] if batched and out else 1
    square = prod(a) * prod(b) * prod(out)
    if not batch or square % batch:
        raise NotRecorded("its matrices do not fit each other")
    result = isqrt(square // batch)
    if result * result * batch != square:
        raise NotRecorded("its matrices do not fit each other")
    return 2 * result


def _template_convolution(operator: ProfiledOperator) -> int:
    """conv_flop_count: at each element of the output, all weights of its channel."""
    tensors = [tensor.shape for tensor in operator.tensors_alone()]
    if len(tensors) < 3 or not len(tensors[0]) == len(tensors[1]) == len(tensors[-1]) >= 3:
        raise NotRecorded("its input, weight and output are not recorded")
    weight, out = tensors[1], tensors[-1]
    if weight[0] != out[1]:
        raise NotRecorded("its weight and output do not fit each other")
    return 2 * prod(out) * prod(weight[1:])


def _flex_attention(operator: ProfiledOperator, *, backward: bool = False) -> int:
    """sdpa_flop_count without a block mask, which torch passes as a single block.

    Which blocks a mask leaves is not in a trace.
    """
    result = _flex_attention_unmasked(operator, backward=backward)
    blocks = next((tensor.shape for tensor in operator.tensors_alone() if tensor.dtype == "int32"), ())
    if prod(blocks) != 1:
        raise NotRecorded("which blocks its mask leaves is not in the trace")
    return result


def _flex_attention_unmasked(operator: ProfiledOperator, *, backward: bool = False) -> int:
    query, key, value = (_heads(operator.shape(place, what)) for place, what in enumerate(("query", "key", "value")))
    (b, h, s_q, d_q), s_k, d_v = query, key[2], value[3]
    if key[3] != d_q or value[2] != s_k:
        raise NotRecorded("query, key and value do not fit each other")
    return 2 * b * h * s_q * s_k * ((3 * d_q + 2 * d_v) if backward else (d_q + d_v))


def _heads(shape: Shape) -> Shape:
    """[batch, heads, length, head], also of queries in groups that share a key."""
    if len(shape) == 5:
        return (shape[0], shape[1] * shape[2], *shape[3:])
    if len(shape) != 4:
        raise NotRecorded(f"query, key or value has {len(shape)} dimensions instead of 4")
    return shape


_TEMPLATE = re.compile(
    r"triton_tem_fused_(?:\w*?_)?(?:(?P<backward>flex_attention_backward)"
    r"|(?P<product>flex_attention|baddbmm|bmm|addmm|scaled_mm|mm|convolution))(?:_\w*)?$"
)
_TEMPLATES: dict[str, FlopCount] = {
    **dict.fromkeys(("mm", "addmm", "scaled_mm"), _template_product),
    **dict.fromkeys(("bmm", "baddbmm"), partial(_template_product, batched=True)),
    "convolution": _template_convolution,
    "flex_attention": _flex_attention,
    "flex_attention_backward": partial(_flex_attention, backward=True),
}
_WITH_OUTPUT_FIRST = ("_C::cutlass_scaled_mm", "_C::cutlass_scaled_mm_azp")
_OF_FLOAT4 = ("_C::cutlass_scaled_fp4_mm", "sgl_kernel::cutlass_scaled_fp4_mm")
_FUSED_EXPERTS = tuple(
    f"{library}::{how}_fused_experts" for library in ("vllm", "sglang") for how in ("inplace", "outplace")
)


def library_dtype(operator: ProfiledOperator) -> str | None:
    """The type that is multiplied where it is not that of the first matrix; None elsewhere. Raises NotRecorded."""
    if operator.name in _OF_FLOAT4:
        return "float4_e2m1fn_x2"
    if operator.name in _WITH_OUTPUT_FIRST:
        return operator.dtype(1, "the first matrix")
    if operator.name in _FUSED_EXPERTS:  # tokens are converted to float8, while of narrower integers only weights are
        weights = operator.dtype(1, "the weights")
        return weights if weights.startswith("float8") else None
    return None


LIBRARY_PRODUCTS: dict[str, FlopCount] = {
    "aten::mv": partial(_matrix_times_vector, matrix=0),
    **dict.fromkeys(("aten::addmv", "aten::addmv_"), partial(_matrix_times_vector, matrix=1)),
    **dict.fromkeys(
        (
            "aten::_weight_int8pack_mm",
            "aten::mkldnn_linear",
            # Source: ROCm/aiter, aiter/tuned_gemm.py and aiter/ops/gemm_op_a8w8.py.
            "aiter::gemm_a16w16",
            "aiter::gemm_a8w8",
            "aiter::gemm_a8w8_CK",
            "aiter::gemm_a8w8_blockscale",
            "aiter::gemm_a8w8_bpreshuffle",
            # Source: pytorch/FBGEMM, fbgemm_gpu/experimental/gen_ai/src/quantize/quantize.cpp.
            "fbgemm::f8f8bf16",
            "fbgemm::f8f8bf16_rowwise",
            "fbgemm::f8f8bf16_blockwise",
            "fbgemm::f8f8bf16_cublas",
            "fbgemm::i8i8bf16",
        ),
        _with_transposed,
    ),
    "mkldnn::_linear_pointwise": _pointwise_linear,
    "mkl::_mkl_linear": partial(_with_transposed, weight=2),
    # Source: vLLM, csrc/torch_bindings.cpp; SGLang, sgl-kernel/csrc/common_extension.cc.
    **dict.fromkeys(_WITH_OUTPUT_FIRST, partial(_product, first=1)),
    **dict.fromkeys(
        ("sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm", "sgl_kernel::fp8_blockwise_scaled_mm"),
        partial(_product, first=0),
    ),
    **dict.fromkeys(_OF_FLOAT4, _of_float4),
}
LIBRARY_FORMULAS: dict[str, FlopCount] = {
    **dict.fromkeys(_FUSED_EXPERTS, _fused_experts_here),
    **dict.fromkeys(("aten::_cudnn_rnn", "aten::miopen_rnn"), _recurrent),
    **dict.fromkeys(("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward"), _recurrent_backward),
    "aten::mkldnn_rnn_layer": _recurrent_layer,
    "aten::mkldnn_rnn_layer_backward": partial(_recurrent_layer, times=2),
}
BOUNDS_OF_LIBRARIES: dict[str, FlopCount] = dict.fromkeys(_FUSED_EXPERTS, _fused_experts)
"""What these have at most."""
