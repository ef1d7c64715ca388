"""Which kernels and operators are known to have no floating-point operations that count.

FLOPs count products of matrices, convolutions and attention, as in torch.utils.flop_counter. What has no formula has
either none of these, as the lists here say, or it is not known how many: a kernel of a user may multiply matrices under
any name. Whoever adds up FLOPs needs to know how much time that is, for their sum is a lower bound by as much.
"""

from __future__ import annotations

import functools
import re

from .categories import KINDS_OF_WORK, calls_others, kernel_category, operator_category

_PRODUCTS = frozenset({"GEMM", "convolution", "attention forward", "attention backward"})
_NO_PRODUCTS = frozenset(KINDS_OF_WORK) - _PRODUCTS - {"MoE", "Triton", "other"}


@functools.lru_cache(maxsize=1 << 14)  # names repeat in every step
def has_no_flops(operator: str | None, kernel: str | None) -> bool:
    """Whether what ran is known to multiply no matrices, by the names of its operator and kernel; no kernel on CPUs."""
    if kernel is None:
        return operator is not None and _operator_has_none(operator)
    kind = kernel_category(kernel)
    if _BESIDE_PRODUCTS.search(kernel):
        return True
    if kind in _PRODUCTS:
        return False
    if kind == "Triton":
        return _OF_INDUCTOR.search(kernel) is not None and _MULTIPLIES_AS_REDUCTION.search(kernel) is None
    if _OF_TORCH.search(kernel):
        return True
    own_name = kernel.replace("(anonymous namespace)::", "").partition("<")[0].partition("(")[0]
    if _FUSED_PRODUCTS.search(own_name):
        return False
    if kind in _NO_PRODUCTS:
        return True
    if _MULTIPLIES.search(own_name):
        return False
    if _MULTIPLIES_NOTHING.search(own_name):
        return True
    return operator is not None and operator_category(operator) in _NO_PRODUCTS


def _operator_has_none(operator: str) -> bool:
    """For the time of an operator on a CPU without that of the operators it calls."""
    kind = operator_category(operator)
    if kind in _NO_PRODUCTS or calls_others(operator):
        return True
    if kind in _PRODUCTS or kind in ("MoE", "Triton") or operator.startswith("CompiledFunction"):
        return False
    namespace, _, name = operator.rpartition("::")
    return namespace in ("", "aten", "prim", "prims") or _MULTIPLIES_NOTHING.search(name) is not None


# Parts of products and of attention that multiply nothing: they change layouts, add parts up, convert types.
_BESIDE_PRODUCTS = re.compile(
    r"nchwToNhwc|nhwcToNchw|batched_transpose_\d|splitKreduce|epilogue::impl::|FlashAttn\w*(?:Pre|Post)process"
    r"|flash_bwd_(?:dot_do_o|convert_d)|prepare_grouped_gemm_data|^_finalize_matmul",
    re.IGNORECASE,
)
# Inductor names what it generates for pointwise operators and reductions so, and templates, which multiply, triton_tem.
# Older releases have triton__0d1d2d.
_OF_INDUCTOR = re.compile(r"^triton_(?:(?:poi|red|per|for|split_scan)_|_\d)")
# Small products become reductions. After addmm or a convolution only the bias is meant: the product is elsewhere.
_MULTIPLIES_AS_REDUCTION = re.compile(
    r"^triton_(?:red|per)_fused_(?:\w*?_)?(?<!scaled_)(?:b?mm|mv|dot)(?:_(?!backward)|$)"
)
# torch's own multiply nothing but where their names say it, as kernel_category finds.
_OF_TORCH = re.compile(r"^(?:void )?at::(?:native|cuda)::|at_cuda_detail::|_ZN2at6native|\bcub::|\bthrust::|rocprim")
_MULTIPLIES = re.compile(
    r"(?<!ga)mma|(?:^|_)mm(?:_|$)|dot|(?<!bi|ri)linear(?!ize)|conv(?!ert)|proj|mlp|ffn|experts|fused_moe",
    re.IGNORECASE,
)
# These win over what else a name says: a kernel may fuse a normalisation, a softmax or an embedding with products.
_FUSED_PRODUCTS = re.compile(
    r"(?<!fb)gemm|matmul|(?:^|_)bmm(?:_|$)|attention|flash_?attn|(?:^|_)linear(?:_|$)|qkv|(?:^|_)mlp(?:_|$)",
    re.IGNORECASE,
)
_MULTIPLIES_NOTHING = re.compile(
    r"quant|scale(?:Packed|_kernel)|convertTensor|cast"  # numbers of other types
    r"|cache|page_indices|rope|rotary"
    # which rows go where
    r"|rout(?:e|ing)|top_?k|gating|permut|scatter|gather|index|indices|bucketize|bounds_check|histogram|bitmatrix|sort"
    r"|lengths|offsets|finalize|align_block"
    r"|silu|gelu|relu|swiglu|act_and_mul|sigmoid|tanh|norm|GammaBeta|dropout"
    # data moved; TensorOp is MIOpen's SubTensorOpWithScalar1d
    r"|copy|fill|memset|transpose|dma_|im2col|col2im|vol2col|TensorOp|padding|flip_filter"
    r"|random|philox|sampl|loss|entropy|bce|pool|upsample|interp|moe_sum|adam|adagrad",
    re.IGNORECASE,
)
