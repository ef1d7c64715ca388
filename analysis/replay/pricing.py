"""Price each cause of a long step: replay the run without it.

A label says where time shows, not where it comes from: behind a late rank, others' transfers and idle time grow as
well. So a cause is priced by what a step would take without it alone: one number, wherever it is shown. Faults are
found first, by which some ranks or links differ from others that do the same: what the others show can be had.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

import numpy as np

from ..core.arrays import Flags, Floats, Ints
from ..core.student import student_quantile
from ..errors import NotPredictable
from ..metrics.causes.blame import ForWhom
from ..metrics.prices import Excess, LateRanks, Priced, PricedLinks, Prices, Since, UnevenExperts
from .alike import Alike
from .cures import CURES, LEAST, Cure
from .links import Links
from .playing import Playing
from .programs import NONE, RankProgram
from .scenarios import usual
from .scenarios.scenario import Change, Scenario, all_at_once
from .scenarios.transfers import links_as_others
from .slow_links import SlowLinks, slow_groups
from .table import Replay

_LEAST_OF_RANKS = 0.015
"""Of a step: in a few steps, one of several equal ranks may be slower by nearly as much by chance."""
_SURE, _CHANCE, _STEPS, _MOST_SETS = 0.05, 0.01, 3, 10**9
"""Of a step: below this gain, equal ranks may be taken for late in one of a hundred runs. Three steps or more tell how
much ranks differ by chance."""
_STANDS_OUT = 3.0
"""So many times the excess of the others has a rank that is asked about."""
_ALIKE = 0.5
"""Of the largest excess: ranks with as much are late alike, as those of one place in each host."""
_PARTS: tuple[Callable[[Excess], float], ...] = (
    lambda excess: excess.whole_ns,
    lambda excess: excess.compute_ns,
    lambda excess: excess.copies_ns,
    lambda excess: excess.cpu_ns,
)
_MOST_SINGLE, _MOST_LINKS, _MOST_PLACES = 16, 6, 16
_NEARLY_ALL = 0.9
_NIL, _THERE = 0.2, 0.5
"""Of the mean excess from some step on: no step before has as much as the former, each from there on the latter."""
_MOSTLY = 0.5
"""Of the waiting: if it is known for whom less of it is, any rank may be it; and of a gain, to be its cause."""
_MUCH_MORE = 2.0
"""So many times the largest gain waiting is, where nobody can say what holds up those who wait."""
_MOST_THEN = 4
"""So many changes are also played one after the other."""
_MANY = 1_000
"""Degrees of freedom, from which on Student's distribution is the normal one."""
_MOST_UNLAUNCHED = 0.5
"""Of the activities that can have one: where more have no launch, they begin when they did, whatever the CPU does."""


def prices_of(
    replay: Replay,
    *,
    blamed: Collection[int],
    unshown: Collection[int],
    hosts: Mapping[int, str | None],
    asked: Collection[Cure],
    links: Links | None,
    experts: Callable[[], tuple[Scenario, UnevenExperts] | None],
    for_whom: ForWhom,
    waiting_ns: float,
) -> tuple[Prices, list[Scenario]]:
    """What a step that counts would gain from each change by itself, and how each is played, in the same order.

    `blamed` are ranks that others wait for, `unshown` those whose traces lack work, so that they only seem late;
    `asked` are the changes in common that are worth a try; no `links` are known without collectives; `for_whom` says
    for whom ranks wait in such a step, of which a device may wait for `waiting_ns`. `experts` gives how a run with
    balanced experts is played, and how uneven they are; None without any. Raises NotPredictable, NothingMeasured.
    """
    replay.check()
    members = [member for cycle in replay.measured for member in cycle]
    if np.mean(np.concatenate([_is_unlaunched(member.program) for member in members])) > _MOST_UNLAUNCHED:
        raise NotPredictable("most launches are not in the trace, so it does not show what the CPUs delay")
    # Where ranks do not communicate, each ends by itself: none is late for another one.
    several = len(_Pricing(replay).ranks) > 1 and any(member.program.is_comm.any() for member in members)
    blamed = set(blamed) - set(unshown)
    balanced, uneven = experts() or (None, None)
    if balanced is not None and replay.gain(balanced).ns < _LEAST_OF_RANKS * replay.step_ns:
        balanced = uneven = None
    # Ranks whose experts have more to do are not late: others would have that to do.
    without_uneven = replay if balanced is None else replay.after(balanced.changes[0])
    pricing = _Pricing(without_uneven)
    if balanced is not None:
        blamed = {rank for rank in blamed if _is_late_besides(rank, replay, without_uneven)}
    ask_all = for_whom.known_ns < _MOSTLY * waiting_ns
    found = pricing.late_ranks(blamed, unshown, hosts, ask_all=ask_all) if several else None
    late, without_late = found or (None, None)
    if without_late is None and blamed and several:
        without_late = pricing.without_blamed(blamed, for_whom.others_ns(blamed))
    who = (blamed, None) if late is None else (late.ranks, late.host)
    slow, as_others = (_Pricing(replay).slow_links(slow_groups(links)) if links is not None else None) or (None, None)
    scenarios = [
        *([(CURES["no_straggler"].of(*who), without_late)] if without_late is not None else []),
        *([(CURES["slow_links"].of(slow.ranks), as_others)] if slow is not None and as_others is not None else []),
        *([(CURES["balanced_experts"], balanced)] if balanced is not None else []),
        *((each, each.make(links)) for each in asked if each.make is not None and (several or not each.of_ranks)),
    ]
    priced = [(_priced(remedy, scenario, replay), scenario) for remedy, scenario in scenarios]
    most_ns = max((change.gain.ns for change, _ in priced if change.remedy != "no_pauses"), default=0.0)
    waited_ns = for_whom.others_ns(blamed if late is None else late.ranks)
    unexplained_ns = waited_ns if waited_ns > max(_MUCH_MORE * most_ns, LEAST * replay.step_ns) else None
    if unexplained_ns is not None:  # what holds up the CPUs of those who wait looks like pauses of theirs
        priced = [(change, scenario) for change, scenario in priced if change.remedy != "no_pauses"]
    ordered = _in_order(priced)
    changes = [change for change, _ in ordered]
    if unexplained_ns is not None:
        changes = [_widened(each, waited_ns) if CURES[each.remedy].of_ranks else each for each in changes]
    named = Prices(replay.step_ns, tuple(changes), late, slow, unexplained_ns, uneven)
    return named, [scenario for _, scenario in ordered]


def _is_late_besides(rank: int, replay: Replay, without_uneven: Replay) -> bool:
    """Whether a step gains most of what it gains without this rank's lateness if experts are balanced, too."""
    scenario = usual.without_stragglers([rank])
    return without_uneven.gain(scenario).ns >= _MOSTLY * replay.gain(scenario).ns


def _priced(remedy: Cure, scenario: Scenario, replay: Replay) -> Priced:
    return Priced(
        remedy=remedy.name,
        what=scenario.name,
        how=remedy.how,
        verdict=remedy.verdict,
        costs=remedy.costs,
        option=remedy.option,
        gain=replay.gain(scenario),
        is_bound=remedy.gives_way_from is not None,
    )


def _widened(change: Priced, waited_ns: float) -> Priced:
    """The change with a gain that may be as much as others wait for these ranks.

    If waiting is much more than anything gains, something holds the others up as well that no trace shows, such as the
    CPUs of a host: that goes with what makes these ranks late, or stays.
    """
    return change._replace(gain=change.gain._replace(high_ns=max(change.gain.high_ns, waited_ns)))


def _in_order(found: Sequence[tuple[Priced, Scenario]]) -> list[tuple[Priced, Scenario]]:
    """The changes, the largest gain first; but before a bound what can be done, if it gains enough beside it.

    Ranks and links that differ from others come before what gains hardly more: that is what they do, as a late loader.
    So does what a CPU does instead of launching, before what only makes up for that, as waiting for devices less.
    """

    def leads(change: Priced, first: Priced) -> bool:
        bound = CURES[first.remedy].gives_way_from
        if bound is not None and not change.is_bound:
            return change.gain.ns > bound * first.gain.ns
        cure, is_of_fault = CURES[change.remedy], CURES[first.remedy].make is None
        is_cause = cure.make is None or (cure.is_named and not is_of_fault)
        return is_cause and change.gain.ns > _NEARLY_ALL * first.gain.ns

    ordered = sorted(found, key=lambda each: -each[0].gain.ns)
    first = 0
    for place in range(1, len(ordered)):
        if leads(ordered[place][0], ordered[first][0]):
            first = place
    return [*ordered[first : first + 1], *ordered[:first], *ordered[first + 1 :]]


def one_after_the_other(replay: Replay, changes: Sequence[Priced], scenarios: Sequence[Scenario]) -> list[float]:
    """What a step gains from each of the first changes once those before it are made, in ns.

    `scenarios` are how all are played, in the same order. Changes that gain little, and those behind them, have none.
    """
    gained, then = 0.0, list[float]()
    for number, change in enumerate(changes[:_MOST_THEN]):
        if change.gain.ns < LEAST * replay.step_ns:
            break
        made = all_at_once("", [scenario.likely for scenario in scenarios[: number + 1]])
        most = replay.gain_as_played(made, as_transfers=False).ns if number else change.gain.ns
        then.append(max(most - gained, 0.0))
        gained = max(most, gained)
    return then


class _Place(NamedTuple):
    """Ranks of a host, by its name, or of stages of a pipeline, and what a step gains without their excess."""

    name: str | None
    ranks: list[int]
    gain_ns: float


@dataclass(frozen=True)
class _Pricing:
    """Finds what differs from others in a run, for the mean of the steps that count, or of all if there are none."""

    replay: Replay

    @property
    def ranks(self) -> set[int]:
        """The ranks that are played."""
        return {member.program.rank for members in self.replay.measured for member in members}

    def late_ranks(
        self, blamed: Collection[int], unshown: Collection[int], hosts: Mapping[int, str | None], *, ask_all: bool
    ) -> tuple[LateRanks, Scenario] | None:
        """The fewest ranks whose excess explains most of the possible gain, and the run without it.

        None if that is too little. `blamed` are worth a try besides those whose excess stands out, unless that is
        `unshown`; if it is not known for whom others wait, `ask_all`. Without steps, nothing tells a rank that is
        always late from one that was late once: then no other ranks are asked about.
        """
        (to_median,) = usual.without_stragglers().changes
        excess = excesses(self.replay, to_median)
        whole = {rank: each.whole_ns for rank, each in excess.items()}
        least = LEAST * self.replay.step_ns
        candidates = [
            rank
            for rank in sorted(whole, key=lambda rank: -whole[rank])
            if rank in blamed or (self.replay.counted and rank not in unshown and _stands_out(excess, rank, least))
        ]
        if ask_all and self.replay.counted:
            candidates += self._dear([rank for rank in whole if rank not in candidates and rank not in unshown], whole)
        if self.replay.counted and 0 < len(candidates) < len(whole) // 2:
            candidates += self._late_beside(candidates, unshown, least)
        chosen = self._beyond_chance(self._fewest(candidates, excess)) if candidates else []
        places = self._places(hosts)
        name = next((name for name, ranks in places if len(ranks) > 1 and ranks == set(chosen)), None)
        slow = self._slow_place(places, least, self.replay.gain(usual.without_stragglers(chosen)).ns if chosen else 0.0)
        if slow is not None:
            name, chosen = slow.name, slow.ranks
        if not chosen:
            return None
        scenario = usual.without_stragglers(chosen, name)
        if 2 * len(chosen) > len(whole):  # then they are no exception
            return None
        gain = self.replay.gain(scenario, as_transfers=True)
        if (
            gain.ns < _LEAST_OF_RANKS * self.replay.step_ns
            or all(each.low_ns <= 0 for each in self.replay.gains(scenario, as_transfers=True))
            or (not self.replay.counted and set(chosen) != set(blamed))
        ):
            return None
        # What the priced change takes from them: beside all ranks, the median of a pair is one of the two itself.
        excess = excesses(self.replay, scenario.changes[0])
        if sum(excess[rank].whole_ns for rank in chosen) < least:  # what goes is no more than others have
            return None
        of_chosen = {rank: excess[rank] for rank in chosen}
        if gain.ns < _SURE * self.replay.step_ns and self._may_be_chance(of_chosen, gain.ns):
            return None
        order = sorted(chosen, key=lambda rank: -excess[rank].whole_ns)
        of_late = {rank: excess[rank] for rank in order}
        in_all = self._in_all(of_late)
        return LateRanks(tuple(order), name, in_all, self._on_cpu(of_late, in_all, gain.ns)), scenario

    def _beyond_chance(self, chosen: list[int]) -> list[int]:
        """Those of several ranks that take longer than the others by more than chance; all if none does by itself.

        Without one that is late, the last of the others is the next, who takes longer by chance.
        """
        if len(chosen) < 2 or len(chosen) == len(self.ranks):
            return chosen
        means, variance, freedom = self._by_activity(chosen)
        others = [mean for rank, mean in means.items() if rank not in chosen]
        most = student_quantile(freedom, _CHANCE / len(means)) * np.sqrt(variance * (1 + 1 / len(others)))
        sure = [rank for rank in chosen if (means[rank] - np.mean(others, axis=0) > most).any()]
        return sure or chosen

    def _in_all(self, late: Mapping[int, Excess]) -> dict[int, Excess]:
        """The excess of each device, no larger than what it takes longer in all: by chance it is also faster."""
        means, _, _ = self._by_activity(late)
        usually = np.median([mean[0] for rank, mean in means.items() if rank not in late])
        result = {}
        for rank, of in late.items():
            part = min(max(means[rank][0] - usually, 0.0) / of.on_device_ns, 1.0) if of.on_device_ns else 1.0
            result[rank] = of._replace(compute_ns=part * of.compute_ns, copies_ns=part * of.copies_ns)
        return result

    def without_blamed(self, blamed: Collection[int], waited_ns: float) -> Scenario | None:
        """The run without ranks that others wait for, but that differ too little to be named.

        None if that may be chance, and the waiting as well: some rank is always the last.
        """
        scenario = usual.without_stragglers(blamed)
        gain = self.replay.gain(scenario, as_transfers=True)
        if max(gain.ns, waited_ns) >= _SURE * self.replay.step_ns:
            return scenario
        excess = excesses(self.replay, scenario.changes[0])
        of_blamed = {rank: excess[rank] for rank in blamed if rank in excess}
        return None if self._may_be_chance(of_blamed, gain.ns) else scenario

    def _may_be_chance(self, late: Mapping[int, Excess], gain_ns: float) -> bool:
        """Whether some of equal ranks may take longer by most of this in as many steps.

        What is late from some step on is tested from there on. Source: Student's test with the variance over steps
        pooled over ranks (analysis of variance with contrasts); all sets of as many ranks, with their devices and CPUs,
        share its level (Bonferroni). Fewer than three steps tell too little of that variance: then it is the sum of
        those of all activities, as if each took longer or shorter by chance of its own.
        """
        since = max(
            (since.step for of in late.values() for since in (of.since, of.cpu_since) if since is not None), default=0
        )
        steps = sorted(step for step in self.replay.counted if step >= since)
        if len(steps) < _STEPS:  # those that do not count tell of chance as well
            of_ranks = [np.unique(member.program.step) for members in self.replay.measured for member in members]
            steps = [step for step in np.unique(np.concatenate(of_ranks)).tolist() if step >= 0]
        if len(steps) < _STEPS:
            means, variance, freedom = self._by_activity(late)
        else:
            more = self._more_than_others(late, steps)
            means = {rank: of.mean(axis=1) for rank, of in more.items()}
            variance = np.mean([of.var(axis=1, ddof=1) for of in more.values()], axis=0) / len(steps)
            freedom = len(more) * (len(steps) - 1)
        ranks, count = len(means), len(late)
        of_others = np.mean([mean for rank, mean in means.items() if rank not in late], axis=0)
        contrast = sum(means[rank] for rank in late) - count * of_others
        error = np.sqrt(variance * (count + count**2 / (ranks - count)))
        sets = min(math.comb(ranks, count), _MOST_SETS)
        # Of Student's two sides one counts, and there are two parts.
        most = student_quantile(freedom, _CHANCE / sets)
        return not bool((contrast > np.maximum(most * error, _MOSTLY * gain_ns)).any())

    def _on_cpu(self, excess: Mapping[int, Excess], in_all: Mapping[int, Excess], gain_ns: float) -> frozenset[int]:
        """Those whose CPU is to blame rather than their device, by what the device takes longer `in_all`.

        A CPU that waits for its device works longer as well. Of one rank, what its device does alone is priced: as far
        as it takes longer in all, since the change also takes away what it does longer by chance.
        """
        on_cpu = frozenset(rank for rank, of in in_all.items() if of.cpu_ns > max(of.compute_ns, of.copies_ns))
        if len(excess) > 1 or not on_cpu:
            return on_cpu
        [rank] = on_cpu
        of_device_ns = self.replay.gain(usual.without_stragglers([rank], of_devices=True), as_transfers=True).ns
        part = in_all[rank].on_device_ns / excess[rank].on_device_ns if excess[rank].on_device_ns else 1.0
        return on_cpu if part * of_device_ns < _MOSTLY * gain_ns else frozenset()

    def slow_links(self, groups: Sequence[SlowLinks]) -> tuple[PricedLinks, Scenario] | None:
        """The links that cost most by being slower than similar ones, and the change; None if too little."""
        most_ns = LEAST * self.replay.step_ns
        best: tuple[PricedLinks, Scenario] | None = None
        for each in groups[:_MOST_LINKS]:
            scenario = links_as_others(each)
            gain = self.replay.gain(scenario, as_transfers=True)
            if gain.low_ns > 0 and (gain.ns > most_ns if best else gain.ns >= most_ns):
                most_ns, best = gain.ns, (PricedLinks(each.label, each.ranks, each.slower_frac), scenario)
        return best

    def _places(self, hosts: Mapping[int, str | None]) -> list[tuple[str | None, set[int]]]:
        """Ranks of each host, by its name, and of each stage of a pipeline."""
        of_hosts: dict[str | None, set[int]] = defaultdict(set)
        of_stages: dict[tuple[int, int], set[int]] = defaultdict(set)
        for rank, name in hosts.items():
            if name is not None:
                of_hosts[name].add(rank)
        for cycle, members in enumerate(self.replay.measured):
            programs = [member.program for member in members]
            for program, order in zip(programs, Alike.by_place(programs).orders, strict=True):
                of_stages[cycle, order].add(program.rank)
        return [
            *(of_hosts.items() if len(of_hosts) <= _MOST_PLACES else ()),
            *((None, ranks) for ranks in of_stages.values() if len(of_stages) <= _MOST_PLACES),
        ]

    def _slow_place(
        self, places: Sequence[tuple[str | None, set[int]]], least: float, known_ns: float
    ) -> _Place | None:
        """The place whose ranks all take longer than others', none much more; all such places if that gains more.

        None if a step does not gain more without it than is known to be gained without some ranks.
        """
        slow = [place for name, ranks in places if (place := self._if_slow(name, ranks, least)) is not None]
        dearest = max(slow, key=lambda place: place.gain_ns, default=None)
        if dearest is None:
            return None
        if len(slow) > 1:
            together = self._if_slow(None, {rank for place in slow for rank in place.ranks}, least)
            if together is not None and together.gain_ns * _NEARLY_ALL > dearest.gain_ns:
                dearest = together
        return dearest if dearest.gain_ns * _NEARLY_ALL > known_ns else None

    def _if_slow(self, name: str | None, ranks: Collection[int], least: float) -> _Place | None:
        if not 1 < len(ranks) <= len(self.ranks) / 2:
            return None
        scenario = usual.without_stragglers(sorted(ranks), name)
        excess = excesses(self.replay, scenario.changes[0])
        excesses_ns = [excess[rank].whole_ns for rank in ranks if rank in excess]
        if not excesses_ns or min(excesses_ns) < max(least, max(excesses_ns) / _STANDS_OUT):
            return None
        return _Place(name, sorted(ranks), self.replay.gain(scenario, as_transfers=True).ns)

    def _more_than_others(self, late: Collection[int], steps: Sequence[int]) -> dict[int, Floats]:
        """By how much each rank's device and CPU take longer than those that are not late; in ns, shape (2, steps)."""
        more: dict[int, Floats] = defaultdict(lambda: np.zeros((2, len(steps))))
        for members in self.replay.measured:
            for member, both in zip(members, usual.more_than_others(members, late), strict=True):
                in_steps = [[ns[member.program.step == step].sum() for step in steps] for ns in both]
                more[member.program.rank] += np.array(in_steps)
        return more

    def _by_activity(self, late: Collection[int]) -> tuple[dict[int, Floats], Floats, int]:
        """By how much the device and CPU of each rank take longer in a step, in ns, shape (2,), and how sure that is.

        That is the variance of such a sum, from the activities of ranks that are not late, and how many there are.
        """
        sums: dict[int, Floats] = defaultdict(lambda: np.zeros(2))
        squares: dict[int, Floats] = defaultdict(lambda: np.zeros(2))
        count, counted = 0, list(self.replay.counted)
        for members in self.replay.measured:
            for member, both in zip(members, usual.more_than_others(members, late), strict=True):
                kept = np.isin(member.program.step, counted) if counted else np.ones(len(member.program), dtype=bool)
                of_rank = np.array([ns[kept] for ns in both], dtype=np.float64)
                sums[member.program.rank] += of_rank.sum(axis=1)
                if member.program.rank not in late:
                    squares[member.program.rank] += (of_rank**2).sum(axis=1)
                    count += int(kept.sum())
        steps = max(len(counted), 1)
        variance = np.mean(list(squares.values()), axis=0) / steps**2
        return {rank: of / steps for rank, of in sums.items()}, variance, min(max(count, 1), _MANY)

    def _late_beside(self, ranks: Sequence[int], unshown: Collection[int], least: float) -> list[int]:
        """Ranks that stand out once these are not among those with whom they are compared.

        Where two of four are late, the median of all is near the one that is less late, which seems to be like others.
        """
        of_steps = self._more_than_others(ranks, sorted(self.replay.counted))
        more = {rank: of.mean(axis=1) for rank, of in of_steps.items()}
        usually = np.median([of for rank, of in more.items() if rank not in ranks], axis=0)
        found = {
            rank: float(of.max())
            for rank, of in more.items()
            if rank not in {*ranks, *unshown} and (of >= np.maximum(least, _STANDS_OUT * usually)).any()
        }
        return sorted(found, key=lambda rank: -found[rank])

    def _dear(self, ranks: Sequence[int], whole: Mapping[int, float]) -> list[int]:
        """Of these, as many as can be asked, those without whom a step gains far more than without the others.

        What they have more than others need not stand out, as where all wait for their devices, and seem to work.
        """
        asked = sorted(ranks, key=lambda rank: -whole[rank])[:_MOST_SINGLE]
        prices = {rank: self.replay.gain(usual.without_stragglers([rank])).ns for rank in asked}
        least = _LEAST_OF_RANKS * self.replay.step_ns
        usually = {rank: median_low([0.0, *(prices[each] for each in asked if each != rank)]) for rank in asked}
        return [rank for rank in asked if prices[rank] >= max(least, _STANDS_OUT * usually[rank])]

    def _fewest(self, candidates: Sequence[int], excess: Mapping[int, Excess]) -> list[int]:
        """The fewest candidates, those that have most more than others first, that gain nearly as much as any others.

        Each by itself, and, since two that delay the run in turns gain nothing alone, several: all candidates, and
        those that are late alike, in total or in something; but never more than half of the ranks, who are what others
        are compared with.
        """

        def price(ranks: Collection[int]) -> float:
            return self.replay.gain(usual.without_stragglers(ranks)).ns

        half = len(excess) // 2
        alike = [_late_alike({rank: of(excess[rank]) for rank in candidates}) for of in _PARTS]
        several = [ranks for ranks in ([*candidates[:half]], *alike) if 1 < len(ranks) <= half]
        kept = max([*several, *([rank] for rank in candidates[:_MOST_SINGLE])], key=price)
        most = price(kept)
        for rank in reversed(kept if len(kept) <= _MOST_SINGLE else []):  # the least first
            rest = [other for other in kept if other != rank]
            least = min(_NEARLY_ALL * most, most - _LEAST_OF_RANKS * self.replay.step_ns)
            if rest and price(rest) >= max(least, _LEAST_OF_RANKS * self.replay.step_ns):
                kept = rest
        return kept


def excesses(replay: Replay, change: Change) -> dict[int, Excess]:
    """What each rank has more than others, as the change removes it."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    by_kernel: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    by_step: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    cpu_by_step: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    own_steps: dict[int, set[int]] = defaultdict(set)
    steps = max(len(replay.counted), 1)
    for members in replay.measured:
        for before, after in zip(members, change(members), strict=True):
            rank, program = before.program.rank, before.program
            counted = np.ones(len(program), dtype=bool)
            if replay.counted:
                counted = np.isin(program.step, list(replay.counted))
            own_steps[rank] |= set(np.unique(program.step[counted]).tolist())
            less = np.where(counted & ~program.is_comm, before.duration - after.duration, 0)
            is_copy = _is_copy(program)
            saved = _saved_ns(program, after.saved - before.saved, counted)
            waited = _saved_ns(program, np.cumsum(_no_longer_waited_ns(before, after)), counted)
            saved -= np.clip(saved, 0, waited)  # that is time of its device
            # With a GPU, a delay goes with what came before the steps, which is nothing that its CPU does in them.
            saved += np.where(counted & program.paced, before.delay - after.delay, 0)
            for part, ns in enumerate((less[~is_copy].sum(), less[is_copy].sum(), saved.sum())):
                sums[rank][part] += float(ns) / steps
            for at, ns in _sums(program.name, np.where(is_copy, 0, less)):
                by_kernel[rank][_name(program, at)] += ns / steps
            for known, values in ((by_step, less), (cpu_by_step, saved)):
                for at, ns in _sums(program.step, values):
                    known[rank][int(program.step[at])] += ns
    return {
        rank: Excess(
            compute,
            copies,
            cpu,
            _most_of(by_kernel[rank], compute),
            _only(by_step[rank], steps),
            _since(by_step[rank], replay.counted),
            _since(cpu_by_step[rank], replay.counted),
            len(own_steps[rank]),
        )
        for rank, (compute, copies, cpu) in sums.items()
    }


def _late_alike(excess_ns: Mapping[int, float]) -> list[int]:
    """Those with a like excess as the one with most of it."""
    most_ns = max(excess_ns.values())
    return [rank for rank, ns in excess_ns.items() if ns >= _ALIKE * most_ns]


def _stands_out(excess: Mapping[int, Excess], rank: int, least: float) -> bool:
    """Whether a rank exceeds the lower median of all others by `least`, in something or in total.

    By itself, since what all ranks do later in turn would hide what one always computes longer.
    """
    others = [each for other, each in excess.items() if other != rank]
    return any(of(excess[rank]) >= max(least, _STANDS_OUT * median_low([of(each) for each in others])) for of in _PARTS)


def _most_of(by_kernel: Mapping[str, float], whole: float) -> str | None:
    """The kernel behind at least half of the excess; None if there is none."""
    kernel = max(by_kernel, key=lambda name: by_kernel[name], default=None)
    return kernel if kernel is not None and by_kernel[kernel] >= whole / 2 > 0 else None


def _only(by_step: Mapping[int, float], steps: int) -> int | None:
    """The step behind nearly all of it, if several steps count; else None."""
    step = max(by_step, key=lambda step: by_step[step], default=None)
    is_alone = steps > 1 and step is not None and by_step[step] >= _NEARLY_ALL * sum(by_step.values())
    return step if is_alone else None


def _since(by_step: Mapping[int, float], counted: Collection[int]) -> Since | None:
    """The step from which on, in two steps at least, each has its share, and none before has any; else None."""
    steps = sorted(counted)
    excess = np.array([by_step.get(step, 0.0) for step in steps])
    for first in range(1, len(steps) - 1):
        usual = excess[first:].mean()
        if usual > 0 and excess[:first].max() <= _NIL * usual and excess[first:].min() >= _THERE * usual:
            return Since(steps[first], len(steps) - first)
    return None


def _is_unlaunched(program: RankProgram) -> Flags:
    """Whether each activity has no known launch; without a GPU nothing is launched.

    What begins before the first one that has was launched before the trace: a CPU may be more than a step ahead.
    """
    unlaunched: Flags = program.launch == NONE
    if program.issued_by is not None or unlaunched.all():
        return unlaunched & (program.issued_by is None)
    return np.asarray(unlaunched[program.start >= program.start[~unlaunched].min()], dtype=bool)


def _is_copy(program: RankProgram) -> Flags:
    """Whether each activity is a copy or fill."""
    return np.zeros(len(program), dtype=bool) if program.host is None else program.host.is_copy[program.row]


def _name(program: RankProgram, at: int) -> str:
    return "" if program.host is None else str(program.host.names.iloc[program.row[at]])


def _sums(keys: Ints, values: Ints) -> list[tuple[int, float]]:
    """Sums of the positive values by key, each with the place of one that has this key."""
    positive = np.flatnonzero(values > 0)
    _, first, key = np.unique(keys[positive], return_index=True, return_inverse=True)
    return list(zip(positive[first].tolist(), np.bincount(key, values[positive]).tolist(), strict=True))


def _no_longer_waited_ns(before: Playing, after: Playing) -> Ints:
    """How long each call waited for its device that a change takes away, in ns."""
    program, waited = before.program, np.zeros(len(before.program.call_start), dtype=np.int64)
    for call in before.edges.blocks.keys() - after.edges.blocks.keys():
        until = min(program.call_end[call], max(program.end[source] for source in before.edges.blocks[call]))
        waited[call] = max(until - program.call_start[call], 0)
    return waited


def _saved_ns(program: RankProgram, saved: Ints, counted: Flags) -> Ints:
    """CPU time saved for the calls of each counted activity, in ns.

    `saved` is how much earlier it makes each call. A call counts for what is launched next.
    """
    launches = np.full(len(saved), NONE)
    known = program.launch != NONE
    launches[program.launch[known]] = np.flatnonzero(known)
    positions = np.flatnonzero(launches != NONE)
    result = np.zeros(len(program), dtype=np.int64)
    if len(positions):
        following = np.minimum(np.searchsorted(positions, np.arange(len(saved))), len(positions) - 1)
        np.add.at(result, launches[positions][following], np.diff(saved, prepend=0))
    return np.where(counted, result, 0)
