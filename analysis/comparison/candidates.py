"""Candidates for a change: what each costs a step of A and of B, each run played again, and by how much that differs.

What a late rank, slow links or waiting for batches cost is the row of `remedies`; where a run has none, it is played
for this. Work that both sides do costs what a step would gain if it took no longer than on the other side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from statistics import fmean, median_high, median_low
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...common.wording import bytes_text, listed
from ..core.escaping import printable
from ..core.schema import Row
from ..metrics.prices import Excess, Gain, LateRanks, Priced
from ..metrics.verdicts.culprits import late_reason
from ..metrics.verdicts.words import late_in_words, length, short
from ..replay.cures import CURES, Cure
from ..replay.paired import Price, difference_bounds
from ..replay.pricing import excesses
from ..replay.programs import NONE
from ..replay.scenarios.experts import balanced_experts
from ..replay.scenarios.host import BATCH_NS, launching_within, no_blocking, no_data_wait, own_work
from ..replay.scenarios.other_run import as_long_as
from ..replay.scenarios.scenario import Scenario
from ..replay.scenarios.transfers import links_as_others
from ..replay.scenarios.usual import named_ranks, without_stragglers
from ..replay.slow_links import against_others
from ..results.analysis import Analysis
from ..tables.remedies import priced
from ..tables.replay import replayed
from ..tables.verdicts import typical_culprits
from .work import CaptureWork, SameWork, WorkGroup, operator_at, whole_host

_Sides = tuple[Sequence[Analysis], Sequence[Analysis]]

_LEAST = 0.005
"""Of a step: a candidate whose prices differ by less is none."""
_LEAST_OF_CHANGE, _LEAST_AT_ALL = 0.2, 0.001
"""Likewise, of a change that is beyond what steps differ by, but at least that much of a step."""
_MOST_WORK, _MOST_TRANSFERS, _MOST_RANKS = 6, 4, 4
_ALIKE = 0.5
"""Of the largest change of a rank's work: ranks with as much changed alike."""
_MORE_OFTEN = 0.1
"""Of as many calls in a step: a trace that is cut off shows some more or fewer."""
_STANDS_OUT = 3.0
"""So many times the change of the others has a rank that has changed unlike them."""
_MOSTLY = 0.5
"""Of what CPUs do longer in all: what they do before one launch is named if it is as much."""
_NEXT_TO_NOTHING = 0.2
"""Of its price on the other side: less is as if it cost nothing."""
_NOT_ALONE = ("overlap", "twice_links", "no_straggler", "slow_links")
"""Changes that are candidates by who it is, or whose gain contains what transfers and late ranks do."""
_NOTHING = Gain(0.0, 0.0, 0.0)


class Sort(IntEnum):
    """What says most comes first: who differs from others, what takes longer, and what would only make up for it."""

    who = 0
    what = 1
    remedy = 2
    bound = 3


class Candidate(NamedTuple):
    """What a change may be due to: `what` would be different, and what a step gains by that on each side.

    `words` say it in a sentence on the change. `bounds_ns` are the interval of by how much more it costs a step of B.
    """

    what: str
    a: Gain
    b: Gain
    bounds_ns: tuple[float, float]
    words: str
    sort: Sort

    @property
    def ns(self) -> float:
        """How much more it costs a step of B, in ns."""
        return self.b.ns - self.a.ns

    @property
    def is_sure(self) -> bool:
        """Whether one side pays more, whatever the prices are within their bounds."""
        low, high = self.bounds_ns
        return low > 0 or high < 0

    @property
    def row(self) -> Row:
        """The row of `changed_causes`."""
        low, high = self.bounds_ns
        a_ns, b_ns = round(self.a.ns), round(self.b.ns)
        bounds = {"difference_low_ns": round(low), "difference_high_ns": round(high)}
        return {
            "what": self.what,
            "a_ns": a_ns,
            "b_ns": b_ns,
            "difference_ns": b_ns - a_ns,
            **bounds,
            "cause": self.words,
        }


def _candidate(what: str, a: Price, b: Price, words: str, sort: Sort) -> Candidate:
    return Candidate(what, a.gain, b.gain, difference_bounds(a, b), words, sort)


def candidates(
    a: Sequence[Analysis], b: Sequence[Analysis], same: SameWork, *, is_proven: bool
) -> list[Candidate] | None:
    """All candidates that differ enough, the largest first; None where a run cannot be played again.

    `same` is the work that both sides do. Of a change that `is_proven`, smaller candidates count.
    """
    if any(one.prices is None for one in (*a, *b)):
        return None
    sides = a, b
    least = _least_ns(sides, is_proven=is_proven)
    work = _work(sides, same, least)
    found = [
        *_late_ranks(sides, same, least),
        *_slow_links(sides),
        *_uneven_experts(sides),
        *_cures(sides, least),
        *work,
        *_cpus(sides, same, least),
        *_transfers(sides),
    ]
    return sorted((each for each in found if abs(each.ns) >= least), key=lambda each: -abs(each.ns))


def _least_ns(sides: _Sides, *, is_proven: bool) -> float:
    """By how much prices have to differ, in ns."""
    before, after = (fmean(one.typical_step.parts["window_ns"] for one in side) for side in sides)
    least = _LEAST * before
    of_change = max(_LEAST_OF_CHANGE * abs(after - before), _LEAST_AT_ALL * before)
    return min(least, of_change) if is_proven else least


def _price(side: Sequence[Analysis], scenarios: Sequence[Scenario | None]) -> Price:
    """What a step of this side gains, by the scenario of each capture: as in `remedies` where it has this change."""
    known = [_known(one, scenario) for one, scenario in zip(side, scenarios, strict=True)]
    gains = [
        _NOTHING if scenario is None else gain or one.of(replayed).gain(scenario)
        for one, (scenario, gain) in zip(side, known, strict=True)
    ]
    mean = Gain(*(fmean(each) for each in zip(*gains, strict=True)))
    return Price(mean, [(one.of(replayed), scenario) for one, (scenario, _) in zip(side, known, strict=True)])


def _known(one: Analysis, scenario: Scenario | None) -> tuple[Scenario | None, Gain | None]:
    """The scenario and its gain as `remedies` has played it, if it has: it is not played again."""
    if scenario is None or one.prices is None:
        return scenario, None
    for change, as_played in zip(one.prices.changes, one.of(priced)[1], strict=True):
        if change.what == scenario.name:
            return as_played, change.gain
    return scenario, None


def _late_ranks(sides: _Sides, same: SameWork, least: float) -> Iterator[Candidate]:
    """Yield ranks that either side has later than others, and those whose work has grown beyond that of others."""
    named = [_named_ranks(side) for side in sides]
    ranks: dict[frozenset[int], str | None] = {**named[0], **named[1]}
    for of_a in named[0]:
        for of_b in named[1]:
            ranks |= {rest: None for rest in (of_b - of_a, of_a - of_b) if rest and rest != of_a | of_b}
    # Where experts are uneven, those who have more to do are not late for that.
    every = [one.prices.uneven for side in sides for one in side if one.prices is not None]
    busy = {rank for uneven in every if uneven is not None for rank in uneven.ranks}
    differing = [of for of in (*_later(sides, least), *_grown(same)) if not of <= busy]
    ranks = {**dict.fromkeys(differing), **ranks}
    present = set.intersection(*({*one.run.ranks} for side in sides for one in side))
    for of, known_host in list(ranks.items())[-_MOST_RANKS:]:
        if of <= present and len(of) < len(present):
            host = known_host or whole_host(of, (*sides[0], *sides[1]))
            scenario = without_stragglers(of, host)
            in_a, in_b = (_price(side, [scenario] * len(side)) for side in sides)
            words = _late_words(sorted(of), host, scenario, sides, in_a.gain, in_b.gain, same.sides.a)
            low, high = difference_bounds(in_a, in_b)
            # What holds up others that no trace shows goes with what makes these late, or stays, in both runs.
            at_most = in_b.gain.high_ns - in_a.gain.high_ns if _has_unexplained(sides) else low
            bounds = min(low, at_most), max(high, at_most)
            yield Candidate(scenario.name, in_a.gain, in_b.gain, bounds, words, Sort.who)


def _has_unexplained(sides: _Sides) -> bool:
    """Whether ranks wait for much more than any change gains."""
    return any(one.prices is not None and one.prices.unexplained_ns is not None for side in sides for one in side)


def _named_ranks(side: Sequence[Analysis]) -> dict[frozenset[int], str | None]:
    """The late ranks of each capture, and their host if they are all of it."""
    late: list[LateRanks] = [one.prices.late for one in side if one.prices is not None and one.prices.late is not None]
    return {frozenset(each.ranks): each.host for each in late}


def _grown(same: SameWork) -> list[frozenset[int]]:
    """The rank whose work has changed most beyond that of others from A to B, and those that did so alike.

    If half of all ranks did, either half may be the one, as it takes longer or less than the other did.
    """
    times = [_by_rank(works) for works in (same.a, same.b)]
    ranks = [rank for rank in sorted(times[0]) if times[0][rank] and rank in times[1]]
    if len(ranks) <= 2:
        return []
    change = {rank: times[1][rank] / times[0][rank] - 1 for rank in ranks}
    found = list[frozenset[int]]()
    for usual in (median_low(change.values()), median_high(change.values())):
        apart = {rank: each - usual for rank, each in change.items()}
        most = max(apart.values(), key=abs)
        if abs(most) < _LEAST:
            continue
        alike = frozenset(rank for rank, each in apart.items() if each * most >= _ALIKE * most**2)
        first = frozenset(rank for rank in alike if apart[rank] == most)
        found += [first, *([alike] if len(first) < len(alike) <= len(ranks) / 2 else [])]
    return found


def _later(sides: _Sides, least: float) -> list[frozenset[int]]:
    """The rank that has grown later than others by most, by what its device and its CPU do, if that stands out."""
    if any(len(one.run.ranks) <= 2 for side in sides for one in side):  # neither of two is the usual one
        return []
    (to_median,) = without_stragglers().changes
    found = [[excesses(one.of(replayed), to_median) for one in side] for side in sides]
    ranks = set.intersection(*({*of_capture} for side in found for of_capture in side))
    means = [{rank: fmean(each[rank].whole_ns for each in side) for rank in sorted(ranks)} for side in found]
    more = {rank: means[1][rank] - means[0][rank] for rank in means[0]}
    usual = median_low(more.values())
    apart = {rank: abs(each - usual) for rank, each in more.items()}
    most = max(apart, key=lambda rank: apart[rank])
    others = median_low(each for rank, each in apart.items() if rank != most)
    return [frozenset({most})] if apart[most] >= max(least, _STANDS_OUT * others) else []


def _by_rank(works: Sequence[CaptureWork]) -> dict[int, float]:
    """Time of each rank's work in a typical step, mean over captures."""
    sums: dict[int, list[float]] = {}
    for work in works:
        typical = work.ran[work.ran["counts"]]
        of_steps = typical.groupby(["rank", "step"])["dur_ns"].sum().groupby("rank").median()
        for rank, ns in zip(of_steps.index.tolist(), of_steps.tolist(), strict=True):
            sums.setdefault(rank, []).append(ns)
    return {rank: fmean(each) for rank, each in sums.items()}


def _late_words(
    ranks: Sequence[int], host: str | None, scenario: Scenario, sides: _Sides, a: Gain, b: Gain, before: str
) -> str:
    """`rank 2 computes 0.5 ms per step longer than the others, mostly in gemm`."""
    who, several = named_ranks(ranks, host), len(ranks) > 1
    is_past = b.ns <= _NEXT_TO_NOTHING * a.ns
    rank, why = _reason(scenario, ranks, sides, 0 if is_past else 1)
    it = f"{'its ' if host is not None else ''}rank {rank}" if several else "it"
    be = "are" if several and host is None else "is"
    if is_past:
        return f"{who} {be} no longer late: in {before}, {it} {why}"
    if a.ns > _NEXT_TO_NOTHING * b.ns:
        return f"{who} {be} {'later' if b.ns > a.ns else 'less late'} than in {before}: {it} {why}"
    return f"{who} {be} late: {it} {why}" if several else f"{who} {why}"


def _reason(scenario: Scenario, ranks: Sequence[int], sides: _Sides, late_in: int) -> tuple[int, str]:
    """The latest of these ranks on the side where they are late, and why: as the verdict has it, if it names them."""
    for one in sides[late_in]:
        late = None if one.prices is None else one.prices.late
        if late is not None and set(late.ranks) == set(ranks):
            first = late.ranks[0]
            why = late_reason(first, late.excess[first], one.of(typical_culprits), on_cpu=first in late.on_cpu)
            return first, printable(late_in_words(why))
    here, there = (excesses(sides[number][0].of(replayed), scenario.changes[0]) for number in (late_in, 1 - late_in))
    more = {rank: _beyond(here[rank], there[rank]) for rank in ranks if rank in here and rank in there}
    first = max(more, key=lambda rank: more[rank].whole_ns, default=ranks[0])
    excess = more.get(first, Excess(0.0, 0.0, 0.0, None, None))
    on_cpu = excess.cpu_ns > max(excess.compute_ns, excess.copies_ns)
    why = late_reason(first, excess, sides[late_in][0].of(typical_culprits), on_cpu=on_cpu)
    return first, printable(late_in_words(why))


def _beyond(excess: Excess, other: Excess) -> Excess:
    """What a rank has more than others, without what it has on the other side."""
    parts = {
        part: max(getattr(excess, part) - getattr(other, part), 0.0) for part in ("compute_ns", "copies_ns", "cpu_ns")
    }
    return excess._replace(**parts)


def _slow_links(sides: _Sides) -> Iterator[Candidate]:
    """Yield the links that either side has slower than others like them."""
    slow = {(*one.prices.slow.ranks,): one.prices.slow.label
            for side in sides for one in side if one.prices is not None and one.prices.slow is not None}  # fmt: skip
    for ranks, label in slow.items():
        a, b = (_price(side, [_links_as_others(one, ranks) for one in side]) for side in sides)
        yield _candidate(f"{label} as fast as others like them", a, b, _costs(label, a.gain, b.gain), Sort.who)


def _uneven_experts(sides: _Sides) -> Iterator[Candidate]:
    """Yield how uneven experts are, where they are on either side."""
    if any(one.prices is not None and one.prices.uneven is not None for side in sides for one in side):
        a, b = (_price(side, [_balanced(one) for one in side]) for side in sides)
        words = _costs("uneven experts", a.gain, b.gain, several=True)
        yield _candidate("experts of all ranks equally busy", a, b, words, Sort.who)


def _balanced(one: Analysis) -> Scenario | None:
    passes = one.part.expert_passes
    return balanced_experts(passes) if len(passes) else None


def _links_as_others(one: Analysis, ranks: Sequence[int]) -> Scenario | None:
    """Links among these ranks as fast as others; None where there are no others."""
    compared = against_others(one.links, ranks)
    return None if compared is None else links_as_others(compared)


def _cures(sides: _Sides, least: float) -> Iterator[Candidate]:
    """Yield what either side found worth a price, or has recorded more of, by both prices."""
    late = any(one.prices is not None and one.prices.late is not None for side in sides for one in side)
    found = {change.remedy for side in sides for one in side for change in _changes(one)}
    for cure in CURES.values():
        times = [_annotated(side, cure.annotated) for side in sides] if cure.annotated else []
        recorded = [[each.per_step_ns for each in times], [_idle_ns(side, cure) for side in sides]]
        is_asked = cure.name in found or any(each and abs(each[1] - each[0]) >= least for each in recorded)
        if not is_asked or cure.make is None or cure.name in _NOT_ALONE or (cure.of_ranks and late):
            continue
        a, b = (_price(side, [_made(cure, one, times, sides) for one in side]) for side in sides)
        if cure.name == "no_syncs" and _outdoes_other(sides, a.gain, b.gain):
            a, b = (_price(side, [cure.make(one.links) for one in side]) for side in sides)
        what = cure.costs.removesuffix(" costs").removesuffix(" cost")
        words = _costs(f"{what[0].lower()}{what[1:]}", a.gain, b.gain, several=not cure.costs.endswith("costs"))
        [scenario] = {each.name for _, each in (*a.played, *b.played) if each is not None}
        yield _candidate(scenario, a, b, words, _sort(cure, sides, (a.gain, b.gain)))


def _idle_ns(side: Sequence[Analysis], cure: Cure) -> float:
    """How long devices were idle in a step while CPUs did what the cure names, mean over captures."""
    if not cure.is_named:
        return 0.0
    return fmean(sum((one.idle_causes or {}).get(cause, 0.0) for cause in cure.of_idle) for one in side)


class _Annotated(NamedTuple):
    """What annotations of a kind take: the median of one, and all of a step, of the rank with most of it."""

    median_ns: float
    per_step_ns: float


def _annotated(side: Sequence[Analysis], begins: str) -> _Annotated:
    """Means over captures."""
    found = []
    for one in side:
        annotations = one.part.run.annotations
        chosen = annotations[annotations["name"].fillna("").str.startswith(begins)]
        by_rank = chosen.groupby("rank")["dur_ns"].sum() / max(len(one.part.run.steps), 1)
        found.append(
            (float(chosen["dur_ns"].median()) if len(chosen) else 0.0, float(by_rank.max()) if len(chosen) else 0.0)
        )
    return _Annotated(*(fmean(each) for each in zip(*found, strict=True)))


def _made(cure: Cure, one: Analysis, times: Sequence[_Annotated], sides: _Sides) -> Scenario | None:
    """How a cure is played: a batch takes no longer than on the side where it takes less.

    Nor does anything wait in place of a CPU that waits more often than on the other side: there it did not.
    """
    if cure.name == "no_data_wait":
        return no_data_wait(batch_ns=round(min(BATCH_NS, *(each.median_ns for each in times))))
    if cure.name == "no_syncs" and (_wait_more_often(sides) or _wait_more_often(sides[::-1])):
        return no_blocking(instead=False)
    return None if cure.make is None else cure.make(one.links)


def _outdoes_other(sides: _Sides, a: Gain, b: Gain) -> bool:
    """Whether most of the difference of prices would make one side faster than the other, which does without.

    So it is where devices wait in place of a CPU after all: on the other side, where no CPU does, streams may.
    """
    before, after = (fmean(one.typical_step.parts["window_ns"] for one in side) for side in sides)
    price = b.ns - a.ns
    return (price - (after - before)) * price > _MOSTLY * price**2


def _sort(cure: Cure, sides: _Sides, prices: Sequence[Gain]) -> Sort:
    """A CPU that waits for its device lets all else cost more: a longer wait for a batch, or a rank that is late.

    Where it waits as often as before, all that it does after that takes longer.
    """
    if cure.gives_way_from is not None:
        return Sort.bound
    if cure.name != "no_syncs":
        return Sort.what
    dear = max((0, 1), key=lambda side: prices[side].ns)
    return Sort.remedy if _wait_more_often((sides[1 - dear], sides[dear])) else Sort.bound


def _wait_more_often(sides: _Sides) -> bool:
    """Whether CPUs of the second side wait for their devices more often than those of the first."""
    less, more = (fmean(map(_waits_per_step, side)) for side in sides)
    return more > less * (1 + _MORE_OFTEN)


def _waits_per_step(one: Analysis) -> float:
    """How many calls of a step wait for a device, on all ranks."""
    syncs = one.part.table("syncs")
    return float(syncs["calls"][syncs["kind"] == "sync"].sum()) / max(len(one.part.run.steps), 1)


def _changes(one: Analysis) -> tuple[Priced, ...]:
    return () if one.prices is None else one.prices.changes


def _costs(what: str, a: Gain, b: Gain, *, several: bool = True) -> str:
    """`waiting for batches costs 0.8 ms instead of 0.1 ms`."""
    cost = "cost" if several else "costs"
    if min(a.ns, b.ns) <= _NEXT_TO_NOTHING * max(a.ns, b.ns):
        if a.ns > b.ns:
            return f"{what} no longer {cost} {length(a.ns / 1e6)}"
        return f"{what} {cost} {length(b.ns / 1e6)}"
    return f"{what} {cost} {length(b.ns / 1e6)} instead of {length(a.ns / 1e6)}"


def _work(sides: _Sides, same: SameWork, least: float) -> Iterator[Candidate]:
    """Yield kernels that take longer on one side, by as many ns."""
    for group in same.groups[:_MOST_WORK]:
        if abs(group.difference_ns) < least:
            return
        in_b = group.difference_ns > 0
        works = same.b if in_b else same.a
        factors = group.to_a if in_b else group.to_b
        other = "A" if in_b else "B"
        scenario = f"{group.name} as fast as in {other}" if group.a_ns and group.b_ns else f"without {group.name}"
        scenarios = [as_long_as(scenario, of_activities=work.factors(factors)) for work in works]
        words = group.words if group.times is None else _all_words(sides, group, group.times)
        yield _candidate(scenario, *_on_one(sides, scenarios, in_b=in_b), words, Sort.what)


def _on_one(sides: _Sides, scenarios: Sequence[Scenario], *, in_b: bool) -> tuple[Price, Price]:
    """The prices in A and in B of what costs only one of them."""
    a, b = (_price(side, scenarios if of_b == in_b else [None] * len(side)) for of_b, side in enumerate(sides))
    return a, b


def _all_words(sides: _Sides, group: WorkGroup, times: float) -> str:
    """`everything takes 1.31 times as long: another GPU, other clocks or a throttle`."""
    lengths = [fmean(one.typical_step.parts["window_ns"] for one in side) for side in sides]
    what = (
        "everything"
        if group.who is None and abs(lengths[1] / lengths[0] / times - 1) <= abs(times - 1) * _NEXT_TO_NOTHING
        else group.name
    )
    devices = [sorted({str(name) for one in side for name in one.run.device_names.values() if name}) for side in sides]
    if devices[0] and devices[1] and devices[0] != devices[1]:
        why = f"{listed(devices[1])} in place of {listed(devices[0])}"
    else:
        why = "another GPU, other clocks or a throttle"
    return f"{what} takes {times:.2f} times as long: {why}"


def _cpus(sides: _Sides, same: SameWork, least: float) -> Iterator[Candidate]:
    """Yield what CPUs do longer before the same launches, apart from what has a price of its own, by both prices."""
    if any(one.run.is_of_cpus for side in sides for one in side):  # what they do is the work that is compared
        return
    works = same.a, same.b
    found = [
        [work.by_place(_own_work(one, work.activities)) for one, work in zip(*both, strict=True)]
        for both in zip(sides, works, strict=True)
    ]
    of_a, of_b = (pd.concat(side, axis=1).mean(axis=1) for side in found)
    both = pd.DataFrame({"a": of_a, "b": of_b}).dropna()
    more = both["b"] - both["a"]
    if max(more[more > 0].sum(), -more[more < 0].sum()) < least:
        return
    scenarios = [
        [launching_within("CPUs that do no more than on the other side", work.at_places(other)) for work in side]
        for side, other in zip(works, (both["b"], both["a"]), strict=True)
    ]
    a, b = (_price(side, of_side) for side, of_side in zip(sides, scenarios, strict=True))
    # What holds a CPU up unseen, such as its own device, is time of its own as well: what says more comes first.
    yield _candidate(scenarios[0][0].name, a, b, _cpu_words(both, b.gain.ns - a.gain.ns), Sort.remedy)


def _own_work(one: Analysis, activities: int) -> NDArray[np.float64]:
    """The CPU's own work before the launch of each activity in ns, NaN for those without any; shape (activities,)."""
    result = np.full(activities, np.nan)
    for members in one.of(replayed).measured:
        for member in members:
            is_launched = member.program.launch != NONE
            result[member.program.row[is_launched]] = own_work(member)[is_launched]
    return result


def _cpu_words(both: pd.DataFrame, ns: float) -> str:
    """`CPUs take 1.20 times as long for the same launches`, or before which one they do more."""
    more, (a_ns, b_ns) = both["b"] - both["a"], both.sum()
    how = "more" if ns > 0 else "less"
    most = (more * np.sign(ns)).idxmax()
    if abs(more[most]) >= _MOSTLY * abs(more.sum()):
        operator = operator_at(most)
        before = f"they launch {printable(short(operator))}" if operator else "a launch"
        return f"CPUs take {length(abs(more[most]) / 1e6)} {how} before {before}"
    times = b_ns / a_ns if a_ns else 1.0
    if (times - 1) * np.sign(ns) < _LEAST:
        return f"CPUs take {length(abs(ns) / 1e6)} {how} for the same launches"
    return f"CPUs take {times:.2f} times as long for the same launches: other CPUs, clocks, or work beside the job"


def _transfers(sides: _Sides) -> Iterator[Candidate]:
    """Yield collectives whose transfers take longer on one side, by kind and size."""
    tables = [[_transfer_times(one) for one in side] for side in sides]
    found = [
        pd.concat(side).groupby(["collective", "size_bytes"]).agg({"ns": "mean", "per_step": "mean"}) for side in tables
    ]
    both = found[0].add_suffix("_a").join(found[1].add_suffix("_b"), how="outer")
    gone, new = both[both["ns_b"].isna()], both[both["ns_a"].isna()]
    pairs = [(key, key) for key in both.index[both["ns_a"].notna() & both["ns_b"].notna()]]
    for kind in sorted({*gone.index.get_level_values(0)} & {*new.index.get_level_values(0)}):
        of_a, of_b = ([key for key in side.index if key[0] == kind] for side in (gone, new))
        if len(of_a) == len(of_b):  # the same calls, of other sizes: in order of these
            pairs += zip(sorted(of_a), sorted(of_b), strict=True)
    known = sorted(
        pairs,
        key=lambda pair: (
            -abs(found[1].loc[[pair[1]], "per_step"].iloc[0] - found[0].loc[[pair[0]], "per_step"].iloc[0])
        ),
    )
    times = [
        (key_a, key_b, *(float(side.loc[[key], "ns"].iloc[0]) for side, key in zip(found, (key_a, key_b), strict=True)))
        for key_a, key_b in known[:_MOST_TRANSFERS]
    ]
    # Links that are slower are so for all sizes: each size alone would say a part of it.
    together: dict[tuple[str, bool], list[_Transfers]] = {}
    for each in times:
        together.setdefault((each[1][0], each[3] > each[2]), []).append(each)
    for (kind, in_b), alike in together.items():
        sizes = [bytes_text(int(size)) for size in sorted(key[1] for _, key, *_ in alike) if size >= 0]
        [(key_a, key_b, *_)] = alike[:1]
        what = f"{kind} of {listed(sizes)}" if sizes else kind
        scenario = f"{what} as fast as in {'A' if in_b else 'B'}"
        scenarios = [as_long_as(scenario, of_collectives=_factors(one, alike, in_b=in_b)) for one in sides[in_b]]
        instead = "" if key_a == key_b or len(alike) > 1 else f" instead of {bytes_text(int(key_a[1]))}"
        yield _candidate(scenario, *_on_one(sides, scenarios, in_b=in_b), f"{what}{instead}, transfer", Sort.what)


_Transfers = tuple[tuple[str, int], tuple[str, int], float, float]
"""Kind and size in A and in B, and what one takes there, in ns."""


def _factors(one: Analysis, transfers: Sequence[_Transfers], *, in_b: bool) -> dict[int, float]:
    """What to multiply transfers of a run by that take longer there, by collective."""
    return {
        number: min(a_ns, b_ns) / max(a_ns, b_ns, 1.0)
        for key_a, key_b, a_ns, b_ns in transfers
        for number in _numbers(one, key_b if in_b else key_a)
    }


def _transfer_times(one: Analysis) -> pd.DataFrame:
    """Median transfer of the collectives of each kind and size, and the time of all in a typical step."""
    table = _keyed(one)
    steps = max(len(one.part.typical_step.steps), 1)
    times = table.dropna(subset="transfer_ns").astype({"transfer_ns": "float64"})
    grouped = times.groupby(["collective", "size_bytes"])["transfer_ns"]
    return pd.DataFrame({"ns": grouped.median(), "per_step": grouped.sum() / steps})


def _numbers(one: Analysis, key: tuple[str, int]) -> list[int]:
    table = _keyed(one)
    chosen = (table["collective"] == key[0]) & (table["size_bytes"] == key[1])
    return [int(number) for number in table["collective_id"][chosen]]


def _keyed(one: Analysis) -> pd.DataFrame:
    table = one.part.table("collectives")
    return table.assign(
        collective=table["collective"].fillna("a collective"), size_bytes=table["size_bytes"].fillna(-1).astype("int64")
    )
