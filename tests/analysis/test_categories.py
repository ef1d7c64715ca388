"""Names of operators and kernels, all but a few of them from real traces."""

from __future__ import annotations

import pytest

from commtrace.analysis.metrics.compute.categories import (
    KINDS_OF_WORK,
    category,
    kernel_category,
    operator_category,
    takes_float32_as_tf32,
    uses_tensor_cores,
)
from commtrace.analysis.metrics.compute.flops import ATTENTION_BACKWARD, ATTENTION_FORWARD, CONVOLUTIONS

OPERATORS = {
    "GEMM": "aten::mm aten::addmm aten::bmm aten::baddbmm aten::_scaled_mm aten::linear aten::matmul "
    "aiter::gemm_a16w16 _C::cutlass_scaled_mm sgl_kernel::fp8_scaled_mm fbgemm::f8f8bf16_rowwise "
    "aten::_cudnn_rnn_backward quantized::linear vllm::rocm_unquantized_gemm nanogpt::mm AddmmBackward0",
    "convolution": "aten::conv2d aten::convolution_backward aten::miopen_convolution ConvolutionBackward0",
    "attention forward": "aten::scaled_dot_product_attention aten::_flash_attention_forward flash_attn_3::fwd "
    "vllm::unified_attention_with_output aiter::mha_batch_prefill",
    "attention backward": "aten::_scaled_dot_product_flash_attention_backward flash_attn_3::bwd",
    "normalisation": "aten::layer_norm aten::cudnn_batch_norm_backward aiter::add_rmsnorm aten::_fused_rms_norm",
    "softmax": "aten::_softmax aten::_log_softmax_backward_data",
    "elementwise": "aten::add_ aten::mul aten::gelu aten::gelu_backward aten::_foreach_mul_ aten::where aten::index "
    "aten::_index_put_impl_ aten::index_add_ aten::scatter_add_ aten::gather aten::masked_fill_ "
    "aten::upsample_bilinear2d aten::upsample_nearest2d_backward aten::_upsample_bicubic2d_aa aten::nll_loss_forward "
    "aten::nll_loss2d_backward aten::mse_loss aten::binary_cross_entropy_with_logits aten::constant_pad_nd",
    "reduction": "aten::sum aten::linalg_vector_norm aten::argmax aten::histc",
    "embedding": "aten::embedding aten::embedding_dense_backward fbgemm::split_embedding_codegen_forward_cpu",
    "optimizer": "Optimizer.step#SGD.step aten::_fused_adamw_",
    "copy": "aten::copy_ aten::to aten::cat aten::_foreach_copy_",
    "MoE": "vllm::moe_forward aten::_grouped_mm",
    "Triton": "triton_poi_fused__flash_attn_backward__unsafe_view_mul_sigmoid_view_16 triton_poi_fused_embedding_0",
    "communication": "c10d::allreduce_ record_param_comms nccl:all_reduce _c10d_functional::wait_tensor",
}
UNTOLD = (
    "aten::empty aten::view sgl_kernel::rotary_embedding fbgemm::permute_2D_sparse_data linear_relu_square_kernel_1 "
    "aten::max_pool2d_with_indices_backward aten::select_backward"
)


@pytest.mark.parametrize(("expected", "names"), OPERATORS.items())
def test_operators(expected: str, names: str) -> None:
    assert {name: operator_category(name) for name in names.split()} == dict.fromkeys(names.split(), expected)


def test_operators_whose_names_do_not_tell() -> None:
    assert [name for name in UNTOLD.split() if operator_category(name)] == []


def test_operators_with_a_formula_have_the_category_of_it() -> None:
    assert {operator_category(name) for name in CONVOLUTIONS} == {"convolution"}
    assert {operator_category(name) for name in ATTENTION_FORWARD} == {"attention forward"}
    assert {operator_category(name) for name in ATTENTION_BACKWARD} == {"attention backward"}


NATIVE = "void at::native::"
KERNELS = [
    ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "GEMM", True),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_32x6_nt_align2>(Params)", "GEMM", True),
    ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>()", "GEMM", True),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", "GEMM", False),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas", "GEMM", True),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4", "GEMM", False),
    ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn", "GEMM", True),
    ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", "GEMM", True),
    ("volta_sgemm_128x64_nn", "GEMM", False),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(Params)", "GEMM", False),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_SN_LDSB1", "GEMM", True),
    ("void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 64u, 160u>(__nv_bfloat16*, float*)", "GEMM", True),
    ("void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>(int)", "GEMM", None),
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32", "convolution", True),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x16_wt16x16x4", "convolution", True),
    ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)", "convolution", None),
    ("volta_scudnn_128x64_relu_interior_nn_v1", "convolution", False),
    ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false>(int)", "convolution", False),
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64> >()", "attention forward", True),
    (
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<T> > >",
        "attention forward",
        True,
    ),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128", "attention forward", True),
    ("attn_fwd", "attention forward", None),
    ("kernel_unified_attention_2d", "attention forward", None),
    ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_", "attention forward", None),
    ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Traits>()", "attention backward", True),
    (
        "void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<64> > > >",
        "attention backward",
        None,
    ),
    (f"{NATIVE}(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>()", "normalisation", False),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)", "normalisation", None),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*)", "softmax", None),
    (f"{NATIVE}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()", "elementwise", False),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "elementwise", None),
    (f"{NATIVE}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >", "reduction", False),
    (f"{NATIVE}(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>()", "embedding", False),
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float> >()", "optimizer", None),
    (f"{NATIVE}elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda()>", "copy", False),
    (f"{NATIVE}(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>()", "copy", False),
    ("Memcpy HtoD (Pinned -> Device)", "copy", None),
    ("Memset (Device)", "copy", None),
    ("Memcpy PtoP (Device -> Device)", "communication", None),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication", None),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "MoE", None),
    ("triton_per_fused__flash_attn_backward__unsafe_view_mul_sigmoid_sum_view_10", "Triton", None),
    ("SubTensorOpWithScalar1d", None, None),  # no tensorop of CUTLASS
    ("void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int)", None, None),  # no gemm
    ("linear_relu_square_kernel", None, None),
]


@pytest.mark.parametrize(("name", "expected", "tensor_cores"), KERNELS)
def test_kernels(name: str, expected: str | None, tensor_cores: bool | None) -> None:
    assert kernel_category(name) == expected
    assert uses_tensor_cores(name) is tensor_cores


@pytest.mark.parametrize(
    ("name", "as_tf32"),
    [
        ("ampere_s1688gemm_128x128_ldg4_stages_32x1_tn", True),
        ("ampere_sgemm_128x64_tn", False),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4>(Params)", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", False),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x16_stage4_warpsize2x2x1_tensor16x8x8", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4", False),
        ("nvjet_sss_128x128_32x4_2x1_v_bz_TNT", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel)", False),
        ("Cijk_Alik_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x128x32_MI16x16x1_SN", True),
        ("Cijk_Alik_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT128x128x32_MI16x16x1_SN", False),  # matrix cores take float32
        ("void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<float> >()", False),
        ("void at::native::elementwise_kernel<128, 4, at::native::add_kernel>()", False),
    ],
)
def test_which_kernels_take_float32_as_tf32(name: str, *, as_tf32: bool) -> None:
    assert takes_float32_as_tf32(name) is as_tf32


def test_the_kernel_tells_where_the_operator_does_not() -> None:
    assert category("aten::linear", "attn_fwd") == "GEMM"
    assert (
        category("sgl_kernel::rotary_embedding", "void rotary_embedding_kernel<c10::BFloat16, true>()") == "elementwise"
    )
    # what aten::embedding calls
    assert category("aten::index_select", f"{NATIVE}vectorized_gather_kernel<16, long>(char*)") == "embedding"
    assert category(None, "Memset (Device)") == "copy"
    # on a CPU, what aten::linear does itself is to call aten::addmm
    assert category("aten::linear") == category("AddmmBackward0") == "other"
    assert category("aten::addmm") == "GEMM"
    assert category("aten::empty", "linear_relu_square_kernel") == category(None) == "other"


def test_all_categories_are_listed_and_found() -> None:
    assert {*OPERATORS, "other"} == set(KINDS_OF_WORK)
    assert {found for _, found, _ in KERNELS if found} == set(OPERATORS)
