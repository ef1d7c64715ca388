"""Floating-point operations of one operator, by the formulas of torch.utils.flop_counter and those beside them.

A multiplication with its addition counts as two. As there, biases are not counted, a causal mask or a window does not
halve attention. Groups divide the gradient of a convolution's weight, too: torch 2.13 counts it as if there were none.

Source: torch 2.13, torch/utils/flop_counter.py; each function names its counterpart. Operators beyond those registered
there compute the same under another name, such as the backend's own convolution inside aten::convolution. What it does
not know at all is in library_flops.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..device.launches import enclosing
from .library_flops import (
    BOUNDS_OF_LIBRARIES,
    LIBRARY_FORMULAS,
    LIBRARY_PRODUCTS,
    FlopCount,
    library_dtype,
    template_bound,
    template_formula,
)
from .operators import Amount, NotRecorded, ProfiledOperator, Shape, evaluated, matrix_dtype


def flops(operator: ProfiledOperator) -> Amount:
    """Floating-point operations of an operator, or None with the reason."""
    formula = _formula(operator.name)
    return evaluated(operator, {} if formula is None else {operator.name: formula}, _NO_FORMULA)


def most_flops(operator: ProfiledOperator) -> int | None:
    """How many there can be at most where it is not known how many there are; None where that is not known, either."""
    formula = _AT_MOST.get(operator.name) or template_bound(operator.name)
    return None if formula is None else evaluated(operator, {operator.name: formula}, {}).value


def causally_masked_frac(operator: ProfiledOperator) -> float:
    """The part of the scores of attention that its causal mask leaves out; 0 without one.

    On the diagonal of the mask lies a square, of which half is left out, nothing of a single score. Where queries and
    keys are not as many, their rest is left out or not, by the corner where the diagonal begins or ends.
    """
    arguments = ATTENTION_FORWARD.get(operator.name) or ATTENTION_BACKWARD.get(operator.name)
    if arguments is None or arguments.causal is None:
        return 0.0
    try:
        heads, mask = arguments.heads(operator), operator.value(arguments.causal, "causal")
    except NotRecorded:
        return 0.0
    queries, keys = heads.query[2], heads.key[2]
    if mask not in ("True", "1", "2") or not queries or not keys:
        return 0.0
    square, rest = min(queries, keys), abs(queries - keys)
    from_bottom_right = arguments.from_bottom_right or mask == "2"
    left_out = square * rest if (queries > keys) == from_bottom_right else 0
    return (left_out + (square**2 / 2 if square > 1 else 0)) / (queries * keys)


def counts(name: str) -> bool:
    """Whether operators of this name have a formula, so that what they call is not counted again."""
    return _formula(name) is not None


def multiplied_dtype(operator: ProfiledOperator) -> str | None:
    """The dtype in which an operator computes, for its peak; None if it has no matrix."""
    try:
        return library_dtype(operator) or matrix_dtype(operator)
    except NotRecorded:
        return None


def _formula(name: str) -> FlopCount | None:
    return _FORMULAS.get(name) or template_formula(name)


def counted_once(starts: ArrayLike, ends: ArrayLike, chosen: ArrayLike) -> NDArray[np.bool_]:
    """Which of the chosen operators lie in no other chosen one; all are of one thread, so that they nest.

    With `chosen` from `counts`, the operators whose FLOPs add up: aten::convolution calls aten::_convolution, which
    calls aten::cudnn_convolution, and all three have a formula. Of two with equal times the first given is the outer.
    """
    start, end = np.asarray(starts, dtype="int64"), np.asarray(ends, dtype="int64")
    result = np.zeros(len(start), dtype=bool)
    places = np.flatnonzero(np.asarray(chosen, dtype=bool))
    if len(places):
        places = places[np.lexsort((-end[places], start[places]))]
        reached = np.maximum.accumulate(end[places])
        result[places[0]] = True
        result[places[1:]] = start[places[1:]] >= reached[:-1]
    return result


def handing_over(names: Sequence[str], starts: ArrayLike, ends: ArrayLike, chosen: ArrayLike) -> NDArray[np.bool_]:
    """Which of the chosen operators of a thread only call their like for what is really computed.

    Under vmap, aten::mm is recorded with the matrices of one example and calls aten::bmm for all. On a DTensor it is
    recorded with the whole matrices and calls aten::mm for the part of its rank. Operators with formulas that are not
    alike, within one another, are the same work.
    """
    result = np.zeros(len(names), dtype=bool)
    start, end = np.asarray(starts, dtype="int64"), np.asarray(ends, dtype="int64")
    places = np.flatnonzero(np.asarray(chosen, dtype=bool))
    places = places[np.lexsort((-end[places], start[places]))]
    parent = enclosing(start[places], end[places] - 1)
    kind = pd.factorize(
        np.array(["" if names[place] in _PRODUCTS else names[place] for place in places], dtype=object)
    )[0]
    hands_over, above = np.zeros(len(places), dtype=bool), parent
    while (above >= 0).any():  # a few times: so deep are operators within one another
        alike = (above >= 0) & (kind[above] == kind)
        hands_over[above[alike]] = True
        above = np.where(above >= 0, parent[above], -1)
    result[places[hands_over]] = True
    return result


def _product(operator: ProfiledOperator, first: int) -> int:
    """mm_flop: [m, k] @ [k, n]."""
    m, k = operator.shape(first, "the first matrix", ndim=2)
    k2, n = operator.shape(first + 1, "the second matrix", ndim=2)
    _expect(k == k2, "inner dimensions differ")
    return m * n * 2 * k


def _scaled_product(operator: ProfiledOperator) -> int:
    """_scaled_mm_flop; torch has none for aten::_scaled_mm_v2, which multiplies the same matrices.

    An element of float4_e2m1fn_x2 holds two numbers. torch counts it as one.
    """
    packed = operator.has_tensor(0) and operator.dtype(0, "the first matrix") == _PACKED_FLOAT
    return _product(operator, first=0) * (2 if packed else 1)


def _grouped_at_most(operator: ProfiledOperator) -> int:
    """All rows of the first matrices, or of two matrices all that are summed up, belong to some group."""
    first, second = (operator.shape(place, "matrices") for place in range(2))
    _expect(
        len(first) in (2, 3) and len(second) in (2, 3) and first[-1] == second[-2], "matrices do not fit each other"
    )
    return 2 * prod(first) * second[-1] * (2 if operator.dtype(0, "the first matrices") == _PACKED_FLOAT else 1)


def _batched_product(operator: ProfiledOperator, first: int) -> int:
    """bmm_flop: [b, m, k] @ [b, k, n]."""
    b, m, k = operator.shape(first, "the first batch of matrices", ndim=3)
    b2, k2, n = operator.shape(first + 1, "the second batch of matrices", ndim=3)
    _expect(b == b2 and k == k2, "batches or inner dimensions differ")
    return b * m * n * 2 * k


def _grouped_product(operator: ProfiledOperator) -> int:
    """Of batches bmm_flop; else groups need not cover all rows."""
    if len(operator.shape(0, "the first matrices")) != 3 or len(operator.shape(1, "the second matrices")) != 3:
        raise NotRecorded(GROUPED)
    return _batched_product(operator, first=0) * (2 if operator.dtype(0, "the first matrices") == _PACKED_FLOAT else 1)


class ConvolutionArguments(NamedTuple):
    """Where arguments of a convolution stand; None: it has none, and the default holds."""

    stride: int
    padding: int
    dilation: int | None
    groups: int | None
    transposed: int | bool = False
    output_padding: int | None = None


# By the schemas in torch 2.13, aten/src/ATen/native/native_functions.yaml. Input and weight are the first two.
_ATEN = ConvolutionArguments(stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8)
_FUSED = ConvolutionArguments(stride=3, padding=4, dilation=5, groups=6)
_ONE_BACKEND = ConvolutionArguments(padding=3, stride=4, dilation=5, groups=6)
CONVOLUTIONS = {
    "aten::convolution": _ATEN,
    "aten::_convolution": _ATEN,
    "aten::convolution_overrideable": _ATEN,
    "aten::_slow_conv2d_forward": ConvolutionArguments(stride=4, padding=5, dilation=None, groups=None),
    "aten::cudnn_convolution": ConvolutionArguments(padding=2, stride=3, dilation=4, groups=5),
    "aten::cudnn_convolution_transpose": ConvolutionArguments(
        padding=2, output_padding=3, stride=4, dilation=5, groups=6, transposed=True
    ),
    "aten::cudnn_convolution_relu": _FUSED,
    "aten::cudnn_convolution_add_relu": ConvolutionArguments(stride=5, padding=6, dilation=7, groups=8),
    "aten::mkldnn_convolution": _ONE_BACKEND,
    "aten::miopen_convolution": _ONE_BACKEND,
    "aten::miopen_depthwise_convolution": _ONE_BACKEND,
    "aten::miopen_convolution_relu": _FUSED,
    "aten::miopen_convolution_transpose": ConvolutionArguments(
        padding=3, output_padding=4, stride=5, dilation=6, groups=7, transposed=True
    ),
}


def convolution_output(operator: ProfiledOperator, arguments: ConvolutionArguments) -> Shape:
    """The shape that a convolution returns, [batch, channels, *space]. Raises NotRecorded.

    Source: torch.nn.Conv2d and torch.nn.ConvTranspose2d, "Shape".
    """
    x, weight = _convolution_inputs(operator, 0)
    space = len(x) - 2
    stride = operator.ints(arguments.stride, "stride", space)
    _expect(all(stride), "stride is 0")
    padding = operator.ints(arguments.padding, "padding", space)
    dilation = (1,) * space if arguments.dilation is None else operator.ints(arguments.dilation, "dilation", space)
    reach = [d * (k - 1) for d, k in zip(dilation, weight[2:], strict=True)]
    if _is_transposed(operator, arguments):
        groups = 1 if arguments.groups is None else operator.number(arguments.groups, "groups")
        place = arguments.output_padding
        more = (0,) * space if place is None else operator.ints(place, "output padding", space)
        sizes = zip(x[2:], stride, padding, reach, more, strict=True)
        result = (x[0], weight[1] * groups, *((n - 1) * s - 2 * p + r + m + 1 for n, s, p, r, m in sizes))
    else:
        sizes_in = zip(x[2:], stride, padding, reach, strict=True)
        result = (x[0], weight[0], *((n + 2 * p - r - 1) // s + 1 for n, s, p, r in sizes_in))
    _expect(min(result) >= 0, "the output would have a negative dimension")
    return result


def _convolution(operator: ProfiledOperator, arguments: ConvolutionArguments) -> int:
    """conv_flop."""
    x, weight = _convolution_inputs(operator, 0)
    if _is_transposed(operator, arguments):
        return _convolved(x, weight, x)
    return _convolved(x, weight, convolution_output(operator, arguments))


def _convolution_backward(operator: ProfiledOperator) -> int:
    """conv_backward_flop: the gradients of input and weight as far as output_mask asks for them."""
    grad_out = operator.shape(0, "the gradient")
    x, weight = _convolution_inputs(operator, 1)
    _expect(len(grad_out) == len(x), "the gradient has other dimensions than the input")
    transposed = operator.flag(7, "transposed")
    of_input, of_weight, _ = operator.flags(10, "output mask", 3)
    result = 0
    if of_input:
        result += _convolved(grad_out, weight, x if transposed else grad_out)
    if of_weight:
        over, by = (grad_out, x) if transposed else (x, grad_out)
        result += _convolved(_swapped(over), _swapped(by), _swapped(weight)) // max(over[1] // weight[1], 1)
    return result


def _convolved(x: Shape, weight: Shape, walked: Shape) -> int:
    """conv_flop_count: at each place of `walked`, the output or of a transposed convolution the input."""
    return prod(walked[2:]) * prod(weight[2:]) * x[0] * weight[0] * weight[1] * 2


def _swapped(shape: Shape) -> Shape:
    return (shape[1], shape[0], *shape[2:])


def _convolution_inputs(operator: ProfiledOperator, first: int) -> tuple[Shape, Shape]:
    x, weight = operator.shape(first, "the input"), operator.shape(first + 1, "the weight")
    _expect(len(x) == len(weight) >= 3, "input and weight of a convolution have other dimensions")
    return x, weight


def _is_transposed(operator: ProfiledOperator, arguments: ConvolutionArguments) -> bool:
    place = arguments.transposed
    return place if isinstance(place, bool) else operator.flag(place, "transposed")


class Heads(NamedTuple):
    """Shapes of attention: batch, heads, length, size of a head."""

    query: Shape
    key: Shape
    value: Shape


def attention_heads(operator: ProfiledOperator, first: int, *, length_first: bool, absent: Sequence[int] = ()) -> Heads:
    """Query, key and value from place `first` on, [batch, heads, length, head] even where length comes before heads.

    `absent` are places of what cuts or replaces sequences: offsets of packed ones, used lengths, tables of pages. Their
    contents are not in a trace. Raises NotRecorded.
    """
    places = zip(("query", "key", "value"), range(first, first + 3), strict=True)
    shapes = [operator.shape(place, what) for what, place in places]
    if any(operator.has_tensor(place) for place in absent) or any(len(shape) == 3 for shape in shapes):
        raise NotRecorded(_PACKED)
    _expect(all(len(shape) == 4 for shape in shapes), "query, key and value do not have 4 dimensions")
    if length_first:
        shapes = [(b, h, s, d) for b, s, h, d in shapes]
    (b, h_q, _, d_q), (b2, h_k, s_k, d_k), (b3, h_v, s_v, _) = shapes
    fit = b == b2 == b3 and h_k == h_v and s_k == s_v and d_q == d_k
    _expect(fit and (h_q % h_k == 0 if h_k else h_q == 0), "query, key and value do not fit each other")
    return Heads(*shapes)


class AttentionArguments(NamedTuple):
    """Where query, key and value stand, one after the other, and how their dimensions are ordered.

    At `causal` stands whether there is a causal mask: a truth value, or a number that is 1 if its diagonal begins at
    the first query and key, 2 if it ends at the last ones. `from_bottom_right` says that of a truth value.
    """

    first: int = 0
    length_first: bool = False
    absent: tuple[int, ...] = ()
    causal: int | None = None
    from_bottom_right: bool = False

    def heads(self, operator: ProfiledOperator) -> Heads:
        """Their shapes. Raises NotRecorded."""
        return attention_heads(operator, self.first, length_first=self.length_first, absent=self.absent)


# Operators of the flash-attention library and torch's around them take [batch, length, heads, head]. torch's formula
# for its own takes these for [batch, heads, length, head], which counts heads as length. FlopCounterMode does not show
# that: it counts the operator outside, which has them in that order. Here they are counted as they are. Its causal mask
# is aligned to the last query and key since version 2.1; those of other kernels to the first ones.
_FLASH_3 = AttentionArguments(
    length_first=True, absent=(3, 4, 7, 8, 9, 10, 11, 14, 15, 16), causal=24, from_bottom_right=True
)
ATTENTION_FORWARD = {
    "aten::_scaled_dot_product_flash_attention": AttentionArguments(causal=4, from_bottom_right=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": AttentionArguments(causal=4),
    "aten::_scaled_dot_product_efficient_attention": AttentionArguments(causal=6),
    "aten::_scaled_dot_product_cudnn_attention": AttentionArguments(causal=6),
    "aten::_scaled_dot_product_fused_attention_overrideable": AttentionArguments(causal=5),
    "aten::_flash_attention_forward": AttentionArguments(
        length_first=True, absent=(3, 4), causal=8, from_bottom_right=True
    ),
    "aten::_efficient_attention_forward": AttentionArguments(length_first=True, absent=(4, 5), causal=9),
    # Source: Dao-AILab/flash-attention 2.8, flash_attn/flash_attn_interface.py and hopper/flash_attn_interface.py.
    "flash_attn::_flash_attn_forward": AttentionArguments(length_first=True, causal=5, from_bottom_right=True),
    "flash_attn_3::_flash_attn_forward": _FLASH_3,
    "flash_attn_3::fwd": _FLASH_3,
}
ATTENTION_BACKWARD = {
    "aten::_scaled_dot_product_flash_attention_backward": AttentionArguments(1, causal=11, from_bottom_right=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": AttentionArguments(1, causal=7),
    "aten::_scaled_dot_product_efficient_attention_backward": AttentionArguments(1, causal=11),
    "aten::_scaled_dot_product_cudnn_attention_backward": AttentionArguments(1, causal=14),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": AttentionArguments(1, causal=13),
    "aten::_flash_attention_backward": AttentionArguments(
        1, length_first=True, absent=(6, 7), causal=11, from_bottom_right=True
    ),
    "aten::_efficient_attention_backward": AttentionArguments(1, length_first=True, absent=(6, 7), causal=14),
    "flash_attn::_flash_attn_backward": AttentionArguments(1, length_first=True, causal=11, from_bottom_right=True),
    "flash_attn_3::_flash_attn_backward": AttentionArguments(1, length_first=True, absent=(6, 7, 8, 9)),
    "flash_attn_3::bwd": AttentionArguments(1, length_first=True, absent=(9, 10, 11, 12)),
}


def _attention_forward(operator: ProfiledOperator, arguments: AttentionArguments) -> int:
    """sdpa_flop_count: scores and their product with the values."""
    (b, h, s_q, d_q), (_, _, s_k, _), (_, _, _, d_v) = arguments.heads(operator)
    return 2 * b * h * s_q * s_k * (d_q + d_v)


def _attention_backward(operator: ProfiledOperator, arguments: AttentionArguments) -> int:
    """sdpa_backward_flop_count: the scores again, two products for the values' part, two for queries and keys."""
    (b, h, s_q, d_q), (_, _, s_k, _), (_, _, _, d_v) = arguments.heads(operator)
    return 2 * b * h * s_q * s_k * (3 * d_q + 2 * d_v)


def _packed_at_most(operator: ProfiledOperator, first: int, longest: int, *, backward: bool = False) -> int:
    """Attention of packed sequences [elements, heads, head] if all keys were as many as those of the longest one."""
    query, key, value = (operator.shape(place, "query, key or value") for place in range(first, first + 3))
    _expect(len(query) == len(key) == len(value) == 3, "query, key and value do not have 3 dimensions")
    (elements, heads, d_q), (keys, _, _), (_, _, d_v) = query, key, value
    pairs = elements * heads * min(keys, operator.number(longest, "the longest sequence"))
    return 2 * pairs * ((3 * d_q + 2 * d_v) if backward else (d_q + d_v))


def _expect(fits: bool, otherwise: str) -> None:
    if not fits:
        raise NotRecorded(otherwise)


GROUPED = "groups of a grouped product need not cover all rows, and their sizes are not in the trace"
_PACKED_FLOAT = "float4_e2m1fn_x2"
_PACKED = "sequences are packed or paged, and their lengths are not in the trace"

_PREPACKED = "its weights are packed, and their shape is not in the trace"

_PRODUCTS: dict[str, FlopCount] = {
    "aten::mm": partial(_product, first=0),
    "aten::_int_mm": partial(_product, first=0),
    "aten::_scaled_mm": _scaled_product,
    "aten::_scaled_mm_v2": _scaled_product,
    "aten::addmm": partial(_product, first=1),
    "aten::addmm_": partial(_product, first=1),
    "aten::_addmm_activation": partial(_product, first=1),
    "aten::bmm": partial(_batched_product, first=0),
    "aten::baddbmm": partial(_batched_product, first=1),
    "aten::baddbmm_": partial(_batched_product, first=1),
    **dict.fromkeys(("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2"), _grouped_product),
    **LIBRARY_PRODUCTS,
}
_FORMULAS: dict[str, FlopCount] = {
    **_PRODUCTS,
    **LIBRARY_FORMULAS,
    **{name: partial(_convolution, arguments=arguments) for name, arguments in CONVOLUTIONS.items()},
    "aten::convolution_backward": _convolution_backward,
    **{name: partial(_attention_forward, arguments=where) for name, where in ATTENTION_FORWARD.items()},
    **{name: partial(_attention_backward, arguments=where) for name, where in ATTENTION_BACKWARD.items()},
}

_AT_MOST: dict[str, FlopCount] = {
    **dict.fromkeys(("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2"), _grouped_at_most),
    **BOUNDS_OF_LIBRARIES,
    "aten::_flash_attention_forward": partial(_packed_at_most, first=0, longest=6),
    "aten::_flash_attention_backward": partial(_packed_at_most, first=1, longest=9, backward=True),
    "flash_attn::_flash_attn_varlen_forward": partial(_packed_at_most, first=0, longest=6),
    "flash_attn::_flash_attn_varlen_backward": partial(_packed_at_most, first=1, longest=12, backward=True),
    **dict.fromkeys(
        ("flash_attn_3::_flash_attn_forward", "flash_attn_3::fwd"), partial(_packed_at_most, first=0, longest=13)
    ),
}
_NO_FORMULA: dict[str, Any] = {
    "quantized::linear": _PREPACKED,
    "quantized::linear_dynamic": _PREPACKED,
    "flash_attn::_flash_attn_varlen_forward": _PACKED,
    "flash_attn::_flash_attn_varlen_backward": _PACKED,
    "vllm::unified_attention": _PACKED,
    "vllm::unified_attention_with_output": _PACKED,
    "aiter::mha_batch_prefill": _PACKED,
}
