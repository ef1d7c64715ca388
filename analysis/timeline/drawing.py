"""The timeline of a run: what it shows."""

from __future__ import annotations

from collections.abc import Collection

from ...common.wording import ranges_of
from ..core.schema import records
from ..errors import NothingMeasured
from ..results.analysis import Analysis
from ..tables.critical_path import path
from ..tables.replay import is_playable
from ..tables.values import NO_TIMES
from .by_rank import WhatCpusDid, timeline_by_rank
from .cpus import shown_cpus
from .drawn import Timeline
from .tables import Tables, shown_cycles


def run_timeline(
    analysis: Analysis, *, steps: Collection[int] | None = None, ranks: Collection[int] | None = None
) -> Timeline:
    """The timeline of a run; of some steps or ranks only, where they are given.

    Raises NothingMeasured where there is nothing to show, or one of these ranks did nothing.
    """
    run = analysis.run
    if not run.has_starts:
        raise NothingMeasured(f"{run.name}: {NO_TIMES}, so there is no timeline to draw")
    shown = shown_cycles(run.name, run.tables.ran, steps=steps, ranks=ranks)
    drawn = run.ranks if ranks is None else [rank for rank in run.ranks if rank in ranks]
    cpus = shown_cpus(analysis, drawn)
    late = [rank for rank in analysis.culprits if rank in drawn]
    first = records(analysis.verdicts.head(1))
    is_played = analysis.of(is_playable)
    played = ranges_of(analysis.part.run.steps) if is_played and analysis.part_note else None
    tables = Tables(
        name=run.name,
        calls=analysis.calls,
        participation=analysis.participation,
        collectives=analysis.collectives,
        lateness=analysis.lateness,
        clocks=analysis.clocks,
        opened=next(iter([*late, *cpus.ranks]), None),
        path=analysis.of(path).pieces if is_played else None,
        headline=(first[0]["headline"] or "") if first else "",
        notes=(
            cpus.note,
            *([f"the critical path is that of steps {played}, which were played again"] if played else []),
        ),
    )
    if ranks is not None:
        tables = tables.of_ranks(ranks)
    if steps is not None:
        tables = tables.of_steps(steps)
    return timeline_by_rank(tables, shown, run.tables, WhatCpusDid(run.details, run.has_gc, frozenset(cpus.ranks)))
