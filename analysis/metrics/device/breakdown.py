"""Break down the time of a device: computing, communicating, both, copying, or idle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ...core.intervals import Spans, Times, covered, intersect, spans, subtract, union
from ...core.kinds import COMPUTE, KINDS
from ...core.schema import Row, bare, grouped
from ...core.steps import NO_STEP, Window, windows_of

if TYPE_CHECKING:
    import pandas as pd

_TIMES = ["rank", "device", "start_ns", "dur_ns"]
_NEEDED = [*_TIMES, "cycle", "kind", "step", "idle_since_ns"]
_NEVER = np.iinfo(np.int64).max
Device = tuple[int, str]
NOTHING = spans(np.array([], dtype=np.int64), np.array([], dtype=np.int64))


class Ran(NamedTuple):
    """The activities of a device in one cycle, all of shape (activities,); the step is NO_STEP outside of steps.

    `of_kind` has flags for each kind of KINDS.
    """

    of_kind: dict[str, NDArray[np.bool_]]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    step: NDArray[np.int64]


class Split(NamedTuple):
    """When the calls of a device waited and when they moved data, for calls that could be split."""

    waiting: Spans = NOTHING
    transfer: Spans = NOTHING


class HeldWaits(NamedTuple):
    """The waits of a device's calls, sorted by start and without overlap, so that each moment counts once; (waits,)."""

    call_id: NDArray[np.int64]
    starts: Times
    ends: Times

    @classmethod
    def of(cls, call_id: NDArray[np.int64], starts: Times, ends: Times) -> HeldWaits:
        """Make waits disjoint: each moment belongs to the wait that ends last, as that one holds up the device."""
        order = np.lexsort((call_id, starts))
        reach = np.maximum.accumulate(ends[order])
        order = order[np.append(True, ends[order][1:] > reach[:-1])] if len(order) else order
        begins = starts[order]
        return cls(call_id[order], begins, np.minimum(ends[order], np.append(begins[1:], _NEVER)[: len(order)]))


class StepProfile(NamedTuple):
    """A step on a device, [start_ns, end_ns), and those columns of its breakdown that need no other rank."""

    step: int
    start_ns: int
    end_ns: int
    measures: Row


class DeviceProfile(NamedTuple):
    """What one device did in one cycle, in [start_ns, end_ns), without knowledge of other ranks.

    `exposed` is when it communicated and did not compute.
    """

    rank: int
    device: str
    cycle: int
    start_ns: int
    end_ns: int
    counts: dict[str, int]
    measures: Row
    steps: list[StepProfile]
    exposed: Spans


class SeenDevice(NamedTuple):
    """What a device did: its profile in each cycle, and when it did not compute during its calls."""

    cycles: list[DeviceProfile]
    idle: Spans


Devices = Mapping[Device, SeenDevice]


def _measures(compute: Spans, comm: Spans, memory: Spans, windows: Sequence[tuple[int, int]]) -> list[Row]:
    """Columns of the breakdown in each window; compute + exposed_comm + exposed_memory + idle == window, exactly."""
    starts, ends = _bounds(windows)
    busy = union(compute, comm)
    compute_ns, comm_ns, overlap_ns, copies_ns, busy_ns = (
        covered(part, starts, ends)
        for part in (compute, comm, intersect(compute, comm), subtract(memory, busy), union(busy, memory))
    )
    return _rows_of(
        window_ns=ends - starts,
        compute_ns=compute_ns,
        comm_ns=comm_ns,
        overlap_ns=overlap_ns,
        exposed_comm_ns=comm_ns - overlap_ns,
        exposed_memory_ns=copies_ns,
        idle_ns=ends - starts - busy_ns,
    )


def _bounds(windows: Sequence[tuple[int, int]]) -> tuple[Times, Times]:
    """Starts and ends of windows, each of shape (windows,)."""
    starts, ends = np.array(windows, dtype=np.int64).reshape(-1, 2).T
    return starts, ends


def _rows_of(**columns: Times) -> list[Row]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def device_profile(rank: int, device: str, cycle: int, ran: Ran, steps: Sequence[Window]) -> DeviceProfile:
    """Profile one device without other ranks. The windows `steps` include activities that have no step."""
    compute, comm, memory = (spans(ran.start_ns[flags], ran.end_ns[flags]) for flags in (ran.of_kind[k] for k in KINDS))
    start_ns, end_ns = int(ran.start_ns.min()), int(ran.end_ns.max())
    counts = {f"n_{kind}": int(ran.of_kind[kind].sum()) for kind in KINDS}
    launched = {f"n_{kind}": _launched_in(ran.step[ran.of_kind[kind]], steps) for kind in KINDS}
    whole, *in_steps = _measures(compute, comm, memory, [(start_ns, end_ns), *(step[1:] for step in steps)])
    return DeviceProfile(
        rank=rank,
        device=device,
        cycle=cycle,
        start_ns=start_ns,
        end_ns=end_ns,
        counts=counts | {"n_no_step": int((ran.step == NO_STEP).sum())},
        measures=whole,
        steps=[
            StepProfile(*step, {name: of_steps[nth] for name, of_steps in launched.items()} | measures)
            for nth, (step, measures) in enumerate(zip(steps, in_steps, strict=True))
        ],
        exposed=subtract(comm, compute),
    )


def _launched_in(step: NDArray[np.int64], windows: Sequence[Window]) -> list[int]:
    """How many activities were launched in the step of each window; `step` has that of each activity."""
    numbers, counts = np.unique(step, return_counts=True)
    of_step = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    return [of_step.get(window.step, 0) for window in windows]


def profiles(activities: pd.DataFrame) -> Iterator[DeviceProfile]:
    """Yield the profile of every device of every rank in each cycle."""
    for (rank, cycle), of_process in grouped(activities, ["rank", "cycle"], _NEEDED):
        steps = windows_of(of_process)
        for (device,), of_device in grouped(of_process, ["device"], _NEEDED):
            yield device_profile(rank, device, cycle, _ran(of_device), steps)


def device_row(cycles: Sequence[DeviceProfile], split: Split) -> Row:
    """The row of `breakdown` of a device over all its cycles."""
    measured = [
        profile.measures | _split_measures(profile.exposed, split, [(profile.start_ns, profile.end_ns)])[0]
        for profile in cycles
    ]
    counts = {name: sum(profile.counts[name] for profile in cycles) for name in cycles[0].counts}
    row = {"rank": cycles[0].rank, "device": cycles[0].device, "cycles": len(measured), **counts}
    return _with_shares(row | _summed(measured))


def step_rows(device: DeviceProfile, split: Split) -> list[Row]:
    """The rows of `breakdown_steps` of a device in one cycle."""
    splits = _split_measures(device.exposed, split, [(step.start_ns, step.end_ns) for step in device.steps])
    of_device = {"rank": device.rank, "device": device.device}
    return [
        _with_shares(of_device | {"step": step.step} | step.measures | measures)
        for step, measures in zip(device.steps, splits, strict=True)
    ]


def _split_measures(exposed: Spans, split: Split, windows: Sequence[tuple[int, int]]) -> list[Row]:
    """Split exposed communication in each window into wait, transfer and unsplit, in ns."""
    starts, ends = _bounds(windows)
    unknown = subtract(exposed, union(split.transfer, split.waiting))
    exposed_ns, transfer_ns, unsplit_ns = (
        covered(part, starts, ends) for part in (exposed, intersect(exposed, split.transfer), unknown)
    )
    known = (unsplit_ns < exposed_ns) | (exposed_ns == 0)
    rows = _rows_of(
        exposed_wait_ns=exposed_ns - transfer_ns - unsplit_ns,
        exposed_transfer_ns=transfer_ns,
        exposed_unsplit_ns=unsplit_ns,
    )
    not_known = {"exposed_wait_ns": None, "exposed_transfer_ns": None}
    return [row if is_known else row | not_known for row, is_known in zip(rows, known.tolist(), strict=True)]


def breakdown_rows(devices: Devices, participation: pd.DataFrame) -> Iterator[Row]:
    """One row per rank and device over all cycles; `participation`, which may be empty, has the splits of calls."""
    splits = _splits(participation)
    return (device_row(devices[key].cycles, splits.get(key, Split())) for key in sorted(devices))


def rows_by_step(devices: Devices, participation: pd.DataFrame) -> Iterator[Row]:
    """One row per rank, device and step."""
    splits = _splits(participation)
    for key in sorted(devices):
        for profile in sorted(devices[key].cycles, key=lambda one: one.cycle):
            yield from step_rows(profile, splits.get(key, Split()))


def exposed_waits(devices: Devices, participation: pd.DataFrame) -> pd.DataFrame:
    """The exposed wait of each call by step, NA outside of all: `call_id`, `rank`, `device`, `step`, `exposed_wait_ns`.

    By device and step they add up to `exposed_wait_ns` of the breakdown, where that is known.
    """
    import pandas as pd

    splits, waits = _splits(participation), _waits(participation)
    parts = [pd.DataFrame(dict.fromkeys(_EXPOSED_WAITS, pd.Series(dtype="int64")))]
    every = (profile for one in devices.values() for profile in one.cycles)
    for device in sorted(every, key=lambda one: (one.rank, one.cycle, one.device)):
        key = device.rank, device.device
        if key in splits:
            exposed_waiting = subtract(device.exposed, splits[key].transfer)
            call_id, step, exposed_ns = _by_step(waits[key], exposed_waiting, device.steps)
            parts.append(pd.DataFrame(dict(zip(_EXPOSED_WAITS, (call_id, *key, step, exposed_ns), strict=True))))
    table = pd.concat(parts, ignore_index=True)
    return table.assign(step=table["step"].astype("Int64").mask(table["step"] == NO_STEP))


_EXPOSED_WAITS = ("call_id", "rank", "device", "step", "exposed_wait_ns")


def _by_step(
    waits: HeldWaits, exposed_waiting: Spans, steps: Sequence[StepProfile]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Times]:
    """Call, step and exposed wait in ns of each call in each step; NO_STEP holds the rest."""
    outside_ns = covered(exposed_waiting, waits.starts, waits.ends)
    parts = []
    for step, start_ns, end_ns, _ in steps:
        inside = slice(
            np.searchsorted(waits.ends, start_ns, side="right"), np.searchsorted(waits.starts, end_ns, side="left")
        )
        starts, ends = (np.clip(times[inside], start_ns, end_ns) for times in (waits.starts, waits.ends))
        exposed_ns = covered(exposed_waiting, starts, ends)
        outside_ns[inside] -= exposed_ns
        parts.append((waits.call_id[inside], np.full(len(exposed_ns), step), exposed_ns))
    parts.append((waits.call_id, np.full(len(outside_ns), NO_STEP), outside_ns))
    call_id, step_of, exposed_ns = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    some = exposed_ns > 0
    return call_id[some], step_of[some], exposed_ns[some]


def computing_spans(activities: pd.DataFrame) -> dict[Device, Spans]:
    """When each device of these activities computed."""
    import pandas as pd

    computing = bare(activities["kind"]) == COMPUTE
    return device_spans(pd.DataFrame({column: activities[column].array[computing] for column in _TIMES}, copy=False))


def device_spans(table: pd.DataFrame) -> dict[Device, Spans]:
    """The time that the rows of a table cover, by rank and device."""
    spans_of: dict[Device, Spans] = {}
    for device, part in grouped(table, ["rank", "device"]):
        starts = part["start_ns"].to_numpy()
        spans_of[cast("Device", device)] = spans(starts, starts + part["dur_ns"].to_numpy())
    return spans_of


def devices_of(activities: pd.DataFrame, calling: Mapping[Device, Spans]) -> dict[Device, SeenDevice]:
    """What each device did; `calling` is when it was in a call."""
    cycles: dict[Device, list[DeviceProfile]] = {}
    for profile in profiles(activities):
        cycles.setdefault((profile.rank, profile.device), []).append(profile)
    computing = computing_spans(activities)
    seen = {}
    for device, own in cycles.items():
        idle = subtract(calling.get(device, NOTHING), computing.get(device, NOTHING))
        # Mostly these are all that communicated: then they travel, and are kept, once.
        is_all = len(own) == 1 and all(map(np.array_equal, idle, own[0].exposed))
        seen[device] = SeenDevice(own, own[0].exposed if is_all else idle)
    return seen


def exposed(participation: pd.DataFrame, devices: Devices) -> pd.DataFrame:
    """Add to `participation` the parts of each call's wait and transfer in which its device did not compute."""
    import pandas as pd

    parts, low = [], []
    for device, calls in participation.groupby(["rank", "device"], sort=False):
        idle = devices[cast("Device", device)].idle
        known = calls[calls["wait_ns"].notna()]
        arrived = known["start_ns"].to_numpy()
        moving = arrived + known["wait_ns"].to_numpy(dtype=np.int64)
        done = moving + known["transfer_ns"].to_numpy(dtype=np.int64)
        parts.append(pd.DataFrame({
            "exposed_wait_ns": covered(idle, arrived, moving),
            "exposed_transfer_ns": covered(idle, moving, done),
        }, index=known.index))  # fmt: skip
        least = calls[calls["wait_low_ns"].notna()]
        begin = least["start_ns"].to_numpy()
        until = begin + least["wait_low_ns"].to_numpy(dtype=np.int64)
        low.append(pd.Series(covered(idle, begin, until), index=least.index))
    exposed_parts = pd.concat(parts).reindex(participation.index).astype("Int64") if parts else participation
    at_least = pd.concat(low).reindex(participation.index).astype("Int64") if low else participation["wait_low_ns"]
    return participation.assign(
        exposed_wait_ns=exposed_parts["exposed_wait_ns"],
        exposed_transfer_ns=exposed_parts["exposed_transfer_ns"],
        exposed_wait_low_ns=at_least,
    )


def _with_shares(row: Row) -> Row:
    return row | {
        "exposed_comm_frac": row["exposed_comm_ns"] / row["window_ns"] if row["window_ns"] else None,
        "hidden_comm_frac": row["overlap_ns"] / row["comm_ns"] if row["comm_ns"] else None,
    }


def _summed(measured: list[dict[str, int | None]]) -> dict[str, int | None]:
    """Sums over cycles; NA if the value of any cycle is NA."""
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
    """Splits of calls by rank and device."""
    known = participation[participation["wait_ns"].notna()]
    splits = {}
    for (rank, device), calls in grouped(known, ["rank", "device"]):
        arrived = calls["start_ns"].to_numpy()
        moving = arrived + calls["wait_ns"].to_numpy(dtype=np.int64)
        done = moving + calls["transfer_ns"].to_numpy(dtype=np.int64)
        splits[rank, device] = Split(spans(arrived, moving), spans(moving, done))
    return splits


def _waits(participation: pd.DataFrame) -> dict[tuple[int, str], HeldWaits]:
    """Waits of calls by rank and device."""
    known = participation[participation["wait_ns"].notna()]
    result = {}
    for (rank, device), calls in grouped(known, ["rank", "device"]):
        arrived = calls["start_ns"].to_numpy()
        moving = arrived + calls["wait_ns"].to_numpy(dtype=np.int64)
        result[rank, device] = HeldWaits.of(calls["call_id"].to_numpy(), arrived, moving)
    return result
