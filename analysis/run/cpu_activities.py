"""Runs without a GPU: the CPU's operators are compute, gloo's operations are communication."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core import markers
from ..core.kinds import COMM, COMPUTE
from ..core.steps import with_steps
from ..core.tables.communication import ACTIVITIES
from .file_tables import TraceFile

# Sent and received on the calling thread, not on one of gloo's.
GLOO_POINT_TO_POINT = tuple(f"{markers.GLOO_MARK}{what}" for what in ("send", "recv", "recvAnySource"))


def cpu_activities(file: TraceFile) -> pd.DataFrame:
    """The activities of the file; if it has none on a GPU, those of the CPU as device `cpu`.

    Compute is the outermost operators of every thread that is not gloo's, without c10d operators, which only hand a
    collective over. Communication is gloo's operations, from the beginning of the work on each; a send or receive from
    the beginning of its c10d operator. A file that shows only the CPU side of a GPU run has no activities, nor has one
    that was damaged before they came, nor one that shows launches only.
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
    ops = _outermost(file.cpu_ops[~file.cpu_ops["thread"].isin(threads)])
    return ACTIVITIES.concat([_activities(ops, COMPUTE), _activities(gloo, COMM)])


def with_activities(file: TraceFile) -> TraceFile:
    """Add what ran to the file, each activity in its step."""
    marks = ((row["name"], row["start_ns"], row["dur_ns"]) for row in file.annotation_rows)
    return replace(file, ran=with_steps(cpu_activities(file), file.launches, marks))


def _activities(events: pd.DataFrame, kind: str) -> pd.DataFrame:
    return ACTIVITIES.conform(pd.DataFrame({
        "rank": 0,
        "cycle": 0,
        "device": "cpu",
        "stream": events["thread"],
        "kind": kind,
        "name": events["name"],
        "start_ns": events["start_ns"],
        "dur_ns": events["dur_ns"],
        "step": pd.NA,
        "correlation": pd.NA,
        "external_id": pd.NA,
        "size_bytes": pd.NA,
        "blocks_per_sm": pd.NA,
        "occupancy_frac": pd.NA,
    }))  # fmt: skip


def _outermost(ops: pd.DataFrame) -> pd.DataFrame:
    """Operators not nested in another operator of their thread."""
    parts = []
    for _, thread in ops.groupby("thread"):
        ordered = thread.sort_values(["start_ns", "dur_ns"], ascending=[True, False])
        ends = (ordered["start_ns"] + ordered["dur_ns"]).to_numpy()
        reach: NDArray[np.int64] = np.maximum.accumulate(ends)
        parts.append(ordered[np.concatenate(([True], ends[1:] > reach[:-1]))])
    return pd.concat(parts) if parts else ops


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
