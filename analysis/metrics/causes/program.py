"""What one rank's program did at any time: compute, copy, or wait for communication, data or its CPU.

The stream that computes most shows how far the program is; everything else runs beside it. A gap between two of its
activities is explained by what the stream waited for. Until the next activity was launched, that was the CPU; from then
on it was another stream, as a launched kernel runs as soon as it may. So the time of a rank falls into parts. As all
ranks run the same program, each part takes about equally long on all of them, unless something is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from ...core import markers
from ...core.arrays import Flags, Floats
from ...core.intervals import Spans, Times, covered, intersect, spans, subtract, union
from ...core.kinds import COMM, COMPUTE, KINDS, MEMORY
from ...core.schema import bare, text_codes
from ...core.steps import launch_times

PARTS = ("compute", "memory", "comm", "data", "cpu")
SPENT = (*PARTS, "own")  # communication of the compared group apart from other communication
_NEVER, _LATE = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_NO_KIND = -2
_DATA = markers.DATA_LOADER


class OnDevice(NamedTuple):
    """What one device ran in one cycle, in order of start; all of shape (activities,).

    `of_kind` has flags for each kind of activity. `launched_ns` is the largest number where that is not known.
    `on_main` are the activities of the stream that computes longest. `on_cpu` says that the device is a CPU.
    """

    of_kind: Mapping[str, Flags]
    start_ns: Times
    end_ns: Times
    launched_ns: Times
    on_main: Flags
    on_cpu: bool

    @classmethod
    def of(cls, activities: pd.DataFrame, launches: pd.DataFrame) -> OnDevice:
        """What the rows of one device and cycle say; `launches` are those of the cycle."""
        start = activities["start_ns"].to_numpy(dtype=np.int64)
        order = np.argsort(start, kind="stable")
        dur, stream = (bare(activities[name])[order] for name in ("dur_ns", "stream"))
        code, kinds = text_codes(activities["kind"])
        numbers = {kind: number for number, kind in enumerate(kinds)}
        of_kind = {kind: (code == numbers.get(kind, _NO_KIND))[order] for kind in KINDS}
        start = start[order]
        return cls(
            of_kind=of_kind,
            start_ns=start,
            end_ns=start + dur,
            launched_ns=_launched(activities["correlation"], launches)[order],
            on_main=_main_stream(stream, dur, of_kind[COMPUTE]),
            on_cpu=activities["device"].iloc[0] == "cpu",
        )


def _launched(correlation: pd.Series[int], launches: pd.DataFrame) -> Times:
    """When each activity was launched; the largest number where that is not known."""
    ids = np.asarray(correlation.to_numpy(dtype=np.int64, na_value=cast("Any", _NEVER)), dtype=np.int64)
    times = launch_times(ids, launches["correlation"].to_numpy(), launches["start_ns"].to_numpy())
    return np.where(times == _NEVER, np.iinfo(np.int64).max, times)


def _main_stream(stream: Times, dur_ns: Times, computing: Flags) -> Flags:
    """The activities of the stream that computes longest; all if nothing computes."""
    if not computing.any():
        return np.ones(len(stream), dtype=bool)
    streams, which = np.unique(stream[computing], return_inverse=True)
    took_ns = np.zeros(len(streams), dtype=np.int64)
    np.add.at(took_ns, which, dur_ns[computing])
    result: Flags = stream == streams[took_ns.argmax()]
    return result


class Waits(NamedTuple):
    """When a rank waited for others in its calls, and the ends of these waits, ascending."""

    spans: Spans
    ends: Times


class GroupCalls(NamedTuple):
    """When calls of the group ran whose members are compared, and when they waited.

    All members leave such a wait at once, so it makes none late for the next call; leaving a call late does.
    """

    calls: Spans
    waits: Spans


class Program(NamedTuple):
    """What one device of a rank did, on the rank's own clock.

    `parts` divide its time by PARTS; `comm` is when any communication ran. `launches` and `ends` are those of the
    activities of its main stream, ascending, and `steps` the times at which its CPU began a step.
    """

    parts: Mapping[str, Spans]
    comm: Spans
    launches: Times
    ends: Times
    steps: Times

    def ready_ns(self, issued: Times) -> Times:
        """When calls issued at these times could run at the earliest: once all that was launched before had ended."""
        before = np.searchsorted(self.launches, issued, side="left")
        ended = np.append(_NEVER, self.ends)[before]
        result: Times = np.maximum(ended, issued)
        return result

    def until(self, times: Times, group_calls: GroupCalls) -> Times:
        """How long each part of SPENT lasted up to each time, in ns; shape (SPENT, times).

        It counts from some time before, so only differences mean something. The calls of the compared group count as
        `own`, without their waits, and not as `comm`.
        """
        start = np.full(len(times), min((int(s.starts[0]) for s in self.parts.values() if len(s.starts)), default=0))
        comm = self.parts["comm"]
        parts = {
            **self.parts,
            "comm": subtract(comm, group_calls.calls),
            "own": intersect(comm, subtract(group_calls.calls, group_calls.waits)),
        }
        return np.array([covered(parts[part], start, np.maximum(times, start)) for part in SPENT])

    def queued(self, ready: Times, start: Times, group_calls: GroupCalls) -> Times:
        """How long communication of other groups ran between when calls were ready and their start, in ns."""
        return covered(subtract(self.comm, group_calls.calls), ready, np.maximum(start, ready))

    def first_step(self, issued: Times) -> Times:
        """When the step began in which each call was issued, if it is the first of the trace; else the least number."""
        first, second = (*self.steps[:2], _LATE, _LATE)[:2]
        return np.where((first <= issued) & (issued < second), first, _NEVER)

    def since_step(self, times: Times, issued: Times, group_calls: GroupCalls) -> Floats:
        """As `until`, but since the step began in which the call was issued; NaN outside of steps."""
        step = np.searchsorted(self.steps, issued, side="right") - 1
        began = np.append(self.steps, 0)[step]
        spent = self.until(times, group_calls) - self.until(np.minimum(began, times), group_calls)
        return np.where(step >= 0, spent, np.nan)


def program(ran: OnDevice, waits: Waits, marks: pd.DataFrame) -> Program:
    """The program of one device in one cycle.

    `waits` are its waits for other ranks; `marks` are the annotations of its CPU.
    """
    steps = np.sort(
        marks["start_ns"][marks["name"].str.startswith(markers.PROFILER_STEP).fillna(False)].to_numpy(dtype=np.int64)
    )
    data = _data_loading(marks)
    start, end, main = ran.start_ns, ran.end_ns, ~ran.of_kind[COMM] if ran.on_cpu else ran.on_main
    ended = np.maximum.accumulate(end[main])
    # A stream runs in order of launch, so an activity without one was launched before the next one.
    launched = np.minimum.accumulate(np.minimum(ran.launched_ns, start)[main][::-1])[::-1]
    begin = min([*steps[:1], *start[:1]], default=0)
    gaps = _Gaps(np.append(begin, ended[:-1])[: len(ended)], start[main], launched)
    of = {k: spans(start[flags], end[flags]) for k, flags in ran.of_kind.items()}
    of_main = {k: spans(start[main & flags], end[main & flags]) for k, flags in ran.of_kind.items()}
    ends = {k: np.sort(end[ran.of_kind[k]]) for k in (MEMORY, COMM)}
    held_up = gaps.on_cpu(ends[COMM], data) if ran.on_cpu else gaps.on_gpu(of, ends, waits, data)
    parts: dict[str, Spans] = {}
    taken = spans(start[:0], end[:0])
    # A moment that two parts could claim goes to the first: time at work is not held up, and what a DataLoader explains
    # is no unexplained time of the CPU.
    for part in ("compute", "memory", "comm", "data", "cpu"):
        whole = union(of_main[part], held_up[part]) if part in of_main else held_up[part]
        parts[part] = subtract(whole, taken)
        taken = union(taken, whole)
    return Program(parts, of[COMM], launched, ended, steps)


def _data_loading(annotations: pd.DataFrame) -> Spans:
    """When a CPU was waiting for its next batch, from the annotations of torch's DataLoader."""
    loading = annotations[annotations["name"].str.startswith(_DATA).fillna(False)]
    starts = loading["start_ns"].to_numpy(dtype=np.int64)
    return spans(starts, starts + loading["dur_ns"].to_numpy(dtype=np.int64))


class _Gaps(NamedTuple):
    """The gaps between activities of a stream, and when the activity behind each was launched; shape (gaps,)."""

    begin: Times
    end: Times
    launched: Times

    def on_cpu(self, comm_ends: Times, data: Spans) -> dict[str, Spans]:
        """The gaps of a CPU by part: up to the end of the last gloo operation in a gap it waits for that.

        The rest of the gap is its own, or waiting for data.
        """
        after = np.maximum(self.begin, _last_before(comm_ends, self.end))
        rest = spans(after, np.maximum(self.end, after))
        nothing = spans(after[:0], after[:0])
        return {
            "compute": nothing,
            "memory": nothing,
            "comm": spans(self.begin, np.maximum(np.minimum(after, self.end), self.begin)),
            "data": intersect(rest, data),
            "cpu": rest,
        }

    def on_gpu(self, of: Mapping[str, Spans], ends: Mapping[str, Times], waits: Waits, data: Spans) -> dict[str, Spans]:
        """The gaps of a GPU by part: up to the launch it waits for its CPU, from then on for other streams.

        The CPU may itself have waited, for communication, a copy or data. `of` and `ends` are when activities of each
        kind ran, and when they ended.
        """
        launched = np.clip(self.launched, self.begin, np.maximum(self.end, self.begin))
        idle = spans(self.begin, launched)
        held = spans(launched, np.maximum(self.end, launched))
        # A CPU that synchronises goes on when what it waits for has ended: such a wait is over before the launch.
        asleep = spans(self.begin, np.clip(_last_before(waits.ends, launched), self.begin, launched))
        copied = spans(self.begin, np.clip(_last_before(ends[MEMORY], launched), self.begin, launched))
        by_copy = _last_before(ends[MEMORY], self.end) > _last_before(ends[COMM], self.end)
        after_copy = spans(launched[by_copy], np.maximum(self.end, launched)[by_copy])
        memory = union(intersect(after_copy, of[MEMORY]), intersect(copied, of[MEMORY]))
        comm = union(intersect(held, of[COMM]), intersect(asleep, waits.spans))
        return {
            "compute": intersect(subtract(held, union(of[COMM], of[MEMORY])), of[COMPUTE]),
            "memory": union(memory, subtract(intersect(held, of[MEMORY]), of[COMM])),
            "comm": comm,
            "data": intersect(idle, data),
            "cpu": union(idle, held),
        }


def _last_before(ends: Times, times: Times) -> Times:
    """The last of `ends`, ascending, at or before each time; a time long ago if there is none."""
    result: Times = np.append(_NEVER, ends)[np.searchsorted(ends, times, side="right")]
    return result
