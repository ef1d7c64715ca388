"""The timeline of a run: what it shows."""

from __future__ import annotations

from collections.abc import Collection

from ...common.wording import ranges_of
from ..core.schema import Row, records
from ..errors import NothingMeasured
from ..metrics.roles.table import with_roles
from ..results.analysis import Analysis
from ..tables.critical_path import path
from ..tables.replay import is_playable
from ..tables.values import NO_TIMES
from .by_rank import WhatCpusDid, timeline_by_rank
from .cpus import shown_cpus
from .drawn import Timeline
from .on_path import by_annotation
from .ranks import in_words
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
        collectives=with_roles(analysis.collectives, analysis.table("groups")),
        lateness=analysis.lateness,
        clocks=analysis.clocks,
        opened=next(iter([*late, *cpus.ranks]), None),
        path=by_annotation(analysis.of(path).pieces, analysis) if is_played else None,
        headline=(first[0]["headline"] or "").replace("`", "") if first else "",
        reasons=_reasons(analysis, first[0]) if first else {},
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


_MOST_TO_TRY = 3


def _reasons(analysis: Analysis, run: Row) -> dict[str, str]:
    """The verdict, what is behind it, and what to try, as a person reads them beside the headline."""
    tried = [row for row in records(analysis.table("remedies")) if row["gain_ns"]][:_MOST_TO_TRY]
    gains = [
        f"{row['what']}: {'at most ' if row['is_bound'] else ''}{in_words(row['gain_ns'])} a step" for row in tried
    ]
    return {
        "verdict": run["verdict"] or "",
        "why": run["why"] or "",
        "not known": run["not_known"] or "",
        "what to try": "; ".join(gains),
    }
