"""What a step of a pipeline would take with more microbatches, more chunks, or stages of equal shares.

A changed schedule has another order, which is made as torch makes it; the pieces take what those of their stage do on
average. Twice as many microbatches are half as large, and so take half as long each, at best: small ones fill a GPU
less. What messages take is not counted: there are more of them, and smaller ones.

Source of the orders: torch/distributed/pipelining/schedules.py (GPipe, 1F1B, interleaved 1F1B).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .account import WaitGraph, needs_of
from .pieces import FORWARD, FULL_BACKWARD
from .schedule import GPIPE, INTERLEAVED, ONE_F_ONE_B, Schedule, StagePiece
from .table import PipelineStep

_PLAYED = (GPIPE, ONE_F_ONE_B, INTERLEAVED)
_AS_TRACED = 0.02
"""Of a step: a schedule that is further from its own order is not that of its name."""
NOT_PLAYED = "only GPipe and (interleaved) 1F1B are played with other numbers"
MIXED = "its steps differ in schedule or in the number of microbatches"
UNEVEN = "its microbatches are not a multiple of its ranks"
OTHER_ORDER = "its pieces are not in the order of its schedule"


class _Plan(NamedTuple):
    """A schedule of so many `ranks`, `chunks` of each, and microbatches, with `took` by way and stage, in ns."""

    name: str
    ranks: int
    chunks: int
    microbatches: int
    took: Mapping[tuple[str, int], float]

    def with_microbatches(self, times: int) -> _Plan:
        """More microbatches, as much smaller."""
        took = {kind: ns / times for kind, ns in self.took.items()}
        return self._replace(microbatches=times * self.microbatches, took=took)

    def with_chunks(self, times: int) -> _Plan | None:
        """More chunks of each rank, as much smaller; None where microbatches cannot be dealt out to them."""
        if self.microbatches % self.ranks:
            return None
        chunks = times * self.chunks
        took = {
            (way, chunk * self.ranks + stage % self.ranks): ns / times
            for (way, stage), ns in self.took.items()
            for chunk in range(stage // self.ranks * times, (stage // self.ranks + 1) * times)
        }
        return _Plan(INTERLEAVED, self.ranks, chunks, self.microbatches, took)

    @property
    def even(self) -> _Plan:
        """All stages as long as they are on average."""
        means: dict[str, list[float]] = defaultdict(list)
        for (way, _), ns in self.took.items():
            means[way].append(ns)
        return self._replace(took={(way, stage): float(np.mean(means[way])) for way, stage in self.took})

    @property
    def work_ns(self) -> float:
        """What its ranks compute in all."""
        return self.microbatches * sum(self.took.values())

    @property
    def length_ns(self) -> float:
        """How long a step of it takes, messages not counted."""
        pieces = {rank: list(self._pieces(rank)) for rank in range(self.ranks)}
        of = {stage: stage % self.ranks for stage in range(self.ranks * self.chunks)}
        lengths: dict[Hashable, Any] = {piece.key: np.array(piece.dur_ns) for own in pieces.values() for piece in own}
        return float(WaitGraph(needs_of(Schedule(pieces, of, self.name))).length(lengths))

    def _pieces(self, rank: int) -> Iterator[StagePiece]:
        for place, (way, number) in enumerate(self._order(rank)):
            turn, at = divmod(number, self.ranks * self.chunks)
            chunk = at // self.ranks if way == FORWARD else self.chunks - 1 - at // self.ranks
            microbatch = number if self.chunks == 1 else turn * self.ranks + at % self.ranks
            stage = rank if self.chunks == 1 else chunk * self.ranks + rank
            yield StagePiece(rank, place, way, stage, microbatch, 0, 0, self.took[way, stage])

    def _order(self, rank: int) -> Iterator[tuple[str, int]]:
        """The ways that a rank goes, each with how many of it came before."""
        whole = self.chunks * self.microbatches
        if self.name == GPIPE:
            first = whole
        elif self.chunks == 1:
            first = self.ranks - 1 - rank
        else:
            first = (self.chunks - 1) * self.ranks + 2 * (self.ranks - 1 - rank)
        first = min(first, whole)
        yield from ((FORWARD, number) for number in range(first))
        for number in range(first, whole):
            yield FORWARD, number
            yield FULL_BACKWARD, number - first
        yield from ((FULL_BACKWARD, number) for number in range(whole - first, whole))


def rows_of_changes(steps: Sequence[PipelineStep]) -> Iterator[dict[str, Any]]:
    """Yield a row for each change of each pipeline, of these steps, whose parts are known; first the one as it is."""
    of_pipeline: dict[tuple[int, ...], list[PipelineStep]] = defaultdict(list)
    for each in steps:
        of_pipeline[each.ranks].append(each)
    for ranks, own in of_pipeline.items():
        schedule = own[0].schedule
        assert schedule is not None
        about = {"ranks": " ".join(map(str, ranks))}
        plan, note = _plan(own)
        if plan is None:
            yield about | {"change": "as it is", "schedule": schedule.name, "microbatches": schedule.microbatches,
                           "chunks": len(schedule.of) // len(ranks), "note": note}  # fmt: skip
            continue
        before = plan.length_ns
        for change, changed in _changes(plan):
            length = before if changed is plan else changed.length_ns
            yield about | {
                "change": change,
                "schedule": changed.name,
                "microbatches": changed.microbatches,
                "chunks": changed.chunks,
                "pipeline_ns": round(length),
                "gain_ns": round(before) - round(length),
                "bubble_frac": 1 - changed.work_ns / (changed.ranks * length) if length else None,
            }


def _changes(plan: _Plan) -> Iterator[tuple[str, _Plan]]:
    yield "as it is", plan
    yield "2 times the microbatches", plan.with_microbatches(2)
    yield "4 times the microbatches", plan.with_microbatches(4)
    chunked = plan.with_chunks(2)
    if chunked is not None:
        yield "2 times the chunks", chunked
        yield "2 times the chunks and microbatches", chunked.with_microbatches(2)
    yield "equal shares", plan.even
    yield "equal shares, 2 times the microbatches", plan.even.with_microbatches(2)


def _plan(steps: Sequence[PipelineStep]) -> tuple[_Plan | None, str | None]:
    """What these steps are in the mean, or why they cannot be played with other numbers."""
    known = [each.schedule for each in steps if each.schedule is not None]
    shapes = {(one.name, len(one.pieces), len(one.of), one.microbatches) for one in known}
    took: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one in known:
        for own in one.pieces.values():
            for piece in own:
                took[piece.way, piece.stage].append(piece.dur_ns)
    [(name, ranks, stages, microbatches), *others] = shapes
    if others:
        return None, MIXED
    if name not in _PLAYED or not {way for way, _ in took} <= {FORWARD, FULL_BACKWARD}:
        return None, NOT_PLAYED
    chunks = stages // ranks
    if chunks > 1 and microbatches % ranks:
        return None, UNEVEN
    means = {kind: float(np.mean(durs)) for kind, durs in took.items()}
    plan = _Plan(name, ranks, chunks, microbatches, means)
    traced = float(np.mean([_as_traced(one, means) for one in known]))
    return (plan, None) if abs(plan.length_ns - traced) <= _AS_TRACED * traced else (None, OTHER_ORDER)


def _as_traced(schedule: Schedule, means: Mapping[tuple[str, int], float]) -> float:
    """How long a step takes in the order that it has."""
    lengths: dict[Hashable, Any] = {
        piece.key: np.array(means[piece.way, piece.stage]) for own in schedule.pieces.values() for piece in own
    }
    return float(WaitGraph(needs_of(schedule)).length(lengths))
