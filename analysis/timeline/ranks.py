"""Tracks of one rank: steps, compute, communication, copies, lateness, and its clock."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core.intervals import Times
from ..core.kinds import COMM, COMPUTE, MEMORY
from ..core.schema import Row, records
from ..core.steps import NO_STEP, step_windows
from ..metrics.clocks.frame import Bends
from ..metrics.clocks.table import on_common_clock
from .arrows import Arrows
from .counters import waiting_launches
from .slices import Fan, Group, Integers, Numbers, Slices, Texts, Track, lane_rows, nested, on_lanes
from .tables import OfRank, RowsByRank, Tables, integers_in, names_in, rows_by

_TEXTS = {
    "process group": "process_group",
    "ranks": "pg_ranks",
    "dtype": "dtype",
    "matched by": "matched_by",
    "kernel": "name",
}
_INTEGERS = ("collective_id", "call_id", "size_bytes", "seq", "waited_for", "clock_uncertainty_ns")
_OF_CLOCK = ("offset_ns", "origin_ns", "uncertainty_ns", "linked")
_LATE_TEXTS = ("because", "kernel", "operator", "origin_because")
_LATE_INTEGERS = ("collective_id", "late_ns", "new_ns", "caused_wait_ns", "kernel_extra_ns", "origin_rank")
_NAMING = ["only_last", "because", "operator", "kernel"]
_NO_ROWS = np.array([], dtype=np.int64)
_TITLES = {COMPUTE: "compute", COMM: "communication", MEMORY: "copies"}


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
    """Activities as arrays of shape (n,), on the clocks of their ranks; `step` is NO_STEP for none."""

    start_ns: Times
    end_ns: Times
    step: Numbers
    names: Texts

    @classmethod
    def of(cls, activities: pd.DataFrame) -> _Ran:
        start_ns = activities["start_ns"].to_numpy()
        step = activities["step"].to_numpy(dtype=np.int64, na_value=NO_STEP)
        return cls(start_ns, start_ns + activities["dur_ns"].to_numpy(), step, names_in(activities["name"]))

    def slices(self, rows: Numbers, clock: RankClock) -> Slices:
        """These rows on the common clock."""
        return Slices(clock.common(self.start_ns[rows]), clock.common(self.end_ns[rows]), self.names.taken(rows))


@dataclass(frozen=True)
class _Whole:
    """Activities of all ranks, and the rows of each: (rank, where) -> rows."""

    ran: _Ran
    calls: DrawnCalls
    late: Slices
    by_cycle: RowsByRank
    by_stream: RowsByRank
    calls_by_stream: RowsByRank
    late_by_rank: RowsByRank


def rank_groups(tables: Tables, arrows: Arrows) -> Iterator[Group]:
    """Yield the tracks of each rank with activities in the shown steps."""
    shown = np.flatnonzero(tables.in_steps(tables.activities))
    # Texts are compared only once.
    keys = tables.activities[["rank", "kind", "device", "stream", "cycle"]]
    keys = keys.astype({"kind": "category", "device": "category"})
    whole = _Whole(
        _Ran.of(tables.activities),
        DrawnCalls.of(arrows.calls),
        _lateness(arrows.late),
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
            host = row["host"]
            yield Group(f"rank {row['rank']}" if host is None else f"rank {row['rank']} ({host})", tuple(tracks))


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
        *_steps(whole.by_cycle[rank], whole.ran, clock, steps),
        *_ran(on_streams, COMPUTE, whole.ran, clock),
        *_communication(whole.calls_by_stream.get(rank, {}), whole.calls),
        *_ran(on_streams, MEMORY, whole.ran, clock),
        _clock(whole.ran, np.concatenate([*on_streams.values()]), clock),
    ]


def _ran(on_streams: OfRank, kind: str, ran: _Ran, clock: RankClock) -> Iterator[Track]:
    """Yield the activities on each stream."""
    for (is_kind, device, stream), rows in on_streams.items():
        if is_kind == kind:
            yield from on_lanes(_title(_TITLES[kind], device, stream), ran.slices(rows, clock))


def _title(what: str, device: str, stream: int) -> str:
    """The name of a track."""
    return f"{what} thread {stream}" if device == "cpu" else f"{what} GPU {device} stream {stream}"


def _communication(on_streams: OfRank, calls: DrawnCalls) -> Iterator[Track]:
    """Yield the calls on each stream, with wait and transfer nested."""
    for (device, stream), on_stream in on_streams.items():
        on_this_stream = calls.around.taken(on_stream)
        for rows in lane_rows(on_this_stream.start_ns, on_this_stream.end_ns):
            yield Track(_title(_TITLES[COMM], device, stream), calls.taken(on_stream[rows]).with_parts())


@dataclass(frozen=True)
class DrawnCalls:
    """Calls as slices, with start of transfer, arrival of what they waited for, and incoming arrow.

    All of shape (n,); an arrow of 0 is none.
    """

    around: Slices
    moving: Integers
    due: Integers
    arrow: Numbers

    @classmethod
    def of(cls, calls: pd.DataFrame) -> DrawnCalls:
        """The calls of all ranks."""
        start, end, arrow = (calls[key].to_numpy() for key in ("arrived_ns", "ended_ns", "arrow"))
        around = Slices(start, end, names_in(calls["what"]), {
            **{name: names_in(calls[column]) for name, column in _TEXTS.items()},
            **{name: integers_in(calls[name]) for name in _INTEGERS},
        })  # fmt: skip
        return cls(around, integers_in(calls["moving_ns"]), integers_in(calls["due_ns"]), arrow)

    def taken(self, rows: Numbers) -> DrawnCalls:
        """The calls at these rows."""
        return DrawnCalls(self.around.taken(rows), self.moving.taken(rows), self.due.taken(rows), self.arrow[rows])

    def with_parts(self) -> Slices:
        """The calls with wait and transfer nested, and where each arrow ends."""
        start, end, arrow = self.around.start_ns, self.around.end_ns, self.arrow
        (moving, split), (due, _) = self.moving.both, self.due.both
        waited = split & (moving > start)
        moved = split & (end > moving)
        reaches = (arrow > 0) & moved & (moving >= due)
        early = (arrow > 0) & ~reaches
        return nested(
            self.around,
            Slices(start[waited], moving[waited], Texts.same("wait", int(waited.sum()))),
            Slices(
                moving[moved],
                end[moved],
                Texts.same("transfer", int(moved.sum())),
                into=Integers(arrow[moved], reaches[moved]),
            ),
            _released(np.maximum(due, moving)[early], arrow[early]),
        )


def _released(time_ns: Times, arrow: Numbers) -> Slices:
    """Ends of arrows that no transfer can take: it did not begin, or clocks put it too early."""
    names = Texts.same("released", len(time_ns))
    return Slices(time_ns, time_ns, names, into=Integers(arrow, np.ones(len(arrow), dtype=bool)))


def _steps(cycles: OfRank, ran: _Ran, clock: RankClock, steps: Collection[int] | None) -> Iterator[Track]:
    """Yield the steps of each device, as bounded in the tables."""
    for device in dict.fromkeys(device for device, _ in cycles):
        rows = [rows for (on, _), rows in cycles.items() if on == device]
        windows = [
            w
            for rows_of_device in rows
            for w in step_windows(ran.start_ns[rows_of_device], ran.end_ns[rows_of_device], ran.step[rows_of_device])
        ]
        windows = [window for window in windows if steps is None or window.step in steps]
        start, end = (np.array([getattr(w, key) for w in windows], dtype=np.int64) for key in ("start_ns", "end_ns"))
        names = tuple(f"step {window.step}" for window in windows)
        slices = Slices(clock.common(start), clock.common(end), Texts(np.arange(len(names)), names))
        yield from on_lanes("steps" if device == "cpu" else f"steps GPU {device}", slices)


def _lateness(late: pd.DataFrame) -> Slices:
    """Slices up to the arrival of late ranks, with the reason, and arrows to those that waited."""
    names = pd.Series([_reason(row) for row in records(late[_NAMING])], dtype="string")
    notes: dict[str, Texts | Integers] = {name: names_in(late[name]) for name in _LATE_TEXTS}
    notes |= {name: integers_in(late[name]) for name in _LATE_INTEGERS}
    out = Fan(late["arrow"].to_numpy(), late["fan"].to_numpy())
    return Slices(late["start_ns"].to_numpy(), late["end_ns"].to_numpy(), names_in(names), notes, out=out)


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
    name = f"clock: {row['offset_ns']:+,} ns against rank {row['linked']}, uncertain by {row['uncertainty_ns']:,} ns"
    return Track("clock", Slices(clock.common(begun), clock.common(ended), Texts.same(name, 1), notes))
