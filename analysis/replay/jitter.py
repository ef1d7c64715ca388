"""Remove jitter from a run: equal work takes equally long on all ranks and in all steps.

Work, of devices and of CPUs, takes its mean: what one rank alone is slow at is shared by all, as if it were spread out.
So does what a few ranks or steps do and others do not: as if all of them did a little of it. Transfers take their
median, as one that waited for somebody unseen says nothing of links.

Source: StragglerAnalysis (OSDI '25), where compute takes its mean over ranks and steps, communication its median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..core.arrays import Flags, Ints
from .alike import Alike, outside_steps, peers, place_in_period
from .playing import Playing
from .programs import NONE, RankProgram


class Chosen(NamedTuple):
    """Some activities of a rank, and some of its CPU's work: that before each call, or activity of a CPU."""

    activities: Flags
    host: Flags


@dataclass(frozen=True)
class Calm:
    """A member's durations without jitter; `excess` is how much longer its CPU works before each call."""

    duration: Ints
    transfer: Ints
    delay: Ints
    excess: Ints
    returns: dict[int, int]

    def mixed(self, member: Playing, calmed: Chosen) -> Playing:
        """The member with jitter in everything that is not chosen."""
        excess = np.where(calmed.host, self.excess, 0) if _has_calls(member) else np.zeros_like(self.excess)
        returns = {call: self.returns[call] if calmed.host[call] else value for call, value in member.returns.items()}
        return replace(
            member,
            duration=np.where(calmed.activities, self.duration, member.duration),
            transfer=np.where(calmed.activities, self.transfer, member.transfer),
            delay=member.delay if _has_calls(member) else np.where(calmed.host, self.delay, member.delay),
            saved=member.saved + np.cumsum(excess),
            returns=returns,
        )


def everything(member: Playing) -> Chosen:
    """Choose all of a member."""
    return Chosen(np.ones(len(member.program), dtype=bool), np.ones(host_places(member), dtype=bool))


def others(chosen: Chosen) -> Chosen:
    """Choose all of a member except these."""
    return Chosen(~chosen.activities, ~chosen.host)


def host_places(member: Playing) -> int:
    """Number of places before which the CPU may work: calls; without a GPU, activities."""
    return len(member.program.call_start) if _has_calls(member) else len(member.program)


def _has_calls(member: Playing) -> bool:
    return member.program.issued_by is None


def calm(members: Sequence[Playing]) -> list[Calm]:
    """Remove the jitter of all members of a cycle."""
    programs = [member.program for member in members]
    alike = Alike.by_name(programs)
    runs = _Runs.of(programs)
    duration = _means([np.arange(len(m.program)) for m in members], alike, runs, [m.duration for m in members])
    transfer = alike.median([member.transfer for member in members])
    paced = [np.flatnonzero(member.program.paced) for member in members]
    delay = _means(paced, alike, runs, [m.delay[at] for m, at in zip(members, paced, strict=True)])
    work = [_host_work(member) for member in members]
    in_steps = [~outside_steps(program) for program in programs]
    usual = _means([each.activity for each in work], alike, runs, [each.took for each in work], work)
    returns = _returns(members)
    result = []
    for number, member in enumerate(members):
        program, known, before = member.program, in_steps[number], work[number]
        excess = np.zeros(len(program.call_start), dtype=np.int64)
        excess[before.call] = np.where(known[before.activity], before.took - usual[number], 0)
        delays = member.delay.copy()
        delays[paced[number]] = delay[number]
        result.append(
            Calm(
                np.where(program.is_comm | ~known, member.duration, duration[number]),
                np.where((program.collective == NONE) | ~known, member.transfer, transfer[number]),
                np.where(known, delays, member.delay),
                excess,
                returns[number],
            )
        )
    return result


class HostWork(NamedTuple):
    """The CPU's work before calls that launch or wait: since when, and what is launched next.

    `before` is 0 for a launch, and counts the calls from one that waits to the launch after it.
    """

    call: Ints
    since: Ints
    took: Ints
    activity: Ints
    before: Ints


def _host_work(member: Playing) -> HostWork:
    program = member.program
    launching, first = np.unique(program.launch[program.launch != NONE], return_index=True)
    launched = np.flatnonzero(program.launch != NONE)[first]
    calls = np.union1d(launching, sorted(member.edges.blocks)).astype(np.int64)
    following = np.searchsorted(launching, calls)
    before = np.append(np.searchsorted(calls, launching), 0)[following] - np.arange(len(calls))
    since = np.maximum.accumulate(program.call_end[calls[:-1]])
    took = np.maximum(program.call_start[calls[1:]] - since, 0)
    # Since when the CPU worked before the first call is not in the trace, nor what comes after the last launch.
    known = np.flatnonzero(following[1:] < len(launching))
    return HostWork(
        calls[1:][known], since[known], took[known], launched[following[1:][known]], before[1:][known]
    )  # fmt: skip


def host_work_within(member: Playing, begin: Ints, end: Ints) -> Flags:
    """Whether most of the CPU's work lies in these intervals: by call, without a GPU by activity."""
    program = member.program
    chosen = np.zeros(host_places(member), dtype=bool)
    if _has_calls(member):
        work = _host_work(member)
        places, since, until = work.call, work.since, program.call_start[work.call]
    else:
        places = np.flatnonzero(program.paced)
        since, until = program.start[places] - member.delay[places], program.start[places]
    inside = _covered(until, begin, end) - _covered(since, begin, end)
    chosen[places] = (inside > 0) & (2 * inside >= until - since)
    return chosen


def _covered(at: Ints, begin: Ints, end: Ints) -> Ints:
    """How much of these sorted, disjoint intervals lies before each time, in ns."""
    if not len(begin):
        return np.zeros_like(at)
    whole = np.append(0, np.cumsum(end - begin))
    last = np.searchsorted(begin, at, side="right")
    ongoing = np.where(last > 0, np.minimum(at, end[last - 1]) - begin[last - 1], 0)
    covered: Ints = whole[np.maximum(last - 1, 0)] + ongoing
    return covered


@dataclass(frozen=True)
class _Runs:
    """Number of ranks that communicate alike and of the place of a step in a period, by member and activity.

    With how many steps of how many ranks there are of it in total, by that number.
    """

    numbers: Sequence[Ints]
    steps: pd.Series[int]

    @classmethod
    def of(cls, programs: Sequence[RankProgram]) -> _Runs:
        most = max(int(place_in_period(program).max(initial=0)) for program in programs) + 1
        numbers = [
            group * most + place_in_period(program) for group, program in zip(peers(programs), programs, strict=True)
        ]
        known = [~outside_steps(program) for program in programs]
        table = pd.DataFrame({
            "member": np.repeat(np.arange(len(programs)), [int(each.sum()) for each in known]),
            "number": np.concatenate([each[inside] for each, inside in zip(numbers, known, strict=True)]),
            "step": np.concatenate([each.step[inside] for each, inside in zip(programs, known, strict=True)]),
        })  # fmt: skip
        return cls(numbers, table.drop_duplicates().groupby("number").size())


def _means(
    places: Sequence[Ints],
    alike: Alike,
    runs: _Runs,
    values: Sequence[Ints],
    work: Sequence[HostWork] | None = None,
) -> list[Ints]:
    """Mean over equal work, by member, of values at `places` among its activities.

    What at most half of all ranks and steps do that might do it is a mean over all of these.
    """
    sizes = [len(each) for each in values]
    table = pd.DataFrame({
        "code": np.concatenate([code[at] for code, at in zip(alike.codes, places, strict=True)]),
        "before": 0 if work is None else np.concatenate([each.before for each in work]),
        "run": np.concatenate([number[at] for number, at in zip(runs.numbers, places, strict=True)]),
        "value": np.concatenate(values),
    })  # fmt: skip
    keys = ["code", "before"]
    grouped = table.groupby(keys, sort=False)["value"]
    count = grouped.transform("size")
    by_run = table.drop_duplicates([*keys, "run"])
    might = by_run.assign(runs=by_run["run"].map(runs.steps)).groupby(keys, sort=False)["runs"].sum()
    might_count = might.reindex(pd.MultiIndex.from_frame(table[keys])).to_numpy()
    mean = grouped.transform("sum") / np.where(count * 2 <= might_count, might_count, count)
    return np.split(np.rint(mean.to_numpy()).astype(np.int64), np.cumsum(sizes)[:-1])


def _returns(members: Sequence[Playing]) -> list[dict[int, int]]:
    """Delay of blocked calls after what they waited for: mean by name, as if all ranks made as many."""
    rows = [
        (number, call, member.program.call_names[member.program.call_name[call]], value)
        for number, member in enumerate(members)
        for call, value in member.returns.items()
        if value >= 0
    ]
    table = pd.DataFrame(rows, columns=["member", "call", "name", "value"]).astype({"value": "float64"})
    most = table.groupby(["name", "member"]).size().groupby("name").max() * len(members)
    mean = (table.groupby("name")["value"].sum() / most).round().astype("int64").to_dict()
    return [
        {
            call: value if value < 0 else int(mean[member.program.call_names[member.program.call_name[call]]])
            for call, value in member.returns.items()
        }
        for member in members
    ]
