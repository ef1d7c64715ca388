"""Kernels that communicate and are not NCCL's: what they are, matched over ranks, and split into wait and transfer.

Names as traces show them (Kineto and CUPTI, demangled), arrivals as made here.
"""

from pathlib import Path

import pytest
from builders import MS, US, Trace, analysed
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import with_slow

from commtrace.analysis.core.kinds import collective_in_name, kernel_kind, name_on_all_ranks
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.analysis import Analysis

BF16 = "__nv_bfloat16"
FUSION = "flashinfer::trtllm_allreduce_fusion"
PARAMS = f"{FUSION}::AllReduceFusionParams<{BF16}>"
PATTERN = f"({FUSION}::AllReduceFusionPattern)1"
STAGES = "vllm::RankData*, vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int"

VLLM_TWO_STAGES = f"void vllm::cross_device_reduce_2stage<{BF16}, 8>({STAGES})"
LAMPORT = f"void {FUSION}::allreduce_fusion_kernel_oneshot_lamport<{PATTERN}, {BF16}, 4, true, true>({PARAMS})"
MULTIMEM = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)"
TWO_SHOT = "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)"
UB_AG = "void userbuffers_fp16_sum_inplace_gpu_rw_ag<4>(int, int, int, int, int, int, int, void**, int, unsigned long)"
UB_RS = "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<4, __nv_fp8_e4m3>(int, int, int, int, int, int, int)"
UB_AR = "void userbuffers_fp16_sum_inplace_gpu_mc<4>(int, int, int, int, int, int, int, void**, int, float4*)"
NOTIFY = "void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*, int*, int, int, int, bool const*)"
DISPATCH = "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*, float*, int*, int*)"
CACHED = "void deep_ep::intranode::cached_notify_combine<(int)8>(void **, int *, int, int, int, int **)"
COMBINE = f"void deep_ep::intranode::combine<{BF16}, 8, 768, 4096>({BF16}*, float*, {BF16} const*)"
LL_DISPATCH = "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*, int*, long*, int*, void*)"
LL_COMBINE = "void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*, void*, int*, void*, void const*)"
NVSHMEM_BARRIER = "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)"
NVSHMEM_ALL_TO_ALL = "void alltoall_on_stream_kernel<float>(int, float*, float const*, unsigned long)"

WAITS_FOR_ALL = [
    (VLLM_TWO_STAGES, "all_reduce"),
    (f"void sglang::cross_device_reduce_1stage<{BF16}, 4>({STAGES})", "all_reduce"),
    ("void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8, false>(aiter::RankData*)", "all_reduce"),
    ("void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half>, __half>()", "all_reduce"),
    (LAMPORT, "all_reduce"),
    (f"void {FUSION}::allreduce_fusion_kernel_twoshot_sync<{PATTERN}, {BF16}, 8, false>({PARAMS})", "all_reduce"),
    ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<(unsigned char)8, half>()", "all_reduce"),
    ("void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8, true>(AllReduceParams)", "all_reduce"),
    ("void tensorrt_llm::kernels::lamport_style_one_shot_all_reduce_norm_kernel<half, 8>()", "all_reduce"),
    ("moereduce_allreduce_fusion_kernel_oneshot_lamport", "all_reduce"),
    ("void moeA2ADispatchKernel<8, false>(int const*, DispatchKernelPointers)", "all_to_all"),
    (f"void moeA2ACombineKernel<{BF16}, 8>(CombineKernelPointers, int)", "all_to_all"),
    (MULTIMEM, "all_reduce"),
    (TWO_SHOT, "all_reduce"),
    ("void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)", "all_reduce"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16, 8, false, false>(float**)", "all_reduce"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16, 8, true, false>(float**)", "reduce_scatter"),
    ("void <unnamed>::two_shot_all_reduce_kernel<float, (int)16, (int)8, (bool)1, (bool)0>(T1 **)", "reduce_scatter"),
    ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*, unsigned long)", "all_gather"),
    ("c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)", "barrier"),
    (UB_AG, "all_gather"),
    (UB_RS, "reduce_scatter"),
    (UB_AR, "all_reduce"),
    ("void userbuffers_fp16_sum_inplace_gpu_mc_rs<8>(int)", "reduce_scatter"),
    (NOTIFY, "barrier"),
    (CACHED, "barrier"),
    (DISPATCH, "all_to_all"),
    (COMBINE, "all_to_all"),
    (LL_DISPATCH, "all_to_all"),
    (LL_COMBINE, "all_to_all"),
    ("void deep_ep::internode_ll::clean_low_latency_buffer<256>(int*, int, int*, int)", "barrier"),
    ("void deep_ep::elastic::hybrid_dispatch_impl<8, 4>(void*)", "all_to_all"),
    ("void primus_turbo::deep_ep::intranode::dispatch<8, 1024, true>(HIP_vector_type<int, 4u>*)", "all_to_all"),
    ("void dpsk::ep::internode::notify_dispatch<false, 4>(int const*, long*)", "barrier"),
    ("void dpsk::ep::internode::dispatch_ll<true>(void*)", "all_to_all"),
    (NVSHMEM_BARRIER, "barrier"),
    (NVSHMEM_ALL_TO_ALL, "all_to_all"),
    ("void fcollect_on_stream_kernel<float>(int, float*)", "all_gather"),
    ("void rdxn_on_stream_kernel<float, (rdxn_ops)3>(int, float*)", "all_reduce"),
    ("void reducescatter_on_stream_kernel<float, (rdxn_ops)3>(int, float*)", "reduce_scatter"),
    ("c10d::nvshmem_extension::exchangeSplitAndOffset(long*, int, int)", "barrier"),
]

COMPUTE = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(float)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)",
    "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>(float*)",
    "triton_red_fused_cross_entropy_0",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>()",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64>>()",
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<float>()",  # the norm behind a two-shot all-reduce
    f"void {FUSION}::lamport_initialize_kernel<float>(float*, int)",
    "void deep_ep::layout::get_dispatch_layout<256, 4, 2>(long const*, int*)",
    "void deep_ep::layout::count_tokens<256>(long const*, int*)",
    "void deep_ep::internode::get_dispatch_layout<256>(long const*, int*)",
    "void dpsk::ep::cuda::get_dispatch_layout<256>(long const*)",
    "void deep_ep::elastic::dispatch_copy_epilogue_impl<true>(void*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<8>(void*)",
    "void cdpsk::ep::CUB_200200_900_NS::DeviceScanKernel<int>()",
    "void deep_gemm::fp8_gemm_kernel<deep_ep::intranode::Layout>()",
    "moeA2APrepareDispatchKernel(int*, int*, int, unsigned int*)",
    "void vllm::moe::moe_align_block_size_kernel<int>(int*)",
    "kuserbuffers_dummy()",
]


@pytest.mark.parametrize(("name", "collective"), WAITS_FOR_ALL)
def test_kernels_of_other_libraries(name, collective):
    assert kernel_kind(name) == "comm"
    assert collective_in_name(name) == collective


@pytest.mark.parametrize("name", COMPUTE)
def test_kernels_that_only_sound_alike_compute(name):
    assert kernel_kind(name) == "compute"
    assert name_on_all_ranks(name) is None


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send"),
        ("kuserbuffers_pullrecv(int, int, int, int, int*, int*, int4*, int4*, int)", "recv"),
        ("kuserbuffers_pushsendrecv_atomic(int*, int*, int4*, int4*, int, int)", "recv"),
        ("c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int, unsigned long)", "send"),
        ("c10d::symmetric_memory::wait_signal_kernel(unsigned int**, int, int, int, int, unsigned long)", "recv"),
        ("c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int, int)", "peer_copy"),
    ],
)
def test_of_what_has_a_peer_that_is_not_named_nothing_is_matched_or_split(tmp_path, name, collective):
    assert kernel_kind(name) == "comm"
    found = run_of(tmp_path, [[(name, 0, 50 * US)], [(name, 20 * US, 30 * US)]])
    assert found.calls["collective"].tolist() == [collective] * 2
    assert found.matches["matched_by"].tolist() == ["none"] * 2
    assert found.participation["wait_ns"].isna().all()


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        (VLLM_TWO_STAGES, "vllm::cross_device_reduce_2stage"),
        (MULTIMEM, "multimem_all_reduce_kernel"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclWork*)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclWork*)"),
        ("nvshmem_quiet_kernel", "nvshmem_quiet_kernel"),
        ("void my_fancy_exchange<8>()", None),
    ],
)
def test_what_all_ranks_of_a_collective_call_it(name, shared):
    assert name_on_all_ranks(name) == shared


# --- traces of known arrivals ----------------------------------------------------------------------------------------

Shown = tuple[str, int, int]  # name, start, duration


def run_of(folder: Path, shown: list[list[Shown]], *, grouped: bool = True, **kernel: object) -> Analysis:
    """The analysis of what each rank shows. Its header names the one process group, or none."""
    world = len(shown)
    groups = {"tp": range(world)} if grouped else None
    traces = [Trace(rank, world, groups=groups, device=rank, host="a") for rank in range(world)]
    for trace, kernels in zip(traces, shown, strict=True):
        for name, start, dur in kernels:
            trace.kernel(name, start, dur, **kernel)
    return analysed(folder, *traces)


def made(names: list[str], arrivals: list[list[int]], transfer: int) -> list[list[Shown]]:
    """By rank what a run shows whose k-th collective is `names[k]`, in which rank r arrives at arrivals[k][r]."""
    ends = [max(own) + transfer for own in arrivals]
    by_collective = [
        [(name, start, end - start) for start in own] for name, own, end in zip(names, arrivals, ends, strict=True)
    ]
    return [list(rank) for rank in zip(*by_collective, strict=True)]


def split(found: Analysis) -> list[list[tuple[int | None, int | None]]]:
    """By collective (wait, transfer) of its ranks."""
    by_collective: dict[int, list[Row]] = {}
    for row in records(found.participation.sort_values(["collective_id", "rank"])):
        by_collective.setdefault(row["collective_id"], []).append(row)
    return [[(row["wait_ns"], row["transfer_ns"]) for row in rows] for rows in by_collective.values()]


# A step has one of each; rank 0 is first and the last one another each time.
ARRIVALS = [[0, 40 * US, 15 * US, 5 * US], [3 * US, 8 * US, 60 * US, 20 * US], [2 * US, 9 * US, 4 * US, 33 * US]]


def some(name: str, *, ranks: int = 4, transfer: int = 12 * US, every: int = 1 * MS) -> list[list[Shown]]:
    """What ranks show of a kernel that runs once every millisecond, with arrivals that differ each time."""
    arrivals = [[k * every + us for us in ARRIVALS[k % 3][:ranks]] for k in range(6)]
    return made([name] * 6, arrivals, transfer)


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(
    ("name", "collective"),
    with_slow(
        [
            (VLLM_TWO_STAGES, "all_reduce"),
            (UB_AG, "all_gather"),
            (UB_RS, "reduce_scatter"),
            (NOTIFY, "barrier"),
            (NVSHMEM_ALL_TO_ALL, "all_to_all"),
        ],
        [
            (LAMPORT, "all_reduce"),
            (MULTIMEM, "all_reduce"),
            (TWO_SHOT, "all_reduce"),
            (UB_AR, "all_reduce"),
            (DISPATCH, "all_to_all"),
            (COMBINE, "all_to_all"),
            (NVSHMEM_BARRIER, "barrier"),
        ],
    ),
)
def test_they_are_matched_and_split(tmp_path, name, collective, grouped):
    found = run_of(tmp_path, some(name), grouped=grouped)
    table = found.collectives
    assert table["collective"].tolist() == [collective] * 6
    assert table["ranks"].tolist() == ["0 1 2 3"] * 6
    assert table["matched_by"].tolist() == ["order"] * 6
    assert table["complete"].all()
    assert table["certain"].all()
    expected = [[(max(own) - us, 12 * US) for us in own] for own in (ARRIVALS[k % 3] for k in range(6))]
    assert split(found) == expected
    assert table["last_rank"].tolist() == [1, 2, 3] * 2
    assert table["transfer_ns"].tolist() == [12 * US] * 6


@pytest.mark.parametrize("name", [VLLM_TWO_STAGES, DISPATCH])
def test_sizes_are_not_known_so_there_is_no_bandwidth(tmp_path, name):
    found = run_of(tmp_path, some(name, ranks=2))
    assert found.collectives["size_bytes"].isna().all()
    assert found.collectives["busbw_gb_per_s"].isna().all()
    assert len(found.bandwidth) == 0


def test_exposed_time_is_split_too(tmp_path):
    found = run_of(tmp_path, made([VLLM_TWO_STAGES], [[0, 40 * US]], 12 * US))
    by_rank = found.breakdown.sort_values("rank")
    assert by_rank["exposed_wait_ns"].tolist() == [40 * US, 0]
    assert by_rank["exposed_transfer_ns"].tolist() == [12 * US, 12 * US]


def test_replays_of_a_cuda_graph_match_in_their_order(tmp_path):
    # Kernels alone: no launch, no step, and the same two of them over and over, the windows not quite the same.
    names = [VLLM_TWO_STAGES.replace("2stage", "1stage"), VLLM_TWO_STAGES] * 6
    arrivals = [[k * 400 * US + us for us in ARRIVALS[k % 3]] for k in range(12)]
    shown = made(names, arrivals, 12 * US)
    shown[2] = shown[2][1:]
    shown[3] = shown[3][:-1]
    found = run_of(tmp_path, shown, launch=None)
    assert found.collectives["ranks"].tolist() == ["0 1 3"] + ["0 1 2 3"] * 10 + ["0 1 2"]
    whole = split(found)[1:-1]
    assert whole == [[(max(own) - us, 12 * US) for us in own] for own in (ARRIVALS[k % 3] for k in range(1, 11))]


def test_one_launch_of_a_graph_may_stand_for_all_its_kernels(tmp_path):
    shown = some(LAMPORT)
    traces = [Trace(rank, 4, groups={"tp": range(4)}, device=rank, host="a") for rank in range(4)]
    for trace, kernels in zip(traces, shown, strict=True):
        trace.step(3, 0, 10 * MS)
        trace.event("cuda_runtime", "cudaGraphLaunch", kernels[0][1], 5 * US, correlation=77, cbid=311)
        where = {"device": trace.device, "stream": 7, "correlation": 77}
        for name, start, dur in kernels:
            trace.event("kernel", name, start, dur, pid=trace.device, tid=7, **where)
    found = analysed(tmp_path, *traces)
    assert found.collectives["ranks"].tolist() == ["0 1 2 3"] * 6
    assert split(found) == [[(max(own) - us, 12 * US) for us in own] for own in (ARRIVALS[k % 3] for k in range(6))]


# --- DeepEP ----------------------------------------------------------------------------------------------------------

LAYER = [NOTIFY, DISPATCH, CACHED, COMBINE]


def test_a_layer_of_deep_ep(tmp_path):
    # The barrier of notify waits for the last rank; behind it dispatch waits for nobody, nor combine.
    arrivals = [[0, 50 * US], [60 * US, 60 * US], [200 * US, 130 * US], [210 * US, 210 * US]]
    found = run_of(tmp_path, made(LAYER, arrivals, 8 * US))
    assert found.collectives["collective"].tolist() == ["barrier", "all_to_all"] * 2
    waits = [[wait for wait, _ in own] for own in split(found)]
    assert waits == [[50 * US, 0], [0, 0], [0, 70 * US], [0, 0]]


def test_a_dispatch_is_no_combine_however_well_it_would_fit(tmp_path):
    # At the same time one rank shows a dispatch, and the other a combine.
    found = run_of(tmp_path, [[(DISPATCH, 0, 50 * US)], [(COMBINE, 20 * US, 30 * US)]])
    assert found.matches["matched_by"].tolist() == ["none"] * 2


def test_template_arguments_may_differ_between_ranks(tmp_path):
    cached = DISPATCH.replace("768, 8192", "512, 4096")
    found = run_of(tmp_path, [[(DISPATCH, 0, 50 * US)], [(cached, 20 * US, 30 * US)]])
    assert split(found) == [[(20 * US, 30 * US), (0, 30 * US)]]


def test_low_latency_kernels_wait_for_all_ranks(tmp_path):
    names = [LL_DISPATCH, LL_COMBINE] * 3
    arrivals = [[k * 300 * US + us for us in ARRIVALS[k % 3]] for k in range(6)]
    found = run_of(tmp_path, made(names, arrivals, 6 * US))
    assert found.calls["collective"].unique().tolist() == ["all_to_all"]
    assert split(found) == [[(max(own) - us, 6 * US) for us in own] for own in (ARRIVALS[k % 3] for k in range(6))]


def phases(tmp_path: Path, names: list[str]) -> list[str | None]:
    """What the calls of one rank are that shows these kernels one after the other."""
    shown = [(name, k * 100 * US, 10 * US) for k, name in enumerate(names)]
    row = [row["collective"] for row in records(run_of(tmp_path, [shown, []]).calls)]
    assert len(row) == len(names)
    return row


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("d c d c", ["all_to_all"] * 4),
        ("d d c c d d", ["send", "recv"] * 3),
        ("d c c d d c", ["recv", "send", "recv", "send", "recv", "send"]),
        ("d d c d c c", [None] * 6),  # two batches: their phases are mixed
        ("d d d d", [None] * 4),  # two with a hook, or four without
    ],
)
def test_with_a_hook_a_dispatch_is_two_kernels(tmp_path, shown, expected):
    names = {"d": LL_DISPATCH, "c": LL_COMBINE}
    assert phases(tmp_path, [names[letter] for letter in shown.split()]) == expected


def test_neither_phase_is_split(tmp_path):
    # Rank 0 sends and computes. That rank 1 sends meanwhile does not hold it up.
    names = [LL_DISPATCH, LL_DISPATCH, LL_COMBINE, LL_COMBINE]
    found = run_of(tmp_path, made(names, [[k * 100 * US, k * 100 * US + 5 * US] for k in range(4)], 8 * US))
    assert found.matches["matched_by"].tolist() == ["none"] * 8
    assert found.participation["wait_ns"].isna().all()
    assert found.matches["note"].tolist() == ["its peer is not known"] * 8


# --- whatever the arrivals are ---------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=12)
@given(
    arrivals=st.lists(st.lists(st.integers(0, 90), min_size=3, max_size=3), min_size=1, max_size=8),
    names=st.data(),
)
def test_a_wait_lasts_until_the_last_rank_arrives(tmp_path_factory, arrivals, names):
    kernels = [names.draw(st.sampled_from([VLLM_TWO_STAGES, LAMPORT, UB_AG, DISPATCH, NOTIFY])) for _ in arrivals]
    starts = [[k * 500 * US + us * US for us in own] for k, own in enumerate(arrivals)]
    found = run_of(tmp_path_factory.mktemp("run"), made(kernels, starts, 30 * US))
    assert split(found) == [[((max(own) - us) * US, 30 * US) for us in own] for own in arrivals]
