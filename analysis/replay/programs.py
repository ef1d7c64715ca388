"""The work of a rank in one cycle as arrays: activities by stream, calls of its CPU, and collectives.

All times are on the common clock, in ns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.arrays import Flags, Ints
from ..core.steps import NO_STEP
from ..metrics.clocks.table import aligned
from ..metrics.compute.contention import Slowdown
from ..metrics.periods import Period
from .host_time import HostTime
from .windows import StepWindows

NONE = -1
LONG_AGO = np.iinfo(np.int64).min // 4
_LONG_NS, _SOON = 200_000, 0.5
_GIVING_BACK = ("cudaFree", "hipFree")


Arrivals = dict[int, list[tuple[int, int]]]
"""Collective -> rank and arrival of each member, in ns."""


class EventWaits(NamedTuple):
    """Calls that made a stream wait: place, stream, the call that recorded the event, and that call's stream.

    Columns of shape (waits,), by call; NONE is not known, or a stream on which nothing ran.
    """

    call: Ints
    lane: Ints
    record: Ints
    recorded_lane: Ints


@dataclass(frozen=True)
class Recent:
    """What was found of ranks together, which most changes of a run ask for again: freed with the run.

    The last ones `alike`, with the members and whether they are across orders; and `graphs`, the newest first. Where
    steps repeat after a `period`, only those in the same place of it do the same.
    """

    alike: deque[tuple[tuple[RankProgram, ...], bool, Any]] = field(default_factory=lambda: deque(maxlen=8))
    graphs: deque[Any] = field(default_factory=deque)
    period: Period | None = None


@dataclass(frozen=True)
class RankProgram:
    """One rank in one cycle: `n` activities by stream and start, as columns of shape (n,); NONE is not known.

    `row` are those of the table, `lane` numbers devices and streams, `name` the names; `collective` is what an activity
    is a call of, `needs` the rank that it had to wait for, NONE for all members; it `is_unsplit` if nothing tells what
    of it was waiting. `launch` is the position of the CPU's call, whose columns, in order of start, begin with `call_`;
    a `call_name` is a place among `call_names`. What `overlaps` is of a stream on which several run at once, as gloo's
    sends and receives do, and waits for none of the others. Without a GPU, lane 0 is the CPU, and `issued_by` the
    activity after which it handed a collective over. `begun_ns` is when its CPU began the first step that the trace
    shows, and `idle_since` since when its devices waited before the first activity of a step, by step
    (`core.steps.step_windows`). Ranks of one number `linked` have a common clock. `event_waits` are all waits of
    streams, None where the trace does not tell for what each was. `host` is what else the CPU did, None where that was
    not read. A rank that `is_sending` calls others one by one, as stages of a pipeline do, of which each does work of
    its own. `slowdown` gives how many times as long compute takes beside communication, by rank as far as it is known.
    What is `recent` is shared by all ranks of a run.
    """

    rank: int
    row: Ints
    lane: Ints
    device: NDArray[Any]
    name: Ints
    start: Ints
    end: Ints
    step: Ints
    is_comm: Flags
    collective: Ints
    needs: Ints
    is_unsplit: Flags
    overlaps: Flags
    launch: Ints
    call_start: Ints
    call_end: Ints
    call_name: Ints
    call_thread: Ints
    call_names: Sequence[str] = ()
    issued_by: Ints | None = None
    begun_ns: int | None = None
    idle_since: Mapping[int, int] = field(default_factory=dict)
    linked: int = 0
    event_waits: EventWaits | None = None
    host: HostTime | None = None
    is_sending: bool = False
    slowdown: Callable[[], Mapping[int, Slowdown]] = dict
    recent: Recent = field(default_factory=Recent, repr=False, compare=False)

    def calls_named(self, is_so: Callable[[str], bool]) -> Flags:
        """Whether each call has a name of this sort."""
        named = np.array([is_so(name) for name in self.call_names], dtype=bool)
        return named[self.call_name] if len(named) else np.zeros(len(self.call_name), dtype=bool)

    @property
    def paced(self) -> Flags:
        """Whether each activity keeps its distance from the one before, as a CPU worked in between."""
        return np.zeros(len(self), dtype=bool) if self.issued_by is None else ~self.is_comm

    @cached_property
    def follows(self) -> Flags:
        """Whether each activity waits for the one before, on the same stream."""
        follows: Flags = (np.diff(self.lane, prepend=NONE) == 0) & ~self.overlaps
        return follows

    @property
    def rested(self) -> Ints:
        """How long a CPU did nothing in a step before the first activity of its trace, in ns; 0 for all others."""
        rested = np.zeros(len(self), dtype=np.int64)
        first = np.flatnonzero(self.paced)[:1]
        for node in first.tolist():
            start = int(self.start[node])
            rested[node] = max(start - self.idle_since.get(int(self.step[node]), start), 0)
        return rested

    @cached_property
    def windows(self) -> StepWindows:
        """Where its steps begin and end."""
        return self._windows(np.ones(len(self), dtype=bool))

    @cached_property
    def windows_without_comm(self) -> StepWindows:
        """Where its steps begin and end if communication is left out."""
        return self._windows(~self.is_comm)

    def _windows(self, counts: Flags) -> StepWindows:
        return StepWindows.of(self.lane, steps_of(self), self.start, self.end, counts, self.idle_since)

    def __len__(self) -> int:
        return len(self.start)


def steps_of(program: RankProgram) -> Ints:
    """Step of each activity, NO_STEP for none; 0 for all if no steps are marked."""
    return program.step if (program.step >= 0).any() else np.zeros_like(program.step)


def gpu_program(
    activities: pd.DataFrame, called: pd.DataFrame, waited: pd.DataFrame, marks: pd.DataFrame, clocks: pd.DataFrame
) -> RankProgram:
    """The program of a rank with a GPU, from its activities, their calls, and its CPU's calls."""
    streams = pd.MultiIndex.from_frame(activities[["device", "stream"]])
    lanes = streams.unique().sort_values()
    lane = lanes.get_indexer(streams)
    start = aligned(activities["start_ns"], activities["rank"], clocks).to_numpy()
    end = start + activities["dur_ns"].to_numpy()
    order = np.lexsort((end, start, lane))
    called = called.assign(start_ns=aligned(called["start_ns"], called["rank"], clocks)) if len(called) else called
    called = _with_hidden_waits(called.sort_values("start_ns", kind="stable"), activities["correlation"], end)
    launch = _launches(activities["correlation"], called["correlation"])
    call_start = called["start_ns"].to_numpy()
    call_name, call_names = pd.factorize(called["name"].to_numpy(dtype=object))
    return RankProgram(
        rank=int(activities["rank"].iloc[0]),
        row=activities["row"].to_numpy()[order],
        lane=lane[order],
        device=activities["device"].to_numpy()[order],
        name=activities["code"].to_numpy()[order],
        start=start[order],
        end=end[order],
        step=activities["step"].to_numpy(dtype=np.int64, na_value=NO_STEP)[order],
        is_comm=(activities["kind"] == "comm").to_numpy(dtype=bool)[order],
        collective=activities["collective_id"].to_numpy(dtype=np.int64, na_value=NONE)[order],
        needs=activities["needs"].to_numpy(dtype=np.int64, na_value=NONE)[order],
        is_unsplit=unsplit(activities)[order],
        overlaps=np.zeros(len(order), dtype=bool),
        launch=launch[order],
        call_start=call_start,
        call_end=call_start + called["dur_ns"].to_numpy(),
        call_name=call_name,
        call_thread=called["thread"].to_numpy(),
        call_names=list(map(str, call_names)),
        idle_since=idle_since(activities, clocks),
        begun_ns=int(aligned(marks["start_ns"], marks["rank"], clocks).min()) if len(marks) else None,
        linked=int(clocks.set_index("rank").loc[activities["rank"].iloc[0], "linked"]),
        event_waits=_event_waits(waited, called["correlation"], lanes) if len(waited) else None,
    )


def idle_since(activities: pd.DataFrame, clocks: pd.DataFrame) -> dict[int, int]:
    """Since when the devices of a rank waited before the first activity of each step, on the common clock."""
    known = activities[activities["idle_since_ns"].notna()]
    since = aligned(known["idle_since_ns"].astype("int64"), known["rank"], clocks)
    return dict(zip(known["step"].astype("int64").tolist(), since.tolist(), strict=True))


def unsplit(activities: pd.DataFrame) -> Flags:
    """Whether each activity is communication of unknown wait."""
    is_split: Flags = activities["is_split"].eq(True).to_numpy(dtype=bool, na_value=False)
    return (activities["kind"] == "comm").to_numpy(dtype=bool) & ~is_split


def _event_waits(waited: pd.DataFrame, of_call: pd.Series[int], lanes: pd.Index[Any]) -> EventWaits:
    """Waits of streams by call; `lanes` are devices and streams in the order of their numbers."""
    call, record = (_launches(waited[name], of_call) for name in ("correlation", "recorded"))
    order = np.argsort(call, kind="stable")
    lane, recorded_lane = (
        lanes.get_indexer(pd.MultiIndex.from_arrays([waited["device"], waited[stream]]))
        for stream in ("stream", "recorded_stream")
    )
    return EventWaits(call[order], lane[order], record[order], recorded_lane[order])


def _with_hidden_waits(called: pd.DataFrame, correlation: pd.Series[int], end: Any) -> pd.DataFrame:
    """Add calls in which the CPU must have waited without a record. `called` is sorted by start.

    A long time passes between two calls, in which something on the device ends, and the next call follows soon. If
    only launches were recorded, all that was launched has to end. Before memory is given back, the allocator of torch
    waits for events, of which a trace need not tell; there anything may end, and calls of other threads do not count.
    """
    if not len(called):
        return called
    begin = called["start_ns"].to_numpy()
    done = begin + called["dur_ns"].to_numpy()
    position = _launches(correlation, called["correlation"])
    known = position != NONE
    waits: list[tuple[int, int, int]] = []  # The call after it, its begin and end.
    if called["correlation"].isin(correlation.dropna()).all():
        last_end = np.full(len(called), LONG_AGO)
        np.maximum.at(last_end, position[known], end[known])
        last_end = np.maximum.accumulate(last_end)
        waits += zip(range(1, len(called)), done[:-1].tolist(), last_end[:-1].tolist(), strict=True)
    threads, ends = called["thread"].to_numpy(), np.sort(end[known])
    for call in np.flatnonzero(called["name"].str.startswith(_GIVING_BACK).to_numpy(dtype=bool)).tolist():
        before = np.flatnonzero(threads[:call] == threads[call])
        ended = int(np.searchsorted(ends, begin[call], side="right")) - 1
        if len(before) and ended >= 0:
            waits.append((call, int(done[before[-1]]), int(ends[ended])))
    hidden = [
        (call, since, until)
        for call, since, until in waits
        if begin[call] - since > _LONG_NS and 0 <= begin[call] - until < (begin[call] - since) * _SOON
    ]
    if not hidden:
        return called
    calls, since, until = map(list, zip(*hidden, strict=True))
    added = called.iloc[calls].assign(
        name="cudaDeviceSynchronize", start_ns=since, dur_ns=np.array(until) - np.array(since)
    )
    added["correlation"] = pd.array([None] * len(added), dtype="Int64")
    return pd.concat([called, added.astype(called.dtypes)]).sort_values("start_ns", kind="stable")


def _launches(of_activity: pd.Series[int], of_call: pd.Series[int]) -> Ints:
    """Place of the first call with each activity's correlation."""
    known = np.flatnonzero(of_call.notna())
    calls = pd.Series(known, index=of_call.iloc[known].to_numpy(dtype=np.int64))
    first = calls[~calls.index.duplicated()]
    at = first.index.get_indexer(pd.Index(of_activity.to_numpy(dtype=np.int64, na_value=LONG_AGO)))
    places: Ints = np.where(at >= 0, first.to_numpy()[at] if len(first) else NONE, NONE)
    return places


def arrivals(members: Sequence[RankProgram]) -> Arrivals:
    """Members of each collective and their arrival times."""
    arrived: Arrivals = {}
    for program in members:
        for node in np.flatnonzero(program.collective != NONE).tolist():
            arrived.setdefault(int(program.collective[node]), []).append((program.rank, int(program.start[node])))
    return arrived


def last_arrival(program: RankProgram, node: int, arrived: Arrivals) -> tuple[int, int]:
    """The last needed rank and its arrival; the call's own rank if it is as late."""
    needs = int(program.needs[node])
    others = [(at, rank) for rank, at in arrived[int(program.collective[node])] if needs in (NONE, rank)]
    at, rank = max(others, default=(LONG_AGO, NONE))
    own_start_ns = int(program.start[node])
    return (rank, at) if at > own_start_ns else (program.rank, own_start_ns)
