"""Write events as Kineto would, for readers of other formats that hold the same: texts as `read_texts` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .events import WINDOW_END

WORK_CATEGORIES = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
"""The category of what a device does, by what torch calls it in Perfetto's format."""
CALL_CATEGORY, OPERATOR_CATEGORY, MARK_CATEGORY = "cuda_runtime", "cpu_op", "user_annotation"
"""Categories of events on a CPU: runtime calls, operators, and ranges that people mark."""
Where = tuple[int | str, int]
"""Process and thread; of a device its number, and 0."""


def event_text(
    category: str, name: str, where: Where, ts_us: float, dur_us: float, arguments: Mapping[str, Any]
) -> bytes:
    """An event that takes time, with its arguments by Kineto's names. Times in us."""
    pid, tid = where
    return _text(
        {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts_us, "dur": dur_us,
         "args": arguments}
    )  # fmt: skip


def work_arguments(
    device: int,
    stream: int,
    correlation: int | None,
    *,
    size: int | None = None,
    operation: str | None = None,
    blocks_per_unit: float | None = None,
) -> dict[str, Any]:
    """The arguments of an activity of a device; what is not known is left out."""
    known = {
        "device": device, "stream": stream, "correlation": correlation, "bytes": size, "Collective name": operation,
        "blocks per SM": blocks_per_unit,
    }  # fmt: skip
    return {name: value for name, value in known.items() if value is not None}


def call_arguments(correlation: int | None) -> dict[str, Any]:
    """The arguments of a call of the runtime."""
    return {} if correlation is None else {"correlation": correlation}


def counter_text(gpu: int, name: str, ts_us: float, value: float) -> bytes:
    """A sample of a counter of a GPU."""
    pid = f"GPU {gpu} Counters"
    return _text({"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": ts_us, "args": {"": value}})


def window_end_text(ts_us: float) -> bytes:
    """The moment at which the profiler stopped."""
    return _text({"ph": "i", "name": WINDOW_END, "pid": "", "tid": "", "ts": ts_us})


def _text(event: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(event)[2:-1]
