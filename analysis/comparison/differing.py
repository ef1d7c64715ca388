"""The few things that really differ between the steps of two sides: what a person has to know of a comparison.

First what the cause of the change names, then candidates that cost one side more beyond the uncertainty of their
prices. Where no price explains the change, parts of a step stand for it, with the intervals of their measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.schema import Row
from .candidates import Candidate
from .causes import PartChange, StepChange

MOST = 5
_MEASURES = {
    "compute_ns": "compute",
    "exposed_comm_ns": "exposed_comm",
    "exposed_transfer_ns": "exposed_transfer",
    "exposed_wait_ns": "exposed_wait",
    "exposed_memory_ns": "exposed_memory",
    "idle_ns": "idle",
}
"""Parts of a typical step, and the measure that is the same in every step."""


def differing(change: StepChange, found: Sequence[Candidate] | None, measures: Mapping[str, Row]) -> list[Row]:
    """Rows like those of `changed_causes`, at most `MOST`; `measures` are rows of `comparison` by measure."""
    rows = [_of_part(part, measures) for part in change.parts]
    if all(part.bounds_ns for part in change.parts):
        named = {row["what"] for row in rows}
        more = (each.row for each in found or () if each.is_sure and each.what not in named)
        rows += (row for row in more if not change.unit.is_zero(row["difference_ns"]))
    return rows[:MOST]


def _of_part(part: PartChange, measures: Mapping[str, Row]) -> Row:
    low, high = part.bounds_ns or _bounds(part, measures.get(_MEASURES.get(part.what, ""), {}))
    a_ns, b_ns = round(part.a_ns), round(part.b_ns)
    return {
        "what": part.what.removesuffix("_ns").replace("_", " ") if part.bounds_ns is None else part.what,
        "a_ns": a_ns,
        "b_ns": b_ns,
        "difference_ns": b_ns - a_ns,
        "difference_low_ns": None if low is None else round(low),
        "difference_high_ns": None if high is None else round(high),
        "cause": part.words,
    }


def _bounds(part: PartChange, measure: Row) -> tuple[float | None, float | None]:
    """The interval of the measure's change, about that of the part: means and medians differ. None if not known."""
    change, low, high = (measure.get(f"change_{end}frac") for end in ("", "low_", "high_"))
    if change is None or low is None or high is None:
        return None, None
    return part.ns + (low - change) * measure["a_ns"], part.ns + (high - change) * measure["a_ns"]
