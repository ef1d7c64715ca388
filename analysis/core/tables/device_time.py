"""The tables of device time. What dtypes, units and names mean: `communication.py`, which has them too."""

from __future__ import annotations

from ..schema import Schema

_RANK = ("int64", "global rank")
_CYCLE = ("int64", "profiling cycle of that rank, from 0: one trace file each")
_DEVICE = ("string", "CUDA ordinal on that rank, or `cpu`")
_PARTIAL = ("boolean", "a file of this rank is damaged: nothing after the damage is counted here")
_PARTIAL_RUN = ("boolean", "a file of any rank is damaged: nothing after the damage is counted here")

# --- what a reader gives -------------------------------------------------------------------------------------------

CPU_OPERATORS = Schema("cpu_operators", "CPU operator of a GPU run, read with details only", {
    "rank": _RANK,
    "cycle": _CYCLE,
    "thread": ("int64", "thread id"),
    "name": ("string", "aten::mm, autograd::engine::evaluate_function: MulBackward0, ..."),
    "start_ns": ("int64", "start"),
    "dur_ns": ("int64", "duration"),
})  # fmt: skip

RUNTIME_CALLS = Schema("runtime_calls", "call of the CUDA runtime on a CPU, read with details only", {
    "rank": _RANK,
    "cycle": _CYCLE,
    "thread": ("int64", "thread id"),
    "name": ("string", "cudaLaunchKernel, cudaEventRecord, cudaStreamSynchronize, ..."),
    "correlation": ("Int64", "the same as that of the activity it launched, if it launched one"),
    "start_ns": ("int64", "start"),
    "dur_ns": ("int64", "duration"),
})  # fmt: skip

STREAM_WAITS = Schema("stream_waits", "call that made a stream wait for an event, read with details only", {
    "rank": _RANK,
    "cycle": _CYCLE,
    "correlation": ("Int64", "of the call"),
    "device": _DEVICE,
    "stream": ("Int64", "stream that waits"),
    "recorded": ("Int64", "correlation of the call that recorded the event; NA where the trace does not tell"),
    "recorded_stream": ("Int64", "stream on which it was recorded; NA where the trace does not tell"),
    "start_ns": ("int64", "start"),
})  # fmt: skip

MEMORY_EVENTS = Schema("memory", "allocation or release, read with details only, captured with profile_memory", {
    "rank": _RANK,
    "cycle": _CYCLE,
    "device": _DEVICE,
    "time_ns": ("int64", "when"),
    "allocated_bytes": ("Int64", "allocated on the device from then on"),
    "reserved_bytes": ("Int64", "held by the caching allocator from then on"),
})  # fmt: skip

STEP_TIMES = Schema("step_times", "rank and step listed in its side file, profiled or not", {
    "rank": _RANK,
    "step": ("int64", "number of the step, from 0"),
    "phase": ("string", "idle, warmup or active: what the profiler did"),
    "dur_ns": ("int64", "length of the step"),
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
    "drained_ns": ("Int64", "starved_ns of gaps that began within a blocking call of that thread"),
    "note": ("string", "why something is NA"),
    "partial": _PARTIAL,
}  # fmt: skip
IDLE = Schema("idle", "rank and device", {"rank": _RANK, "device": _DEVICE, **_IDLE})
IDLE_STEPS = Schema("idle_steps", "rank, device and step", {
    "rank": _RANK, "device": _DEVICE, "step": ("int64", "N of ProfilerStep#N"), **_IDLE,
})  # fmt: skip

_SYNCS = {
    "kind": ("string", "sync: it returns when the device has done something; alloc: it allocates or frees memory"),
    "name": ("string", "cudaStreamSynchronize, cudaMalloc, cudaFree, ..."),
    "operator": ("string", "innermost CPU operator around the call; NA outside of all"),
    "annotation": ("string", "innermost annotation around it, steps excepted; NA outside of all"),
    "calls": ("int64", "how often"),
    "total_ns": ("int64", "sum of the durations"),
    "longest_ns": ("int64", "longest"),
    "lost_ns": ("int64", "starved time of devices during these calls, as in sync_ns and alloc_ns of `idle`"),
    "partial": _PARTIAL,
}  # fmt: skip
SYNCS = Schema("syncs", "rank, call of the runtime that blocks or allocates, and operator", {"rank": _RANK, **_SYNCS})
SYNCS_STEPS = Schema("syncs_steps", "rank, step, call of the runtime that blocks or allocates, and operator", {
    "rank": _RANK, "step": ("Int64", "N of the ProfilerStep#N in which the call began; NA outside of all"), **_SYNCS,
})  # fmt: skip
