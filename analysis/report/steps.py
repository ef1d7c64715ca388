"""What the page holds of every step, so that people can go down from a number to the calls and the CPU behind it.

One JSON value, which `assets/steps.js` draws: for each step and device compute, copies and calls; for each collective
who came last and why; and for those that made others wait most, what the CPU and the device of the late rank did
before, beside a rank that waited. Times of calls are exact, in ns; spans of compute are merged over short gaps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.escaping import printable
from ..core.intervals import Spans, spans
from ..core.kinds import COMM, COMPUTE, MEMORY
from ..core.schema import Row, grouped, records
from ..render.fitting import shortened_kernel
from ..results.analysis import Analysis
from ..run.event_tables import EventTables

_MOST_SPANS, _MOST_CALLS = 220_000, 90_000
"""In a page: some 6 and 20 characters each."""
_LEAST_SPANS = 24
_MOST_OF_DEVICE = 600
_MOST_LATE = 40
"""Collectives of which the page holds what CPUs did before."""
_MOST_EVENTS, _MOST_DEPTH = 160, 7
_LONGEST_NAME = 60
_Times = NDArray[np.int64]
_WHOLE = -1
"""The number of the window of a run without steps."""


@dataclass(frozen=True)
class StepsData:
    """The JSON, the step to begin with, and a note on what was left out."""

    json: str
    first: int
    note: str


def steps_data(analysis: Analysis, first: int | None = None) -> StepsData | None:
    """All steps, as many as a page can hold: `first` and those with most exposed waiting; None without activities."""
    activities = analysis.run.activities
    if not len(activities) or not len(analysis.calls):
        return None
    calls = analysis.participation
    if not analysis.run.steps:
        activities, calls = activities.assign(step=_WHOLE), calls.assign(step=_WHOLE)
    waited = calls.assign(wait=calls["exposed_wait_ns"].fillna(0)).groupby("step")["wait"].sum()
    order = [int(step) for step in waited.sort_values(ascending=False, kind="stable").index]
    if not order:
        return None
    if first is not None:
        order = [first, *(step for step in order if step != first)]
    kept, left_out = _kept(order, calls.groupby("step").size())
    names = _Names()
    collectives = analysis.collectives[analysis.collectives["collective_id"].isin(calls["collective_id"])]
    by_step = dict(list(activities.groupby("step"))) | {}
    calls_by_step = dict(list(calls.groupby("step")))
    clocks = {row["rank"]: row for row in records(analysis.clocks)}
    most = max(_MOST_SPANS // max(sum(_devices(by_step, step) for step in kept), 1), _LEAST_SPANS)
    steps = [
        _step(step, by_step[step], calls_by_step[step], clocks, min(most, _MOST_OF_DEVICE))
        for step in sorted(kept)
        if step in by_step
    ]
    shown = set(kept)
    described = collectives.merge(calls[["collective_id", "step"]].drop_duplicates("collective_id"), on="collective_id")
    described = described[described["step"].isin(shown)]
    content: dict[str, Any] = {
        "steps": steps,
        "collectives": {str(row["collective_id"]): _collective(row, names) for row in records(described)},
        "late": {str(row["collective_id"]): _late(row, names) for row in _worst(analysis.lateness, described)},
        "behind": dict(_behind(analysis, described, clocks, names)),
        "clocks": {str(rank): row["bent_uncertainty_ns"] for rank, row in clocks.items()},
        "whole": _WHOLE,
        "names": names.texts,
    }
    note = f"{left_out:,} steps with less waiting are not in this page." if left_out else ""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True)
    return StepsData(text, order[0], note)


class _Names:
    """Each name once, as its number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, name: Any) -> int | None:
        """The number of a name; None for NA."""
        if name is None or pd.isna(name):
            return None
        text = shortened_kernel(printable(str(name)), _LONGEST_NAME)
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


def _kept(order: Sequence[int], calls: pd.Series[int]) -> tuple[list[int], int]:
    """The first steps of the order, while a page can hold their calls, and how many are left out."""
    kept: list[int] = []
    total = 0
    for step in order:
        total += int(calls.get(step, 0))
        if kept and total > _MOST_CALLS:
            break
        kept.append(step)
    return kept, len(order) - len(kept)


def _devices(by_step: dict[Any, pd.DataFrame], step: int) -> int:
    return int(by_step[step][["rank", "device"]].drop_duplicates().shape[0]) if step in by_step else 0


def _step(
    step: int, activities: pd.DataFrame, calls: pd.DataFrame, clocks: dict[int, Row], most: int
) -> dict[str, Any]:
    """A step: all times are on the common clock, since its first activity."""
    several = activities.groupby("rank")["device"].nunique().max() > 1
    calls_of = dict(grouped(calls, ["rank", "device"]))
    none = calls.iloc[:0]
    devices = []
    for (rank, device), own in grouped(activities, ["rank", "device"]):
        starts = own["start_ns"].to_numpy()
        starts = starts - ahead_ns(clocks.get(rank), starts)
        devices.append((rank, device, own["kind"].to_numpy(), starts, starts + own["dur_ns"].to_numpy()))
    begin = min(int(each[3].min()) for each in devices)
    end = max(int(each[4].max()) for each in devices)
    ranks = []
    for rank, device, kinds, starts, ends in devices:
        row: dict[str, Any] = {"rank": int(rank), "name": f"{rank} / {device}" if several else f"{rank}"}
        for name, kind in (("compute", COMPUTE), ("copies", MEMORY)):
            chosen = kinds == kind
            row[name] = _relative(_coarser(spans(starts[chosen] - begin, ends[chosen] - begin), most))
        taken = calls_of.get((rank, device), none).sort_values("arrived_ns", kind="stable")
        arrived = taken["arrived_ns"].to_numpy(dtype=np.int64) - begin
        row["start"] = np.diff(arrived, prepend=0).tolist()
        row["dur"] = taken["dur_ns"].tolist()
        row["wait"] = [-1 if pd.isna(ns) else int(ns) for ns in taken["wait_ns"]]
        row["of"] = taken["collective_id"].tolist()
        ranks.append(row)
    return {"step": step, "long": max(end - begin, 1), "ranks": ranks}


def ahead_ns(clock: Row | None, times_ns: _Times) -> _Times:
    """How far the clock of a rank, a row of `clocks`, is ahead at these times, in ns."""
    if clock is None:
        return np.zeros(len(times_ns), dtype=np.int64)
    drift = clock["drift_ppm"] * 1e-6 * (times_ns - clock["origin_ns"])
    ahead: _Times = np.rint(clock["offset_ns"] + drift).astype(np.int64)
    return ahead


def _coarser(whole: Spans, most: int) -> Spans:
    """Merge spans over the shortest gaps until at most `most` are left."""
    if len(whole.starts) <= most:
        return whole
    gaps = whole.starts[1:] - whole.ends[:-1]
    kept = np.sort(np.argpartition(gaps, -(most - 1))[-(most - 1) :])
    return Spans(whole.starts[np.concatenate(([0], kept + 1))], whole.ends[np.concatenate((kept, [-1]))])


def _relative(whole: Spans) -> list[int]:
    """Gap and length of each span in turn, in ns."""
    edges = np.column_stack((whole.starts, whole.ends)).ravel()
    relative: list[int] = np.diff(edges, prepend=0).tolist()
    return relative


def _collective(row: Row, names: _Names) -> list[Any]:
    """Name, bytes, group, its ranks, sequence number, last rank, and step."""
    return [
        names(row["collective"]),
        row["size_bytes"],
        names(row["process_group"]),
        names(row["pg_ranks"]),
        row["seq"],
        row["last_rank"],
        row["step"],
        row["busbw_gb_per_s"] and float(f"{row['busbw_gb_per_s']:.6g}"),
    ]


def _worst(lateness: pd.DataFrame, shown: pd.DataFrame) -> list[Row]:
    """The rows of `lateness` about collectives that are shown."""
    return records(lateness[lateness["collective_id"].isin(shown["collective_id"])])


_EXTRA = ("compute", "memory", "comm", "data", "cpu", "start")


def _late(row: Row, names: _Names) -> list[Any]:
    """The late rank, its lateness, waiting caused, why, where that began, the kernel and operator, the extra times."""
    return [
        row["rank"],
        row["late_ns"],
        row["caused_wait_ns"],
        row["because"],
        row["origin_rank"],
        row["origin_because"],
        names(row["kernel"]),
        names(row["operator"]),
        [row[f"extra_{name}_ns"] for name in _EXTRA],
    ]


def _behind(
    analysis: Analysis, shown: pd.DataFrame, clocks: dict[int, Row], names: _Names
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the late rank and one that waited did before a collective, for those that made others wait most.

    Needs a run with details; without, nothing is yielded, since reading the files again may take long.
    """
    if not analysis.run.details:
        return
    late = analysis.lateness[analysis.lateness["collective_id"].isin(shown["collective_id"])]
    late = late[late["caused_wait_ns"].fillna(0) > 0].sort_values("caused_wait_ns", ascending=False, kind="stable")
    # The worst of every step, then the worst of all.
    steps = late["collective_id"].map(shown.set_index("collective_id")["step"])
    first = late[~steps.duplicated()]
    late = pd.concat([first, late[steps.duplicated()]]).head(_MOST_LATE)
    members = dict(list(analysis.participation.groupby("collective_id")))
    ended = {rank: np.sort(own["arrived_ns"] + own["dur_ns"]) for rank, own in analysis.participation.groupby("rank")}
    for row in records(late):
        own = members[row["collective_id"]]
        arrived = dict(zip(own["rank"], own["arrived_ns"], strict=True))
        if row["rank"] not in arrived:
            continue
        at = int(arrived[row["rank"]])
        waited = own[own["rank"] != row["rank"]].sort_values("wait_ns", ascending=False, kind="stable")
        other = int(waited["rank"].iloc[0]) if len(waited) else None
        before = ended[row["rank"]]
        place = int(np.searchsorted(before, at, side="right")) - 1
        previous = int(before[place]) if place >= 0 else at - row["late_ns"]
        begin = min(previous, at - row["late_ns"])
        room = max((at - begin) // 20, 1000)
        window = (begin - room, at + room)
        yield (
            str(row["collective_id"]),
            {
                "at": at - window[0],
                "long": window[1] - window[0],
                "arrived": None if other is None else int(arrived[other]) - window[0],
                "ranks": [
                    {"rank": rank, **_lanes(analysis.detailed(rank), analysis, rank, window, clocks.get(rank), names)}
                    for rank in (row["rank"], other)
                    if rank is not None
                ],
            },
        )


def _lanes(
    tables: EventTables, analysis: Analysis, rank: int, window: tuple[int, int], clock: Row | None, names: _Names
) -> dict[str, Any]:
    """What a rank did in the window: [name, start, duration, depth] of its CPU, launches, and [name, start, duration,
    kind] of its device, in ns since the window began."""
    ahead = int(ahead_ns(clock, np.array([window[0]]))[0])
    begin, end = window[0] + ahead, window[1] + ahead
    launches = _within(tables.launches.assign(dur_ns=0), begin, end)
    on_cpu = _within(pd.concat([tables.cpu_operators, tables.annotations], ignore_index=True), begin, end)
    busy = launches["thread"].value_counts() if len(launches) else on_cpu.groupby("thread")["dur_ns"].sum()
    thread = busy.idxmax() if len(busy) else None
    activities = analysis.run.activities
    device = _within(activities[activities["rank"] == rank], begin, end)
    kinds = {COMPUTE: "compute", COMM: "comm", MEMORY: "memory"}
    return {
        "cpu": [
            [names(name), start, dur, depth]
            for name, start, dur, depth in _nested(on_cpu[on_cpu["thread"] == thread], begin, end)
        ],
        "launches": (launches["start_ns"] - begin)[launches["thread"] == thread].tolist()[: 4 * _MOST_EVENTS],
        "device": [
            [names(row["name"]), max(row["start_ns"] - begin, 0), row["dur_ns"], kinds[row["kind"]]]
            for row in records(_longest(device, _MOST_EVENTS))
        ],
    }


def _within(table: pd.DataFrame, begin: int, end: int) -> pd.DataFrame:
    return table[(table["start_ns"] < end) & (table["start_ns"] + table["dur_ns"] >= begin)]


def _longest(table: pd.DataFrame, most: int) -> pd.DataFrame:
    return table.loc[table["dur_ns"].nlargest(most).index].sort_values("start_ns", kind="stable")


def _nested(table: pd.DataFrame, begin: int, end: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, start, duration and depth of the longest intervals of a thread, cut to the window."""
    order = table.sort_values(["start_ns", "dur_ns"], ascending=[True, False], kind="stable")
    depths, open_ends = [], list[int]()
    for start, dur in zip(order["start_ns"], order["dur_ns"], strict=True):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        depths.append(len(open_ends))
        open_ends.append(start + dur)
    shown = order.assign(depth=depths)
    shown = shown[shown["depth"] < _MOST_DEPTH]
    for row in records(_longest(shown, _MOST_EVENTS)):
        start = max(row["start_ns"], begin)
        yield row["name"], start - begin, min(row["start_ns"] + row["dur_ns"], end) - start, row["depth"]
