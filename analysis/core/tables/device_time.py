"""The tables of device time. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema

_RANK = ("int64", "global rank")

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
