"""Programs of a run without a GPU as arrays: each CPU is a lane, and so is each of gloo's threads.

A CPU hands a collective over, works on, and waits where it needs the result. A trace shows the first; the second are
its operators, with what Python does between them; the third is a pause in which the collective ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..core.arrays import Flags, Ints
from ..core.steps import NO_STEP
from ..metrics.clocks.table import aligned
from .edges import ROUNDED_NS, Edges
from .programs import LONG_AGO, NONE, Arrivals, RankProgram, arrivals, idle_since, last_arrival, unsplit

_CPU_LANE = 0
_SOON_NS, _SOON = 1_000_000, 0.5
"""A CPU that waited for a collective goes on so soon after its end, or after that share of its pause."""
_NEVER = np.iinfo(np.int64).max
_NO_CALLS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class _Ran:
    """Activities as columns of shape (n,): rows of the table, name numbers, times on the common clock, steps."""

    row: Ints
    name: Ints
    start: Ints
    end: Ints
    step: Ints

    @classmethod
    def of(cls, activities: pd.DataFrame, clocks: pd.DataFrame) -> _Ran:
        start = aligned(activities["start_ns"], activities["rank"], clocks).to_numpy()
        step = activities["step"].to_numpy(dtype=np.int64, na_value=NO_STEP)
        return cls(
            activities["row"].to_numpy(),
            activities["code"].to_numpy(),
            start,
            start + activities["dur_ns"].to_numpy(),
            step,
        )

    def taken(self, which: Ints) -> _Ran:
        """The activities at these places."""
        return _Ran(*(column[which] for column in (self.row, self.name, self.start, self.end, self.step)))


def cpu_program(rank: int, activities: pd.DataFrame, clocks: pd.DataFrame) -> RankProgram:
    """The program of one rank, from its activities and the columns of their calls."""
    is_comm = (activities["kind"] == "comm").to_numpy(dtype=bool)
    comm, called = _Ran.of(activities[is_comm], clocks), activities[is_comm]
    known = called["issue_ns"].fillna(called["start_ns"]).astype("int64")
    issued = np.minimum(aligned(known, called["rank"], clocks).to_numpy(), comm.start)
    cpu = _cut(_Ran.of(activities[~is_comm].sort_values("start_ns", kind="stable"), clocks), comm, issued)
    lane = np.append(np.full(len(cpu.row), _CPU_LANE), 1 + pd.factorize(called["stream"], sort=True)[0])
    both = _Ran(*(np.append(getattr(cpu, key), getattr(comm, key)) for key in ("row", "name", "start", "end", "step")))
    order = np.lexsort((both.end, both.start, lane))
    both, count = both.taken(order), len(cpu.row)
    by = np.searchsorted(np.maximum.accumulate(both.end[:count]), issued, side="right") - 1 if count else issued * 0 - 1

    def of_calls(column: Ints) -> Ints:
        column_by_start: Ints = np.append(np.full(count, NONE), column)[order]
        return column_by_start

    is_unsplit = np.append(np.zeros(count, dtype=bool), unsplit(called))[order]

    return RankProgram(
        rank=rank,
        row=both.row,
        lane=lane[order],
        device=np.full(len(order), "cpu", dtype=object),
        name=both.name,
        start=both.start,
        end=both.end,
        step=both.step,
        is_comm=order >= count,
        collective=of_calls(called["collective_id"].to_numpy(dtype=np.int64, na_value=NONE)),
        needs=of_calls(called["needs"].to_numpy(dtype=np.int64, na_value=NONE)),
        is_unsplit=is_unsplit,
        overlaps=_overlaps(lane[order], both),
        launch=np.full(len(order), NONE),
        call_start=_NO_CALLS,
        call_end=_NO_CALLS,
        call_name=_NO_CALLS,
        call_thread=_NO_CALLS,
        issued_by=of_calls(by),
        idle_since=idle_since(activities, clocks),
    )


def _overlaps(lane: Ints, ran: _Ran) -> Flags:
    """Whether each activity is of a lane of calls on which one begins before another has ended; both in their order.

    gloo's threads do one collective after the other. Its sends and receives are under way together: were one made to
    wait for the one before, two ranks that exchange data would wait for each other in a circle.
    """
    begins_early = (np.diff(lane, prepend=NONE) == 0) & (ran.start < np.append(0, ran.end[:-1]) - ROUNDED_NS)
    overlaps: Flags = np.isin(lane, lane[begins_early & (lane != _CPU_LANE)])
    return overlaps


def with_ends_of_messages(members: Sequence[RankProgram]) -> list[RankProgram]:
    """The same programs, with messages that end when they were there, and not when their CPU asked for them.

    A send or receive of gloo ends in a trace when its CPU waits for it. If that did something else when the last rank
    came, the message may have ended at any time since: it is taken to last as long as those for which CPUs waited then,
    or as the shortest where none did. Otherwise a rank with less to do would wait for its messages as long as before.
    """
    arrived = arrivals(members)
    of_all = [_Messages.of(program, arrived) for program in members]
    seen = pd.concat([pd.DataFrame({"name": each.name, "took": each.took, "seen": each.seen}) for each in of_all])
    usual = seen.groupby("name")["took"].min().astype("float64")
    usual.update(seen[seen["seen"]].groupby("name")["took"].median())
    ended = []
    for program, of_rank in zip(members, of_all, strict=True):
        end = program.end.copy()
        took = usual.reindex(of_rank.name).to_numpy().astype(np.int64)
        end[of_rank.node] -= np.where(of_rank.seen, 0, np.maximum(of_rank.took - took, 0))
        ended.append(replace(program, end=end))
    return ended


class _Messages(NamedTuple):
    """Messages of a rank that overlap: activity, name, how long from the last arrival on, whether its CPU waited then.

    Columns of shape (messages,).
    """

    node: Ints
    name: Ints
    took: Ints
    seen: Flags

    @classmethod
    def of(cls, program: RankProgram, arrived: Arrivals) -> _Messages:
        """The messages of a rank."""
        node = np.flatnonzero(program.overlaps & (program.collective != NONE))
        begun = [max(last_arrival(program, each, arrived)[1], int(program.start[each])) for each in node.tolist()]
        since, end = np.array(begun, dtype=np.int64), program.end[node]
        # A CPU waits for one message after the other, and for the next from the end of the one before on.
        before = np.sort(np.concatenate([[LONG_AGO], program.end[~program.is_comm], end]))
        waited_since = before[np.searchsorted(before, end, side="left") - 1]
        return cls(node, program.name[node], np.maximum(end - since, 0), since >= waited_since)


def _cut(cpu: _Ran, comm: _Ran, issued: Ints) -> _Ran:
    """Cut a CPU's activities where it hands over a collective; between activities, insert one of length 0."""
    rows = np.stack([cpu.row, cpu.name, cpu.start, cpu.end, cpu.step], axis=1).tolist()
    pieces = []
    at = 0
    for call in np.argsort(issued, kind="stable").tolist():
        time = int(issued[call])
        while at < len(rows) and rows[at][3] <= time:
            pieces.append(rows[at])
            at += 1
        if at < len(rows) and rows[at][2] < time:
            row, name, start, end, step = rows[at]
            pieces.append((row, name, start, time, step))
            rows[at] = (row, name, time, end, step)
        elif not pieces or pieces[-1][3] < time:
            pieces.append((int(comm.row[call]), int(comm.name[call]), time, time, int(comm.step[call])))
    columns = np.array([*pieces, *rows[at:]], dtype=np.int64).reshape(-1, 5).T
    return _Ran(*columns)


def cpu_edges(members: Sequence[RankProgram], arrived: Arrivals) -> list[Edges]:
    """Edges by member: what was issued before each call, and the calls whose end the CPU waited for.

    A pause that ends when a call does shows such a wait. It is then taken for all ranks and steps that do the same
    things, if none goes on before the call's last member arrived. The thread that runs a call may note its end later
    than the one that waits for it goes on.
    """
    steps = [_StepOf.all_of(program) for program in members]
    alike: dict[tuple[bytes, bytes], list[tuple[int, _StepOf]]] = {}
    for number, of_member in enumerate(steps):
        for step in of_member:
            name = members[number].name
            alike.setdefault((name[step.cpu].tobytes(), name[step.calls].tobytes()), []).append((number, step))
    joins = [_issues(program) for program in members]
    for like in alike.values():
        seen = set().union(*(step.waits(members[number]) for number, step in like))
        for at, call in seen:
            if all(step.may_wait(members[number], at, call, arrived) for number, step in like):
                for number, step in like:
                    joins[number].setdefault(int(step.cpu[at]), []).append(int(step.calls[call]))
    return [Edges({node: sorted(sources) for node, sources in of_member.items()}) for of_member in joins]


def _issues(program: RankProgram) -> dict[int, list[int]]:
    assert program.issued_by is not None
    issued = np.flatnonzero(program.issued_by != NONE)
    return {node: [by] for node, by in zip(issued.tolist(), program.issued_by[issued].tolist(), strict=True)}


@dataclass(frozen=True)
class _StepOf:
    """One step of a rank: positions of its CPU's activities by time, and of its calls as issued."""

    cpu: Ints
    calls: Ints

    @classmethod
    def all_of(cls, program: RankProgram) -> list[_StepOf]:
        """The steps of a rank."""
        assert program.issued_by is not None
        cpu, calls = np.flatnonzero(~program.is_comm), np.flatnonzero(program.is_comm)
        calls = calls[np.argsort(program.issued_by[calls], kind="stable")]
        steps = np.unique(program.step).tolist()
        return [cls(cpu[program.step[cpu] == step], calls[program.step[calls] == step]) for step in steps]

    def waits(self, program: RankProgram) -> set[tuple[int, int]]:
        """Pairs (activity, call), as places in this step, in which the activity seems to have waited."""
        started, ends = program.start[self.cpu], program.end[self.calls]
        since = np.maximum.accumulate(program.end[self.cpu])[:-1]
        pause, after = started[1:] - since, started[1:, None] - ends[None, :]
        within = (after >= 0) & (ends[None, :] > since[:, None])
        soon = np.where(within, after, _NEVER).min(axis=1, initial=_NEVER) <= np.maximum(_SOON_NS, pause * _SOON)
        return {(at + 1, call) for at, call in np.argwhere(within & soon[:, None]).tolist()}

    def may_wait(self, program: RankProgram, at: int, call: int, arrived: Arrivals) -> bool:
        """Whether the activity began after all members had arrived at the call."""
        node = int(self.calls[call])
        if program.collective[node] == NONE:
            return bool(program.end[node] <= program.start[self.cpu[at]])
        return last_arrival(program, node, arrived)[1] <= int(program.start[self.cpu[at]])
