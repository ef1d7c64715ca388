"""Which kernels multiply nothing, by names from real traces."""

from __future__ import annotations

import pytest

from commtrace.analysis.metrics.compute.without_flops import has_no_flops

NATIVE = "void at::native::"
MULTIPLY_NOTHING = [
    ("aten::mul", f"{NATIVE}vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float> >()"),
    ("aten::_index_put_impl_", f"{NATIVE}index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<T> >()"),
    ("aten::_index_put_impl_", "void (anonymous namespace)::indexing_backward_kernel<float, 4>(long*, long*)"),
    ("aten::upsample_bilinear2d", f"{NATIVE}(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>(int)"),
    ("aten::histc", "void at::cuda::kernelHistogram1D<long, long, long, 1, 2, -1>()"),
    ("aten::sort", "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<T>()"),
    (None, "Memcpy DtoD (Device -> Device)"),
    (None, "triton_poi_fused_addmm_relu_3"),  # the bias
    (None, "triton_per_fused_add_addmm_native_layer_norm_2"),
    (None, "triton_red_fused__log_softmax_expand_mm_backward_mul_nll_loss_backward_0"),  # somebody's mm_backward
    (None, "triton_per_fused__fused_rms_norm__scaled_mm__to_copy_add_clone_49"),  # quantizes for it
    ("CompiledFunction", "triton__0d1d2d3d4d5d"),
    ("fbgemm::permute_2D_sparse_data", "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int)"),
    ("Apex", "void cuComputePartGradGammaBeta<float, float, float, false>(float const*)"),
    ("vllm::moe_forward", "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<T> >()"),
    ("vllm::moe_forward", "void moe::dev::routing::routingIndicesHistogramKernel<T>()"),
    ("vllm::moe_forward", "void tensorrt_llm::kernels::quantize_with_block_size<T>()"),
    (None, "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>()"),
    ("sglang::store_cache", "void (anonymous namespace)::store_kvcache<2048l, 4, false, long>(T)"),
    ("_C::fused_add_rms_norm", "some_kernel"),
    ("aten::cudnn_convolution", "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>()"),
    (None, "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>()"),
    (None, "void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<64> > > >"),
    (None, "SubTensorOpWithScalar1d"),
    (None, "void cudnn::ops::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)0>()"),
    (None, "void cudnn::ops::nchwAddPaddingKernel<float, float, float, true>()"),
    (None, "void vllm::moe::moe_sum_kernel<c10::BFloat16, 4>(c10::BFloat16*)"),
    (None, "void multi_tensor_adam<float>(int)"),
    (None, "__amd_rocclr_copyBuffer"),
    # on CPUs: the operator, without those that it calls
    ("aten::add_", None),
    ("aten::linear", None),
    ("aten::scaled_dot_product_attention", None),
    ("AddmmBackward0", None),
    ("aten::empty", None),
    ("torchvision::nms_sort", None),
]
MAY_MULTIPLY = [
    ("aten::_grouped_mm", "_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm10INS_4gemm6kernel13G"),
    ("vllm::moe_forward", "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32"),
    (None, "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu"),
    (None, "linear_relu_square_kernel"),
    (None, "XXT_kernel"),
    (None, "_fused_mlp_silu_kernel"),
    (None, "fused_moe_kernel"),
    (None, "fwd_layer"),
    # with a normalisation, a softmax, an embedding or a cache in the same kernel
    (None, "void ck::kernel_batched_gemm_softmax_gemm_xdl_cshuffle_v1<T>(T)"),
    (None, "void cutlass::gemm::kernel::GemmLayernorm<T>(T)"),
    (None, "layernorm_gemm_fused"),
    (None, "embedding_matmul"),
    (None, "rope_attention_fused"),
    (None, "kv_cache_attention_kernel"),
    (None, "_rms_norm_linear_fused"),
    (None, "persistent_rmsnorm_qkv_kernel"),
    (None, "mega_mlp_rmsnorm_gateup_kernel"),
    (None, "triton_tem_fused_mm_0"),
    (None, "triton_tem_fused_flex_attention_1"),
    (None, "triton_red_fused_mm_7"),
    (None, "triton_per_fused_bmm_view_2"),
    (None, "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT"),
    (None, "void fbgemm_gpu::f8f8bf16_rowwise_gemm<T>()"),
    (None, "void regular_fft<256u, 16u>()"),
    ("my::operator", "void my_kernel<at::BFloat16, SiluFunctor>(float const*)"),  # silu of what is not said
    (None, None),
    ("aten::mkldnn_linear", None),
    ("aten::_weight_int4pack_mm", None),
    ("CompiledFunctionBackward", None),
    ("my::operator", None),
]


@pytest.mark.parametrize(("operator", "kernel"), MULTIPLY_NOTHING)
def test_what_multiplies_nothing(operator: str | None, kernel: str | None) -> None:
    assert has_no_flops(operator, kernel)


@pytest.mark.parametrize(("operator", "kernel"), MAY_MULTIPLY)
def test_what_may_multiply(operator: str | None, kernel: str | None) -> None:
    assert not has_no_flops(operator, kernel)
