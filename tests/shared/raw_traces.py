"""What Kineto's files say, read without the code under test: a list of events, times in ns from the first activity."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from beside_checkout import TRACES

ON_DEVICES = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}
CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}
SEVERAL = (
    "torchrec-a2a3/ip-172-31-16-248.us-east-2.compute.internal_29220.1698955894936168439.pt.trace.json.gz",
    "holes/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "lightllm-sglang-427996/10-116-218-90_3536897.1743427996115775873.pt.trace.json.gz",
    "moe-b200-r0of2/ref_ep_moe_fwd.json.gz",
    "tracelens-vllm/2bd22c87_graph_execution.json.gz",
    "vllm-b200-r0of8/eager_trace.json.gz",
    "hta-negq-r0of16/rank0.json.gz",
)
"""Files with CUDA graphs, a compiler, ROCm, and of training and serving."""


@dataclass
class Event:
    """One event; `thread` is the stream of an activity."""

    cat: str
    name: str
    device: str
    thread: int
    start: int
    end: int
    args: dict[str, Any]

    @property
    def correlation(self) -> int | None:
        result = self.args.get("correlation")
        return None if result is None else int(result)


@dataclass
class Raw:
    """The events of a file by what they are."""

    activities: list[Event] = field(default_factory=list)
    calls: list[Event] = field(default_factory=list)
    operators: list[Event] = field(default_factory=list)

    def launches(self) -> dict[int, Event]:
        """The first call of each correlation."""
        result: dict[int, Event] = {}
        for call in sorted(self.calls, key=lambda event: event.start):
            if call.correlation is not None:
                result.setdefault(call.correlation, call)
        return result

    def devices(self) -> dict[str, list[Event]]:
        """The activities of each device, in order of start."""
        result: dict[str, list[Event]] = {}
        for event in sorted(self.activities, key=lambda event: event.start):
            result.setdefault(event.device, []).append(event)
        return result


@cache
def raw(file: str) -> Raw:
    """The events of a file of TRACES."""
    return events_of(TRACES / file)


def events_of(path: Path) -> Raw:
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as stream:
        events = json.load(stream, parse_float=Decimal, strict=False)["traceEvents"]
    result = Raw()
    rooms = dict.fromkeys(ON_DEVICES, result.activities) | dict.fromkeys(CALLS, result.calls)
    rooms |= dict.fromkeys(("cpu_op", "Operator"), result.operators)
    for event in events:
        room = rooms.get(event.get("cat"))
        if room is not None and event.get("ph") == "X":
            args = event.get("args", {})
            start, dur = (round(Decimal(event.get(key, 0)) * 1000) for key in ("ts", "dur"))
            device, thread = event["pid"], event["tid"]
            if room is result.activities:
                device, thread = args.get("device", device), args.get("stream", thread)
            room.append(Event(event["cat"], event["name"], str(device), int(thread), start, start + dur, args))
    zero = min(event.start for event in result.activities)
    for event in (*result.activities, *result.calls, *result.operators):
        event.start -= zero
        event.end -= zero
    return result
