"""Tracks of one rank: steps, idle time, compute, communication, copies, CPU, lateness, and its clock."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ..core.intervals import Times
from ..core.kinds import COMM, COMPUTE, MEMORY
from ..core.schema import Row, records
from ..core.steps import Window, windows_by_process
from ..metrics.clocks.frame import Bends
from ..metrics.clocks.table import on_common_clock
from ..metrics.verdicts.of_idle import IDLE_CAUSES
from . import colours
from .arrows import Arrows
from .counters import held_memory, sampled, waiting_launches
from .slices import Fan, Group, Integers, Numbers, Slices, Texts, Track, lane_rows, nested, nesting, on_lanes
from .tables import OfRank, RowsByRank, Tables, integers_in, names_in, rows_by

_TEXTS = {
    "process group": "process_group",
    "ranks": "pg_ranks",
    "role": "role",
    "dtype": "dtype",
    "matched by": "matched_by",
    "kernel": "name",
}
_INTEGERS = ("collective_id", "call_id", "size_bytes", "seq", "waited_for", "clock_uncertainty_ns")
_OF_CLOCK = ("offset_ns", "origin_ns", "uncertainty_ns", "linked")
_LATE_TEXTS = ("because", "kernel", "operator", "origin_because")
_LATE_INTEGERS = ("collective_id", "late_ns", "new_ns", "caused_wait_ns", "kernel_extra_ns", "origin_rank")
_NAMING = ["only_last", "because", "operator", "kernel"]
_CPU = "CPU thread"
_NO_ROWS = np.array([], dtype=np.int64)
_TITLES = {COMPUTE: "compute", COMM: "communication", MEMORY: "copies"}
_SHADES = {COMPUTE: colours.OF_COMPUTE, MEMORY: colours.OF_COPYING}
_IDLE = {column.removesuffix("_ns"): words for column, words in IDLE_CAUSES.items()}
_IDLE |= {"starved": "nothing is launched", "idle": "idle"}
"""What slices of idle time are called, by cause."""


@dataclass(frozen=True)
class RankClock:
    """The row of one rank in the table of clocks."""

    row: dict[str, Any]

    def common(self, times_ns: Times) -> Times:
        """Convert times of this rank to the common clock."""
        row = self.row
        common = on_common_clock(times_ns, row["offset_ns"], row["drift_ppm"], row["origin_ns"])
        return common if pd.isna(row["bends"]) else common - Bends.parsed(row["bends"]).added(times_ns)

    def ahead_ns(self, time_ns: int) -> int:
        """How far the clock is ahead at this time, in ns."""
        return time_ns - int(self.common(np.array([time_ns], dtype=np.int64))[0])


@dataclass(frozen=True)
class _Ran:
    """Activities as arrays of shape (n,), on the clocks of their ranks; `windows` are their steps, by rank and cycle.

    `shades` are those of all activities, if they were of this kind.
    """

    start_ns: Times
    end_ns: Times
    names: Texts
    shades: Mapping[str, Texts]
    windows: Mapping[tuple[int, int], list[Window]]

    @classmethod
    def of(cls, activities: pd.DataFrame) -> _Ran:
        start_ns = activities["start_ns"].to_numpy()
        names = names_in(activities["name"])
        shades = {kind: colours.varied(names, of_kind) for kind, of_kind in _SHADES.items()}
        return cls(start_ns, start_ns + activities["dur_ns"].to_numpy(), names, shades, windows_by_process(activities))

    def slices(self, rows: Numbers, clock: RankClock, kind: str) -> Slices:
        """These rows, all of a kind, on the common clock."""
        start_ns, end_ns, names = self.start_ns[rows], self.end_ns[rows], self.names.taken(rows)
        return Slices(clock.common(start_ns), clock.common(end_ns), names, shades=self.shades[kind].taken(rows))


@dataclass(frozen=True)
class _Whole:
    """Activities of all ranks, and the rows of each: (rank, where) -> rows."""

    ran: _Ran
    calls: DrawnCalls
    late: Slices
    idle: pd.DataFrame | None
    cpus: pd.DataFrame | None
    idle_by_device: RowsByRank
    cpus_by_thread: RowsByRank
    by_cycle: RowsByRank
    by_stream: RowsByRank
    calls_by_stream: RowsByRank
    late_by_rank: RowsByRank


def rank_groups(tables: Tables, arrows: Arrows) -> Iterator[Group]:
    """Yield the tracks of each rank with activities in the shown steps.

    Its first line of steps is the group's own, with waiting below, which is seen while the group is closed. What its
    CPU did comes last: it needs most room.
    """
    shown = np.flatnonzero(tables.in_steps(tables.activities))
    # Texts are compared only once.
    keys = tables.activities[["rank", "kind", "device", "stream", "cycle"]]
    keys = keys.astype({"kind": "category", "device": "category"})
    whole = _Whole(
        _Ran.of(tables.activities),
        DrawnCalls.of(arrows.calls),
        _lateness(arrows.late),
        tables.idle,
        tables.cpus,
        _shown_by(tables, tables.idle, ["rank", "device"]),
        _shown_by(tables, tables.cpus, ["rank", "thread"]),
        rows_by(keys, ["rank", "device", "cycle"]),
        rows_by(keys.iloc[shown], ["rank", "kind", "device", "stream"], shown),
        rows_by(arrows.calls, ["rank", "device", "stream"]),
        rows_by(arrows.late, ["rank"]),
    )
    for row in records(tables.clocks):
        clock = RankClock(row)
        tracks = _tracks(row["rank"], clock, whole, tables.steps)
        if tracks:
            began, ended = _shown_ns(whole, row["rank"])
            tracks += waiting_launches(tables.queues, row["rank"], began, ended, clock.common)
            tracks += held_memory(tables.memory, row["rank"], began, ended, clock.common)
            tracks += sampled(tables.counter_samples, row["rank"], began, ended, clock.common)
            tracks += _cpu(whole.cpus_by_thread.get(row["rank"], {}), whole.cpus, clock)
            yield _group(row, tracks, _waiting(whole, row["rank"]))


def _waiting(whole: _Whole, rank: int) -> Slices:
    """When a rank waited, in order and without overlap."""
    streams = [*whole.calls_by_stream.get(rank, {}).values()]
    calls = whole.calls.taken(np.concatenate(streams) if streams else _NO_ROWS)
    (moving, split), start = calls.moving.both, calls.around.start_ns
    rows = np.flatnonzero(split & (moving > start))
    rows = rows[np.argsort(start[rows], kind="stable")]
    ended = np.maximum.accumulate(moving[rows])
    start = np.maximum(start[rows], np.concatenate(([np.iinfo(np.int64).min], ended[:-1]))[: len(rows)])
    left = moving[rows] > start
    waits = Slices(start[left], moving[rows][left], calls.waits.taken(rows[left]))
    return waits.shaded(colours.OF_WAITS)


def _within(waits: Slices, steps: Slices) -> Slices:
    """The waits, cut where steps begin and end."""
    parts = [
        replace(
            waits.taken(rows),
            start_ns=np.maximum(waits.start_ns[rows], begin),
            end_ns=np.minimum(waits.end_ns[rows], end),
        )
        for begin, end in zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)
        for rows in [np.flatnonzero((waits.start_ns < end) & (waits.end_ns > begin))]
    ]
    return nested(*parts) if parts else waits.taken(_NO_ROWS)


def _group(row: Row, tracks: list[Track], waits: Slices) -> Group:
    """A rank's group; its first track of steps, with its waits, is its own line, which is seen while it is closed."""
    name = f"rank {row['rank']}" if row["host"] is None else f"rank {row['rank']} ({row['host']})"
    steps = next((track for track in tracks if track.name.startswith("steps")), None)
    if steps is None or not isinstance(steps.content, Slices) or not len(steps.content):
        return Group(name, tuple(tracks), waits if len(waits) else None)
    own = nested(steps.content, _within(waits, steps.content))
    return Group(name, tuple(track for track in tracks if track is not steps), own)


def lines_of_open(group: Group) -> tuple[list[Track], list[Track]]:
    """The tracks of a rank without its heading, under names that tell whose they are, and those of its CPU.

    The viewer opens the group on top if there is only one, and none below it. So what is to be seen at once stands
    right in that group. Source: Perfetto's UI, v52 and later, plugin dev.perfetto.GlobalGroups.
    """
    rank = group.name.split(" (")[0]  # names of hosts are long, and the viewer cuts what does not fit
    own = [] if group.own is None else [Track("steps", _steps_only(group.own), f"Steps of {group.name}")]
    tracks = [track for track in (*own, *group.tracks) if isinstance(track, Track)]
    lines, of_cpu = list[Track](), list[Track]()
    for track in tracks:
        (of_cpu if track.name.startswith(_CPU) else lines).append(replace(track, name=f"{rank}: {track.name}"))
    return lines, of_cpu


def _steps_only(own: Slices) -> Slices:
    """Of the line of a closed rank, what is not said below it."""
    assert own.shades is not None
    steps = [code for code, shade in enumerate(own.shades.values) if shade == colours.OF_STEPS]
    return own.taken(np.isin(own.shades.codes, steps))


def _shown_by(tables: Tables, table: pd.DataFrame | None, keys: list[str]) -> RowsByRank:
    """Rows in the shown steps, as `rows_by` has them."""
    if table is None or not len(table):
        return {}
    shown = np.flatnonzero(tables.in_steps(table))
    return rows_by(table[keys].iloc[shown], keys, shown)


def _shown_ns(whole: _Whole, rank: int) -> tuple[int, int]:
    """Start of the first and end of the last shown activity of a rank, on its clock."""
    rows = np.concatenate([*whole.by_stream[rank].values()])
    return int(whole.ran.start_ns[rows].min()), int(whole.ran.end_ns[rows].max())


def _tracks(rank: int, clock: RankClock, whole: _Whole, steps: Collection[int] | None) -> list[Track]:
    """Tracks of one rank; none if it did nothing."""
    on_streams = whole.by_stream.get(rank, {})
    if not on_streams:
        return []
    late = whole.late_by_rank.get(rank, {}).get((), _NO_ROWS)
    return [
        *on_lanes("late", whole.late.taken(late)),
        *_steps(rank, whole.by_cycle[rank], whole.ran, clock, steps),
        *_idle(whole.idle_by_device.get(rank, {}), whole.idle, clock),
        *_ran(on_streams, COMPUTE, whole.ran, clock),
        *_communication(whole.calls_by_stream.get(rank, {}), whole.calls),
        *_ran(on_streams, MEMORY, whole.ran, clock),
        _clock(whole.ran, np.concatenate([*on_streams.values()]), clock),
    ]


def _ran(on_streams: OfRank, kind: str, ran: _Ran, clock: RankClock) -> Iterator[Track]:
    """Yield the activities on each stream."""
    for (is_kind, device, stream), rows in on_streams.items():
        if is_kind == kind:
            yield from on_lanes(_title(_TITLES[kind], device, stream), ran.slices(rows, clock, kind))


def _idle(devices: OfRank, idle: pd.DataFrame | None, clock: RankClock) -> Iterator[Track]:
    """Yield idle time by cause, of each device."""
    for (device,), rows in devices.items():
        assert idle is not None
        of_device = idle.iloc[rows]
        codes, causes = pd.factorize(of_device["cause"])
        start_ns, end_ns = (clock.common(of_device[key].to_numpy()) for key in ("start_ns", "end_ns"))
        names, shades = (Texts(codes, tuple(of[cause] for cause in causes)) for of in (_IDLE, colours.OF_IDLE))
        slices = Slices(start_ns, end_ns, names, shades=shades)
        yield Track("idle" if device == "cpu" else f"idle GPU {device}", slices)


def _cpu(threads: OfRank, cpus: pd.DataFrame | None, clock: RankClock) -> Iterator[Track]:
    """Yield operators, annotations and blocking calls of each thread, within each other; the busiest thread first."""
    for (thread,), rows in sorted(threads.items(), key=lambda item: -len(item[1])):
        assert cpus is not None
        work = cpus.iloc[rows]
        start_ns = work["start_ns"].to_numpy(dtype=np.int64)
        end_ns = start_ns + work["dur_ns"].to_numpy(dtype=np.int64)
        shades = Texts(np.where(work["blocks"].to_numpy(dtype=bool), 0, -1), (colours.OF_BLOCKING,))
        slices = Slices(clock.common(start_ns), clock.common(end_ns), names_in(work["name"]), shades=shades)
        yield from nesting(f"{_CPU} {thread}", slices)


def _title(what: str, device: str, stream: int) -> str:
    """The name of a track."""
    return f"{what} thread {stream}" if device == "cpu" else f"{what} GPU {device} stream {stream}"


def _communication(on_streams: OfRank, calls: DrawnCalls) -> Iterator[Track]:
    """Yield the calls on each stream, with wait and transfer nested."""
    for (device, stream), on_stream in on_streams.items():
        on_this_stream = calls.around.taken(on_stream)
        for rows in lane_rows(on_this_stream.start_ns, on_this_stream.end_ns):
            title = f"{_title(_TITLES[COMM], device, stream)}{_role_of(on_this_stream)}"
            yield Track(title, calls.taken(on_stream[rows]).with_parts())


def _role_of(calls: Slices) -> str:
    """` (tp)`, where all calls are of groups of one role; else empty."""
    of_calls = calls.notes["role"]
    assert isinstance(of_calls, Texts)
    used = np.unique(of_calls.codes)
    return f" ({of_calls.values[int(used[0])]})" if len(used) == 1 and used[0] >= 0 else ""  # noqa: PD011 - of texts


@dataclass(frozen=True)
class DrawnCalls:
    """Calls as slices, with start of transfer, arrival of what they waited for, incoming arrow, and names of waits.

    All of shape (n,); an arrow of 0 is none.
    """

    around: Slices
    moving: Integers
    due: Integers
    arrow: Numbers
    waits: Texts

    @classmethod
    def of(cls, calls: pd.DataFrame) -> DrawnCalls:
        """The calls of all ranks."""
        start, end, arrow = (calls[key].to_numpy() for key in ("arrived_ns", "ended_ns", "arrow"))
        around = Slices(start, end, names_in(calls["what"]), {
            **{name: names_in(calls[column]) for name, column in _TEXTS.items()},
            **{name: integers_in(calls[name]) for name in _INTEGERS},
        })  # fmt: skip
        waits = ("wait for rank " + calls["waited_for"].astype("string")).fillna("wait")
        moving, due = integers_in(calls["moving_ns"]), integers_in(calls["due_ns"])
        return cls(around, moving, due, arrow, names_in(waits))

    def taken(self, rows: Numbers) -> DrawnCalls:
        """The calls at these rows."""
        moving, due, waits = self.moving.taken(rows), self.due.taken(rows), self.waits.taken(rows)
        return DrawnCalls(self.around.taken(rows), moving, due, self.arrow[rows], waits)

    def with_parts(self) -> Slices:
        """The calls with wait and transfer nested, and where each arrow ends."""
        start, end, arrow = self.around.start_ns, self.around.end_ns, self.arrow
        (moving, split), (due, _) = self.moving.both, self.due.both
        waited = split & (moving > start)
        moved = split & (end > moving)
        reaches = (arrow > 0) & moved & (moving >= due)
        early = (arrow > 0) & ~reaches
        return nested(
            self.around.shaded(colours.OF_CALLS),
            Slices(start[waited], moving[waited], self.waits.taken(waited)).shaded(colours.OF_WAITS),
            Slices(
                moving[moved],
                end[moved],
                Texts.same("transfer", int(moved.sum())),
                into=Integers(arrow[moved], reaches[moved]),
            ).shaded(colours.OF_TRANSFERS),
            _released(np.maximum(due, moving)[early], arrow[early]),
        )


def _released(time_ns: Times, arrow: Numbers) -> Slices:
    """Ends of arrows that no transfer can take: it did not begin, or clocks put it too early."""
    names = Texts.same("released", len(time_ns))
    into = Integers(arrow, np.ones(len(arrow), dtype=bool))
    return Slices(time_ns, time_ns, names, into=into).shaded(colours.OF_TRANSFERS)


def _steps(rank: int, cycles: OfRank, ran: _Ran, clock: RankClock, steps: Collection[int] | None) -> Iterator[Track]:
    """Yield the steps of each device, as bounded in the tables."""
    for device in dict.fromkeys(device for device, _ in cycles):
        own = [window for on, cycle in cycles if on == device for window in ran.windows.get((rank, cycle), ())]
        windows = [window for window in own if steps is None or window.step in steps]
        start, end = (np.array([getattr(w, key) for w in windows], dtype=np.int64) for key in ("start_ns", "end_ns"))
        names = tuple(f"step {window.step}" for window in windows)
        slices = Slices(clock.common(start), clock.common(end), Texts(np.arange(len(names)), names))
        slices = slices.shaded(colours.OF_STEPS)
        yield from on_lanes("steps" if device == "cpu" else f"steps GPU {device}", slices)


def _lateness(late: pd.DataFrame) -> Slices:
    """Slices up to the arrival of late ranks, with the reason, and arrows to those that waited."""
    names = pd.Series([_reason(row) for row in records(late[_NAMING])], dtype="string")
    notes: dict[str, Texts | Integers] = {name: names_in(late[name]) for name in _LATE_TEXTS}
    notes |= {name: integers_in(late[name]) for name in _LATE_INTEGERS}
    out = Fan(late["arrow"].to_numpy(), late["fan"].to_numpy())
    start_ns, end_ns = (late[key].to_numpy() for key in ("start_ns", "end_ns"))
    return Slices(start_ns, end_ns, names_in(names), notes, out=out).shaded(colours.OF_LATENESS)


def _reason(late: Row) -> str:
    """Why a rank was late, if known; `last` if it may not have been late."""
    if late["only_last"]:
        return "last"
    because = late["because"]
    detail = late["operator"] or late["kernel"] if because == "cpu" else late["kernel"]
    return ": ".join(("late", *filter(None, (because, detail if because else None))))


def _clock(ran: _Ran, rows: Numbers, clock: RankClock) -> Track:
    """Facts about the rank's clock, shown along all its activities."""
    begun, ended = ran.start_ns[rows].min(keepdims=True), ran.end_ns[rows].max(keepdims=True)
    row = clock.row
    notes: dict[str, Texts | Integers] = {key: Integers.same(row[key]) for key in _OF_CLOCK}
    notes |= {"drift_ppm": Texts.same(f"{row['drift_ppm']:.6g}", 1), "basis": Texts.same(str(row["basis"]), 1)}
    said = _clock_in_words(row)
    slices = Slices(clock.common(begun), clock.common(ended), Texts.same(said, 1), notes).shaded(colours.OF_FACTS)
    return Track("clock", slices, f"The {said}. {row['basis']}")


def _clock_in_words(row: Row) -> str:
    """`clock of rank 3 is 12 us ahead of that of rank 0, uncertain by 2 us`."""
    clock = f"clock of rank {row['rank']}"
    if row["linked"] == row["rank"]:
        return f"{clock} is the one that others are compared with"
    offset_ns = row["offset_ns"]
    apart = f"{in_words(abs(offset_ns))} {'ahead of' if offset_ns > 0 else 'behind'}" if offset_ns else "in step with"
    return f"{clock} is {apart} that of rank {row['linked']}, uncertain by {in_words(row['uncertainty_ns'])}"


def in_words(time_ns: int) -> str:
    """`850 ns`, `12.3 us`, `4.56 ms`, `7 s`: three digits."""
    for unit, name in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")):
        if time_ns >= unit:
            amount = time_ns / unit
            return f"{amount:,.0f} {name}" if amount >= 100 else f"{amount:.3g} {name}"
    return f"{time_ns} ns"
