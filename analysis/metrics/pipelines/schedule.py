"""Which stage and microbatch each piece of a step is of, what it waits for, and what the schedule is called.

Marks say stage and microbatch. Without them ranks are in a chain, by whom they send to and receive from; the first
stage is the end of it that sends before it receives; and what a piece is shows in what is received before it and sent
after it. Microbatches come in the order of their numbers, forward and backward.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .pieces import FORWARD, FULL_BACKWARD, INPUT_BACKWARD, WEIGHT_BACKWARD

GPIPE, ONE_F_ONE_B, INTERLEAVED, LOOPED_BFS = "GPipe", "1F1B", "interleaved 1F1B", "looped BFS"
ZERO_BUBBLE, ZBV, DUALPIPE_V, UNKNOWN_SCHEDULE = "zero-bubble", "ZBV", "DualPipeV", "unknown"

PieceKey = tuple[str, int, int]
"""Way, stage and microbatch: what a piece is of."""


@dataclass(frozen=True)
class StagePiece:
    """What a rank computes at once for a microbatch; `place` is that among all that it launches."""

    rank: int
    place: int
    way: str
    stage: int
    microbatch: int
    start_ns: int
    end_ns: int
    dur_ns: float
    is_overlapped: bool = False

    @property
    def key(self) -> PieceKey:
        """What it is of."""
        return self.way, self.stage, self.microbatch


class PeerMessage(NamedTuple):
    """A send, or a receive, of a rank, in a `kernel` on a stream, which holds others that were given to NCCL with it.

    `transfer_ns` is how long its data took once both sides were there; NA where that is not known. Of the two sides of
    one message, `pair` is the same.
    """

    rank: int
    place: int
    peer: int
    is_send: bool
    stream: int
    kernel: int
    pair: int
    transfer_ns: int | None


@dataclass(frozen=True)
class Schedule:
    """One step of one pipeline: the pieces of each rank in their order; `of` says which rank has a stage."""

    pieces: Mapping[int, Sequence[StagePiece]]
    of: Mapping[int, int]
    name: str

    @property
    def microbatches(self) -> int:
        """How many there are."""
        return 1 + max(piece.microbatch for own in self.pieces.values() for piece in own)

    def stages(self, rank: int) -> list[int]:
        """The stages that a rank has, ascending."""
        return sorted(stage for stage, of in self.of.items() if of == rank)

    def needs(self, key: PieceKey) -> Iterator[PieceKey]:
        """Yield what has to be computed before this can be, besides what its own rank computes before it.

        A backward needs that of the next stage, whole or of the inputs; that of weights needs the one of inputs.
        """
        way, stage, microbatch = key
        last = max(self.of)
        if way == FORWARD and stage > 0:
            yield FORWARD, stage - 1, microbatch
        if way in (FULL_BACKWARD, INPUT_BACKWARD):
            yield FORWARD, stage, microbatch
            if stage < last:
                yield FULL_BACKWARD, stage + 1, microbatch
                yield INPUT_BACKWARD, stage + 1, microbatch
        if way == WEIGHT_BACKWARD:
            yield INPUT_BACKWARD, stage, microbatch


def schedule_of(pieces: Mapping[int, Sequence[StagePiece]]) -> Schedule | None:
    """The schedule of a step; None where pieces form none: a stage on two ranks, a microbatch without its forward.

    Where it runs several times in a step, to accumulate gradients, marks number microbatches from 0 each time: those of
    later runs follow. It is called by its first run.
    """
    size = 1 + max((piece.microbatch for own in pieces.values() for piece in own), default=0)
    pieces = {rank: list(_continued(own, size)) for rank, own in pieces.items()}
    of: dict[int, int] = {}
    keys: set[PieceKey] = set()
    for rank, own in pieces.items():
        for piece in own:
            if of.setdefault(piece.stage, rank) != rank or piece.key in keys:
                return None
            keys.add(piece.key)
    forward, backward = (
        {(stage, microbatch) for way, stage, microbatch in keys if way in ways}
        for ways in ((FORWARD,), (FULL_BACKWARD, INPUT_BACKWARD))
    )
    is_whole = sorted(of) == list(range(len(of))) and set(of.values()) == set(pieces)
    microbatches = {microbatch for _, microbatch in forward}
    if not is_whole or forward != backward or len(forward) != len(of) * len(microbatches):
        return None
    first = {rank: [piece for piece in own if piece.microbatch < size] for rank, own in pieces.items()}
    return Schedule(pieces, of, _name(first, of))


def _continued(pieces: Iterable[StagePiece], size: int) -> Iterator[StagePiece]:
    """Yield the pieces; one that was there before is that of the next run, of so many microbatches."""
    seen: Counter[PieceKey] = Counter()
    for piece in pieces:
        yield replace(piece, microbatch=piece.microbatch + size * seen[piece.key])
        seen[piece.key] += 1


def _name(pieces: Mapping[int, Sequence[StagePiece]], of: Mapping[int, int]) -> str:
    """What the schedule is called, by which stages a rank has, and in which order it computes what.

    Source: torch/distributed/pipelining/schedules.py, and the papers named there.
    """
    ranks, stages = len(pieces), len(of)
    every = [piece for own in pieces.values() for piece in own]
    in_order = [of[stage] for stage in range(min(ranks, stages))]
    chunks, rest = divmod(stages, ranks)
    forms_loop = not rest and all(of[stage] == in_order[stage % ranks] for stage in of)
    forms_v = stages == 2 * ranks and all(of[stage] == of[stages - 1 - stage] for stage in range(ranks))
    splits = any(piece.way == WEIGHT_BACKWARD for piece in every)
    first_backward = {
        rank: next(place for place, piece in enumerate(own) if piece.way != FORWARD) for rank, own in pieces.items()
    }
    all_first = all(first_backward[rank] == sum(p.way == FORWARD for p in own) for rank, own in pieces.items())
    if forms_v and not forms_loop:
        return DUALPIPE_V if any(piece.is_overlapped for piece in every) else ZBV if splits else UNKNOWN_SCHEDULE
    if not forms_loop:
        return UNKNOWN_SCHEDULE
    if splits:
        return ZERO_BUBBLE
    if all_first:
        return GPIPE if chunks == 1 else LOOPED_BFS
    microbatches = len(every) // (2 * stages)
    if chunks == 1:
        warm = all(first_backward[of[stage]] == min(stages - stage, microbatches) for stage in of)
        return ONE_F_ONE_B if warm else UNKNOWN_SCHEDULE
    return INTERLEAVED


def found_out(
    ways: Mapping[int, Sequence[StagePiece]], messages: Iterable[PeerMessage]
) -> Mapping[int, Sequence[StagePiece]] | None:
    """The pieces of each rank with stage and microbatch, where no mark says them; also with `way`, which may be empty.

    None where it cannot be told: of ranks that are no chain, or have several stages each.
    """
    of_rank: dict[int, list[PeerMessage]] = defaultdict(list)
    for message in sorted(messages, key=lambda one: one.place):
        of_rank[message.rank].append(message)
    chain = _chain(of_rank)
    if chain is None or set(chain) != set(ways):
        return None
    told = {}
    for stage, rank in enumerate(chain):
        up = chain[stage - 1] if stage else None
        down = chain[stage + 1] if stage + 1 < len(chain) else None
        told[rank] = [replace(piece, stage=stage) for piece in _told(ways[rank], of_rank[rank], up, down)]
    clean = {
        way: [piece.dur_ns for own in told.values() for piece in own if piece.way == way]
        for way in (FORWARD, FULL_BACKWARD)
    }
    if not all(clean.values()):
        return None
    usual = {way: sorted(durs)[len(durs) // 2] for way, durs in clean.items()}
    return {rank: list(_numbered(_apart(own, usual))) for rank, own in told.items()}


def _chain(of_rank: Mapping[int, Sequence[PeerMessage]]) -> list[int] | None:
    """The ranks from the first stage to the last; None if they are not in a chain."""
    peers = {rank: {message.peer for message in own} for rank, own in of_rank.items()}
    ends = [rank for rank, others in peers.items() if len(others) == 1 and of_rank[rank][0].is_send]
    if len(ends) != 1:
        return None
    chain = [ends[0]]
    while onward := peers.get(chain[-1], set()) - set(chain):
        if len(onward) > 1:
            return None
        chain += onward
    return chain


def _told(
    pieces: Sequence[StagePiece], messages: Sequence[PeerMessage], up: int | None, down: int | None
) -> Iterator[StagePiece]:
    """Yield the pieces with their way, `FB` or `BF` of one that is both; without those that belong to no microbatch.

    A forward follows a receive from the stage before, and what comes from the next one is for a backward; a forward
    goes to the next stage, a backward to the one before. The first stage receives nothing for a forward.
    """
    between: list[list[PeerMessage]] = [[] for _ in range(len(pieces) + 1)]
    orders = [piece.place for piece in pieces]
    for message in messages:
        between[bisect_left(orders, message.place)].append(message)
    last_backward = max(
        (place for place, piece in enumerate(pieces) if piece.way == FULL_BACKWARD), default=len(pieces)
    )
    for place, piece in enumerate(pieces):
        received = {one.peer for one in between[place] if not one.is_send}
        sent = {one.peer for one in between[place + 1] if one.is_send}
        is_early = up is not None and not any(between[: place + 1])
        if is_early or place > last_backward:  # batches that are loaded before, an optimizer behind
            continue
        if piece.way:
            yield piece
        elif received or sent:
            then = FORWARD if down in sent else FULL_BACKWARD if up in sent or up is None else ""
            first = FULL_BACKWARD if down in received else FORWARD if up in received or up is None else then
            yield replace(piece, way=first if then in ("", first) else first + then)


def _apart(pieces: Sequence[StagePiece], usual: Mapping[str, float]) -> Iterator[StagePiece]:
    """Yield the pieces, those that are both cut in two by how long forwards and backwards take.

    By those of the rank itself where it has some; what is left is the other way.
    """
    own = {way: sorted(piece.dur_ns for piece in pieces if piece.way == way) for way in (FORWARD, FULL_BACKWARD)}
    middle = {way: durs[len(durs) // 2] for way, durs in own.items() if durs}
    for piece in pieces:
        if len(piece.way) == 1:
            yield piece
            continue
        first, then = piece.way[0], piece.way[1]
        if len(middle) == 1:
            [(known, dur)] = middle.items()
            share = min(dur / piece.dur_ns, 1.0)
            share = share if known == first else 1.0 - share
        else:
            lengths = middle or usual
            share = lengths[first] / (lengths[first] + lengths[then])
        cut = piece.start_ns + round((piece.end_ns - piece.start_ns) * share)
        yield replace(piece, way=first, end_ns=cut, dur_ns=piece.dur_ns * share)
        yield replace(piece, way=then, start_ns=cut, dur_ns=piece.dur_ns * (1.0 - share))


def _numbered(pieces: Iterable[StagePiece]) -> Iterator[StagePiece]:
    """Yield the pieces with their microbatches, where no mark says them."""
    seen: Counter[str] = Counter()
    for piece in pieces:
        yield piece if piece.microbatch >= 0 else replace(piece, microbatch=seen[piece.way])
        seen[piece.way] += 1
