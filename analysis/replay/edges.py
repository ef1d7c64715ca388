"""What an activity, or a blocked CPU, waited for on another stream: as far as a trace shows it.

Where a trace has numbers of events, these tell. Traces of Kineto have none: `cudaEventRecord` and
`cudaStreamWaitEvent`, where they were recorded, leave a few candidates; without them, what begins just as something on
another stream ends is taken to have waited for it. All of this must hold in every step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ..metrics.clocks.frame import Ints
from .programs import LONG_AGO, NONE, EventWaits, RankProgram

_TIGHT_NS, _INEXACT_NS = 6_000, 10_000
"""So much later than what it waited for, an activity begins at most, if only that tells; and so much earlier."""
_RECORDS, _WAITS = ("cudaEventRecord", "hipEventRecord"), ("cudaStreamWaitEvent", "hipStreamWaitEvent")
_BLOCKING = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "hipStreamSynchronize",
             "hipEventSynchronize", "hipDeviceSynchronize")  # fmt: skip


@dataclass(frozen=True)
class Edges:
    """`joins`: activity -> those of other streams that it starts after. `blocks`: call -> activities it ends after."""

    joins: dict[int, list[int]] = field(default_factory=dict)
    blocks: dict[int, list[int]] = field(default_factory=dict)


def edges_of(program: RankProgram) -> Edges:
    """The edges of one rank."""
    return Edges(_joins(program), _blocks(program))


def ready(program: RankProgram) -> tuple[Ints, Ints]:
    """When the one before on its stream ended, and when each activity was launched; LONG_AGO if that is not known."""
    before = np.where(np.diff(program.lane, prepend=NONE) == 0, np.append(LONG_AGO, program.end[:-1]), LONG_AGO)
    known = program.launch != NONE
    launched = np.full(len(program), LONG_AGO)
    launched[known] = program.call_start[program.launch[known]]
    return before, launched


def _joins(program: RankProgram) -> dict[int, list[int]]:
    """Activities of other streams that each one waited for, where that holds in every step."""
    if program.event_waits is not None:
        found = _numbered(program, program.event_waits)
    else:
        told = _told(program)
        found = [*told, *_tight(program, told)]
    ordinal = _ordinals(program)
    pairs = {(_key(program, ordinal, node), _key(program, ordinal, at)) for node, at in found}
    return _in_every_step(program, ordinal, found, pairs)


def _numbered(program: RankProgram, waits: EventWaits) -> list[tuple[int, int]]:
    """What is launched next on a stream that waits, and what was last on the stream of the event when it was recorded.

    Where that stream is not known, it is that of the last launch of the thread that recorded the event.
    """
    launched = np.flatnonzero(program.launch != NONE)
    launched = launched[np.argsort(program.launch[launched], kind="stable")]
    of_lane = {lane: launched[program.lane[launched] == lane] for lane in np.unique(program.lane).tolist()}
    threads = program.call_thread[program.launch[launched]]
    of_thread = {thread: launched[threads == thread] for thread in np.unique(threads).tolist()}
    found = []
    for call, lane, record, recorded_lane in zip(*(column.tolist() for column in waits), strict=True):
        if NONE in (call, lane, record):
            continue
        after = of_lane[lane]
        sources = of_lane[recorded_lane] if recorded_lane != NONE else of_thread.get(int(program.call_thread[record]))
        to = int(np.searchsorted(program.launch[after], call))
        at = -1 if sources is None else int(np.searchsorted(program.launch[sources], record)) - 1
        if to < len(after) and at >= 0 and sources is not None:
            found.append((int(after[to]), int(sources[at])))
    apart = [(node, at) for node, at in found if program.lane[node] != program.lane[at]]
    return [(node, at) for node, at in apart if _may_follow(program, at, node)]


def _told(program: RankProgram) -> list[tuple[int, int]]:
    """Of each launch after calls that make its stream wait: as many of the streams on which events were recorded last.

    Such an event stands for what was launched last on the stream of the launch before it.
    """
    code, names = pd.factorize(program.call_name)
    records, waits = (
        np.flatnonzero(np.isin(code, [k for k, name in enumerate(names) if str(name).startswith(begin)]))
        for begin in (_RECORDS, _WAITS)
    )
    of_call = np.full(len(code), NONE)
    known = program.launch != NONE
    of_call[program.launch[known]] = np.flatnonzero(known)
    happened: list[tuple[int, int]] = []
    waiting: Counter[int] = Counter()
    for thread in np.unique(program.call_thread[np.append(records, waits)]):
        launches = np.flatnonzero((of_call != NONE) & (program.call_thread == thread))
        own = records[program.call_thread[records] == thread]
        before = np.searchsorted(launches, own) - 1
        happened += zip(own[before >= 0].tolist(), of_call[launches[before[before >= 0]]].tolist(), strict=True)
        after = np.searchsorted(launches, waits[program.call_thread[waits] == thread])
        waiting.update(launches[after[after < len(launches)]].tolist())
    happened += [(call, NONE) for call in waiting]
    recorded: dict[int, tuple[int, int]] = {}
    found = []
    for call, source in sorted(happened):
        if source != NONE:
            recorded[int(program.lane[source])] = (call, source)
        else:
            node = int(of_call[call])
            lanes = sorted((place for lane, place in recorded.items() if lane != program.lane[node]), reverse=True)
            found += [(node, at) for _, at in lanes[: waiting[call]]]
    return [(node, at) for node, at in found if _may_follow(program, at, node)]


def _tight(program: RankProgram, told: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What began late, and just when something launched before it ended on another stream."""
    known = np.maximum(*ready(program))
    for node, at in told:
        known[node] = max(known[node], program.end[at])
    late = program.start - known > _TIGHT_NS
    found = []
    for lane in range(int(program.lane.max(initial=-1)) + 1):
        others = np.flatnonzero(program.lane != lane)
        own = np.flatnonzero((program.lane == lane) & late)
        if not len(others) or not len(own):
            continue
        by_end = others[np.argsort(program.end[others], kind="stable")]
        last = np.searchsorted(program.end[by_end], program.start[own], side="right") - 1
        for node, at in zip(own[last >= 0].tolist(), by_end[last[last >= 0]].tolist(), strict=True):
            if program.start[node] - program.end[at] <= _TIGHT_NS and _launched_before(program, at, node):
                found.append((node, at))
    return found


def _may_follow(program: RankProgram, first: int, second: int) -> bool:
    """Whether the second began when the first had ended, as exactly as devices tell the time."""
    return bool(program.end[first] <= program.start[second] + _INEXACT_NS)


def _launched_before(program: RankProgram, first: int, second: int) -> bool:
    a, b = program.launch[first], program.launch[second]
    return bool(a == NONE or b == NONE or a < b)


def _ordinals(program: RankProgram) -> Ints:
    """Which of its step and stream each activity is, from 0."""
    order = np.lexsort((program.start, program.step, program.lane))
    change = (np.diff(program.lane[order], prepend=NONE) != 0) | (np.diff(program.step[order], prepend=-2) != 0)
    begin = np.maximum.accumulate(np.where(change, np.arange(len(order)), 0))
    result = np.empty(len(order), dtype=np.int64)
    result[order] = np.arange(len(order)) - begin
    return result


def _key(program: RankProgram, ordinal: Ints, node: int) -> tuple[int, int]:
    return int(program.lane[node]), int(ordinal[node])


def _in_every_step(
    program: RankProgram,
    ordinal: Ints,
    found: list[tuple[int, int]],
    pairs: set[tuple[tuple[int, int], tuple[int, int]]],
) -> dict[int, list[int]]:
    """The edges found, and the same in all other steps, if none of these contradicts it."""
    lanes, numbers = zip(*{key for pair in pairs for key in pair}, strict=True) if pairs else ((), ())
    wanted = np.isin(program.lane, lanes) & np.isin(ordinal, numbers) & (program.step >= 0)
    place = {(int(program.step[node]), *_key(program, ordinal, node)): node for node in np.flatnonzero(wanted).tolist()}
    joins: dict[int, set[int]] = defaultdict(set)
    for node, at in found:
        joins[node].add(at)
    steps = np.unique(program.step[program.step >= 0]).tolist()
    for to, source in pairs:
        both = [(place.get((step, *to)), place.get((step, *source))) for step in steps]
        known = [(node, at) for node, at in both if node is not None and at is not None]
        if all(_may_follow(program, at, node) for node, at in known):
            for node, at in known:
                joins[node].add(at)
    return {node: sorted(sources) for node, sources in joins.items()}


def _blocks(program: RankProgram) -> dict[int, list[int]]:
    """For each call that waits for the device: the activity that ended last, of those launched before, by its end."""
    code, names = pd.factorize(program.call_name)
    named = np.isin(code, [k for k, name in enumerate(names) if str(name).startswith(_BLOCKING)])
    result: dict[int, list[int]] = {}
    launched = program.launch
    by_end = np.argsort(program.end, kind="stable")
    ends = program.end[by_end]
    for call in np.flatnonzero(named).tolist():
        upto = int(np.searchsorted(ends, program.call_end[call], side="right"))
        for node in by_end[max(upto - 64, 0) : upto][::-1].tolist():
            if launched[node] < call:
                result[call] = [node]
                break
    # A copy that has ended when its call returns was waited for.
    own = np.flatnonzero(program.launch != NONE)
    blocking = own[program.end[own] <= program.call_end[program.launch[own]]]
    for node in blocking.tolist():
        result.setdefault(int(program.launch[node]), []).append(node)
    return result
