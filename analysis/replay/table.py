"""Tables of a replay: replayed beside measured steps, and steps in other scenarios."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.schema import Row
from ..errors import NothingMeasured, NotPredictable
from ..metrics.periods import Period
from ..metrics.prices import Gain
from .attribution import PartNames, RunPart, parts_of
from .cures import LEAST
from .cycles import Played, rank_programs
from .edges import Edges
from .engine import Playing, prepared
from .jitter import Chosen, calm, everything, others
from .lengths import Lengths, lengths_of_all, measured_lengths, played_lengths
from .playing import as_waits
from .programs import steps_of
from .scenarios.scenario import Change, Scenario
from .scenarios.usual import never_waiting

MOST_ERROR_FRAC = 0.10
"""If a replay misses the steps by more, median over steps, nothing is predicted from it."""
UNSURE = 0.08
"""Of a gain: how fast ranks that become like others are, and what goes with a call, is not measured so exactly."""


class Outcome(NamedTuple):
    """The replayed length of each step; and if calls that cannot be split wait for an unseen rank."""

    lengths: Lengths
    waiting: Lengths


class Case(NamedTuple):
    """How a scenario is played: with usual delays, by which way, and with calls that cannot be split as waits."""

    usual: bool = False
    way: int = 0
    waiting: bool = False


@dataclass(frozen=True)
class Replay:
    """A run that can be replayed, cycle by cycle, with delays as measured and as usual.

    `exposed_ns` is its exposed communication by step, mean over devices. Gains are of a mean step of those `counted`,
    of all if there are none. Where steps repeat after a `period`, those that count are whole ones of it.
    """

    name: str
    measured: Sequence[list[Playing]]
    usual: Sequence[list[Playing]]
    exposed_ns: Mapping[int, float]
    counted: frozenset[int] = frozenset()
    period: Period | None = None
    _outcomes: dict[int, tuple[Change | None, Outcome]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(cls, name: str, run: Played, exposed_ns: Mapping[int, float], counted: Collection[int] = ()) -> Replay:
        """Prepare a run for replay."""
        both = [prepared(members) for members in rank_programs(run)]
        measured, usual = ([each[which] for each in both] for which in (0, 1))
        return cls(name, measured, usual, exposed_ns, frozenset(counted), run.period)

    def after(self, change: Change) -> Replay:
        """The run once this change is made: gains are of what else changes."""
        return replace(self, measured=with_change(self.measured, change), usual=with_change(self.usual, change))

    def steps(self) -> Iterator[Row]:
        """Yield a row per step."""
        with_delays = self.played(None).lengths
        blocked = played_lengths(self.usual, of_comm=False)
        free = played_lengths([never_waiting(members) for members in self.usual], of_comm=False)
        ranks = pd.Series([
            step for members in self.measured for m in members for step in np.unique(steps_of(m.program)) if step >= 0
        ], dtype="int64").value_counts()  # fmt: skip
        for step, length in sorted(self._measured.items()):
            yield {
                "step": step,
                "ranks": int(ranks.get(step, 0)),
                "measured_ns": round(length),
                "with_delays_ns": round(with_delays[step]),
                "replayed_ns": round(self._replayed[step]),
                "error_frac": self._replayed[step] / length - 1 if length else None,
                "exposed_comm_ns": round(self.exposed_ns.get(step, 0.0)),
                "blocking_ns": max(round(blocked.get(step, 0.0) - free.get(step, 0.0)), 0),
            }

    @cached_property
    def _measured(self) -> Lengths:
        return measured_lengths(self.measured)

    @cached_property
    def _replayed(self) -> Lengths:
        return played_lengths(self.usual)

    @cached_property
    def error_frac(self) -> float:
        """Error of the replay: median over steps of the relative difference; infinite without steps."""
        errors = [abs(self._replayed[step] / length - 1) for step, length in self._measured.items() if length]
        return float(np.median(errors)) if errors else float("inf")

    def predictions(self, scenarios: Sequence[Scenario], known: Mapping[str, Gain]) -> list[Row]:
        """One row per scenario; of some, by name, the gain is `known`. Raises NotPredictable if the replay is off."""
        self.check()
        return [self._row(each, known.get(each.name)) for each in scenarios]

    def played(self, change: Change | None) -> Outcome:
        """The steps with this change, delays as measured; what is asked for again is not played again."""
        if id(change) not in self._outcomes:  # a function of others may have no hash; kept, its id is not used again
            cycles = self.measured if change is None else with_change(self.measured, change)
            self._outcomes[id(change)] = change, self.outcome(cycles)
        return self._outcomes[id(change)][1]

    def outcome(self, cycles: Sequence[list[Playing]]) -> Outcome:
        """The steps of these cycles."""
        lengths = played_lengths(cycles)
        waiting = played_lengths([as_waits(members) for members in cycles]) if self.is_unsplit else lengths
        return Outcome(lengths, waiting)

    def attribution(self, names: PartNames) -> list[Row]:
        """One row per part of the run, the largest slowdown of each kind first. Raises NotPredictable."""
        self.check()
        all_parts: dict[tuple[str, str], RunPart] = {}
        for members in self.usual:
            all_parts |= {(part.of, part.name): part for part in parts_of(members, names)}
        parts = list(all_parts.values())
        kinds = list(dict.fromkeys(part.of for part in parts))
        before, ideal, *lengths = map(
            _mean, lengths_of_all(self.usual, lambda members: _with_and_without(members, parts))
        )
        found_rows: list[tuple[int, float, Row]] = []
        for part, alone, without in zip(parts, lengths[::2], lengths[1::2], strict=True):
            slowdown = alone / ideal - 1 if ideal else 0.0
            gain = before - without
            row: Row = {"of": part.of, "part": part.name or None, "slowdown_frac": slowdown, "gain_ns": round(gain)}
            found_rows.append((kinds.index(part.of), -slowdown, row | {"gain_frac": gain / before if before else None}))
        return [row for *_, row in sorted(found_rows, key=lambda each: each[:2])]

    def check(self) -> None:
        """Raise NotPredictable or NothingMeasured if the run cannot be predicted."""
        if not self._measured:
            raise NothingMeasured(f"{self.name}: nothing ran on a device, so there is no step to predict")
        if self.error_frac > MOST_ERROR_FRAC:
            raise NotPredictable(
                f"{self.name}: not predictable: the unchanged replay is {self.error_frac:.0%} off the measured steps "
                f"(median; the limit is {MOST_ERROR_FRAC:.0%}). {self._likely_cause()}"
            )

    def _row(self, scenario: Scenario, known: Gain | None) -> Row:
        """The row of a scenario: length and gain of a step that counts."""
        row: Row = {
            "scenario": scenario.name,
            "unknown": scenario.unknown or None,
            "replay_error_frac": self.error_frac,
            "assumes": scenario.assumes,
        }
        if not scenario.changes:
            return row
        gain, measured = known or self.gain(scenario), self.step_ns
        row |= {
            "low_ns": max(round(measured - gain.high_ns), 0),
            "high_ns": round(measured - gain.low_ns),
        }
        if scenario.unknown:
            return row
        after = measured - gain.ns
        row |= {
            "step_ns": round(after),
            "gain_ns": round(gain.ns),
            "gain_frac": gain.ns / measured if measured else None,
        }
        if scenario.ranks_times is None or after <= 0:
            return row
        done = scenario.work_times * measured / after
        return row | {"throughput_factor": done, "efficiency_frac": done / scenario.ranks_times}

    @cached_property
    def step_ns(self) -> float:
        """Measured length of a step that counts, in ns, mean over these steps and all ranks."""
        return float(self._counted(self._measured).mean())

    def gain(self, scenario: Scenario, *, as_transfers: bool = False) -> Gain:
        """What a step that counts gains from a scenario by itself, delays as measured: the one number of a change.

        Calls that cannot be split are transfers. If they waited for somebody unseen instead, they end no earlier, and
        a step gains less, down to the lower bound; but not if they are taken `as_transfers`.

        Much longer delays than usual may be waits that the trace does not show. If those end with what goes, a step
        gains more, up to the upper bound; where ranks become like others, that is what they gain, since others wait
        for the late ones.
        """
        gains = self.gains(scenario, as_transfers=as_transfers)
        return Gain(
            max(gain.ns for gain in gains) if scenario.of_ranks else gains[0].ns,
            min(gain.low_ns for gain in gains),
            max(gain.high_ns for gain in gains),
        )

    def gains(self, scenario: Scenario, *, as_transfers: bool = False) -> list[Gain]:
        """The gain if no delay is a wait; and if all that is unusual about delays is, where that may matter."""
        return [each.gain_as_played(scenario, as_transfers=as_transfers) for each in self._by_delays(scenario)]

    def _by_delays(self, scenario: Scenario) -> list[Replay]:
        """The run with delays as measured; and with usual ones, where that may matter."""
        if not (scenario.leaves_out or scenario.never_longer) or not self._may_wait_unseen:
            return [self]
        return [self, self._with_usual_delays]

    def less_by_case(self, scenario: Scenario) -> dict[Case, Lengths]:
        """How much shorter each step that counts is, in ns by step: the likely case first.

        Of ways that are bounds, the tightest alone counts.
        """
        steps = self._steps_counted(self.played(None).lengths, all_between=scenario.limit)
        cases: dict[Case, Lengths] = {}
        for usual, replay in enumerate(self._by_delays(scenario)):
            for waiting in (False, True) if self.is_unsplit else (False,):
                ways = [replay.less(scenario, change, waiting=waiting) for change in scenario.changes]
                tightest = [int(np.argmin([less.mean() for less in ways]))] if scenario.tightest else None
                likely_first = sorted(range(len(ways)), key=lambda way: way != scenario.likeliest)
                for number, way in enumerate(tightest or likely_first):
                    cases[Case(bool(usual), number, waiting)] = dict(zip(steps, ways[way].tolist(), strict=True))
        return cases

    @cached_property
    def _may_wait_unseen(self) -> bool:
        """Whether unusual delays of a rank take enough of a step that a gain could be hidden behind them."""
        steps = max(len(self.counted or self._measured), 1)
        unusual_ns = max(
            (int((m.delay - u.delay).sum()) for both in zip(self.measured, self.usual, strict=True)
             for m, u in zip(*both, strict=True)),
            default=0,
        )  # fmt: skip
        return unusual_ns >= LEAST * self.step_ns * steps

    @cached_property
    def _with_usual_delays(self) -> Replay:
        return replace(self, measured=self.usual)

    def gain_as_played(self, scenario: Scenario, *, as_transfers: bool) -> Gain:
        """The gain if no delay is a wait."""
        by_way = [self.less(scenario, change, waiting=False) for change in scenario.changes]
        gains = [float(each.mean()) for each in by_way]
        measured = self._counted(self.played(None).lengths)
        by_period = self._by_period(measured)
        chance = 0.0 if scenario.limit else max(standard_error(self._by_period(each), by_period) for each in by_way)
        ns = scenario.most_likely(gains)
        unsure = UNSURE * abs(ns) if scenario.leaves_out else 0.0
        ends = [
            scenario.most_likely([float(self.less(scenario, change, waiting=False).mean()) for change in changes])
            for changes in scenario.ends
        ]
        ways = [*ends, *([ns] if scenario.tightest else gains)]
        slack = self.error_frac * self.step_ns + 2 * chance
        low, high = min(*ways, ns - unsure) - slack, max(*ways, ns + unsure) + slack
        if self.is_unsplit and not as_transfers:
            if_waiting = [float(self.less(scenario, change, waiting=True).mean()) for change in scenario.changes]
            low = min(low, min(if_waiting) - self.error_frac * self.step_ns)
            high = high if scenario.tightest else max(high, max(if_waiting) + self.error_frac * self.step_ns)
        never_longer = scenario.leaves_out or scenario.never_longer
        # Nothing that is left out makes a step longer: where it seems so, the replay tells no better.
        return Gain(*(max(each, 0.0) for each in (ns, low, high))) if never_longer else Gain(ns, low, high)

    def _by_period(self, of_steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Means over whole periods of the steps that count: within one, steps differ whatever chance does."""
        if self.period is None or len(of_steps) % self.period.steps:
            return of_steps
        means: NDArray[np.float64] = of_steps.reshape(-1, self.period.steps).mean(axis=1)
        return means

    def less(self, scenario: Scenario, change: Change, *, waiting: bool) -> NDArray[np.float64]:
        """How much shorter each step that counts is with a way of a scenario, in ns."""
        before, after = (each.waiting if waiting else each.lengths for each in (self.played(None), self.played(change)))
        # What one step does not get done is in a later one, so also those between steps that count are looked at.
        counted = partial(self._counted, all_between=scenario.limit)
        lengths = counted(after, of=before)
        if scenario.least is not None:
            least = scenario.least([as_waits(members) if waiting else members for members in self.measured])
            lengths += max(float(counted(least, of=before).mean() - lengths.mean()), 0.0)
        return counted(before) - lengths

    def _counted(
        self, lengths: Lengths, of: Lengths | None = None, *, all_between: bool = False
    ) -> NDArray[np.float64]:
        """Lengths of the steps that count, in order; those `of` the unchanged run where a change leaves no step."""
        known = self._measured if of is None else of
        steps = self._steps_counted(known, all_between=all_between)
        return np.array([lengths.get(step, known[step]) for step in steps] or [0.0])

    def _steps_counted(self, known: Lengths, *, all_between: bool = False) -> list[int]:
        """The steps of these that count, in order; all of them if none does."""
        counted = range(min(self.counted), max(self.counted) + 1) if self.counted and all_between else self.counted
        return [step for step in sorted(known) if not counted or step in counted] or sorted(known)

    @cached_property
    def lengths_ns(self) -> Lengths:
        """Length of each step that counts, in ns, with delays as measured."""
        lengths = self.played(None).lengths
        return {step: lengths[step] for step in self._steps_counted(lengths)}

    @cached_property
    def errors_ns(self) -> Lengths:
        """By how much the replay misses each step that counts, in ns."""
        return {step: self._replayed[step] - self._measured[step] for step in self._steps_counted(self._measured)}

    @cached_property
    def is_unsplit(self) -> bool:
        """Whether some calls have an unknown wait."""
        return any(member.program.is_unsplit.any() for members in self.measured for member in members)

    def _likely_cause(self) -> str:
        """The likely reason why the replay is off."""
        members = [m for cycle in self.measured for m in cycle]
        on_gpus = any(m.program.issued_by is None for m in members)
        if on_gpus and not any(len(m.program.call_start) for m in members):
            return "The traces show no calls of the CUDA runtime: capture with ProfilerActivity.CPU as well."
        spent = sum(int(m.delay.sum()) for m in members)
        usual = sum(int(m.delay.sum()) for cycle in self.usual for m in cycle)
        later = (spent - usual) / 1e6 / len(members)
        said = f"Activities begin {later:,.1f} ms per rank later than all that they are known to wait for"
        if not on_gpus:
            return f"{said}: the traces do not show what its CPUs wait for."
        unknown = np.concatenate([m.program.launch < 0 for m in members]).mean()
        return f"{said}, and of {unknown:.0%} of them the launch is not in the trace."


def _with_and_without(members: Sequence[Playing], parts: Sequence[RunPart]) -> Iterator[list[Playing]]:
    """Yield the run as is and without jitter; then, per part, with its jitter alone and with all other."""
    usual = calm(members)

    def mixed(chosen: Callable[[Playing], Chosen]) -> list[Playing]:
        return [each.mixed(member, chosen(member)) for member, each in zip(members, usual, strict=True)]

    yield list(members)
    yield mixed(everything)
    for part in parts:
        yield mixed(partial(_all_but, part))
        yield mixed(part.chosen)


def standard_error(gains: NDArray[np.float64], steps: NDArray[np.float64]) -> float:
    """Standard error of the mean over steps, of the gain or of the changed steps, whichever is smaller.

    A stall in one step makes gains differ, if it is what goes; it makes steps differ, if it stays. Neither says that
    the prediction is unsure.
    """
    if len(gains) < 2:
        return 0.0
    spreads = [float(np.std(each, ddof=1)) for each in (gains, steps - gains)]
    return min(spreads) / float(np.sqrt(len(gains)))


def with_change(cycles: Sequence[list[Playing]], change: Change) -> list[list[Playing]]:
    """The cycles with a change of their steps."""
    return [_within_steps(members, change(members)) for members in cycles]


def _within_steps(measured: Sequence[Playing], altered: Sequence[Playing]) -> list[Playing]:
    """Undo changes before the first step of each rank, as that time is no part of the steps.

    If that became faster, the first step would begin earlier, and seem longer for it.
    """
    return [
        _with_head_of(old, new) if new.program is old.program and not new.with_head else new
        for old, new in zip(measured, altered, strict=True)
    ]


def _with_head_of(old: Playing, new: Playing) -> Playing:
    program = old.program
    in_steps = steps_of(program) >= 0
    if in_steps.all() or not in_steps.any():
        return new
    head = ~in_steps & (program.start < program.start[in_steps].min())
    joins = {node: sources for node, sources in new.edges.joins.items() if not head[node]}
    joins |= {node: sources for node, sources in old.edges.joins.items() if head[node]}
    return replace(
        new,
        edges=Edges(joins, new.edges.blocks),
        delay=np.where(head, old.delay, new.delay),
        duration=np.where(head, old.duration, new.duration),
        transfer=np.where(head, old.transfer, new.transfer),
    )


def _all_but(part: RunPart, member: Playing) -> Chosen:
    return others(part.chosen(member))


def _mean(lengths: Lengths) -> float:
    return float(np.mean(list(lengths.values()))) if lengths else 0.0
