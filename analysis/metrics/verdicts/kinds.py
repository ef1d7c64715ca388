"""Kinds of steps in sentences: prefill and decode, or training and an evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from .culprits import length
from .thresholds import MENTIONED_FROM

_EXPOSED = ["exposed_wait_ns", "exposed_transfer_ns", "exposed_unsplit_ns"]


def a_step(kind: str | None) -> str:
    """`A decode step`, `An eval step`; `A step` if its kind is not known."""
    return "A step" if kind is None else f"{'An' if kind[:1] in 'aeio' else 'A'} {kind} step"


def other_kinds(steps: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on each kind in the table `steps` that does not count, first on that which takes most time.

    `A decode step takes 12.0 ms: 3.0 ms exposed communication, 1.0 ms idle (medians, n = 40).`
    """
    others = steps[steps["left_out"] == "kind"]
    of_kinds = [(kind, own) for kind, own in others.groupby("kind", dropna=False)]
    for kind, own in sorted(of_kinds, key=lambda one: -one[1]["window_ns"].sum()):
        whole_ms, comm_ms, idle_ms = (
            float(ns.median()) / 1e6 for ns in (own["window_ns"], own[_EXPOSED].sum(axis=1), own["idle_ns"])
        )
        parts = sorted(((comm_ms, "exposed communication"), (idle_ms, "idle")), reverse=True)
        said = ", ".join(f"{length(ms)} {what}" for ms, what in parts if ms > MENTIONED_FROM * whole_ms)
        named = "A step of no known kind" if pd.isna(kind) else a_step(str(kind))
        medians = "medians, " if len(own) > 1 else ""
        yield f"{named} takes {length(whole_ms)}{said and f': {said}'} ({medians}n = {len(own):,})."
