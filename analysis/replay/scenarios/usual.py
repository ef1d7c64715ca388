"""Predict a run without stragglers, without jitter, or with compute that never waits for communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from statistics import median_low

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ....common.wording import shortened
from ...core.arrays import Flags, Ints
from ...core.intervals import clip, spans, subtract, total
from ...metrics.compute.contention import Slowdown
from ..alike import Alike
from ..edges import Edges, ready
from ..engine import Playing
from ..jitter import calm, everything
from ..programs import LONG_AGO, NONE, RankProgram, steps_of
from ..working import Work, work_of
from .host import returning_at_once
from .scenario import Change, Scenario

_MOST_NAMED = 4
_NOT_MEASURED = Slowdown(1.0, 1.0, 2.5)
"""Of compute beside communication, where that is not known: products of matrices were seen to take 1.1 to 2.5 times as
long beside NCCL on V100 and H100, and 1.8 times in NVIDIA/nccl#1428."""
_FENCE = 4.0
"""What takes longer than the median by so many times the distance from there to the upper quartile is no chance."""
_PACES_APART, _ONE_PACE = 1.1, 1.05
"""Steps differ in pace if it is by this factor; all other ranks have one pace in a step if theirs differ by less."""
_SKEWED, _LEAST_SPREAD = 4.0, 0.02
"""The distance to the upper quartile is taken to be no longer than so many times that to the lower one, or this part of
the median if that is more: what is beyond is due to other stragglers."""


_ON_DEVICE, _LAUNCHING, _BLOCKING = map(attrgetter, ("on_device_ns", "launching_ns", "blocking_ns"))
"""The parts of a rank's work that are compared with the others'."""


def without_stragglers(
    ranks: Collection[int] | None = None, host: str | None = None, *, of_devices: bool = False
) -> Scenario:
    """Make these ranks as fast as the others; all ranks for None. `host` is their host, if given.

    The others are those that do the same, in all steps. With `of_devices`, CPUs do what they did.
    """
    who = "every rank" if ranks is None else named_ranks(sorted(ranks), host)
    return Scenario(
        f"{who} as fast as {'the median' if ranks is None else 'the others'}",
        "nothing takes longer than its median over ranks and steps; work that the other ranks do not have is left out",
        (_as_fast_as_others(None if ranks is None else frozenset(ranks), of_devices=of_devices),),
        leaves_out=True,
        of_ranks=True,
    )


def named_ranks(ranks: Sequence[int], host: str | None = None) -> str:
    """`rank 5`, `ranks 2, 5` or `host node1`; at most four ranks are named."""
    if host is not None:
        return f"host {host}"
    return f"rank{'s' if len(ranks) > 1 else ''} {shortened(ranks, _MOST_NAMED)}"


@cache
def _as_fast_as_others(ranks: frozenset[int] | None, fence: float = _FENCE, *, of_devices: bool = False) -> Change:
    """One function for the same ranks, so that what it gives can be remembered."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        programs = [m.program for m in members]
        others = [ranks is None or program.rank not in ranks for program in programs]
        changing = [ranks is None or not other for other in others]
        alike = _alike(programs, others, changing)
        measured = [work_of(m) for m in members]
        waits = alike.median([work.waits for work in measured], others)
        # Stages wait for their devices in different places: only more calls than the others' are work those lack.
        of_stages = [
            len(m.edges.blocks)
            for m, stage, counts in zip(members, alike.is_stage, others, strict=True)
            if stage and counts
        ]
        lacking = [
            m if not change else _with_waits(m, of_stages) if stage else _without(m, usual, most)
            for m, change, stage, usual, most in zip(
                members, changing, alike.is_stage, alike.is_usual(others), waits, strict=True
            )
        ]
        works = [work_of(m) for m in lacking]
        computing, launching, blocking = (
            _capped(values, _usual(values, compared, alike, others, changing, fence, by_pace), others, alike)
            for values, compared, by_pace in (
                (
                    [of(work) for work in works],
                    [of(work) for work in (works if all(others) else measured)],
                    of is _ON_DEVICE and not all(others),
                )
                for of in (_ON_DEVICE, _LAUNCHING, _BLOCKING)
            )
        )
        begun = _later_than_others(programs, alike, others, [p.begun_ns for p in programs], [NONE] * len(programs))
        first = [_first_on_device(p) for p in programs]
        late = _later_than_others(
            programs,
            alike,
            others,
            [None if node is None else int(p.start[node]) for p, node in zip(programs, first, strict=True)],
            [NONE if node is None else int(p.name[node]) for p, node in zip(programs, first, strict=True)],
        )
        result = []
        for number, m in enumerate(lacking):
            if changing[number] and of_devices:
                own = members[number]
                less = np.where(own.program.is_comm, own.duration, np.minimum(own.duration, computing[number]))
                m = replace(own, duration=less)
            elif changing[number]:
                m = _as_usual(m, computing[number], works[number], launching[number], blocking[number], begun[number])
                m = _sooner_at_first(m, lacking[number].duration, first[number], late[number])
            result.append(m)
        return result

    return change


def more_than_others(members: Sequence[Playing], ranks: Collection[int]) -> list[tuple[Ints, Ints]]:
    """By how much each activity exceeds its equals on the ranks that are not among these, in ns, by member.

    On its device, and in the CPU's work before it; less than 0 where it takes less than their median.
    """
    programs = [member.program for member in members]
    others = [program.rank not in ranks for program in programs]
    alike = _alike(programs, others, [not other for other in others])
    works = [work_of(member) for member in members]
    device, launching, blocking = (
        [mine - usual for mine, usual in zip(values, alike.median(values, others), strict=True)]
        for values in ([of(work) for work in works] for of in (_ON_DEVICE, _LAUNCHING, _BLOCKING))
    )
    return [(ns, after + before) for ns, after, before in zip(device, launching, blocking, strict=True)]


def _alike(programs: Sequence[RankProgram], others: Sequence[bool], changing: Sequence[bool]) -> Alike:
    alike = Alike.by_place(programs)
    if _has_none_like_it(alike.orders, others, changing):
        # Of a whole stage only the other stages show what is usual; so do others of ranks that do more than these.
        return Alike.by_place(programs, across=True)
    return alike


def _has_none_like_it(orders: Sequence[int], others: Sequence[bool], changing: Sequence[bool]) -> bool:
    """Whether some member that changes has no other one that does the same in the same order to be compared with."""
    compared = Counter(order for order, counts in zip(orders, others, strict=True) if counts)
    itself = [int(counts) for counts in others]
    return any(compared[order] <= own for order, own, changes in zip(orders, itself, changing, strict=True) if changes)


def _usual(
    values: Sequence[Ints],
    compared: Sequence[Ints],
    alike: Alike,
    others: Sequence[bool],
    changing: Sequence[bool],
    fence: float,
    by_pace: bool = False,
) -> list[Ints]:
    """The values that each changing member would have if it were like the others; rare ones are 0.

    What steps take all others longer, they take it longer as well, if compared `by_pace`.

    What the others have stands in `compared`, which holds the same arrays for every change of the same run.
    Chance is left as it is, or a rank would be faster than any real one: it is a straggler in what takes longer than
    nearly all others take, and in everything, always or in some steps, if a factor sets it apart further than the
    others are from each other, of whom some may be stragglers as well: a device that is throttled from some step on is
    slower at everything, but at nothing by more than chance.
    """
    low, median, high = alike.quantiles((0.25, 0.5, 0.75), compared, others, values)
    whole, by_step = zip(*map(_factors, values, median, alike.places_by_step), strict=True)
    if by_pace and (paces := _paces(by_step, others)):
        at_pace = [_at_pace(places, paces, len(own)) for places, own in zip(alike.places_by_step, values, strict=True)]
        even, even_compared = (
            [np.rint(own / pace).astype(np.int64) for own, pace in zip(each, at_pace, strict=True)]
            for each in (values, compared)
        )
        found = _usual(even, even_compared, alike, others, changing, fence)
        return [
            np.rint(usual * pace).astype(np.int64) if changes else own
            for usual, pace, own, changes in zip(found, at_pace, values, changing, strict=True)
        ]
    of_member = np.repeat(np.arange(len(values)), [len(each) for each in by_step])
    in_steps = np.array([factor for each in by_step for factor in each.values()])
    result = list(values)
    for number in np.flatnonzero(changing).tolist():
        mine, least, usual, most = (each[number] for each in (values, low, median, high))
        compared_with = np.array(others) & (np.arange(len(others)) != number)
        of_others, in_others = np.array(whole)[compared_with], in_steps[compared_with[of_member]]
        always = _beyond(_most_by_chance(of_others) if len(of_others) else 1.0, whole[number])
        most_in_others = _most_by_chance(in_others) if len(in_others) else np.inf
        factor = np.full(len(mine), always)
        for step, in_step in by_step[number].items():
            own = _beyond(most_in_others, in_step)
            # A step as fast as those of the others has nothing to lose.
            factor[alike.places_by_step[number][step]] = own if own > 1 else always if 2 * in_step > 1 + always else 1.0
        scaled = np.rint(mine / factor).astype(np.int64)
        chance = np.minimum(most - usual, np.maximum(_SKEWED * (usual - least), _LEAST_SPREAD * usual))
        result[number] = np.where(scaled > usual + fence * chance, usual, scaled)
    return result


def _paces(by_step: Sequence[Mapping[int, float]], others: Sequence[bool]) -> dict[int, float]:
    """By how much steps differ that take all other ranks longer, or less, by one factor; empty if none do by much.

    So do batches of sequences that are not equally long: what is late in them is late beside the others in that step.
    """
    of_step: dict[int, list[float]] = {}
    for factors, counts in zip(by_step, others, strict=True):
        for step, factor in factors.items() if counts else ():
            of_step.setdefault(step, []).append(factor)
    paces = {
        step: median_low(factors)
        for step, factors in of_step.items()
        if min(factors) > 0 and len(factors) > 1 and max(factors) <= _ONE_PACE * min(factors)
    }
    return paces if max(paces.values(), default=1.0) > _PACES_APART * min(paces.values(), default=1.0) else {}


def _at_pace(places: Mapping[int, Ints], paces: Mapping[int, float], size: int) -> NDArray[np.float64]:
    """The pace of the step of each activity."""
    pace = np.ones(size)
    for step, at in places.items():
        pace[at] = paces.get(step, 1.0)
    return pace


def _beyond(most_by_chance: float, factor: float) -> float:
    """The factor if it is more than chance; else 1."""
    return max(factor, 1.0) if factor > most_by_chance else 1.0


def _most_by_chance(factors: NDArray[np.float64]) -> float:
    """The largest factor that does not set a rank apart from these.

    They are the faster half, and those who follow without being set apart from it further than it is wide.
    """
    ordered = np.sort(factors)
    half = -(-len(ordered) // 2)
    apart = np.flatnonzero(ordered[half:] > 2 * ordered[half - 1 : -1] - ordered[0])
    most = ordered[half - 1 + apart[0]] if len(apart) else ordered[-1]
    return float(2 * most - ordered[0])


def _capped(values: Sequence[Ints], usual: Sequence[Ints], others: Sequence[bool], alike: Alike) -> list[Ints]:
    """The usual values, raised so that a stage has in total no less than the others' work takes at its own pace."""
    sums = [int(each.sum()) for each in values]
    result = list(usual)
    for number in np.flatnonzero(alike.is_stage).tolist():
        compared = [
            counts and stage and place != number
            for place, (counts, stage) in enumerate(zip(others, alike.is_stage, strict=True))
        ]
        of_others = [each for each, counts in zip(sums, compared, strict=True) if counts]
        less = np.maximum(values[number] - usual[number], 0)
        pace = _pace(number, values, compared, alike.codes)
        most = max(sums[number] - round(pace * median_low(of_others)), 0) if of_others else 0
        share = min(most / less.sum(), 1.0) if less.any() else 1.0
        result[number] = np.where(less > 0, values[number] - np.rint(share * less).astype(np.int64), usual[number])
    return result


def _pace(number: int, values: Sequence[Ints], compared: Sequence[bool], codes: Sequence[Ints]) -> float:
    """How much of the time of the others this member takes for the same work; 1 if it takes more.

    Those who wait for it may be slower for that: their CPUs go to sleep, and their caches cool down.
    """
    of_others = [place for place, counts in enumerate(compared) if counts]
    if not of_others:
        return 1.0
    at, theirs = (np.concatenate([each[place] for place in of_others]) for each in (codes, values))
    mean = pd.Series(theirs[at != NONE]).groupby(at[at != NONE]).mean()
    usual = mean.reindex(codes[number]).to_numpy()  # NaN for what they do not do, and for rare work
    both = np.isfinite(usual)
    return min(float(values[number][both].sum() / usual[both].sum()), 1.0) if usual[both].any() else 1.0


def _factors(values: Ints, usual: Ints, places_by_step: Mapping[int, Ints]) -> tuple[float, dict[int, float]]:
    """Factors by which values exceed the usual ones, in all and in each step; 1 where nothing is known.

    They are medians of the ratios, weighted by the usual values.
    """
    known = np.flatnonzero((values > 0) & (usual > 0))
    if not len(known):
        return 1.0, dict.fromkeys(places_by_step, 1.0)
    ratio = values[known] / usual[known]
    order = np.argsort(ratio, kind="stable")  # once: the ratios of each step are then in order as well
    ratio, weight = ratio[order], usual[known][order]
    number = np.full(len(values), len(places_by_step))
    for step, places in enumerate(places_by_step.values()):
        number[places] = step
    number = number[known][order]
    of_steps = np.argsort(number, kind="stable")
    sums = np.append(0, np.cumsum(weight[of_steps]))
    begin, end = (np.searchsorted(number[of_steps], np.arange(len(places_by_step)), side) for side in ("left", "right"))
    middle = np.searchsorted(sums[1:], (sums[begin] + sums[end]) / 2)
    factors = np.where(begin < end, ratio[of_steps][np.minimum(middle, len(ratio) - 1)], 1.0)
    weight_sums = np.cumsum(weight)
    whole = float(ratio[np.searchsorted(weight_sums, weight_sums[-1] / 2)])
    return whole, dict(zip(places_by_step, factors.tolist(), strict=True))


def _without(member: Playing, is_usual: Flags, waits: Ints) -> Playing:
    """Remove calls that wait for the device where others do not: the longest ones before each launch.

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


def _with_waits(member: Playing, of_others: Sequence[int]) -> Playing:
    """Remove the longest calls that wait for the device: as many as this has more of than the median of others."""
    program, blocks = member.program, member.edges.blocks
    more = len(blocks) - median_low(of_others) if of_others else 0
    if more <= 0:
        return member
    gone = sorted(blocks, key=lambda call: program.call_start[call] - program.call_end[call])[:more]
    edges = Edges(member.edges.joins, {call: waited for call, waited in blocks.items() if call not in gone})
    return replace(member, edges=edges)


def _later_than_others(
    programs: Sequence[RankProgram],
    alike: Alike,
    others: Sequence[bool],
    times: Sequence[int | None],
    names: Sequence[int],
) -> list[int]:
    """Delay of each member in ns against others that do the same; 0 if not known.

    Others are those on the same clock that do it in the same order: one stage of a pipeline begins its steps later
    than another one, and is not late. What was done has a name.
    """
    doing = [
        (peers, order, program.linked, name)
        for peers, order, program, name in zip(alike.peers, alike.orders, programs, names, strict=True)
    ]
    known: dict[tuple[int, int, int, int], list[int]] = {}
    for group, counts, time in zip(doing, others, times, strict=True):
        if counts and time is not None:
            known.setdefault(group, []).append(time)
    usual = {group: int(np.median(of_group)) for group, of_group in known.items()}
    return [
        0 if time is None or group not in usual else max(time - usual[group], 0)
        for group, time in zip(doing, times, strict=True)
    ]


def _first_on_device(program: RankProgram) -> int | None:
    """The first activity within the traced steps; None if it was launched before."""
    inside = np.flatnonzero(steps_of(program) >= 0)
    if not len(inside):
        return None
    node = int(inside[np.argmin(program.start[inside])])
    return node if program.launch[node] != NONE else None


def _sooner_at_first(member: Playing, as_measured: Ints, node: int | None, late_ns: int) -> Playing:
    """Start this first activity as early as the others' by removing what made it late.

    What made it late, such as a longer kernel at the end of the step before, is before the steps, where nothing is
    known to be usual: there its streams were busy for less, by no more than that.
    Where its launch becomes earlier by more than it was late, the device would be as busy as those of the others.
    """
    if node is None or not late_ns:
        return member
    program = member.program
    duration, less = _shorter_head(member, as_measured, late_ns)
    before, _ = ready(program)
    launched = int(program.call_start[program.launch[node]] - member.saved[program.launch[node]])
    joined = max((int(program.end[source]) for source in member.edges.joins.get(node, ())), default=LONG_AGO)
    delay = member.delay.copy()
    sooner = max(int(program.start[node]) - late_ns, launched)
    delay[node] = sooner - max(int(before[node]) - less[int(program.lane[node])], launched, joined)
    return replace(member, delay=delay, duration=duration, with_head=True)


def _shorter_head(member: Playing, as_measured: Ints, most_ns: int) -> tuple[Ints, dict[int, int]]:
    """Durations with each stream less busy right before the steps, and by how much, by lane.

    The end of the step before is like the ends of those in the trace: what takes less there does so here as well. Only
    what this does not explain is taken from the last ones on.
    """
    program, steps = member.program, steps_of(member.program)
    duration, less = member.duration.copy(), {}
    for lane in np.unique(program.lane).tolist():
        of_lane = np.flatnonzero(program.lane == lane)
        first = int(np.argmax(steps[of_lane] >= 0)) if (steps[of_lane] >= 0).any() else 0
        head = [place for place in of_lane[:first][::-1].tolist() if not program.is_comm[place]]
        worked, removed = of_lane[~program.is_comm[of_lane]], as_measured - duration
        ends = [worked[steps[worked] == step][::-1] for step in np.unique(steps[of_lane[first:]]).tolist()]
        excess = [_at_the_end(program, ends, nth, place, removed) for nth, place in enumerate(head)]
        left = most_ns
        for place, most in [*zip(head, excess, strict=True), *((place, most_ns) for place in head)]:
            taken = min(int(duration[place]), most, left)
            duration[place] -= taken
            left -= taken
        less[lane] = most_ns - left
    return duration, less


def _at_the_end(program: RankProgram, ends: Sequence[Ints], nth: int, place: int, values: Ints) -> int:
    """Median over steps of the n-th value from the end, if its name is the same in most; else 0."""
    alike = [
        int(values[nodes[nth]])
        for nodes in ends
        if nth < len(nodes) and program.name[nodes[nth]] == program.name[place]
    ]
    return max(median_low(alike), 0) if 2 * len(alike) > len(ends) else 0


def _as_usual(
    member: Playing, duration: Ints, work: Work, launching: Ints, blocking: Ints, begun_late_ns: int
) -> Playing:
    """Limit activities, and the CPU's work before them, to these durations."""
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
    """Replace work by its mean over ranks and steps, and transfers by their median.

    Work that ranks do longer in turn may be gone as well, instead of spread out: then none is longer than the median.
    """

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [each.mixed(member, everything(member)) for member, each in zip(members, calm(members), strict=True)]

    assumes = "work takes its mean over ranks and steps, transfer its median"
    ways = (change, _as_fast_as_others(None, 0.0))
    return Scenario("work spread evenly over all the ranks", assumes, ways, likeliest=0, leaves_out=True, of_ranks=True)


def never_waiting(members: Sequence[Playing]) -> list[Playing]:
    """Let compute and CPUs never wait for communication."""
    return [replace(_not_blocked(m), edges=_without_comm(m)) for m in members]


def _not_blocked(member: Playing) -> Playing:
    """Let calls return at once that wait for nothing but communication: their time would stay as the CPU's work."""
    which = np.zeros(len(member.program.call_start), dtype=bool)
    which[[call for call, sources in member.edges.blocks.items() if member.program.is_comm[sources].all()]] = True
    return returning_at_once(member, which)


def perfect_overlap() -> Scenario:
    """Hide every transfer behind compute.

    Three bounds, of which the tightest counts: compute never waits for communication; transfers take no time, but those
    who come late are waited for; and no stream communicates any faster. Compute beside the transfers that are hidden
    then takes as much longer as what is beside communication now: the gain lies between those for the ends of that
    slowdown's interval, or of all slowdowns known of any run where it could not be measured.
    """

    def ways(slowdown: Callable[[Slowdown], float]) -> tuple[Change, Change]:
        def in_no_time(members: Sequence[Playing]) -> list[Playing]:
            return [replace(m, transfer=np.zeros_like(m.transfer), duration=_beside_all(m, slowdown)) for m in members]

        def hidden(members: Sequence[Playing]) -> list[Playing]:
            return never_waiting([replace(m, duration=_beside_all(m, slowdown)) for m in members])

        return hidden, in_no_time

    return Scenario(
        "every transfer hidden behind compute",
        "a bound: compute never waits for transfers, which take as long on their streams, and is slowed down by them "
        "as measured; where that is not known, by a factor of 1 to 2.5",
        ways(attrgetter("usual")),
        ends=(ways(attrgetter("high")), ways(attrgetter("low"))),
        limit=True,
        tightest=True,
        leaves_out=True,
        least=_communicating,
    )


def _beside_all(member: Playing, slowdown_of: Callable[[Slowdown], float]) -> Ints:
    """Durations if transfers beside which nothing computes are beside compute: what they hide costs part of its time.

    Compute that is `s` times as slow does in a hidden ms what takes 1/s ms alone, so that hides no more than 1 - 1/s
    ms less. At most, all that runs alone becomes `s` times as long.
    """
    program = member.program
    slowdown = slowdown_of(program.slowdown().get(program.rank, _NOT_MEASURED))
    duration: Ints = member.duration.copy()
    if slowdown == 1.0:
        return duration
    comm, start, end = program.is_comm, program.start.astype(np.int64), program.end.astype(np.int64)
    transfers = spans(end[comm] - member.transfer[comm].astype(np.int64), end[comm])
    computes, communicates = spans(start[~comm], end[~comm]), spans(start[comm], end[comm])
    exposed, alone = subtract(transfers, computes), subtract(computes, communicates)
    for step in np.unique(steps_of(program)).tolist():
        of_step = steps_of(program) == step
        rows = np.flatnonzero(of_step & ~comm)
        if not len(rows):
            continue
        within = int(start[of_step].min()), int(end[of_step].max())
        hidden, free = (total(clip(each, *within)) for each in (exposed, alone))
        extra = min(hidden * (1 - 1 / slowdown), free * (slowdown - 1))
        duration[rows] = np.rint(duration[rows] * (1 + extra / max(int(duration[rows].sum()), 1)))
    return duration


def _communicating(cycles: Sequence[Sequence[Playing]]) -> dict[int, float]:
    """How long the busiest stream of any rank communicates in each step, in ns."""
    of_stream = [
        pd.DataFrame({"step": m.program.step, "lane": m.program.lane, "ns": m.transfer})[m.program.is_comm]
        .groupby(["step", "lane"], as_index=False)["ns"]
        .sum()
        for members in cycles
        for m in members
    ]
    busiest = pd.concat(of_stream).groupby("step")["ns"].max().astype("float64")
    return dict(zip(busiest.index.tolist(), busiest.tolist(), strict=True))


def _without_comm(member: Playing) -> Edges:
    comm = member.program.is_comm
    joins = {
        node: [source for source in sources if comm[node] or not comm[source]]
        for node, sources in member.edges.joins.items()
    }
    blocks = {call: [source for source in sources if not comm[source]] for call, sources in member.edges.blocks.items()}
    return Edges({n: s for n, s in joins.items() if s}, {n: s for n, s in blocks.items() if s})
