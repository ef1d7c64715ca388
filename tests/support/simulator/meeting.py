"""Who needs whom: collectives and messages, and when each rank is done with them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from .draws import END, Draws, Row
from .graph import Moments
from .ops import ITEM_BYTES, P2P, SYNCHRONISING, Comm, Group, Message, bus_factor
from .ran import Ran
from .world import World


@dataclass(frozen=True)
class Meeting:
    """One collective, or a message from one rank to another (`send_recv`), of all ranks together.

    `root` is a global rank, `size_bytes` the S of nccl-tests, `transfer_us` what it takes once everybody is there.
    """

    number: int
    op: str
    group: Group
    root: int | None
    size_bytes: int
    transfer_us: float
    members: tuple[Ran, ...]

    @property
    def bus_factor(self) -> float:
        return bus_factor(self.op, len(self.group.ranks))


Key = tuple[object, ...]
_RARE = 1.96


@dataclass
class Meetings:
    """Calls that belong together, by the order of their group, or of their pair of ranks."""

    world: World
    moments: Moments
    draws: Draws
    members: dict[Key, list[Ran]] = field(default_factory=dict)
    turns: Counter[Key] = field(default_factory=Counter)

    def join(self, ran: Ran, row: Row) -> None:
        """Let a call take its turn; `row` is what was drawn for it."""
        op, hardware = ran.op, self.world.hardware
        ran.noise_us = hardware.end_noise_us * abs(row[END]) + dict(hardware.late_end_us).get(ran.rank, 0.0)
        assert isinstance(op, (Comm, P2P))
        kinds = [("all",)] if isinstance(op, Comm) else [("pair", *_ends(ran.rank, m)) for m in op.messages]
        for kind in kinds:
            place = (ran.rank, op.group, *kind)
            self.members.setdefault((op.group, *kind, self.turns[place]), []).append(ran)
            self.turns[place] += 1
        counted = (ran.rank, op.group, isinstance(op, Comm))
        self.turns[counted] += 1
        ran.turn = self.turns[counted]
        if hardware.uneven_end_us and isinstance(op, Comm):
            uneven = self.draws.uneven(ran.rank, (op.group, op.op, op.size_bytes), ran.turn)
            uneven += abs(row[END]) > _RARE
            ran.noise_us += hardware.uneven_end_us * uneven * (1.0 if op.size_bytes > hardware.eager_bytes else 0.1)

    def linked(self) -> list[Meeting]:
        """All of them, once every rank has joined; ends are linked to the starts they need."""
        made = []
        for number, (key, members) in enumerate(self.members.items()):
            op = members[0].op
            meeting = self._collective(number, op, members, key) if isinstance(op, Comm) else None
            made.append(meeting or self._message(number, members, key))
            for ran in members:
                ran.collectives.append(number)
        return made

    def _collective(self, number: int, op: Comm, members: list[Ran], key: Key) -> Meeting:
        if sorted(ran.rank for ran in members) != sorted(op.group.ranks):
            raise ValueError(f"{op.op} of {op.group}: only on {[ran.rank for ran in members]}")
        took = self._transfer_us(op.op, op.group, op.size_bytes, key) + op.extra_us
        if op.op in SYNCHRONISING:
            everybody = self.moments.new(*((ran.start, 0.0, -1) for ran in members))
            for ran in members:
                ran.needed = everybody
        else:
            self._rooted(op, {ran.rank: ran for ran in members})
        for ran in members:
            self.moments.link(ran.end, ran.needed, took + ran.noise_us, op.cause)
        return Meeting(number, op.op, op.group, op.root, op.size_bytes, took, tuple(members))

    def _rooted(self, op: Comm, members: dict[int, Ran]) -> None:
        """Whom each rank of a collective with a root needs."""
        assert op.root is not None
        new, root = self.moments.new, members[op.root]
        if op.op in ("gather", "scatter"):
            for ran in members.values():
                needed = members.values() if ran is root else (ran, root)
                ran.needed = new(*((other.start, 0.0, -1) for other in needed))
            return
        chain = [members[rank] for rank in chain_of(op)]
        rendezvous, upstream = op.size_bytes > self.world.hardware.eager_bytes, 0
        for place, ran in enumerate(chain):
            upstream = new((upstream, 0.0, -1), (ran.start, 0.0, -1))
            successor = chain[place + 1 : place + 2] if rendezvous else []
            ran.needed = new((upstream, 0.0, -1), *((other.start, 0.0, -1) for other in successor))

    def _message(self, number: int, members: list[Ran], key: Key) -> Meeting:
        group, _, source, target, _ = key
        assert isinstance(group, Group)
        assert isinstance(source, int)
        assert isinstance(target, int)
        by_rank = {ran.rank: ran for ran in members}
        if set(by_rank) != {source, target}:
            raise ValueError(f"message {source} -> {target} of {group}: only on {list(by_rank)}")
        op = by_rank[source].op
        assert isinstance(op, P2P)
        elems = next(m.elems for m in op.messages if m.op == "send" and m.peer == target)
        size_bytes = elems * ITEM_BYTES[op.dtype]
        took = self._transfer_us("send", Group("pair", (source, target)), size_bytes, key)
        for ran in members:
            self._side(ran, by_rank[source + target - ran.rank], took, ran.rank == source and size_bytes)
        return Meeting(number, "send_recv", group, None, size_bytes, took, (by_rank[source], by_rank[target]))

    def _side(self, ran: Ran, peer: Ran, took: float, sent_bytes: int) -> None:
        """One side of a message: a sender needs its receiver only if there is more than is sent eagerly."""
        if ran.needed < 0:
            ran.needed = self.moments.new((ran.start, 0.0, -1))
        needs_peer = not sent_bytes or sent_bytes > self.world.hardware.eager_bytes
        for needed in (ran, peer) if needs_peer else (ran,):
            self.moments.link(ran.end, needed.start, took + ran.noise_us)
            self.moments.link(ran.needed, needed.start, 0.0)

    def _transfer_us(self, op: str, group: Group, size_bytes: int, key: Key) -> float:
        hardware = self.world.hardware
        inside = len({self.world.host_of(rank) for rank in group.ranks}) == 1
        latency = hardware.intra_latency_us if inside else hardware.inter_latency_us
        gb_per_s = hardware.intra_gb_per_s if inside else hardware.inter_gb_per_s
        for ranks, part in hardware.slow_links:
            gb_per_s *= part if set(group.ranks) <= set(ranks) else 1.0
        moved_us = size_bytes * bus_factor(op, len(group.ranks)) / gb_per_s / 1000
        *what, turn = key
        assert isinstance(turn, int)
        return (latency + moved_us) * math.exp(hardware.transfer_jitter * self.draws.transfer(tuple(what), turn))


def _ends(rank: int, message: Message) -> tuple[int, int]:
    """Source and target."""
    return (rank, message.peer) if message.op == "send" else (message.peer, rank)


def chain_of(op: Comm) -> list[int]:
    """Ranks in the order in which data moves along NCCL's ring: from the root, or of a reduce to it."""
    assert op.root is not None
    ranks, at = list(op.group.ranks), op.group.ranks.index(op.root)
    return ranks[at:] + ranks[:at] if op.op == "broadcast" else ranks[at + 1 :] + ranks[: at + 1]
