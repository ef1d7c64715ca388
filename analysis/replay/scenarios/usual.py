"""What a run would be like without stragglers, without jitter, or if compute never waited for communication."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from ...metrics.clocks.frame import Flags, Ints
from ..alike import Alike, peers
from ..edges import Edges
from ..engine import Playing
from ..jitter import calm, everything
from ..programs import NONE
from ..working import WorkBeforeCalls, waits_before
from .scenario import Scenario

_FENCE = 4.0
"""What takes longer than the median by so many times the distance from there to the upper quartile is no chance."""


def without_stragglers(ranks: Collection[int] | None = None, host: str | None = None) -> Scenario:
    """These ranks, which are those of `host` if it is given, compute and launch like the others; for None all do.

    The others are those that do the same, in all steps.
    """

    def change(members: Sequence[Playing]) -> list[Playing]:
        alike = Alike.by_place([m.program for m in members])
        others = [ranks is None or m.program.rank not in ranks for m in members]
        changing = [ranks is None or not other for other in others]
        is_usual = alike.median([np.ones(len(m.program), dtype=np.int64) for m in members], others)
        waits = alike.median([waits_before(m) for m in members], others)
        lacking = [
            _without(m, usual > 0, most) if change else m
            for m, change, usual, most in zip(members, changing, is_usual, waits, strict=True)
        ]
        works = [WorkBeforeCalls.of(m) for m in lacking]
        computing = _usual([m.duration for m in lacking], alike, others)
        launching = _usual([work.launching_ns for work in works], alike, others)
        blocking = _usual([work.blocking_ns for work in works], alike, others)
        begun = _begun_late(members, others)
        return [
            _as_usual(m, usual, *working) if change else m
            for m, change, usual, *working in zip(
                lacking, changing, computing, works, launching, blocking, begun, strict=True
            )
        ]

    who = host or (
        "every rank" if ranks is None else f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
    )
    return Scenario(
        f"{who} as fast as the median",
        "nothing takes longer than its median over ranks and steps; work that the other ranks do not have is left out",
        (change,),
    )


def _usual(values: Sequence[Ints], alike: Alike, others: Sequence[bool]) -> list[Ints]:
    """What each member's values would be if it were like the others; rare ones are 0.

    Chance is left as it is, or a rank would be faster than any real one: it is a straggler in what takes longer than
    nearly all others take, and in everything if one factor sets it apart further than the others are from each other.
    """
    median, high = alike.median(values, others), alike.quantile(0.75, values, others)
    factors = [_factor(own, usual) for own, usual in zip(values, median, strict=True)]
    result = []
    for number, (own, usual, most) in enumerate(zip(values, median, high, strict=True)):
        of_others = [f for place, f in enumerate(factors) if place != number and others[place]] or [1.0]
        chance = 2 * max(of_others) - min(of_others)
        factor = max(factors[number], 1.0) if factors[number] > chance else 1.0
        scaled = np.rint(own / factor).astype(np.int64)
        result.append(np.where(scaled > usual + _FENCE * (most - usual), usual, scaled))
    return result


def _factor(values: Ints, usual: Ints) -> float:
    """By how much values are longer than usual: the median of the ratios, weighted by what is usual."""
    known = np.flatnonzero((values > 0) & (usual > 0))
    if not len(known):
        return 1.0
    ratio, weight = values[known] / usual[known], usual[known]
    order = np.argsort(ratio, kind="stable")
    so_far = np.cumsum(weight[order])
    return float(ratio[order][np.searchsorted(so_far, so_far[-1] / 2)])


def _without(member: Playing, is_usual: Flags, waits: Ints) -> Playing:
    """Without calls that wait for the device where others do not: the longest, where a rank has more before a launch.

    The time in them is then work of the CPU, more than others have. `waits` are the calls usual before each activity.
    """
    program = member.program
    usual_waits = np.zeros(len(program.call_start), dtype=np.int64)
    is_needed = np.zeros(len(program.call_start), dtype=bool)
    known = program.launch != NONE
    np.maximum.at(usual_waits, program.launch[known], waits[known])
    np.logical_or.at(is_needed, program.launch[known], is_usual[known])
    launches = np.unique(program.launch[known])
    before: dict[int, list[int]] = {}
    gone = set()
    for call in sorted(member.edges.blocks, key=lambda call: program.call_start[call] - program.call_end[call]):
        place = int(np.searchsorted(launches, call))
        if place < len(launches) and launches[place] == call:
            gone |= set() if is_needed[call] else {call}
        elif place < len(launches):
            before.setdefault(int(launches[place]), []).append(call)
    for launch, calls in before.items():
        gone |= set(calls[: max(len(calls) - int(usual_waits[launch]), 0)])
    edges = Edges(member.edges.joins, {c: s for c, s in member.edges.blocks.items() if c not in gone})
    return replace(member, edges=edges)


def _begun_late(members: Sequence[Playing], others: Sequence[bool]) -> list[int]:
    """How much later than the others that do the same each began the first step of the trace, in ns.

    Others are those on the same clock.
    """
    programs = [m.program for m in members]
    alike = [(number, program.linked) for number, program in zip(peers(programs), programs, strict=True)]
    begun: dict[tuple[int, int], list[int]] = {}
    for group, m, counts in zip(alike, members, others, strict=True):
        if counts and m.program.begun_ns is not None:
            begun.setdefault(group, []).append(m.program.begun_ns)
    usual = {group: int(np.median(times)) for group, times in begun.items()}
    return [
        0 if m.program.begun_ns is None or group not in usual else max(m.program.begun_ns - usual[group], 0)
        for group, m in zip(alike, members, strict=True)
    ]


def _as_usual(
    member: Playing, duration: Ints, work: WorkBeforeCalls, launching: Ints, blocking: Ints, begun_late_ns: int
) -> Playing:
    """No activity takes longer than this, nor the CPU before it launches it or waits for the device."""
    program = member.program
    excess = np.maximum(work.launching_ns - launching, 0)
    saved = np.zeros(len(program.call_start), dtype=np.int64)
    known, held = program.launch != NONE, work.held_by != NONE
    np.maximum.at(saved, program.launch[known], excess[known])
    np.maximum.at(saved, work.held_by[held], np.maximum(work.blocking_ns - blocking, 0)[held])
    if len(saved):
        saved[0] += begun_late_ns
    waited = [value for value in member.returns.values() if value >= 0]
    back = int(np.median(waited)) if waited else 0
    return replace(
        member,
        returns={call: min(value, back) for call, value in member.returns.items()},
        duration=np.where(program.is_comm, member.duration, np.minimum(member.duration, duration)),
        saved=member.saved + np.cumsum(saved),
        delay=np.where(program.paced, member.delay - excess, member.delay),
    )


def no_jitter() -> Scenario:
    """Work takes its mean over ranks and steps, transfer its median."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [each.mixed(member, everything(member)) for member, each in zip(members, calm(members), strict=True)]

    return Scenario("no jitter", "work takes its mean over ranks and steps, transfer its median", (change,))


def perfect_overlap() -> Scenario:
    """Compute never waits for communication."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [replace(m, edges=_without_comm(m)) for m in members]

    assumes = "compute takes as long as measured and never waits for communication"
    return Scenario("perfect overlap", assumes, (change,), limit=True)


def _without_comm(member: Playing) -> Edges:
    comm = member.program.is_comm
    joins = {
        node: [source for source in sources if comm[node] or not comm[source]]
        for node, sources in member.edges.joins.items()
    }
    blocks = {call: [source for source in sources if not comm[source]] for call, sources in member.edges.blocks.items()}
    return Edges({n: s for n, s in joins.items() if s}, {n: s for n, s in blocks.items() if s})
