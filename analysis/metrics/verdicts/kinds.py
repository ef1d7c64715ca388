"""Kinds of steps that do not count: prefill beside decode, or an evaluation beside training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

_EXPOSED = ["exposed_wait_ns", "exposed_transfer_ns", "exposed_unsplit_ns"]


class OtherKind(NamedTuple):
    """Medians over `steps` steps of a kind, None if it is not known, in ms."""

    kind: str | None
    steps: int
    whole_ms: float
    comm_ms: float
    idle_ms: float


def other_kinds(steps: pd.DataFrame) -> Iterator[OtherKind]:
    """Yield each kind in the table `steps` that does not count, first the one that takes most time."""
    others = steps[steps["left_out"] == "kind"]
    of_kinds = [(kind, own) for kind, own in others.groupby("kind", dropna=False)]
    for kind, own in sorted(of_kinds, key=lambda one: -one[1]["window_ns"].sum()):
        medians = (float(ns.median()) / 1e6 for ns in (own["window_ns"], own[_EXPOSED].sum(axis=1), own["idle_ns"]))
        yield OtherKind(None if pd.isna(kind) else str(kind), len(own), *medians)
