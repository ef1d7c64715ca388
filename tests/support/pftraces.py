"""Traces in Perfetto's format as torch 2.14 writes them, made from Kineto documents, so that both can be compared.

Source: what `encode_pftrace` of torch 2.14.1 made of the same documents. Of some slices it writes all begins, then
all ends; kernels end no later than the next one on their stream begins.
"""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

from protobufs import double, integer, message

STAGES = {"kernel": (1, "Kernel"), "gpu_memcpy": (2, "Memcpy"), "gpu_memset": (3, "Memset")}
_ARGUMENTS = {1: "registers_per_thread"}
KEPT = ("device", "context", "stream", "correlation", "bytes", "memory kind")
META = (
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
    "Process Group Ranks", "Seq", "Comms Id",
)  # fmt: skip
_OF_THREADS = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")


def clamped(document: dict[str, Any]) -> dict[str, Any]:
    """The document with kernels that end when the next one on their stream begins, as .pftrace has them."""
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = {}
    events = [dict(event) for event in document["traceEvents"]]
    for event in events:
        if event.get("cat") in STAGES:
            lanes.setdefault((event["args"]["device"], event["args"]["stream"]), []).append(event)
    for lane in lanes.values():
        lane.sort(key=lambda event: event["ts"])
        for before, after in pairwise(lane):
            before["dur"] = round(min(before["dur"], after["ts"] - before["ts"]), 3)
    return document | {"traceEvents": events}


def encoded(document: dict[str, Any]) -> bytes:
    """The document as packets."""
    base = int(document.get("baseTimeNanoseconds", 0))
    texts: dict[tuple[int, str], int] = {}

    def number(kind: int, text: str) -> int:
        return texts.setdefault((kind, text), sum(known == kind for known, _ in texts) + 1)

    def note(name: str | None, value: Any) -> bytes:
        content = b"" if name is None else message(10, name)
        if isinstance(value, bool):
            return content + integer(2, int(value))
        if isinstance(value, int):
            return content + integer(4, value)
        if isinstance(value, float):
            return content + double(5, value)
        if isinstance(value, list):
            return content + b"".join(message(12, note(None, each)) for each in value)
        return content + message(6, str(value))

    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    tracks: dict[tuple[int, int], int] = {}
    begins = ends = work = b""
    for event in events:
        start = base + round(event["ts"] * 1000)
        end, args = start + round(event.get("dur", 0) * 1000), event.get("args", {})
        if event.get("cat") in _OF_THREADS:
            track = tracks.setdefault((event["pid"], event["tid"]), len(tracks) + 2)
            said = integer(3, number(1, event["cat"]))
            said += b"".join(message(4, note(*each)) for each in args.items())
            said += integer(9, 1) + integer(10, number(2, event["name"])) + integer(11, track)
            begins += message(1, integer(8, start) + integer(10, 1) + message(11, said) + integer(13, 2))
            ends += message(1, integer(8, end) + integer(10, 1) + message(11, integer(9, 2) + integer(11, track)))
        elif event.get("cat") in STAGES:
            stage, _ = STAGES[event["cat"]]
            extra = {f"{k} id" if k in KEPT[:3] else k: args[k] for k in KEPT if k in args}
            extra |= {k: args[k] for k in META if k in args}
            said = integer(2, end - start) + b"".join(
                message(6, message(1, name) + message(2, str(value))) for name, value in extra.items()
            )
            said += integer(11, args["device"]) + integer(14, stage)
            if stage == 1:
                said += integer(20, number(2, event["name"]))
                said += message(21, message(3, integer(1, 1) + integer(4, args.get("registers per thread", 0))))
            work += message(1, integer(8, start) + integer(10, 1) + integer(13, 2) + message(53, said))
    named = b"".join(message(kind, integer(1, n) + message(2, text)) for (kind, text), n in texts.items())
    named += b"".join(message(24, integer(1, n) + message(2, name)) for n, name in STAGES.values())
    named += b"".join(message(1001, integer(1, n) + message(2, name)) for n, name in _ARGUMENTS.items())
    clock = message(1, message(6, message(1, integer(1, 6) + integer(2, base))) + integer(8, base) + integer(10, 1))
    described = b"".join(
        message(1, message(60, integer(1, track) + message(4, integer(1, pid) + integer(2, tid)) + integer(5, 1)))
        for (pid, tid), track in tracks.items()
    )
    return clock + described + message(1, integer(10, 1) + message(12, named) + integer(13, 1)) + begins + ends + work


def write(document: dict[str, Any], path: Path, *, packed: bool = True) -> Path:
    """Write it, packed as torch does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = encoded(document)
    path.write_bytes(gzip.compress(content) if packed else content)
    return path
