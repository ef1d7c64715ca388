"""Find what an activity, or a blocked CPU, waited for on another stream, from what a trace shows.

Where a trace has numbers of events, these tell. Traces of Kineto have none: `cudaEventRecord` and
`cudaStreamWaitEvent`, where they were recorded, leave a few candidates; without them, what begins just as something on
another stream ends is taken to have waited for it. All of this must hold in every step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from ..core.arrays import Ints
from .alike import peers
from .programs import LONG_AGO, NONE, EventWaits, RankProgram

_TIGHT_NS, _INEXACT_NS = 6_000, 10_000
"""So much later than what it waited for, an activity begins at most, if only that tells; and so much earlier."""
_TIGHT_FRAC, _LOOSE_NS = 0.005, 20_000
"""If it was held up for long, it may be this part of that later, but no more: what ends so near is no coincidence."""
ROUNDED_NS = 1_000
"""Times since 1970 are written as us in numbers of 53 bits, or as whole us: so much earlier the end may be written."""
_NEARLY_ALL = 0.99
_OFTEN = 2
"""Times that a wait must be seen for others to be taken to wait so, too."""
_RECORDS, _WAITS = ("cudaEventRecord", "hipEventRecord"), ("cudaStreamWaitEvent", "hipStreamWaitEvent")
_BLOCKING = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "hipStreamSynchronize",
             "hipEventSynchronize", "hipDeviceSynchronize", "cudaFree", "hipFree")  # fmt: skip
_NOT_BLOCKING = ("cudaFreeAsync", "hipFreeAsync")
"""To give memory back, the runtime waits for the device, unless that is left to a stream."""

_Join = tuple[int, int]
"""An activity, and one of another stream that it waited for."""
_Kind = tuple[int, int]
"""Stream and name."""
_Place = tuple[int, int, int]
"""Stream, name, and which of that name in a step."""
_Pair = tuple[_Place, _Place, int]


@dataclass(frozen=True)
class Edges:
    """`joins`: activity -> activities of other streams it starts after; `blocks`: call -> activities it ends after."""

    joins: dict[int, list[int]] = field(default_factory=dict)
    blocks: dict[int, list[int]] = field(default_factory=dict)

    @cached_property
    def pairs(self) -> tuple[Ints, Ints]:
        """`joins` and `blocks` as pairs (what waits, and for what); shapes (2, joins) and (2, blocks)."""
        joins, blocks = (
            np.array([(key, source) for key, sources in of.items() for source in sources], dtype=np.int64)
            for of in (self.joins, self.blocks)
        )
        return joins.reshape(-1, 2).T, blocks.reshape(-1, 2).T


def gpu_edges(members: Sequence[RankProgram]) -> list[Edges]:
    """The edges of ranks with a GPU, by member."""
    joins = _in_every_step(members, [_joins(program) for program in members])
    return [Edges(of_member, _blocks(program)) for program, of_member in zip(members, joins, strict=True)]


def ready(program: RankProgram) -> tuple[Ints, Ints]:
    """End of the activity before that each one follows, and its launch, in ns; LONG_AGO if not known."""
    before = np.where(program.follows, np.append(LONG_AGO, program.end[:-1]), LONG_AGO)
    known = program.launch != NONE
    launched = np.full(len(program), LONG_AGO)
    launched[known] = program.call_start[program.launch[known]]
    return before, launched


def _joins(program: RankProgram) -> list[_Join]:
    """Pairs of an activity and one on another stream that it waited for."""
    if program.event_waits is not None:
        return _numbered(program, program.event_waits)
    joins = _event_candidates(program)
    joins += _tight(program, joins)
    return [*joins, *_of_current_stream(program, joins)]


def _numbered(program: RankProgram, waits: EventWaits) -> list[tuple[int, int]]:
    """Pairs (next launch on the waiting stream, last activity on the event's stream when recorded).

    Where that stream is not known, it is that of the last launch of the thread that recorded the event.
    """
    launched = np.flatnonzero(program.launch != NONE)
    launched = launched[np.argsort(program.launch[launched], kind="stable")]
    of_lane = {lane: launched[program.lane[launched] == lane] for lane in np.unique(program.lane).tolist()}
    threads = program.call_thread[program.launch[launched]]
    of_thread = {thread: launched[threads == thread] for thread in np.unique(threads).tolist()}
    pairs = []
    for call, lane, record, recorded_lane in zip(*(column.tolist() for column in waits), strict=True):
        if NONE in (call, lane, record):
            continue
        after = of_lane[lane]
        sources = of_lane[recorded_lane] if recorded_lane != NONE else of_thread.get(int(program.call_thread[record]))
        to = int(np.searchsorted(program.launch[after], call))
        at = -1 if sources is None else int(np.searchsorted(program.launch[sources], record)) - 1
        if to < len(after) and at >= 0 and sources is not None:
            pairs.append((int(after[to]), int(sources[at])))
    apart = [(node, at) for node, at in pairs if program.lane[node] != program.lane[at]]
    return [(node, at) for node, at in apart if _may_follow(program, at, node)]


def _is_wait(call: str) -> bool:
    return call.startswith(_WAITS)


def _event_candidates(program: RankProgram) -> list[tuple[int, int]]:
    """Pairs of a launch after stream waits, and an activity that an event may stand for: the latest, one per wait.

    Such an event stands for what was launched last on the stream of the launch before it. Where a trace shows waits but
    no records, as those of torch 2.1, every launch may have been recorded.
    """
    records = np.flatnonzero(program.calls_named(lambda name: name.startswith(_RECORDS)))
    waits = np.flatnonzero(program.calls_named(_is_wait))
    of_call = np.full(len(program.call_start), NONE)
    known = program.launch != NONE
    of_call[program.launch[known]] = np.flatnonzero(known)
    happened: list[tuple[int, int]] = []
    waiting: Counter[int] = Counter()
    for thread in np.unique(program.call_thread[np.append(records, waits)]):
        launches = np.flatnonzero((of_call != NONE) & (program.call_thread == thread))
        recorded_here = records[program.call_thread[records] == thread]
        before = np.searchsorted(launches, recorded_here) - 1
        happened += zip(
            recorded_here[before >= 0].tolist(), of_call[launches[before[before >= 0]]].tolist(), strict=True
        )
        after = np.searchsorted(launches, waits[program.call_thread[waits] == thread])
        waiting.update(launches[after[after < len(launches)]].tolist())
    if not len(records):
        happened += [(call, int(of_call[call])) for call in np.flatnonzero(of_call != NONE).tolist()]
    # What a launch waits for comes before it.
    happened += [(call, NONE) for call in waiting]
    recorded: dict[int, tuple[int, int]] = {}
    pairs = []
    for call, source in sorted(happened):
        if source != NONE:
            recorded[int(program.lane[source])] = (call, source)
        else:
            node = int(of_call[call])
            lanes = sorted((place for lane, place in recorded.items() if lane != program.lane[node]), reverse=True)
            pairs += [(node, at) for _, at in lanes[: waiting[call]]]
    return [(node, at) for node, at in pairs if _may_follow(program, at, node)]


def _tight(program: RankProgram, known_pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs of a late activity and an earlier one whose end on another stream it began at."""
    known = np.maximum(*ready(program))
    for node, at in known_pairs:
        known[node] = max(known[node], program.end[at])
    held_ns = program.start - known
    late, tight_ns = held_ns > _TIGHT_NS, np.clip(_TIGHT_FRAC * held_ns, _TIGHT_NS, _LOOSE_NS)

    def begins_at(at: int, node: int) -> bool:
        return bool(program.start[node] - program.end[at] <= tight_ns[node]) and _launched_before(program, at, node)

    pairs = []
    for lane in range(int(program.lane.max(initial=-1)) + 1):
        others = np.flatnonzero(program.lane != lane)
        late_here = np.flatnonzero((program.lane == lane) & late)
        if not len(others) or not len(late_here):
            continue
        by_end = others[np.argsort(program.end[others], kind="stable")]
        ends = program.end[by_end]
        last, rounded = (
            np.searchsorted(ends, program.start[late_here] + later, side="right") - 1 for later in (0, ROUNDED_NS)
        )
        for node, *places in zip(late_here.tolist(), last.tolist(), rounded.tolist(), strict=True):
            ended = [at for place in places if place >= 0 and begins_at(at := int(by_end[place]), node)]
            pairs += [(node, at) for at in ended[:1]]
    return pairs


def _of_current_stream(program: RankProgram, seen: Sequence[_Join]) -> list[_Join]:
    """Pairs of a collective and what its thread launched last on another stream, where others like it wait for that.

    torch lets each collective wait for the stream that is current where it is called, and that for what it has to wait
    for. Behind another collective of its own stream this does not show: were that one shorter, it would begin where
    the work before it ends, and not sooner. Of collectives called on a stream of their own, as FSDP gathers ahead, some
    begin before that work has ended.
    """
    known, pairs = set(seen), []
    launched = np.flatnonzero(program.launch != NONE)
    launched = launched[np.argsort(program.launch[launched], kind="stable")]
    threads = program.call_thread[program.launch[launched]]
    of_kind: dict[tuple[int, int, int], list[_Join]] = defaultdict(list)
    for thread in np.unique(threads).tolist():
        here = launched[threads == thread]
        lanes, calls = program.lane[here], np.flatnonzero(program.is_comm[here])
        for lane in np.unique(lanes).tolist():
            of_lane = np.flatnonzero(lanes == lane)
            before = np.searchsorted(of_lane, calls) - 1
            others = (before >= 0) & (lanes[calls] != lane)
            nodes, sources = here[calls[others]].tolist(), here[of_lane[before[others]]].tolist()
            for node, at in zip(nodes, sources, strict=True):
                of_kind[int(program.lane[node]), int(program.name[node]), lane].append((node, at))
    for alike in of_kind.values():
        if not known.isdisjoint(alike) and all(_may_follow(program, at, node) for node, at in alike):
            pairs += [pair for pair in alike if pair not in known]
    return pairs


def _may_follow(program: RankProgram, first: int, second: int) -> bool:
    """Whether the second began after the first had ended, within the precision of device times."""
    return bool(program.end[first] <= program.start[second] + _INEXACT_NS)


def _launched_before(program: RankProgram, first: int, second: int) -> bool:
    """Whether the first was launched before the second; calls that overlap may have been made in either order."""
    a, b = program.launch[first], program.launch[second]
    return bool(a == NONE or b == NONE or program.call_start[a] < program.call_end[b])


def _in_every_step(members: Sequence[RankProgram], seen: Sequence[list[_Join]]) -> list[dict[int, list[int]]]:
    """Repeat the edges seen in all other steps and on ranks that do the same, if nothing contradicts.

    A rank that is always late shows only what makes it late; the others show what it would wait for if it were not. An
    edge is taken from another rank only if it was seen twice.
    """
    places = [_Places.of(program) for program in members]
    pairs = [
        Counter(pair for node, at in edges if (pair := of.pair(node, at)) is not None)
        for of, edges in zip(places, seen, strict=True)
    ]
    like = peers(members)
    on_others: dict[int, Counter[_Pair]] = {}
    for group, counts in zip(like, pairs, strict=True):
        on_others.setdefault(group, Counter()).update(counts)
    for group, counts in on_others.items():
        of_group = [of for number, of in zip(like, places, strict=True) if number == group]
        counts.update(dict.fromkeys(_going_on(of_group, counts), _OFTEN))
    known = [of.edges([*on_others[group]]) for group, of in zip(like, places, strict=True)]
    holds = [
        {pair for pair, edges in of_pair.items() if all(_may_follow(program, at, node) for node, at in edges)}
        for program, of_pair in zip(members, known, strict=True)
    ]
    contradicted: dict[int, set[_Pair]] = defaultdict(set)
    for group, of_pair, held in zip(like, known, holds, strict=True):
        contradicted[group] |= of_pair.keys() - held
    result = []
    for number, group in enumerate(like):
        joins: dict[int, set[int]] = defaultdict(set)
        for node, at in seen[number]:
            joins[node].add(at)
        for pair, edges in known[number].items():
            shared = on_others[group][pair] >= _OFTEN and pair not in contradicted[group]
            if shared or (pair in pairs[number] and pair in holds[number]):
                for node, at in edges:
                    joins[node].add(at)
        result.append({node: sorted(sources) for node, sources in joins.items()})
    return result


def _going_on(places: Sequence[_Places], seen: Counter[_Pair]) -> list[_Pair]:
    """Waits that would go on as those seen on these ranks: for each next collective, work so many of its name later.

    So FSDP waits for the parameters of each layer. Where a CPU launches late, they have come, and the wait does not
    show: launched sooner, the work would wait. Of names whose work begins before that anywhere, there are none. Nor
    are there where the trace shows which streams wait.
    """
    if any(of.program.event_waits is not None or of.program.calls_named(_is_wait).any() for of in places):
        return []
    kinds = {kind for of in places for kind in of.communicating}
    by_names: dict[tuple[_Kind, _Kind], dict[int, int]] = defaultdict(dict)
    for (to, source, apart), count in seen.items():
        if count >= _OFTEN and not apart and source[:2] in kinds and to[:2] not in kinds:
            by_names[to[:2], source[:2]][source[2]] = to[2]
    found = list[_Pair]()
    for (work, awaited), waits in by_names.items():
        (first, begins), *rest = sorted(waits.items())
        strides = {(place - begins) / (nth - first) for nth, place in rest}
        if len(strides) != 1 or not (stride := strides.pop()).is_integer() or stride < 1:
            continue
        goes_on = {nth: begins + int(stride) * (nth - first) for nth in range(max(of.count(awaited) for of in places))}
        more = [
            ((*work, place), (*awaited, nth), 0) for nth, place in goes_on.items() if place >= 0 and nth not in waits
        ]
        edges = [of.edges(more) for of in places]
        if all(
            _may_follow(of.program, at, node)
            for of, of_pairs in zip(places, edges, strict=True)
            for of_pair in of_pairs.values()
            for node, at in of_pair
        ):
            found += {pair for of_pairs in edges for pair in of_pairs}
    return found


@dataclass(frozen=True)
class _Places:
    """Place of each activity within its name, step and stream: `nth` from 0, `from_end` from -1 down.

    What ran before the first step, launched when nothing was traced, is the end of a step before it.
    """

    program: RankProgram
    step: Ints
    nth: Ints
    from_end: Ints

    @classmethod
    def of(cls, program: RankProgram) -> _Places:
        step, in_step = program.step.copy(), program.step >= 0
        if in_step.any():
            early = ~in_step & (program.start < program.start[in_step].min())
            step[early] = program.step[in_step].min() - 1
        columns = pd.DataFrame({"lane": program.lane, "step": step, "name": program.name})
        places = columns.groupby([*columns])
        counts = (places.cumcount(), -1 - places.cumcount(ascending=False))
        return cls(program, step, *(count.to_numpy(dtype=np.int64) for count in counts))

    @cached_property
    def communicating(self) -> set[_Kind]:
        """Streams and names of collectives."""
        program = self.program
        is_comm = program.is_comm
        return set(zip(program.lane[is_comm].tolist(), program.name[is_comm].tolist(), strict=True))

    def count(self, kind: _Kind) -> int:
        """How many of a stream and name a step has at most."""
        alike = (self.program.lane == kind[0]) & (self.program.name == kind[1])
        return int(self.nth[alike].max(initial=-1)) + 1

    def pair(self, node: int, at: int) -> _Pair | None:
        """Places of two activities and the distance of their steps; None if one is in no step.

        That of an earlier step is counted from its end, as its beginning need not be in the trace.
        """
        apart = int(self.step[node] - self.step[at])
        known = self.program.step[node] >= 0 and self.step[at] >= 0
        return (
            (self._place(node, self.nth), self._place(at, self.from_end if apart else self.nth), apart)
            if known
            else None
        )

    def _place(self, node: int, count: Ints) -> _Place:
        return int(self.program.lane[node]), int(self.program.name[node]), int(count[node])

    def edges(self, pairs: Sequence[_Pair]) -> dict[_Pair, list[_Join]]:
        """All edges between such places."""
        wanted = {place for to, source, _ in pairs for place in (to, source)}
        at: dict[tuple[int, _Place], int] = {}
        for node in np.flatnonzero(self.step >= 0).tolist():
            for place in (self._place(node, self.nth), self._place(node, self.from_end)):
                if place in wanted:
                    at[int(self.step[node]), place] = node
        steps = np.unique(self.program.step[self.program.step >= 0]).tolist()
        made = {
            (to, source, apart): [(at.get((step, to)), at.get((step - apart, source))) for step in steps]
            for to, source, apart in pairs
        }
        complete = {pair: [(a, b) for a, b in both if a is not None and b is not None] for pair, both in made.items()}
        return {pair: both for pair, both in complete.items() if both}


def _blocks(program: RankProgram) -> dict[int, list[int]]:
    """For each call that waits for the device, the earlier launched activity that ended last before its end."""
    named = program.calls_named(lambda name: name.startswith(_BLOCKING) and not name.startswith(_NOT_BLOCKING))
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
    # A copy that has ended when its call returns was waited for, unless the device's clock only makes it seem so.
    copies = np.flatnonzero(program.launch != NONE)
    copies = copies[program.calls_named(lambda name: "memcpy" in name.lower())[program.launch[copies]]]
    seen = program.end[copies] + _clock_behind_ns(program)
    for node in copies[seen <= program.call_end[program.launch[copies]]].tolist():
        result.setdefault(int(program.launch[node]), []).append(node)
    return result


def _clock_behind_ns(program: RankProgram) -> int:
    """How far activities seem to begin before their launches, in ns; 0 if clocks agree."""
    known = program.launch != NONE
    early = program.call_start[program.launch[known]] - program.start[known]
    return max(int(np.quantile(early, _NEARLY_ALL)), 0) if len(early) else 0
