"""Candidates for a change: what each costs a step of A and of B, each run played again, and by how much that differs.

What a late rank, slow links or waiting for batches cost is the row of `remedies`; where a run has none, it is played
for this. Work that both sides do costs what a step would gain if it took no longer than on the other side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from math import hypot
from statistics import fmean, median_low
from typing import NamedTuple

import pandas as pd

from ...common.wording import listed
from ..core.escaping import printable
from ..core.schema import Row
from ..metrics.prices import Excess, Gain, LateRanks, Priced
from ..metrics.verdicts.culprits import late_reason
from ..metrics.verdicts.words import late_in_words, length
from ..render.units import bytes_text
from ..replay.cures import CURES
from ..replay.pricing import excesses
from ..replay.scenarios.other_run import as_long_as
from ..replay.scenarios.scenario import Scenario
from ..replay.scenarios.transfers import links_as_others
from ..replay.scenarios.usual import named_ranks, without_stragglers
from ..replay.slow_links import against_others
from ..results.analysis import Analysis
from ..tables.remedies import known_gains
from ..tables.replay import replayed
from ..tables.verdicts import typical_culprits
from .work import CaptureWork, SameWork

_Sides = tuple[Sequence[Analysis], Sequence[Analysis]]

_LEAST = 0.005
"""Of a step: a candidate whose prices differ by less is none."""
_LEAST_OF_CHANGE, _LEAST_AT_ALL = 0.2, 0.001
"""Likewise, of a change that is beyond what steps differ by, but at least that much of a step."""
_MOST_WORK, _MOST_TRANSFERS, _MOST_RANKS = 6, 4, 4
_ALIKE = 0.5
"""Of the largest change of a rank's work: ranks with as much changed alike."""
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

    `words` say it in a sentence on the change.
    """

    what: str
    a: Gain
    b: Gain
    words: str
    sort: Sort

    @property
    def ns(self) -> float:
        """How much more it costs a step of B, in ns."""
        return self.b.ns - self.a.ns

    @property
    def bounds_ns(self) -> tuple[float, float]:
        """The interval of that: errors of both prices are independent."""
        low = hypot(self.b.ns - self.b.low_ns, self.a.high_ns - self.a.ns)
        high = hypot(self.b.high_ns - self.b.ns, self.a.ns - self.a.low_ns)
        return self.ns - low, self.ns + high

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
    found = [*_late_ranks(sides, same), *_slow_links(sides), *_cures(sides), *work, *_transfers(sides)]
    return sorted((each for each in found if abs(each.ns) >= least), key=lambda each: -abs(each.ns))


def _least_ns(sides: _Sides, *, is_proven: bool) -> float:
    """By how much prices have to differ, in ns."""
    before, after = (fmean(one.typical_step.parts["window_ns"] for one in side) for side in sides)
    least = _LEAST * before
    of_change = max(_LEAST_OF_CHANGE * abs(after - before), _LEAST_AT_ALL * before)
    return min(least, of_change) if is_proven else least


def _price(side: Sequence[Analysis], scenario: Scenario) -> Gain:
    """What a step of this side gains: that of `remedies` where it has this change."""
    return _mean([one.of(known_gains).get(scenario.name) or one.of(replayed).gain(scenario) for one in side])


def _mean(gains: Sequence[Gain]) -> Gain:
    return Gain(*(fmean(each) for each in zip(*gains, strict=True)))


def _late_ranks(sides: _Sides, same: SameWork) -> Iterator[Candidate]:
    """Yield ranks that either side has later than others, and those whose work has grown beyond that of others."""
    named = [_named_ranks(side) for side in sides]
    ranks: dict[frozenset[int], str | None] = {**named[0], **named[1]}
    for of_a in named[0]:
        for of_b in named[1]:
            ranks |= {rest: None for rest in (of_b - of_a, of_a - of_b) if rest and rest != of_a | of_b}
    ranks = {**dict.fromkeys(_grown(same)), **ranks}
    present = set.intersection(*({*one.run.ranks} for side in sides for one in side))
    for of, host in list(ranks.items())[-_MOST_RANKS:]:
        if of <= present and len(of) < len(present):
            scenario = without_stragglers(of, host)
            in_a, in_b = (_price(side, scenario) for side in sides)
            words = _late_words(sorted(of), host, scenario, sides, in_a, in_b, same.sides.a)
            yield Candidate(scenario.name, in_a, in_b, words, Sort.who)


def _named_ranks(side: Sequence[Analysis]) -> dict[frozenset[int], str | None]:
    """The late ranks of each capture, and their host if they are all of it."""
    late: list[LateRanks] = [one.prices.late for one in side if one.prices is not None and one.prices.late is not None]
    return {frozenset(each.ranks): each.host for each in late}


def _grown(same: SameWork) -> list[frozenset[int]]:
    """The rank whose work has changed most beyond that of others from A to B, and those that did so alike."""
    times = [_by_rank(works) for works in (same.a, same.b)]
    ranks = [rank for rank in sorted(times[0]) if times[0][rank] and rank in times[1]]
    if len(ranks) <= 2:
        return []
    change = {rank: times[1][rank] / times[0][rank] - 1 for rank in ranks}
    usual = median_low(change.values())
    apart = {rank: each - usual for rank, each in change.items()}
    most = max(apart.values(), key=abs)
    if abs(most) < _LEAST:
        return []
    alike = frozenset(rank for rank, each in apart.items() if each * most >= _ALIKE * most**2)
    first = frozenset(rank for rank in alike if apart[rank] == most)
    return [first, *([alike] if len(first) < len(alike) <= len(ranks) / 2 else [])]


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
        a, b = (_mean([_price_of_links(one, ranks) for one in side]) for side in sides)
        yield Candidate(f"{label} as fast as others like them", a, b, _costs(label, a, b), Sort.who)


def _price_of_links(one: Analysis, ranks: Sequence[int]) -> Gain:
    """What a step gains if links among these ranks are as fast as others; nothing where there are no others."""
    compared = against_others(one.links, ranks)
    return _NOTHING if compared is None else _price([one], links_as_others(compared))


def _cures(sides: _Sides) -> Iterator[Candidate]:
    """Yield what either side found worth a price, by both prices."""
    late = any(one.prices is not None and one.prices.late is not None for side in sides for one in side)
    asked = {change.remedy: change for side in sides for one in side for change in _changes(one)}
    for name, change in asked.items():
        cure = CURES[name]
        if cure.make is None or name in _NOT_ALONE or (cure.of_ranks and late):
            continue
        a, b = (_mean([_price([one], cure.make(one.links)) for one in side]) for side in sides)
        what = change.costs.removesuffix(" costs").removesuffix(" cost")
        words = _costs(f"{what[0].lower()}{what[1:]}", a, b, several=not change.costs.endswith("costs"))
        yield Candidate(change.what, a, b, words, _sort(change))


def _sort(change: Priced) -> Sort:
    """A CPU that waits for its device lets all else cost more: a longer wait for a batch, or a rank that is late."""
    return Sort.bound if change.is_bound else Sort.remedy if change.remedy == "no_syncs" else Sort.what


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
        side, works = (sides[1], same.b) if in_b else (sides[0], same.a)
        factors = group.to_a if in_b else group.to_b
        other = "A" if in_b else "B"
        scenario = f"{group.name} as fast as in {other}" if group.a_ns and group.b_ns else f"without {group.name}"
        gain = _mean([
            one.of(replayed).gain(as_long_as(scenario, of_activities=work.factors(factors)))
            for one, work in zip(side, works, strict=True)
        ])  # fmt: skip
        words = group.words if group.times is None else _all_words(sides, group.times)
        yield Candidate(scenario, *_on(gain, in_b=in_b), words, Sort.what)


def _on(gain: Gain, *, in_b: bool) -> tuple[Gain, Gain]:
    """The prices in A and in B of what costs only one of them."""
    return (_NOTHING, gain) if in_b else (gain, _NOTHING)


def _all_words(sides: _Sides, times: float) -> str:
    """`everything takes 1.31 times as long: another GPU, other clocks or a throttle`."""
    lengths = [fmean(one.typical_step.parts["window_ns"] for one in side) for side in sides]
    what = (
        "everything"
        if abs(lengths[1] / lengths[0] / times - 1) <= abs(times - 1) * _NEXT_TO_NOTHING
        else "every kernel"
    )
    devices = [sorted({str(name) for one in side for name in one.run.device_names.values() if name}) for side in sides]
    if devices[0] and devices[1] and devices[0] != devices[1]:
        why = f"{listed(devices[1])} in place of {listed(devices[0])}"
    else:
        why = "another GPU, other clocks or a throttle"
    return f"{what} takes {times:.2f} times as long: {why}"


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
        gain = _mean([
            one.of(replayed).gain(as_long_as(scenario, of_collectives=_factors(one, alike, in_b=in_b)))
            for one in sides[in_b]
        ])  # fmt: skip
        instead = "" if key_a == key_b or len(alike) > 1 else f" instead of {bytes_text(int(key_a[1]))}"
        yield Candidate(scenario, *_on(gain, in_b=in_b), f"{what}{instead}, transfer", Sort.what)


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
