"""The tables of device time. What dtypes, units and names mean: `schema.py`, which has these tables too."""

from __future__ import annotations

from .tables import Schema

_RANK = ("int64", "global rank")
_CYCLE = ("int64", "profiling cycle of that rank, from 0: one trace file each")
_DEVICE = ("string", "CUDA ordinal on that rank, or `cpu`")

# --- what a reader gives -------------------------------------------------------------------------------------------

CPU_OPERATORS = Schema("cpu_operators", "CPU operator of a GPU run, read with details only", {
    "rank": _RANK,
    "cycle": _CYCLE,
    "thread": ("int64", "thread id"),
    "name": ("string", "aten::mm, autograd::engine::evaluate_function: MulBackward0, ..."),
    "start_ns": ("int64", "start"),
    "dur_ns": ("int64", "duration"),
})  # fmt: skip

MEMORY = Schema("memory", "allocation or release, read with details only, captured with profile_memory", {
    "rank": _RANK,
    "cycle": _CYCLE,
    "device": _DEVICE,
    "time_ns": ("int64", "when"),
    "allocated_bytes": ("Int64", "allocated on the device from then on"),
    "reserved_bytes": ("Int64", "held by the caching allocator from then on"),
})  # fmt: skip

STEP_TIMES = Schema("step_times", "rank and step that its side file lists, profiled or not", {
    "rank": _RANK,
    "step": ("int64", "number of the step, from 0"),
    "phase": ("string", "idle, warmup or active: what the profiler did"),
    "dur_ns": ("int64", "length of the step"),
})  # fmt: skip
