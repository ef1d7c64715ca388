"""The timeline of a run: its content, and the bytes of its file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pandas as pd

from ..core.schema import records
from ..errors import NothingMeasured
from ..metrics.device.idle_pieces import idle_pieces
from ..results.analysis import Analysis
from ..tables.critical_path import path
from ..tables.queue_depth import launch_queues
from ..tables.values import NO_TIMES, host_tables
from . import colours
from .arrows import arrows
from .by_rank import timeline_by_rank
from .cpus import cpu_work, shown_cpus
from .drawn import Sums, Timeline, begun_ns, moved_in
from .overall import about, counters_and_notes, has_content, title
from .packets import Writer
from .ranks import lines_of_open, rank_groups
from .slices import Group, Integers, Numbers, Slices, Texts, Track
from .tables import Tables, integers_in, names_in, shown_cycles


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
    tables = Tables(
        name=run.name,
        calls=analysis.calls,
        participation=analysis.participation,
        collectives=analysis.collectives,
        lateness=analysis.lateness,
        clocks=analysis.clocks,
        opened=next(iter([*late, *cpus.ranks]), None),
        headline=(first[0]["headline"] or "") if first else "",
        notes=(cpus.note,),
    )
    # With details, the critical path needs all of the run in this process anyway.
    spread = None if run.details else run.spread
    if spread is None:
        tables = replace(
            tables,
            activities=run.activities,
            path=analysis.of(path).pieces if run.details else None,
            queues=analysis.of(launch_queues),
            idle=idle_pieces(run.activities, analysis.of(host_tables)),
            cpus=cpu_work(run.activities, analysis.of(host_tables), cpus.ranks),
        )
    if ranks is not None:
        tables = tables.of_ranks(ranks)
    if steps is not None:
        tables = tables.of_steps(steps)
    return timeline_of(tables) if spread is None else timeline_by_rank(tables, shown, spread)


def timeline_of(tables: Tables) -> Timeline:
    """Draw the timeline of these tables. Raises NothingMeasured if no activity is shown."""
    arrows_of_run = arrows(tables)
    ranks = list(rank_groups(tables, arrows_of_run))
    if not ranks:
        raise NothingMeasured(f"{tables.name}: the traces show no device activity that a timeline could show")
    path = _critical_path(tables)
    counters, notes = counters_and_notes(tables, arrows_of_run)
    all_tracks = [*path, *(track for group in (*ranks, counters) for track in group.all_tracks())]
    tracks = [track for track in all_tracks if len(track.content)]
    zero_ns = min(begun_ns(track) for track in tracks)
    slices = [track.content for track in tracks if isinstance(track.content, Slices)]
    sums = Sums(sum(map(len, slices)), sum(map(moved_in, ranks)))
    opened = next((group for group in ranks if _is_of(group, tables.opened)), ranks[0])
    closed = [group for group in ranks if group is not opened]
    lines: list[Track | Group] = [*path, *lines_of_open(opened), *closed]
    last = (counters,) if has_content(counters) else ()
    across = about(tables, zero_ns, max(int(each.end_ns.max()) for each in slices), sums.moved, notes)
    writer = Writer(zero_ns)
    parts = writer.group(Group(tables.name, (*lines, *last), across, title(tables, zero_ns, notes)))
    return Timeline(tuple(sums.counted((writer.begun(), *parts))), zero_ns, sums, notes)


def _is_of(group: Group, rank: int | None) -> bool:
    return group.name.split(" ")[1] == str(rank)


def _critical_path(tables: Tables) -> list[Track]:
    """The critical path over all ranks, piece by piece; empty if not known."""
    if tables.path is None or not len(pieces := tables.path[tables.in_steps(tables.path)]):
        return []
    shades = Texts(*_shades_of(pieces["kind"]))
    labels = "rank " + pieces["rank"].astype("string") + ": " + pieces["name"].fillna(pieces["kind"]).astype("string")
    notes: dict[str, Texts | Integers] = {"kind": names_in(pieces["kind"])}
    notes |= {key: integers_in(pieces[key]) for key in ("step", "rank", "activities", "waiting_rank")}
    start_ns = pieces["start_ns"].to_numpy(dtype=np.int64)
    end_ns = start_ns + pieces["dur_ns"].to_numpy(dtype=np.int64)
    return [Track("critical path", Slices(start_ns, end_ns, names_in(labels), notes, shades=shades))]


def _shades_of(kinds: pd.Series[str]) -> tuple[Numbers, tuple[str, ...]]:
    codes, values = pd.factorize(kinds)
    return codes.astype(np.int64), tuple(colours.OF_LINKS[kind] for kind in values)
