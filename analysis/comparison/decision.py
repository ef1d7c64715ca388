"""What two sides tell: whether their steps differ, beyond what, and what would settle it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist

from ...common.wording import counted, listed
from ..core.schema import Row
from ..core.student import student_quantile
from .differences import OTHER_WORK
from .history import KnownSpread
from .significance import LEVEL, STEPS_NEEDED, STEPS_PREFERRED, blocks_of, captures_needed

_SETTLED = 0.01
"""Of a step: two sides are alike if they surely differ by no more."""
BEYOND_WORDS = 10.0
"""Of larger changes that are merely possible, no digits are said."""
_SHOWN = 0.0005
"""Of a step: less is not a number of one decimal."""
_MOST_CAPTURES = 20
"""Of each side: nobody captures more to settle a change."""


class StepOutcome(str, Enum):
    """What is decided on the length of a step."""

    longer = "longer"
    shorter = "shorter"
    alike = "alike"
    open = "open"
    unknown = "unknown"


@dataclass(frozen=True)
class StepDecision:
    """The decision on the length of a step as values, and what it rests on.

    `outcome`: B is `longer` or `shorter`, beyond chance; `alike`, if they surely differ by less than 1 %; else `open`;
    `unknown` where steps cannot be compared. `beyond_steps` is None for several captures of a side, where steps do not
    count. With `few_but_ordered` steps, all of one side are much longer than all of the other, but too few to exceed
    chance. `runs_spread_frac` is by how much runs differ, as a standard deviation: known from `known_runs` of them, or
    assumed if these are 0. `more_captures` of each side would settle it, nine times in ten; 0 if it is settled, None if
    more than anybody makes. `apart` names runs that stand apart and were left out, `warming` those whose first steps
    were.
    """

    outcome: StepOutcome
    change_frac: float | None
    change_low_frac: float | None
    change_high_frac: float | None
    beyond_steps: bool | None
    few_but_ordered: bool
    steps_spread_frac: float | None
    beyond_runs: bool | None
    runs_spread_frac: float
    known_runs: int
    more_captures: int | None
    apart: tuple[str, ...]
    warming: tuple[str, ...]
    statements: tuple[str, ...]


@dataclass(frozen=True)
class DecisionBasis:
    """What a decision is made from: the judged row of the step, the same if runs did not differ, and what is known.

    `runs_spread_frac` is what counts as the spread of runs, `known_runs` from how many it is known, `known` from where
    those come that are not compared themselves. The steps of both sides `stand_clear` if all of one are longer
    than all of the other, by a larger factor than those of one side differ by. Where steps repeat after a `period` of
    so many, whole periods are compared.
    """

    step: Row
    beside_steps: Row | None
    runs_spread_frac: float
    known_runs: int
    known: KnownSpread | None
    history: str | None
    apart: tuple[str, ...]
    warming: tuple[tuple[str, int], ...]
    stand_clear: bool
    period: int | None = None

    @property
    def few_but_ordered(self) -> bool:
        """Whether steps differ by no more than chance, but only as there are few, which stand clear of each other."""
        few = min(self.step["steps_a"], self.step["steps_b"]) < STEPS_PREFERRED
        return few and self.stand_clear and self.beside_steps is not None and self.beside_steps["significant"] is False

    @property
    def beyond_runs_alone(self) -> bool:
        """Whether the change is more than runs alone differ by, though it is no more than chance."""
        step, change = self.step, self.step["change_frac"]
        if step["significant"] is not False or change is None or change <= -1:
            return False
        runs = (1, 1) if self.beside_steps is not None else (step["captures_a"], step["captures_b"])
        limit = NormalDist().inv_cdf(1 - LEVEL / 2)
        if self.known_runs:
            limit = student_quantile(max(self.known_runs - 2, 1), LEVEL)
        return bool(abs(math.log1p(change)) > limit * self.runs_spread_frac * math.sqrt(sum(1 / each for each in runs)))

    @property
    def of_other_work(self) -> bool:
        """Whether A and B may differ just by which steps were captured, so that capturing these again tells nothing."""
        return self.beyond_runs_alone and self.step["note"] == OTHER_WORK


def decided(evidence: DecisionBasis) -> StepDecision:
    """The decision, with a sentence each on what the change exceeds, and on what would settle it."""
    step, beside = evidence.step, evidence.beside_steps
    more = _more_captures(evidence)
    steps_spread = None
    if beside is not None:
        spreads = [step[f"spread_{side}_ns"] / step[f"{side}_ns"] for side in "ab" if _is_known(step, side)]
        steps_spread = max(spreads, default=None)
    return StepDecision(
        outcome=_outcome(step),
        change_frac=step["change_frac"],
        change_low_frac=step["change_low_frac"],
        change_high_frac=step["change_high_frac"],
        beyond_steps=None if beside is None else beside["significant"],
        few_but_ordered=evidence.few_but_ordered,
        steps_spread_frac=steps_spread,
        beyond_runs=step["significant"],
        runs_spread_frac=evidence.runs_spread_frac,
        known_runs=evidence.known_runs,
        more_captures=more,
        apart=evidence.apart,
        warming=tuple(name for name, _ in evidence.warming),
        statements=tuple(_statements(evidence, steps_spread, more)),
    )


def change_in_words(step: Row, steps: str = "steps") -> str:
    """`the steps of B take 5.0% longer than those of A (99% interval +3.1% to +7.0%)`, or why that is not known."""
    change = step["change_frac"]
    if change is None:
        why = f"the steps of A take no time ({step['note']})" if step["a_ns"] == 0 else step["note"]
        return f"steps cannot be compared: {why}"
    said = f"the {steps} of B take {100 * abs(change):.1f}% {'longer' if change >= 0 else 'less'} than those of A"
    if abs(change) < _SHOWN:
        said = f"the {steps} of B are as long as those of A"
    if step["significant"] is None:
        return said
    low, high = (_bound(step[f"change_{side}_frac"]) for side in ("low", "high"))
    return f"{said} ({1 - LEVEL:.0%} interval {low} to {high})"


def _bound(change_frac: float) -> str:
    return f"{100 * change_frac:+.1f}%" if change_frac <= BEYOND_WORDS else f"beyond {BEYOND_WORDS:+,.0%}"


def _is_known(step: Row, side: str) -> bool:
    return step[f"spread_{side}_ns"] is not None and bool(step[f"{side}_ns"])


def _outcome(step: Row) -> StepOutcome:
    if step["change_frac"] is None or step["significant"] is None:
        return StepOutcome.unknown
    if step["significant"]:
        return StepOutcome.longer if step["change_frac"] > 0 else StepOutcome.shorter
    bounds = step["change_low_frac"], step["change_high_frac"]
    return StepOutcome.alike if max(map(abs, bounds)) <= _SETTLED else StepOutcome.open


def _more_captures(evidence: DecisionBasis) -> int | None:
    """How many more captures of each side would settle the change that is seen; None if more than anybody makes.

    What is smaller than 1 % need not be found: captures that would show 1 % say that there is no such change.
    """
    step = evidence.step
    if _outcome(step) in (StepOutcome.longer, StepOutcome.shorter, StepOutcome.alike):
        return 0
    change = step["change_frac"]
    if evidence.of_other_work:
        return None
    return None if change is None or change <= -1 else captures_for(evidence, max(abs(math.log1p(change)), _SETTLED))


def captures_for(evidence: DecisionBasis, change: float) -> int | None:
    """How many more captures of each side would show this change, as a logarithm; None if more than anybody makes.

    Where it is not known by how much runs differ, as many as if they did by no more than the steps of a run. Where it
    is, these captures may be less well known than those by their steps: others of as many steps will be, too.
    """
    step, spread = evidence.step, evidence.runs_spread_frac
    if evidence.beside_steps is not None:
        of_steps = {side: (step[f"spread_{side}_ns"] or 0) / (step[f"{side}_ns"] or math.inf) for side in "ab"}
        if _by_steps(evidence):
            spread = max(of_steps.values())
        elif evidence.known is not None:
            errors = [each / math.sqrt(blocks_of(step[f"steps_{side}"])) for side, each in of_steps.items()]
            more = max(max(errors) ** 2 - evidence.known.spread.error**2, 0.0)
            spread = math.hypot(spread, math.sqrt(more))
    needed = captures_needed(change, spread, _MOST_CAPTURES)
    return None if needed is None else max(needed - min(step["captures_a"], step["captures_b"]), 1)


def _by_steps(evidence: DecisionBasis) -> bool:
    """Whether nothing but the steps of these runs shows by how much runs differ; a single step shows nothing."""
    is_known = any(evidence.step[f"spread_{side}_ns"] is not None for side in "ab")
    return not evidence.known_runs and evidence.beside_steps is not None and is_known


def more_in_words(evidence: DecisionBasis, more: int | None, wanted: str) -> str:
    """`2 more captures of each, alternating, would settle +3.0%`."""
    if more is None:
        return f"more than {_MOST_CAPTURES} captures of each would be needed to settle {wanted}"
    condition = "" if evidence.known_runs else f", if runs differ by {_percent(evidence.runs_spread_frac)}"
    if _by_steps(evidence):
        condition = ", if runs differ by no more than steps within a run do"
    return f"{counted(more, 'more capture')} of each, alternating, would settle {wanted}{condition}"


def _statements(evidence: DecisionBasis, steps_spread: float | None, more: int | None) -> Iterator[str]:
    step, beside = evidence.step, evidence.beside_steps
    if step["change_frac"] is None:
        said = change_in_words(step)
        yield f"{said[0].upper()}{said[1:]}."
        return
    change = f"{100 * step['change_frac']:+.1f}%" if abs(step["change_frac"]) >= _SHOWN else "A change under 0.1%"
    if beside is not None:
        yield (
            _of_few(step, change)
            if evidence.few_but_ordered
            else _on_steps(step, beside, change, steps_spread, evidence.period)
        )
    yield _on_runs(evidence, change)
    for count in dict.fromkeys(count for _, count in evidence.warming):
        names = [name for name, each in evidence.warming if each == count]
        steps, runs = "step is" if count == 1 else f"{count} steps are", "the run" if len(names) == 1 else "these runs"
        yield f"The first {steps} left out of {listed(names)}: {runs} had not warmed up."
    if evidence.apart:
        stands, are = ("stands", "is") if len(evidence.apart) == 1 else ("stand", "are")
        yield f"{listed(evidence.apart)} {stands} apart from the other captures of that side, and {are} left out."
    yield _on_more(evidence, change, more)


def _on_steps(step: Row, beside: Row, change: str, steps_spread: float | None, period: int | None) -> str:
    one, each = ("step", "steps") if period is None else ("period", f"periods of {period} steps")
    if beside["significant"] is None:
        few = f"{counted(step['steps_a'], one)} of A and {step['steps_b']} of B"
        return f"{few} are too few to tell by how much {each} differ: each side needs {STEPS_NEEDED}."
    differ = "" if steps_spread is None else f" ({_percent(steps_spread)} within a run)"
    if beside["significant"]:
        return f"{change} is beyond what the {each} of these runs differ by{differ}."
    return f"{change} is within what the {each} of these runs differ by{differ}."


def _of_few(step: Row, change: str) -> str:
    """How often chance alone would have all steps of one side take longer than all of the other.

    Source: Wilcoxon, Individual Comparisons by Ranking Methods, Biometrics Bulletin 1 (1945): all orders are alike.
    """
    count_a, count_b = step["steps_a"], step["steps_b"]
    once_in = math.comb(count_a + count_b, count_a) / 2
    side, than = ("B", "A") if (step["change_frac"] or 0) > 0 else ("A", "B")
    return (
        f"{change}: each step of {side} takes much longer than any of {than}, but they are few: chance alone puts "
        f"{count_a} and {count_b} steps in such an order once in {once_in:.0f} times."
    )


def _on_runs(evidence: DecisionBasis, change: str) -> str:
    spread, known = _percent(evidence.runs_spread_frac), evidence.known
    if evidence.step["significant"] is None:
        return f"{change} cannot be compared with what runs differ by."
    if not evidence.known_runs:
        source = (
            "no capture shows by how much runs of this program differ"
            if evidence.history is None
            else f"{evidence.history} has fewer than two other runs of this program on such GPUs"
        )
        if evidence.beyond_runs_alone:
            few = min(evidence.step["steps_a"], evidence.step["steps_b"]) < STEPS_PREFERRED
            why = "there are few steps" if few else "steps differ more"
            assumed = f"if that is {spread} (assumed: {source})"
            return f"{change} is more than runs differ by, {assumed}, but no more than chance, as {why}."
        says = "more" if evidence.step["significant"] else "no more"
        return f"{change} is {says} than chance if runs differ by {spread}, which is assumed: {source}."
    runs, without = f"{counted(evidence.known_runs, 'run')} that are compared", ""
    if known is not None:
        where = " on other hosts" if known.elsewhere else ""
        without = f", without {listed(known.apart)}, which stands apart" if known.apart else ""
        runs = f"{counted(evidence.known_runs, 'run')} of this program{where}"
    if evidence.beyond_runs_alone:
        why = "the n-th steps of A and B do other work" if evidence.of_other_work else "steps differ more"
        return f"{change} is more than {runs} differ by ({spread}{without}), but no more than chance, as {why}."
    beyond = "more" if evidence.step["significant"] else "no more"
    return f"{change} is {beyond} than chance: {runs} differ by {spread}{without}."


def _on_more(evidence: DecisionBasis, change: str, more: int | None) -> str:
    if more == 0:
        outcome = _outcome(evidence.step)
        return (
            "That A and B differ by no more than 1% is settled."
            if outcome is StepOutcome.alike
            else f"That B takes {'longer' if outcome is StepOutcome.longer else 'less time'} is settled, "
            f"with {1 - LEVEL:.0%} confidence."
        )
    if evidence.of_other_work:
        return "Captures of more steps, or of the same work on both sides, would settle it."
    wanted = change if abs(evidence.step["change_frac"] or 0) >= _SETTLED else "a change of 1%"
    said = more_in_words(evidence, more, wanted)
    return f"{said[0].upper()}{said[1:]}."


def _percent(frac: float) -> str:
    return f"{100 * frac:.1f}%" if frac >= _SHOWN else "under 0.1%"
