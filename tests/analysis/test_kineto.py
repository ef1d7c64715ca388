"""What a trace file becomes: activities, launches, annotations and arguments, exact to the nanosecond."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import BASE_NS, GLOO_THREAD, LAYOUTS, MS, US, Trace, comm_args, write_bytes

from commtrace.analysis.errors import AnalysisError, DamagedTrace, NotATrace
from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.run.file_tables import TraceFile, trace_file

OPTIONS = ReadOptions()
DEVICE_CATEGORIES = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}
TABLES = ("activities", "launches", "annotations", "comm_args", "cpu_ops")


def busy_trace() -> Trace:
    """A bit of everything, with names that look like JSON."""
    trace = Trace(1, 2, groups={"0": [0, 1]}, host="node-1").step(7, 0, 900 * US)
    trace.kernel("void gemm<float, {lambda()#1}>(int*)},{", 10 * US + 1, 20 * US + 7)
    trace.kernel('a "quoted" [kernel]', 40 * US, 3, stream=8)
    trace.kernel("from before the window", 1 * US, 2 * US, launch=None)
    trace.nccl("all_reduce", 50 * US, 100 * US, elems=77, Seq=3, **{"Comms Id": 18446744073709551557})
    trace.memcpy("HtoD", 200 * US, 5 * US).memcpy("PtoP", 210 * US, 5 * US, nbytes=123)
    trace.kernel("Memset (Device)", 220 * US, 1 * US, cat="gpu_memset")
    trace.annotation("nccl:all_reduce", 45 * US, 50 * US, dims=[[7, 11]], types=["float"])
    trace.annotation("## forward ##", 0, 300 * US).record("all_reduce", 46 * US, external_id=5)
    trace.event("gpu_user_annotation", "ProfilerStep#7", 0, 900 * US, tid=7, pid=0)
    trace.event("cuda_sync", "Stream Sync", 300 * US, 50 * US, tid=7, pid=0, stream=7)
    trace.event("overhead", "CUPTI", 300 * US, 50 * US).op("aten::mm", 5 * US, 20 * US)
    return trace.c10d("allreduce_", 44 * US, dims=[[[77]], []], types=["TensorList", ""])


def read_trace(path: Path, options: ReadOptions) -> TraceFile:
    return trace_file(path, read_kineto(path, options))


def tables(path, options: ReadOptions = OPTIONS) -> dict[str, list[dict[str, Any]]]:
    file = read_trace(path, options)
    return {name: json.loads(getattr(file, name).to_json(orient="records")) for name in TABLES}


def oracle_activities(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Device activities by plain json and decimal arithmetic."""
    base = document.get("baseTimeNanoseconds", 0)
    return [
        (e["name"], int(Decimal(str(e["ts"])) * 1000) + base, int(Decimal(str(e["dur"])) * 1000),
         str(e["args"]["device"]), e["args"]["stream"], e["args"]["correlation"])
        for e in document["traceEvents"] if e.get("cat") in DEVICE_CATEGORIES
    ]  # fmt: skip


def found_activities(path, options: ReadOptions) -> list[tuple[Any, ...]]:
    table = read_trace(path, options).activities
    columns = ["name", "start_ns", "dur_ns", "device", "stream", "correlation"]
    return [tuple(row) for row in table[columns].astype(object).to_numpy().tolist()]


@pytest.mark.parametrize("chunk_bytes", [257, 1000, 1 << 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_tables(tmp_path, layout, chunk_bytes):
    trace = busy_trace()
    reference = tables(trace.write(tmp_path / "reference"))
    options = ReadOptions(sizes=ReadSizes(chunk_bytes=chunk_bytes))
    path = trace.write(tmp_path, layout=layout, gz=False)
    assert tables(path, options) == reference
    assert found_activities(path, options) == oracle_activities(trace.document())


def test_the_header_is_read_wherever_it_stands(tmp_path):
    files = [read_trace(busy_trace().write(tmp_path, layout=layout), OPTIONS) for layout in LAYOUTS]
    assert len({file.header for file in files}) == 1
    header = files[0].header
    assert (header.rank, header.world_size, header.backend, header.host) == (1, 2, "nccl", "node-1")
    assert {file.pid for file in files} == {1000}
    assert [(g.name, g.ranks) for g in header.process_groups] == [("0", (0, 1))]
    assert header.device_names[1] == "NVIDIA H100 80GB HBM3"


# --- times -----------------------------------------------------------------------------------------------------------


def test_three_decimals_are_exact_below_2_to_the_43_us(tmp_path):
    largest = (2**43 - 1) * 1000 + 999
    trace = Trace(base_ns=None)
    starts = [0, 1, 999, 1000, 123_456_789, largest - 1_000_001, largest]
    for start in starts:
        trace.kernel("k", start, 1, launch=None)
    found = read_trace(trace.write(tmp_path), OPTIONS).activities
    assert found["start_ns"].tolist() == starts


def test_whole_microseconds_of_absolute_time_are_exact(tmp_path):
    now = 1_694_128_201_426_557
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": now + i, "dur": 3, "args": {}}
        for i in (0, 1, 7)
    ]
    path = write_bytes(tmp_path / "t.json", json.dumps({"traceEvents": events}).encode())
    found = read_trace(path, OPTIONS).activities
    assert found["start_ns"].tolist() == [(now + i) * 1000 for i in (0, 1, 7)]
    assert found["dur_ns"].tolist() == [3000] * 3


def test_the_base_time_is_added(tmp_path):
    with_base = read_trace(Trace().kernel("k", 5, 7).write(tmp_path), OPTIONS)
    assert with_base.activities["start_ns"].tolist() == [BASE_NS + 5]
    assert with_base.launches["start_ns"].tolist() == [BASE_NS + 5]


def test_an_event_without_duration_has_none(tmp_path):
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "args": {"device": 0, "stream": 7}}
    ]
    path = write_bytes(tmp_path / "t.json", json.dumps({"traceEvents": events}).encode())
    assert read_trace(path, OPTIONS).activities["dur_ns"].tolist() == [0]


# --- which events count ----------------------------------------------------------------------------------------------


def test_old_spellings_of_the_categories(tmp_path):
    new = (
        Trace()
        .kernel("k", 10, 5)
        .memcpy("HtoD", 20, 5)
        .kernel("Memset (Device)", 30, 5, cat="gpu_memset")
        .op("aten::mm", 0, 9)
    )
    spelled = {
        "kernel": "Kernel",
        "gpu_memcpy": "Memcpy",
        "gpu_memset": "Memset",
        "cuda_runtime": "Runtime",
        "cpu_op": "Operator",
    }
    old = Trace(events=[{**e, "cat": spelled.get(e["cat"], e["cat"])} for e in new.events])
    assert tables(old.write(tmp_path / "old")) == tables(new.write(tmp_path / "new"))
    assert len(tables(old.write(tmp_path / "old"))["activities"]) == 3


def test_driver_launches_count_and_their_order_in_the_file_does_not(tmp_path):
    trace = Trace().kernel("k", 100, 5)
    trace.events[0]["cat"] = "cuda_driver"
    trace.events.reverse()
    assert read_trace(trace.write(tmp_path), OPTIONS).launches["start_ns"].tolist() == [BASE_NS + 100]


def test_the_earliest_call_of_a_correlation_is_the_launch(tmp_path):
    trace = Trace().kernel("k", 100, 5)
    correlation = trace.events[-1]["args"]["correlation"]
    trace.event("cuda_runtime", "cudaLaunchKernelExC", 60, 10, correlation=correlation)
    launches = read_trace(trace.write(tmp_path), OPTIONS).launches
    assert launches[["correlation", "start_ns"]].to_numpy().tolist() == [[correlation, BASE_NS + 60]]


@pytest.mark.parametrize("cat", ["gpu_user_annotation", "cuda_sync", "overhead", "ac2g", "python_function", "fwdbwd"])
def test_what_is_no_activity(tmp_path, cat):
    trace = Trace().event(cat, "ncclDevKernel_AllReduce", 0, 10, tid=7, pid=0, device=0, stream=7, correlation=1)
    assert len(read_trace(trace.write(tmp_path), OPTIONS).activities) == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "comm"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "comm"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R", "comm"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "comm"),
        ("NCCLKERNEL_ALLREDUCE", "comm"),
        ("rcclGenericKernel", "comm"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>(...)", "comm"),
        ("void c10d::symmetric_memory::one_shot_all_reduce_kernel<>", "comm"),
        ("two_shot_all_reduce_kernel", "comm"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>(...)", "comm"),
        ("void deep_ep::intranode::dispatch<8>(...)", "comm"),
        ("void dpsk::ep::combine()", "comm"),
        ("nvshmem_quiet_kernel", "comm"),
        ("void at::native::reduce_kernel<512, 1>(...)", "compute"),
        ("ampere_sgemm_128x64_nn", "compute"),
        ("all_reduce_like_but_mine", "compute"),
    ],
)
def test_kinds_of_kernels(tmp_path, name, kind):
    found = read_trace(Trace().kernel(name, 0, 5).write(tmp_path), OPTIONS).activities
    assert found["kind"].tolist() == [kind]


@pytest.mark.parametrize(
    ("name", "cat", "kind"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", "memory"),
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", "memory"),
        ("Memcpy PtoP (Device -> Device)", "gpu_memcpy", "comm"),
        ("Memset (Device)", "gpu_memset", "memory"),
    ],
)
def test_kinds_of_copies(tmp_path, name, cat, kind):
    found = read_trace(Trace().kernel(name, 0, 5, cat=cat).write(tmp_path), OPTIONS).activities
    assert found["kind"].tolist() == [kind]


def test_users_can_name_further_communication_kernels(tmp_path):
    path = Trace().kernel("void my_fancy_exchange<8>()", 0, 5).write(tmp_path)
    assert read_trace(path, ReadOptions(comm_names=("MY_fancy_",))).activities["kind"].tolist() == ["comm"]


def test_a_huge_comms_id_keeps_every_digit(tmp_path):
    trace = Trace().nccl("all_reduce", 0, 5, **{"Comms Id": 18446744073709551557})
    assert read_trace(trace.write(tmp_path), OPTIONS).comm_args["comms_id"].tolist() == ["18446744073709551557"]


def test_wait_records_are_no_collectives(tmp_path):
    trace = Trace().kernel("k", 0, 5).record("all_reduce", 0, external_id=3, **{"Collective name": "wait"})
    assert len(read_trace(trace.write(tmp_path), OPTIONS).comm_args) == 0


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("[0, 1]", "0 1"), ("[3]", "3"), ("[]", None), ("[" + ", ".join(map(str, range(30))) + ", ...]", None)],
)
def test_ranks_of_a_group_are_those_of_a_whole_list_only(tmp_path, text, ranks):
    trace = Trace().nccl("all_reduce", 0, 5, **{"Process Group Ranks": text})
    found = read_trace(trace.write(tmp_path), OPTIONS).comm_args["pg_ranks"].tolist()
    assert found == [pd.NA if ranks is None else ranks]


def test_gloo_threads_are_known_by_name(tmp_path):
    trace = Trace(backend="gloo").metadata("thread_name", 5, name="thread 5 (python)").op("aten::mm", 0, 9)
    trace.metadata("thread_name", GLOO_THREAD, name=f"thread {GLOO_THREAD} (pt_gloo_runloop)")
    assert read_trace(trace.write(tmp_path), OPTIONS).gloo_threads == {GLOO_THREAD}


# --- versions of the metadata ----------------------------------------------------------------------------------------


def test_sizes_of_torch_2_2_have_other_names(tmp_path):
    args = {"Collective name": "allreduce", "In msg size": 5, "Out msg size": 5, "Group size": 2, "dtype": "Float"}
    trace = Trace().kernel("ncclDevKernel", 0, 5, args=args)
    found = read_trace(trace.write(tmp_path), OPTIONS).comm_args
    assert found[["in_elems", "out_elems"]].to_numpy().tolist() == [[5, 5]]


def test_external_id_of_torch_1_is_written_small(tmp_path):
    trace = Trace().kernel("k", 0, 5, args={"external id": 12})
    assert read_trace(trace.write(tmp_path), OPTIONS).activities["external_id"].tolist() == [12]


def test_activities_without_device_argument_are_on_the_device_of_their_row(tmp_path):
    trace = Trace().event("kernel", "k", 0, 5, pid=3, tid=9, correlation=1)
    found = read_trace(trace.write(tmp_path), OPTIONS).activities
    assert found[["device", "stream"]].to_numpy().tolist() == [["3", 9]]


def test_a_bare_array_of_events_is_a_trace(tmp_path):
    path = write_bytes(tmp_path / "trace.json", json.dumps(busy_trace().events).encode())
    file = read_trace(path, OPTIONS)
    assert len(file.activities) == 7
    assert file.header.rank is None


# --- foreign and damaged files ---------------------------------------------------------------------------------------


def test_events_nested_deeper_are_no_kineto_trace(tmp_path):
    path = write_bytes(tmp_path / "t.json", b'{"data": {"traceEvents": [{"name": "a"}, {"name": "b"}]}}')
    with pytest.raises(NotATrace, match="not at the top level"):
        read_trace(path, OPTIONS)


def test_a_file_cut_off_behind_its_events_says_so(tmp_path):
    content = LAYOUTS["events first"](busy_trace().document())
    path = write_bytes(tmp_path / "t.json", content[:-30])
    with pytest.raises(AnalysisError, match=r"t\.json: "):
        read_trace(path, OPTIONS)


@pytest.mark.parametrize(
    ("cat", "broken"),
    [
        ("kernel", {"ts": "yesterday"}),
        ("kernel", {"ts": None}),
        ("kernel", {"name": 5}),
        ("kernel", {"args": None}),
        ("kernel", {"args": "text"}),
        ("kernel", {"args": {"stream": "seven"}}),
        ("kernel", {"args": {"correlation": 1.5}}),
        ("kernel", {"args": {"correlation": 2**70}}),
        ("gpu_memcpy", {"args": {"External id": [1]}}),
        ("cuda_runtime", {"args": {"correlation": "none"}}),
        ("cuda_runtime", {"args": None}),
    ],
    ids=str,
)
def test_events_of_other_types_are_an_error_that_names_the_file(tmp_path, cat, broken):
    event = {"ph": "X", "cat": cat, "name": "k", "pid": 0, "tid": 7, "ts": 1.0, "dur": 1.0, "args": {}} | broken
    path = write_bytes(tmp_path / "t.json", json.dumps({"traceEvents": [event]}).encode())
    with pytest.raises(DamagedTrace, match=r"t\.json: "):
        read_trace(path, OPTIONS)


@pytest.mark.parametrize("args", [{"Input Dims": "none"}, {"Input type": 3}, None], ids=str)
def test_annotations_of_other_types_are_an_error_that_names_the_file(tmp_path, args):
    event = {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "ts": 1.0, "dur": 1.0, "args": args}
    path = write_bytes(tmp_path / "t.json", json.dumps({"traceEvents": [event]}).encode())
    with pytest.raises(DamagedTrace, match=r"t\.json"):
        read_trace(path, OPTIONS)


def test_arguments_of_other_types_are_an_error_that_names_the_file(tmp_path):
    args = comm_args("all_reduce", 5) | {"In msg nelems": "many"}
    path = Trace().kernel("ncclDevKernel", 0, 5, args=args).write(tmp_path)
    with pytest.raises(DamagedTrace, match=path.name):
        read_trace(path, OPTIONS)


@pytest.mark.parametrize(
    ("config", "devices", "backend"),
    [
        ("cpu:gloo,cuda:nccl", [{"id": 0, "name": "NVIDIA H100"}], "nccl"),
        ("cpu:gloo,cuda:nccl", [], "gloo"),
        ("cpu:gloo", [{"id": 0, "name": "NVIDIA H100"}], "gloo"),
        ("", [], "undefined"),
    ],
)
def test_the_backend_of_a_group_that_was_made_without_naming_one(tmp_path, config, devices, backend):
    groups = [
        {"pg_name": "1", "pg_desc": "mesh_tp", "backend_config": "cpu:mpi", "ranks": [0]},
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": config, "ranks": [0, 1]},
    ]
    info = {"backend": "undefined", "rank": 0, "world_size": 2, "pg_config": groups}
    document = {"distributedInfo": info, "deviceProperties": devices, "traceEvents": []}
    path = write_bytes(tmp_path / "t.json", json.dumps(document).encode())
    assert read_trace(path, OPTIONS).header.backend == backend


@pytest.mark.parametrize("info", [[], "nccl", {"rank": "first"}, {"pg_config": 5}], ids=str)
def test_a_header_of_other_types_is_an_error_that_names_the_file(tmp_path, info):
    path = write_bytes(tmp_path / "t.json", json.dumps({"distributedInfo": info, "traceEvents": []}).encode())
    with pytest.raises(AnalysisError, match=r"t\.json"):
        read_trace(path, OPTIONS)


def test_times_in_the_middle_of_a_launch_and_a_step(tmp_path):
    trace = Trace().step(3, 0, 2 * MS).kernel("k", 1 * MS + 1, 2, launch=700_123)
    file = read_trace(trace.write(tmp_path), OPTIONS)
    assert file.launches["start_ns"].tolist() == [BASE_NS + 700_123]
    assert file.annotations[["name", "start_ns", "dur_ns"]].to_numpy().tolist() == [["ProfilerStep#3", BASE_NS, 2 * MS]]
