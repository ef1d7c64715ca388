"""The timeline of a run: its content, and the bytes of its file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ...common.wording import counted
from ..core.schema import records
from ..errors import NothingMeasured
from ..metrics.device.idle_pieces import idle_pieces
from ..results.analysis import NO_TIMES, Analysis
from . import colours
from .arrows import arrows
from .counters import bus_bandwidths, busy, ranks_waiting
from .cpus import cpu_work, shown_cpus
from .lanes import outermost
from .packets import Writer
from .ranks import rank_groups
from .slices import Group, Integers, Numbers, Slices, Texts, Track
from .tables import Tables, integers_in, names_in


@dataclass(frozen=True)
class Timeline:
    """A timeline in Perfetto's format: the parts of its file, in order.

    `zero_ns` is the time on the common clock from which it counts, in ns since the epoch. `moved` are slices that
    overlap others of their stream, and stand on lanes of their own. `notes` say what is left out.
    """

    parts: tuple[bytes, ...]
    zero_ns: int
    slices: int
    moved: int
    notes: tuple[str, ...] = ()


def run_timeline(
    analysis: Analysis, *, steps: Collection[int] | None = None, ranks: Collection[int] | None = None
) -> Timeline:
    """The timeline of a run; of some steps or ranks only, where they are given.

    Raises NothingMeasured where there is nothing to show, or one of these ranks did nothing.
    """
    run = analysis.run
    if not run.has_starts:
        raise NothingMeasured(f"{run.name}: {NO_TIMES}, so there is no timeline to draw")
    drawn = run.ranks if ranks is None else [rank for rank in run.ranks if rank in ranks]
    cpus = shown_cpus(analysis, drawn)
    late = [rank for rank in analysis.culprits if rank in drawn]
    first = records(analysis.verdicts.head(1))
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
        idle=idle_pieces(run.activities, analysis.host_tables),
        cpus=cpu_work(run.activities, analysis.host_tables, cpus.ranks),
        opened=next(iter([*late, *cpus.ranks]), None),
        headline=(first[0]["headline"] or "") if first else "",
        notes=(cpus.note,),
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
    drawn = tables.collectives[member]
    path = _critical_path(tables)
    counters = Group("counters", (*ranks_waiting(arrows_of_run.calls), *bus_bandwidths(busy(drawn))))
    all_tracks = [*path, *(track for group in (*ranks, counters) for track in group.all_tracks())]
    tracks = [track for track in all_tracks if len(track.content)]
    zero_ns = min(_begun_ns(track) for track in tracks)
    shown = [track.content for track in tracks if isinstance(track.content, Slices)]
    moved = sum(_moved(group) for group in ranks)
    notes = (*tables.notes, *_quiet(drawn))
    opened = next((group for group in ranks if _is_of(group, tables.opened)), ranks[0])
    closed = [group for group in ranks if group is not opened]
    lines: list[Track | Group] = [*path, *_on_its_own(opened), *closed]
    last = (counters,) if _has_content(counters) else ()
    about, title = _about(tables, zero_ns, max(int(each.end_ns.max()) for each in shown), moved, notes)
    writer = Writer(zero_ns)
    parts = writer.group(Group(tables.name, (*lines, *last), about, title))
    return Timeline((writer.begun(), *parts), zero_ns, sum(map(len, shown)), moved, notes)


def _has_content(group: Group) -> bool:
    """Whether anything is drawn: counters of runs without waiting have no point."""
    return any(len(track.content) for track in group.all_tracks())


def _is_of(group: Group, rank: int | None) -> bool:
    return group.name.split(" ")[1] == str(rank)


def _on_its_own(opened: Group) -> list[Track]:
    """The tracks of a rank without its heading, under names that tell whose they are.

    The viewer opens the group on top if there is only one, and none below it. So what is to be seen at once stands
    right in that group. Source: Perfetto's UI, v52 and later, plugin dev.perfetto.GlobalGroups.
    """
    rank = opened.name.split(" (")[0]  # names of hosts are long, and the viewer cuts what does not fit
    own = [] if opened.own is None else [Track("steps", opened.own, f"Steps of {opened.name}")]
    tracks = [track for track in (*own, *opened.tracks) if isinstance(track, Track)]
    return [replace(track, name=f"{rank}: {track.name}") for track in tracks]


def _quiet(collectives: pd.DataFrame) -> list[str]:
    """A sentence on the groups whose bandwidth is left out; none if there are none."""
    known = collectives[collectives["busbw_gb_per_s"].notna() & collectives["last_start_ns"].notna()]
    groups = [len(each[["process_group", "pg_ranks"]].drop_duplicates()) for each in (known, busy(known))]
    quiet = groups[0] - groups[1]
    return [f"no bus bandwidth of {counted(quiet, 'process group')} that hardly moved data"] if quiet else []


def _begun_ns(track: Track) -> int:
    """Start of the first item on a track, in ns."""
    times = track.content.start_ns if isinstance(track.content, Slices) else track.content.time_ns
    return int(times.min())


def _moved(group: Group) -> int:
    """Number of slices that are not on the first lane, with nested ones counted once."""
    seen: set[str] = set()
    moved = 0
    for track in group.all_tracks():
        if track.name in seen and isinstance(track.content, Slices):
            moved += outermost(track.content.start_ns, track.content.end_ns)
        seen.add(track.name)
    return moved


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


def _about(tables: Tables, zero_ns: int, end_ns: int, moved: int, notes: tuple[str, ...]) -> tuple[Slices, str]:
    """Facts about the whole timeline, shown along all of it, and in words."""
    begun, ended = (np.array([time], dtype=np.int64) for time in (zero_ns, end_ns))
    facts: dict[str, Texts | Integers] = {
        "zero_ns": Integers.same(zero_ns),
        "slices_on_further_lanes": Integers.same(moved),
    }
    facts |= {f"note {number}": Texts.same(note, 1) for number, note in enumerate(notes, 1)}
    counts_from = f"0 here is {zero_ns:,} ns on the common clock"
    title = ". ".join([*filter(None, [tables.headline]), counts_from, *notes])
    names = Texts.same(tables.headline or f"{tables.name}: {counts_from}", 1)
    return Slices(begun, ended, names, facts).shaded(colours.OF_FACTS), title
