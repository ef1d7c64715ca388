"""What a run would be like without stragglers, without jitter, or if compute never waited for communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...metrics.clocks.frame import Flags, Ints
from ..alike import Alike, peers
from ..edges import Edges
from ..engine import Playing
from ..programs import NONE
from ..working import CpuWork
from .scenario import Scenario


def without_stragglers(ranks: Collection[int] | None = None, host: str | None = None) -> Scenario:
    """These ranks, which are those of `host` if it is given, compute and launch as the median of all; for None all do.

    The median is over the steps, and over the other ranks that do the same.
    """

    def change(members: Sequence[Playing]) -> list[Playing]:
        alike = Alike.by_place([m.program for m in members])
        others = [ranks is None or m.program.rank not in ranks for m in members]
        computing = alike.median([m.duration for m in members], others)
        common = _common_blocks(members)
        changing = [ranks is None or not other for other in others]
        lacking = [_without(m, common) if change else m for m, change in zip(members, changing, strict=True)]
        works = [CpuWork.of(m) for m in lacking]
        launching = alike.median([work.launching_ns for work in works], others)
        blocking = alike.median([work.blocking_ns for work in works], others)
        begun = _begun_late(members, others)
        return [
            _as_usual(m, usual, *working) if change else m
            for m, change, usual, *working in zip(
                lacking, changing, computing, works, launching, blocking, begun, strict=True
            )
        ]

    who = host or ("every rank" if ranks is None else f"rank {', '.join(map(str, sorted(ranks)))}")
    return Scenario(
        f"{who} as fast as the median",
        "nothing takes longer than its median over ranks and steps; work that the other ranks do not have is left out",
        (change,),
    )


def _common_blocks(members: Sequence[Playing]) -> Mapping[str, int]:
    """How often more than half of the ranks wait for their device in a call of each name."""
    found = [Counter(str(m.program.call_name[call]) for call in m.edges.blocks) for m in members]
    names = set().union(*found)
    return {name: int(np.median([counts[name] for counts in found])) for name in names}


def _without(member: Playing, common: Mapping[str, int]) -> Playing:
    """Without the longest of those calls that wait for the device, if it makes more of a name than others do.

    The time in them is then work of the CPU, more than others have.
    """
    program = member.program
    took = program.call_end - program.call_start
    of_name: dict[str, list[int]] = {}
    for call in sorted(member.edges.blocks, key=lambda call: -took[call]):
        of_name.setdefault(str(program.call_name[call]), []).append(call)
    gone = [call for name, calls in of_name.items() for call in calls[: max(len(calls) - common[name], 0)]]
    launching = set(program.launch.tolist())
    gone = {call for call in gone if call not in launching}
    edges = Edges(member.edges.joins, {c: s for c, s in member.edges.blocks.items() if c not in gone})
    return replace(member, edges=edges)


def _begun_late(members: Sequence[Playing], others: Sequence[bool]) -> list[int]:
    """How much later than the others that do the same each began the first step of the trace, in ns."""
    alike = peers([m.program for m in members])
    begun: dict[int, list[int]] = {}
    for group, m, counts in zip(alike, members, others, strict=True):
        if counts and m.program.begun_ns is not None:
            begun.setdefault(group, []).append(m.program.begun_ns)
    usual = {group: int(np.median(times)) for group, times in begun.items()}
    return [
        0 if m.program.begun_ns is None or group not in usual else max(m.program.begun_ns - usual[group], 0)
        for group, m in zip(alike, members, strict=True)
    ]


def _as_usual(
    member: Playing, duration: Ints, work: CpuWork, launching: Ints, blocking: Ints, begun_late_ns: int
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


def no_jitter(chosen: Callable[[Playing], Flags] | None = None) -> Scenario:
    """Compute takes its mean over ranks and steps, transfer its median; of the `chosen` activities only, if given."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        alike = Alike.by_name([m.program for m in members])
        compute = alike.mean([m.duration for m in members])
        transfer = alike.median([m.transfer for m in members])
        result = []
        for member, mean, median in zip(members, compute, transfer, strict=True):
            program = member.program
            own = np.ones(len(program), dtype=bool) if chosen is None else chosen(member)
            duration = np.where(own & ~program.is_comm, mean, member.duration)
            moved = np.where(own & (program.collective != NONE), median, member.transfer)
            result.append(replace(member, duration=duration, transfer=moved))
        return result

    return Scenario("no jitter", "compute takes its mean over ranks and steps, transfer its median", (change,))


def perfect_overlap() -> Scenario:
    """Compute never waits for communication."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [replace(m, edges=_without_comm(m)) for m in members]

    return Scenario("perfect overlap", "compute takes as long as measured and never waits for communication", (change,))


def _without_comm(member: Playing) -> Edges:
    comm = member.program.is_comm
    joins = {
        node: [source for source in sources if comm[node] or not comm[source]]
        for node, sources in member.edges.joins.items()
    }
    blocks = {call: [source for source in sources if not comm[source]] for call, sources in member.edges.blocks.items()}
    return Edges({n: s for n, s in joins.items() if s}, {n: s for n, s in blocks.items() if s})
