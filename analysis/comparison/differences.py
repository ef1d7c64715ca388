"""Values of steps of two sides -> rows that say how much B differs from A, how certain that is, and if it matters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.schema import Row
from .pairing import paired
from .significance import (
    LEVEL,
    STEPS_NEEDED,
    Shift,
    between_captures,
    between_pairs,
    between_two,
    block_medians,
    corrected,
    pooled_spread,
)
from .step_values import Capture, Key, Values

PerCapture = Sequence[Capture]
"""Every capture of a side."""

# Kernels and operators below this part of the device time on both sides are listed, but not tested: every additional
# test makes the others less powerful.
WORTH_A_TEST = 0.01
# Two captures of one configuration differ by this part of a step in some kernel or other: memory is placed differently.
MATTERS = 0.01


@dataclass(frozen=True)
class Allowance:
    """How much two captures of one configuration may differ without meaning anything.

    `least` is the smallest difference that matters. Captures that are runs of their own (`separate`) show how much runs
    differ, as soon as one side has several. Others do not, so it is assumed: `run_spread_frac`, as a standard
    deviation, of the length `part`, or if that is None of the value itself, which is then compared on a logarithmic
    scale: runs differ by factors.
    """

    run_spread_frac: float
    separate: bool = False
    least: float = 0.0
    part: float | None = None

    def on_logs(self, a: PerCapture, b: PerCapture) -> bool:
        """Whether logarithms are compared; not those of 0."""
        return self.part is None and min(float(one.values.min()) for one in (*a, *b)) > 0

    def assumed(self, a: PerCapture, b: PerCapture) -> float:
        """The assumed spread of runs, in the unit of the values; of their logarithms where those are compared."""
        if self.separate and max(len(a), len(b)) > 1:
            return 0.0
        if self.on_logs(a, b):
            return self.run_spread_frac
        return self.run_spread_frac * (max(_middle(a), _middle(b)) if self.part is None else self.part)


def compared(a: PerCapture, b: PerCapture, allowance: Allowance, *, unit: str = "ns") -> Row:
    """Means over the captures of the median step, their spreads, and the difference; NA for a side without values."""
    a, b = [values for values in a if len(values)], [values for values in b if len(values)]
    row: Row = {"steps_a": sum(map(len, a)), "steps_b": sum(map(len, b)), "captures_a": len(a), "captures_b": len(b)}
    spreads = []
    for side, captures in (("a", a), ("b", b)):
        if captures:
            spread = _spread(captures)
            spreads.append(spread or 0.0)
            row[f"{side}_{unit}"] = round(_middle(captures))
            row |= {f"spread_{side}_ns": spread and round(spread)} if unit == "ns" else {}
    if not a or not b:
        return row
    difference = _middle(b) - _middle(a)
    row |= {
        f"difference_{unit}": round(difference),
        "identical": len(np.unique(np.concatenate([one.values for one in (*a, *b)]))) == 1,
        "exceeds": abs(difference) > max(spreads) and abs(difference) >= allowance.least,
    }
    return row | _tested(a, b, allowance)


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows, tested as one family: with corrected p-values, and whether each difference is significant.

    Rows without a p-value stay as they are; if all steps of both sides are equal, there is nothing to test.
    """
    tested = [row for row in rows if row.get("p_value") is not None and not row["identical"]]
    p_values = dict(zip(map(id, tested), corrected([row["p_value"] for row in tested]), strict=True))
    result = []
    for row in rows:
        given = {key: value for key, value in row.items() if key not in ("exceeds", "identical")}
        if row.get("identical") and row.get("p_value") is not None:
            given["significant"] = False
        if id(row) in p_values:
            p_value = p_values[id(row)]
            given |= {"p_value": p_value, "significant": bool(p_value <= LEVEL and row["exceeds"])}
        result.append(given)
    return result


def side_by_side(
    a: Mapping[Key, PerCapture], b: Mapping[Key, PerCapture], names: Sequence[str], allowance: Mapping[str, Allowance]
) -> list[Row]:
    """A row per kernel or operator of either side, the largest difference first; those small on both are not tested.

    `allowance` is by kind, with `""` for all others.
    """
    nothing = [[replace(one, values=one.values * 0) for one in next(iter(side.values()), [])] for side in (a, b)]
    whole = [sum(_total(captures) for captures in side.values()) for side in (a, b)]
    rows, small = [], []
    for key in dict.fromkeys([*a, *b]):
        of_a, of_b = a.get(key, nothing[0]), b.get(key, nothing[1])
        named: Row = dict(zip(names, key, strict=True))
        row = named | compared(of_a, of_b, allowance.get(named["kind"] or "", allowance[""]))
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


def _tested(a: PerCapture, b: PerCapture, allowance: Allowance) -> Row:
    """The change, its interval and p-value, and which change would be seen; or why they are not known."""
    assumed, on_logs = allowance.assumed(a, b), allowance.on_logs(a, b)
    if on_logs:
        a, b = _logs(a), _logs(b)
    middle = _middle(a)
    found, note = _shift(a, b, assumed)
    tested: Row = {} if note is None else {"note": note}
    if found is not None:
        tested["p_value"] = found.p_value
    if not on_logs and not middle:
        return tested

    def change(shift: float) -> float:
        return math.expm1(shift) if on_logs else max(shift / middle, -1.0)  # no time is less than none

    tested["change_frac"] = change(_middle(b) - middle)
    if found is None:
        return tested
    low, high, seen = change(found.low), change(found.high), change(found.seen)
    return tested | {"change_low_frac": low, "change_high_frac": high, "seen_frac": seen}


def _shift(a: PerCapture, b: PerCapture, assumed: float) -> tuple[Shift | None, str | None]:
    """How far B is from A, and a note on how that was found, or on why it is not known."""
    alone = len(a) == len(b) == 1
    pairs = paired(a, b)
    if pairs is not None:
        (of_a, of_b), note = pairs, "paired by number"
        if alone:
            return between_pairs(of_a[0], of_b[0], assumed), note
        return between_captures(_medians_of(of_a), _medians_of(of_b), assumed), note
    if not alone:
        return between_captures(_medians(a), _medians(b), assumed), None
    found = between_two(a[0].values, b[0].values, assumed)
    if found is None:
        few = f"too few steps to tell: {len(a[0])} and {len(b[0])}, needs {STEPS_NEEDED} each, or several captures"
        return None, few
    return found, None


def _logs(captures: PerCapture) -> list[Capture]:
    return [replace(one, values=np.log(one.values)) for one in captures]


def _most_different(row: Row) -> tuple[int, int]:
    return -abs(row.get("difference_ns") or 0), -max(row.get("a_ns") or 0, row.get("b_ns") or 0)


def _medians(captures: PerCapture) -> Values:
    return _medians_of([one.values for one in captures])


def _medians_of(captures: Sequence[Values]) -> Values:
    return np.array([np.median(values) for values in captures])


def _middle(captures: PerCapture) -> float:
    """The mean over the captures of the median over their steps."""
    return float(_medians(captures).mean())


def _spread(captures: PerCapture) -> float | None:
    """Standard deviation over the captures; of a single one over its blocks of steps; None for too few of those."""
    values = _medians(captures) if len(captures) > 1 else block_medians(captures[0].values)
    return pooled_spread(values) if len(values) > 1 else None


def _total(captures: PerCapture) -> float:
    return sum(float(one.values.sum()) for one in captures)
