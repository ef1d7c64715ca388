"""Why a rank of a pipeline has nothing to compute: its schedule played again, each time with one more thing as it was.

What waits for what stays as it was. A step is played with all pieces of a kind equally long, with those of each stage
as long as they are there on average, as long as each was, with messages in the order in which they were issued, and
with the time that they took. How much longer it gets each time, less what each rank has more to compute, is a part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from .schedule import PeerMessage, PieceKey, Schedule, StagePiece

_Lengths = NDArray[np.float64]
_Key = TypeVar("_Key", bound=Hashable)


class Bubble(NamedTuple):
    """Why a rank did not compute while its pipeline ran, in ns; what rests on messages is None where they are unknown.

    `inherent`: the schedule's own bubble, with pieces of a kind equally long. `imbalance`: stages are not equally long;
    below 0 where a rank has more to compute than others. `jitter`: pieces of a stage are not. `order`: a message waits
    for others that were issued before it. `transfer`: messages take time.
    """

    inherent: float
    imbalance: float
    jitter: float
    order: float | None
    transfer: float | None


class StepAccount(NamedTuple):
    """A step: the bubble of each rank, and how much shorter it would be, in ns, with other stages.

    `gains`: by stage, were it as long as the median of the others. `even_gain`: with the same work in equal shares.
    """

    bubbles: Mapping[int, Bubble]
    gains: Mapping[int, float]
    even_gain: float


class WaitGraph:
    """What has to end before each node can begin; a node is anything that can be hashed."""

    def __init__(self, needs: Mapping[Hashable, Iterable[Hashable]]) -> None:
        """Raises CycleError where something waits for itself."""
        self.order = list(TopologicalSorter(needs).static_order())
        number = {node: place for place, node in enumerate(self.order)}
        self._before = [[number[other] for other in needs.get(node, ())] for node in self.order]

    def length(self, lengths: Mapping[Hashable, _Lengths]) -> _Lengths:
        """The longest path, for each of several lengths of nodes, all of one shape; one without a length takes none."""
        ends: list[_Lengths | float] = []
        for node, before in zip(self.order, self._before, strict=True):
            begin: _Lengths | float = 0.0
            for other in before:
                begin = np.maximum(begin, ends[other])
            ends.append(begin + lengths.get(node, 0.0))
        return cast("_Lengths", np.max(np.broadcast_arrays(*ends), axis=0))


def bubbles_of(schedule: Schedule, messages: Sequence[PeerMessage]) -> StepAccount:
    """Play a step with more and more as it was. Raises CycleError where messages wait for each other."""
    every = [piece for own in schedule.pieces.values() for piece in own]
    of_stage = _means(every, _kind)
    of_way = _means(every, lambda piece: piece.way)
    stages = sorted(schedule.of)
    of_others = {kind: _median_of_others(of_stage, *kind) for kind in of_stage}
    equal, own = [of_way[piece.way] for piece in every], [of_stage[_kind(piece)] for piece in every]
    measured = [piece.dur_ns for piece in every]
    cured = [
        [of_others[_kind(piece)] if piece.stage == stage else took for piece, took in zip(every, own, strict=True)]
        for stage in stages
    ]
    table = np.array([equal, own, measured, *cured], dtype=np.float64)
    needs = needs_of(schedule)
    total = WaitGraph(needs).length({piece.key: table[:, place] for place, piece in enumerate(every)})
    order = transfer = None
    if (carried := _carried(schedule, messages)) is not None:
        lengths: dict[Hashable, _Lengths] = {piece.key: np.full(2, piece.dur_ns) for piece in every}
        lengths |= {("message", one.pair): np.array([0.0, one.transfer_ns or 0]) for one in messages}
        free, moved = WaitGraph(_with_messages(schedule, needs, messages, carried)).length(lengths).tolist()
        order, transfer = free - float(total[2]), moved - free
    ranks = np.array([piece.rank for piece in every])
    bubbles = {}
    for rank in schedule.pieces:
        idle = (total[:3] - table[:3, ranks == rank].sum(axis=1)).tolist()
        bubbles[rank] = Bubble(idle[0], idle[1] - idle[0], idle[2] - idle[1], order, transfer)
    gains = dict(zip(stages, (total[1] - total[3:]).tolist(), strict=True))
    return StepAccount(bubbles, gains, float(total[1] - total[0]))


def _kind(piece: StagePiece) -> tuple[str, int]:
    return piece.way, piece.stage


def _median_of_others(of_stage: Mapping[tuple[str, int], float], way: str, stage: int) -> float:
    """How long a way takes on the other stages, each of them once; that of the stage itself where there are none."""
    others = [took for kind, took in of_stage.items() if kind[0] == way and kind[1] != stage]
    return float(np.median(others)) if others else of_stage[way, stage]


def _means(pieces: Iterable[StagePiece], key: Callable[[StagePiece], _Key]) -> dict[_Key, float]:
    """The mean length of the pieces of each key."""
    of: dict[_Key, list[float]] = defaultdict(list)
    for piece in pieces:
        of[key(piece)].append(piece.dur_ns)
    return {each: sum(durs) / len(durs) for each, durs in of.items()}


def needs_of(schedule: Schedule) -> dict[Hashable, list[Hashable]]:
    """What each piece waits for: those that its own needs, and the one before it on its rank."""
    known = {piece.key for own in schedule.pieces.values() for piece in own}
    needs: dict[Hashable, list[Hashable]] = {}
    for own in schedule.pieces.values():
        before: StagePiece | None = None
        for piece in own:
            needs[piece.key] = [key for key in schedule.needs(piece.key) if key in known]
            if before is not None:
                needs[piece.key].append(before.key)
            before = piece
    return needs


def _carried(
    schedule: Schedule, messages: Sequence[PeerMessage]
) -> dict[tuple[PieceKey, PieceKey], list[PeerMessage]] | None:
    """The sends that bring what one piece needs of another, on another rank, by the keys of both.

    Between two ranks, messages are sent in the order in which what is in them is computed: so many for each piece, as
    it has tensors. None where their number does not fit, or not all are known.
    """
    known = {piece.key: piece.rank for own in schedule.pieces.values() for piece in own}
    needed: dict[tuple[int, int], list[tuple[PieceKey, PieceKey]]] = defaultdict(list)
    receivers: dict[PieceKey, list[PieceKey]] = defaultdict(list)
    for key in known:
        for other in schedule.needs(key):
            if other in known and known[other] != known[key]:
                receivers[other].append(key)
    for own in schedule.pieces.values():
        for piece in own:
            for key in receivers[piece.key]:
                needed[piece.rank, known[key]].append((piece.key, key))
    sent: dict[tuple[int, int], list[PeerMessage]] = defaultdict(list)
    for message in sorted(messages, key=lambda one: one.place):
        if message.is_send:
            sent[message.rank, message.peer].append(message)
    found = {}
    for pair, edges in needed.items():
        each, rest = divmod(len(sent[pair]), len(edges))
        if rest or not each or any(one.transfer_ns is None for one in sent[pair]):
            return None
        for place, edge in enumerate(edges):
            found[edge] = sent[pair][place * each : (place + 1) * each]
    return found


def _with_messages(
    schedule: Schedule,
    plain: Mapping[Hashable, Sequence[Hashable]],
    messages: Sequence[PeerMessage],
    carried: Mapping[tuple[PieceKey, PieceKey], Sequence[PeerMessage]],
) -> dict[Hashable, list[Hashable]]:
    """What needs what, with the kernels that send and receive.

    A kernel begins when the one before it on its stream has ended, and what was launched before it: NCCL lets its
    stream wait for that of compute, also where it only receives. A message begins with the later of its two kernels,
    and a kernel ends with the last of its messages.
    """
    known = {piece.key: piece.rank for own in schedule.pieces.values() for piece in own}
    needs: dict[Hashable, list[Hashable]] = {
        key: [other for other in plain[key] if known[cast("PieceKey", other)] == rank] for key, rank in known.items()
    }
    sides: dict[int, list[PeerMessage]] = defaultdict(list)
    for message in messages:
        sides[message.pair].append(message)
    arrived: dict[tuple[int, int], PeerMessage] = {
        (message.pair, message.rank): message for message in messages if not message.is_send
    }
    for (_, key), sends in carried.items():
        for send in sends:
            received = arrived.get((send.pair, known[key]))
            needs[key].append(("message", send.pair) if received is None else ("end", known[key], received.kernel))
    for rank, own in schedule.pieces.items():
        mine = sorted((message for message in messages if message.rank == rank), key=lambda one: one.place)
        last_of: dict[int, int] = {}
        orders = [piece.place for piece in own]
        for message in mine:
            begin, end = ("begin", rank, message.kernel), ("end", rank, message.kernel)
            if end not in needs:
                place = bisect_left(orders, message.place)
                needs[begin] = [own[place - 1].key] if place else []
                if message.stream in last_of:
                    needs[begin].append(("end", rank, last_of[message.stream]))
                last_of[message.stream] = message.kernel
                needs[end] = [begin]
            needs[end].append(("message", message.pair))
    for pair, both in sides.items():
        needs["message", pair] = [("begin", one.rank, one.kernel) for one in both]
    return needs
