"""What a device does is read, or the file is refused by name: none becomes a CPU run that looks healthy."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import LAYOUTS, MS, US, Trace, write_bytes

from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import NotATrace
from commtrace.analysis.formats.kineto.joining import Joining
from commtrace.analysis.formats.kineto.reader import joined_trace, read_kineto, read_part
from commtrace.analysis.formats.kineto.verified import verified
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import load_run
from commtrace.analysis.show.facts import warnings
from commtrace.analysis.tables.calls import pending
from commtrace.cli import main

EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


def of_cpu(**more: Any) -> Trace:
    """A step of 20 operators on a CPU, without a device in the header."""
    trace = Trace(**{"backend": None, "device_names": (), **more}).step(1, 0, 2 * MS)
    for number in range(20):
        trace.op("aten::mm", number * 100 * US, 80 * US)
    return trace


def calls(trace: Trace, category: str, name: str, count: int = 20) -> Trace:
    for number in range(count):
        trace.event(category, name, number * 100 * US + 50 * US, 5 * US, correlation=1000 + number)
    return trace


def of_mtia() -> Trace:
    trace = calls(of_cpu(backend="mtia:hccl,cpu:gloo"), "mtia_runtime", "runFunction - job_prep_and_submit")
    for number in range(20):
        at = number * 100 * US + 60 * US
        trace.event("mtia_ccp_events", "fc-dtype_Float", at, 30 * US, pid=9, tid=4, correlation=1000 + number, stream=1)
        trace.event("mtia_ccp_events", "dma_request", at + 32 * US, 2 * US, pid=9, tid=801, direction="HOST_TO_DEVICE")
    return trace


def of_xpu(world: int = 2, backend: str = "xccl") -> Trace:
    trace = calls(of_cpu(world=world, backend=backend), "xpu_runtime", "urEnqueueKernelLaunch")
    for number in range(20):
        args = {"device": 0, "correlation": 1000 + number, "sycl queue": 64}
        trace.event("kernel", "gemm_kernel", number * 100 * US + 60 * US, 30 * US, pid=0, tid=3, **args)
    return trace


def the_run(path: Path) -> Analysis:
    return Analysis(load_run([path]))


def breakdown(path: Path) -> dict[str, Any]:
    (row,) = records(replace(the_run(path), whole=True).breakdown)
    return row


def warned(path: Path) -> str:
    return "\n".join(warnings(the_run(path)))


# --- devices that are read -------------------------------------------------------------------------------------------


@EVERY_LAYOUT
def test_mtia_is_read(tmp_path, layout):
    row = breakdown(of_mtia().write(tmp_path, layout=layout))
    busy = {key: row[key] for key in ("device", "compute_ns", "exposed_memory_ns", "comm_ns", "window_ns")}
    assert busy == {"device": "9", "compute_ns": 20 * 30 * US, "exposed_memory_ns": 20 * 2 * US, "comm_ns": 0,
                    "window_ns": 19 * 100 * US + 34 * US}  # fmt: skip


def test_launches_of_mtia_give_steps(tmp_path):
    activities = the_run(of_mtia().write(tmp_path)).run.activities
    assert activities["step"][activities["name"] == "fc-dtype_Float"].tolist() == [1] * 20
    assert activities["stream"].unique().tolist() == [1, 801]


@EVERY_LAYOUT
def test_xpu_is_read(tmp_path, layout):
    trace = of_xpu()
    trace.event("kernel", "oneccl_allreduce_pcie", 2 * MS, 50 * US, pid=0, tid=4, device=0, correlation=7)
    path = trace.write(tmp_path, layout=layout)
    row = breakdown(path)
    assert (row["compute_ns"], row["comm_ns"]) == (20 * 30 * US, 50 * US)
    assert the_run(path).calls["collective"].tolist() == ["all_reduce"]
    assert "none of its kernels" not in warned(path)


@pytest.mark.parametrize("make", [of_mtia, of_xpu])
def test_parts_and_both_readings_agree(tmp_path, make):
    options = ReadOptions(sizes=ReadSizes(chunk_bytes=2_000))
    path = make().write(tmp_path, "rank0.json", gz=False)
    whole, joining = read_kineto(path, options), Joining()
    for part in range(3):
        joining.add(read_part(path, options, part, 3))
    joined = joined_trace(path, joining, options)
    assert (joined.activities, joined.launches) == (whole.activities, whole.launches)
    assert verified(path, whole).extent.verified_events


# --- communication that must be there --------------------------------------------------------------------------------


def of_cuda(world: int, backend: str = "nccl") -> Trace:
    return Trace(0, world, backend=backend).step(1, 0, 9 * MS).kernel("gemm", 1 * MS, 2 * MS)


@pytest.mark.parametrize(
    ("trace", "because"),
    [
        (of_xpu(), "uses xccl in a job of 2 ranks"),
        (of_xpu().annotation("xccl:all_reduce", 0, 5), "issued 1 collective in a job of 2 ranks"),
        (of_cuda(4).annotation("nccl:all_reduce", 0, 5), "issued 1 collective in a job of 4 ranks"),
        (of_cuda(4).record("all_reduce", 0, external_id=1), "issued 1 collective in a job of 4 ranks"),
    ],
    ids=["xccl", "xccl annotations", "nccl annotations", "records"],
)
def test_a_job_in_which_nothing_is_known_to_communicate(tmp_path, trace, because):
    note = warned(trace.write(tmp_path))
    assert because in note
    assert "none of its kernels is known to communicate" in note


@pytest.mark.parametrize(
    "trace",
    [of_xpu(world=1), of_cuda(2), of_cuda(2).annotation("gloo:all_reduce", 0, 5),
     of_cuda(2).nccl("all_reduce", 4 * MS, 1 * MS).annotation("nccl:all_reduce", 0, 5)],
    ids=["one rank", "nothing issued", "gloo", "it is there"],
)  # fmt: skip
def test_a_job_in_which_communication_is_not_missing(tmp_path, trace):
    assert "none of its kernels" not in warned(trace.write(tmp_path))


# --- launches without a kernel ---------------------------------------------------------------------------------------

LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaGraphLaunch",
            "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemcpyWithStream")  # fmt: skip


@pytest.mark.slow_cases("hipLaunchKernel")
@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_without_a_kernel_give_no_numbers(tmp_path, name):
    path = calls(of_cpu(), "cuda_runtime", name).write(tmp_path)
    assert not len(the_run(path).breakdown)
    assert "rank 0: no kernels were recorded, although 20 launches were" in warned(path)
    assert "ProfilerActivity" not in warned(path)  # of the device it was there


@pytest.mark.parametrize(
    ("category", "name"),
    [("cuda_driver", "cuLaunchKernel"), ("Runtime", "cudaLaunchKernel"), ("xpu_runtime", "urEnqueueKernelLaunch")],
)
@pytest.mark.parametrize("details", [False, True])
def test_launches_of_other_runtimes(tmp_path, category, name, details):
    run = load_run([calls(of_cpu(), category, name).write(tmp_path)], details=details)
    assert (run.devices, run.launched) == (set(), {0: 20})


@EVERY_LAYOUT
def test_a_cpu_run_with_harmless_calls_is_a_cpu_run(tmp_path, layout):
    trace = of_cpu()
    for name in ("cudaGetDeviceCount", "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaDeviceSynchronize",
                 "cudaEventQuery", "cudaStreamIsCapturing", "hipGetDevicePropertiesR0600", "cuInit"):  # fmt: skip
        trace.event("cuda_runtime", name, 10 * US, 1 * US, correlation=1)
    row = breakdown(trace.write(tmp_path, layout=layout))
    assert (row["device"], row["compute_ns"]) == ("cpu", 20 * 80 * US)


@pytest.mark.slow
def test_what_was_issued_without_a_device_is_no_hang(tmp_path):
    for rank in (0, 1):
        trace = calls(of_cpu(rank=rank, world=2, backend="nccl"), "cuda_runtime", "cudaLaunchKernel")
        for number in range(5):
            trace.record("all_reduce", number * 100 * US, external_id=number + 1, Seq=number)
        trace.write(tmp_path, f"rank{rank}.json", gz=False)
    found = the_run(tmp_path)
    assert (len(found.hangs), len(found.of(pending)), found.verdicts["verdict"].tolist()) == (0, 0, [])
    assert main(["summary", str(tmp_path)]) == 0


def test_other_ranks_are_still_measured(tmp_path):
    calls(of_cpu(world=2), "cuda_runtime", "cudaLaunchKernel").write(tmp_path, "rank0.json", gz=False)
    Trace(1, 2).kernel("gemm", 0, 1 * MS).write(tmp_path, "rank1.json", gz=False)
    assert the_run(tmp_path).breakdown["rank"].tolist() == [1]


# --- devices and tools that are not known ----------------------------------------------------------------------------


def of_new_device(trace: Trace) -> None:
    for number in range(3):
        trace.event("xyz_kernel", "gemm", number * 100 * US, 5 * US, pid=3, tid=2, stream=2)


def of_rows_of_a_device(trace: Trace) -> None:
    trace.event("tpu_op", "fusion", 0, 5 * US, pid=3, tid="core 0")


REFUSED: dict[str, Callable[[Trace], Any]] = {
    "3 events of category 'xyz_kernel'": of_new_device,
    "1 event of category 'tpu_op'": of_rows_of_a_device,
    "20 events of category 'xyz_runtime'": lambda trace: calls(trace, "xyz_runtime", "launch"),
    "20 events of category 'privateuse1_driver'": lambda trace: calls(trace, "privateuse1_driver", "nrt_execute"),
    "20 events of category 'hpu_op'": lambda trace: calls(trace, "hpu_op", "gemm"),
    "20 events of category 'glow_runtime'": lambda trace: calls(trace, "glow_runtime", "run"),
}


@EVERY_LAYOUT
@pytest.mark.parametrize("named", REFUSED)
def test_an_unknown_device_is_refused_by_its_categories(tmp_path, layout, named):
    trace = of_cpu()
    REFUSED[named](trace)
    path = trace.op("aten::mm", 3 * MS, 1).write(tmp_path, layout=layout)
    with pytest.raises(NotATrace, match=rf"what its device did is not understood: .*{named}"):
        load_run([path])


def test_an_unknown_device_is_refused_in_a_damaged_file_as_well(tmp_path):
    trace = of_cpu()
    of_new_device(trace)
    path = trace.op("aten::mm", 3 * MS, 1).write(tmp_path, "rank0.json", gz=False)
    path.write_bytes(path.read_bytes()[:-150])
    Trace(1, 2).kernel("gemm", 0, 1 * MS).write(tmp_path, "rank1.json", gz=False)
    run = load_run([tmp_path], keep_going=True)
    assert run.devices == {(1, "0")}
    assert "xyz_kernel" in run.failed[0]


@EVERY_LAYOUT
def test_beside_known_kernels_an_unknown_category_is_a_note(tmp_path, layout):
    trace = of_cuda(1).event("xyz_memcpy", "copy", 4 * MS, 5 * US, pid=0, tid=7, stream=7)
    path = trace.op("aten::mm", 5 * MS, 1).write(tmp_path, layout=layout)
    assert "1 event of the unknown category 'xyz_memcpy' not counted" in warned(path)
    assert breakdown(path)["compute_ns"] == 2 * MS


@EVERY_LAYOUT
def test_what_a_person_marks_on_a_cpu_is_a_note(tmp_path, layout):
    trace = of_cpu().event("my_marks", "forward", 0, 5 * US).op("aten::mm", 5 * MS, 1)
    path = trace.write(tmp_path, layout=layout)
    assert breakdown(path)["device"] == "cpu"
    assert "unknown category 'my_marks'" in warned(path)


def named(*processes: str) -> list[dict[str, Any]]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in enumerate(processes)
    ]


def spans(**more: Any) -> list[dict[str, Any]]:
    return [{"ph": "X", "name": "MatMul", "pid": 0, "tid": 1, "ts": "1010.5", "dur": 10, **more}]


FOREIGN: dict[str, tuple[Any, str]] = {
    "ascend": ([*named("Python", "CANN", "Ascend Hardware"), *spans(cat="cpu_op"), *spans(pid=2)],
               'Ascend\'s profiler .* a process "Ascend Hardware"'),
    "ascend without its device": ([*named("Python", "CANN"), *spans(cat="cpu_op")], 'a process "CANN"'),
    "jax": ({"displayTimeUnit": "ns", "traceEvents": [*named("/device:GPU:0 (pid 1)", "/host:CPU"), *spans()]},
            r"the profiler of JAX or TensorFlow: .* give the `\*\.xplane\.pb` that was written with it"),
    "viztracer": ({"traceEvents": [*named("MainProcess"), *spans(cat="FEE")], "viztracer_metadata": {}}, "VizTracer"),
    "rocprofv3 without events": (
        {"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}, "buffer_records": {"kernel_dispatch": []}}]},
        "shows nothing that a GPU did",
    ),
    "some other": ({"traceEvents": spans()}, "none that torch.profiler writes"),
    "some other with categories": ({"traceEvents": spans(cat="blink")}, "their categories are blink"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_other_tools_are_refused_by_name(tmp_path, capsys, name):
    document, why = FOREIGN[name]
    path = write_bytes(tmp_path / "trace_view.json", json.dumps(document).encode())
    with pytest.raises(NotATrace, match=why):
        load_run([path])
    assert main(["breakdown", str(path)]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("events", [[], named("python")], ids=["no events", "only names"])
def test_a_trace_of_kineto_in_which_nothing_happened_is_one(tmp_path, events):
    path = write_bytes(tmp_path / "a.json", json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    assert load_run([path]).devices == set()


# --- steps of torch 1.9 ----------------------------------------------------------------------------------------------


@EVERY_LAYOUT
@pytest.mark.parametrize("device", ["0", "cpu"])
def test_steps_that_are_operators(tmp_path, layout, device):
    """On a CPU run, they are no compute either."""
    trace = of_cpu() if device == "cpu" else of_cuda(1)
    trace.events = [e for e in trace.events if "ProfilerStep" not in e["name"]]
    for number, at in ((5, 0), (6, 4 * MS)):
        trace.event("Operator", f"ProfilerStep#{number}", at, 4 * MS).event("Operator", "aten::mm", at + 3 * MS, 5 * US)
        if device != "cpu":
            trace.kernel("k", at + 3 * MS, 5 * US)
    run = the_run(trace.write(tmp_path, layout=layout))
    assert run.run.steps == [5, 6]
    assert set(run.run.activities["device"]) == {device}
    assert not run.run.activities["name"].str.startswith("ProfilerStep").any()


@pytest.mark.slow
def test_a_gpu_that_is_listed_but_shows_nothing_is_said_first(tmp_path, capsys):
    drawn = random.Random(3)
    trace = Trace(None, None, backend=None, device_names=("Tesla P100-PCIE-16GB",))
    for number in range(20):
        trace.op("aten::conv2d", number * MS, drawn.randint(900, 990) * US)
    path = trace.write(tmp_path)
    found = Analysis(load_run([path], details=True))
    (verdict,) = records(found.verdicts)
    assert verdict["verdict"] == "inconclusive"
    assert verdict["headline"] == "No GPU activity was traced, though the trace lists 1 GPU, Tesla P100-PCIE-16GB"
    assert "ProfilerActivity.CUDA" in verdict["not_known"]
    assert len(found.remedies) == 0
    assert main([str(path)]) == 0
    shown = capsys.readouterr().out
    assert "compute-bound" not in shown
    assert "What to try" not in shown


@pytest.mark.slow_cases("trace3")
@pytest.mark.parametrize("trace", [
    Trace(None, None, backend=None, device_names=()).op("aten::conv2d", 0, 9 * MS),
    Trace(0, 2, backend="gloo").op("aten::conv2d", 0, 9 * MS),
    Trace(None, None, backend=None).op("aten::conv2d", 0, 9 * MS).gloo("all_reduce", 9 * MS, MS),
    Trace(None, None, backend=None).kernel("gemm", 0, 9 * MS),
])  # fmt: skip
def test_runs_of_cpus_and_of_gpus_lack_no_gpu(tmp_path, trace):
    trace.write(tmp_path)
    found = Analysis(load_run([tmp_path], details=True))
    assert found.run.idle_gpus == ()
    assert "No GPU activity" not in found.verdicts["headline"].iloc[0]
