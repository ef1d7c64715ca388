"""Every communication activity with its metadata: from the best source there is, and nothing guessed."""

from itertools import chain
from random import Random

import pandas as pd
import pytest
from builders import BASE_NS, MS, US, Trace, comm_args

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.opening import analyse, load_run
from commtrace.analysis.run.run import Run
from commtrace.analysis.tables.calls import found_calls

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def rows_of(folder, *traces: Trace, comm_names=()) -> list[Row]:
    for trace in traces:
        trace.write(folder)
    table = calls_of(load_run([folder], comm_names=comm_names))
    assert table["call_id"].tolist() == list(range(len(table)))
    early = analyse(folder, comm_names=comm_names).early
    if early is not None:
        pd.testing.assert_frame_equal(early.found.calls, table)
    return records(table)


def calls_of(run: Run) -> pd.DataFrame:
    return found_calls(run).calls


def row_of(folder, trace: Trace, **options) -> Row:
    (row,) = rows_of(folder, trace, **options)
    return row


def picked(row: Row, *keys: str) -> tuple:
    return tuple(row[key] for key in keys)


# --- the ladder ------------------------------------------------------------------------------------------------------


def test_arguments_of_the_kernel(tmp_path):
    row = row_of(
        tmp_path,
        Trace(1, 2, groups={"0": [0, 1]}).step(4, 0, 9 * MS).nccl("all_reduce", 2 * MS, 1 * MS, elems=5, Seq=9),
    )
    assert row == {
        "call_id": 0, "rank": 1, "cycle": 0, "device": "0", "stream": 20, "step": 4, "name": "ncclDevKernel_Generic",
        "collective": "all_reduce", "process_group": "0", "pg_ranks": "0 1", "group_size": 2, "dtype": "float32",
        "in_elems": 5, "out_elems": 5, "in_split": "[]", "out_split": "[]", "size_bytes": 20, "seq": 9, "turn": 0,
        "batch": None, "comms_id": None, "root": None, "issue_ns": BASE_NS + 2 * MS,
        "start_ns": BASE_NS + 2 * MS, "dur_ns": 1 * MS, "metadata_from": "kernel",
        "partial": None,
    }  # fmt: skip


def test_the_record_of_the_kernels_external_id(tmp_path):
    trace = (
        Trace(world=2)
        .kernel(KERNEL, 2 * MS, 1 * MS, external_id=55)
        .record("all_to_all", 1 * MS, external_id=55, elems=8)
    )
    row = row_of(tmp_path, trace)
    assert picked(row, "collective", "size_bytes", "metadata_from") == ("all_to_all", 32, "record_param_comms")


def test_the_record_of_the_launchs_external_id(tmp_path):
    trace = Trace(world=2).kernel(KERNEL, 2 * MS, 1 * MS, launch_external_id=55)
    row = row_of(tmp_path, trace.record("all_gather", 1 * MS, external_id=55, elems=8))
    assert picked(row, "collective", "size_bytes", "metadata_from") == ("all_gather", 32, "record_param_comms")


def test_the_annotation_around_the_launch(tmp_path):
    trace = Trace(world=2).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    trace.annotation("nccl:all_to_all", 1 * MS, 2 * MS, dims=[[6, 4]], types=["float"])
    row = row_of(tmp_path, trace)
    assert picked(row, "collective", "dtype", "in_elems", "out_elems", "size_bytes", "metadata_from") == (
        "all_to_all", "float32", 24, 24, 96, "annotation",
    )  # fmt: skip


def test_the_name_of_the_kernel_tells_the_collective_only(tmp_path):
    row = row_of(tmp_path, Trace(world=2).kernel("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)", 0, 1 * MS))
    assert picked(row, "collective", "dtype", "size_bytes", "metadata_from") == ("reduce_scatter", None, None, "name")


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", "all_gather"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL()", "reduce"),
        ("ncclSymkDevKernel_ReduceScatter_LD", "reduce_scatter"),
        ("void multimem_all_reduce_kernel<c10::BFloat16>()", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>()", "all_reduce"),
        (KERNEL, None),
        ("ncclDevKernel_Generic_2(ncclDevKernelArgsStorage<4096ul>)", None),
        ("void deep_ep::internode::combine<8>()", "all_to_all"),
    ],
)
def test_names_of_kernels(tmp_path, name, collective):
    row = row_of(tmp_path, Trace(world=2).kernel(name, 0, 1 * MS, launch=None))
    assert picked(row, "collective", "metadata_from") == (collective, "name" if collective else "none")
    assert row["dtype"] is None


def test_kernels_from_before_the_window_count_without_metadata(tmp_path):
    row = row_of(tmp_path, Trace(world=2).kernel("ncclDevKernel_Generic", 5, 1 * MS, launch=None))
    assert picked(row, "issue_ns", "collective", "size_bytes", "step", "metadata_from") == (
        None,
        None,
        None,
        None,
        "none",
    )


def test_the_best_source_wins(tmp_path):
    trace = Trace(world=2).kernel(
        KERNEL, 5 * MS, 1 * MS, launch=2 * MS, external_id=55, args=comm_args("all_reduce", 3)
    )
    trace.record("all_to_all", 1 * MS, external_id=55, elems=8)
    trace.annotation("nccl:broadcast", 1 * MS, 2 * MS, dims=[[7]], types=["float"])
    assert picked(row_of(tmp_path, trace), "collective", "in_elems", "metadata_from") == ("all_reduce", 3, "kernel")


# --- External id that is only the correlation ------------------------------------------------------------------------


def test_an_external_id_equal_to_the_correlation_names_no_operator(tmp_path):
    trace = Trace(world=2, next_id=74).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS, external_id=74)
    trace.record("broadcast", 8 * MS, external_id=74)
    trace.annotation("nccl:all_to_all", 1 * MS, 2 * MS, dims=[[6]], types=["long int"])
    assert picked(row_of(tmp_path, trace), "collective", "size_bytes", "metadata_from") == (
        "all_to_all",
        48,
        "annotation",
    )


def test_nor_does_that_of_the_launch(tmp_path):
    # As torch ~2.0 writes it: External id and correlation are one number on kernel and launch.
    trace = Trace(world=2, next_id=74).kernel(
        KERNEL, 5 * MS, 1 * MS, launch=2 * MS, external_id=74, launch_external_id=74
    )
    trace.record("broadcast", 8 * MS, external_id=74)
    trace.annotation("nccl:all_to_all", 1 * MS, 2 * MS, dims=[[6]], types=["long int"])
    assert picked(row_of(tmp_path, trace), "collective", "size_bytes", "metadata_from") == (
        "all_to_all",
        48,
        "annotation",
    )


# --- annotations -----------------------------------------------------------------------------------------------------


def around(collective: str, operator: str, given: list[int], got: list[int], types: str = "float") -> Trace:
    """A kernel under an annotation with its input, inside the c10d operator, which has both; old torch has no more."""
    trace = Trace(world=16).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    trace.annotation(f"nccl:{collective}", 1 * MS + 50 * US, 2 * MS, dims=[given], types=[types])
    return trace.c10d(operator, 1 * MS, 3 * MS, dims=[got, given, []], types=[types, types, ""])


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (around("_reduce_scatter_base", "_reduce_scatter_base_", [64, 3], [8, 3]), ("reduce_scatter", 192, 24, 8, 768)),
        (around("_all_gather_base", "_allgather_base_", [8, 3], [64, 3]), ("all_gather", 24, 192, 8, 768)),
        (around("all_to_all", "alltoall_base_", [10], [14]), ("all_to_all", 10, 14, None, 56)),
        (around("all_to_all", "alltoall_base_", [14], [10]), ("all_to_all", 14, 10, None, 56)),
    ],
    ids=["reduce_scatter", "all_gather", "all_to_all that gets more", "all_to_all that gets less"],
)
def test_the_operator_around_an_annotation_tells_the_output(tmp_path, made, expected):
    call = row_of(tmp_path, made)
    columns = ("collective", "in_elems", "out_elems", "group_size", "size_bytes")
    assert tuple(call[column] for column in columns) == expected


def test_an_operator_of_another_shape_tells_nothing(tmp_path):
    """Before torch 2.1, lists of tensors are `[]` there."""
    trace = Trace(world=16).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    trace.annotation("nccl:all_gather", 1 * MS + 50 * US, 2 * MS, dims=[[6]], types=["float"])
    call = row_of(tmp_path, trace.c10d("_allgather_base_", 1 * MS, 3 * MS, dims=[[], [], []], types=[]))
    assert (call["in_elems"], call["out_elems"], call["size_bytes"]) == (6, None, None)


def test_a_reduce_scatter_has_its_array_handed_in(tmp_path):
    trace = Trace(world=16).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    trace.annotation("nccl:_reduce_scatter_base", 1 * MS, 2 * MS, dims=[[64, 3]], types=["float"])
    call = row_of(tmp_path, trace)
    assert (call["out_elems"], call["size_bytes"]) == (None, 768)


def test_an_annotation_around_two_kernels_tells_no_size(tmp_path):
    trace = (
        Trace(world=2).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS).kernel(KERNEL, 7 * MS, 1 * MS, launch=2 * MS + 5)
    )
    trace.annotation("nccl:all_reduce", 1 * MS, 3 * MS, dims=[[6], [8]], types=["float", "float"])
    rows = rows_of(tmp_path, trace)
    assert [picked(r, "collective", "size_bytes", "metadata_from") for r in rows] == [
        ("all_reduce", None, "annotation")
    ] * 2


def test_an_annotation_of_several_tensors_tells_their_sum(tmp_path):
    trace = Trace(world=2).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    trace.annotation("nccl:all_reduce", 1 * MS, 3 * MS, dims=[[6], [2, 4]], types=["float", "float"])
    assert row_of(tmp_path, trace)["size_bytes"] == 14 * 4


@pytest.mark.parametrize(
    ("dims", "size_bytes"), [([[[6], [2, 4]]], 56), ([[6], []], 28), ([[2**40, 2**40]], None), ([[-3]], None)]
)
def test_shapes_of_lists_and_shapes_that_no_memory_holds(tmp_path, dims, size_bytes):
    trace = Trace(world=2).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    trace.annotation("nccl:all_reduce", 1 * MS, 3 * MS, dims=dims, types=["float"])
    assert row_of(tmp_path, trace)["size_bytes"] == size_bytes


def test_an_annotation_without_shapes_tells_the_collective(tmp_path):
    trace = Trace(world=2).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS).annotation("nccl:all_to_all", 1 * MS, 3 * MS)
    assert picked(row_of(tmp_path, trace), "collective", "size_bytes", "dtype") == ("all_to_all", None, None)


def test_an_annotation_of_mixed_types_tells_no_size(tmp_path):
    trace = Trace(world=2).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    trace.annotation("nccl:all_reduce", 1 * MS, 3 * MS, dims=[[6], [2]], types=["float", "long int"])
    assert picked(row_of(tmp_path, trace), "dtype", "size_bytes") == (None, None)


def test_fp8_shapes_of_an_annotation(tmp_path):
    trace = Trace(world=2).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    trace.annotation("nccl:all_to_all", 1 * MS, 3 * MS, dims=[[600]], types=["c10::Float8_e4m3fn"])
    assert picked(row_of(tmp_path, trace), "dtype", "size_bytes") == ("float8_e4m3fn", 600)


@pytest.mark.parametrize(("start", "thread"), [(3 * MS, 4242), (1 * MS, 77)], ids=["too late", "another thread"])
def test_an_annotation_elsewhere_is_not_that_of_the_launch(tmp_path, start, thread):
    trace = Trace(world=2).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    trace.annotation("nccl:all_to_all", start, 5 * MS, dims=[[6]], types=["float"], thread=thread)
    assert row_of(tmp_path, trace)["metadata_from"] == "none"


def test_the_innermost_annotation_counts(tmp_path):
    trace = Trace(world=2).kernel(KERNEL, 9 * MS, 1 * MS, launch=3 * MS)
    trace.annotation("nccl:coalesced", 1 * MS, 5 * MS).annotation(
        "nccl:all_to_all", 2 * MS, 2 * MS, dims=[[6]], types=["float"]
    )
    trace.annotation("nccl:broadcast", 2 * MS, 500 * US, dims=[[1]], types=["float"])
    assert row_of(tmp_path, trace)["collective"] == "all_to_all"


def test_collectives_that_were_coalesced(tmp_path):
    """Their own annotation holds no launch: that comes with the end of the group. Another call was before."""
    trace = Trace(world=2).kernel(KERNEL, 5 * MS, 1 * MS, launch=1 * MS + 10 * US)
    trace.record("all_gather", 1 * MS, external_id=1, elems=8).annotation("nccl:all_gather", 1 * MS + 5 * US, 12 * US)
    trace.record("all_reduce", 2 * MS, external_id=2, elems=6).annotation(
        "nccl:allreduce_coalesced", 2 * MS + 5 * US, 12 * US
    )
    trace.annotation("nccl:coalesced", 3 * MS, 1 * MS).kernel(KERNEL, 7 * MS, 1 * MS, launch=3 * MS + 10 * US)
    first, second = rows_of(tmp_path, trace)
    assert picked(first, "metadata_from") == ("annotation",)
    assert picked(second, "collective", "size_bytes", "issue_ns", "metadata_from") == (
        "all_reduce", 24, BASE_NS + 3 * MS + 10 * US, "record_param_comms",
    )  # fmt: skip


def test_a_call_whose_kernel_was_lost_is_no_part_of_a_batch_after_the_next(tmp_path):
    trace = Trace(world=2).record("all_reduce", 1 * MS, external_id=1, elems=6)
    trace.annotation("nccl:all_reduce", 1 * MS + 5 * US, 12 * US)
    trace.record("broadcast", 2 * MS, external_id=2, elems=8).annotation("nccl:broadcast", 2 * MS + 5 * US, 12 * US)
    trace.kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS + 10 * US, launch_external_id=2)
    trace.record("send", 3 * MS, external_id=3, elems=2).record("recv", 3 * MS + 30 * US, external_id=4, elems=2)
    trace.annotation("nccl:coalesced", 4 * MS, 1 * MS).kernel(KERNEL, 7 * MS, 1 * MS, launch=4 * MS + 10 * US)
    trace.record("all_reduce", 6 * MS, external_id=5, elems=9).annotation("nccl:x", 6 * MS + 5 * US, 12 * US)
    trace.annotation("nccl:coalesced", 6 * MS + 50 * US, 1 * MS)
    trace.kernel(KERNEL, 9 * MS, 1 * MS, launch=6 * MS + 60 * US)
    assert [row["collective"] for row in rows_of(tmp_path, trace)] == ["broadcast", "send", "recv", "all_reduce"]


def test_a_send_of_its_own_is_no_part_of_the_batch_after_it(tmp_path):
    """torch writes no annotation for a single send; its launch says that its group of NCCL is over."""
    trace = Trace(world=2).record("send", 1 * MS, external_id=51, elems=6)
    trace.kernel(KERNEL, 5 * MS, 1 * MS, launch=1 * MS + 10 * US, external_id=51)
    trace.record("send", 3 * MS, external_id=52, elems=2).record("recv", 3 * MS + 30 * US, external_id=53, elems=2)
    trace.annotation("nccl:coalesced", 4 * MS, 1 * MS).kernel(KERNEL, 7 * MS, 1 * MS, launch=4 * MS + 10 * US)
    assert [(row["collective"], row["in_elems"]) for row in rows_of(tmp_path, trace)] == [
        ("send", 6),
        ("send", 2),
        ("recv", 2),
    ]


@pytest.mark.parametrize(
    ("name", "dims", "collective", "elems", "size"),
    [
        ("nccl:_all_gather_base", [[5]], "all_gather", (5, 20), 80),
        ("nccl:all_gather", [[5]], "all_gather", (5, 20), 80),
        ("nccl:_reduce_scatter_base", [[20]], "reduce_scatter", (20, 5), 80),
        ("nccl:broadcast", [[5]], "broadcast", (5, 5), 20),
        ("nccl:reduce", [[5]], "reduce", (5, 5), 20),
    ],
)
def test_output_elements_follow_from_the_group(tmp_path, name, dims, collective, elems, size):
    trace = Trace(world=4, groups={"0": [0, 1, 2, 3]}).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    row = row_of(tmp_path, trace.annotation(name, 1 * MS, 2 * MS, dims=dims, types=["float"]))
    assert picked(row, "collective", "size_bytes", "group_size") == (collective, size, 4)
    assert picked(row, "in_elems", "out_elems") == elems


def test_without_the_group_they_do_not(tmp_path):
    trace = Trace(world=4).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    row = row_of(tmp_path, trace.annotation("nccl:_all_gather_base", 1 * MS, 2 * MS, dims=[[5]], types=["float"]))
    assert picked(row, "in_elems", "out_elems", "size_bytes") == (5, None, None)


# --- versions of the metadata, sizes, dtypes -------------------------------------------------------------------------


def test_keys_of_torch_2_2(tmp_path):
    args = {
        "Collective name": "_allgather_base",
        "In msg size": 5,
        "Out msg size": 20,
        "Group size": 4,
        "dtype": "BFloat16",
    }
    row = row_of(tmp_path, Trace(world=4).kernel(KERNEL, 0, 1 * MS, args=args))
    assert picked(row, "collective", "group_size", "process_group", "size_bytes", "metadata_from") == (
        "all_gather", 4, None, 40, "kernel",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("collective", "given", "got", "size"),
    [
        ("all_reduce", 40, 40, 160),
        ("all_gather", 10, 40, 160),
        ("reduce_scatter", 40, 10, 160),
        ("all_to_all", 40, 40, 160),
        ("broadcast", 40, 40, 160),
        ("reduce", 40, 40, 160),
        ("gather", 10, 40, 160),
        ("scatter", 40, 10, 160),
        ("send", 40, 40, 160),
        ("recv", 40, 40, 160),
        ("barrier", 0, 0, 0),
    ],
)
def test_size_is_the_whole_array(tmp_path, collective, given, got, size):
    ranks = [0, 1, 2, 3]
    row = row_of(tmp_path, Trace(world=4).nccl(collective, 0, 1 * MS, elems=40, ranks=ranks))
    assert picked(row, "collective", "in_elems", "out_elems", "size_bytes") == (collective, given, got, size)


def test_an_uneven_all_to_all_is_as_large_as_its_larger_side(tmp_path):
    trace = Trace(world=2).nccl(
        "all_to_all", 0, 1 * MS, **{"In msg nelems": 30, "Out msg nelems": 50, "In split size": "[10, 20]"}
    )
    assert row_of(tmp_path, trace)["size_bytes"] == 200


@pytest.mark.parametrize(
    ("dtype", "name", "size"),
    [("Float8_e4m3fn", "float8_e4m3fn", 8), ("Char", "int8", 8), ("BFloat16", "bfloat16", 16), ("Long", "int64", 64)],
)
def test_dtypes(tmp_path, dtype, name, size):
    row = row_of(tmp_path, Trace(world=2).nccl("all_reduce", 0, 1 * MS, elems=8, dtype=dtype))
    assert picked(row, "dtype", "size_bytes") == (name, size)


def test_an_unknown_dtype_has_no_size_and_is_no_error(tmp_path):
    row = row_of(tmp_path, Trace(world=2).nccl("all_reduce", 0, 1 * MS, dtype="Float3_e1m1"))
    assert picked(row, "collective", "dtype", "size_bytes") == ("all_reduce", None, None)


def test_an_unknown_collective_has_no_size_and_is_no_error(tmp_path):
    row = row_of(tmp_path, Trace(world=2).nccl("all_reduce", 0, 1 * MS, **{"Collective name": "all_shuffle"}))
    assert picked(row, "collective", "dtype", "size_bytes") == (None, "float32", None)


def test_a_comms_id_keeps_every_digit(tmp_path):
    row = row_of(tmp_path, Trace(world=2).nccl("all_reduce", 0, 1 * MS, **{"Comms Id": 2**64 - 59}))
    assert row["comms_id"] == "18446744073709551557"


# --- process groups, roots and peers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["[]", "[" + ", ".join(map(str, range(30))) + ", ...]"], ids=["empty", "cut"])
def test_ranks_missing_in_the_event_come_from_the_header(tmp_path, text):
    ranks = list(range(0, 80, 2))
    trace = Trace(0, 80, groups={"0": list(range(80)), "dp": ranks})
    row = row_of(
        tmp_path, trace.nccl("all_reduce", 0, 1 * MS, group="dp", ranks=ranks, **{"Process Group Ranks": text})
    )
    assert row["pg_ranks"] == " ".join(map(str, ranks))
    assert row["group_size"] == 40


def test_a_header_that_does_not_fit_the_group_size_is_not_believed(tmp_path):
    trace = Trace(0, 8, groups={"dp": [0, 1, 2]})
    row = row_of(
        tmp_path, trace.nccl("all_reduce", 0, 1 * MS, group="dp", ranks=[0, 1], **{"Process Group Ranks": "[]"})
    )
    assert picked(row, "pg_ranks", "group_size") == (None, 2)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
def test_the_root_is_a_global_rank(tmp_path, collective):
    ranks = [4, 5, 6, 7]
    trace = Trace(4, 8).kernel(KERNEL, 1 * MS, 1 * MS, external_id=9, args=comm_args(collective, 8, ranks=ranks))
    trace.record(collective, 0, external_id=9, elems=8, ranks=ranks, Rank=2)
    assert picked(row_of(tmp_path, trace), "root", "metadata_from") == (6, "kernel")


def test_other_collectives_have_no_root(tmp_path):
    trace = Trace(1, 2).kernel(KERNEL, 1 * MS, 1 * MS, external_id=9).record("all_reduce", 0, external_id=9, Rank=1)
    assert row_of(tmp_path, trace)["root"] is None


def test_peers_of_sends_and_receives(tmp_path):
    send = Trace(0, 2).nccl("send", 0, 1 * MS, **{"Rank": 1, "Dst Rank": 1})
    recv = Trace(1, 2).nccl("recv", 0, 1 * MS, **{"Rank": 0, "Src Rank": 0})
    assert [picked(r, "collective", "root") for r in rows_of(tmp_path, send, recv)] == [("send", 1), ("recv", 0)]


@pytest.mark.parametrize("ranks", [[2, 3], [0, 2, 4, 6]], ids=str)
def test_the_destination_in_a_subgroup_is_a_global_rank_already(tmp_path, ranks):
    # torch's util.cpp: Rank is the peer within the group, Dst Rank and Src Rank its global rank.
    send = Trace(ranks[0], 8).nccl("send", 0, 1 * MS, ranks=ranks, **{"Rank": 1, "Dst Rank": ranks[1]})
    recv = Trace(ranks[1], 8).nccl("recv", 0, 1 * MS, ranks=ranks, **{"Rank": 0, "Src Rank": ranks[0]})
    assert [picked(r, "rank", "root") for r in rows_of(tmp_path, send, recv)] == [
        (ranks[0], ranks[1]),
        (ranks[1], ranks[0]),
    ]


@pytest.mark.quick_cases("1")
@pytest.mark.parametrize("seed", range(4))
def test_of_a_message_that_names_both_ends_the_peer_is_the_other_one(tmp_path, seed):
    draw = Random(seed)
    for on_kernel in (True, False):
        world = draw.randint(3, 9)
        traces = [Trace(rank, world, groups={"0": list(range(world))}) for rank in range(world)]
        messages = [draw.sample(range(world), 2) for _ in range(draw.randint(1, 20))]
        for at, (source, target) in enumerate(messages):
            args = {"ranks": range(world), "Src Rank": source, "Dst Rank": target}
            for rank, name in ((source, "send"), (target, draw.choice(["recv", "recvAnySource"]))):
                told = {"Collective name": name} | args
                if on_kernel:
                    traces[rank].nccl(name[:4], at * MS, MS // 2, **told)
                else:
                    traces[rank].kernel(KERNEL, at * MS, MS // 2, external_id=900 + at).record(
                        name[:4], at * MS, external_id=900 + at, **told
                    )
        found = [picked(r, "collective", "rank", "root") for r in rows_of(tmp_path / str(on_kernel), *traces)]
        sides = [[("send", source, target), ("recv", target, source)] for source, target in messages]
        assert sorted(found) == sorted(chain(*sides))


@pytest.mark.parametrize(("name", "collective", "peer"), [("nccl:send 0->1", "send", 1), ("nccl:recv 0<-1", "recv", 1)])
def test_peers_in_annotations(tmp_path, name, collective, peer):
    trace = Trace(0, 2, groups={"0": [0, 1]}).kernel(KERNEL, 5 * MS, 1 * MS, launch=2 * MS)
    row = row_of(tmp_path, trace.annotation(name, 1 * MS, 2 * MS, dims=[[6]], types=["float"]))
    assert picked(row, "collective", "root", "size_bytes") == (collective, peer, 24)


# --- other communication ---------------------------------------------------------------------------------------------


def test_copies_between_gpus(tmp_path):
    row = row_of(tmp_path, Trace(world=2).memcpy("PtoP", 0, 1 * MS, nbytes=123_456).memcpy("DtoD", 2 * MS, 1 * MS))
    assert picked(row, "collective", "size_bytes", "process_group") == ("peer_copy", 123_456, None)


def test_kernels_that_users_name(tmp_path):
    trace = Trace(world=2).kernel("void my_all_reduce<8>()", 0, 1 * MS).kernel("gemm", 0, 1 * MS)
    assert rows_of(tmp_path / "without", trace) == []
    assert row_of(tmp_path / "with", trace, comm_names=["my_all_reduce"])["collective"] == "all_reduce"


def test_calls_stand_in_order_of_rank_and_start(tmp_path):
    first = Trace(0, 2).nccl("all_reduce", 5 * MS, 1).nccl("broadcast", 2 * MS, 1)
    second = Trace(1, 2).nccl("barrier", 1 * MS, 1)
    found = rows_of(tmp_path, second, first)
    assert [picked(r, "rank", "collective") for r in found] == [(0, "broadcast"), (0, "all_reduce"), (1, "barrier")]


def test_metadata_of_one_cycle_is_not_that_of_another(tmp_path):
    one = Trace(world=2).nccl("all_reduce", 0, 1 * MS, elems=5)
    two = Trace(world=2).kernel("ncclDevKernel_Generic", 9 * MS, 1 * MS)  # the same correlation
    one.write(tmp_path, "node_0.0000.pt.trace.json.gz")
    two.write(tmp_path, "node_0.0001.pt.trace.json.gz")
    table = calls_of(load_run([tmp_path]))
    assert table["collective"].tolist() == ["all_reduce", pd.NA]
    assert table["cycle"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("groups_of_cycles", "early"),
    [
        ([{"0": [0, 1]}, {"0": [0, 1]}], True),
        ([{"0": [0, 1]}, {"0": [0, 1], "7": [0, 1]}], False),
        ([None, {"0": [0, 1]}], False),
        ([None, None], False),
    ],
)
def test_calls_are_made_of_each_file_alone_if_all_of_a_rank_know_the_same_groups(tmp_path, groups_of_cycles, early):
    for cycle, groups in enumerate(groups_of_cycles):
        for rank in (1, 0):
            trace = Trace(rank, 2, groups=groups)
            for number in range(3):
                trace.kernel(KERNEL, (20 * cycle + number) * MS, 1 * MS)
                trace.nccl("all_reduce", (20 * cycle + 5 + number) * MS, 1 * MS, elems=5)
            trace.write(tmp_path, f"node_{rank}.000{cycle}.pt.trace.json.gz")
    found = analyse(tmp_path)
    assert len(calls_of(found.run)) == 24
    assert (found.early is not None) == early
    if found.early is not None:
        pd.testing.assert_frame_equal(found.early.found.calls, calls_of(found.run))


def test_without_communication_there_are_no_calls(tmp_path):
    assert rows_of(tmp_path, Trace().kernel("gemm", 0, 1 * MS)) == []
