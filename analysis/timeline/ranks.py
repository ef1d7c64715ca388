"""The tracks of one rank: steps, compute, communication, copies, where it was late, and its clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core.intervals import Times
from ..core.kinds import COMM, COMPUTE, MEMORY
from ..core.schema import Row, bare, grouped, records
from ..core.steps import NO_STEP, Window, step_windows
from ..metrics.clocks.table import on_common_clock
from .arrows import Arrows
from .slices import Fan, Group, Integers, Numbers, Slices, Texts, Track, lane_rows, nested, on_lanes
from .tables import Tables, integers_in, names_in

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
_TITLES = {COMPUTE: "compute", COMM: "communication", MEMORY: "copies"}


@dataclass(frozen=True)
class RankClock:
    """The row of one rank in the table of clocks."""

    row: dict[str, Any]

    def common(self, times_ns: Times) -> Times:
        """Times of this rank on the common clock."""
        row = self.row
        return on_common_clock(times_ns, row["offset_ns"], row["drift_ppm"], row["origin_ns"])

    def ahead_ns(self, time_ns: int) -> int:
        """How far the clock is ahead when it shows this time."""
        return time_ns - int(self.common(np.array([time_ns], dtype=np.int64))[0])


def rank_groups(tables: Tables, arrows: Arrows) -> Iterator[Group]:
    """The tracks of each rank that did something in the steps that are shown."""
    clocks = {row["rank"]: RankClock(row) for row in records(tables.clocks)}
    calls = dict(iter(arrows.calls.groupby("rank")))
    for (rank,), activities in grouped(tables.activities, ["rank"]):
        clock = clocks[rank]
        shown = activities[tables.in_steps(activities)]
        if not len(shown):
            continue
        own = calls.get(rank, arrows.calls[:0])
        tracks = [
            *_late(arrows.late[arrows.late["rank"] == rank]),
            *_steps(activities, tables, clock),
            *_ran(shown[bare(shown["kind"]) == COMPUTE], COMPUTE, clock),
            *_communication(own),
            *_ran(shown[bare(shown["kind"]) == MEMORY], MEMORY, clock),
            _clock(shown, clock),
        ]
        host = clock.row["host"]
        yield Group(f"rank {rank}" if host is None else f"rank {rank} ({host})", tuple(tracks))


def _ran(shown: pd.DataFrame, kind: str, clock: RankClock) -> Iterator[Track]:
    """What ran on each stream."""
    for (device, stream), rows in grouped(shown, ["device", "stream"]):
        start = rows["start_ns"].to_numpy()
        end = start + rows["dur_ns"].to_numpy()
        slices = Slices(clock.common(start), clock.common(end), names_in(rows["name"]))
        yield from on_lanes(_title(_TITLES[kind], device, stream), slices)


def _title(what: str, device: str, stream: int) -> str:
    """The name of a track."""
    return f"{what} thread {stream}" if device == "cpu" else f"{what} GPU {device} stream {stream}"


def _communication(calls: pd.DataFrame) -> Iterator[Track]:
    """The calls on each stream, with their wait and transfer within."""
    for (device, stream), on_stream in grouped(calls, ["device", "stream"]):
        for rows in lane_rows(on_stream["arrived_ns"].to_numpy(), on_stream["ended_ns"].to_numpy()):
            yield Track(_title(_TITLES[COMM], device, stream), _calls(on_stream.iloc[rows]))


def _calls(calls: pd.DataFrame) -> Slices:
    """Calls, their parts, and where the arrow of each ends: where data began to move, or just after it."""
    start, end, arrow = (calls[key].to_numpy() for key in ("arrived_ns", "ended_ns", "arrow"))
    (moving, split), (due, _) = (integers_in(calls[key]).both for key in ("moving_ns", "due_ns"))
    around = Slices(start, end, names_in(calls["what"]), {
        **{name: names_in(calls[column]) for name, column in _TEXTS.items()},
        **{name: integers_in(calls[name]) for name in _INTEGERS},
    })  # fmt: skip
    waited = split & (moving > start)
    moved = split & (end > moving)
    reaches = (arrow > 0) & moved & (moving >= due)
    early = (arrow > 0) & ~reaches
    return nested(
        around,
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
    """Where arrows end that no transfer can take up: it did not begin, or clocks put it before what it waited for."""
    names = Texts.same("released", len(time_ns))
    return Slices(time_ns, time_ns, names, into=Integers(arrow, np.ones(len(arrow), dtype=bool)))


def _steps(activities: pd.DataFrame, tables: Tables, clock: RankClock) -> Iterator[Track]:
    """The steps of each device, as the tables bound them."""
    for (device,), on_device in grouped(activities, ["device"]):
        windows = [window for _, part in grouped(on_device, ["cycle"]) for window in _windows(part)]
        windows = [window for window in windows if tables.steps is None or window.step in tables.steps]
        start, end = (np.array([getattr(w, key) for w in windows], dtype=np.int64) for key in ("start_ns", "end_ns"))
        names = tuple(f"step {window.step}" for window in windows)
        slices = Slices(clock.common(start), clock.common(end), Texts(np.arange(len(names)), names))
        yield from on_lanes("steps" if device == "cpu" else f"steps GPU {device}", slices)


def _windows(of_cycle: pd.DataFrame) -> list[Window]:
    """The steps of a device in one cycle."""
    start = of_cycle["start_ns"].to_numpy()
    return step_windows(
        start,
        start + of_cycle["dur_ns"].to_numpy(),
        of_cycle["step"].to_numpy(dtype=np.int64, na_value=NO_STEP),
    )


def _late(late: pd.DataFrame) -> list[Track]:
    """Where the rank was late, until it arrived: with the reason, and an arrow to those that waited."""
    names = pd.Series([_reason(row) for row in records(late[_NAMING])], dtype="string")
    notes: dict[str, Texts | Integers] = {name: names_in(late[name]) for name in _LATE_TEXTS}
    notes |= {name: integers_in(late[name]) for name in _LATE_INTEGERS}
    out = Fan(late["arrow"].to_numpy(), late["fan"].to_numpy())
    slices = Slices(late["start_ns"].to_numpy(), late["end_ns"].to_numpy(), names_in(names), notes, out=out)
    return on_lanes("late", slices)


def _reason(late: Row) -> str:
    """Why a rank was late, as far as it is known; `last` if it is not certain that it was."""
    if late["only_last"]:
        return "last"
    because = late["because"]
    detail = late["operator"] or late["kernel"] if because == "cpu" else late["kernel"]
    return ": ".join(("late", *filter(None, (because, detail if because else None))))


def _clock(shown: pd.DataFrame, clock: RankClock) -> Track:
    """What is known about the rank's clock, beside all that it did."""
    start = shown["start_ns"].to_numpy()
    begun, ended = start.min(keepdims=True), (start + shown["dur_ns"].to_numpy()).max(keepdims=True)
    row = clock.row
    notes: dict[str, Texts | Integers] = {key: Integers.same(row[key]) for key in _OF_CLOCK}
    notes |= {"drift_ppm": Texts.same(f"{row['drift_ppm']:.6g}", 1), "basis": Texts.same(str(row["basis"]), 1)}
    name = f"clock: {row['offset_ns']:+,} ns against rank {row['linked']}, uncertain by {row['uncertainty_ns']:,} ns"
    return Track("clock", Slices(clock.common(begun), clock.common(ended), Texts.same(name, 1), notes))
