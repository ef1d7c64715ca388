"""Price each cause of a long step: replay the run without it.

A label says where time shows, not where it comes from: behind a late rank, others' transfers and idle time grow as
well. So a cause is priced by what a step would take without it. First come faults, by which some ranks or links differ
from others that do the same: what the others show can be had. What all ranks have in common, such as exposed
transfers, is priced in the run without these faults, or a fault's delay would be counted as theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from ..errors import NotPredictable
from ..metrics.clocks.frame import Flags, Ints
from ..metrics.prices import Excess, Gain, LateRanks, PricedLinks, Prices
from .engine import Playing
from .lengths import Lengths, measured_lengths
from .links import Links
from .programs import NONE, RankProgram
from .scenarios import host, usual
from .scenarios.scenario import Change, Scenario, all_at_once
from .scenarios.transfers import links_as_others
from .slow_links import SlowLinks, slow_groups
from .table import Outcome, Replay, standard_error, with_change

_LEAST = 0.01
"""Of a step: a cause that costs less is none."""
_UNSURE = 0.08
"""Of a gain: how fast ranks that become like others are, and what goes with a call, is not measured so exactly."""
_LEAST_OF_RANKS = 0.015
"""Of a step: in a few steps, one of several equal ranks may be slower by nearly as much by chance."""
_STANDS_OUT = 3.0
"""So many times the excess of the others has a rank that is asked about."""
_PARTS: tuple[Callable[[Excess], float], ...] = (
    lambda excess: excess.whole_ns,
    lambda excess: excess.compute_ns,
    lambda excess: excess.copies_ns,
    lambda excess: excess.cpu_ns,
)
_MOST_ASKED, _MOST_HOSTS = 6, 16
_NEARLY_ALL = 0.9
_MOST_UNLAUNCHED = 0.5
"""Of the activities: where more have no launch, all of them begin when they did, whatever the CPU does."""

_SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "no_jitter": usual.no_jitter,
    "overlap": usual.perfect_overlap,
    "no_copies": host.no_copies,
    "no_syncs": host.no_blocking,
    "no_allocations": host.no_allocation,
    "no_data_wait": host.no_data_wait,
    "no_gc": host.no_gc,
    "no_long_calls": host.no_long_calls,
    "no_compilation": host.no_compilation,
    "launch_ahead": host.no_launch_overhead,
}
"""What all ranks have in common: the names of remedies, and how it is played without."""


def prices(
    replay: Replay,
    steps: Collection[int],
    *,
    blamed: Collection[int],
    unshown: Collection[int],
    hosts: Mapping[int, str | None],
    asked: Collection[str],
    links: Links | None,
) -> Prices:
    """What the mean of these steps would gain from each change; the mean of all steps for none.

    `blamed` are ranks that others wait for, `unshown` those whose traces lack work, so that they only seem late;
    `asked` the names of remedies that are worth a try; no `links` are known without collectives. Raises NotPredictable,
    NothingMeasured.
    """
    replay.check()
    members = [member for cycle in replay.measured for member in cycle]
    if np.mean(np.concatenate([_is_unlaunched(member.program) for member in members])) > _MOST_UNLAUNCHED:
        raise NotPredictable("most launches are not in the trace, so it does not show what the CPUs delay")
    pricing = _Pricing(replay, tuple(steps))
    blamed = set(blamed) - set(unshown)
    late, without_late = pricing.late_ranks(blamed, unshown, hosts) or (None, None)
    slow, with_links = (pricing.slow_links(slow_groups(links)) if links is not None else None) or (None, None)
    repaired = [scenario for scenario in (without_late, with_links) if scenario is not None]
    after = all_at_once("repaired", repaired) if repaired else None
    several = len(pricing.ranks) > 1
    gains = {
        name: pricing.gain(_scenario(name), after)
        for name in _SCENARIOS
        if name in asked and (several or name != "no_jitter")
    }
    of_blamed = pricing.gain(usual.without_stragglers(sorted(blamed))) if blamed and several and late is None else None
    in_no_time = pricing.gain(_NO_TRANSFERS, after) if "overlap" in gains else None
    if in_no_time is None or gains["overlap"] <= in_no_time:
        return Prices(pricing.step_ns, late, slow, gains, blamed=of_blamed)
    # Hidden behind compute, transfers cost no less than if they took no time; and compute still needs others'.
    gains = gains | {"overlap": in_no_time}
    return Prices(pricing.step_ns, late, slow, gains, in_no_time=True, blamed=of_blamed)


def priced_scenarios(prices: Prices, links: Links) -> dict[str, Scenario]:
    """The replayed changes by name of remedy, if a step gains at least 1 % from them.

    What all ranks have in common was priced in the run without faults; here it is by itself.
    """
    worth = [name for name, gain in prices.gains.items() if gain.ns >= _LEAST * prices.step_ns]
    scenarios = {name: _scenario(name) for name in worth}
    if "overlap" in scenarios and prices.in_no_time:
        scenarios["overlap"] = _NO_TRANSFERS
    if prices.late is not None:
        scenarios["no_straggler"] = usual.without_stragglers(prices.late.ranks, prices.late.host)
    if prices.slow is not None:
        label = prices.slow.label
        [scenarios["slow_links"]] = [links_as_others(each) for each in slow_groups(links) if each.label == label]
    return scenarios


@cache
def _scenario(name: str) -> Scenario:
    return _SCENARIOS[name]()


def _without_transfers(members: Sequence[Playing]) -> list[Playing]:
    return [replace(member, transfer=np.zeros_like(member.transfer)) for member in members]


_NO_TRANSFERS = Scenario(
    "transfers in no time", "collectives end when their last member arrives", (_without_transfers,)
)


@dataclass(frozen=True)
class _Pricing:
    """Prices changes of a run, for the mean of some `steps`, or of all if there are none."""

    replay: Replay
    steps: tuple[int, ...]
    _bases: dict[Scenario, list[list[Playing]]] = field(default_factory=dict, repr=False)
    _outcomes: dict[tuple[Change | None, Scenario], Outcome] = field(default_factory=dict, repr=False)

    @property
    def ranks(self) -> set[int]:
        """The ranks that are played."""
        return {member.program.rank for members in self.replay.measured for member in members}

    @cached_property
    def step_ns(self) -> float:
        """Measured length of a step, in ns."""
        return float(self._steps_of(measured_lengths(self.replay.measured)).mean())

    def gain(self, scenario: Scenario, after: Scenario | None = None) -> Gain:
        """Gain of a step from a scenario, in a run already changed by `after`; delays are as measured.

        Calls that cannot be split are transfers. If they waited for somebody unseen instead, a step gains less, down to
        the lower bound.
        """
        gain = self._of_transfers(scenario, after)
        if not self.replay.is_unsplit:
            return gain
        before, *lengths = (
            self._steps_of(self._with(change, after).waiting).mean() for change in (None, *scenario.changes)
        )
        least = float(before - max(lengths))
        return gain._replace(low_ns=min(gain.low_ns, least - self._slack_ns))

    def _of_transfers(self, scenario: Scenario, after: Scenario | None = None) -> Gain:
        """The gain if calls that cannot be split are transfers."""
        before, *lengths = (self._steps_of(self._with(change, after).lengths) for change in (None, *scenario.changes))
        by_step = [before - each for each in lengths]
        gains = [float(each.mean()) for each in by_step]
        chance = 0.0 if scenario.limit else max(standard_error(each, before) for each in by_step)
        slack = self._slack_ns + 2 * chance
        low, high = min(gains), max(gains)
        return Gain(scenario.most_likely(gains), low - slack - _UNSURE * abs(low), high + slack + _UNSURE * abs(high))

    @cached_property
    def _slack_ns(self) -> float:
        return self.replay.error_frac * self.step_ns

    def _base(self, after: Scenario) -> Sequence[list[Playing]]:
        """The cycles of the run already changed by `after`."""
        if after not in self._bases:
            self._bases[after] = with_change(self.replay.measured, after.changes[0])
        return self._bases[after]

    def _with(self, change: Change | None, after: Scenario | None) -> Outcome:
        """The steps with this change, if any, in a run already changed by `after`; what is equal is played once."""
        if after is None:
            return self.replay.played(change)
        if (change, after) not in self._outcomes:
            base = self._base(after)
            self._outcomes[change, after] = self.replay.outcome(base if change is None else with_change(base, change))
        return self._outcomes[change, after]

    def _steps_of(self, lengths: Lengths) -> NDArray[np.float64]:
        """Lengths of the counted steps, in order; 0 without steps."""
        counted = [lengths[step] for step in sorted(lengths) if not self.steps or step in self.steps]
        return np.array(counted or [0.0])

    def late_ranks(
        self, blamed: Collection[int], unshown: Collection[int], hosts: Mapping[int, str | None]
    ) -> tuple[LateRanks, Scenario] | None:
        """The fewest ranks whose excess explains most of the possible gain, and the run without it.

        None if that is too little. `blamed` are worth a try besides those whose excess stands out, unless that is
        `unshown`. Without steps, nothing tells a rank that is always late from one that was late once: then no other
        ranks are asked about.
        """
        if len(self.ranks) < 2:
            return None
        (to_median,) = usual.without_stragglers().changes
        excess = self.excesses(to_median)
        whole = {rank: each.whole_ns for rank, each in excess.items()}
        least = _LEAST * self.step_ns
        candidates = [
            rank
            for rank in sorted(whole, key=lambda rank: -whole[rank])
            if rank in blamed or (self.steps and rank not in unshown and _stands_out(excess, rank, least))
        ]
        chosen = self._fewest(candidates[:_MOST_ASKED]) if candidates else []
        name = next((host for host, ranks in _ranks_of(hosts).items() if len(ranks) > 1 and ranks == set(chosen)), None)
        slow_host = self._slow_host(
            hosts, least, self._of_transfers(usual.without_stragglers(chosen)).ns if chosen else 0.0
        )
        if slow_host is not None:
            name, excess = slow_host
            chosen = [rank for rank in excess if hosts.get(rank) == name]
            whole |= {rank: excess[rank].whole_ns for rank in chosen}
        if not chosen:
            return None
        scenario = usual.without_stragglers(chosen, name)
        if 2 * len(chosen) > len(whole):  # then they are no exception
            return None
        gain = self._of_transfers(scenario)
        if (
            gain.ns < _LEAST_OF_RANKS * self.step_ns
            or gain.low_ns <= 0
            or (not self.steps and set(chosen) != set(blamed))
        ):
            return None
        # What the priced change takes from them: beside all ranks, the median of a pair is one of the two itself.
        excess = self.excesses(scenario.changes[0])
        order = sorted(chosen, key=lambda rank: -excess[rank].whole_ns)
        return LateRanks(tuple(order), name, {rank: excess[rank] for rank in order}, self.gain(scenario)), scenario

    def slow_links(self, groups: Sequence[SlowLinks]) -> tuple[PricedLinks, Scenario] | None:
        """The links that cost most by being slower than similar ones, and the change; None if too little."""
        best: tuple[PricedLinks, Scenario] | None = None
        for each in groups[:_MOST_ASKED]:
            scenario = links_as_others(each)
            gain = self._of_transfers(scenario)
            is_worth = gain.ns >= _LEAST * self.step_ns and gain.low_ns > 0
            if is_worth and (best is None or gain.ns > best[0].gain.ns):
                best = PricedLinks(each.label, each.ranks, each.slower_frac, gain), scenario
        return best and (best[0]._replace(gain=self.gain(best[1])), best[1])

    def _slow_host(
        self, hosts: Mapping[int, str | None], least: float, known_ns: float
    ) -> tuple[str, dict[int, Excess]] | None:
        """A host whose ranks all take longer than others', none much more, with the excess of each.

        None if a step does not gain more without it than is known to be gained without some ranks.
        """
        ranks_of = _ranks_of(hosts)
        slow = []
        for name, ranks in ranks_of.items():
            if 1 < len(ranks) <= len(hosts) / 2 and len(ranks_of) <= _MOST_HOSTS:
                scenario = usual.without_stragglers(sorted(ranks), name)
                excess = self.excesses(scenario.changes[0])
                excesses_ns = [excess[rank].whole_ns for rank in ranks if rank in excess]
                if excesses_ns and min(excesses_ns) >= max(least, max(excesses_ns) / _STANDS_OUT):
                    slow.append((self._of_transfers(scenario).ns, name, excess))
        gain_ns, name, excess = max(slow, key=lambda each: each[0], default=(0.0, "", {}))
        return (name, excess) if gain_ns * _NEARLY_ALL > known_ns else None

    def _fewest(self, candidates: Sequence[int]) -> list[int]:
        """The fewest candidates whose excess gains nearly as much as that of all."""

        def price(ranks: Collection[int]) -> float:
            return self._of_transfers(usual.without_stragglers(ranks)).ns

        most = price(candidates)
        # Two that delay the run in turns gain nothing alone: so they are left out one by one, the least first.
        kept = list(candidates)
        for rank in reversed(candidates):
            rest = [other for other in kept if other != rank]
            if rest and price(rest) >= _NEARLY_ALL * most:
                kept = rest
        return kept

    def excesses(self, change: Change) -> dict[int, Excess]:
        """What each rank has more than others, as the change removes it."""
        sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        by_kernel: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        by_step: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        steps = max(len(self.steps), 1)
        for members in self.replay.measured:
            for before, after in zip(members, change(members), strict=True):
                rank, program = before.program.rank, before.program
                counted = np.isin(program.step, self.steps) if self.steps else np.ones(len(program), dtype=bool)
                less = np.where(counted & ~program.is_comm, before.duration - after.duration, 0)
                is_copy = _is_copy(program)
                saved = _saved_ns(program, after.saved - before.saved, counted)
                # With a GPU, a delay goes with what came before the steps, which is nothing that its CPU does in them.
                delayed = float((before.delay - after.delay)[counted & program.paced].sum())
                for part, ns in enumerate((less[~is_copy].sum(), less[is_copy].sum(), saved + delayed)):
                    sums[rank][part] += float(ns) / steps
                for at, ns in _sums(program.name, np.where(is_copy, 0, less)):
                    by_kernel[rank][_name(program, at)] += ns / steps
                for at, ns in _sums(program.step, less):
                    by_step[rank][int(program.step[at])] += ns
        return {
            rank: Excess(compute, copies, cpu, _most_of(by_kernel[rank], compute), _only(by_step[rank], steps))
            for rank, (compute, copies, cpu) in sums.items()
        }


def _stands_out(excess: Mapping[int, Excess], rank: int, least: float) -> bool:
    """Whether a rank exceeds the lower median of all others by `least`, in something or in total.

    By itself, since what all ranks do later in turn would hide what one always computes longer.
    """
    others = [each for other, each in excess.items() if other != rank]
    return any(of(excess[rank]) >= max(least, _STANDS_OUT * median_low([of(each) for each in others])) for of in _PARTS)


def _ranks_of(hosts: Mapping[int, str | None]) -> dict[str, set[int]]:
    """Ranks by host, for hosts with a name."""
    ranks_of: dict[str, set[int]] = defaultdict(set)
    for rank, name in hosts.items():
        if name is not None:
            ranks_of[name].add(rank)
    return ranks_of


def _most_of(by_kernel: Mapping[str, float], whole: float) -> str | None:
    """The kernel behind at least half of the excess; None if there is none."""
    kernel = max(by_kernel, key=lambda name: by_kernel[name], default=None)
    return kernel if kernel is not None and by_kernel[kernel] >= whole / 2 > 0 else None


def _only(by_step: Mapping[int, float], steps: int) -> int | None:
    """The step behind nearly all of it, if several steps count; else None."""
    step = max(by_step, key=lambda step: by_step[step], default=None)
    is_alone = steps > 1 and step is not None and by_step[step] >= _NEARLY_ALL * sum(by_step.values())
    return step if is_alone else None


def _is_unlaunched(program: RankProgram) -> Flags:
    """Whether each activity has no known launch; without a GPU nothing is launched."""
    return np.zeros(len(program), dtype=bool) if program.issued_by is not None else program.launch == NONE


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


def _saved_ns(program: RankProgram, saved: Ints, counted: Flags) -> float:
    """CPU time saved for the calls of the counted activities, in ns.

    `saved` is how much earlier it makes each call. A call counts for what is launched next.
    """
    launches = np.full(len(saved), NONE)
    known = program.launch != NONE
    launches[program.launch[known]] = np.flatnonzero(known)
    positions = np.flatnonzero(launches != NONE)
    if not len(positions):
        return 0.0
    following = np.minimum(np.searchsorted(positions, np.arange(len(saved))), len(positions) - 1)
    return float(np.diff(saved, prepend=0)[counted[launches[positions]][following]].sum())
