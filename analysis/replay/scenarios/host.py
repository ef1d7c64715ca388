"""Predict changes of CPUs: no waiting for data or for the device, no allocations.

Time of a CPU that is gone makes all its later calls earlier, as far as none of them waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core import intervals
from ...core.arrays import Flags, Ints
from ...core.intervals import Spans, clip, complement, subtract, union
from ...core.markers import COPY_KINDS, COPYING_OPERATORS, FROM_PAGEABLE
from ...metrics.device.idle import is_alloc, is_sync
from ...metrics.device.unusual import over_usual
from ..edges import Edges, ready
from ..host_time import NO_TIME, HostTime
from ..playing import Playing, once
from ..producers import with_producers
from ..programs import LONG_AGO, NONE, RankProgram
from ..working import work_of
from .scenario import Change, Scenario

BATCH_NS = 100_000
"""What it takes to get a batch that is there."""
_CALL_NS = 5_000
"""What a call takes that need not wait."""
_STALL_NS = 1_000_000
"""A CPU that makes no call for so long does more than launch."""
_FREES = ("cudaFree", "hipFree")
_JUST_AFTER_NS = 6_000
"""So soon after the end of what it waits for an activity begins."""
_BACK_TO_BACK_NS = 1_000
"""How soon a kernel begins after the one before, in a run that has no such kernels."""


def no_data_wait(ranks: Collection[int] | None = None, batch_ns: int = BATCH_NS) -> Scenario:
    """Let CPUs of these ranks, or of all, get each batch in no more than this time."""

    def gone(member: Playing, host: HostTime) -> Spans:
        waits = [_longer_than(each, batch_ns) for each in host.loading(_launching(member.program))]
        return _alone(member.program, waits)

    return _taking(
        gone,
        _who(
            "batches that are there when they are asked for"
            if batch_ns == BATCH_NS
            else f"batches that take no more than {batch_ns / 1e3:.0f} us",
            ranks,
        ),
        f"a batch takes {batch_ns / 1e6:.1g} ms: there are enough workers",
        ranks,
    )


def no_allocation(ranks: Collection[int] | None = None) -> Scenario:
    """Let allocations and frees, and waits before frees, take no time on these ranks, or on all."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [_without_calls(m, _allocating(m.program)) if _is_meant(m, ranks) else m for m in members]

    assumes = "calls that allocate or free memory take no time: the caching allocator has enough"
    return Scenario(_who("no memory allocated or freed by the driver", ranks), assumes, (change,), leaves_out=True)


def no_gc(ranks: Collection[int] | None = None) -> Scenario:
    """Let recorded garbage collections of Python take no time on these ranks, or on all."""
    return _taking(
        lambda member, host: _alone(member.program, host.collecting(_launching(member.program))),
        _who("no garbage collected by Python", ranks),
        "collections that were recorded take no time: gc.disable(), or gc.freeze()",
        ranks,
    )


def no_long_calls(ranks: Collection[int] | None = None) -> Scenario:
    """Let calls and operators that take far longer than others of their name, as first uses do, take their median."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [_not_long(m) if m.program.host is not None and _is_meant(m, ranks) else m for m in members]

    assumes = "each takes as long as the median of its name: what it did is done before the steps"
    return Scenario(
        _who("no call or operator that takes 100 times as long as usual", ranks), assumes, (change,), leaves_out=True
    )


def no_compilation(ranks: Collection[int] | None = None) -> Scenario:
    """Let ranges of the trace in which something compiles take no time on these ranks, or on all."""
    return _taking(
        lambda member, host: _alone(member.program, host.compiling(_launching(member.program))),
        _who("nothing compiled", ranks),
        "what compiles takes no time: it is done before the steps; what it launches or waits for is as before",
        ranks,
    )


def no_blocking(
    names: Collection[str] | None = None,
    operator: str | None = None,
    ranks: Collection[int] | None = None,
    *,
    instead: bool = True,
) -> Scenario:
    """Let calls that wait for the device return at once: of these names, in this operator, on these ranks.

    The CPU goes on, and makes all that follows earlier, until something else makes it wait. An operator that launches
    nothing but copies, such as aten::item, is gone as a whole. Without a GPU, what this operator waits for is
    communication. Unless the device may wait `instead`, it is known that nothing needs what they wait for.
    """
    if operator is not None:
        assumes = f"the CPU does not need what {operator} waits for; all else of it but copies is done as before"
        what = f"CPUs that do not wait for their device in {operator}"
    else:
        assumes = "the CPU needs no result at once: it goes on, and launches ahead; a call takes 5 us"
        what = "CPUs that do not wait for their device" + (f" in {', '.join(sorted(names))}" if names else "")

    def unblocked(member: Playing, *, instead: bool) -> Playing:
        if member.program.issued_by is not None:
            return member if operator is None else _not_waiting(member, operator)
        which = _waiting(member, names, operator)
        freed = returning_at_once(member, which, instead=instead)
        return freed if operator is None else _without_operator(freed, which, operator)

    both = _both_ways(unblocked, _who(what, ranks), assumes, ranks)
    if instead:
        return both
    return replace(both, name=f"{both.name}, nor devices instead", changes=both.changes[:1], likeliest=0)


def pinned_copies(ranks: Collection[int] | None = None) -> Scenario:
    """Let copies from pageable memory to the device not block the CPU on these ranks, or on all."""

    assumes = "copies to the device are from pinned memory, with non_blocking=True, and take as long as they do"

    def unblocked(member: Playing, *, instead: bool) -> Playing:
        return returning_at_once(member, _copying_in(member), instead=instead)

    return _both_ways(unblocked, _who("pinned copies", ranks), assumes, ranks)


def no_launch_overhead(ranks: Collection[int] | None = None) -> Scenario:
    """Let CPUs of these ranks, or of all, launch everything in time, as CUDA graphs do.

    An upper bound: all that the CPU does between two calls is gone, as far as it is no longer than 1 ms, but not what
    has a scenario of its own: calls that wait for the device, data loaders, allocations, garbage collections,
    compiling, and operators that take unusually long. Two ways: where launches are late, nothing is seen to wait for
    communication, and some of it may not.
    """

    def sure(members: Sequence[Playing]) -> list[Playing]:
        begun = min((int(m.program.call_start[0]) for m in members if len(m.program.call_start)), default=0)
        return [_launched_in_time(m, begun) if _is_meant(m, ranks) else m for m in members]

    def shown(members: Sequence[Playing]) -> list[Playing]:
        return sure([_waiting_as_shown(m) if _is_meant(m, ranks) else m for m in members])

    assumes = "an upper bound: the CPU takes no time between its calls, but where it makes none for 1 ms or more"
    return Scenario(_who("every kernel launched in time", ranks), assumes, (shown, sure), leaves_out=True)


def no_pauses(ranks: Collection[int] | None = None) -> Scenario:
    """Let CPUs of these ranks, or of all, go on at once where they make no call of the runtime for 1 ms or more.

    An upper bound: some of what they do then, in Python or in an operator, must be done. What has a scenario of its own
    stays: data loaders, garbage collections, compiling, and operators that take unusually long.
    """

    def gone(member: Playing, host: HostTime) -> Spans:
        threads = _launching(member.program)
        return subtract(_pauses(member.program), union(NO_TIME, *_by_themselves(host, threads)))

    assumes = "an upper bound: where the CPU makes no call for 1 ms or more, it makes the next one at once"
    return _taking(gone, _who("CPUs that never pause for 1 ms or more", ranks), assumes, ranks)


def launching_within(name: str, most_ns: NDArray[np.float64]) -> Scenario:
    """Let the CPU's own work before each launch take no longer than that: by row of activities, inf where it may."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [_launching_within(m, most_ns) for m in members]

    assumes = "CPUs take no longer between calls; what has a scenario of its own takes as long as it did"
    return Scenario(name, assumes, (change,), leaves_out=True)


@once
def own_work(member: Playing) -> Ints:
    """The CPU's work before each activity's launch, without what has a scenario of its own, in ns; shape (n,)."""
    program, host, work = member.program, member.program.host, work_of(member).launching_ns
    known = program.launch != NONE
    if host is None or not known.any():
        return work
    at = program.call_start[program.launch]
    apart = [*_of_calls(program, _allocating(program)), *_by_themselves(host, _launching(program))]
    return np.where(known, work - _covered(union(NO_TIME, *apart), at - work, at), 0)


def _launching_within(member: Playing, most_ns: NDArray[np.float64]) -> Playing:
    program, known = member.program, member.program.launch != NONE
    if program.host is None or not known.any():
        return member
    excess = np.rint(np.maximum(own_work(member) - most_ns[program.row], 0)).astype(np.int64)
    saved = np.zeros(len(program.call_start), dtype=np.int64)
    np.maximum.at(saved, program.launch[known], excess[known])
    before = _begun_after_launches(member)
    return replace(before, saved=before.saved + np.cumsum(saved))


def no_copies(kinds: Collection[str] = COPY_KINDS, ranks: Collection[int] | None = None) -> Scenario:
    """Let copies and fills of these kinds take no time on these ranks, or on all.

    In a run without a GPU, these are the operators that only copy, of any kind.
    """

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [_without_copies(m, kinds) if _is_meant(m, ranks) else m for m in members]

    what = "no copy or fill that takes time" if set(kinds) == set(COPY_KINDS) else f"no copies {', '.join(kinds)}"
    return Scenario(_who(what, ranks), "copies take no time on the device", (change,), leaves_out=True)


def _who(what: str, ranks: Collection[int] | None) -> str:
    return what if ranks is None else f"{what} on rank {', '.join(map(str, sorted(ranks)))}"


def _is_meant(member: Playing, ranks: Collection[int] | None) -> bool:
    return ranks is None or member.program.rank in ranks


def _taking(
    gone: Callable[[Playing, HostTime], Spans], name: str, assumes: str, ranks: Collection[int] | None
) -> Scenario:
    """A scenario that takes the time in `gone` away from each CPU."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [
            _sooner(m, gone(m, m.program.host)) if m.program.host is not None and _is_meant(m, ranks) else m
            for m in members
        ]

    return Scenario(name, assumes, (change,), leaves_out=True)


def _sooner(member: Playing, gone: Spans) -> Playing:
    """Take this time of the CPU away, on the common clock; time already taken is not taken twice."""
    program, host = member.program, member.program.host
    assert host is not None
    new = subtract(gone, host.gone)
    program = replace(program, host=replace(host, gone=union(host.gone, new)))
    if program.issued_by is not None:
        return _working_less(replace(member, program=program), new)
    ready_for = _begun_after_launches(member)
    return replace(ready_for, program=program, saved=ready_for.saved + _before(new, program.call_start))


@once
def _begun_after_launches(member: Playing) -> Playing:
    return _after_launches(with_producers(member))


def _before(gone: Spans, times: Ints) -> Ints:
    return _covered(gone, np.full(len(times), LONG_AGO), times)


def _working_less(member: Playing, gone: Spans) -> Playing:
    """Take time away from a CPU without a GPU: from its operators, or from the time between them."""
    program, paced = member.program, member.program.paced
    since = np.append(LONG_AGO, program.end[:-1])
    since = np.where(program.follows, since, program.start - program.rested)
    between, within = _covered(gone, since, program.start), _covered(gone, program.start, program.end)
    return replace(
        member,
        delay=np.where(paced, np.maximum(member.delay - between, np.minimum(member.delay, 0)), member.delay),
        duration=np.where(paced, np.maximum(member.duration - within, 0), member.duration),
    )


def _after_launches(member: Playing) -> Playing:
    """Attribute delays after launches to the launch, so that they vanish if something else comes last.

    A kernel begins some us after its launch, but at once after the kernel before it, if it was launched in time.
    """
    program = member.program
    before, launched = ready(program)
    joined = np.full(len(program), LONG_AGO)
    for node, sources in member.edges.joins.items():
        joined[node] = program.end[sources].max()
    last = (program.launch != NONE) & (launched > before) & (launched > joined)
    behind = (before > launched) & (before > joined) & (member.delay >= 0)
    usual = int(np.median(member.delay[behind])) if behind.any() else _BACK_TO_BACK_NS
    later = np.where(last, np.maximum(member.delay - usual, 0), 0)
    of_call = np.full(len(program.call_start), np.iinfo(np.int64).max)
    np.minimum.at(of_call, program.launch[last], later[last])
    moved = np.where(last, of_call[program.launch], 0) if len(of_call) else later * 0
    of_call[of_call == np.iinfo(np.int64).max] = 0
    # A call that waits for the device itself keeps its time.
    of_call[list(member.edges.blocks)] = 0
    moved = np.where(np.isin(program.launch, list(member.edges.blocks)), 0, moved)
    return replace(member, delay=member.delay - moved, saved=member.saved - of_call)


def _not_long(member: Playing) -> Playing:
    """Let operators, and calls that neither block nor allocate, take as long as usual, so that more begins sooner."""
    program, host = member.program, member.program.host
    assert host is not None
    over = over_usual(program.call_name, program.call_names, program.call_end - program.call_start)
    over[program.calls_named(is_sync) | program.calls_named(is_alloc)] = 0
    threads = _launching(program)
    of_operators = host.unusual(threads)
    if not over.any() and not any(len(each.starts) for each in of_operators):
        return member
    by_thread = []
    for thread, by_operators in zip(threads, of_operators, strict=True):
        of_thread = (over > 0) & (program.call_thread == thread)
        of_calls = _spans((program.call_end - over)[of_thread], program.call_end[of_thread])
        by_thread.append(union(of_calls, by_operators))
    before = _after_launches(with_producers(member))
    sooner = _sooner(member, _alone(program, by_thread))
    # What a launch begins waits for the end of the call as well, by as much as that shows in the trace.
    waited = np.maximum(member.saved - before.saved, 0)
    return replace(sooner, saved=sooner.saved + np.minimum(over, waited))


def _covered(when: Spans, starts: Ints, ends: Ints) -> Ints:
    """How much of each interval these spans cover, in ns."""
    return intervals.covered(when, starts.astype(np.int64), ends.astype(np.int64))


def _spans(starts: Ints, ends: Ints) -> Spans:
    """The union of these intervals."""
    return intervals.spans(starts.astype(np.int64), ends.astype(np.int64))


def _launching(program: RankProgram) -> list[int]:
    """Threads that launch something; without a GPU, threads in the trace."""
    if program.issued_by is not None:
        assert program.host is not None
        threads: list[int] = program.host.host.annotations["thread"].unique().tolist()
        return threads
    known: list[int] = np.unique(program.call_thread[program.launch[program.launch != NONE]]).tolist()
    return known


def _alone(program: RankProgram, of_threads: Sequence[Spans]) -> Spans:
    """When one of these threads, in order, did this while no other launched anything."""
    if program.issued_by is not None:
        return union(NO_TIME, *of_threads)
    launches = np.unique(program.launch[program.launch != NONE])
    at, by = program.call_start[launches], program.call_thread[launches]
    kept = []
    for thread, when in zip(_launching(program), of_threads, strict=True):
        others = at[by != thread]
        free = np.searchsorted(others, when.ends) == np.searchsorted(others, when.starts)
        kept.append(Spans(when.starts[free], when.ends[free]))
    return union(NO_TIME, *kept)


def _allocating(program: RankProgram) -> Flags:
    """Whether each call allocates, frees, or waits just before a free, as torch does."""
    chosen = program.calls_named(is_alloc)
    waits, frees = program.calls_named(is_sync), program.calls_named(lambda name: name.startswith(_FREES))
    for thread in np.unique(program.call_thread[frees]).tolist():
        calls = np.flatnonzero(program.call_thread == thread)
        before = calls[:-1][frees[calls[1:]]]
        chosen[before[waits[before]]] = True
    return chosen


def _of_calls(program: RankProgram, which: Flags, keeping_ns: int = 0) -> list[Spans]:
    """When each launching thread was in these calls, without the first `keeping_ns` of each."""
    by_thread = []
    for thread in _launching(program):
        of_thread = which & (program.call_thread == thread)
        by_thread.append(_spans(program.call_start[of_thread] + keeping_ns, program.call_end[of_thread]))
    return by_thread


def _longer_than(when: Spans, least_ns: int) -> Spans:
    """The spans without their first `least_ns`."""
    starts = when.starts + least_ns
    return Spans(starts[starts < when.ends], when.ends[starts < when.ends])


def _copies(program: RankProgram) -> Flags:
    host = program.host
    return np.zeros(len(program), dtype=bool) if host is None else host.is_copy[program.row]


def _waits(member: Playing) -> Flags:
    """Whether each call waits for the device: by its name, or as a copy that had ended when it returned."""
    program = member.program
    chosen = program.calls_named(is_sync) & ~_allocating(program)
    copying = np.unique(program.launch[_copies(program) & (program.launch != NONE)])
    blocked = np.array(sorted(member.edges.blocks), dtype=np.int64)
    chosen[np.intersect1d(copying, blocked)] = True
    return chosen


def _waiting(member: Playing, names: Collection[str] | None, operator: str | None) -> Flags:
    """Whether each call waits for the device, has one of these names, and is in this operator."""
    program, chosen = member.program, _waits(member)
    if names is not None:
        chosen &= program.calls_named(names.__contains__)
    if operator is not None and program.host is not None:
        inside = np.zeros(len(chosen), dtype=bool)
        threads = np.unique(program.call_thread[chosen]).tolist()
        for thread, when in program.host.inside(operator, threads).items():
            of_thread = np.flatnonzero(program.call_thread == thread)
            inside[of_thread] = _covered(when, program.call_start[of_thread], program.call_start[of_thread] + 1) > 0
        chosen &= inside
    return chosen


def _copying_in(member: Playing) -> Flags:
    """Whether each call copies pageable memory to the device, or waits right after that."""
    program = member.program
    chosen = np.zeros(len(program.call_start), dtype=bool)
    if program.host is None:
        return chosen
    names = program.host.names.iloc[program.row].tolist()
    pageable = np.array([FROM_PAGEABLE in str(name) for name in names], dtype=bool)
    chosen[program.launch[pageable & (program.launch != NONE)]] = True
    waits = _waits(member)
    for thread in np.unique(program.call_thread[chosen]).tolist():
        of_thread = np.flatnonzero(program.call_thread == thread)
        after = of_thread[1:][chosen[of_thread[:-1]]]
        chosen[after[waits[after]]] = True
    return chosen


class _Unblocking(Protocol):
    """Change calls of a rank so that they do not wait; with `instead`, the device's next work does."""

    def __call__(self, member: Playing, *, instead: bool) -> Playing: ...


def _both_ways(unblocked: _Unblocking, name: str, assumes: str, ranks: Collection[int] | None) -> Scenario:
    """A scenario in which calls do not wait: nothing waits instead, or the device does.

    The latter is likelier: what comes after such a call needs what was communicated before it, as a rule.
    """

    def way(instead: bool) -> Change:
        def change(members: Sequence[Playing]) -> list[Playing]:
            return [unblocked(m, instead=instead) if _is_meant(m, ranks) else m for m in members]

        return change

    return Scenario(name, assumes, (way(instead=False), way(instead=True)), likeliest=1, leaves_out=True)


def returning_at_once(member: Playing, which: Flags, *, instead: bool = False) -> Playing:
    """Let these calls not wait; with `instead`, the device's next work waits for their communication."""
    program = member.program
    if not which.any() or program.host is None:
        return member
    joins = {node: list(sources) for node, sources in member.edges.joins.items()}
    launched = np.flatnonzero(~program.is_comm & (program.launch != NONE))
    launched = launched[np.argsort(program.launch[launched], kind="stable")]
    for call in sorted(set(member.edges.blocks) & set(np.flatnonzero(which).tolist())) if instead else []:
        place = int(np.searchsorted(program.launch[launched], call, side="right"))
        waited = [source for source in member.edges.blocks[call] if program.is_comm[source]]
        if place < len(launched) and waited:
            node = int(launched[place])
            joins[node] = sorted({*joins.get(node, ()), *waited})
    blocks = {call: sources for call, sources in member.edges.blocks.items() if not which[call]}
    # While other threads launch, nobody waits for the thread that waits for the device.
    gone = _alone(program, _of_calls(program, which, _CALL_NS))
    return _sooner(replace(member, edges=Edges(joins, blocks)), gone)


def _without_calls(member: Playing, which: Flags) -> Playing:
    """Remove these calls, so that they wait for nothing."""
    program = member.program
    if not which.any() or program.host is None:
        return member
    blocks = {call: sources for call, sources in member.edges.blocks.items() if not which[call]}
    gone = _alone(program, _of_calls(program, which))
    return _sooner(replace(member, edges=Edges(member.edges.joins, blocks)), gone)


def _without_operator(member: Playing, which: Flags, operator: str) -> Playing:
    """Remove the operators around these calls if they launch nothing but copies."""
    program = member.program
    if program.host is None:
        return member
    threads = np.unique(program.call_thread[which]).tolist()
    every, inside = [], np.zeros(len(program.call_start), dtype=bool)
    other = np.zeros(len(program.call_start), dtype=bool)
    other[program.launch[~_copies(program) & (program.launch != NONE)]] = True
    for thread, when in program.host.inside(operator, threads).items():
        of_thread = program.call_thread == thread
        waits, launches = (program.call_start[of_thread & calls] for calls in (which, other))
        kept = _holding(when, waits) & ~_holding(when, launches)
        gone = Spans(when.starts[kept], when.ends[kept])
        inside |= of_thread & (_covered(gone, program.call_start, program.call_start + 1) > 0)
        every.append(gone)
    alone = _sooner(member, union(NO_TIME, *every))
    copied = np.isin(program.launch, np.flatnonzero(inside))
    return replace(
        alone,
        duration=np.where(copied, 0, alone.duration),
        delay=np.where(copied, np.minimum(alone.delay, 0), alone.delay),
    )


def _holding(when: Spans, times: Ints) -> Flags:
    """Whether each span holds any of the times."""
    holds: Flags = np.searchsorted(np.sort(times), when.ends) > np.searchsorted(np.sort(times), when.starts)
    return holds


def _launched_in_time(member: Playing, begun_ns: int) -> Playing:
    """Remove the CPU's work between calls; calls of all ranks begin at `begun_ns`."""
    program, host = member.program, member.program.host
    if host is None or not len(program.call_start):
        return member
    threads = _launching(program)
    kept = [*_of_calls(program, _waits(member) | _allocating(program)), *_by_themselves(host, threads)]
    first, last = int(program.call_start.min()), int(program.call_end.max())
    busy = union(*kept, _pauses(program))
    launched = _sooner(member, clip(complement(busy), first, last))
    # A CPU that was ahead would have been so when the trace began.
    return replace(launched, saved=launched.saved + min(first - begun_ns, _STALL_NS))


def _by_themselves(host: HostTime, threads: Collection[int]) -> list[Spans]:
    """When each of these threads did what is priced by itself."""
    return [
        *host.loading(threads),
        *host.collecting(threads),
        *host.compiling(threads),
        *host.unusual(threads),
    ]


def _pauses(program: RankProgram) -> Spans:
    """When no thread makes a call for so long that the CPU does more than launch."""
    if not len(program.call_start):
        return NO_TIME
    first, last = int(program.call_start.min()), int(program.call_end.max())
    pauses = clip(complement(_spans(program.call_start, program.call_end)), first, last)
    long = pauses.ends - pauses.starts > _STALL_NS
    return Spans(pauses.starts[long], pauses.ends[long])


@once
def _waiting_as_shown(member: Playing) -> Playing:
    """Let compute wait for communication only if it began right after its end in any step."""
    program = member.program
    place = pd.DataFrame({"lane": program.lane, "step": program.step}).groupby(["lane", "step"]).cumcount().to_numpy()

    def key(node: int, source: int) -> tuple[int, ...]:
        return tuple(int(column[each]) for each in (node, source) for column in (program.lane, place))

    pairs = [
        (node, source)
        for node, sources in member.edges.joins.items()
        for source in sources
        if program.is_comm[source] and not program.is_comm[node]
    ]
    shown = {key(*pair) for pair in pairs if program.start[pair[0]] - program.end[pair[1]] <= _JUST_AFTER_NS}
    unsure = {pair for pair in pairs if key(*pair) not in shown}
    joins = {
        node: [source for source in sources if (node, source) not in unsure]
        for node, sources in member.edges.joins.items()
    }
    return replace(member, edges=Edges({n: sources for n, sources in joins.items() if sources}, member.edges.blocks))


def _without_copies(member: Playing, kinds: Collection[str]) -> Playing:
    program = member.program
    if program.host is None:
        return member
    if program.issued_by is not None:
        chosen = ~program.is_comm & program.host.names.iloc[program.row].isin(COPYING_OPERATORS).to_numpy(dtype=bool)
    else:
        names = program.host.names.iloc[program.row].tolist()
        chosen = _copies(program) & np.array([any(kind in str(name) for kind in kinds) for name in names], dtype=bool)
    return replace(member, duration=np.where(chosen, 0, member.duration))


def _not_waiting(member: Playing, operator: str) -> Playing:
    """Let this operator of a CPU without a GPU begin without waiting for communication."""
    program = member.program
    assert program.host is not None
    is_operator = ~program.is_comm & (program.host.names.iloc[program.row] == operator).to_numpy(dtype=bool)
    joins = {
        node: [source for source in sources if not (is_operator[node] and program.is_comm[source])]
        for node, sources in member.edges.joins.items()
    }
    return replace(member, edges=Edges({n: sources for n, sources in joins.items() if sources}, member.edges.blocks))
