"""The collectives of every process group in order, with what its members did from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from ....common.nccl_tests import POINT_TO_POINT, SYNCHRONISING
from ...core.intervals import Spans, spans, union
from ...core.schema import grouped
from ..clocks.table import aligned
from .accounts import Sequence
from .program import SPENT, GroupCalls, OnDevice, Program, Waits, program

_GROUP = ["process_group", "pg_ranks"]
_UNIT = ["rank", "cycle", "device"]


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


def readiness(ran: Activities, members: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """`members` with the columns of `with_readiness`; they are calls of the ranks that `ran` has."""
    return with_readiness(members, programs(ran, members), clocks)


def without_work(ran: Activities, members: pd.DataFrame, rank: int) -> Spans | None:
    """When the first device of a rank had nothing to do because its CPU gave it nothing; None if it made no call.

    `members` are calls of the rank, and of others.
    """
    of_rank = (table[table["rank"] == rank] for table in (ran.activities, ran.launches, ran.annotations))
    of_unit = programs(_Part(*of_rank), members[members["rank"] == rank])
    return next((union(program.parts["cpu"], program.parts["data"]) for program in of_unit.values()), None)


class _Part(NamedTuple):
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
    alone = calls["collective"].isin(POINT_TO_POINT) & calls["wait_ns"].isna()
    calls = calls.assign(wait_ns=calls["wait_ns"].mask(alone, calls["dur_ns"]))
    split = calls[calls["wait_ns"].notna()]
    starts = split["start_ns"].to_numpy(dtype=np.int64)
    ends = starts + split["wait_ns"].to_numpy(dtype=np.int64)
    return Waits(spans(starts, ends), np.sort(ends))


def with_readiness(
    members: pd.DataFrame, programs: Mapping[tuple[Any, ...], Program], clocks: pd.DataFrame
) -> pd.DataFrame:
    """Add to calls when each could run at the earliest, and what its rank's program had done until then.

    `members` are rows of `participation` with the columns `collective`, `process_group` and `pg_ranks`; `programs` is
    by rank, cycle and device. Columns that are added, in ns, NA where not known:

    - `ready_own_ns` and `ready_ns`: when the call could run at the earliest, on its own and on the common clock;
    - `queued_ns`: how long communication of other groups ran from then until it started;
    - `spent_<part>_ns` and `step_<part>_ns`: how long the program had spent on each part, since it began, and since the
      step began;
    - `began_ns`: when the step began, on the common clock, if it is the first of the trace.
    """
    parts = [
        _of_program(of_group, programs[unit])
        for unit, calls in grouped(members, _UNIT)
        if unit in programs
        for _, of_group in calls.groupby(_GROUP, dropna=False, sort=False)
    ]
    table = members.join(pd.concat(parts)) if parts else members.assign(ready_own_ns=members["start_ns"])
    ready = table["ready_own_ns"].fillna(table["start_ns"]).astype("int64")
    began = table.get("began_own_ns", pd.Series(pd.NA, table.index, dtype="Int64"))
    return table.assign(
        ready_own_ns=ready,
        ready_ns=aligned(ready, table["rank"], clocks),
        began_ns=aligned(began.fillna(0).astype("int64"), table["rank"], clocks).astype("Int64").where(began.notna()),
    )


def _of_program(calls: pd.DataFrame, running: Program) -> pd.DataFrame:
    """The columns of `with_readiness` for the calls of one group on one device, without those of unknown issue."""
    together = calls[calls["collective"].isin(SYNCHRONISING)]
    begin = together["start_ns"].to_numpy(dtype=np.int64)
    waited = together["wait_ns"].fillna(together["dur_ns"]).to_numpy(dtype=np.int64)
    group_calls = GroupCalls(
        spans(begin, begin + together["dur_ns"].to_numpy(dtype=np.int64)), spans(begin, begin + waited)
    )
    # What was issued before the window has no launch, so nothing says when it could have run.
    known = calls[calls["issue_ns"].notna()] if calls["issue_ns"].notna().any() else calls
    start = known["start_ns"].to_numpy(dtype=np.int64)
    issued = known["issue_ns"].fillna(known["start_ns"]).to_numpy(dtype=np.int64)
    ready = np.minimum(running.ready_ns(issued), start)
    columns: dict[str, Any] = {"ready_own_ns": ready, "queued_ns": running.queued(ready, start, group_calls)}
    columns["began_own_ns"] = pd.array(running.first_step(issued), dtype="Int64")
    for kind, values in (
        ("spent", running.until(ready, group_calls)),
        ("step", running.since_step(ready, issued, group_calls)),
    ):
        columns |= {f"{kind}_{part}_ns": spent for part, spent in zip(SPENT, values, strict=True)}
    return pd.DataFrame(columns, index=known.index)


def sequences(calls: pd.DataFrame) -> Iterator[Sequence]:
    """Yield the collectives of every group, in order; `calls` come from `with_readiness`, one device per rank."""
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
