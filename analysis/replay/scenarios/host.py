"""What a run would be like if its CPUs did something else: no waiting for data or for the device, no allocations.

Time of a CPU that is gone makes all its later calls earlier, as far as none of them waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from ...core.intervals import Spans, clip, complement, covered, spans, subtract, union
from ...metrics.clocks.frame import Flags, Ints
from ...metrics.device.idle import is_alloc, is_sync
from ..edges import Edges, ready
from ..engine import Playing
from ..host_time import NO_TIME, HostTime
from ..programs import LONG_AGO, NONE, RankProgram
from .scenario import Scenario

_BATCH_NS = 100_000
"""What it takes to get a batch that is there."""
_CALL_NS = 5_000
"""What a call takes that need not wait."""
_STALL_NS = 1_000_000
"""A CPU that makes no call for so long does more than launch."""
_BACK_TO_BACK_NS = 1_000
"""How soon a kernel begins after the one before, in a run that has no such kernels."""

COPY_KINDS = ("HtoD", "DtoH", "DtoD", "PtoP", "Memset")
"""Parts of names of copies and fills that tell which they are."""
_PAGEABLE = "(Pageable ->"


def no_data_wait(ranks: Collection[int] | None = None) -> Scenario:
    """CPUs of these ranks, or of all, get each batch at once from their data loader."""

    def gone(member: Playing, host: HostTime) -> Spans:
        waits = [_longer_than(each, _BATCH_NS) for each in host.loading(_launching(member.program))]
        return _alone(member.program, waits)

    return _taking(gone, _who("no waiting for data", ranks), "a batch takes 0.1 ms: there are enough workers", ranks)


def no_allocation(ranks: Collection[int] | None = None) -> Scenario:
    """Calls that allocate or free memory take no time on these ranks, or on all."""
    return _taking(
        lambda member, _: _alone(member.program, _of_calls(member.program, _named(member.program, is_alloc))),
        _who("no allocations by the driver", ranks),
        "calls that allocate or free memory take no time: the caching allocator has enough",
        ranks,
    )


def no_gc(ranks: Collection[int] | None = None) -> Scenario:
    """Collections of Python's garbage, where they were recorded, take no time on these ranks, or on all."""
    return _taking(
        lambda member, host: _alone(member.program, host.collecting(_launching(member.program))),
        _who("no garbage collection", ranks),
        "collections that were recorded take no time: gc.disable(), or gc.freeze()",
        ranks,
    )


def no_blocking(
    names: Collection[str] | None = None, operator: str | None = None, ranks: Collection[int] | None = None
) -> Scenario:
    """Calls that wait for the device return at once: of these names, inside this operator, on these ranks, or all.

    The CPU goes on, and makes all that follows earlier, until something else makes it wait.
    """

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [_unblocked(m, _waiting(m, names, operator)) if _is_meant(m, ranks) else m for m in members]

    what = f"no waiting for the device in {operator or (', '.join(sorted(names)) if names else 'calls')}"
    assumes = "the CPU needs no result at once: it goes on, and launches ahead; a call takes 5 us"
    return Scenario(_who(what, ranks), assumes, (change,))


def pinned_copies(ranks: Collection[int] | None = None) -> Scenario:
    """Copies from pageable memory to the device do not block the CPU on these ranks, or on all."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [_unblocked(m, _copying_in(m)) if _is_meant(m, ranks) else m for m in members]

    assumes = "copies to the device are from pinned memory, with non_blocking=True, and take as long as they do"
    return Scenario(_who("pinned copies", ranks), assumes, (change,))


def no_launch_overhead(ranks: Collection[int] | None = None) -> Scenario:
    """The CPU of these ranks, or of all, launches everything in time, as CUDA graphs do.

    An upper bound: all that the CPU does between two calls is gone, as far as it is no longer than 1 ms, but not what
    has a scenario of its own: calls that wait for the device, data loaders, allocations and garbage collections.
    """

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [_launched_in_time(m) if _is_meant(m, ranks) else m for m in members]

    assumes = "an upper bound: the CPU takes no time between its calls, but where it makes none for 1 ms or more"
    return Scenario(_who("everything launched in time, as with CUDA graphs", ranks), assumes, (change,))


def no_copies(kinds: Collection[str] = COPY_KINDS, ranks: Collection[int] | None = None) -> Scenario:
    """Copies and fills of these kinds take no time on the devices of these ranks, or of all."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [_without_copies(m, kinds) if _is_meant(m, ranks) else m for m in members]

    what = "no copies" if set(kinds) == set(COPY_KINDS) else f"no copies {', '.join(kinds)}"
    return Scenario(_who(what, ranks), "copies take no time on the device", (change,))


def _who(what: str, ranks: Collection[int] | None) -> str:
    return what if ranks is None else f"{what} on rank {', '.join(map(str, sorted(ranks)))}"


def _is_meant(member: Playing, ranks: Collection[int] | None) -> bool:
    return ranks is None or member.program.rank in ranks


def _taking(
    gone: Callable[[Playing, HostTime], Spans], name: str, assumes: str, ranks: Collection[int] | None
) -> Scenario:
    """Of each CPU, the time that `gone` tells is taken away."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [
            _sooner(m, gone(m, m.program.host)) if m.program.host is not None and _is_meant(m, ranks) else m
            for m in members
        ]

    return Scenario(name, assumes, (change,))


def _sooner(member: Playing, gone: Spans) -> Playing:
    """The same without this time of the CPU, on the common clock; what is gone already is not taken twice."""
    program, host = member.program, member.program.host
    assert host is not None
    new = subtract(gone, host.gone)
    program = replace(program, host=replace(host, gone=union(host.gone, new)))
    if program.issued_by is not None:
        return _working_less(replace(member, program=program), new)
    return replace(_after_launches(member), program=program, saved=member.saved + _before(new, program.call_start))


def _before(gone: Spans, times: Ints) -> Ints:
    return covered(gone, np.full(len(times), LONG_AGO), times)


def _working_less(member: Playing, gone: Spans) -> Playing:
    """A CPU without a GPU: what is gone is part of its operators, or of what it did between them."""
    program, paced = member.program, member.program.paced
    since = np.append(LONG_AGO, program.end[:-1])
    since = np.where(np.diff(program.lane, prepend=NONE) == 0, since, program.start)
    between, within = covered(gone, since, program.start), covered(gone, program.start, program.end)
    return replace(
        member,
        delay=np.where(paced, np.maximum(member.delay - between, np.minimum(member.delay, 0)), member.delay),
        duration=np.where(paced, np.maximum(member.duration - within, 0), member.duration),
    )


def _after_launches(member: Playing) -> Playing:
    """The same, where what is late after a launch comes from the launch: it is no longer so if others come last.

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


def _launching(program: RankProgram) -> list[int]:
    """Threads that launch something; without a GPU, those that are told of."""
    if program.issued_by is not None:
        assert program.host is not None
        threads: list[int] = program.host.host.annotations["thread"].unique().tolist()
        return threads
    known: list[int] = np.unique(program.call_thread[program.launch[program.launch != NONE]]).tolist()
    return known


def _alone(program: RankProgram, of_threads: Sequence[Spans]) -> Spans:
    """When one of the threads, given in order, did this, and no other one launched anything meanwhile."""
    if program.issued_by is not None:
        return union(NO_TIME, *of_threads)
    launches = np.unique(program.launch[program.launch != NONE])
    at, by = program.call_start[launches], program.call_thread[launches]
    kept = []
    for thread, own in zip(_launching(program), of_threads, strict=True):
        others = at[by != thread]
        free = np.searchsorted(others, own.ends) == np.searchsorted(others, own.starts)
        kept.append(Spans(own.starts[free], own.ends[free]))
    return union(NO_TIME, *kept)


def _named(program: RankProgram, is_so: Callable[[str], bool]) -> Flags:
    """Which calls have a name of that sort."""
    known = {name: is_so(str(name)) for name in set(program.call_name.tolist())}
    return np.array([known[name] for name in program.call_name.tolist()], dtype=bool)


def _of_calls(program: RankProgram, which: Flags, keeping_ns: int = 0) -> list[Spans]:
    """When each thread that launches was in these calls, after so much of each."""
    found = []
    for thread in _launching(program):
        own = which & (program.call_thread == thread)
        found.append(spans(program.call_start[own] + keeping_ns, program.call_end[own]))
    return found


def _longer_than(one: Spans, least_ns: int) -> Spans:
    """Without the first part of each."""
    starts = one.starts + least_ns
    return Spans(starts[starts < one.ends], one.ends[starts < one.ends])


def _copies(program: RankProgram) -> Flags:
    host = program.host
    return np.zeros(len(program), dtype=bool) if host is None else host.is_copy[program.row]


def _waits(member: Playing) -> Flags:
    """Which calls wait for the device: those whose name says so, and copies that had ended when they returned."""
    program = member.program
    found = _named(program, is_sync)
    copying = np.unique(program.launch[_copies(program) & (program.launch != NONE)])
    blocked = np.array(sorted(member.edges.blocks), dtype=np.int64)
    found[np.intersect1d(copying, blocked)] = True
    return found


def _waiting(member: Playing, names: Collection[str] | None, operator: str | None) -> Flags:
    """Which calls wait for the device, of these names, inside this operator."""
    program, found = member.program, _waits(member)
    if names is not None:
        found &= np.isin(program.call_name, list(names))
    if operator is not None and program.host is not None:
        inside = np.zeros(len(found), dtype=bool)
        threads = np.unique(program.call_thread[found]).tolist()
        for thread, when in program.host.inside(operator, threads).items():
            own = np.flatnonzero(program.call_thread == thread)
            inside[own] = covered(when, program.call_start[own], program.call_start[own] + 1) > 0
        found &= inside
    return found


def _copying_in(member: Playing) -> Flags:
    """Calls that copy pageable memory to the device, and the next one of the thread if that waits for the device."""
    program = member.program
    found = np.zeros(len(program.call_start), dtype=bool)
    if program.host is None:
        return found
    names = program.host.names[program.row]
    pageable = np.array([_PAGEABLE in str(name) for name in names.tolist()], dtype=bool)
    found[program.launch[pageable & (program.launch != NONE)]] = True
    waits = _waits(member)
    for thread in np.unique(program.call_thread[found]).tolist():
        own = np.flatnonzero(program.call_thread == thread)
        after = own[1:][found[own[:-1]]]
        found[after[waits[after]]] = True
    return found


def _unblocked(member: Playing, which: Flags) -> Playing:
    """These calls do not wait for the device."""
    program = member.program
    if not which.any():
        return member
    blocks = {call: sources for call, sources in member.edges.blocks.items() if not which[call]}
    if program.host is None:
        return member
    gone = _alone(program, _of_calls(program, which, _CALL_NS))
    # While other threads launch, nobody waits for the thread that waits for the device.
    return _sooner(replace(member, edges=Edges(member.edges.joins, blocks)), gone)


def _launched_in_time(member: Playing) -> Playing:
    program, host = member.program, member.program.host
    if host is None or not len(program.call_start):
        return member
    threads = _launching(program)
    kept = [
        *_of_calls(program, _waits(member) | _named(program, is_alloc)),
        *host.loading(threads),
        *host.collecting(threads),
    ]
    first, last = int(program.call_start.min()), int(program.call_end.max())
    pauses = clip(complement(spans(program.call_start, program.call_end)), first, last)
    long = pauses.ends - pauses.starts > _STALL_NS
    busy = union(*kept, Spans(pauses.starts[long], pauses.ends[long]))
    return _sooner(member, clip(complement(busy), first, last))


def _without_copies(member: Playing, kinds: Collection[str]) -> Playing:
    program = member.program
    if program.host is None:
        return member
    names = program.host.names[program.row].tolist()
    chosen = _copies(program) & np.array([any(kind in str(name) for kind in kinds) for name in names], dtype=bool)
    return replace(member, duration=np.where(chosen, 0, member.duration))
