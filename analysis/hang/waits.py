"""Find who waits where and for whom: collectives in which ranks wait, and transfers without a partner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...common.nccl_tests import ROOTED
from ..formats.flight_recorder.dump import Call, Dump, Transfer
from .groups import JobGroup, Standing
from .mismatches import Mismatch, first_mismatches

_ASKED = 4


@dataclass
class Wait:
    """A collective, or a transfer between two ranks, in which ranks wait. Each other rank is in one more list.

    `missing` have not issued it, and `without_dump` may have. `behind` wait for an earlier one of the group, `odd`
    called something else, `not_begun` have issued it, and their devices have not reached it. If all these are empty,
    ranks in `done` finished it, and those that wait are `left behind`; or nobody has, though all are there.
    """

    group: JobGroup
    kind: str
    seq: int
    waiting: dict[int, Call]
    missing: tuple[int, ...] = ()
    without_dump: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()
    not_begun: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    unsure: frozenset[int] = frozenset()
    """Those of `missing` whose dumps do not have the group any more, or have no numbers of it."""
    peers: tuple[int, int] | None = None
    """Source and target of a transfer."""
    mismatch: Mismatch | None = field(default=None)

    @property
    def blamed(self) -> tuple[int, ...]:
        """The ranks that are waited for."""
        return tuple(sorted({*self.missing, *self.without_dump, *self.behind, *self.odd, *self.not_begun}))

    @property
    def left_behind(self) -> tuple[int, ...]:
        """Ranks that still wait although others have finished and nobody is missing."""
        return tuple(self.waiting) if self.done and not self.blamed else ()

    @property
    def since_ns(self) -> int | None:
        """When the first of them issued it, on its own clock, in ns."""
        return min((call.created_ns for call in self.waiting.values() if call.created_ns), default=None)


def waits_of(groups: Sequence[JobGroup], dumps: Mapping[int, Dump]) -> list[Wait]:
    """All waits of a job."""
    mismatches = first_mismatches(groups, dumps)
    waits: list[Wait] = []
    for place, group in enumerate(groups):
        waits += _collectives(group, dumps, mismatches.get(place))
        waits += _transfers(group, dumps)
    of_rank: dict[int, list[JobGroup]] = defaultdict(list)
    for group in groups:
        for rank in group.positions:
            of_rank[rank].append(group)
    for wait in waits:
        passed = {rank for rank in wait.unsure if _has_passed(rank, wait, of_rank[rank])}
        if passed:
            wait.missing = tuple(rank for rank in wait.missing if rank not in passed)
            wait.unsure -= passed
            wait.done += tuple(sorted(passed))
    return waits


def _has_passed(rank: int, wait: Wait, groups: Sequence[JobGroup]) -> bool:
    """Whether a rank has issued in another group what a waiting rank issued later: ranks keep one order."""
    for other, call in list(wait.waiting.items())[:_ASKED]:
        for group in groups:
            here, there = group.positions.get(rank), group.positions.get(other)
            later = there.waiting if there and there.waiting and there.waiting.record > call.record else None
            if later and here and here.issued is not None and here.issued >= later.seq:
                return True
    return False


def _collectives(group: JobGroup, dumps: Mapping[int, Dump], mismatch: Mismatch | None) -> list[Wait]:
    fronts = _fronts(group, dumps)
    by_seq: dict[int, dict[int, Call]] = defaultdict(dict)
    for rank, call in fronts.items():
        by_seq[call.seq][rank] = call
    if mismatch is not None and not by_seq and group.only_retired:
        by_seq[mismatch.seq] = _callers(group, mismatch.seq, dumps)
    waits = [_collective(group, seq, by_seq[seq], fronts, dumps) for seq in sorted(by_seq)]
    for wait in waits:
        if mismatch is not None and mismatch.seq <= wait.seq:
            wait.mismatch = mismatch
            if mismatch.seq == wait.seq or not (wait.blamed or wait.done):
                wait.odd = mismatch.odd
    return [wait for wait in waits if not _is_bookkeeping(wait)]


def _fronts(group: JobGroup, dumps: Mapping[int, Dump]) -> dict[int, Call]:
    """The first unfinished collective of each rank.

    Where a call is only known to have ended, it did not succeed unless all ranks issued it.
    """
    fronts = {rank: standing.waiting for rank, standing in group.positions.items() if standing.waiting is not None}
    if not group.only_retired:
        return fronts
    known = [
        standing.issued for rank, standing in group.positions.items() if standing.issued is not None and rank in dumps
    ]
    common = min(known, default=0)
    for rank, standing in group.positions.items():
        if standing.issued is not None and standing.issued > common:
            fronts[rank] = _call_at(group, rank, common + 1, standing, dumps)
    return fronts


def _call_at(group: JobGroup, rank: int, seq: int, position: Standing, dumps: Mapping[int, Dump]) -> Call:
    """The call of this number; for calls in between only the kind is known."""
    for call in (position.waiting, position.last):
        if call is not None and call.seq == seq:
            return call
    log = group.logs[rank]
    kind = dumps[rank].whats[log.whats[log.seqs.index(seq)]].split(" ")[0] if seq in log.seqs else "collective"
    return Call(kind, seq, 0, 0, "retired", None, None, ())


def _callers(group: JobGroup, seq: int, dumps: Mapping[int, Dump]) -> dict[int, Call]:
    return {
        rank: _call_at(group, rank, seq, standing, dumps)
        for rank, standing in sorted(group.positions.items())
        if rank in group.logs and seq in group.logs[rank].seqs
    }


def _collective(
    group: JobGroup, seq: int, waiting: dict[int, Call], fronts: Mapping[int, Call], dumps: Mapping[int, Dump]
) -> Wait:
    missing, unsure, behind, done = [], [], [], []
    for rank in group.members:
        position = group.positions.get(rank)
        if rank in waiting or rank not in dumps:
            continue
        if rank in fronts and fronts[rank].seq < seq:
            behind.append(rank)
        elif position is None or position.issued is None:
            unsure.append(rank)
        elif position.issued < seq:
            missing.append(rank)
        else:
            done.append(rank)
    kinds = [call.kind for call in waiting.values()]
    if done and not ROOTED & set(kinds):  # then all had come
        unsure, behind = [], []
    begun = [rank for rank in waiting if _has_begun(group, rank, seq)]
    wait = Wait(
        group=group,
        kind=max(kinds, key=kinds.count),
        seq=seq,
        waiting=waiting,
        missing=tuple(sorted([*missing, *unsure])),
        without_dump=tuple(sorted(set(group.members) - dumps.keys())),
        behind=tuple(sorted(behind)),
        done=tuple(done),
        unsure=frozenset(unsure),
    )
    if begun and not wait.blamed:
        wait.not_begun = tuple(rank for rank in waiting if rank not in begun)
    return wait


def _has_begun(group: JobGroup, rank: int, seq: int) -> bool:
    log = group.logs[rank]
    return seq in log.seqs and bool(log.started[log.seqs.index(seq)]) and not log.only_retired


def _is_bookkeeping(wait: Wait) -> bool:
    """Whether all ranks are there and the record is only not cleared yet, as with gloo for a moment."""
    return wait.group.only_retired and not wait.blamed


def _transfers(group: JobGroup, dumps: Mapping[int, Dump]) -> list[Wait]:
    pairs: dict[tuple[int, int], dict[str, list[Call]]] = defaultdict(lambda: {"send": [], "recv": []})
    for rank, log in group.logs.items():
        for transfer in log.transfers:
            ends = _ends(group, transfer)
            if ends is not None and rank in ends:
                pairs[ends][transfer.call.kind].append(transfer.call)
    return [wait for ends, calls in sorted(pairs.items()) for wait in _transfers_between(group, ends, calls, dumps)]


def _ends(group: JobGroup, transfer: Transfer) -> tuple[int, int] | None:
    """Source and target as global ranks."""
    members = group.members
    if max(transfer.source, transfer.target) >= len(members):
        return None
    return members[transfer.source], members[transfer.target]


def _transfers_between(
    group: JobGroup, ends: tuple[int, int], calls: Mapping[str, list[Call]], dumps: Mapping[int, Dump]
) -> Iterator[Wait]:
    """Yield unmatched sends and receives of two ranks, which are matched in order."""
    sends, receives = calls["send"], calls["recv"]
    source, target = ends
    sent, received = _issued(group, ends, dumps) or (len(sends), len(receives))
    left = sent - received
    if sends and receives:
        wait = Wait(group, "send_recv", sends[0].seq, {source: sends[0], target: receives[0]}, peers=ends)
        if left == 0 and None not in (sends[0].elems, receives[0].elems) and sends[0].elems != receives[0].elems:
            wait.odd, wait.mismatch = tuple(sorted(ends)), _unequal(sends[0], receives[0], ends)
        yield wait
    if left > 0 and sends:
        rank, call, other = source, sends[max(len(sends) - left, 0)], target
    elif left < 0 and receives:
        rank, call, other = target, receives[max(len(receives) + left, 0)], source
    else:
        return
    absent = () if other in dumps else (other,)
    missing = (other,) if other in dumps else ()
    yield Wait(group, call.kind, call.seq, {rank: call}, missing=missing, without_dump=absent, peers=ends)


def _unequal(send: Call, receive: Call, ends: tuple[int, int]) -> Mismatch:
    """The mismatch of a message whose sides have different numbers of elements."""
    called = [
        (f"{call.kind} {call.elems:,} elements", (rank,)) for call, rank in zip((send, receive), ends, strict=True)
    ]
    return Mismatch(send.seq, tuple(called))


def _issued(group: JobGroup, ends: tuple[int, int], dumps: Mapping[int, Dump]) -> tuple[int, int] | None:
    """Number of sends and receives that the two ranks issued; None unless both dumps are complete."""
    if not all(rank in dumps and dumps[rank].is_whole for rank in ends):
        return None
    place = {rank: at for at, rank in enumerate(group.members)}
    pair = (place[ends[0]], place[ends[1]])
    counts = [
        group.logs[rank].issued.get((kind, *pair), 0) if rank in group.logs else 0
        for rank, kind in zip(ends, ("send", "recv"), strict=True)
    ]
    return counts[0], counts[1]
