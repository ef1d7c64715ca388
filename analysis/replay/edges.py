"""What an activity, or a blocked CPU, waited for on another stream: as far as a trace shows it.

A trace has no numbers of events. Where `cudaEventRecord` and `cudaStreamWaitEvent` were recorded, they leave a few
candidates; without them, what begins just as something on another stream ends is taken to have waited for it. Both
must hold in every step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from ..metrics.clocks.frame import Ints
from .programs import LONG_AGO, NONE, RankProgram

_TIGHT_NS = 6_000
"""So much later than what it waited for, an activity or a call begins or ends at most."""
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
    """For each activity that begins just when one of another stream ends: that one, if that holds in every step."""
    before, launched = ready(program)
    late = program.start - np.maximum(before, launched) > _TIGHT_NS
    ordinal = _ordinals(program)
    seen: dict[tuple[int, int], dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
    found: dict[int, int] = {}
    for lane in range(int(program.lane.max(initial=-1)) + 1):
        others = np.flatnonzero(program.lane != lane)
        own = np.flatnonzero((program.lane == lane) & late)
        if not len(others) or not len(own):
            continue
        by_end = others[np.argsort(program.end[others], kind="stable")]
        last = np.searchsorted(program.end[by_end], program.start[own], side="right") - 1
        for node, at in zip(own[last >= 0].tolist(), by_end[last[last >= 0]].tolist(), strict=True):
            if program.start[node] - program.end[at] <= _TIGHT_NS and _launched_before(program, at, node):
                found[node] = at
                seen[_key(program, ordinal, node)][_key(program, ordinal, at)] += 1
    return _in_every_step(program, ordinal, found, seen)


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
    found: dict[int, int],
    seen: dict[tuple[int, int], dict[tuple[int, int], int]],
) -> dict[int, list[int]]:
    """The edges found in any step, in all steps where they are not contradicted."""
    place = {
        (int(step), *_key(program, ordinal, node)): node for node, step in enumerate(program.step.tolist()) if step >= 0
    }
    joins: dict[int, list[int]] = {node: [at] for node, at in found.items() if program.step[node] < 0}
    steps = sorted({int(step) for step in program.step.tolist() if step >= 0})
    for to, sources in seen.items():
        for source, count in sources.items():
            pairs = [(place.get((step, *to)), place.get((step, *source))) for step in steps]
            known = [(b, a) for b, a in pairs if a is not None and b is not None]
            holds = [(b, a) for b, a in known if program.end[a] <= program.start[b]]
            if len(holds) == len(known):
                for b, a in holds:
                    joins.setdefault(b, []).append(a)
            else:
                for b, a in found.items():
                    if (_key(program, ordinal, b), _key(program, ordinal, a)) == (to, source):
                        joins.setdefault(b, []).append(a)
            del count
    return {node: sorted(set(sources)) for node, sources in joins.items()}


def _blocks(program: RankProgram) -> dict[int, list[int]]:
    """For each call that waits for the device: the activity that ended last, of those launched before, by its end."""
    named = np.array([str(name).startswith(_BLOCKING) for name in program.call_name], dtype=bool)
    result: dict[int, list[int]] = {}
    launched = np.where(program.launch == NONE, NONE, program.launch)
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
