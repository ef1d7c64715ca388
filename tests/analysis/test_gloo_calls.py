"""Gloo on CPU: its operations joined to the c10d operators that issued them; made by hand, and captured for real."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from builders import BASE_NS, GLOO_THREAD, MAIN_THREAD, MS, US, Trace, analysed

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.metrics.matching.ladder import matches_of
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

OTHER_GLOO_THREAD = GLOO_THREAD + 1


def gloo_trace(rank: int = 0, world: int = 2) -> Trace:
    return Trace(rank, world, groups={"0": list(range(world))}, backend="gloo", device_names=(), host="node")


def calls_of(folder, *traces: Trace) -> list[Row]:
    return records(analysed(folder, *traces).calls)


def picked(row: Row, *keys: str) -> tuple:
    return tuple(row[key] for key in keys)


def all_reduce(trace: Trace, issued: int, start: int, end: int, elems: int, *, thread: int = GLOO_THREAD) -> Trace:
    trace.c10d("allreduce_", issued, dims=[[[elems]], [], []], types=["TensorList", "", ""])
    return trace.gloo("all_reduce", start, end - start, dims=[[elems]], types=["float"], thread=thread)


# --- metadata --------------------------------------------------------------------------------------------------------


def test_a_call_in_full(tmp_path):
    (row,) = calls_of(tmp_path, all_reduce(gloo_trace(), 1 * MS, 2 * MS, 5 * MS, 16))
    assert row == {
        "call_id": 0, "rank": 0, "cycle": 0, "device": "cpu", "stream": GLOO_THREAD, "step": None,
        "name": "gloo:all_reduce", "collective": "all_reduce", "process_group": "0", "pg_ranks": "0 1",
        "group_size": 2, "dtype": "float32", "in_elems": 16, "out_elems": 16, "in_split": None, "out_split": None,
        "size_bytes": 64, "seq": None, "turn": None, "batch": None, "comms_id": None, "root": None,
        "issue_ns": BASE_NS + 1 * MS, "start_ns": BASE_NS + 2 * MS, "dur_ns": 3 * MS, "metadata_from": "c10d",
        "partial": False,
    }  # fmt: skip


# (operator, its shapes, types and values; gloo's operation and shapes; collective, in, out, size, root), of 2 ranks
OPERATORS = [
    ("broadcast_", [[[10]], [], []], ["TensorList", "", "Scalar"], ["", "", "1"], "broadcast", [[10]],
     ("broadcast", 10, 10, 40, 1)),
    ("reduce_", [[[11]], [], [], []], ["TensorList", "", "", "Scalar"], ["", "", "", "1"], "reduce", [[11]],
     ("reduce", 11, 11, 44, 1)),
    ("allgather_", [[], [[5]], []], ["", "TensorList", ""], ["", "", ""], "all_gather", [[5]],
     ("all_gather", 5, 10, 40, None)),
    ("_allgather_base_", [[10], [5], []], ["float", "float", ""], [], "all_gather", [[5]],
     ("all_gather", 5, 10, 40, None)),
    ("_reduce_scatter_base_", [[7], [14], []], ["float", "float", ""], [], "all_reduce", [[14]],
     ("reduce_scatter", 14, 7, 56, None)),
    ("alltoall_base_", [[8], [8], []], ["float", "float", ""], [], "all_to_all", [[8]],
     ("all_to_all", 8, 8, 32, None)),
    ("alltoall_", [[[3], [3]], [[3], [3]], []], ["TensorList", "TensorList", ""], [], "all_to_all", [[3], [3]],
     ("all_to_all", 6, 6, 24, None)),
    ("gather_", [[], [[9]], [], []], ["ScalarList", "TensorList", "", "Scalar"], ["[]", "", "", "1"], "gather", [[9]],
     ("gather", 9, 18, 72, 1)),
    ("scatter_", [[[12]], [], [], []], ["TensorList", "", "", "Scalar"], ["", "", "", "1"], "scatter", [[12], [12]],
     ("scatter", 24, 12, 96, 1)),
    ("allreduce_coalesced_", [[[2], [3]], [], []], ["TensorList", "", ""], [], "all_reduce", [[2], [3]],
     ("all_reduce", 5, 5, 20, None)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "dims", "types", "values", "gloo", "shown", "wanted"), OPERATORS, ids=lambda v: str(v)[:20]
)
def test_every_operator(tmp_path, op, dims, types, values, gloo, shown, wanted):
    trace = gloo_trace().c10d(op, 0, dims=dims, types=types, values=values)
    trace.gloo(gloo, 1 * MS, 2 * MS, dims=shown, types=["float"] * len(shown))
    (row,) = calls_of(tmp_path, trace)
    assert picked(row, "collective", "in_elems", "out_elems", "size_bytes", "root") == wanted
    assert picked(row, "dtype", "metadata_from") == ("float32", "c10d")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (["", "", "", "[5, 3]", "[1, 3]", "False", "-1"], ("[1, 3]", "[5, 3]")),
        (["", "", "", "[]", "[]", "False", "-1"], (None, None)),
        ([], (None, None)),
    ],
)
def test_an_uneven_all_to_all_says_how_many_rows_go_where(tmp_path, values, wanted):
    """Arguments of `alltoall_base_`: output, input, process group, rows of the output, rows of the input."""
    trace = gloo_trace().c10d("alltoall_base_", 0, dims=[[8, 2], [4, 2]], types=["float", "float"], values=values)
    trace.gloo("all_to_all", 1 * MS, 2 * MS, dims=[[4, 2]], types=["float"])
    (row,) = calls_of(tmp_path, trace)
    assert picked(row, "in_split", "out_split") == wanted
    assert picked(row, "in_elems", "out_elems") == (8, 16)


def test_a_barrier_moves_nothing(tmp_path):
    trace = gloo_trace().c10d("barrier", 0, dims=[[1], []], types=["unsigned char", ""]).gloo("barrier", 1 * MS, 1 * MS)
    (row,) = calls_of(tmp_path, trace)
    assert picked(row, "collective", "size_bytes") == ("barrier", 0)


def test_a_reduce_scatter_of_a_list_is_one_call_though_it_runs_as_one_all_reduce_per_rank(tmp_path):
    trace = gloo_trace().c10d("reduce_scatter_", 0, dims=[[[6]], []], types=["TensorList", ""])
    trace.gloo("all_reduce", 1 * MS, 2 * MS, dims=[[6]], types=["float"])
    trace.gloo("all_reduce", 2 * MS, 3 * MS, dims=[[6]], types=["float"], thread=OTHER_GLOO_THREAD)
    (row,) = calls_of(tmp_path, trace)
    assert picked(row, "collective", "in_elems", "out_elems", "size_bytes") == ("reduce_scatter", 12, 6, 48)
    assert picked(row, "start_ns", "dur_ns") == (BASE_NS + 1 * MS, 4 * MS)


def test_its_call_ends_with_the_last_shard_whichever_began_last(tmp_path):
    trace = gloo_trace().c10d("reduce_scatter_", 0, dims=[[[6]], []], types=["TensorList", ""])
    trace.gloo("all_reduce", 1 * MS, 8 * MS, dims=[[6]], types=["float"])
    trace.gloo("all_reduce", 2 * MS, 3 * MS, dims=[[6]], types=["float"], thread=OTHER_GLOO_THREAD)
    (row,) = calls_of(tmp_path, trace)
    assert row["dur_ns"] == 8 * MS


def test_shapes_tell_a_reduce_scatter_from_an_all_reduce_issued_before_it(tmp_path):
    trace = gloo_trace().c10d("allreduce_", 0, dims=[[[5]], []], types=["TensorList", ""])
    trace.c10d("_reduce_scatter_base_", 1 * MS, dims=[[7], [14], []], types=["float", "float", ""])
    trace.gloo("all_reduce", 2 * MS, 1 * MS, dims=[[14]], types=["float"], thread=OTHER_GLOO_THREAD)
    trace.gloo("all_reduce", 3 * MS, 1 * MS, dims=[[5]], types=["float"])
    assert [picked(r, "collective", "size_bytes") for r in calls_of(tmp_path, trace)] == [
        ("reduce_scatter", 56),
        ("all_reduce", 20),
    ]


def test_equal_shapes_go_first_in_first_out(tmp_path):
    trace = gloo_trace()
    for k in range(3):
        all_reduce(trace, k * MS, (10 + k) * MS, (12 + k) * MS, 16)
    assert [r["issue_ns"] - BASE_NS for r in calls_of(tmp_path, trace)] == [0, 1 * MS, 2 * MS]


def test_without_shapes_kind_and_order_remain(tmp_path):
    trace = gloo_trace().c10d("broadcast_", 0).c10d("allreduce_", 1 * MS)
    trace.gloo("all_reduce", 2 * MS, 1 * MS).gloo("broadcast", 3 * MS, 1 * MS)
    rows = calls_of(tmp_path, trace)
    assert [picked(r, "collective", "size_bytes", "metadata_from") for r in rows] == [
        ("all_reduce", None, "c10d"),
        ("broadcast", None, "c10d"),
    ]


def test_without_an_operator_the_annotation_remains(tmp_path):
    trace = gloo_trace().gloo("all_reduce", 2 * MS, 1 * MS, dims=[[16]], types=["float"])
    (row,) = calls_of(tmp_path, trace.c10d("allreduce_", 5 * MS, dims=[[[16]]], types=["TensorList"]))
    assert picked(row, "collective", "size_bytes", "issue_ns", "metadata_from") == (
        "all_reduce",
        64,
        None,
        "annotation",
    )


def test_in_several_groups_of_other_ranks_the_group_is_not_known(tmp_path):
    trace = all_reduce(gloo_trace(0, 4), 0, 1 * MS, 2 * MS, 16)
    trace.groups = {"0": [0, 1, 2, 3], "1": [0, 1]}
    (row,) = calls_of(tmp_path, trace)
    assert picked(row, "process_group", "pg_ranks", "group_size") == (None, None, None)


# --- send and receive ------------------------------------------------------------------------------------------------


def p2p(trace: Trace, op: str, gloo: str, peer: int | None, start: int, end: int) -> Trace:
    """On the thread that calls: the operator returns at once, gloo's annotation ends when the work is done."""
    values = ["", "", str(peer), "0"] if peer is not None else ["", "", "0"]
    trace.c10d(
        op, start, 200 * US, dims=[[[13]], [], [], []], types=["TensorList", "", "Scalar", "Scalar"], values=values
    )
    return trace.gloo(gloo, start + 100 * US, end - start - 100 * US, dims=[[13]], types=["float"], thread=MAIN_THREAD)


def test_a_send_and_its_receive(tmp_path):
    send = p2p(gloo_trace(0), "send", "send", 1, 3 * MS, 5 * MS)
    recv = p2p(gloo_trace(1), "recv_", "recv", 0, 1 * MS, 5 * MS)
    found = analysed(tmp_path, send, recv)
    assert [picked(r, "collective", "root", "size_bytes", "start_ns", "dur_ns") for r in records(found.calls)] == [
        ("send", 1, 52, BASE_NS + 3 * MS, 2 * MS),
        ("recv", 0, 52, BASE_NS + 1 * MS, 4 * MS),
    ]
    assert found.collectives[["collective", "ranks", "complete"]].to_numpy().tolist() == [["send_recv", "0 1", True]]
    assert found.participation["wait_ns"].tolist() == [0, 2 * MS]


def test_a_send_belongs_to_the_operator_it_began_in_though_another_lost_its_own(tmp_path):
    # Two sends of one shape: the first, to rank 1, is never waited for, so the trace shows only its operator.
    trace = gloo_trace(0, 3)
    args = {"dims": [[[13]], [], [], []], "types": ["TensorList", "", "Scalar", "Scalar"]}
    trace.c10d("send", 1 * MS, 200 * US, values=["", "", "1", "0"], **args)
    (row,) = calls_of(tmp_path, p2p(trace, "send", "send", 2, 3 * MS, 5 * MS))
    assert picked(row, "collective", "root", "start_ns", "dur_ns") == ("send", 2, BASE_NS + 3 * MS, 2 * MS)


def test_receiving_on_the_main_thread_leaves_its_computing_alone(tmp_path):
    trace = p2p(gloo_trace(1), "recv_", "recv", 0, 1 * MS, 5 * MS).op("aten::mm", 6 * MS, 2 * MS)
    assert analysed(tmp_path, trace).breakdown["compute_ns"].tolist() == [2 * MS]


def test_so_does_receiving_from_whoever_comes(tmp_path):
    trace = p2p(gloo_trace(1, 3), "recv_any_source_", "recvAnySource", None, 1 * MS, 5 * MS)
    trace.op("aten::mm", 6 * MS, 2 * MS)
    found = analysed(tmp_path, trace)
    assert found.breakdown["compute_ns"].tolist() == [2 * MS]
    (row,) = records(found.calls)
    assert picked(row, "collective", "size_bytes", "root", "metadata_from") == ("recv", 52, None, "c10d")
    assert found.collectives["note"].tolist() == ["its peer is not known"]


def test_of_two_ranks_whoever_comes_is_the_other_one(tmp_path):
    trace = p2p(gloo_trace(1, 2), "recv_any_source_", "recvAnySource", None, 1 * MS, 5 * MS)
    assert [row["root"] for row in calls_of(tmp_path, trace)] == [0]


# --- across ranks ----------------------------------------------------------------------------------------------------


def test_two_collectives_that_start_in_another_order_on_one_rank_match_by_issue(tmp_path):
    # Two worker threads: on rank 1 the second collective, of another shape, is taken up first.
    one, two = gloo_trace(0), gloo_trace(1)
    all_reduce(one, 1 * MS, 2 * MS, 9 * MS, 100)
    all_reduce(one, 1500 * US, 2500 * US, 9 * MS, 200, thread=OTHER_GLOO_THREAD)
    all_reduce(two, 1 * MS, 4 * MS, 9 * MS, 100)
    all_reduce(two, 1500 * US, 3 * MS, 9 * MS, 200, thread=OTHER_GLOO_THREAD)
    table = analysed(tmp_path, one, two).collectives
    assert table[["matched_by", "size_bytes", "ranks", "arrival_skew_ns"]].to_numpy().tolist() == [
        ["order", 400, "0 1", 2 * MS],
        ["order", 800, "0 1", 500 * US],
    ]


def test_computing_is_what_other_threads_do(tmp_path):
    trace = all_reduce(gloo_trace(), 1 * MS, 2 * MS, 6 * MS, 16).op("aten::mm", 3 * MS, 2 * MS)
    trace.op("aten::inner", 3500 * US, 100 * US)  # within aten::mm
    trace.op("aten::add_", 5 * MS, 3 * MS, thread=GLOO_THREAD)  # on gloo's own thread
    trace.op("aten::mul", 7 * MS, 1 * MS, thread=77)
    (row,) = records(analysed(tmp_path, trace).breakdown)
    assert picked(row, "device", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "n_compute") == (
        "cpu", 3 * MS, 4 * MS, 2 * MS, 2 * MS, 2,
    )  # fmt: skip


def test_a_gpu_run_shown_from_the_cpu_only_has_no_activities(tmp_path):
    trace = Trace(0, 2).annotation("nccl:all_reduce", 0, 1 * MS).op("aten::mm", 3 * MS, 2 * MS)
    assert len(analysed(tmp_path, trace).run.activities) == 0


def test_gloo_beside_a_gpu_is_noted_not_counted(tmp_path):
    trace = Trace(0, 2).kernel("gemm", 0, 1 * MS).gloo("barrier", 2 * MS, 1 * MS)
    found = analysed(tmp_path, trace)
    assert len(found.calls) == 0
    assert any("1 gloo operations on the CPU beside the GPU" in note for note in found.run.notes)
    said = found.verdicts["because"].iloc[0]
    assert said.endswith("Communication ran on the CPUs, over gloo, and is not measured beside GPUs.")


# --- captured for real -----------------------------------------------------------------------------------------------

PROGRAM = """
import gc, os, sys, time
import torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

def every_collective(rank, world, out, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    t = torch.ones
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        dist.all_reduce(t(16))
        dist.broadcast(t(10), 1)
        dist.reduce(t(11), 1)
        dist.all_gather([t(5) for _ in range(world)], t(5))
        dist.all_gather_into_tensor(t(5 * world), t(5))
        dist.reduce_scatter(t(6), [t(6) for _ in range(world)])
        dist.reduce_scatter_tensor(t(7), t(7 * world))
        dist.all_to_all_single(t(4 * world), t(4 * world))
        dist.all_to_all([t(3) for _ in range(world)], [t(3) for _ in range(world)])
        dist.gather(t(9), [t(9) for _ in range(world)] if rank == 1 else None, dst=1)
        dist.scatter(t(12), [t(12) for _ in range(world)] if rank == 1 else None, src=1)
        dist.barrier()
        dist.send(t(13), 1) if rank == 0 else dist.recv(t(13), 0)
        for work in [dist.all_reduce(t(1000 + k), async_op=True) for k in range(6)]:
            work.wait()
        torch.mm(t(50, 50), t(50, 50))
    prof.export_chrome_trace(f"{out}/rank{rank}.json")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.multiprocessing.spawn(every_collective, args=(2, sys.argv[1], sys.argv[1] + "/store"), nprocs=2)
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory) -> Analysis:
    """Every collective that gloo has, between two processes."""
    pytest.importorskip("torch")
    program = tmp_path_factory.mktemp("program") / "every_collective.py"
    program.write_text(PROGRAM, encoding="utf-8")
    out = tmp_path_factory.mktemp("every-collective")
    done = subprocess.run(
        [sys.executable, str(program), str(out)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=program.parent,
    )
    assert done.returncode == 0, done.stderr
    (out / "store").unlink(missing_ok=True)
    return analyse(out)


WANTED = [
    ("all_reduce", 64), ("broadcast", 40), ("reduce", 44), ("all_gather", 40), ("all_gather", 40),
    ("reduce_scatter", 48), ("reduce_scatter", 56), ("all_to_all", 32), ("all_to_all", 24), ("gather", 72),
    ("scatter", 96), ("barrier", 0), ("send_recv", 52), *[("all_reduce", 4000 + 4 * k) for k in range(6)],
]  # fmt: skip


@pytest.mark.slow
def test_captured_collectives_are_all_there_matched_and_sized(captured):
    table = captured.collectives
    found = sorted(zip(table["collective"], table["size_bytes"], strict=True))
    assert found == sorted(WANTED)
    assert table["matched_by"].tolist() == ["order"] * len(WANTED)
    assert table["complete"].all()
    assert set(captured.calls["metadata_from"]) == {"c10d"}
    assert captured.calls["dtype"].dropna().isin(["float32", "uint8"]).all()


@pytest.mark.slow
def test_captured_waits_and_transfers_are_split(captured):
    assert captured.clocks["linked"].tolist() == [0, 0]
    table = captured.participation
    assert table["wait_ns"].notna().all()
    taken = table["wait_ns"] + table["transfer_ns"]
    assert (taken == table["dur_ns"])[table["collective"] != "send_recv"].all()
    assert (taken <= table["dur_ns"]).all()  # a send ends when it is checked, after its receiver had the data
    assert (captured.breakdown["compute_ns"] > 0).all()


@pytest.mark.slow
def test_captured_roots_and_peers(captured):
    rows = records(captured.calls)
    roots = {(r["rank"], r["collective"]): r["root"] for r in rows if r["root"] is not None}
    assert roots == {
        **{(rank, kind): 1 for rank in (0, 1) for kind in ("broadcast", "reduce", "gather", "scatter")},
        (0, "send"): 1,
        (1, "recv"): 0,
    }


def test_a_captured_run_of_training(gloo_run: Path):
    found = analyse(gloo_run)
    steps = sorted(set(found.run.activities["step"].dropna()))
    table = found.collectives
    assert len(steps) == 2
    assert sorted(zip(table["collective"], table["size_bytes"], strict=True)).count(("all_reduce", 28_872_744)) == 2
    assert sorted(zip(table["collective"], table["size_bytes"], strict=True)).count(("all_reduce", 15_823_104)) == 2
    assert table["collective"].value_counts().to_dict() == {"broadcast": 4, "all_reduce": 4}
    assert (table["matched_by"] == "step").all()
    assert table["complete"].all()
    assert found.participation["wait_ns"].notna().all()
    assert (found.breakdown["exposed_comm_ns"] > 0).all()
    assert found.breakdown["exposed_transfer_ns"].notna().all()
    assert found.breakdown["exposed_unsplit_ns"].tolist() == [0, 0]
    assert json.loads((gloo_run / "run.json").read_text(encoding="utf-8")) == found.run.config


def members_of(matched: pd.DataFrame) -> set[frozenset[int]]:
    return {frozenset(ids) for _, ids in matched.groupby("collective_id")["call_id"]}


@pytest.mark.slow
def test_a_captured_run_matches_without_arguments_and_on_other_clocks(gloo_run: Path):
    found = analyse(gloo_run)
    calls, hosts = found.calls, found.run.hosts
    for columns in (["size_bytes"], ["dtype"], ["pg_ranks", "group_size"], ["process_group"]):
        bare = calls.assign(**{c: pd.array([pd.NA] * len(calls), dtype=calls[c].dtype) for c in columns})
        assert members_of(matches_of(bare, hosts)) == members_of(found.matches), columns
    mixed = calls.sample(frac=1, random_state=1).reset_index(drop=True)
    assert members_of(matches_of(mixed, hosts)) == members_of(found.matches)
    for ahead_ns in (-20_000_000, 3_000_000, 700_000_000):
        ahead = calls["rank"] * ahead_ns
        shifted = calls.assign(start_ns=calls["start_ns"] + ahead, issue_ns=calls["issue_ns"] + ahead)
        true, told = members_of(found.matches), members_of(matches_of(shifted, dict.fromkeys(hosts)))
        # Where clocks are not known, a call that ended too late, on a machine that was busy, may stay alone.
        assert all(any(members <= other for other in true) for members in told), ahead_ns
        assert len(told & true) >= 0.75 * len(true), ahead_ns
