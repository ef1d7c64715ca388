"""Which steps of a run are played again: all of them, or of many some that follow each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.declaring import Later, each_rank, value
from ..core.kinds import KINDS
from .run_reading import ReadPart, cut_part

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.periods import Period
    from ..metrics.typical_step import TypicalStep
    from ..run.file_tables import TraceFile
    from ..run.run import Run

_LEAST_STEPS = 2
"""Of one step alone nobody could say by how much it differs from others."""


class Again(NamedTuple):
    """How to read some steps of a run as an Analysis of their own, and how many activities to play at most.

    Files that were cut to these steps are given by their paths, and taken out; all others are read once more.
    """

    read: Callable[[tuple[int, ...], dict[Path, ReadPart]], Any]
    most_activities: int


@value
def played_steps(
    run: Run,
    again: Again | None,
    whole: bool,
    steps: Later[pd.DataFrame],
    recorded_breakdown: Later[pd.DataFrame],
    typical_step: Later[TypicalStep],
) -> tuple[int, ...]:
    """The steps that are played, of a run whose other steps are not; none where all are played, or none can be cut."""
    if again is None or whole or not run.has_starts or not len(steps()):
        return ()
    lengths_ns = dict(zip(steps()["step"].tolist(), steps()["window_ns"].tolist(), strict=True))
    ran = int(recorded_breakdown()[[f"n_{kind}" for kind in KINDS]].to_numpy().sum())
    most = again.most_activities * len(lengths_ns) // max(ran, 1)
    typical = typical_step()
    played = steps_to_play(lengths_ns, typical.steps, most, typical.period)
    return () if len(played) == len(lengths_ns) else played


@value
@each_rank
def cut_files(whole_files: Sequence[TraceFile], played_steps: tuple[int, ...]) -> dict[Path, ReadPart]:
    """What reading the files of a run gives if only the played steps are chosen; of those that a visit has at hand."""
    return {file.path: cut_part(file, played_steps) for file in whole_files} if played_steps else {}


def steps_to_play(
    lengths_ns: Mapping[int, float], counted: Collection[int], most: int, period: Period | None = None
) -> tuple[int, ...]:
    """No more than `most` steps that follow each other, those most like all that are `counted`; at least two.

    That is: with most counted steps among them, and of these with a mean nearest to that of all. `lengths_ns` are those
    of all recorded steps. Where these repeat, it is whole periods, one at least.
    """
    steps = sorted(lengths_ns)
    size = max(most, _LEAST_STEPS)
    if period is not None:
        size = max(most // period.steps, 1) * period.steps
    if size >= len(steps):
        return tuple(steps)
    counts = np.isin(steps, list(counted)) if counted else np.ones(len(steps), dtype=bool)
    lengths = np.where(counts, [lengths_ns[step] for step in steps], 0.0)
    many, sums = (np.lib.stride_tricks.sliding_window_view(values, size).sum(axis=1) for values in (counts, lengths))
    off = np.abs(sums / np.maximum(many, 1) - lengths.sum() / counts.sum())
    begin = int(np.lexsort((off, -many))[0])
    return tuple(steps[begin : begin + size])
