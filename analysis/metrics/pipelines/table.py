"""Steps of pipelines: which ranks form one, its schedule, and why its ranks did not compute."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from graphlib import CycleError
from typing import Any, NamedTuple

import pandas as pd

from ....common.wording import listed
from ...core.schema import grouped, records
from .account import StepAccount, bubbles_of
from .pieces import SENT
from .schedule import (
    GPIPE,
    INTERLEAVED,
    LOOPED_BFS,
    ONE_F_ONE_B,
    PeerMessage,
    Schedule,
    StagePiece,
    found_out,
    schedule_of,
)


class PipelineStep(NamedTuple):
    """A step of ranks that send to and receive from each other; `note` says why something is None."""

    step: int
    ranks: tuple[int, ...]
    schedule: Schedule | None
    account: StepAccount | None
    note: str | None


def pieces_of_step(of: PipelineStep) -> pd.DataFrame:
    """One row per piece of a step whose schedule is known, in order of rank and launch; times on clocks of ranks."""
    names = ("rank", "way", "stage", "microbatch", "start_ns", "end_ns")
    pieces = [piece for own in of.schedule.pieces.values() for piece in own] if of.schedule else []
    return pd.DataFrame({name: [getattr(piece, name) for piece in pieces] for name in names})


class UsualBubble(NamedTuple):
    """For how many ms of a step the schedule that a run has leaves its ranks without work, on average, and why.

    The inherent part is halved with twice as many microbatches, if it `halves`.
    """

    schedule: str
    stages: int
    microbatches: int
    inherent: float
    imbalance: float
    jitter: float
    order: float
    halves: bool

    @property
    def whole(self) -> float:
        """All of it, in ms, but for transfers."""
        return self.inherent + self.imbalance + self.jitter + self.order


def usual_bubble(steps: Iterable[PipelineStep]) -> UsualBubble | None:
    """What the schedule of these steps leaves their ranks without work; None where they have no single schedule."""
    known = [(each.schedule, each.account) for each in steps if each.schedule and each.account]
    plans = {(plan.name, len(plan.of), plan.microbatches) for plan, _ in known}
    if len(plans) != 1:
        return None
    [(name, stages, microbatches)] = plans
    own = [bubble for _, account in known for bubble in account.bubbles.values()]

    def mean_ms(part: str) -> float:
        return sum(getattr(bubble, part) or 0.0 for bubble in own) / len(own) / 1e6

    return UsualBubble(
        name,
        stages,
        microbatches,
        mean_ms("inherent"),
        mean_ms("imbalance"),
        mean_ms("jitter"),
        mean_ms("order"),
        halves=name in (GPIPE, ONE_F_ONE_B, INTERLEAVED, LOOPED_BFS),
    )


def pipeline_steps(
    pipeline_pieces: pd.DataFrame,
    calls: pd.DataFrame,
    collectives: pd.DataFrame,
    matches: pd.DataFrame,
    *,
    steps: Collection[int] | None = None,
    most_pipelines: int | None = None,
) -> Iterator[PipelineStep]:
    """Yield every step of every pipeline, by its first rank and number. The arguments are the tables of these names.

    Only of these `steps`, and of no more than so many pipelines, where they are given.
    """
    messages = _messages(pipeline_pieces, calls, collectives, matches)
    pieces = dict(grouped(pipeline_pieces[pipeline_pieces["call_id"].isna()], ["rank", "step"]))
    pipeline_of = _pipelines(messages)
    messages = messages.assign(pipeline=messages["rank"].map(pipeline_of))
    chosen = sorted(set(pipeline_of.values()))[:most_pipelines]
    messages = messages[messages["pipeline"].isin(chosen)]
    if steps is not None:
        messages = messages[messages["step"].isin(steps)]
    for (first, step), own in grouped(messages, ["pipeline", "step"]):
        ranks = tuple(sorted(rank for rank, pipeline in pipeline_of.items() if pipeline == first))
        of_ranks = {rank: _pieces(pieces[rank, step]) for rank in ranks if (rank, step) in pieces}
        yield _step(step, ranks, of_ranks, list(map(_message, records(own))))


def _messages(
    pieces: pd.DataFrame, calls: pd.DataFrame, collectives: pd.DataFrame, matches: pd.DataFrame
) -> pd.DataFrame:
    """The sends and receives, each with its `place` among all that its rank launches."""
    launched = pieces.loc[pieces["call_id"].notna(), ["call_id", "step"]].rename_axis("place").reset_index()
    own = calls[calls["call_id"].isin(launched["call_id"])].drop(columns="step")
    told = own.merge(matches[["call_id", "collective_id"]], on="call_id")
    told = told.merge(collectives[["collective_id", "transfer_ns"]], on="collective_id", how="left")
    found = launched.astype({"call_id": "int64"}).merge(told, on="call_id")
    return found[found["root"].notna()]


def _pipelines(messages: pd.DataFrame) -> dict[int, int]:
    """The first rank of those with which each rank exchanges messages, also by way of others."""
    first: dict[int, int] = {}

    def found(rank: int) -> int:
        while first.setdefault(rank, rank) != rank:
            rank = first[rank]
        return rank

    for rank, peer in messages[["rank", "root"]].drop_duplicates().astype("int64").itertuples(index=False):
        low, high = sorted((found(rank), found(peer)))
        first[high] = low
    return {rank: found(rank) for rank in first}


def _pieces(table: pd.DataFrame) -> list[StagePiece]:
    return [
        StagePiece(
            row["rank"],
            place,
            row["way"] or "",
            -1 if row["stage"] is None else row["stage"],
            -1 if row["microbatch"] is None else row["microbatch"],
            row["start_ns"],
            row["end_ns"],
            row["dur_ns"],
            row["is_overlapped"],
        )
        for place, row in zip(table.index.tolist(), records(table), strict=True)
    ]


def _message(call: dict[str, Any]) -> PeerMessage:
    """On a CPU no message waits for the one before: each has a stream of its own."""
    kernel = call["call_id"] if call["batch"] is None else call["batch"]
    return PeerMessage(
        call["rank"],
        call["place"],
        call["root"],
        call["collective"] == SENT,
        -1 - kernel if call["device"] == "cpu" else call["stream"],
        kernel,
        call["collective_id"],
        call["transfer_ns"],
    )


def _step(
    step: int, ranks: tuple[int, ...], pieces: dict[int, list[StagePiece]], messages: Sequence[PeerMessage]
) -> PipelineStep:
    if unseen := [rank for rank in ranks if rank not in pieces]:
        who = listed(list(map(str, unseen)))
        return PipelineStep(step, ranks, None, None, f"nothing that rank {who} computes in it is traced")
    every = [piece for own in pieces.values() for piece in own]
    told = found_out(pieces, messages) if any(piece.stage < 0 for piece in every) else pieces
    if told is None:
        return PipelineStep(
            step, ranks, None, None, "no marks of a schedule, and not one chain of stages, one on each rank"
        )
    schedule = schedule_of(told)
    if schedule is None:
        return PipelineStep(
            step,
            ranks,
            None,
            None,
            "what is computed is not one forward and one backward for each stage and microbatch",
        )
    try:
        account = bubbles_of(schedule, messages)
    except CycleError:
        return PipelineStep(step, ranks, schedule, None, "what waits for what is a circle")
    unknown = any(own.order is None for own in account.bubbles.values())
    note = (
        "sends do not fit what is computed, or how long they took is not known, see `collectives`" if unknown else None
    )
    return PipelineStep(step, ranks, schedule, account, note)
