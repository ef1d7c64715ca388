"""Runs without a GPU: the CPU's operators are compute, gloo's operations are communication."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core import markers
from ..core.intervals import Spans, Times, complement, spans, subtract, union
from ..core.kinds import COMM, COMPUTE
from ..core.steps import with_steps
from ..core.tables.events import ACTIVITIES
from .file_tables import TraceFile

# Sent and received on the calling thread, not on one of gloo's.
GLOO_POINT_TO_POINT = tuple(f"{markers.GLOO_MARK}{what}" for what in ("send", "recv", "recvAnySource"))
_SOON_NS, _SOON = 100_000, 0.05
"""Code that waited for a call goes on so soon after the call's end, or after that share of its wait."""


def cpu_activities(file: TraceFile) -> pd.DataFrame:
    """The activities of the file; if it has none on a GPU, those of the CPU as device `cpu`.

    Compute is the outermost operators of every thread that is not gloo's, less the time in which they are blocked in a
    collective, and without operators that only hand one over or wait for it. An operator that is blocked in its midst
    is several activities. Communication is gloo's operations, from the beginning of the work on each; a send or receive
    from the beginning of its c10d operator. A file that shows only the CPU side of a GPU run has no activities, nor has
    one that was damaged before they came, nor one that shows launches only.
    """
    if len(file.activities) or file.launched:
        return file.activities
    annotations = file.annotations
    names = annotations["name"].astype(str)
    gpu_run = names.str.startswith(markers.OF_BACKENDS).any() or (file.header.backend or markers.GLOO) == markers.NCCL
    gpu_run |= file.damage is not None and bool(file.header.device_names or len(file.launches))
    if gpu_run:
        return file.activities
    of_gloo, of_c10d = (annotations[names.str.startswith(mark)] for mark in (markers.GLOO_MARK, markers.C10D))
    gloo = _with_issue(of_gloo, of_c10d)
    threads = file.gloo_threads | set(gloo["thread"][~gloo["name"].isin(GLOO_POINT_TO_POINT)])
    computing = [
        _computing(ops, of_c10d[of_c10d["thread"] == thread], gloo)
        for thread, ops in file.cpu_ops.groupby("thread")
        if thread not in threads
    ]
    ops = pd.concat(computing) if computing else file.cpu_ops[:0]
    return ACTIVITIES.concat([_activities(ops, COMPUTE), _activities(gloo, COMM)])


def with_activities(file: TraceFile) -> TraceFile:
    """Add what ran to the file, each activity in its step."""
    marks = ((row["name"], row["start_ns"], row["dur_ns"]) for row in file.annotation_rows)
    ran, unseen_ns = with_steps(cpu_activities(file), file.launches, marks, on_device=file.header.steps_on_device)
    return replace(file, ran=ran, unseen_ns=unseen_ns)


def _activities(events: pd.DataFrame, kind: str) -> pd.DataFrame:
    return ACTIVITIES.conform(pd.DataFrame({
        **dict.fromkeys(ACTIVITIES.columns, pd.NA),
        "rank": 0,
        "cycle": 0,
        "device": "cpu",
        "stream": events["thread"],
        "kind": kind,
        "name": events["name"],
        "start_ns": events["start_ns"],
        "dur_ns": events["dur_ns"],
    }))  # fmt: skip


def _computing(ops: pd.DataFrame, c10d: pd.DataFrame, gloo: pd.DataFrame) -> pd.DataFrame:
    """The outermost operators of a thread, cut where they wait for a collective; `gloo` is of all threads."""
    ordered = ops.sort_values(["start_ns", "dur_ns"], ascending=[True, False])
    functional = ordered["name"].astype(str).str.startswith(markers.FUNCTIONAL).to_numpy()
    does = ordered[~functional]
    handing = union(spans(*_times(ordered[functional])), spans(*_times(c10d)))
    starts, ends = _times(does)
    around = np.searchsorted(handing.starts, starts, side="right") - 1
    inside = (around >= 0) & (ends <= np.append(handing.ends, 0)[around])
    blocked = union(subtract(handing, spans(starts[inside], ends[inside])), _blocked(ordered, c10d, gloo))
    return _without(_outermost(does), blocked)


def _outermost(ordered: pd.DataFrame) -> pd.DataFrame:
    """Operators not nested in another one, of operators of one thread by start, the longest first."""
    ends = _times(ordered)[1]
    reach: NDArray[np.int64] = np.maximum.accumulate(ends)
    return ordered[np.concatenate(([True], ends[1:] > reach[:-1]))[: len(ends)]]


def _blocked(ordered: pd.DataFrame, c10d: pd.DataFrame, gloo: pd.DataFrame) -> Spans:
    """Time in which operators of a thread wait in their own code for one of gloo's operations.

    Nobody returns from a wait before the operation has ended. So its end lies where no nested operator runs, and what
    precedes it there, since that operator or since a collective was issued, was waiting if the operator had issued a
    collective before the operation began. An operation of others was waited for if the operator goes on right after its
    end, and issues collectives or is no kernel (whose name has a namespace): a kernel may end when others' do.
    """
    (starts, ends), issued = _times(ordered), np.sort(_times(c10d)[0])
    bounds: Times = np.unique(np.concatenate((starts, ends, issued)))
    names = ordered["name"].to_numpy()
    found = []
    for start, end in zip(*(times.tolist() for times in _times(gloo)), strict=True):
        place = int(np.searchsorted(bounds, end))
        if not 0 < place < len(bounds):
            continue
        since, until = int(bounds[place - 1]), int(bounds[place])
        around = np.flatnonzero(ends[: np.searchsorted(starts, since, side="right")] >= until)
        if not len(around):
            continue
        inner = around[-1]
        first_issue = np.searchsorted(issued, starts[inner])
        has_issued = first_issue < len(issued) and issued[first_issue] <= since
        is_its_own = has_issued and issued[first_issue] <= start
        waited_since = since if is_its_own else max(since, start)
        may_wait = has_issued or "::" not in names[inner] or names[inner].startswith(markers.EVALUATE)
        if is_its_own or (may_wait and until - end <= max(_SOON_NS, _SOON * (end - waited_since))):
            found.append((waited_since, end))
    since_ns, until_ns = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return spans(since_ns, until_ns)


def _without(ops: pd.DataFrame, blocked: Spans) -> pd.DataFrame:
    """What remains of each operator outside of `blocked`, one row per piece."""
    (starts, ends), free = _times(ops), complement(blocked)
    first = np.searchsorted(free.ends, starts, side="right")
    count = np.maximum(np.searchsorted(free.starts, ends, side="left") - first, 0)
    op = np.repeat(np.arange(len(ops)), count)
    piece = np.arange(len(op)) - np.repeat(np.cumsum(count) - count - first, count)
    begin = np.maximum(starts[op], free.starts[piece])
    return ops.iloc[op].assign(start_ns=begin, dur_ns=np.minimum(ends[op], free.ends[piece]) - begin)


def _times(events: pd.DataFrame) -> tuple[Times, Times]:
    """Starts and ends, in ns, both of shape (events,)."""
    starts = events["start_ns"].to_numpy(dtype=np.int64)
    return starts, starts + events["dur_ns"].to_numpy(dtype=np.int64)


def _with_issue(gloo: pd.DataFrame, c10d: pd.DataFrame) -> pd.DataFrame:
    """Start sends and receives where their thread entered the enclosing c10d operator."""
    starts = gloo["start_ns"].to_numpy(copy=True)
    ends = starts + gloo["dur_ns"].to_numpy()
    for i in np.flatnonzero(gloo["name"].isin(GLOO_POINT_TO_POINT).to_numpy()):
        issued = c10d["start_ns"].to_numpy()
        encloses = (
            (c10d["thread"].to_numpy() == gloo["thread"].iloc[i])
            & (issued <= starts[i])
            & (issued + c10d["dur_ns"].to_numpy() >= starts[i])
        )
        if encloses.any():
            starts[i] = issued[encloses].max()
    return gloo.assign(start_ns=starts, dur_ns=ends - starts)
