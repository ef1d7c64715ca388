"""The tables of device time. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema

_RANK = ("int64", "global rank")
_CYCLE = ("int64", "profiling cycle of that rank, from 0: one trace file each")
_DEVICE = ("string", "CUDA ordinal on that rank, or `cpu`")
_PARTIAL = ("boolean", "a file of this rank contradicts itself, or is damaged: nothing after that is counted here")
_PARTIAL_RUN = ("boolean", "a file of any rank contradicts itself, or is damaged: nothing after that is counted here")

# --- what a reader gives -------------------------------------------------------------------------------------------

CAPTURED_CALLS = Schema("captured_calls", "call that added a kernel, copy or fill to a CUDA graph", {
    "rank": _RANK,
    "cycle": ("int64", "number of the file that traces the capture"),
    "graph": ("int64", "number of the graph in that file"),
    "is_delimited": ("boolean", "whether the file says where the capture of each graph began and ended"),
    "size": ("Int64", "size of the batch that it was captured for; NA if no name says it"),
    "thread": ("int64", "thread id"),
    "start_ns": ("int64", "start"),
    "kernel": ("string", "name of the kernel, or `copy` or `fill`; NA if the trace does not name it"),
})  # fmt: skip

STEP_TIMES = Schema("step_times", "rank and step listed in its side file, profiled or not", {
    "rank": _RANK,
    "step": ("int64", "number of the step, from 0"),
    "phase": ("string", "idle, warmup or active: what the profiler did"),
    "dur_ns": ("int64", "length of the step"),
    "wall_ns": ("Int64", "the same on the host's clock; this and what follows is NA unless the step was traced"),
    "cpu_ns": ("Int64", "how long the thread that trains ran on a CPU"),
    "ready_ns": ("Int64", "how long it could have run, but had no CPU; NA where the system does not say"),
    "gc_ns": ("Int64", "how long Python collected garbage"),
    "eval_ns": ("Int64", "how long a model was evaluated, from eval() to train()"),
    "checkpoint_ns": ("Int64", "how long torch.save took"),
    "compile_ns": ("Int64", "how long torch.compile compiled"),
})  # fmt: skip

# --- device time ---------------------------------------------------------------------------------------------------

_SHARES = {
    "calls": ("int64", "how often it ran"),
    "total_ns": ("int64", "sum of the durations"),
    "share_frac": ("Float64", "total_ns / sum of total_ns over the rows of these devices"),
    "mean_us": ("Float64", "total_ns / calls"),
    "min_us": ("Float64", "shortest"),
    "max_us": ("Float64", "longest"),
    "split_calls": ("Int64", "communication calls that could be split into wait and transfer; NA for compute"),
    "wait_ns": ("Int64", "waiting for other ranks in the calls that could be split; NA if none could"),
    "transfer_ns": ("Int64", "the rest of those calls"),
    "hidden_ns": ("Int64", "communication while the device computed; NA for compute, and where a file is damaged"),
    "wait_share_frac": ("Float64", "the part of share_frac that is waiting"),
    "transfer_share_frac": ("Float64", "the part of share_frac that is transfer"),
    "hidden_share_frac": ("Float64", "the part of share_frac that is hidden"),
    "blocks_per_sm": ("Float64", "mean over the calls that have it, weighted by duration"),
    "occupancy_frac": ("Float64", "estimated achieved occupancy, likewise"),
}  # fmt: skip
KERNEL = {
    "name": ("string", "kernel or copy between GPUs; on CPU runs, operator"),
    "kind": ("string", "compute or comm"),
}  # fmt: skip
OPERATOR = {
    "operator": ("string", "innermost CPU operator around the launch; NA for launches outside every operator"),
    "kind": ("string", "compute or comm; NA for an operator that launched both"),
    "kernels": ("int64", "different kernels that it launched"),
}  # fmt: skip
ANNOTATION = {
    "annotation": ("string", "innermost annotation of your own around the launch; NA for launches outside of all"),
    "kind": ("string", "compute or comm; NA where both were launched in it"),
    "kernels": ("int64", "different kernels that were launched in it"),
}  # fmt: skip
_RANKS = {"ranks": ("int64", "ranks on which it ran")}

KERNELS = Schema("kernels", "kernel, all ranks and devices together", {
    **KERNEL, **_RANKS, **_SHARES, "partial": _PARTIAL_RUN,
})  # fmt: skip
KERNELS_DEVICES = Schema("kernels_devices", "rank, device and kernel", {
    "rank": _RANK, "device": _DEVICE, **KERNEL, **_SHARES, "partial": _PARTIAL,
})  # fmt: skip
OPERATORS = Schema("operators", "operator that launched kernels, all ranks and devices together", {
    **OPERATOR, **_RANKS, **_SHARES, "partial": _PARTIAL_RUN,
})  # fmt: skip
OPERATORS_DEVICES = Schema("operators_devices", "rank, device and operator that launched kernels", {
    "rank": _RANK, "device": _DEVICE, **OPERATOR, **_SHARES, "partial": _PARTIAL,
})  # fmt: skip

ANNOTATION_TIMES = Schema("annotation_times", "annotation in which kernels were launched, all ranks together", {
    **ANNOTATION, **_RANKS, **_SHARES, "partial": _PARTIAL_RUN,
})  # fmt: skip
ANNOTATION_TIMES_DEVICES = Schema(
    "annotation_times_devices", "rank, device and annotation in which kernels were launched", {
    "rank": _RANK, "device": _DEVICE, **ANNOTATION, **_SHARES, "partial": _PARTIAL,
})  # fmt: skip

GPUS = Schema("gpus", "rank and GPU", {
    "rank": _RANK,
    "device": _DEVICE,
    "device_name": ("string", "GPU, or NA"),
    "steps": ("int64", "steps in window_ns; 0 if none are marked"),
    "window_ns": ("int64", "all steps together, as TensorBoard's plugin bounds them; over several cycles, their sum"),
    "busy_ns": ("int64", "part of it in which at least one kernel ran; copies and fills do not count"),
    "utilisation_frac": ("Float64", "busy_ns / window_ns"),
    "sm_efficiency_frac": ("Float64", "mean over window_ns of min(blocks per SM of all running kernels, 1)"),
    "occupancy_frac": ("Float64", "mean estimated achieved occupancy of the kernels, weighted by duration"),
    "note": ("string", "why something is NA"),
    "partial": _PARTIAL,
})  # fmt: skip

# --- idle time -----------------------------------------------------------------------------------------------------

_IDLE = {
    "window_ns": ("int64", "as in `breakdown`"),
    "idle_ns": ("int64", "part of it in which nothing ran: no kernel, no copy, no fill"),
    "starved_ns": ("Int64", "the call that launched what ended the gap had not begun: the host was not there yet"),
    "launching_ns": ("Int64", "in that call"),
    "queued_ns": ("Int64", "after that call: the device was slow to begin, or waited for another stream"),
    "unknown_ns": ("Int64", "no call in the trace launched what ended the gap"),
    "sync_ns": ("Int64", "part of starved_ns: the launching thread was in a blocking call, cudaStreamSynchronize ..."),
    "alloc_ns": ("Int64", "part of starved_ns: otherwise in a call that allocates or frees, cudaMalloc, cudaFree ..."),
    "data_ns": ("Int64", "part of starved_ns: otherwise it was getting a batch from the DataLoader"),
    "operator_ns": ("Int64", "part of starved_ns: otherwise it was in any other operator"),
    "outside_ns": ("Int64", "part of starved_ns: it was in none of these; mostly Python of the user"),
    "gc_ns": (
        "Int64",
        "part of operator_ns and outside_ns: Python collected garbage; NA where the run has no record of that",
    ),
    "cpu_comm_ns": ("Int64", "likewise: otherwise its CPU communicated, or waited for those of others: gloo, barrier"),
    "compile_ns": ("Int64", "likewise: otherwise torch.compile, NVRTC or another compiler was at work"),
    "python_ns": ("Int64", "part of outside_ns: none of these three either; mostly Python of the user"),
    "drained_ns": ("Int64", "starved_ns of gaps that began within a blocking call of that thread"),
    "note": ("string", "why something is NA"),
    "partial": _PARTIAL,
}  # fmt: skip
IDLE = Schema("idle", "rank and device", {"rank": _RANK, "device": _DEVICE, **_IDLE})
IDLE_STEPS = Schema("idle_steps", "rank, device and step", {
    "rank": _RANK, "device": _DEVICE, "step": ("int64", "N of ProfilerStep#N"), **_IDLE,
})  # fmt: skip

GAPS = Schema("gaps", "gap in what a device ran", {
    "rank": _RANK,
    "device": _DEVICE,
    "step": ("Int64", "N of the ProfilerStep#N in whose window it lies; NA outside of all"),
    "start_ns": ("int64", "when the device began to be idle, on that rank's clock"),
    "idle_ns": ("int64", "length: nothing ran, no kernel, no copy, no fill"),
    **{name: column for name, column in _IDLE.items() if name.endswith("_ns") and column[0] == "Int64"},
    "cause": ("string", "the largest part: sync, alloc, data, operator, outside, launching, queued, unknown"),
    "thread": ("Int64", "thread that launched what ended the gap"),
    "call": ("string", "blocking or allocating call of that thread that covers most of starved_ns; NA without one"),
    "operator": ("string", "innermost operator of that thread when it began what `cause` says; NA outside of all"),
    "annotation": ("string", "innermost annotation at that moment, steps excepted; NA outside of all"),
    "module": ("string", "innermost nn.Module at that moment, Linear_3; NA outside of all, and where none is recorded"),
    "before": ("string", "kernel, copy or fill that ended last"),
    "after": ("string", "kernel, copy or fill that ended the gap"),
    "note": ("string", "why something is NA"),
    "partial": _PARTIAL,
})  # fmt: skip
