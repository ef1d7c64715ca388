"""Kinds of steps in words: how many of each, how long those take that are not counted."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import pandas as pd

from ..core.schema import records
from ..render.units import TimeUnit


def kinds_in_words(steps: pd.DataFrame) -> str:
    """`: 24 decode, 3 prefill`, the most first; empty if no step says of what kind it is."""
    counts = steps["kind"].dropna().value_counts()
    return f": {', '.join(f'{count:,} {kind}' for kind, count in counts.items())}" if len(counts) else ""


def a_step(steps: pd.DataFrame) -> str:
    """`A decode step`, after the kind of the steps that count; `A step` if it is not known."""
    kinds = steps["kind"][steps["left_out"].isna()].dropna().unique().tolist()
    if len(kinds) != 1:
        return "A step"
    return f"{'An' if kinds[0][:1] in 'aeio' else 'A'} {kinds[0]} step"


def not_counted(steps: pd.DataFrame, most: int) -> Iterator[str]:
    """Yield a sentence on each step that is not counted, `most` of them; those of other kinds in one for each kind."""
    left_out = steps[steps["left_out"].notna() & (steps["left_out"] != "kind")]
    for row in records(left_out.head(most)):
        yield f"Step {row['step']} is not counted: {row['note']}."
    lengths_of: dict[str | None, list[int]] = {}
    for row in records(steps[steps["left_out"] == "kind"]):
        lengths_of.setdefault(row["kind"], []).append(row["window_ns"])
    for kind, lengths in lengths_of.items():
        unit, several = TimeUnit.of(max(lengths)), len(lengths) > 1
        named = f"{len(lengths):,} {'other' if kind is None else kind} step{'s' if several else ''}"
        takes = f"take {unit.text(median(lengths))} (median)" if several else f"takes {unit.text(lengths[0])}"
        yield f"{named} {takes}, and {'are' if several else 'is'} not counted."
