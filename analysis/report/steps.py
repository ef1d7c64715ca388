"""What the page holds of every step, so that people can go down from a number to the calls and the CPU behind it.

One JSON value, which `assets/steps.js` draws: for each step and device compute, copies and calls; for each collective
who came last and why; and for those that made others wait most, what the CPU and the device of the late rank did
before, beside a rank that waited. Times of calls are exact, in ns; spans of compute are merged over short gaps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...common.wording import ranges_of
from ..core.escaping import printable
from ..core.intervals import Spans
from ..core.kinds import COMM, COMPUTE, MEMORY
from ..core.schema import Row, bare, grouped, records
from ..errors import NothingMeasured
from ..metrics.verdicts.thresholds import LITTLE_BYTES
from ..render.fitting import shortened_kernel
from ..render.plots.step import ahead_ns, coarser
from ..results.analysis import Analysis
from .device_spans import LEAST_SPANS, MOST_SPANS, WHOLE, DeviceSpans, drawn_spans

_MOST_CHARACTERS = 2_600_000
"""Of all steps in a page, which has 4 MB."""
_OF_CALL, _OF_SPAN = 20, 14
"""Characters of one; a device has spans of compute and of copies."""
_MOST_LATE = 40
"""Collectives of which the page holds what CPUs did before."""
_MOST_EVENTS, _MOST_DEPTH = 160, 7
_LONGEST_NAME = 60
_MOST_ROWS = 64
"""Ranks of which all are drawn at first."""
_EVENT_COSTS, _EVENT_TAKES = 0.05, 0.005
"""Of a step: what calls of a CPU cost together, and one takes, to be drawn."""
_MOST_RANKS_WITH_EVENTS, _MOST_DRAWN = 16, 48
_Times = NDArray[np.int64]


@dataclass(frozen=True)
class StepsData:
    """The JSON, the step to begin with, and a note on what was left out."""

    json: str
    first: int
    note: str
    calls: bool
    """Whether there are any calls in them."""
    ranks: str = ""
    """Which ranks are drawn at first, as `0-7,12`; empty for all."""


class StepsOfRun:
    """The steps of a run, each as the page draws it. Raises NothingMeasured where no device did anything in them."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        calls = analysis.participation
        if not analysis.run.steps:
            calls = calls.assign(step=WHOLE)
        waited = calls.assign(wait=calls["exposed_wait_ns"].fillna(0)).groupby("step")["wait"].sum()
        self._devices: dict[int, list[DeviceSpans]] = {}
        for device in analysis.of(drawn_spans):
            self._devices.setdefault(device.step, []).append(device)
        self._devices = dict(sorted(self._devices.items()))
        if not self._devices:
            raise NothingMeasured(f"{analysis.run.name}: no device did anything in its steps")
        self._calls = _Calls(calls)
        by_waiting = waited.reindex(list(self._devices), fill_value=0).sort_values(ascending=False, kind="stable")
        self.order = [int(step) for step in by_waiting.index]
        """Numbers of the steps, that with most exposed waiting first."""
        self.first = self._worst_step()
        """The step that loses most of those that count, by waiting and idle time of all devices: to begin with."""
        self._of_rank: dict[int, _Did] = {}
        self._clocks = {row["rank"]: row for row in records(analysis.clocks)}
        step_of = calls.drop_duplicates("collective_id").set_index("collective_id")["step"]
        self._collectives = analysis.collectives[analysis.collectives["collective_id"].isin(step_of.index)]
        self._collectives = self._collectives.assign(step=self._collectives["collective_id"].map(step_of))

    def _worst_step(self) -> int:
        table = self._analysis.table("breakdown_steps")
        counted = table[table["step"].isin(self._analysis.counted_steps or self.order)]
        lost = (counted["idle_ns"] + counted["exposed_wait_ns"].fillna(0)).groupby(counted["step"]).sum()
        lost = lost[lost.index.isin(self.order)]
        return int(lost.idxmax()) if len(lost) else self.order[0]

    def events(self, step: int, names: NameNumbers) -> list[list[Any]]:
        """Calls of CPUs that cost devices much of a step: rank, start, end, name, how many in a row, and their time.

        Times are on the common clock, in ns since the step began.
        """
        if not (self._analysis.run.details and self._analysis.run.has_starts):
            return []
        devices = self._devices[step]
        begin, end = min(device.begin for device in devices), max(device.end for device in devices)
        table = self._analysis.table("syncs_steps")
        of_step = table[table["step"].isna() if step == WHOLE else table["step"] == step]
        costly = of_step[of_step["lost_ns"] >= _EVENT_COSTS * (end - begin)]
        found = list[list[Any]]()
        of_ranks = costly.groupby("rank")["lost_ns"].sum().nlargest(_MOST_RANKS_WITH_EVENTS).index
        for rank in sorted(map(int, of_ranks)):
            called = set(costly["name"][costly["rank"] == rank])
            own = self._did(rank).long_calls
            own = own[own["name"].isin(called) & (own["dur_ns"] >= _EVENT_TAKES * (end - begin))]
            starts = own["start_ns"].to_numpy()
            starts = starts - ahead_ns(self._clocks.get(rank), starts) - begin
            rows = sorted(zip(starts.tolist(), own["dur_ns"].tolist(), own["name"].tolist(), strict=True))
            drawn = _in_a_row([(at, at + dur, name) for at, dur, name in rows], int(_EVENT_COSTS * (end - begin)))
            inside = [
                (max(at, 0), min(to, end - begin), *rest) for at, to, *rest in drawn if to > 0 and at < end - begin
            ]
            found += [[rank, at, to, names(name), *rest] for at, to, name, *rest in inside[:_MOST_DRAWN]]
        return found

    def count_calls(self, step: int) -> int:
        """Number of calls in a step."""
        return self._calls.count(step)

    def count_devices(self, step: int) -> int:
        """Number of devices that did something in a step."""
        return len(self._devices[step])

    def step_of(self, collective: int) -> int | None:
        """The step of a collective; None if there is none of this number."""
        steps = self._collectives["step"][self._collectives["collective_id"] == collective]
        return int(steps.iloc[0]) if len(steps) and pd.notna(steps.iloc[0]) else None

    def step(self, step: int, names: NameNumbers, most_spans: int = MOST_SPANS) -> dict[str, Any]:
        """A step with its collectives, and who was late to them; compute of a device in at most so many spans."""
        shown = self._collectives[self._collectives["step"] == step]
        late = self._analysis.lateness
        content = _step(step, self._devices[step], self._calls, most_spans)
        content["collectives"] = {str(row["collective_id"]): _collective(row, names) for row in records(shown)}
        of_step = records(late[late["collective_id"].isin(shown["collective_id"])])
        content["events"] = self.events(step, names)
        content["late"] = {str(row["collective_id"]): _late(row, names) for row in of_step}
        return content

    def worst(self, steps: Sequence[int], most: int) -> list[int]:
        """Collectives of these steps for which most was waited: the worst of every step, then the worst of all."""
        step_of = self._collectives.set_index("collective_id")["step"]
        late = self._analysis.lateness
        late = late.assign(step=late["collective_id"].map(step_of))
        late = late[late["step"].isin(steps) & (late["caused_wait_ns"].fillna(0) > 0)]
        late = late.sort_values("caused_wait_ns", ascending=False, kind="stable")
        first = ~late["step"].duplicated()
        worst: list[int] = pd.concat([late[first], late[~first]])["collective_id"].head(most).tolist()
        return worst

    def behind(self, collective: int, names: NameNumbers) -> dict[str, Any] | None:
        """What the late rank and one that waited did before a collective; None if nobody was late, or left no call."""
        lateness, members = self._analysis.lateness, self._analysis.participation
        rows = records(lateness[lateness["collective_id"] == collective])
        members = members[members["collective_id"] == collective]
        arrived = dict(zip(members["rank"], members["arrived_ns"], strict=True))
        if not rows or rows[0]["rank"] not in arrived:
            return None
        late = rows[0]
        at = int(arrived[late["rank"]])
        waited = members[members["rank"] != late["rank"]].sort_values("wait_ns", ascending=False, kind="stable")
        other = int(waited["rank"].iloc[0]) if len(waited) else None
        ended = self._ended.get(late["rank"], np.zeros(0, dtype=np.int64))
        place = int(np.searchsorted(ended, at, side="right")) - 1
        begin = min(int(ended[place]) if place >= 0 else at, at - late["late_ns"])
        room = max((at - begin) // 20, 1000)
        begin, end = begin - room, at + room
        return {
            "at": at - begin,
            "long": end - begin,
            "arrived": None if other is None else int(arrived[other]) - begin,
            "ranks": [
                {"rank": rank, **_lanes(self._did(rank), (begin, end), self._clocks.get(rank), names)}
                for rank in (late["rank"], other)
                if rank is not None
            ],
        }

    def _did(self, rank: int) -> _Did:
        if rank not in self._of_rank:
            tables = self._analysis.detailed(rank)
            on_cpu = pd.concat([tables.cpu_operators, tables.annotations], ignore_index=True)
            self._of_rank[rank] = _Did(
                tables.launches[["thread", "start_ns"]].assign(dur_ns=0),
                on_cpu[["thread", "name", "start_ns", "dur_ns"]],
                tables.activities[["kind", "name", "start_ns", "dur_ns"]],
                pd.concat(
                    [tables.runtime_calls[_SPAN], tables.cpu_operators[_SPAN], tables.annotations[_SPAN]],
                    ignore_index=True,
                ),
            )
        return self._of_rank[rank]

    @cached_property
    def _ended(self) -> dict[int, _Times]:
        """When the calls of each rank ended on the common clock, ascending."""
        calls = self._analysis.participation
        ends = grouped(calls.assign(end_ns=calls["arrived_ns"] + calls["dur_ns"]), ["rank"])
        return {rank: np.sort(own["end_ns"].to_numpy()) for (rank,), own in ends}


def steps_data(
    analysis: Analysis, first: int | None = None, ranks: Sequence[int] = (), most: int = _MOST_CHARACTERS
) -> StepsData | None:
    """As many steps as a page can hold, `first` and those with most waiting; None if there is nothing to show.

    Of more ranks than can be told apart these `ranks` are drawn at first. `first` is by default the step that loses
    most.
    """
    try:
        run = StepsOfRun(analysis)
    except NothingMeasured:
        return None
    first = run.first if first is None else first
    order = [first, *(step for step in run.order if step != first)]
    order = [step for step in order if step in run.order]
    kept = sorted(_kept(order, run, most))
    names = NameNumbers()
    left = most - _OF_CALL * sum(map(run.count_calls, kept))
    spans_each = left // (2 * _OF_SPAN * max(sum(map(run.count_devices, kept)), 1))
    spans_each = min(max(spans_each, LEAST_SPANS), MOST_SPANS)
    # Without details the files would have to be read again, which may take long.
    worst = run.worst(kept, _MOST_LATE) if analysis.run.details else []
    content = {
        "steps": [run.step(step, names, spans_each) for step in kept],
        "behind": {str(number): run.behind(number, names) for number in worst},
        "all": kept,
        "whole": WHOLE,
        "names": names.texts,
    }
    left_out = len(order) - len(kept)
    how = "`commtrace serve` shows all"
    note = f"{left_out:,} steps with less waiting are not in this page; {how}." if left_out else ""
    calls, drawn = any(map(run.count_calls, kept)), _drawn_at_first(run, order[0], ranks)
    return StepsData(compact_json(content), order[0], note, calls=calls, ranks=drawn)


def _drawn_at_first(run: StepsOfRun, step: int, ranks: Sequence[int]) -> str:
    return ranges_of(ranks, None).replace(", ", ",") if run.count_devices(step) > _MOST_ROWS and ranks else ""


def steps_to_ask_for(run: StepsOfRun, first: int | None = None, ranks: Sequence[int] = ()) -> StepsData:
    """The same for a page that asks for each step when it is looked at."""
    begin = first if first in run.order else run.first
    content = {"steps": [], "behind": {}, "all": sorted(run.order), "whole": WHOLE, "names": []}
    calls, drawn = any(map(run.count_calls, run.order)), _drawn_at_first(run, begin, ranks)
    return StepsData(compact_json(content), begin, "", calls=calls, ranks=drawn)


def compact_json(content: Any) -> str:
    """Compact JSON in ASCII."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=True)


class NameNumbers:
    """Each name once, as its number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._known: dict[str, int] = {}
        """The number of each name as it was given."""

    def __call__(self, name: Any) -> int | None:
        """The number of a name; None for NA."""
        number = self._known.get(name)
        if number is not None or name is None or pd.isna(name):
            return number
        text = shortened_kernel(printable(str(name)), _LONGEST_NAME)
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        self._known[name] = self._numbers[text]
        return self._numbers[text]


def _kept(order: Sequence[int], run: StepsOfRun, most: int) -> list[int]:
    """The first steps of the order, while they need no more characters than `most`; the first in any case."""
    kept: list[int] = []
    total = 0
    for step in order:
        total += _OF_CALL * run.count_calls(step) + 2 * _OF_SPAN * LEAST_SPANS * run.count_devices(step)
        if kept and total > most:
            break
        kept.append(step)
    return kept


class _Calls:
    """The calls of all steps, in order of step, rank, device and arrival; arrays of shape (calls,), -1 for NA."""

    def __init__(self, calls: pd.DataFrame) -> None:
        of_steps = calls[calls["step"].notna()]
        device, devices = pd.factorize(bare(of_steps["device"]))
        keys = [of_steps[name].to_numpy(dtype=np.int64) for name in ("step", "rank", "arrived_ns")]
        order = np.lexsort((keys[2], device, keys[1], keys[0]))
        columns = ("arrived_ns", "dur_ns", "wait_ns", "collective_id")
        self.arrived, self.dur, self.wait, self.collective = (
            of_steps[name].to_numpy(dtype=np.int64, na_value=-1)[order] for name in columns
        )
        step, rank, device = keys[0][order], keys[1][order], device[order]
        changes = np.flatnonzero(np.diff(step) | np.diff(rank) | np.diff(device)) + 1
        bounds = [0, *changes.tolist(), len(order)] if len(order) else [0]
        self._of = {
            (int(step[begin]), int(rank[begin]), str(devices[device[begin]])): slice(begin, end)
            for begin, end in pairwise(bounds)
        }
        self._counts = Counter(step.tolist())

    def count(self, step: int) -> int:
        """Number of calls in a step."""
        return self._counts[step]

    def of(self, step: int, rank: int, device: str) -> slice:
        """The places of the calls of a device in a step."""
        return self._of.get((step, rank, device), slice(0))


def _step(step: int, devices: Sequence[DeviceSpans], calls: _Calls, most: int) -> dict[str, Any]:
    """A step: all times are on the common clock, since its first activity."""
    several = len(devices) > len({device.rank for device in devices})
    begin, end = min(device.begin for device in devices), max(device.end for device in devices)
    ranks = []
    for device in sorted(devices, key=lambda one: (one.rank, one.device)):
        row: dict[str, Any] = {
            "rank": device.rank,
            "name": f"{device.rank} / {device.device}" if several else f"{device.rank}",
            "compute": _relative(coarser(device.compute, most), begin),
            "copies": _relative(coarser(device.copies, most), begin),
        }
        taken = calls.of(step, device.rank, device.device)
        row["start"] = np.diff(calls.arrived[taken] - begin, prepend=0).tolist()
        row["dur"] = calls.dur[taken].tolist()
        row["wait"] = calls.wait[taken].tolist()
        row["of"] = calls.collective[taken].tolist()
        ranks.append(row)
    return {"step": step, "long": max(end - begin, 1), "ranks": ranks}


def _relative(whole: Spans, begin: int) -> list[int]:
    """Gap and length of each span in turn, in ns."""
    edges = np.column_stack((whole.starts, whole.ends)).ravel() - begin
    relative: list[int] = np.diff(edges, prepend=0).tolist()
    return relative


def _collective(row: Row, names: NameNumbers) -> list[Any]:
    """Name, bytes, group, its ranks, sequence number, last rank, and step."""
    return [
        names(row["collective"]),
        row["size_bytes"],
        names(row["process_group"]),
        names(row["pg_ranks"]),
        row["seq"],
        row["last_rank"],
        row["step"],
        float(f"{row['busbw_gb_per_s']:.6g}") if row["busbw_gb_per_s"] and row["size_bytes"] >= LITTLE_BYTES else None,
    ]


_EXTRA = ("compute", "memory", "comm", "data", "cpu", "start")


def _late(row: Row, names: NameNumbers) -> list[Any]:
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


class _Did(NamedTuple):
    """What a rank did: its launches, the operators and annotations of its CPU, and its activities."""

    launches: pd.DataFrame
    on_cpu: pd.DataFrame
    activities: pd.DataFrame
    long_calls: pd.DataFrame


_SPAN = ["name", "start_ns", "dur_ns"]


def _in_a_row(calls: Sequence[tuple[int, int, str]], short: int) -> list[tuple[int, int, str, int, int]]:
    """Begin, end, name, number and time of calls, in order: `short` ones of a name that follow each other are one."""
    merged = list[tuple[int, int, str, int, int]]()
    for begin, end, name in calls:
        last = merged[-1] if merged else None
        is_next = last is not None and last[2] == name and begin - last[1] <= short
        if last is not None and is_next and max(end - begin, last[4] / last[3]) <= short:
            merged[-1] = (last[0], max(last[1], end), name, last[3] + 1, last[4] + end - begin)
        else:
            merged.append((begin, end, name, 1, end - begin))
    return merged


def _lanes(did: _Did, window: tuple[int, int], clock: Row | None, names: NameNumbers) -> dict[str, Any]:
    """What a rank did in the window: [name, start, duration, depth] of its CPU, launches, and [name, start, duration,
    kind] of its device, in ns since the window began."""
    ahead = int(ahead_ns(clock, np.array([window[0]]))[0])
    begin, end = window[0] + ahead, window[1] + ahead
    launches, on_cpu, device = (_within(table, begin, end) for table in (did.launches, did.on_cpu, did.activities))
    busy = launches["thread"].value_counts() if len(launches) else on_cpu.groupby("thread")["dur_ns"].sum()
    thread = busy.idxmax() if len(busy) else None
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
    for start, dur in zip(order["start_ns"].tolist(), order["dur_ns"].tolist(), strict=True):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        depths.append(len(open_ends))
        open_ends.append(start + dur)
    shown = order.assign(depth=depths)
    shown = shown[shown["depth"] < _MOST_DEPTH]
    for row in records(_longest(shown, _MOST_EVENTS)):
        start = max(row["start_ns"], begin)
        yield row["name"], start - begin, min(row["start_ns"] + row["dur_ns"], end) - start, row["depth"]
