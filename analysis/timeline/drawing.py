"""The timeline of a run: its content, and the bytes of its file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ..errors import NothingMeasured
from ..results.analysis import NO_TIMES, Analysis
from .arrows import arrows
from .counters import bus_bandwidths, ranks_waiting
from .lanes import outermost
from .packets import Writer
from .ranks import rank_groups
from .slices import Group, Integers, Slices, Texts, Track
from .tables import Tables, integers_in, names_in


@dataclass(frozen=True)
class Timeline:
    """A timeline in Perfetto's format: the parts of its file, in order.

    `zero_ns` is the time on the common clock from which it counts, in ns since the epoch. `moved` are slices that
    overlap others of their stream, and stand on lanes of their own.
    """

    parts: tuple[bytes, ...]
    zero_ns: int
    slices: int
    moved: int


def run_timeline(
    analysis: Analysis, *, steps: Collection[int] | None = None, ranks: Collection[int] | None = None
) -> Timeline:
    """The timeline of a run; of some steps or ranks only, where they are given.

    Raises NothingMeasured where there is nothing to show, or one of these ranks did nothing.
    """
    run = analysis.run
    if not run.has_starts:
        raise NothingMeasured(f"{run.name}: {NO_TIMES}, so there is no timeline to draw")
    tables = Tables(
        name=run.name,
        activities=run.activities,
        calls=analysis.calls,
        participation=analysis.participation,
        collectives=analysis.collectives,
        lateness=analysis.lateness,
        clocks=analysis.clocks,
        path=analysis.path.pieces if run.details else None,
        queues=analysis.launch_queues,
    )
    if ranks is not None:
        tables = tables.of_ranks(ranks)
    return timeline_of(tables if steps is None else tables.of_steps(steps))


def timeline_of(tables: Tables) -> Timeline:
    """Draw the timeline of these tables. Raises NothingMeasured if no activity is shown."""
    arrows_of_run = arrows(tables)
    ranks = list(rank_groups(tables, arrows_of_run))
    if not ranks:
        raise NothingMeasured(f"{tables.name}: the traces show no device activity that a timeline could show")
    member = tables.collectives["collective_id"].isin(arrows_of_run.calls["collective_id"])
    path = _critical_path(tables)
    counters = [*ranks_waiting(arrows_of_run.calls), *bus_bandwidths(tables.collectives[member])]
    tracks = [track for group in ranks for track in group.tracks]
    zero_ns = min(_begun_ns(track) for track in [*tracks, *path, *counters])
    shown = [track.content for track in [*path, *tracks] if isinstance(track.content, Slices)]
    moved = sum(_moved(group) for group in ranks)
    about = _about(tables.name, zero_ns, max(int(each.end_ns.max()) for each in shown), moved)
    writer = Writer(zero_ns)
    groups = [Group("all ranks", (about, *path, *counters)), *ranks]
    parts = [part for place, group in enumerate(groups) for part in writer.group(group, place)]
    return Timeline((writer.begun(), *parts), zero_ns, sum(map(len, shown)), moved)


def _begun_ns(track: Track) -> int:
    """Start of the first item on a track, in ns."""
    times = track.content.start_ns if isinstance(track.content, Slices) else track.content.time_ns
    return int(times.min())


def _moved(group: Group) -> int:
    """Number of slices that are not on the first lane, with nested ones counted once."""
    seen: set[str] = set()
    moved = 0
    for track in group.tracks:
        if track.name in seen and isinstance(track.content, Slices):
            moved += outermost(track.content.start_ns, track.content.end_ns)
        seen.add(track.name)
    return moved


def _critical_path(tables: Tables) -> list[Track]:
    """The critical path over all ranks, piece by piece; empty if not known."""
    if tables.path is None or not len(pieces := tables.path[tables.in_steps(tables.path)]):
        return []
    labels = "rank " + pieces["rank"].astype("string") + ": " + pieces["name"].fillna(pieces["kind"]).astype("string")
    notes: dict[str, Texts | Integers] = {"kind": names_in(pieces["kind"])}
    notes |= {key: integers_in(pieces[key]) for key in ("step", "rank", "activities", "waiting_rank")}
    start_ns = pieces["start_ns"].to_numpy(dtype=np.int64)
    end_ns = start_ns + pieces["dur_ns"].to_numpy(dtype=np.int64)
    return [Track("critical path", Slices(start_ns, end_ns, names_in(labels), notes))]


def _about(name: str, zero_ns: int, end_ns: int, moved: int) -> Track:
    """Facts about the whole timeline, shown along all of it."""
    begun, ended = (np.array([time], dtype=np.int64) for time in (zero_ns, end_ns))
    notes = {"zero_ns": Integers.same(zero_ns), "slices_on_further_lanes": Integers.same(moved)}
    title = f"{name}: 0 here is {zero_ns:,} ns on the common clock"
    return Track("about", Slices(begun, ended, Texts.same(title, 1), notes))
