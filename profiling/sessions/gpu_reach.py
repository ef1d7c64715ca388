"""Check that the GPU part of an exported trace reaches the end of the traced steps.

Kineto stops recording a GPU when its buffers are full, and then writes what it has. There are two signs of that. A
sound trace has neither, because the profiler waits for the device before it ends:

- the last launches have no activity;
- operators go on, but the GPU is active in a much smaller part of the last step than of the steps before it. Launches
  are recorded by the same buffers as kernels, so they may be missing, too.
"""

import mmap
import re
from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# As Kineto writes an event: two lines up to its times in us. Three searches are twice as fast as one for all kinds.
_TIMES = rb'[^\n]*\n\s*"ts": ([\d.]+), "dur": ([\d.]+)'
_ID = rb'[^}]*?"correlation": (\d+)'  # the same for a launch and what it launched
_GPU = re.compile(rb'"cat": "(?:kernel|gpu_memcpy|gpu_memset)", ' + _TIMES + _ID)
_LAUNCHES = re.compile(
    rb'"cat": "cuda_(?:runtime|driver)", "name": "\w*(?:Launch(?:Cooperative)?Kernel|GraphLaunch)' + _TIMES + _ID
)
_STEPS = re.compile(rb'"cat": "user_annotation", "name": "ProfilerStep#' + _TIMES)
_OPERATORS = re.compile(rb'"cat": "cpu_op", ' + _TIMES)
# A few prove nothing: what is launched or called while the profiler ends may be missed.
_LEAST = 10
_LEAST_REACH = 0.5
# Shorter than this part of the others, the last step is what the profiler opened before it was stopped.
_LEAST_STEP = 0.5

_Events = NDArray[np.float64]


def cut_short(path: Path) -> str | None:
    """Why the GPU part of a trace is incomplete; None if nothing shows that."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        gpu, launches = _events(_GPU, text), _events(_LAUNCHES, text)
        missing = _last_missing(launches, gpu)
        if missing >= _LEAST:
            return f"the last {missing:,} kernels that were launched are not in it"
        last_us = gpu[:, 1].max(initial=-np.inf)
        steps = _whole_steps(_events(_STEPS, text))
        if not len(gpu) or not _falls_behind(gpu, steps):
            return None
        if (_events(_OPERATORS, text)[:, 0] > last_us).sum() < _LEAST:
            return None  # the program itself stood still
    return f"the GPU's activity ends {(steps[-1, 1] - last_us) / 1e3:,.1f} ms before the last step, and operators go on"


def _last_missing(launches: _Events, gpu: _Events) -> int:
    """Number of launches after the last one with an activity."""
    made = np.isin(launches[np.argsort(launches[:, 0]), 2], gpu[:, 2])
    return int(len(made) - 1 - np.flatnonzero(made)[-1]) if made.any() else len(made)


def _whole_steps(steps: _Events) -> _Events:
    steps = steps[np.argsort(steps[:, 0])]
    lengths = steps[:, 1] - steps[:, 0]
    is_rest = len(steps) > 1 and lengths[-1] < _LEAST_STEP * np.median(lengths[:-1])
    return steps[:-1] if is_rest else steps


def _falls_behind(gpu: _Events, steps: _Events) -> bool:
    """Whether GPU activity ends much earlier within the last step than within the steps before."""
    gpu = gpu[np.argsort(gpu[:, 0])]
    begun = np.searchsorted(gpu[:, 0], steps[:, 1])
    last_us = np.append(-np.inf, np.maximum.accumulate(gpu[:, 1]))[begun]
    reach = np.clip((last_us - steps[:, 0]) / np.maximum(steps[:, 1] - steps[:, 0], 1e-3), 0, 1)
    return len(reach) > 1 and bool(reach[-1] < _LEAST_REACH * np.median(reach[:-1]))


def _events(kind: "re.Pattern[bytes]", text: mmap.mmap) -> _Events:
    """Start and end of each event of a kind, in us, and the other groups of its pattern."""
    numbers = array("d", (float(number) for match in kind.finditer(text) for number in match.groups()))
    events = np.frombuffer(numbers).reshape(-1, kind.groups)
    events[:, 1] += events[:, 0]
    return events
