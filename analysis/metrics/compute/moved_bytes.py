"""Bytes that one operator has to move: each tensor it reads once, and each tensor it writes once.

A lower bound on traffic with memory, as in a roofline: what a cache could have saved is not in it. The output is no
part of the record, so its shape and type are derived. A tensor changed in place is read and written. Values saved for
the backward pass (a mean per row, a logsumexp per query) and running statistics that are updated are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .flops import (
    ATTENTION_BACKWARD,
    ATTENTION_FORWARD,
    CONVOLUTIONS,
    GROUPED,
    AttentionArguments,
    ConvolutionArguments,
    convolution_output,
)
from .operators import ITEM_BYTES, Amount, NotRecorded, ProfiledOperator, Shape, Tensor, evaluated, size_bytes


def moved_bytes(operator: ProfiledOperator) -> Amount:
    """Bytes of an operator's inputs and outputs, or None with the reason."""
    return evaluated(operator, _FORMULAS, _NO_FORMULA)


def moves(name: str) -> bool:
    """Whether bytes of operators of this name have a formula, so that what they call is not counted again."""
    return name in _FORMULAS


def _read(operator: ProfiledOperator, places: int | None = None) -> int:
    return sum(tensor.size_bytes for tensor in operator.tensors(places))


def _product(operator: ProfiledOperator, first: int, places: int, out_dtype: int | None = None) -> int:
    """Matrices from place `first` on, with the tensors before them (a bias) and behind (scales)."""
    a, b = operator.tensor(first, "the first matrix"), operator.tensor(first + 1, "the second matrix")
    if len(a.shape) < 2 or len(a.shape) != len(b.shape):
        raise NotRecorded("these are no two matrices")
    dtype = a.dtype
    if out_dtype is not None and operator.value(out_dtype, "the output's type") != "":
        dtype = operator.named_dtype(out_dtype, "the output's type")
    return _read(operator, places) + size_bytes((*a.shape[:-1], b.shape[-1]), dtype)


def _product_or_sum(operator: ProfiledOperator, first: int) -> int:
    """aten::mm, addmm and their kin: as recorded, with an output given as last argument, or with the type of it.

    The type comes behind the tensors. Only then are there so many arguments without a tensor at the end.
    """
    tensors = first + 2
    plain = tensors + (2 if first else 0)  # addmm and baddbmm have beta and alpha
    recorded = len(operator.types or ())
    with_type = recorded > plain and not operator.has_tensor(plain)
    return _product(operator, first, tensors, tensors if with_type else None)


def _product_with_transposed(operator: ProfiledOperator) -> int:
    x, weight = operator.tensor(0, "the input"), operator.tensor(1, "the weight")
    return _read(operator, 3) + size_bytes((*x.shape[:-1], *weight.shape[:1]), x.dtype)


def _convolution(operator: ProfiledOperator, arguments: ConvolutionArguments) -> int:
    out = convolution_output(operator, arguments)
    return _read(operator) + size_bytes(out, operator.dtype(0, "the input"))


def _convolution_backward(operator: ProfiledOperator) -> int:
    x, weight = operator.tensor(1, "the input"), operator.tensor(2, "the weight")
    of_input, of_weight, of_bias = operator.flags(10, "output mask", 3)
    result = _read(operator) + of_input * x.size_bytes + of_weight * weight.size_bytes
    if of_bias:
        result += size_bytes(operator.ints(3, "sizes of the bias", 1), weight.dtype)
    return result


def _attention_forward(operator: ProfiledOperator, arguments: AttentionArguments) -> int:
    query, _, value = arguments.heads(operator)
    dtype = operator.dtype(arguments.first, "query")
    if dtype.startswith("float8"):
        raise NotRecorded("the type of the output is not recorded")
    return _read(operator) + size_bytes((*query[:-1], value[-1]), dtype)


def _attention_backward(operator: ProfiledOperator, arguments: AttentionArguments) -> int:
    """The gradients of query, key and value; flash-attention gets room for them as arguments, behind the logsumexp."""
    gradients = [size_bytes(shape, operator.dtype(arguments.first, "query")) for shape in arguments.heads(operator)]
    places = 6 if operator.name.startswith("flash_attn") else None
    return _read(operator, places) + sum(gradients)


def _elementwise(operator: ProfiledOperator, places: int, *, boolean: bool = False) -> int:
    """`places` tensors or numbers, and the output: as large as they are together, of the type they promote to."""
    tensors = operator.tensors(places)
    if not tensors or not operator.has_tensor(0):
        raise NotRecorded("the first input is not a tensor")
    if operator.name.endswith("_"):
        return sum(tensor.size_bytes for tensor in tensors) + tensors[0].size_bytes
    dtype = "bool" if boolean else _promoted(tensors)
    return sum(tensor.size_bytes for tensor in tensors) + size_bytes(_broadcast(tensors), dtype)


def _of_floats(operator: ProfiledOperator, places: int) -> int:
    """As _elementwise, where other numbers may change their type: integers to torch's default, which no trace tells."""
    if any(_rank(tensor.dtype) != _FLOATING for tensor in operator.tensors(places)):
        raise NotRecorded("the type of the output is not recorded")
    return _elementwise(operator, places)


def _choice(operator: ProfiledOperator) -> int:
    """aten::where: a condition and two alternatives."""
    tensors = operator.tensors(3)
    if len(tensors) != 3:
        raise NotRecorded("condition and alternatives are not three tensors")
    out = size_bytes(_broadcast(tensors), _promoted(tensors[1:]))
    return _read(operator, 3) + out


def _copy(operator: ProfiledOperator) -> int:
    """aten::copy_: reads the second, writes the first."""
    to, source = operator.tensor(0, "the target"), operator.tensor(1, "the source")
    return to.size_bytes + source.size_bytes


def _fill(operator: ProfiledOperator) -> int:
    return operator.tensor(0, "the target").size_bytes


def _normalisation(operator: ProfiledOperator, places: int) -> int:
    """Input, weight, bias and statistics that are read, and an output like the input."""
    return _read(operator, places) + operator.tensor(0, "the input").size_bytes


def _normalisation_backward(operator: ProfiledOperator, x: int, weight: int, mask: int | None, outputs: int = 3) -> int:
    """The gradients of input, weight and bias, as far as the output mask asks for them."""
    result = _read(operator)
    wanted = (True,) * outputs if mask is None else operator.flags(mask, "output mask", outputs)
    for place, want in zip((x, weight, weight), wanted, strict=False):
        if want:
            result += operator.tensor(place, "what the gradient is of").size_bytes
    return result


def _softmax(operator: ProfiledOperator) -> int:
    """aten::_softmax, with a flag for an output in float32 of an input in half precision."""
    x = operator.tensor(0, "the input")
    return x.size_bytes + size_bytes(x.shape, "float32" if operator.flag(2, "half to float") else x.dtype)


def _reduction(operator: ProfiledOperator) -> int:
    """aten::sum and others of floats: (input, dtype), or (input, dimensions, keep them or not, dtype)."""
    x = operator.tensor(0, "the input")
    if _rank(x.dtype) < _FLOATING:
        raise NotRecorded("the type of the output is not recorded")
    recorded = len(operator.types or ())
    over = operator.int_list(1, "dimensions to reduce") if recorded > 2 else ()
    if not all(-len(x.shape) <= place < len(x.shape) for place in over):
        raise NotRecorded("a dimension to reduce is none of the input's")
    reduced = {place % len(x.shape) for place in over} or set(range(len(x.shape)))
    kept = tuple(size for place, size in enumerate(x.shape) if place not in reduced)
    place = 3 if recorded > 2 else 1
    named = place < recorded and operator.value(place, "the output's type") != ""
    return x.size_bytes + size_bytes(kept, operator.named_dtype(place, "the output's type") if named else x.dtype)


def _scaled_product(operator: ProfiledOperator) -> int:
    """aten::_scaled_mm_v2, with lists of scales whose types follow from the recipe that each belongs to.

    Source: torch 2.13, ATen/BlasBackend.h, ScalingType.
    """
    scales = 0
    for place, what in ((2, "scales of the first matrix"), (5, "scales of the second matrix")):
        recipes = operator.int_list(place + 1, f"recipes of the {what}")
        shapes = operator.tensor_list(place, what)
        if len(recipes) != len(shapes) or not set(recipes) <= set(_SCALE_DTYPES):
            raise NotRecorded(f"the {what} do not fit their recipes")
        scales += sum(size_bytes(shape, _SCALE_DTYPES[recipe]) for shape, recipe in zip(shapes, recipes, strict=True))
    bias = operator.tensor(8, "the bias").size_bytes if operator.has_tensor(8) else 0
    return _product(operator, 0, 2, 9) + scales + bias


_SCALE_DTYPES = {
    0: "float32",
    1: "float32",
    2: "float8_e4m3fn",
    3: "float8_e8m0fnu",
    4: "float32",
    5: "float32",
}


def _joined(operator: ProfiledOperator) -> int:
    """aten::cat and stack: each tensor is read, and written into the result. Tensors of several types are copied."""
    return 2 * operator.list_bytes(0, "the tensors")


def _for_each(operator: ProfiledOperator) -> int:
    """Every list and tensor is read; the result, or in place the first list, has the shapes of the first list."""
    return _lists(operator) + operator.list_bytes(0, "the tensors")


def _norm_of_each(operator: ProfiledOperator) -> int:
    """aten::_foreach_norm: a number for each tensor."""
    shapes = operator.tensor_list(0, "the tensors")
    return operator.list_bytes(0, "the tensors") + len(shapes) * (operator.list_item_bytes or 0)


def _fill_each(operator: ProfiledOperator) -> int:
    return operator.list_bytes(0, "the tensors")


def _lists(operator: ProfiledOperator) -> int:
    """Bytes of all inputs, where every list is as long as the first."""
    kinds = operator.types or ()
    lists = [place for place, kind in enumerate(kinds) if kind == "TensorList"]
    _same_length(operator, lists)
    tensors = [operator.tensor(place, f"input {place}") for place in range(len(kinds)) if operator.has_tensor(place)]
    in_lists = sum(operator.list_bytes(place, f"input {place}") for place in lists)
    return in_lists + sum(tensor.size_bytes for tensor in tensors)


def _same_length(operator: ProfiledOperator, places: list[int]) -> None:
    if len({len(operator.tensor_list(place, f"input {place}")) for place in places}) > 1:
        raise NotRecorded("its lists are not equally long")


def _adam(operator: ProfiledOperator) -> int:
    """aten::_fused_adam_ and _fused_adamw_: parameters, two moments, with amsgrad a third; steps count in float32."""
    moments = [2, 3, 4] if operator.flag(11, "amsgrad") else [2, 3]
    counters = len(operator.tensor_list(0, "the parameters")) * ITEM_BYTES["float32"]
    return _updated(operator, [0, *moments]) + counters


def _sgd(operator: ProfiledOperator) -> int:
    """aten::_fused_sgd_: parameters, and with momentum a buffer for each, which the first step does not read."""
    if float(operator.value(4, "momentum") or 0) == 0:
        return _updated(operator, [0])
    unread = operator.list_bytes(2, "the momentum") if operator.flag(9, "first step or not") else 0
    return _updated(operator, [0, 2]) - unread


def _updated(operator: ProfiledOperator, changed: list[int]) -> int:
    """What an optimizer moves that reads and writes these lists; it writes gradients only where it unscales them.

    Source: torch 2.13, aten/src/ATen/native/cuda/fused_adam_utils.cuh and FusedSgdKernel.cu.
    """
    _same_length(operator, [1, *changed])
    unscales = operator.has_tensor(len(operator.types or ()) - 2)  # grad_scale
    gradients = operator.list_bytes(1, "the gradients")
    return sum(2 * operator.list_bytes(place, "the states") for place in changed) + gradients * (2 if unscales else 1)


def _broadcast(tensors: list[Tensor]) -> Shape:
    """The shape of an elementwise result. Source: PyTorch documentation, "Broadcasting semantics"."""
    shapes = [tensor.shape for tensor in tensors]
    ndim = max(map(len, shapes))
    result = []
    for sizes in zip(*((1,) * (ndim - len(shape)) + shape for shape in shapes), strict=True):
        larger = set(sizes) - {1}
        if len(larger) > 1:
            raise NotRecorded("shapes of inputs do not broadcast")
        result.append(larger.pop() if larger else 1)
    return tuple(result)


def _promoted(tensors: list[Tensor]) -> str:
    """The dtype of an elementwise result. Raises NotRecorded where a Python number may have taken part.

    A number of Python is recorded like a tensor without dimensions. Either counts only if it is of a higher kind than
    the tensors with dimensions, and then they differ: 1.5 makes integers torch's default type, a tensor its own.
    Source: PyTorch documentation, "torch.dtype", type promotion.
    """
    with_dims = [tensor.dtype for tensor in tensors if tensor.shape]
    without = [tensor.dtype for tensor in tensors if not tensor.shape]
    if with_dims and without:
        if max(map(_rank, without)) > max(map(_rank, with_dims)):
            raise NotRecorded("the type of the output is not recorded")
        without = []
    dtypes = set(with_dims or without)
    if dtypes == {"float16", "bfloat16"}:
        return "float32"
    highest = max(map(_rank, dtypes))
    dtypes = {dtype for dtype in dtypes if _rank(dtype) == highest}
    size = max(ITEM_BYTES[dtype] for dtype in dtypes)
    largest = [dtype for dtype in dtypes if ITEM_BYTES[dtype] == size]
    if len(largest) > 1:
        raise NotRecorded(f"the type of the output of {' and '.join(sorted(largest))} is not known")
    return largest[0]


_FLOATING = 2


def _rank(dtype: str) -> int:
    """Booleans, integers, floats, complex numbers, in the order in which types promote."""
    if dtype == "bool":
        return 0
    return 3 if dtype.startswith("complex") else _FLOATING if "float" in dtype else 1


# Elementwise operators by what they take; with "_" at the end they work in place.
_KEEP_TYPE = "neg relu sign square bitwise_not round floor ceil trunc"
_MAKE_FLOATS = (
    "abs clamp clamp_min clamp_max exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan tanh sigmoid "
    "erf silu gelu mish softplus leaky_relu elu hardswish hardsigmoid hardtanh cumsum"
)
_COMPARE = "eq ne lt le gt ge"
_TEST = "isnan isinf isfinite logical_not"
_COMBINE = "add sub mul maximum minimum remainder fmod bitwise_and bitwise_or bitwise_xor"
_COMBINE_FLOATS = (
    "div pow atan2 gelu_backward silu_backward sigmoid_backward tanh_backward threshold_backward elu_backward "
    "leaky_relu_backward hardswish_backward _softmax_backward_data _log_softmax_backward_data"
)
_OF_THREE = "addcmul addcdiv lerp"
_FOR_EACH = (
    "abs neg exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal sigmoid sign sin cos tan tanh erf erfc floor ceil "
    "round trunc frac add sub mul div pow clamp_min clamp_max maximum minimum addcmul addcdiv lerp"
)


def _named(names: str, formula: Callable[[ProfiledOperator], int]) -> dict[str, Callable[[ProfiledOperator], int]]:
    return {f"aten::{name}{suffix}": formula for name in names.split() for suffix in ("", "_")}


_FORMULAS: dict[str, Callable[[ProfiledOperator], int]] = {
    "aten::mm": partial(_product_or_sum, first=0),
    "aten::bmm": partial(_product_or_sum, first=0),
    "aten::addmm": partial(_product_or_sum, first=1),
    "aten::addmm_": partial(_product_or_sum, first=1),
    "aten::_addmm_activation": partial(_product, first=1, places=3),
    "aten::baddbmm": partial(_product_or_sum, first=1),
    "aten::baddbmm_": partial(_product_or_sum, first=1),
    "aten::_scaled_mm": partial(_product, first=0, places=6, out_dtype=6),
    "aten::_scaled_mm_v2": _scaled_product,
    "aiter::gemm_a16w16": _product_with_transposed,
    **{name: partial(_convolution, arguments=arguments) for name, arguments in CONVOLUTIONS.items()},
    "aten::convolution_backward": _convolution_backward,
    **{name: partial(_attention_forward, arguments=where) for name, where in ATTENTION_FORWARD.items()},
    **{name: partial(_attention_backward, arguments=where) for name, where in ATTENTION_BACKWARD.items()},
    **_named(_KEEP_TYPE, partial(_elementwise, places=1)),
    **_named(_MAKE_FLOATS, partial(_of_floats, places=1)),
    **_named(_TEST, partial(_elementwise, places=1, boolean=True)),
    **_named(_COMPARE, partial(_elementwise, places=2, boolean=True)),
    **_named(_COMBINE, partial(_elementwise, places=2)),
    **_named(_COMBINE_FLOATS, partial(_of_floats, places=2)),
    **_named(_OF_THREE, partial(_of_floats, places=3)),
    "aten::where": _choice,
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::layer_norm": partial(_normalisation, places=4),
    "aten::native_layer_norm": partial(_normalisation, places=4),
    "aten::rms_norm": partial(_normalisation, places=3),
    "aten::_fused_rms_norm": partial(_normalisation, places=3),
    "aten::group_norm": partial(_normalisation, places=4),
    "aten::native_group_norm": partial(_normalisation, places=3),
    "aten::batch_norm": partial(_normalisation, places=5),
    "aten::native_batch_norm": partial(_normalisation, places=5),
    "aten::cudnn_batch_norm": partial(_normalisation, places=5),
    "aten::miopen_batch_norm": partial(_normalisation, places=5),
    "aten::native_layer_norm_backward": partial(_normalisation_backward, x=1, weight=5, mask=7),
    "aten::native_batch_norm_backward": partial(_normalisation_backward, x=1, weight=2, mask=9),
    "aten::native_group_norm_backward": partial(_normalisation_backward, x=1, weight=4, mask=9),
    "aten::_fused_rms_norm_backward": partial(_normalisation_backward, x=1, weight=4, mask=5, outputs=2),
    "aten::cudnn_batch_norm_backward": partial(_normalisation_backward, x=0, weight=2, mask=None),
    "aten::miopen_batch_norm_backward": partial(_normalisation_backward, x=0, weight=2, mask=None),
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::sum": _reduction,
    "aten::mean": _reduction,
    "aten::amax": _reduction,
    "aten::amin": _reduction,
    "aten::cat": _joined,
    "aten::stack": _joined,
    **_named(" ".join(f"_foreach_{name}" for name in _FOR_EACH.split()), _for_each),
    "aten::_foreach_zero_": _fill_each,
    "aten::_foreach_norm": _norm_of_each,
    "aten::_fused_adam_": _adam,
    "aten::_fused_adamw_": _adam,
    "aten::_fused_sgd_": _sgd,
}

_ROWS = "rows that are read twice are not known from shapes"
_NO_FORMULA = {
    "aten::embedding": _ROWS,
    "aten::index": _ROWS,
    "aten::index_select": _ROWS,
    "aten::gather": _ROWS,
    "aten::_foreach_copy_": "its two lists may have two types, and neither is recorded",
    "aten::_grouped_mm": GROUPED,
    "aten::_scaled_grouped_mm": GROUPED,
    "aten::_scaled_grouped_mm_v2": GROUPED,
}
