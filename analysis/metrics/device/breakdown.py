"""Where the time of a device went: computing, communicating, both, copying, nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.intervals import Spans, clip, covered, intersect, spans, subtract, total, union
from ...core.kinds import COMPUTE, KINDS
from ...core.schema import Row, bare, grouped
from ...core.steps import NO_STEP, step_windows
from ...core.tables.communication import BREAKDOWN, BREAKDOWN_STEPS

if TYPE_CHECKING:
    import pandas as pd

_TIMES = ["rank", "device", "start_ns", "dur_ns"]
_NEEDED = [*_TIMES, "cycle", "kind", "step"]
_NOTHING = spans(np.array([], dtype=np.int64), np.array([], dtype=np.int64))


class Ran(NamedTuple):
    """What ran on a device in one cycle, all of shape (activities,); the step is NO_STEP outside of steps.

    `of_kind` says of each kind which activities are.
    """

    of_kind: dict[str, NDArray[np.bool_]]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    step: NDArray[np.int64]


class Split(NamedTuple):
    """When the calls of a device waited, and when they moved data, as far as they could be split."""

    waiting: Spans = _NOTHING
    transfer: Spans = _NOTHING


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


def device_row(rank: int, device: str, cycles: Sequence[Ran], split: Split) -> Row:
    """The row of a device over all its cycles."""
    measured = [_device(ran, split).measures(int(ran.end_ns.max() - ran.start_ns.min())) for ran in cycles]
    counts = {f"n_{kind}": sum(int(ran.of_kind[kind].sum()) for ran in cycles) for kind in KINDS}
    no_step = sum(int((ran.step == NO_STEP).sum()) for ran in cycles)
    row = {"rank": rank, "device": device, "cycles": len(measured), **counts, "n_no_step": no_step}
    return _with_shares(row | _summed(measured))


def step_rows(rank: int, device: str, ran: Ran, split: Split) -> list[Row]:
    """The rows of a device's steps in one cycle. All activities, even those without a step, are clipped to them."""
    whole = _device(ran, split)
    return [
        _with_shares(
            {"rank": rank, "device": device, "step": step} | whole.clipped(start_ns, end_ns).measures(end_ns - start_ns)
        )
        for step, start_ns, end_ns in step_windows(ran.start_ns, ran.end_ns, ran.step)
    ]


def breakdown(activities: pd.DataFrame, participation: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and device over all its cycles. `participation` says how calls split; it may be empty."""
    splits = _splits(participation)
    rows = []
    for (rank, device), on_device in grouped(activities, ["rank", "device"], _NEEDED):
        cycles = [_ran(part) for _, part in grouped(on_device, ["cycle"])]
        rows.append(device_row(rank, device, cycles, splits.get((rank, device), Split())))
    return BREAKDOWN.frame(rows)


def breakdown_steps(activities: pd.DataFrame, participation: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device and step."""
    splits = _splits(participation)
    rows: list[Row] = []
    for (rank, device, _), part in grouped(activities, ["rank", "device", "cycle"], _NEEDED):
        rows += step_rows(rank, device, _ran(part), splits.get((rank, device), Split()))
    return BREAKDOWN_STEPS.frame(rows)


def exposed(participation: pd.DataFrame, activities: pd.DataFrame) -> pd.DataFrame:
    """`participation` with the parts of every call's wait and transfer in which its device did not compute."""
    import pandas as pd

    parts, low = [], []
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
        least = calls[calls["wait_low_ns"].notna()]
        begin = least["start_ns"].to_numpy()
        until = begin + least["wait_low_ns"].to_numpy(dtype=np.int64)
        low.append(pd.Series(until - begin - covered(compute, begin, until), index=least.index))
    found = pd.concat(parts).reindex(participation.index).astype("Int64") if parts else participation
    at_least = pd.concat(low).reindex(participation.index).astype("Int64") if low else participation["wait_low_ns"]
    return participation.assign(
        exposed_wait_ns=found["exposed_wait_ns"],
        exposed_transfer_ns=found["exposed_transfer_ns"],
        exposed_wait_low_ns=at_least,
    )


def _computing(activities: pd.DataFrame) -> dict[object, Spans]:
    """When each rank and device computed."""
    import pandas as pd

    own = bare(activities["kind"]) == COMPUTE
    computed = pd.DataFrame({column: activities[column].array[own] for column in _TIMES}, copy=False)
    found: dict[object, Spans] = {}
    for device, part in grouped(computed, ["rank", "device"]):
        starts = part["start_ns"].to_numpy()
        found[device] = spans(starts, starts + part["dur_ns"].to_numpy())
    return found


def _with_shares(row: Row) -> Row:
    return row | {
        "exposed_comm_frac": row["exposed_comm_ns"] / row["window_ns"] if row["window_ns"] else None,
        "hidden_comm_frac": row["overlap_ns"] / row["comm_ns"] if row["comm_ns"] else None,
    }


def _summed(measured: list[dict[str, int | None]]) -> dict[str, int | None]:
    """Sums over cycles; a part that is NA in one of them is NA in all."""
    result: dict[str, int | None] = {}
    for key in measured[0]:
        values = [m[key] for m in measured]
        result[key] = None if None in values else sum(v for v in values if v is not None)
    return result


def _ran(part: pd.DataFrame) -> Ran:
    starts, kinds = part["start_ns"].to_numpy(), bare(part["kind"])
    return Ran(
        of_kind={kind: kinds == kind for kind in KINDS},
        start_ns=starts,
        end_ns=starts + part["dur_ns"].to_numpy(),
        step=part["step"].to_numpy(dtype=np.int64, na_value=NO_STEP),
    )


def _splits(participation: pd.DataFrame) -> dict[tuple[int, str], Split]:
    """By rank and device."""
    known = participation[participation["wait_ns"].notna()]
    found = {}
    for (rank, device), calls in grouped(known, ["rank", "device"]):
        arrived = calls["start_ns"].to_numpy()
        moving = arrived + calls["wait_ns"].to_numpy(dtype=np.int64)
        done = arrived + calls["dur_ns"].to_numpy()
        found[rank, device] = Split(spans(arrived, moving), spans(moving, done))
    return found


def _device(ran: Ran, split: Split) -> _Device:
    compute, comm, memory = (spans(ran.start_ns[own], ran.end_ns[own]) for own in (ran.of_kind[k] for k in KINDS))
    # A call may be several operations with gaps between them, which are not communication.
    return _Device(compute, comm, memory, intersect(split.waiting, comm), intersect(split.transfer, comm))
