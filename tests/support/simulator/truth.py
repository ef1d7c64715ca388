"""What is true of a simulated world: tables to hold an analysis against."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .arguments import group_name
from .clock import RankClock, clock_of
from .injections import cause_parts
from .meeting import Meeting
from .ops import NO_CAUSE, SYNCHRONISING, Communication, Kernel
from .physics import Timeline
from .ran import Ran
from .shown import Trace, has_args
from .world import World

_LATE_US = 1.0
"""What is later by less has no label."""

CALLS = (
    "rank", "cycle", "step", "stream", "start_ns", "dur_ns", "collectives", "true_start_us", "true_end_us", "needed_us",
    "wait_ns", "transfer_ns", "label", "late_from", "late_us", "shift_us", "has_args",
)  # fmt: skip


@dataclass(frozen=True)
class HangTruth:
    """Which rank stopped, before which collective, and which ranks had launched that."""

    rank: int
    collective: int
    launched: tuple[int, ...]


@dataclass(frozen=True)
class Truth:
    """Tables of a simulated world. True times are us from the start, ns those of the rank's trace since 1970.

    calls: one row per communication kernel in a trace. `collectives` are the ids of all it takes part in, `needed_us`
    is when the last rank it needs had started, `wait_ns` is needed - start within 0 and dur, on the rank's own clock.
    `shift_us` is how much later it started because of injections, `late_us` by how much more than the member that they
    delayed least; from 1 us on `label` is the kind of the injection, `late_from` the rank where it acted.
    collectives: id, op, pg_name, pg_ranks, root, size_bytes, T_us (time from the last arrival that is needed),
    bus_factor, and `shown_ranks`, whose call is in any trace.
    clocks: rank, host, offset_us, ppm and gpu_error_us against true time, which is 0 at `clock.EPOCH_NS`; and in
    `shown_by`, by rank, what the clock shows at any true time, with its jumps and curves.
    compute: by rank, begin and end of every kernel that computes, of shape (n, 2), in true us.
    """

    calls: pd.DataFrame
    collectives: pd.DataFrame
    clocks: pd.DataFrame
    compute: dict[int, NDArray[np.float64]]
    hang: HangTruth | None
    shown_by: dict[int, RankClock]


def truth_of(world: World, happened: Timeline, plain: Timeline, traces: list[Trace]) -> Truth:
    """The truth of a world that happened so, and would have happened `plain` without injections."""
    shifts = _shifts(world, happened, plain)
    calls = _calls(world, happened, traces, shifts)
    return Truth(
        calls,
        _collectives(world, happened.meetings, calls),
        _clocks(world),
        {rank: _compute(happened, rank) for rank in range(world.size)},
        _hang(world, happened),
        {rank: clock_of(world, rank) for rank in range(world.size)},
    )


def _shifts(world: World, happened: Timeline, plain: Timeline) -> dict[int, float]:
    """By start (a moment) of every call that would have been without injections: how much later it is, in us."""
    if not world.injections:
        return {}
    before = {
        (ran.rank, ran.step, ran.key): plain.times[ran.start]
        for own in plain.ran
        for ran in own
        if isinstance(ran.op, Communication)
    }
    return {
        ran.start: happened.times[ran.start] - before[ran.rank, ran.step, ran.key]
        for own in happened.ran
        for ran in own
        if isinstance(ran.op, Communication) and ran.key >= 0 and happened.times[ran.start] < math.inf
    }


def _calls(world: World, happened: Timeline, traces: list[Trace], shifts: dict[int, float]) -> pd.DataFrame:
    least = [min((shifts.get(m.start, 0.0) for m in meeting.members), default=0.0) for meeting in happened.meetings]
    times, rows = happened.times, []
    for trace in traces:
        clock = trace.clock
        for seen in trace.seen:
            ran = seen.ran
            if not seen.kernel or not isinstance(ran.op, Communication):
                continue
            start_ns, end_ns = clock.gpu_ns(times[ran.start]), clock.gpu_ns(times[ran.end])
            wait_ns = min(max(clock.gpu_ns(times[ran.needed]) - start_ns, 0), end_ns - start_ns)
            shift = shifts.get(ran.start, 0.0)
            late = max(shift - least[number] for number in ran.collectives) if ran.start in shifts else 0.0
            rows.append((
                trace.rank, trace.cycle, ran.step, ran.stream, start_ns, end_ns - start_ns, tuple(ran.collectives),
                times[ran.start], times[ran.end], times[ran.needed],
                wait_ns, end_ns - start_ns - wait_ns,
                *_why(world, happened, ran, late), late, shift, has_args(world, seen),
            ))  # fmt: skip
    table = pd.DataFrame(rows, columns=list(CALLS))
    return table.astype({"label": "object", "late_from": "Int64"})


def _why(world: World, happened: Timeline, ran: Ran, late_us: float) -> tuple[str | None, int | None]:
    """The injection that a call is late because of, and the rank where it acted."""
    cause = happened.causes[ran.start]
    if late_us < _LATE_US or cause == NO_CAUSE:
        return None, None
    number, rank = cause_parts(cause)
    return world.injections[number].kind, rank


def _collectives(world: World, meetings: list[Meeting], calls: pd.DataFrame) -> pd.DataFrame:
    shown: dict[int, set[int]] = {}
    for rank, ids in zip(calls["rank"], calls["collectives"], strict=True):
        for number in ids:
            shown.setdefault(number, set()).add(rank)
    return pd.DataFrame(
        {
            "collective": meeting.number,
            "op": meeting.op,
            "pg_name": group_name(meeting.group, world.layout),
            "pg_ranks": " ".join(map(str, meeting.group.ranks)),
            "root": meeting.root,
            "size_bytes": meeting.size_bytes,
            "T_us": meeting.transfer_us,
            "bus_factor": meeting.bus_factor,
            "synchronising": meeting.op in SYNCHRONISING,
            "members": tuple(sorted(ran.rank for ran in meeting.members)),
            "shown_ranks": tuple(sorted(shown.get(meeting.number, ()))),
        }
        for meeting in meetings
    ).astype({"root": "Int64"})


def _clocks(world: World) -> pd.DataFrame:
    rows = []
    for rank in range(world.size):
        clock = clock_of(world, rank)
        rows.append((rank, world.host_of(rank), clock.offset_us, clock.ppm, clock.gpu_error_us))
    return pd.DataFrame(rows, columns=["rank", "host", "offset_us", "ppm", "gpu_error_us"])


def _compute(happened: Timeline, rank: int) -> NDArray[np.float64]:
    times = happened.times
    found = [
        (times[ran.start], times[ran.end])
        for ran in happened.ran[rank]
        if isinstance(ran.op, Kernel) and not ran.op.is_copy and times[ran.end] < math.inf
    ]
    return np.array(found, dtype=np.float64).reshape(-1, 2)


def _hang(world: World, happened: Timeline) -> HangTruth | None:
    """The first collective that the rank which hangs does not launch, None if there is none after it."""
    if world.hang is None:
        return None
    never = (
        number
        for ran in happened.ran[world.hang.rank]
        if isinstance(ran.op, Communication) and happened.times[ran.begin] == math.inf
        for number in ran.collectives
    )
    number = next(never, None)
    if number is None:
        return None
    members = happened.meetings[number].members
    launched = sorted(ran.rank for ran in members if happened.times[ran.begin] < math.inf)
    return HangTruth(world.hang.rank, number, tuple(launched))
