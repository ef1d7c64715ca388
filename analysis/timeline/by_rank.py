"""The lines of a timeline, made rank by rank where the events of a rank are: only their bytes come together.

Each rank is a sequence of packets of its own, with its own texts, so that nobody has to know what others have written.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...common.wording import counted
from ..core.schema import Row, grouped, records
from ..errors import NothingMeasured
from ..metrics.device.idle import HostTables
from ..metrics.device.idle_pieces import idle_pieces
from ..metrics.device.queues import queues
from ..metrics.memory.held import memory_of
from ..run.event_tables import EventTables, RanInCycle, RunTables
from .arrows import Arrows, arrows
from .cpus import cpu_work
from .drawn import Sums, Timeline, begun_ns, moved_in
from .overall import about, counters_and_notes, has_content, legend, path_lines, title
from .packets import Writer
from .ranks import RankClock, lines_of_open, rank_groups
from .slices import Group, Slices, Track
from .tables import Tables

_LOG = logging.getLogger("commtrace.analysis")
_LAST = 1 << 24
"""Of all places: what needs most room stands below the other ranks."""
_TOP = 1
"""The track of the group around all, which is the first one of the first sequence."""


class PlaceInFile(NamedTuple):
    """Where the lines of a rank stand in the file, see `Writer`; its group is closed at that place.

    With None its lines stand open, from `opened_at` on.
    """

    sequence: int
    sequences: int
    zero_ns: int
    opened_at: int
    closed_at: int | None


class DrawnRank(NamedTuple):
    """The lines of a rank, encoded; they take so many `places` if they are open. The rest is as in `Sums`."""

    content: bytes
    places: int
    slices: int
    moved: int
    end_ns: int
    shades: frozenset[str]
    """Whose colours occur."""


class WhatCpusDid(NamedTuple):
    """Whether it was read, and runs of Python's garbage collector with it; and the ranks of which it is drawn."""

    is_read: bool
    has_gc: bool
    drawn: frozenset[int]

    def host(self, events: EventTables) -> HostTables:
        """What the CPU of a rank with these events did."""
        return HostTables(
            calls=events.runtime_calls,
            operators=events.cpu_operators,
            annotations=events.annotations,
            is_read=self.is_read,
            has_gc=self.has_gc,
        )


def timeline_by_rank(tables: Tables, ran: Collection[RanInCycle], of_run: RunTables, cpus: WhatCpusDid) -> Timeline:
    """Draw the timeline of a run with these cycles to show; `tables` are those of calls, clocks and critical path.

    Raises NothingMeasured if no activity is shown.
    """
    begun = _begun(ran, tables)
    if not begun:
        raise NothingMeasured(f"{tables.name}: the traces show no device activity that a timeline could show")
    drawn = arrows(tables)
    counters, notes = counters_and_notes(tables, drawn)
    beside = [int(times.min()) for times in (drawn.calls["arrived_ns"], drawn.late["start_ns"]) if len(times)]
    path = path_lines(tables)
    points = [begun_ns(track) for track in (*path, *counters.all_tracks()) if len(track.content)]
    zero_ns = min([*begun.values(), *beside, *points, *_cpus_begun(tables, [*begun], of_run, cpus)])
    sums = Sums(slices=sum(len(track.content) for track in path))
    parts = _parts(tables, drawn, [*begun], of_run, cpus, path, counters, notes, zero_ns, sums)
    return Timeline(sums.counted(parts), zero_ns, sums, notes)


def _begun(ran: Collection[RanInCycle], tables: Tables) -> dict[int, int]:
    """When the first line of each rank begins, in ns on the common clock."""
    first: dict[int, int] = {}
    for each in ran:
        began_ns = each.began_ns
        if tables.steps is not None:
            # A step also begins with an activity of a later one, if that comes first.
            since = min(step for step in each.steps if step in tables.steps)
            began_ns = min(time for step, time in each.step_began_ns.items() if step >= since)
        first[each.rank] = min(began_ns, first.get(each.rank, began_ns))
    clocks = {row["rank"]: RankClock(row) for row in records(tables.clocks)}
    return {
        rank: int(clock.common(np.array([first[rank]], dtype=np.int64))[0])
        for rank, clock in clocks.items()
        if rank in first
    }


def _cpus_begun(tables: Tables, ranks: Collection[int], of_run: RunTables, cpus: WhatCpusDid) -> list[int]:
    """When what CPUs did begins on each rank whose CPU is drawn, in ns on the common clock."""
    clocks = {row["rank"]: row for row in records(tables.clocks)}
    given = {rank: (clocks[rank], cpus, tables.steps) for rank in ranks if rank in cpus.drawn}
    return [begun for begun in of_run.by_rank(_cpu_begun, given) if begun is not None]


def _cpu_begun(events: EventTables, clock: Row, cpus: WhatCpusDid, steps: Collection[int] | None) -> int | None:
    work = cpu_work(events.activities, cpus.host(events))
    if steps is not None:
        work = work[work["step"].isin(list(steps))]
    return int(RankClock(clock).common(work["start_ns"].to_numpy(dtype=np.int64)).min()) if len(work) else None


def _parts(
    tables: Tables,
    drawn: Arrows,
    ranks: list[int],
    of_run: RunTables,
    cpus: WhatCpusDid,
    path: list[Track],
    counters: Group,
    notes: tuple[str, ...],
    zero_ns: int,
    sums: Sums,
) -> Iterator[bytes]:
    """Yield the parts of the file, and add up what is drawn in them."""
    _LOG.info("drawing %s", counted(len(ranks), "rank"))
    sequences, shades = len(ranks) + 1, set[str]()
    of_all = Writer(zero_ns, 1, sequences)
    yield of_all.begun()
    yield from of_all.group(Group(tables.name, (), None, title(tables, zero_ns, notes)))
    yield from of_all.within(path, _TOP)
    calls, late = (dict(grouped(table, ["rank"])) for table in (drawn.calls, drawn.late))
    clocks = dict(grouped(tables.clocks, ["rank"]))
    sequence = {rank: number for number, rank in enumerate(ranks, 2)}

    def made(places: Mapping[int, int | None]) -> Iterator[DrawnRank]:
        """Yield the lines of these ranks."""
        given = {
            rank: (
                clocks[rank,],
                Arrows(calls.get((rank,), drawn.calls[:0]), late.get((rank,), drawn.late[:0])),
                tables.steps,
                cpus,
                PlaceInFile(sequence[rank], sequences, zero_ns, len(path), place),
            )
            for rank, place in places.items()
        }
        for one in of_run.by_rank(drawn_rank, given):
            sums.add(slices=one.slices, moved=one.moved, end_ns=one.end_ns)
            shades.update(one.shades)
            yield one

    opened = tables.opened if tables.opened in sequence else ranks[0]
    (first,) = made({opened: None})
    yield first.content
    closed = [rank for rank in ranks if rank != opened]
    for one in made({rank: place for place, rank in enumerate(closed, len(path) + first.places)}):
        yield one.content
    if has_content(counters):
        yield from of_all.within([counters], _TOP, len(path) + first.places + len(closed))
    assert sums.end_ns is not None
    meaning = legend(zero_ns, sums.end_ns, shades)
    yield from of_all.within([meaning], _TOP, _LAST - 1)
    yield of_all.content(about(tables, zero_ns, sums.end_ns, notes), _TOP)


def drawn_rank(
    events: EventTables,
    clock: pd.DataFrame,
    calls: Arrows,
    steps: Collection[int] | None,
    cpus: WhatCpusDid,
    place: PlaceInFile,
) -> DrawnRank:
    """The lines of the rank with these events, its row of the table `clocks`, its calls, and where it was late."""
    host = cpus.host(events)
    is_drawn = int(clock["rank"].iloc[0]) in cpus.drawn
    tables = Tables(
        name="",
        activities=events.activities,
        clocks=clock,
        queues=list(queues(events.activities, events.launches)),
        memory=memory_of(events.memory_events),
        counter_samples=events.counter_samples,
        idle=idle_pieces(events.activities, host),
        cpus=cpu_work(events.activities, host) if is_drawn else None,
        steps=steps,
    )
    (group,) = rank_groups(tables, calls)
    lines, of_cpu = lines_of_open(group)
    writer = Writer(place.zero_ns, place.sequence, place.sequences)
    parts = (
        (*writer.within(lines, _TOP, place.opened_at), *writer.within(of_cpu, _TOP, _LAST))
        if place.closed_at is None
        else writer.group(group, place.closed_at, _TOP)
    )
    drawn = (*lines, *of_cpu) if place.closed_at is None else group.all_tracks()
    slices = [track.content for track in drawn if isinstance(track.content, Slices) and len(track.content)]
    return DrawnRank(
        content=b"".join((writer.begun(), *parts)),
        places=len({line.name for line in lines}),
        slices=sum(map(len, slices)),
        moved=moved_in(group),
        end_ns=max(int(each.end_ns.max()) for each in slices),
        shades=frozenset(shade for each in slices for shade in each.used_shades()),
    )
