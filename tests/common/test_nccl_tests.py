"""The formulas against what nccl-tests itself printed, on other people's machines."""

import pytest

from commtrace.common.nccl_tests import NoFormula, bus_factor, collective_name, dtype_name, item_bytes, size_elems

# (collective, ranks, dtype, size (B), count (elements), time (us), algbw (GB/s), busbw (GB/s)) as printed.
PUBLISHED = [
    # coreweave/nccl-tests pull request 43: all_reduce_perf on one GB200 NVL72 rack, ranks 0 to 71.
    ("all_reduce", 72, "float32", 536870912, 134217728, "1806.7", "297.16", "586.06"),
    ("all_reduce", 72, "float32", 1073741824, 268435456, "3108.8", "345.38", "681.17"),
    ("all_reduce", 72, "float32", 8589934592, 2147483648, "20299", "423.16", "834.57"),
    # NVIDIA/nccl-tests issue 78: all_reduce_perf, mpirun -n 256, NCCL 2.8.4.
    ("all_reduce", 256, "float32", 33554432, 8388608, "1464.2", "22.92", "45.65"),
    ("all_reduce", 256, "float32", 67108864, 16777216, "2659.1", "25.24", "50.28"),
    ("all_reduce", 256, "float32", 134217728, 33554432, "4263.8", "31.48", "62.71"),
    # NVIDIA/dgx-spark-playbooks pull request 103: nccl-tests 2.20.0, all_reduce_perf on ranks 0 and 1.
    ("all_reduce", 2, "float32", 32768, 8192, "39.56", "0.83", "0.83"),
    # NVIDIA/nccl issue 1435: all_gather_perf -g 2 -d bfloat16; out of place, then in place.
    ("all_gather", 2, "bfloat16", 16777216, 4194304, "108.8", "154.20", "77.10"),
    ("all_gather", 2, "bfloat16", 16777216, 4194304, "98.19", "170.86", "85.43"),
    ("all_gather", 2, "bfloat16", 67108864, 16777216, "256.5", "261.63", "130.82"),
    # Example output in a public guide to all_gather_perf on two GKE hosts of 8 GPUs (TCPX).
    ("all_gather", 16, "float32", 134217728, 2097152, "1940.8", "69.15", "64.83"),
    ("all_gather", 16, "float32", 268435456, 4194304, "3624.3", "74.07", "69.44"),
    # NVIDIA/nccl issue 2169: nccl-tests 2.17.8, NCCL 2.30.4, mpirun -np 4 alltoall_perf on H100; both places.
    ("all_to_all", 4, "float32", 524288000, 32768000, "1174.14", "446.53", "334.90"),
    ("all_to_all", 4, "float32", 524288000, 32768000, "1163.40", "450.65", "337.99"),
    # ROCm/rccl pull request 2075: rccl-tests (the same formulas) on 2 GPUs.
    ("all_to_all", 2, "float32", 134217728, 16777216, "10580", "12.69", "6.34"),
    ("broadcast", 2, "float32", 134217728, 33554432, "18781", "7.15", "7.15"),
    ("broadcast", 2, "float32", 524288, 131072, "84.62", "6.20", "6.20"),
    # NVIDIA/nccl-tests issue 128: reduce_scatter_perf on two nodes of 4 GPUs; small sizes, both places.
    ("reduce_scatter", 8, "float32", 256, 8, "24.01", "0.01", "0.01"),
    ("reduce_scatter", 8, "float32", 128, 4, "25.35", "0.01", "0.00"),
    # A published run of nccl-tests 2.18.0, NCCL 2.29.7: reduce_scatter_perf, ranks 0 and 1 on one RTX 5090.
    ("reduce_scatter", 2, "float32", 4194304, 524288, "2227.18", "1.88", "0.94"),
    ("reduce_scatter", 2, "float32", 8388608, 1048576, "2264.51", "3.70", "1.85"),
    # NVIDIA/nccl-tests issue 214: sendrecv_perf, two nodes of one A40 each.
    ("send_recv", 2, "float32", 4096, 1024, "30.74", "0.13", "0.13"),
    ("send_recv", 2, "float32", 8192, 2048, "31.76", "0.26", "0.26"),
]  # fmt: skip
ONE_PER_RANK = {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}


def agrees(value: float, factor: float, time: str, printed: str) -> bool:
    """Could `value / time` have been printed so, given that the time is rounded to its last printed digit too?"""
    half = 0.5 * 10 ** -len(time.partition(".")[2])
    low, high = (factor * value / (float(time) + sign * half) for sign in (1, -1))
    return low - 0.005 <= float(printed) <= high + 0.005


@pytest.mark.parametrize(("collective", "ranks", "dtype", "size", "count", "time", "algbw", "busbw"), PUBLISHED)
def test_bandwidth_is_what_nccl_tests_prints(collective, ranks, dtype, size, count, time, algbw, busbw):
    assert agrees(size / 1e3, 1, time, algbw)
    assert agrees(size / 1e3, bus_factor(collective, ranks), time, busbw)


@pytest.mark.parametrize(("collective", "ranks", "dtype", "size", "count", "time", "algbw", "busbw"), PUBLISHED)
def test_size_is_what_nccl_tests_prints(collective, ranks, dtype, size, count, time, algbw, busbw):
    # `count` there is one rank's share of what is shared out, and the whole array otherwise.
    share, whole = (count, count * ranks) if collective in ONE_PER_RANK else (count, count)
    given, got = {
        "all_gather": (share, whole),
        "reduce_scatter": (whole, share),
        "all_to_all": (whole, whole),
    }.get(collective, (share, share))
    assert size_elems(collective, given, got) * item_bytes(dtype) == size


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 72, 1000])
def test_bus_factors(ranks):
    assert bus_factor("all_reduce", ranks) == pytest.approx(2 * (ranks - 1) / ranks, rel=1e-15)
    for collective in ONE_PER_RANK:
        assert bus_factor(collective, ranks) == pytest.approx((ranks - 1) / ranks, rel=1e-15)
    for collective in ("broadcast", "reduce", "send", "recv", "send_recv", "peer_copy"):
        assert bus_factor(collective, ranks) == 1


def test_an_uneven_all_to_all_is_as_large_as_the_larger_side():
    assert size_elems("all_to_all", 10, 90) == 90
    assert size_elems("all_to_all", 90, 10) == 90


def test_gather_and_scatter_are_as_large_as_the_roots_side():
    assert size_elems("gather", 10, 80) == 80
    assert size_elems("scatter", 80, 10) == 80


def test_what_has_no_formula():
    with pytest.raises(NoFormula, match="all_shuffle"):
        bus_factor("all_shuffle", 4)
    with pytest.raises(NoFormula, match="all_shuffle"):
        size_elems("all_shuffle", 4, 4)
    with pytest.raises(NoFormula, match="float4"):
        item_bytes("float4")


@pytest.mark.parametrize(
    ("recorded", "dtype", "size"),
    [
        ("Byte", "uint8", 1), ("Char", "int8", 1), ("Bool", "bool", 1), ("Short", "int16", 2), ("Half", "float16", 2),
        ("BFloat16", "bfloat16", 2), ("Int", "int32", 4), ("Float", "float32", 4), ("Long", "int64", 8),
        ("Double", "float64", 8), ("ComplexFloat", "complex64", 8), ("ComplexDouble", "complex128", 16),
        ("Float8_e4m3fn", "float8_e4m3fn", 1), ("Float8_e5m2", "float8_e5m2", 1),
        ("Float8_e4m3fnuz", "float8_e4m3fnuz", 1), ("Float8_e5m2fnuz", "float8_e5m2fnuz", 1),
        ("Float8_e8m0fnu", "float8_e8m0fnu", 1), ("c10::Float8_e4m3fn", "float8_e4m3fn", 1),
        ("float", "float32", 4), ("double", "float64", 8), ("c10::Half", "float16", 2),
        ("c10::BFloat16", "bfloat16", 2), ("int", "int32", 4), ("long int", "int64", 8), ("long", "int64", 8),
        ("unsigned char", "uint8", 1), ("signed char", "int8", 1), ("bool", "bool", 1),
        ("c10::complex<float>", "complex64", 8), ("UInt16", "uint16", 2), ("UInt64", "uint64", 8),
    ],
)  # fmt: skip
def test_dtypes_of_arguments_and_annotations(recorded, dtype, size):
    assert dtype_name(recorded) == dtype
    assert item_bytes(dtype) == size


@pytest.mark.parametrize("recorded", [None, "", "Scalar", "TensorList", "QInt8", "nonsense"])
def test_what_is_no_dtype_is_not_guessed(recorded):
    assert dtype_name(recorded) is None


@pytest.mark.parametrize(
    ("recorded", "collective"),
    [
        ("allreduce", "all_reduce"), ("all_reduce", "all_reduce"), ("allreduce_coalesced", "all_reduce"),
        ("allreduce_sparse", "all_reduce"), ("all_gather", "all_gather"), ("_allgather_base", "all_gather"),
        ("_all_gather_base", "all_gather"), ("all_gather_into_tensor", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"), ("allgather_coalesced", "all_gather"),
        ("reduce_scatter", "reduce_scatter"), ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor", "reduce_scatter"), ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_all", "all_to_all"), ("all_to_allv", "all_to_all"), ("alltoall_base", "all_to_all"),
        ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("_broadcast_oop", "broadcast"), ("reduce", "reduce"),
        ("_reduce_oop", "reduce"), ("gather", "gather"), ("scatter", "scatter"), ("barrier", "barrier"),
        ("send", "send"), ("recv", "recv"), ("send 0->1", "send"), ("recv 1<-0", "recv"),
        ("recvAnysource", "recv"), ("ALLREDUCE", "all_reduce"),
    ],
)  # fmt: skip
def test_names_of_collectives(recorded, collective):
    assert collective_name(recorded) == collective


@pytest.mark.parametrize("recorded", ["", "wait", "coalesced", "init", "something_new", "end"])
def test_what_is_no_collective_is_not_guessed(recorded):
    assert collective_name(recorded) is None
