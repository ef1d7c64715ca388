"""Traces as torch 2.14 and later write them with `cupti_monitor`: the same events, copies and fills said otherwise.

Source: torch/profiler/_cupti/monitor_trace.py of torch 2.14.1. Written anew from what its files look like.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

_COPY = re.compile(r"Memcpy (\S+) \((.+) -> (.+)\)")
_NUMBERS = {"HtoH": 9}
"""Directions that torch has no name for, and writes as CUPTI's number."""
_MEMORIES = ("unknown", "pageable", "pinned", "device", "array", "managed", "device_static", "managed_static")


def converted(event: dict[str, Any]) -> dict[str, Any]:
    """The event in the new form; any but a copy or fill is as before."""
    name = event.get("name", "")
    said = _COPY.fullmatch(name)
    if event.get("cat") == "gpu_memcpy" and said is not None:
        way, source, target = said.groups()
        kinds = {"copy kind": _NUMBERS.get(way, way), "src kind": _memory(source), "dst kind": _memory(target)}
        return event | {"name": "Memcpy", "args": event["args"] | kinds | {"flags": 0}}
    if event.get("cat") == "gpu_memset":
        memory = _MEMORIES.index(_memory(name.removeprefix("Memset (").removesuffix(")")))
        return event | {"name": "Memset", "args": event["args"] | {"memory kind": memory, "value": 0}}
    return event


def convert(source: Path, target: Path) -> int:
    """Write the trace anew, compact as torch then writes it; the number of events that differ."""
    packed = source.name.endswith(".gz")
    content = source.read_bytes()
    document = json.loads(gzip.decompress(content) if packed else content)
    events = document["traceEvents"]
    document["traceEvents"] = [converted(event) for event in events]
    text = json.dumps(document, separators=(",", ":")).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(text, 1) if packed else text)
    return sum(a is not b for a, b in zip(events, document["traceEvents"], strict=True))


def _memory(said: str) -> str:
    name = said.lower().replace(" ", "_")
    return name if name in _MEMORIES else "unknown"
