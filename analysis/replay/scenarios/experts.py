"""Predict a run whose tokens are routed evenly: in each pass, the experts of all ranks of a group take their mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from ...core.arrays import Ints
from ...core.schema import records
from ..playing import Playing
from ..programs import NONE, RankProgram
from .scenario import Scenario


def balanced_experts(passes: pd.DataFrame) -> Scenario:
    """Let the experts of each pass take the mean over the ranks of their group. `passes` are `expert_passes`.

    What a rank computes between dispatch and combine becomes longer or shorter in proportion; where it got no tokens,
    nothing does. Passes that are not known of all ranks of their group stay as they are.
    """
    known = passes[passes["missing"].isna() & passes["expert_ns"].notna()]
    of_ranks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in records(known[["rank", "dispatch_id", "combine_id"]]):
        of_ranks[row["rank"]].append((row["dispatch_id"], row["combine_id"]))

    def change(members: Sequence[Playing]) -> list[Playing]:
        found: dict[int, list[tuple[int, Ints, float]]] = defaultdict(list)
        for number, member in enumerate(members):
            for dispatch, nodes in _between(member.program, of_ranks[member.program.rank]):
                found[dispatch].append((number, nodes, float(member.duration[nodes].sum())))
        durations: list[Any] = [member.duration for member in members]
        changed = set()
        for own in found.values():
            mean = fmean(took for _, _, took in own)
            for number, nodes, took in own:
                if took:
                    if number not in changed:
                        changed.add(number)
                        durations[number] = durations[number].copy()
                    durations[number][nodes] = np.rint(durations[number][nodes] * (mean / took))
        return [
            replace(member, duration=durations[number]) if number in changed else member
            for number, member in enumerate(members)
        ]

    return Scenario(
        "experts of all ranks equally busy",
        "in each pass, experts take the mean over the ranks of their group; exchanges take as long as they do",
        (change,),
        leaves_out=True,  # what goes with tokens, as kernels of uneven tiles, is not in proportion exactly
    )


def _between(program: RankProgram, passes: Sequence[tuple[int, int]]) -> list[tuple[int, Ints]]:
    """What a rank computes in each pass: the number of its dispatch, and activities; none without both exchanges."""
    calls = np.flatnonzero(program.is_comm & (program.collective != NONE))
    place = dict(zip(program.collective[calls].tolist(), calls.tolist(), strict=True))
    computed = np.flatnonzero(~program.is_comm)
    computed = computed[np.argsort(program.start[computed], kind="stable")]
    start = program.start[computed]
    found: list[tuple[int, Ints]] = []
    for dispatch, combine in passes:
        if dispatch in place and combine in place:
            begin, end = program.end[place[dispatch]], program.start[place[combine]]
            found.append((dispatch, computed[np.searchsorted(start, begin) : np.searchsorted(start, end)]))
    return found
