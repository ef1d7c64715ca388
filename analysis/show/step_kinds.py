"""Steps that are not like most others in words: how many of each kind, and those that do not count."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from ...common.wording import ranges_of
from ..core.escaping import printable
from ..core.schema import records
from ..metrics.typical_step import EDGES
from ..metrics.verdicts.kinds import other_kinds
from ..metrics.verdicts.words import other_kind


def kinds_in_words(steps: pd.DataFrame) -> str:
    """`: 24 decode, 3 prefill`, the most first; empty if no step says of what kind it is."""
    counts = steps["kind"].dropna().value_counts()
    return f": {', '.join(f'{count:,} {kind}' for kind, count in counts.items())}" if len(counts) else ""


def not_counted(steps: pd.DataFrame, most: int) -> Iterator[str]:
    """Yield a sentence on each step that is left out, `most` of them, then on each other kind of steps.

    How much of a step at the edge of the trace is missing says the table.
    """
    left_out = steps[steps["left_out"].notna() & (steps["left_out"] != "kind")]
    for row in records(left_out[left_out["left_out"] != "period"].head(most)):
        why = row["note"].partition(": ")[0] if row["left_out"] in EDGES else row["note"]
        yield f"Step {row['step']} is left out: {why}."
    if len(in_part := left_out[left_out["left_out"] == "period"]):
        are = "s {} are" if len(in_part) > 1 else " {} is"
        which = are.format(ranges_of(in_part["step"].tolist()))
        yield f"Step{which} left out: {records(in_part)[0]['note']}."
    yield from (printable(other_kind(kind)) for kind in other_kinds(steps))
