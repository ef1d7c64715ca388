"""The collectives of every process group in order, with what its members did from one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from ....common.nccl_tests import POINT_TO_POINT, SYNCHRONISING
from ...core.intervals import Spans, Times, spans, union
from ...core.schema import grouped, text_codes
from ..clocks.table import aligned
from .accounts import Sequence
from .program import SPENT, GroupCalls, OnDevice, Program, Waits, program

_GROUP = ["process_group", "pg_ranks"]
_UNIT = ["rank", "cycle", "device"]
_UNKNOWN: Any = np.iinfo(np.int64).min


class Activities(Protocol):
    """What ran, what launched it, and the CPUs' annotations: tables of a run, or of some of its ranks."""

    @property
    def activities(self) -> pd.DataFrame:
        """What ran."""

    @property
    def launches(self) -> pd.DataFrame:
        """What launched it."""

    @property
    def annotations(self) -> pd.DataFrame:
        """The annotations of CPUs."""


LOOKED_AT = [*_UNIT, *_GROUP, "collective", "start_ns", "dur_ns", "wait_ns", "issue_ns"]
"""The columns of `members` that these functions look at."""
_MAY_BE_NA = ("queued_ns", *(f"{kind}_{part}_ns" for kind in ("spent", "step") for part in SPENT))


def readiness(ran: Activities, members: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """When each call could run at the earliest, and what its rank's program had done until then: a row for each.

    `members` are rows of `participation` with columns of their calls and collectives (LOOKED_AT), of ranks that `ran`
    has. Columns, in ns, NA where not known:

    - `ready_own_ns` and `ready_ns`: when the call could run at the earliest, on its own and on the common clock;
    - `queued_ns`: how long communication of other groups ran from then until it started;
    - `spent_<part>_ns` and `step_<part>_ns`: how long the program had spent on each part, since it began, and since the
      step began;
    - `began_own_ns` and `began_ns`: when the step began, on both clocks, if it is the first of the trace.

    And `number`: the index of `members`.
    """
    ready = members["start_ns"].to_numpy(dtype=np.int64).copy()
    began = np.full(len(members), _UNKNOWN)
    columns = {name: np.full(len(members), np.nan) for name in _MAY_BE_NA}
    number = pd.Series(np.arange(len(members)), index=members.index)
    running = programs(ran, members)
    for unit, calls in grouped(members, _UNIT):
        for found in _of_unit(calls, running[unit]) if unit in running else ():
            rows = number.loc[calls.index].to_numpy()[found.rows]
            ready[rows], began[rows] = found.ready_ns, found.began_ns
            for name, values in found.columns.items():
                columns[name][rows] = values
    known = began != _UNKNOWN
    ready_own, began_own = (pd.Series(times, members.index) for times in (ready, np.where(known, began, 0)))
    return pd.DataFrame({
        "ready_own_ns": ready_own,
        "ready_ns": aligned(ready_own, members["rank"], clocks),
        "began_own_ns": began_own.astype("Int64").where(known),
        "began_ns": aligned(began_own, members["rank"], clocks).astype("Int64").where(known),
        **columns,
        "number": members.index,
    }, index=members.index)  # fmt: skip


def without_work(ran: Activities, members: pd.DataFrame, rank: int) -> Spans | None:
    """When the first device of a rank had nothing to do because its CPU gave it nothing; None if it made no call.

    `members` are calls of the rank, and of others.
    """
    of_rank = (table[table["rank"] == rank] for table in (ran.activities, ran.launches, ran.annotations))
    of_unit = programs(RanTables(*of_rank), members[members["rank"] == rank])
    return next((union(program.parts["cpu"], program.parts["data"]) for program in of_unit.values()), None)


class RanTables(NamedTuple):
    """The tables of `Activities`."""

    activities: pd.DataFrame
    launches: pd.DataFrame
    annotations: pd.DataFrame


def programs(ran: Activities, members: pd.DataFrame) -> dict[tuple[Any, ...], Program]:
    """The program of every rank, cycle and device; `members` are its calls, with `wait_ns`."""
    calls = dict(grouped(members, _UNIT))
    marks = dict(grouped(ran.annotations, ["rank", "cycle"]))
    launched = dict(grouped(ran.launches, ["rank", "cycle"]))
    of_unit: dict[tuple[Any, ...], Program] = {}
    for unit, of_device in grouped(ran.activities, _UNIT):
        if unit not in calls:
            continue
        rank, cycle, device = unit
        on_device = OnDevice.of(of_device, launched.get((rank, cycle), ran.launches[:0]))
        marked = marks.get((rank, cycle), ran.annotations[:0])
        of_unit[rank, cycle, device] = program(on_device, _waits(calls[unit]), marked)
    return of_unit


def _waits(calls: pd.DataFrame) -> Waits:
    """When these calls waited; a send or receive whose peer has no trace counts as a wait from start to end."""
    start, dur, wait = _times(calls)
    alone = calls["collective"].isin(POINT_TO_POINT).to_numpy() & (wait == _UNKNOWN)
    waited = np.where(alone, dur, wait)
    known = waited != _UNKNOWN
    ends = (start + waited)[known]
    return Waits(spans(start[known], ends), np.sort(ends))


def _times(calls: pd.DataFrame) -> tuple[Times, Times, Times]:
    """Start, duration and wait of each call, in ns."""
    start, dur = calls["start_ns"].to_numpy(dtype=np.int64), calls["dur_ns"].to_numpy(dtype=np.int64)
    return start, dur, calls["wait_ns"].to_numpy(dtype=np.int64, na_value=_UNKNOWN)


class _Ready(NamedTuple):
    """What is known of some `rows` of calls: when they were ready, when their step began, and the other `columns`."""

    rows: Times
    ready_ns: Times
    began_ns: Times
    columns: dict[str, Any]


def _of_unit(calls: pd.DataFrame, running: Program) -> Iterator[_Ready]:
    """What is known of the calls of one device, group by group, without those of unknown issue."""
    start, dur, wait = _times(calls)
    issue = calls["issue_ns"].to_numpy(dtype=np.int64, na_value=_UNKNOWN)
    together = calls["collective"].isin(SYNCHRONISING).to_numpy()
    until = start + np.where(wait == _UNKNOWN, dur, wait)
    groups = np.array([text_codes(calls[name])[0] for name in _GROUP])
    for group in np.unique(groups, axis=1).T:
        of_group = (groups == group[:, None]).all(axis=0)
        compared = of_group & together
        group_calls = GroupCalls(
            spans(start[compared], (start + dur)[compared]), spans(start[compared], until[compared])
        )
        # What was issued before the window has no launch, so nothing says when it could have run.
        seen = of_group & (issue != _UNKNOWN)
        rows = np.flatnonzero(seen if seen.any() else of_group)
        issued = np.where(issue[rows] == _UNKNOWN, start[rows], issue[rows])
        ready = np.minimum(running.ready_ns(issued), start[rows])
        values = (
            running.queued(ready, start[rows], group_calls),
            *running.until(ready, group_calls),
            *running.since_step(ready, issued, group_calls),
        )
        yield _Ready(rows, ready, running.first_step(issued), dict(zip(_MAY_BE_NA, values, strict=True)))


def sequences(calls: pd.DataFrame) -> Iterator[Sequence]:
    """Yield the collectives of every group, in order; `calls` have the columns of `readiness`, one device per rank."""
    for _, own in calls.groupby(_GROUP, dropna=False, sort=False):
        yield _sequence(own)


def _sequence(calls: pd.DataFrame) -> Sequence:
    first = calls.groupby("collective_id")["ready_ns"].median().sort_values(kind="stable")
    ranks = np.unique(calls["rank"].to_numpy(dtype=np.int64))
    at = pd.Index(first.index).get_indexer(calls["collective_id"])
    member = np.searchsorted(ranks, calls["rank"].to_numpy(dtype=np.int64))
    shape = (len(first), len(ranks))
    ready, cycle = np.full(shape, np.nan), np.full(shape, -1)
    zero = int(calls["ready_ns"].min())
    started, queued, began = np.full((3, *shape), np.nan)
    began[at, member] = (calls["began_ns"] - zero).to_numpy(dtype=np.float64, na_value=np.nan)
    started[at, member] = calls["arrived_ns"].to_numpy(dtype=np.int64) - zero
    queued[at, member] = calls["queued_ns"].to_numpy(dtype=np.float64)
    ready[at, member] = np.where(
        calls["spent_cpu_ns"].notna(), calls["ready_ns"].to_numpy(dtype=np.int64) - zero, np.nan
    )
    cycle[at, member] = calls["cycle"].to_numpy(dtype=np.int64)
    spent, in_step = np.full((2, len(SPENT), *shape), np.nan)
    for k, part in enumerate(SPENT):
        spent[k, at, member] = calls[f"spent_{part}_ns"].to_numpy(dtype=np.float64)
        in_step[k, at, member] = calls[f"step_{part}_ns"].to_numpy(dtype=np.float64)
    return Sequence(first.index.to_numpy(dtype=np.int64), ranks, ready, started, queued, cycle, spent, in_step, began)
