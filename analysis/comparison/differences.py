"""Differences between the steps of two sides: size, certainty, and whether they matter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from ..core.schema import Row
from .pairing import paired, shared_steps
from .significance import (
    LEVEL,
    STEPS_NEEDED,
    Error,
    Shift,
    SpreadOfRuns,
    between_captures,
    between_cycles,
    between_pairs,
    between_two,
    block_medians,
    corrected,
    error_of_steps,
    pooled_spread,
)
from .step_values import Capture, Key, Values, midmean

PerCapture = Sequence[Capture]
"""Every capture of a side."""

# Kernels and operators below this part of the device time on both sides are listed, but not tested: every additional
# test makes the others less powerful.
WORTH_A_TEST = 0.01
# Two captures of one configuration differ by this part of a step in some kernel or other: memory is placed differently.
MATTERS = 0.01
PAIRED = "paired by number"
OTHER_WORK = "the n-th steps of captures of one side do the same work, but not those of A and B"
_FOR_JUDGING = ("exceeds", "identical", "most_frac")
# With one degree of freedom a bound may lie beyond every number: more than this is not told apart.
_MOST_LOG = math.log(1e15)


@dataclass(frozen=True)
class Allowance:
    """Difference between two captures of one configuration that means nothing.

    `least` is the smallest difference that matters. Captures that are runs of their own (`separate`) show how much runs
    differ, as soon as one side has several. What else is known of it, or assumed, is `runs`: a standard deviation of
    the length `part`, or if that is None of the value itself, which is then compared on a logarithmic scale: runs
    differ by factors.
    """

    runs: SpreadOfRuns
    separate: bool = False
    least: float = 0.0
    part: float | None = None

    def on_logs(self, a: PerCapture, b: PerCapture) -> bool:
        """Whether to compare logarithms; not if a value is 0."""
        return self.part is None and min(float(capture.values.min()) for capture in (*a, *b)) > 0

    def scaled(self, a: PerCapture, b: PerCapture) -> SpreadOfRuns:
        """The spread of runs in the unit of the values, or of their logarithms if those are compared."""
        if self.on_logs(a, b):
            return self.runs
        unit = max(_middle(a), _middle(b)) if self.part is None else self.part
        return self.runs._replace(deviation=self.runs.deviation * unit, error=self.runs.error * unit)


def compared(a: PerCapture, b: PerCapture, allowance: Allowance, *, unit: str = "ns") -> Row:
    """Means over captures of the midmean of the steps, spreads, and difference; NA for a side without values.

    Where steps pair, those that every capture has are compared, and no others: they do other work.
    """
    a, b = [values for values in a if len(values)], [values for values in b if len(values)]
    if not a or not b:
        return _middles_and_spreads(a, b, unit)
    runs, on_logs = allowance.scaled(a, b), allowance.on_logs(a, b)
    pairs = paired(_scaled(a, on_logs), _scaled(b, on_logs))
    if pairs is not None:
        shared = shared_steps([*a, *b])
        a, b = ([capture.only(shared) for capture in side] for side in (a, b))
    of_a, of_b = pairs or ([capture.values for capture in _scaled(side, on_logs)] for side in (a, b))
    in_common: list[Error] = []
    if allowance.separate and max(len(of_a), len(of_b)) > 1:
        in_common = [] if pairs is not None else _errors_in_common(_scaled(a, on_logs), _scaled(b, on_logs))
        change = between_captures(_middles(of_a), _middles(of_b), runs, in_common)
    else:
        change = _shift(of_a, of_b, runs, pair=pairs is not None)
    difference, spread = _middle(b) - _middle(a), max(_spread(of_a) or 0.0, _spread(of_b) or 0.0)
    if change is not None:  # of many captures, the demand that it exceed the spreads is the greater one
        change = change._replace(seen=max(change.seen, spread + change.most - change.middle))
    row: Row = {
        f"difference_{unit}": round(difference),
        "note": _note(a, b, PAIRED if pairs is not None else OTHER_WORK if in_common else None, change),
        "identical": len(np.unique(np.concatenate([capture.values for capture in (*a, *b)]))) == 1,
        "exceeds": change is not None and abs(change.middle) > spread and abs(difference) >= allowance.least,
    }
    start = _middle(_scaled(a, on_logs))
    shift = _middle(_scaled(b, on_logs)) - start if change is None else change.middle
    return _middles_and_spreads(a, b, unit) | row | _changes(shift, change, None if on_logs else start)


def judged(rows: Sequence[Row]) -> list[Row]:
    """Test rows as one family: corrected p-values, and whether each difference is significant.

    Rows without a p-value stay as they are; if all steps of both sides are equal, there is nothing to test.
    """
    tested = [row for row in rows if row.get("p_value") is not None and not row["identical"]]
    p_values = dict(zip(map(id, tested), corrected([row["p_value"] for row in tested]), strict=True))
    result = []
    for row in rows:
        given = {key: value for key, value in row.items() if key not in _FOR_JUDGING}
        if row.get("identical") and row.get("p_value") is not None:
            given["significant"] = False
        if id(row) in p_values:
            p_value = p_values[id(row)]
            given |= {"p_value": p_value, "significant": bool(p_value <= LEVEL and row["exceeds"])}
        result.append(given)
    return result


def surely_within(row: Row, limit_frac: float) -> bool:
    """Whether B takes at most this fraction longer; at most one in ten larger changes is missed.

    The change is within the limit nine times in ten: what these captures would show need not be, as a run that is
    much faster is not slower, however little it can be known by how much.
    """
    return bool(row["most_frac"] <= limit_frac)


def side_by_side(
    a: Mapping[Key, PerCapture], b: Mapping[Key, PerCapture], names: Sequence[str], allowance: Mapping[str, Allowance]
) -> list[Row]:
    """One row per kernel, operator or region, the largest difference first; those small on both sides are not tested.

    `allowance` is by kind, with `""` for all others and for what has none.
    """
    nothing = [
        [replace(capture, values=capture.values * 0) for capture in next(iter(side.values()), [])] for side in (a, b)
    ]
    whole = [sum(_total(captures) for captures in side.values()) for side in (a, b)]
    rows, small = [], []
    for key in dict.fromkeys([*a, *b]):
        of_a, of_b = a.get(key, nothing[0]), b.get(key, nothing[1])
        named: Row = dict(zip(names, key, strict=True))
        row = named | compared(of_a, of_b, allowance.get(named.get("kind") or "", allowance[""]))
        parts = [
            _total(captures) / total if total else 0.0 for captures, total in zip((of_a, of_b), whole, strict=True)
        ]
        if max(parts) >= WORTH_A_TEST:
            rows.append(row)
        else:
            note = f"not tested: less than {WORTH_A_TEST:.0%} of the device time of either side"
            small.append(row | {"p_value": None, "note": note})
    every = judged([*rows, *small])
    return sorted(every, key=_most_different)


def _middles_and_spreads(a: PerCapture, b: PerCapture, unit: str) -> Row:
    row: Row = {"steps_a": sum(map(len, a)), "steps_b": sum(map(len, b)), "captures_a": len(a), "captures_b": len(b)}
    for side, captures in (("a", a), ("b", b)):
        if captures:
            row[f"{side}_{unit}"] = round(_middle(captures))
            if unit == "ns":
                spread = _spread([capture.values for capture in captures])
                row[f"spread_{side}_ns"] = spread and round(spread)
    return row


def _shift(a: Sequence[Values], b: Sequence[Values], runs: SpreadOfRuns, *, pair: bool) -> Shift | None:
    """The shift from A to B, cycles of a run each; None for one of each with too few steps."""
    if len(a) > 1 or len(b) > 1:
        return between_cycles(_middles(a), _middles(b), runs)
    return (between_pairs if pair else between_two)(a[0], b[0], runs)


def _errors_in_common(a: PerCapture, b: PerCapture) -> list[Error]:
    """By how much each side is off since all its captures are of the same steps, but those of the other side are not.

    Only where the captures of a side show that steps of one number do the same work, which their spread leaves out.
    Where those of the other side do not, its steps show what another choice of steps does: if they are steady, what
    goes with the number here is what changed.
    """
    does_pair = [len(side) > 1 and paired(side, []) is not None for side in (a, b)]
    if not any(does_pair):
        return []
    errors = []
    for number, (side, other) in enumerate(((a, b), (b, a))):
        if len(other) > 1 and not does_pair[1 - number]:
            each = [error_of_steps(capture.values) for capture in other]
            errors.append(Error(math.sqrt(fmean(one.size**2 for one in each)), sum(one.freedom for one in each)))
        elif len(side) == 1 or does_pair[number]:
            errors.append(
                error_of_steps(np.mean([capture.only(shared_steps(side)).values for capture in side], axis=0))
            )
    return errors


def _note(a: PerCapture, b: PerCapture, remark: str | None, shift: Shift | None) -> str | None:
    """Why the shift is not known; else what is worth a remark on how it was computed."""
    if shift is None:
        few = f"too few steps to tell: {len(a[0])} and {len(b[0])}"
        return f"{few}; each side needs {STEPS_NEEDED}, or several captures"
    return remark


def _changes(shift: float, bounds: Shift | None, start: float | None) -> Row:
    """The change as a fraction of A, its interval and p-value, and the smallest visible change.

    Shifts are in the unit of `start`, the value of A; of logarithms where that is None.
    """

    def change(of: float) -> float:
        if start is None:
            return math.expm1(min(of, _MOST_LOG))
        return max(of / start, -1.0)  # no time is less than none

    row: Row = {} if bounds is None else {"p_value": bounds.p_value}
    if start == 0:
        return row
    row["change_frac"] = change(shift)
    if bounds is not None:
        row |= {"change_low_frac": change(bounds.low), "change_high_frac": change(bounds.high)}
        row |= {"seen_frac": change(bounds.seen), "most_frac": change(bounds.most)}
    return row


def _scaled(captures: PerCapture, on_logs: bool) -> PerCapture:
    return [replace(capture, values=np.log(capture.values)) for capture in captures] if on_logs else captures


def _most_different(row: Row) -> tuple[int, int]:
    return -abs(row.get("difference_ns") or 0), -max(row.get("a_ns") or 0, row.get("b_ns") or 0)


def _middles(captures: Sequence[Values]) -> Values:
    return np.array([midmean(values) for values in captures])


def _middle(captures: PerCapture) -> float:
    """Mean over captures of the midmean of the steps."""
    return float(_middles([capture.values for capture in captures]).mean())


def _spread(captures: Sequence[Values]) -> float | None:
    """Standard deviation over captures; over blocks of steps for a single one; None if too few."""
    values = _middles(captures) if len(captures) > 1 else block_medians(captures[0])
    return pooled_spread(values) if len(values) > 1 else None


def _total(captures: PerCapture) -> float:
    return sum(float(capture.values.sum()) for capture in captures)
