"""What is said of two sides, on a terminal, on a page and in JSON: headline, how sure it is, settings and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from ...common.wording import listed, ordinal, ranges_of
from ...contract.reading import lenient
from ...contract.run import RunFile
from ..comparison.analysis import Comparison
from ..comparison.causes import signed
from ..comparison.decision import StepDecision, StepOutcome
from ..comparison.significance import LEVEL
from ..core.escaping import printable
from ..core.schema import PlainTable, Row, plain, records
from ..render import Table
from ..render.units import TimeUnit
from ..results.analysis import Analysis
from .first_screen import facts_of

_SAID_AS_EQUAL = 0.0005
_FEW_DIGITS = 0.1
"""Smaller changes have a decimal in percent."""
_MOST_CAUSES = 2
"""Of a headline: what follows is in the rows below it."""
_LONGEST_CAUSE = 80
"""Letters of a cause in a headline: a longer one ends with its first clause."""
_BOUNDED = 10.0
"""Ends of an interval beyond that, as a part of A, bound nothing."""
_BOUNDS = {"change_high_frac": ("change_low_frac", "change_high_frac"), "seen_frac": ("seen_frac",)}
"""What such an end is looked for in, and what it makes worthless."""
_ALIKE = 2.0
"""The lengths of steps, and of those that were traced, changed alike if they differ by this factor at most."""
_SAME_NUMBER = 0.1
"""Lengths that differ by less are not worth two numbers."""
MOST_NOTES = 3


def headline(comparison: Comparison) -> str:
    """How much longer steps of B take, whether that is known, and what costs it."""
    step = comparison.step
    change = step["change_frac"]
    if change is None:
        return "Steps of A and B cannot be compared"
    steps = comparison.of_kind.capitalize()
    beyond = _beyond(comparison.decision)
    if abs(change) < _SAID_AS_EQUAL or comparison.decision.outcome is StepOutcome.alike:
        return f"{steps} of B are as long as those of A"
    words = "longer than" if change > 0 else "less than"
    take = "take" if beyond in ("runs", "steps", "few steps") else "seem to take"
    said = f"{steps} of B {take} {_amount(step)} {words} those of A"
    if beyond == "few steps":
        said += f", in all {step['steps_a']} and {step['steps_b']} that were traced"
    elif beyond in ("steps", "nothing"):
        what = "captures" if comparison.separate else "steps"
        said += f", {'as two runs of one program may' if beyond == 'steps' else f'no more than {what} differ by'}"
    cause = _short_cause(comparison)
    return f"{said}: {cause}" if cause else said


def _beyond(decision: StepDecision) -> str | None:
    """What the change of a step exceeds: how much `runs` differ, only how much `steps` do, or `nothing`; or None.

    `few steps` where it exceeds what they differ by, but they are too few to say so.
    """
    if decision.beyond_runs is None:
        return None
    if decision.beyond_runs:
        return "runs"
    return "steps" if decision.beyond_steps else "few steps" if decision.few_but_ordered else "nothing"


def _amount(step: Row) -> str:
    """`3.1 ms (80.1%)`; without the percentage where steps of A are next to nothing beside those of B."""
    unit = TimeUnit.of(max(step["a_ns"], step["b_ns"]))
    ns, change = step["difference_ns"], abs(step["change_frac"])
    if ns * step["change_frac"] <= 0:  # of pairs, the median of differences is not the difference of medians
        return f"{change:.1%}"
    if change > _BOUNDED:
        return f"{length_of(ns, unit)} ({1 + change:,.0f} times as long)"
    return f"{length_of(ns, unit)} ({change:.{1 if change < _FEW_DIGITS else 0}%})"


def length_of(ns: float, unit: TimeUnit) -> str:
    """`3.1 ms`; `40 us` where that is too little for the unit."""
    return signed(ns, unit).lstrip("+-")


def _short_cause(comparison: Comparison) -> str:
    """What explains the change, in a few words; empty where traced steps changed otherwise than steps did."""
    change, ns = comparison.change, comparison.step["difference_ns"] or 0
    if change is None or not change.parts:
        return ""
    is_chance = _beyond(comparison.decision) == "nothing"
    if is_chance and any(part.bounds_ns is None for part in change.parts):
        return ""  # where the time shows is chance, too; prices are known by themselves
    if not 1 / _ALIKE <= change.ns / (ns or 1) <= _ALIKE:
        return ""
    several = len(change.parts) > 1 or change.words != change.parts[0].words
    if not several:
        return _clause(change.parts[0].words, "; ")
    return " and ".join(f"{_clause(part.words, ': ')} ({part.amount})" for part in change.parts[:_MOST_CAUSES])


def _clause(words: str, ends_with: str) -> str:
    """The words, or their first clause if they are many: what follows is in the rows."""
    return words if len(words) <= _LONGEST_CAUSE else words.partition(ends_with)[0].partition("; ")[0]


def explanation(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on the headline: how large the change may be, and what traced steps say where it does not."""
    step = comparison.step
    if step["change_frac"] is not None and step["significant"] is not None and step["change_high_frac"] <= _BOUNDED:
        low, high = (f"{100 * step[f'change_{end}_frac']:+,.1f}%" for end in ("low", "high"))
        yield f"The change is between {low} and {high}, with {1 - LEVEL:.0%} confidence."
    yield from _of_traced_steps(comparison)
    yield from _of_periods(comparison)
    yield from _of_long_steps(comparison)
    yield from (f"{said}." for said in comparison.other_kinds)


def _of_traced_steps(comparison: Comparison) -> Iterator[str]:
    """Yield what the bars show, where the headline says another number, or no cause."""
    change, step = comparison.change, comparison.step
    if change is None or not change.parts:
        return
    is_named = _names_cause(comparison)
    ns = step["difference_ns"] or 0
    if is_named and abs(change.ns - ns) <= _SAME_NUMBER * max(abs(change.ns), abs(ns)):
        return
    why = "" if is_named else f": {change.words}"
    if change.unit.is_zero(change.ns):
        yield f"Traced steps take as long, but not for the same{why}."
    else:
        longer = "longer" if change.ns > 0 else "less"
        yield f"In the mean, traced steps of B take {length_of(change.ns, change.unit)} {longer}{why}."


def _of_periods(comparison: Comparison) -> Iterator[str]:
    """Yield `Every 4th step takes 14.2 ms in A and 21.3 in B, the others 3.1 and 3.1.`, where both repeat alike."""
    change = comparison.change
    periods = {one.typical_step.period for side in (comparison.a, comparison.b) for one in side}
    if change is None or None in periods or len({(p.steps, len(p.long)) for p in periods if p is not None}) != 1:
        return
    period = next(p for p in periods if p is not None)
    both = (comparison.a, comparison.b)
    long, others = ([_mean_ns(side, long=is_long) for side in both] for is_long in (True, False))
    is_one, unit = len(period.long) == 1, change.unit
    who = f"Every {ordinal(period.steps)} step" if is_one else f"{len(period.long)} of {period.steps} steps"
    of_a, of_b, *of_others = (unit.number(ns) for ns in (*long, *others))
    takes = f"{who} take{'s' if is_one else ''} {of_a} {unit.name} in A and {of_b} in B"
    yield f"{takes}, the others {' and '.join(of_others)}."


def _mean_ns(side: Sequence[Analysis], *, long: bool) -> float:
    """Mean length of the long steps of periods, or of the others, over runs."""
    return fmean(
        fmean(
            row["window_ns"]
            for row in records(one.table("steps")[["step", "window_ns"]])
            if row["step"] in one.typical_step.steps and _is_long(one, row["step"]) == long
        )
        for one in side
    )


def _is_long(analysis: Analysis, step: int) -> bool:
    period = analysis.typical_step.period
    return period is not None and period.is_long(step)


def _of_long_steps(comparison: Comparison) -> Iterator[str]:
    """Yield a sentence on steps that are too long to count, of runs that have the same: they are in no typical step."""
    unit = None if comparison.change is None else comparison.change.unit
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        by_steps: dict[tuple[int, ...], list[Analysis]] = {}
        for one in side:
            long = one.steps[one.steps["left_out"] == "long"]
            by_steps.setdefault(tuple(int(step) for step in long["step"]), []).append(one)
        for numbers, runs in by_steps.items():
            if unit is None or not numbers:
                continue
            of = name if len(runs) == len(side) else f"{name} ({', '.join(one.run.name for one in runs)})"
            longest_ns = max(int(one.steps["window_ns"][one.steps["left_out"] == "long"].max()) for one in runs)
            usual_ns = sum(one.typical_step.parts["window_ns"] for one in runs) / len(runs)
            longest, usual = unit.text(longest_ns), unit.number(usual_ns)
            if len(numbers) > 1:
                said = f"Steps {ranges_of(numbers)} of {of} take up to {longest} instead of {usual}, and do not count"
            else:
                said = f"Step {numbers[0]} of {of} takes {longest} instead of {usual}, and does not count"
            yield printable(f"{said}: commtrace summary says why.")


def _names_cause(comparison: Comparison) -> bool:
    cause = _short_cause(comparison)
    return bool(cause) and headline(comparison).endswith(f": {cause}")


def sides(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield A and B, each with the names of its captures and what the first of them is."""
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        names = ", ".join(one.run.name for one in side)
        yield name, printable(f"{names}: {', '.join(facts_of(side[0]))}")


def differences_of_settings(comparison: Comparison) -> list[str]:
    """`device: H100 in A, MI300X in B`, of everything recorded in which the sides differ."""
    known = settings_of(comparison).items()
    return [printable(f"{item}: {a} in A, {b} in B") for item, (a, b) in known if a != b]


def notes_once(comparison: Comparison) -> list[str]:
    """What limits the comparison, and warnings on the runs: each once, with the sides that it is about."""
    about: dict[str, list[str]] = {}
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        for analysis in side:
            of = f"{name} ({analysis.run.name})" if len(side) > 1 else name
            for note in (*analysis.run.notes, *analysis.run.failed, *analysis.run.partial_because):
                about.setdefault(note, []).append(of)
    return [
        *filter(None, [comparison.unlike_kinds]),
        *(f"not known: {why}" for why in comparison.not_known.values()),
        *(printable(f"{listed(names)}: {note}") for note, names in about.items()),
    ]


def decision_fields(comparison: Comparison, limit_frac: float | None = None) -> Row:
    """What a program asks of a comparison: whether steps of B take longer, how sure that is, and what costs it.

    With the most that they may take longer, as a part of A, also whether they do, and the exit code for that.
    """
    step, known = comparison.step, asdict(comparison.decision)
    judged = None if limit_frac is None else comparison.slower_by(limit_frac)
    return {
        "decision": known.pop("outcome").value,
        "headline": headline(comparison),
        "explanation": list(explanation(comparison)),
        **{column: step[column] for column in ("a_ns", "b_ns", "difference_ns")},
        **known,
        "limit_frac": limit_frac,
        "judgement": None if judged is None else judged[0].value,
        "exit_code": None if judged is None else judged[0].exit_code,
        "causes": records(comparison.what_differs),
    }


def without_empty(table: Table) -> PlainTable:
    """Drop the columns without any value."""
    values = plain(table)
    kept = {name: column for name, column in values.columns.items() if any(value is not None for value in column)}
    return PlainTable(kept, values.dtypes, values.whole)


def for_people(table: Table) -> PlainTable:
    """Drop the columns of memory if none was recorded, and intervals that bound nothing."""
    values = plain(table)
    kept = {
        name: column
        for name, column in values.columns.items()
        if "_bytes" not in name or any(value is not None for value in column)
    }
    for most, ends in _BOUNDS.items():
        if most in kept:
            vain = [value is not None and value > _BOUNDED for value in kept[most]]
            for end in ends:
                kept[end] = [None if is_vain else value for value, is_vain in zip(kept[end], vain, strict=True)]
    return PlainTable(kept, values.dtypes, values.whole)


def settings_of(comparison: Comparison) -> dict[str, tuple[str, str]]:
    """Recorded facts that may explain a difference, of both sides; all values if captures of a side differ."""
    facts = [[_of_run(analysis.run) for analysis in side] for side in (comparison.a, comparison.b)]
    items = dict.fromkeys(item for side in facts for run in side for item in run)
    of_a, of_b = ({item: _listed([run.get(item, "not set") for run in side]) for item in items} for side in facts)
    return {item: (of_a[item], of_b[item]) for item in items}


def _of_run(run: Any) -> dict[str, str]:
    known = {"ranks": str(len(run.ranks))}
    for column in ("device_name", "versions", "backend"):
        listed = sorted(set(run.traces[column].dropna()))
        known[column.removesuffix("_name")] = ", ".join(listed) or "not known"
    options = lenient(run.config, RunFile)[0].config
    return known | {key: str(value) for key, value in options.items() if key not in ("out", "run_name")}


def _listed(values: list[str]) -> str:
    return " or ".join(dict.fromkeys(values))
