"""What a run would be like without stragglers, without jitter, or if compute never waited for communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...metrics.clocks.frame import Ints
from ..alike import Alike
from ..edges import Edges
from ..engine import Playing
from ..jitter import calm, everything
from ..programs import NONE
from .scenario import Scenario


def without_stragglers(ranks: Collection[int] | None = None, host: str | None = None) -> Scenario:
    """These ranks, which are those of `host` if it is given, compute and launch as the median of all; for None all do.

    The median is over the steps, and over the other ranks that do the same.
    """

    def change(members: Sequence[Playing]) -> list[Playing]:
        alike = Alike.by_place([m.program for m in members])
        others = [ranks is None or m.program.rank not in ranks for m in members]
        computing = alike.median([m.duration for m in members], others)
        between = alike.median([_worked_before(m) for m in members], others)
        common = _common_blocks(members)
        return [
            m if ranks is not None and m.program.rank not in ranks else _as_usual(_without(m, common), usual, gap)
            for m, usual, gap in zip(members, computing, between, strict=True)
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
    """Without the longest of those calls that wait for the device, if it makes more of a name than others do."""
    program = member.program
    took = program.call_end - program.call_start
    of_name: dict[str, list[int]] = {}
    for call in sorted(member.edges.blocks, key=lambda call: -took[call]):
        of_name.setdefault(str(program.call_name[call]), []).append(call)
    gone = [call for name, calls in of_name.items() for call in calls[: max(len(calls) - common[name], 0)]]
    gone = [call for call in gone if call not in set(program.launch.tolist())]
    saved = np.zeros(len(took), dtype=np.int64)
    saved[gone] = took[gone]
    edges = Edges(member.edges.joins, {c: s for c, s in member.edges.blocks.items() if c not in gone})
    return replace(member, edges=edges, saved=member.saved + np.cumsum(saved))


def _worked_before(member: Playing) -> Ints:
    """How long the CPU worked before it launched each activity, since its last call; without a GPU, before it began."""
    program = member.program
    if program.paced.any():
        return np.where(program.paced, member.delay, 0)
    since = np.append(program.call_start[:1], program.call_end[:-1])
    worked = np.maximum(program.call_start - since, 0)
    found: Ints = np.where(program.launch == NONE, 0, worked[program.launch] if len(worked) else 0)
    return found


def _as_usual(member: Playing, duration: Ints, worked: Ints) -> Playing:
    """No activity takes longer than this, nor the CPU before it launches it."""
    program = member.program
    excess = np.maximum(_worked_before(member) - worked, 0)
    saved = np.zeros(len(program.call_start), dtype=np.int64)
    known = program.launch != NONE
    np.maximum.at(saved, program.launch[known], excess[known])
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

    return Scenario("perfect overlap", "compute takes as long as measured and never waits for communication", (change,))


def _without_comm(member: Playing) -> Edges:
    comm = member.program.is_comm
    joins = {
        node: [source for source in sources if comm[node] or not comm[source]]
        for node, sources in member.edges.joins.items()
    }
    blocks = {call: [source for source in sources if not comm[source]] for call, sources in member.edges.blocks.items()}
    return Edges({n: s for n, s in joins.items() if s}, {n: s for n, s in blocks.items() if s})
