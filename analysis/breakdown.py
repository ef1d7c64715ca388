"""Where the time of a device went: computing, communicating, both, copying, nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .intervals import Spans, clip, covered, intersect, spans, subtract, total, union
from .kinds import COMM, COMPUTE, MEMORY
from .schema import BREAKDOWN, BREAKDOWN_STEPS, grouped
from .steps import step_windows

_TIMES = ["rank", "device", "start_ns", "dur_ns"]
_NEEDED = [*_TIMES, "cycle", "kind", "step"]
_NOTHING = spans(np.array([], dtype=np.int64), np.array([], dtype=np.int64))


@dataclass(frozen=True)
class _Device:
    """What one device did in one cycle; `waiting` and `transfer` are the parts of the calls that could be split."""

    compute: Spans
    comm: Spans
    memory: Spans
    waiting: Spans
    transfer: Spans

    def clipped(self, start_ns: int, end_ns: int) -> _Device:
        """The same within [start_ns, end_ns)."""
        cut = [clip(s, start_ns, end_ns) for s in (self.compute, self.comm, self.memory, self.waiting, self.transfer)]
        return _Device(*cut)

    def measures(self, window_ns: int) -> dict[str, int | None]:
        """The columns of a breakdown; compute + exposed_comm + exposed_memory + idle == window, exactly."""
        busy = union(self.compute, self.comm)
        overlap = total(intersect(self.compute, self.comm))
        exposed_comm = total(self.comm) - overlap
        exposed = subtract(self.comm, self.compute)
        transfer = total(intersect(exposed, self.transfer))
        unsplit = total(subtract(exposed, union(self.transfer, self.waiting)))
        split_known = unsplit < exposed_comm or exposed_comm == 0
        return {
            "window_ns": window_ns,
            "compute_ns": total(self.compute),
            "comm_ns": total(self.comm),
            "overlap_ns": overlap,
            "exposed_comm_ns": exposed_comm,
            "exposed_wait_ns": exposed_comm - transfer - unsplit if split_known else None,
            "exposed_transfer_ns": transfer if split_known else None,
            "exposed_unsplit_ns": unsplit,
            "exposed_memory_ns": total(subtract(self.memory, busy)),
            "idle_ns": window_ns - total(union(busy, self.memory)),
        }


def breakdown(activities: pd.DataFrame, participation: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and device over all its cycles. `participation` says how calls split; it may be empty."""
    rows: list[dict[str, Any]] = []
    for (rank, device), on_device in grouped(activities, ["rank", "device"], _NEEDED):
        measured = []
        for _, part in grouped(on_device, ["cycle"]):
            window_ns = int((part["start_ns"] + part["dur_ns"]).max() - part["start_ns"].min())
            measured.append(_device(part, participation).measures(window_ns))
        kind = on_device["kind"].to_numpy(dtype=object)
        rows.append({
            "rank": rank,
            "device": device,
            "cycles": len(measured),
            "n_compute": int((kind == COMPUTE).sum()),
            "n_comm": int((kind == COMM).sum()),
            "n_memory": int((kind == MEMORY).sum()),
            "n_no_step": int(on_device["step"].isna().sum()),
            **_summed(measured),
        })  # fmt: skip
    return BREAKDOWN.frame(_with_shares(rows))


def breakdown_steps(activities: pd.DataFrame, participation: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device and step. Every activity, with or without a step, is clipped to the steps' windows."""
    rows: list[dict[str, Any]] = []
    for (rank, device, _), part in grouped(activities, ["rank", "device", "cycle"], _NEEDED):
        whole = _device(part, participation)
        for step, start_ns, end_ns in step_windows(part):
            measures = whole.clipped(start_ns, end_ns).measures(end_ns - start_ns)
            rows.append({"rank": rank, "device": device, "step": step, **measures})
    return BREAKDOWN_STEPS.frame(_with_shares(rows))


def exposed(participation: pd.DataFrame, activities: pd.DataFrame) -> pd.DataFrame:
    """`participation` with the parts of every call's wait and transfer in which its device did not compute."""
    parts = []
    computing = _computing(activities)
    for device, calls in participation.groupby(["rank", "device"], sort=False):
        compute = computing.get(device, _NOTHING)
        known = calls[calls["wait_ns"].notna()]
        arrived = known["start_ns"].to_numpy()
        moving = arrived + known["wait_ns"].to_numpy(dtype=np.int64)
        done = arrived + known["dur_ns"].to_numpy()
        parts.append(pd.DataFrame({
            "exposed_wait_ns": moving - arrived - covered(compute, arrived, moving),
            "exposed_transfer_ns": done - moving - covered(compute, moving, done),
        }, index=known.index))  # fmt: skip
    found = pd.concat(parts).reindex(participation.index).astype("Int64") if parts else participation
    return participation.assign(
        exposed_wait_ns=found["exposed_wait_ns"], exposed_transfer_ns=found["exposed_transfer_ns"]
    )


def _computing(activities: pd.DataFrame) -> dict[object, Spans]:
    """When each rank and device computed."""
    own = activities["kind"].to_numpy(dtype=object) == COMPUTE
    computed = pd.DataFrame({column: activities[column].array[own] for column in _TIMES}, copy=False)
    found: dict[object, Spans] = {}
    for device, part in grouped(computed, ["rank", "device"]):
        starts = part["start_ns"].to_numpy()
        found[device] = spans(starts, starts + part["dur_ns"].to_numpy())
    return found


def _with_shares(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row
        | {
            "exposed_comm_frac": row["exposed_comm_ns"] / row["window_ns"] if row["window_ns"] else None,
            "hidden_comm_frac": row["overlap_ns"] / row["comm_ns"] if row["comm_ns"] else None,
        }
        for row in rows
    ]


def _summed(measured: list[dict[str, int | None]]) -> dict[str, int | None]:
    """Sums over cycles; a part that is NA in one of them is NA in all."""
    result: dict[str, int | None] = {}
    for key in measured[0]:
        values = [m[key] for m in measured]
        result[key] = None if None in values else sum(v for v in values if v is not None)
    return result


def _device(part: pd.DataFrame, participation: pd.DataFrame) -> _Device:
    kind = part["kind"].to_numpy(dtype=object)
    starts = part["start_ns"].to_numpy()
    ends = starts + part["dur_ns"].to_numpy()
    comm = spans(starts[kind == COMM], ends[kind == COMM])
    first = part.iloc[0]
    calls = participation[
        (participation["rank"] == first["rank"])
        & (participation["device"] == first["device"])
        & participation["wait_ns"].notna()
    ]
    arrived = calls["start_ns"].to_numpy()
    moving = arrived + calls["wait_ns"].to_numpy(dtype=np.int64)
    done = arrived + calls["dur_ns"].to_numpy()
    return _Device(
        compute=spans(starts[kind == COMPUTE], ends[kind == COMPUTE]),
        comm=comm,
        memory=spans(starts[kind == MEMORY], ends[kind == MEMORY]),
        # A call may be several operations with gaps between them, which are no communication.
        waiting=intersect(spans(arrived, moving), comm),
        transfer=intersect(spans(moving, done), comm),
    )
