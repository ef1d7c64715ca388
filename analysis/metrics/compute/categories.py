"""The category of an operator or a kernel, by its name, and whether a kernel runs on tensor cores.

Names of kernels are those of cuBLAS, cuDNN, CUTLASS, flash-attention, Composable Kernel, Tensile, MIOpen, Inductor and
torch itself. Source: the names in real traces, and how TraceLens
(PerfModel/torch_op_mapping.py) sorts operators.
"""

from __future__ import annotations

import functools
import re

from ...core import kinds, markers

KINDS_OF_WORK = (
    "GEMM",
    "convolution",
    "attention forward",
    "attention backward",
    "normalisation",
    "softmax",
    "elementwise",
    "reduction",
    "embedding",
    "optimizer",
    "copy",
    "MoE",
    "Triton",
    "communication",
    "other",
)


def category(operator: str | None, kernel: str | None = None) -> str:
    """The category of an operator, or where there is none or its name says nothing, of the kernel that ran.

    On CPUs there is no kernel: an operator stands for its own time, which of one that only calls others is no work.
    """
    if operator is not None and kernel is None and calls_others(operator):
        return "other"
    of_operator = operator_category(operator) if operator is not None else None
    of_kernel = kernel_category(kernel) if kernel is not None else None
    return of_operator or of_kernel or "other"


def calls_others(operator: str) -> bool:
    """Whether an operator computes nothing itself, but by the operators that it calls."""
    return _CALLS_OTHERS.search(operator) is not None


@functools.lru_cache(maxsize=1 << 14)  # names repeat in every step
def operator_category(name: str) -> str | None:
    """The category that an operator's name tells, or None."""
    return next((found for found, pattern in _OPERATORS if pattern.search(name)), None)


@functools.lru_cache(maxsize=1 << 14)
def kernel_category(name: str) -> str | None:
    """The category that a kernel's name tells, or None. Copies and fills count as kernels."""
    if kinds.is_copy(name):
        return "communication" if kinds.memory_kind(name) == kinds.COMM else "copy"
    if kinds.kernel_kind(name) == kinds.COMM:
        return "communication"
    return next((found for found, pattern in _KERNELS if pattern.search(name)), None)


@functools.lru_cache(maxsize=1 << 14)
def uses_tensor_cores(kernel: str) -> bool | None:
    """Whether a kernel runs on tensor cores (on AMD, matrix cores); None where its name does not say.

    Source: NVIDIA/PyProf pyprof/prof/tc.py and TensorBoard's torch-tb-profiler after it, tensor_core.py, which know
    cuBLAS and cuDNN up to Ampere; `nvjet` is cuBLAS on Hopper and later; MI in a name of Tensile is a matrix
    instruction, xdl and gtcx those of Composable Kernel and MIOpen.
    """
    if _ON_OTHER_CORES.search(kernel):
        return False
    return True if _ON_TENSOR_CORES.search(kernel) else None


@functools.lru_cache(maxsize=1 << 14)
def takes_float32_as_tf32(kernel: str) -> bool:
    """Whether a kernel that is given float32 multiplies it as TF32, by its name.

    Tensor cores of NVIDIA take no float32: cuBLAS calls such a kernel `ampere_s1688gemm`, CUTLASS `tensorop_s1688gemm`.
    Matrix cores of AMD do, so there the name has to say it: `MX` is Tensile's XF32.
    """
    if _NAMED_TF32.search(kernel):
        return True
    return bool(uses_tensor_cores(kernel)) and _ON_MATRIX_CORES.search(kernel) is None


def _patterns(*rows: tuple[str, str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((found, re.compile(pattern, re.IGNORECASE)) for found, pattern in rows)


_COMM_OPERATORS = (
    markers.C10D,
    "_c10d_functional::",
    "symm_mem::",
    markers.RECORD,
    *markers.OF_BACKENDS,
    markers.GLOO_MARK,
)
_FUNCTIONAL = "scaled_dot_product|flash_att|efficient_attention|cudnn_attention|flex_attention"

# The first that fits counts, so that what is within other names comes first.
_OPERATORS = _patterns(
    ("communication", rf"^(?:{'|'.join(_COMM_OPERATORS)})"),
    ("optimizer", r"^Optimizer\.|^aten::_fused_(?:adam|adamw|sgd|adagrad)_|(?:multi_tensor|fused)_(?:adam|lamb|sgd)"),
    ("Triton", r"^triton_"),
    ("MoE", r"(?:\b|_)(?:fused_)?moe(?:_|\b)|grouped_mm|group(?:ed)?_?gemm|topk_softmax|permute_tokens"),
    (
        "attention backward",
        rf"(?:{_FUNCTIONAL}|\battention|fmha|mha).*(?:backward|bwd)|^flash_attn\w*::\w*(?:bwd|backward)",
    ),
    (
        "attention forward",
        rf"{_FUNCTIONAL}|attention|fmha|\bmha_|^flash_attn\w*::|^aten::_native_multi_head|paged_attn",
    ),
    ("convolution", r"::\w*conv(?:olution|_transpose|_depthwise|[123]d|_tbc)|^Convolution\w*Backward"),
    ("normalisation", r"(?:layer|batch|group|instance|rms)_?norm|Norm\w*Backward"),
    ("softmax", r"softmax"),
    ("embedding", r"(?<!rotary_)embedding"),
    (
        "GEMM",
        (
            r"::(?:_?(?:scaled_|int_|weight_int\dpack_)?mm(?:_v2)?|addmm_?|_addmm_activation|bmm|baddbmm_?|addbmm|matmul|linear"
            r"|mv|addmv_?|dot|mkldnn_linear|einsum|addr|ger)$|(?<!fb)gemm|_scaled_(?:fp4_)?mm|_linear_pointwise$|qlinear"
            r"|^fbgemm::[fi]8[fi]8bf16|^quantized::linear|::_mkl_linear|_rnn(?:_layer)?(?:_backward)?$|^(?:Addmm|Mm|Bmm|Baddbmm|Linear)Backward"
        ),
    ),
    (
        "copy",
        r"^aten::(?:copy_|_to_copy|to|clone|contiguous|cat|stack|_pin_memory|fill_|zero_|_foreach_copy_|_foreach_zero_)$",
    ),
    (
        "reduction",
        (
            r"^aten::(?:sum|nansum|mean|amax|amin|aminmax|max|min|argmax|argmin|all|any|prod|std|var|std_mean|var_mean|norm"
            r"|linalg_vector_norm|logsumexp|cumsum|cumprod|count_nonzero|_foreach_norm|topk|sort|histc|bincount)$"
        ),
    ),
    (
        "elementwise",
        (
            r"^aten::(?:_foreach_)?(?:abs|neg|exp|exp2|expm1|log|log2|log10|log1p|sqrt|rsqrt|reciprocal|sin|cos|tan|tanh"
            r"|sigmoid|erf|silu|gelu|relu|mish|softplus|leaky_relu|elu|hardswish|hardsigmoid|hardtanh|pow|square|sign|clamp"
            r"|clamp_min|clamp_max|round|floor|ceil|trunc|add|sub|rsub|mul|div|maximum|minimum|remainder|fmod|atan2|where"
            r"|floor_divide|tril|triu|arange|roll|flip|\w+_pad\w*|bitwise_\w+|logical_\w+|eq|ne|lt|le|gt|ge|isnan|isinf|isfinite|addcmul|addcdiv|lerp|masked_fill|dropout"
            r"|native_dropout|bernoulli|threshold|_?(?:unsafe_)?index(?!_select)(?:_\w+)?|scatter(?:_\w+)?|gather(?:_\w+)?|take\w*"
            r"|masked_\w+|_?upsample_\w+|grid_sampler\w*|\w+_loss\w*|binary_cross_entropy\w*|(?:gelu|silu|sigmoid|tanh|threshold|elu|leaky_relu|hard\w+|mish|softplus"
            r"|native_dropout)_backward)_?$"
        ),
    ),
)

_CALLS_OTHERS = re.compile(
    r"^aten::(?:linear|matmul|einsum|tensordot|inner|bilinear|conv(?:_transpose)?[123]d|_convolution_mode|chain_matmul"
    r"|linalg_multi_dot|scaled_dot_product_attention|_scaled_dot_product_attention_math)$|Backward\d+$"
)

_KERNELS = _patterns(
    ("Triton", r"^triton_"),
    ("optimizer", r"multi_tensor_apply_kernel.*(?:adam|sgd|lamb|adagrad)|fused_?adam|FusedOptimizer"),
    ("MoE", r"(?:\b|_)moe(?:_|\b)|_matmul_ogs|topk_?gating|grouped_topk|grouped?_?gemm|routing|GroupProblemShape"),
    ("attention backward", r"(?:flash|fmha|fused_attention|sdpa|attn).*(?:bwd|backward)|_bwd_.*attn"),
    (
        "attention forward",
        (
            r"flash_?(?:fwd|att)|flash::|\bfmha|_\d+Fmha|fused_attention|sdpa|attn_fwd|unified_attention|paged_attention"
            r"|Batch(?:Prefill|Decode|MLA)"
        ),
    ),
    (
        "convolution",
        (
            r"implicit_gemm|(?:im|ex)plicit_convolve|fprop|dgrad|wgrad|scudnn|cudnn\w*conv|conv(?:olution|_depthwise|[123]d)"
            r"|winograd|^igemm_|miopen\w*conv|nchwToNhwc|nhwcToNchw|batched_transpose_\d+x\d+"
        ),
    ),
    ("normalisation", r"(?:layer|batch|group|rms)_?norm|bn_(?:fw|bw)"),
    ("softmax", r"softmax"),
    ("embedding", r"(?<!rotary_)embedding|indexSelect|vectorized_gather_kernel"),
    (
        "GEMM",
        r"(?<!fb)gemm|^nvjet|^Cijk_|^bmm_|cutlass.*(?:Kernel2?<|Gemm)|splitKreduce|gemv|dot_kernel|ck::.*(?:xdl|wmma)",
    ),
    ("copy", r"CatArrayBatchedCopy|copy_kernel|FillFunctor"),
    ("reduction", r"reduce_kernel|DeviceReduce|DeviceScan|radix_?sort"),
    ("elementwise", r"elementwise_kernel|multi_tensor_apply|act_and_mul|silu_and_mul|rotary_|dropout"),
)

# Checked first: an xmma kernel with ffma, say, multiplies without tensor cores.
_ON_OTHER_CORES = re.compile(
    r"simt|ffma|(?:ampere|volta|turing|maxwell|pascal)_[sd]gemm|scudnn|(?:im|ex)plicit_convolve_sgemm|gemv|splitKreduce"
    r"|at::native::.*(?:elementwise_kernel|reduce_kernel|multi_tensor_apply|CatArrayBatchedCopy|indexSelect|softmax"
    r"|layer_norm|gather)",
    re.IGNORECASE,
)
_MATRIX_CORES = r"_MI\d+x\d+x\d+|xdl|^igemm_\w*gtcx|mfma"
_ON_MATRIX_CORES = re.compile(_MATRIX_CORES, re.IGNORECASE)
_ON_TENSOR_CORES = re.compile(
    r"[hsic]884|[hsic]1688|16816|161616|i8816|hmma|imma|wgmma|_tensorop_|wmma|xmma_|tcgen05|^nvjet|^bmm_\w*sm100"
    r"|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv2d_c1_k1|direct_group"
    r"|flash_(?:fwd|bwd)\w*_kernel|FlashAttn(?:Fwd|Bwd)Sm|^fmhaSm|deep_gemm::"
    # Memory-efficient attention: float32 on tensor cores from Ampere on, the others from Volta on.
    r"|^fmha_cutlass[FB]_(?:f32_aligned_\w*sm[89]|(?:f16|bf16)_aligned)"
    rf"|{_MATRIX_CORES}",
    re.IGNORECASE,
)
_NAMED_TF32 = re.compile(r"tf32|xf32|_S_MX_", re.IGNORECASE)
