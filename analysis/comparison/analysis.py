"""Compare captures of two configurations: how their steps differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pandas as pd

from ...common.wording import bytes_text
from ..catalog import CATALOG, described
from ..core.escaping import printable
from ..core.kinds import COMPUTE
from ..core.schema import Row, records
from ..core.student import PAIRS_NEEDED
from ..core.tables.columns import HOW_TO_MARK
from ..core.tables.comparison import (
    CHANGED_CAUSES,
    CHANGED_KERNELS,
    CHANGED_OPERATORS,
    CHANGED_REGIONS,
    CHANGED_SHAPES,
    COMPARISON,
    TREND,
)
from ..errors import NothingMeasured
from ..metrics.compute.shapes import time_by_shape
from ..metrics.periods import Period
from ..metrics.typical_step import USUALLY_BESIDE
from ..metrics.verdicts.words import a_step, length
from ..recording.options import GivenOptions, ReadOptions, takes_reading
from ..results.analysis import Analysis
from ..results.opening import Paths, analyse_with
from ..tables.kernels import device_time, launched_in
from ..tables.regions import time_of_classes
from ..tables.values import computed
from . import step_values
from .apart import apart, warming_steps
from .candidates import Candidate, candidates
from .causes import StepChange, parts_of_side, step_change
from .decision import BEYOND_WORDS, DecisionBasis, StepDecision, captures_for, change_in_words, decided, more_in_words
from .differences import MATTERS, Allowance, compared, judged, side_by_side, surely_within
from .differing import differing
from .history import History, KnownSpread, read_history
from .pairing import paired
from .significance import STEPS_PREFERRED, SpreadOfRuns, pooled_spread
from .step_values import Capture
from .steps import lengths_of_steps, that_count, whole_steps
from .work import SIDES, SameWork, SideNames, same_work

if TYPE_CHECKING:
    from typing_extensions import Unpack

K = TypeVar("K", bound=Hashable)

RUN_SPREAD_FRAC = 0.05
"""How much runs of one configuration are assumed to differ, as a standard deviation, where nothing shows it.

Runs on a quiet machine differ by 1 or 2 %, and on other hosts or under other clocks by several. With this, a run that
takes 30 % longer than another is told from it nine times in ten.
"""
_LEAST_OF_MEMORY, _MOST_OF_MEMORY = 0.01, 3
"""Of the peak of A: smaller changes of a category are not said; nor more of them."""
# The memory of one program hardly differs from run to run.
_MEMORY_SPREAD_FRAC = 0.01
# Compute varies in proportion to itself. Everything else depends on the rest of a step and on other ranks, and may grow
# from next to nothing: it is assumed to differ by this part of a whole step.
_SCALES_WITH_ITSELF = ("compute",)
_OF_A_STEP = 0.5


class Judgement(Enum):
    """Verdict on whether B is slower than A by more than a limit."""

    slower = "slower"
    within = "within"
    unknown = "unknown"

    @property
    def exit_code(self) -> int:
        """What `compare --fail-above` exits with."""
        return {"slower": 3, "within": 0, "unknown": 4}[self.value]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Tables of two sides, each with one run or several captures, read with `details`.

    Columns: docs/tables.md. `run_spread_frac` is the spread of runs that is assumed if there is only one run of each,
    and `history` has none of their program. `names` are what causes call the sides.
    """

    a: tuple[Analysis, ...]
    b: tuple[Analysis, ...]
    run_spread_frac: float = RUN_SPREAD_FRAC
    history: History | None = None
    names: SideNames = SIDES

    def __repr__(self) -> str:
        a, b = (printable(", ".join(analysis.run.name for analysis in side)) for side in (self.a, self.b))
        return f"<Comparison of {a} with {b}; see .summary()>"

    def _repr_html_(self) -> str:
        """The report as HTML, for notebooks."""
        return f"<pre>{escape(self.summary())}</pre>"

    def summary(self) -> str:
        """The captures, the verdict and the tables as text."""
        from ..show.two_runs import report

        return report(self, "table")

    def brief(self) -> str:
        """Headline, what really differs and what that rests on in Markdown, to paste into a pull request."""
        from ..show.two_runs import in_brief

        return in_brief(self)

    @cached_property
    @described
    def comparison(self) -> pd.DataFrame:
        """One row per measure of a step. The first is the step's length, tested separately."""
        of_a, of_b = (
            self._captures(side, lambda one: step_values.measures(whole_steps(one), one.calls, one.participation))
            for side in self._sides
        )
        rows = []
        for measure in of_a:
            row = compared(of_a[measure], of_b[measure], self._allowance(measure in _SCALES_WITH_ITSELF))
            rows.append({"measure": measure, "note": _unknown(measure, row)} | row)
        return COMPARISON.frame([*judged([self._step]), *judged(rows), *judged([self._peak_memory()])])

    @cached_property
    @described
    def changed_causes(self) -> pd.DataFrame:
        """One row per candidate for the cause of the change, the largest first.

        Raises NothingMeasured if a run cannot be played again.
        """
        if self.candidates is None:
            raise NothingMeasured(f"A and B: {CATALOG['changed_causes'].none_measured}")
        return CHANGED_CAUSES.frame(each.row for each in self.candidates)

    @property
    def typical_steps(self) -> pd.DataFrame:
        """Two rows like those of `trend`: a typical step of A and of B, mean over the captures of each."""
        rows: list[Row] = []
        for name, side in zip("AB", self._sides, strict=True):
            parts = {part: round(ns) for part, ns in parts_of_side(side).items()}
            steps = sum(len(one.typical_step.steps) for one in side)
            ranks = max(len(one.run.ranks) for one in side)
            rows.append({"run": name, "ranks": ranks, "steps": steps, "step_ns": sum(parts.values()), **parts})
        rows[1]["change_ns"] = rows[1]["step_ns"] - rows[0]["step_ns"]
        return TREND.frame(rows)

    @cached_property
    def what_differs(self) -> pd.DataFrame:
        """Up to five rows like those of `changed_causes`: what really differs, and what the cause of the change names.

        Where no price explains the change, a row is a part of a typical step. Empty where a side shows no activity.
        """
        if self.change is None:
            return CHANGED_CAUSES.empty()
        measures = {row["measure"]: row for row in records(self.comparison)}
        return CHANGED_CAUSES.frame(differing(self.change, self.candidates, measures))

    @cached_property
    @described
    def changed_kernels(self) -> pd.DataFrame:
        """One row per kernel of either side: its device time per step, the largest difference first."""
        renamed = self._same_work.renamed

        def of_kernels(analysis: Analysis) -> pd.DataFrame:
            time = analysis.of(device_time)
            is_a = any(analysis is one for one in self._sides[0])
            return time.assign(name=time["name"].replace(renamed)) if is_a else time

        before = {name_b: name_a for name_a, name_b in renamed.items()}
        rows = self._changed(["name", "kind"], of_kernels)
        return CHANGED_KERNELS.frame(row | {"name_a": before.get(row["name"])} for row in rows)

    @cached_property
    @described
    def changed_operators(self) -> pd.DataFrame:
        """One row per operator of either side. Raises NothingMeasured where operators were not read."""

        def of_operators(analysis: Analysis) -> pd.DataFrame:
            return analysis.of(device_time).assign(operator=analysis.of(launched_in))

        return CHANGED_OPERATORS.frame(self._changed(["operator", "kind"], of_operators))

    @cached_property
    @described
    def changed_shapes(self) -> pd.DataFrame:
        """One row per operator and shapes of its inputs, of either side.

        Raises NothingMeasured if no operator has shapes, or operators were not read.
        """
        if not any(time_by_shape(one.of(computed))["operator"].notna().any() for one in (*self.a, *self.b)):
            raise NothingMeasured(f"A and B: {CATALOG['changed_shapes'].none_measured}")
        keys = ["operator", "inputs", "dtype"]
        return CHANGED_SHAPES.frame(self._changed(keys, lambda one: time_by_shape(one.of(computed)), kind=COMPUTE))

    @cached_property
    @described
    def changed_regions(self) -> pd.DataFrame:
        """One row per class of regions and phase of either side.

        Raises NothingMeasured if no side has any region, or operators were not read.
        """
        if not any(len(analysis.of(time_of_classes)) for analysis in (*self.a, *self.b)):
            raise NothingMeasured(f"A and B: {CATALOG['changed_regions'].none_measured}")

        def of_regions(analysis: Analysis) -> pd.DataFrame:
            time = analysis.of(time_of_classes)  # with idle time and waiting, which a step that is not whole lacks
            return time[time["step"].isin(whole_steps(analysis)["step"])]

        return CHANGED_REGIONS.frame(self._changed(["region", "phase"], of_regions))

    @property
    def of_kind(self) -> str:
        """`decode steps`, where all captures are compared by steps of this kind; `steps` where it is not known."""
        kinds = {_kind(one) for side in self._sides for one in side}
        return f"{kind} steps" if len(kinds) == 1 and (kind := kinds.pop()) is not None else "steps"

    @cached_property
    def _sides(self) -> tuple[tuple[Analysis, ...], tuple[Analysis, ...]]:
        """Both sides as they are compared, about the steps that all runs have if those of a number do the same work.

        Where one side has other steps, as after a cold start, what these do differs from what the others do.
        """
        a, b = self._kept_sides
        shared = frozenset.intersection(*(frozenset(one.typical_step.steps) for one in (*a, *b)))
        lengths = [self._lengths(side) for side in (a, b)]
        source = self._source(lengths)
        if source is None or len(shared) < PAIRS_NEEDED or paired(*(side[source] for side in lengths)) is None:
            return a, b
        if any(one.typical_step.period is not None for one in (*a, *b)):  # whole periods count
            return a, b
        of_a, of_b = (
            tuple(one if shared.issuperset(one.typical_step.steps) else replace(one, compared=shared) for one in side)
            for side in (a, b)
        )
        return of_a, of_b

    @cached_property
    def _kept_sides(self) -> tuple[tuple[Analysis, ...], tuple[Analysis, ...]]:
        """Both sides without runs that stand apart, about one kind of steps if they can be."""
        a, b = (
            tuple(one for number, one in enumerate(side) if (place, number) not in self._apart)
            for place, side in enumerate(self._given_sides)
        )
        return a, b

    @cached_property
    def _given_sides(self) -> tuple[tuple[Analysis, ...], tuple[Analysis, ...]]:
        """Both sides, about one kind of steps if they can be."""
        every = about_one_kind((*self.a, *self.b))
        return every[: len(self.a)], every[len(self.a) :]

    @cached_property
    def _apart(self) -> list[tuple[int, int]]:
        """The runs of either side, 0 or 1, that stand apart from the others of it."""
        lengths = [self._lengths(side) for side in self._given_sides]
        source = self._source(lengths)
        if not self.separate or source is None:
            return []
        values = [np.array([step_values.midmean(one.values) for one in side[source] if len(one)]) for side in lengths]
        every = np.concatenate(values)
        whole = [len(of) for of in values] == [len(side) for side in self._given_sides]
        return apart([np.log(of) for of in values]) if whole and float(every.min()) > 0 else []

    @property
    def other_kinds(self) -> Iterator[str]:
        """Yield a sentence on each other kind of steps that both sides have: how long they take."""
        of_a, of_b = (
            pd.concat([one.steps[one.steps["left_out"] == "kind"] for one in side]).groupby("kind")["window_ns"]
            for side in self._sides
        )
        for kind in sorted(set(map(str, of_a.groups)) & set(map(str, of_b.groups))):
            a, b = of_a.get_group(kind), of_b.get_group(kind)
            took = f"{length(a.median() / 1e6)} in A and {length(b.median() / 1e6)} in B"
            yield f"{a_step(kind)} takes {took} (medians, n = {len(a):,} and {len(b):,})"

    @property
    def on_cpu(self) -> bool:
        """Whether no run has a GPU, so that operators stand for kernels."""
        return all(analysis.run.is_of_cpus for analysis in (*self.a, *self.b))

    @property
    def separate(self) -> bool:
        """Whether captures are separate runs; otherwise they are cycles of one run per side."""
        return len(self.a) > 1 or len(self.b) > 1

    @property
    def cause(self) -> str | None:
        """`+7.4 ms: ranks wait for rank 1`: how a typical traced step changed, and by what; None without activity."""
        return None if self.change is None else self.change.sentence

    @cached_property
    def change(self) -> StepChange | None:
        """How much longer a typical traced step of B takes, and why; None where a side shows no activity."""
        return step_change(*self._sides, self.candidates, self._same_work.groups, is_proven=self._is_proven)

    @cached_property
    def not_known(self) -> dict[str, str]:
        """Tables that cannot be made of these runs, by name, each with the reason in words."""
        found = {}
        if self.candidates is None:
            found["changed_causes"] = "what causes cost, as a run cannot be played again"
        if not all(one.run.details or one.run.is_of_cpus for side in self._sides for one in side):
            found["changed_operators"] = "operators, as a run was read without them"
        return found

    @cached_property
    def candidates(self) -> list[Candidate] | None:
        """What the change may be due to, the largest first, by prices; None where a run cannot be played again."""
        return candidates(*self._sides, self._same_work, is_proven=self._is_proven)

    def operators_behind(self, words: str) -> set[str]:
        """The operators that launch the kernels of a cause in these words; none where it is not one of kernels."""
        return {name for group in self._same_work.groups if group.words == words for name in group.operators}

    @property
    def _is_proven(self) -> bool:
        """Whether steps of B differ from those of A beyond what steps do, so that it is worth asking for what."""
        return bool(self.decision.beyond_steps or self.decision.beyond_runs)

    @cached_property
    def _same_work(self) -> SameWork:
        """Which kernels of both sides do the same."""
        return same_work(*self._sides, self.names)

    @property
    def step(self) -> Row:
        """The row of `comparison` on the length of a step."""
        columns = dict.fromkeys(COMPARISON.columns)
        return columns | judged([self._step])[0]

    @cached_property
    def decision(self) -> StepDecision:
        """The decision on the length of a step, as values and in sentences."""
        return decided(self._evidence)

    @cached_property
    def _evidence(self) -> DecisionBasis:
        """What the decision rests on."""
        columns = dict.fromkeys(COMPARISON.columns)
        spread, known_runs = self._runs.deviation, 0 if self._known is None else self._known.runs
        if self.separate and (measured := self._measured_spread) is not None:
            spread, known_runs = measured, known_runs + len(self._sides[0]) + len(self._sides[1])
        source = self._source(self._step_lengths)
        cold = [(one.run.name, len(self._cold_steps(one)[source])) for side in self._sides for one in side if source]
        return DecisionBasis(
            step=self.step,
            beside_steps=None if self.separate else columns | judged([self._step_beside(SpreadOfRuns(0.0))])[0],
            runs_spread_frac=spread,
            known_runs=known_runs,
            known=self._known,
            history=None if self.history is None else self.history.name,
            apart=tuple(printable(self._given_sides[side][number].run.name) for side, number in self._apart),
            warming=tuple((printable(name), count) for name, count in cold if count),
            stand_clear=self._steps_stand_clear,
            period=None if self._period is None else self._period.steps,
        )

    @property
    def _steps_stand_clear(self) -> bool:
        """Whether all steps of one side are longer than all of the other, by more than those of a side differ."""
        source = self._source(self._step_lengths)
        if source is None:
            return False
        a, b = (np.concatenate([np.asarray(each.values) for each in side[source]]) for side in self._step_lengths)
        if min(a.min(), b.min()) <= 0:
            return False
        between = max(b.min() / a.max(), a.min() / b.max())
        return bool(between > max(a.max() / a.min(), b.max() / b.min()))

    @property
    def _measured_spread(self) -> float | None:
        """How much the compared runs of a side differ, with what else is known; None if no side has several."""
        source = self._source(self._step_lengths)
        if source is None:
            return None
        middles = [
            np.array([step_values.midmean(one.values) for one in side[source] if len(one)])
            for side in self._step_lengths
        ]
        freedom = sum(max(len(each) - 1, 0) for each in middles)
        if not freedom or min(float(each.min()) for each in middles) <= 0:
            return None
        known, measured = self._runs, pooled_spread(*map(np.log, middles))
        both = freedom * measured**2 + known.freedom * known.deviation**2
        return math.sqrt(both / (freedom + known.freedom))

    def slower_by(self, limit_frac: float) -> tuple[Judgement, str]:
        """Judge whether steps of B are longer by more than this fraction, with the reason."""
        step, said = self.step, change_in_words(self.step, self.of_kind)
        change, limit = step["change_frac"], f"the limit is {100 * limit_frac:g}%"
        if step["significant"] is None or change is None:
            few = f"; {step['note']}; capture more steps, or several captures" if change is not None else ""
            return Judgement.unknown, f"{said}{few}; {limit}"
        if step["significant"] and change > limit_frac:
            return Judgement.slower, f"{said}; {limit}"
        if surely_within(self._step, limit_frac):
            return Judgement.within, f"{said}; {limit}"
        most = self._step["most_frac"]
        longer = f"{100 * most:.3g}%" if most <= BEYOND_WORDS else f"more than {BEYOND_WORDS:,.0%}"
        margin = abs(math.log1p(max(change, -0.99)) - math.log1p(limit_frac))
        wanted = "on which side of the limit it is"
        more = more_in_words(self._evidence, captures_for(self._evidence, margin), wanted)
        return Judgement.unknown, f"{said}; {limit}, but B may take {longer} longer; {more}"

    @cached_property
    def _step(self) -> Row:
        """The row of the step's length before the test."""
        return self._step_beside(self._runs)

    def _step_beside(self, runs: SpreadOfRuns) -> Row:
        """The same where runs differ by this."""
        source = self._source(self._step_lengths)
        if source is None:
            note = f"no step is marked in one of the runs: {HOW_TO_MARK}"
            counts = dict.fromkeys(("steps_a", "steps_b", "captures_a", "captures_b"), 0)
            return {"measure": "step", **counts, "note": note}
        a, b = self._step_lengths
        row = compared(a[source], b[source], Allowance(runs, self.separate))
        notes = (source, row.get("note"), self.unlike_kinds)
        return {"measure": "step"} | row | {"note": "; ".join(filter(None, notes))}

    @cached_property
    def _step_lengths(self) -> list[dict[str, list[Capture]]]:
        """Lengths of the steps of each side, without runs that stand apart."""
        return [self._lengths(side) for side in self._sides]

    def _lengths(self, side: Sequence[Analysis]) -> dict[str, list[Capture]]:
        """Lengths of the steps of each capture, by source, without those in which a run had not warmed up."""
        lengths: dict[str, list[Capture]] = {source: [] for source in step_values.SOURCES}
        for one in side:
            cold, last = self._cold_steps(one), self._last_steps(one)
            for source, of_steps in lengths_of_steps(one).items():
                warm = of_steps[~of_steps.index.isin(cold[source])]
                lengths[source] += step_values.by_cycle(warm, last, self._period)
        return lengths

    @staticmethod
    def _source(sides: Sequence[Mapping[str, Sequence[Capture]]]) -> str | None:
        """The source of lengths that all captures have, the best one with enough steps."""
        every = [dict(zip(side, values, strict=True)) for side in sides for values in zip(*side.values(), strict=True)]
        return step_values.best_source(every, STEPS_PREFERRED)

    @cached_property
    def _known(self) -> KnownSpread | None:
        """What the history knows of the spread of runs; None without a history, or with none of these programs."""
        source = self._source(self._step_lengths)
        return None if self.history is None or source is None else self.history.spread(self._sides, source)

    @property
    def _runs(self) -> SpreadOfRuns:
        """How much runs differ, besides those that are compared."""
        return SpreadOfRuns(self.run_spread_frac) if self._known is None else self._known.spread

    @property
    def unlike_kinds(self) -> str | None:
        """A sentence if steps of one side are of another kind than those of the other."""
        a, b = ({_kind(one) for one in side} for side in self._sides)
        of_a, of_b = (" and ".join(sorted(kind or "no known kind" for kind in kinds)) for kinds in (a, b))
        return None if a == b else f"steps of A are {of_a}, those of B {of_b}: not the same work"

    def _allowance(self, scales_with_itself: bool) -> Allowance:
        """The tolerated difference; without a known step length, relative to each measure itself."""
        lengths = [self._step.get(f"{side}_ns") or 0 for side in "ab"]
        part = None if scales_with_itself or not all(lengths) else _OF_A_STEP * max(lengths)
        return Allowance(
            SpreadOfRuns(self.run_spread_frac), self.separate, MATTERS * min(filter(None, lengths), default=0), part
        )

    def _changed(self, keys: list[str], time: Callable[[Analysis], pd.DataFrame], kind: str = "") -> list[Row]:
        """Rows by these keys; `kind` is that of all where it is none of the keys."""
        of_a, of_b = (
            self._captures(side, lambda one: step_values.time_per_step(that_count(one, time(one)), keys))
            for side in self._sides
        )
        return side_by_side(of_a, of_b, keys, {COMPUTE: self._allowance(True), "": self._allowance(kind == COMPUTE)})

    def _peak_memory(self) -> Row:
        peaks = [
            self._captures(
                side, lambda one: {"peak": step_values.peak_memory(one.run.memory_events, one.run.annotations)}
            )
            for side in self._sides
        ]
        allowance = Allowance(SpreadOfRuns(_MEMORY_SPREAD_FRAC), self.separate)
        row: Row = compared(peaks[0]["peak"], peaks[1]["peak"], allowance, unit="bytes")
        without = " and ".join(name for name, count in _counts(row) if not count)
        note = f"not recorded in {without}: capture with profile_memory" if without else self._what_changed_in_memory()
        return row | {"measure": "peak_memory", "note": row.get("note") or note}

    def _what_changed_in_memory(self) -> str | None:
        """`activations +1.2 GiB, gradients -64 MiB`: what the peak consists of, the largest change first; if known."""
        found = [
            [parts for one in side if (parts := step_values.memory_at_peak(one.table("memory")))]
            for side in self._sides
        ]
        if not all(found):
            return None
        a, b = ({name: sum(each[name] for each in side) / len(side) for name in side[0]} for side in found)
        changes = {name: round(b[name] - a[name]) for name in a}
        least = max(_LEAST_OF_MEMORY * sum(a.values()), 1)
        said = [
            f"{name} {'+' if change > 0 else '-'}{bytes_text(abs(change))}"
            for name, change in sorted(changes.items(), key=lambda change: -abs(change[1]))
            if abs(change) >= least
        ]
        return ", ".join(said[:_MOST_OF_MEMORY]) or None

    def _captures(
        self, side: Sequence[Analysis], values: Callable[[Analysis], Mapping[K, pd.Series[float]]]
    ) -> dict[K, list[Capture]]:
        """Values by key and capture, without steps in which a run had not warmed up; 0 for steps without this key."""
        of_runs = [(values(one), self._last_steps(one), self._cold_steps(one)[step_values.TRACED]) for one in side]
        result: dict[K, list[Capture]] = {key: [] for of_run, _, _ in of_runs for key in of_run}
        for key, captures in result.items():
            for of_run, last, cold in of_runs:
                listed = of_run[key] if key in of_run else next(iter(of_run.values()), _NO_STEPS) * 0
                captures += step_values.by_cycle(listed[~listed.index.isin(cold)], last, self._period)
        return result

    def _cold_steps(self, analysis: Analysis) -> dict[str, list[int]]:
        """Numbers of the steps in which a run had not warmed up, by the source of their lengths.

        Where steps repeat, the first ones may be the long ones of a period.
        """
        if self._period is not None:
            return {source: [] for source in step_values.SOURCES}
        last = self._last_steps(analysis)
        return {
            source: [
                number
                for one in step_values.by_cycle(lengths, last)
                for number in one.steps[: warming_steps(one.values)].tolist()
            ]
            for source, lengths in lengths_of_steps(analysis).items()
        }

    @cached_property
    def _period(self) -> Period | None:
        """After how many steps these repeat in the runs: a run with few steps does not show it."""
        found = [one.typical_step.period for side in self._given_sides for one in side if len(one.steps)]
        return max(filter(None, found), key=lambda period: period.steps, default=None)

    def _last_steps(self, analysis: Analysis) -> list[int]:
        """Last step of each capture of a run: of the run itself, or of its cycles."""
        last = step_values.last_steps(analysis.run.annotations)
        return last[-1:] if self.separate else last


_NO_STEPS = pd.Series([], dtype="float64", index=np.array([], dtype="int64"))


def about_one_kind(runs: tuple[Analysis, ...]) -> tuple[Analysis, ...]:
    """The runs, about the kind of steps that all have and that takes most time; as they are if there is none."""
    if len({_kind(one) for one in runs}) == 1:
        return runs
    times_ns = [one.table("steps").groupby("kind")["window_ns"].sum() for one in runs if len(one.table("steps"))]
    shared = set.intersection(*(set(each.index) for each in times_ns)) - set(USUALLY_BESIDE)
    if not shared:
        return runs
    about = max(sorted(shared), key=lambda kind: sum(each[kind] for each in times_ns))
    return tuple(one if _kind(one) == about else replace(one, about=about) for one in runs)


def _kind(analysis: Analysis) -> str | None:
    """The kind of steps that the run is about."""
    steps = analysis.table("steps")
    kinds: list[str] = steps["kind"][steps["left_out"].isna()].dropna().unique().tolist()
    return kinds[0] if kinds else None


def _counts(row: Row) -> list[tuple[str, int]]:
    return [("A", row["captures_a"]), ("B", row["captures_b"])]


def _unknown(measure: str, row: Row) -> str | None:
    """Why a measure has no values; None if it has."""
    without = " and ".join(name for name, count in _counts(row) if not count)
    if not without:
        return None
    if measure in ("wait", "transfer", "exposed_wait", "exposed_transfer"):
        return f"no step of {without} has communication that was split into wait and transfer"
    return f"no step in {without}"


@takes_reading
def compare(
    a: Paths,
    b: Paths,
    *,
    run_spread_frac: float = RUN_SPREAD_FRAC,
    history: str | PathLike[str] | None = None,
    **reading: Unpack[GivenOptions],
) -> Comparison:
    """Compare the captures at `a` and `b`; each is a run as for `analyse`, or a list of runs.

    `history` is the file of a machine's captures. `run_spread_frac`: see `Comparison`, the others: see `analyse`.
    Raises AnalysisError.
    """
    options = ReadOptions.given(details=True, **reading)
    sides = [[paths] if isinstance(paths, (str, PathLike)) else list(paths) for paths in (a, b)]
    if not all(sides):
        raise NothingMeasured("nothing to compare: each side takes at least one capture")
    of_a, of_b = (tuple(analyse_with(path, options) for path in paths) for paths in sides)
    return Comparison(of_a, of_b, run_spread_frac, None if history is None else read_history(Path(history)))
