"""A second opinion: HolisticTraceAnalysis. Tests that ask for it skip where it is not installed."""

from __future__ import annotations

import gzip
import importlib
import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

VERSION = "0.6.1"
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_CALLS = {"cuda_runtime", "cuda_driver", "runtime"}


def hta(module: str = "hta.trace_analysis") -> Any:
    """A module of the version that documents and tests are about."""
    pytest.importorskip("hta.version", minversion=VERSION, reason=f"HolisticTraceAnalysis {VERSION} is not installed")
    return importlib.import_module(module)


@contextmanager
def to_the_ns() -> Iterator[None]:
    """Meanwhile it does not round the times of traces to microseconds."""
    options = hta("hta.configs.env_options").HTAEnvOptions.instance()
    before = options.disable_ns_rounding()
    options.set_disable_ns_rounding(True)
    try:
        yield
    finally:
        options.set_disable_ns_rounding(before)


def trace_analysis(traces: Path, folder: Path) -> Any:
    """Its analysis of the traces in a folder, the last step included; it writes where it reads, so of a copy."""
    copied = shutil.copytree(traces, folder, copy_function=shutil.copy, dirs_exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            return hta().TraceAnalysis(trace_dir=str(copied), include_last_profiler_step=True)
        finally:
            logging.disable(logging.NOTSET)


def idle_by_category(theirs: Any) -> dict[str, float]:
    """What it says of rank 0, whose kernels are on one stream, in ns: host_wait, kernel_wait, other."""
    table = theirs.get_idle_time_breakdown(visualize=False)[0]
    assert table["stream"].nunique() == 1
    return {name: 1000 * float(us) for name, us in zip(table["idle_category"], table["idle_time"], strict=True)}


class Gap(NamedTuple):
    """A gap of a stream, and when the call began and ended that launched what ended it; ns."""

    start: int
    end: int
    launch: tuple[int, int] | None


def gaps_of_one_stream(trace: Path) -> tuple[list[Gap], int]:
    """The gaps, and for how long kernels of the stream overlapped, in ns: from the JSON, as slowly as one likes."""
    content = trace.read_bytes()
    events = json.loads(gzip.decompress(content) if trace.suffix == ".gz" else content)["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X"]
    launches: dict[int, tuple[int, int]] = {}
    for event in complete:
        if str(event.get("cat")).lower() in _CALLS and "correlation" in event["args"]:
            launches.setdefault(event["args"]["correlation"], _times(event))
    activities = [event for event in complete if str(event.get("cat")).lower() in _ON_DEVICE]
    assert len({event["args"]["stream"] for event in activities}) == 1
    ran = sorted((*_times(event), event["args"]["correlation"]) for event in activities)
    gaps, overlapped = [], 0
    for (_, end, _), (begin, _, correlation) in pairwise(ran):
        if begin >= end:
            gaps.append(Gap(end, begin, launches.get(correlation)))
        overlapped += max(end - begin, 0)
    return gaps, overlapped


def _times(event: dict[str, Any]) -> tuple[int, int]:
    return round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
