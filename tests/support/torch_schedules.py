"""Steps of pipelines by the action tables of torch, played by simple rules and written as Kineto traces.

A rank computes the actions of its table in their order. A message begins when both of its kernels do; a kernel begins
when what was launched before it has been computed, and the kernel before it on its stream has ended. Times in us.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LOOPED = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
SCHEDULES = ("GPipe", "1F1B", *LOOPED, *V_SHAPED)
NAMES = dict(
    zip(SCHEDULES, ("GPipe", "1F1B", "interleaved 1F1B", "looped BFS", "zero-bubble", "ZBV", "DualPipeV"), strict=True)
)
"""What users call them."""
_ACTION = re.compile(r"(\d+)(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)(\d+)\Z")
_BASE_US, _GAP_US, _OPTIMIZER_US = 1_700_000_000_000_000, 500.0, 900.0


class Op(NamedTuple):
    """An action: F, B, I or W, or a send or receive of it; `mark` is what torch writes around it, or nothing."""

    kind: str
    stage: int
    microbatch: int
    mark: str

    @property
    def is_message(self) -> bool:
        return "_" in self.kind


@dataclass
class Drawn:
    """A pipeline, how long its actions take by kind, stage and microbatch, and the message that each sends."""

    schedule: str
    ranks: int
    chunks: int
    microbatches: int
    takes: dict[tuple[str, int, int], float]
    moves: dict[tuple[str, int, int], float]
    slow_stage: int | None
    tables: list[list[Op]] = field(init=False)

    def __post_init__(self) -> None:
        self.tables = tables_of(self.schedule, self.ranks, self.microbatches, self.chunks)

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        if self.schedule in V_SHAPED:
            return min(stage, self.stages - 1 - stage)
        return stage % self.ranks


def tables_of(schedule: str, ranks: int, microbatches: int, chunks: int) -> list[list[Op]]:
    """What each rank does, in order. Raises what torch raises where a schedule cannot be."""
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    single = chunks == 1
    told = get_schedule_ops(schedule, ranks, microbatches, num_stages_per_rank=chunks, with_comms=not single)
    return [
        list(_with_messages([str(one) for one in own if one], rank, ranks) if single else _marked(map(str, own)))
        for rank, own in enumerate(told)
    ]


def _marked(actions: Iterator[str]) -> Iterator[Op]:
    for text in actions:
        mark = f"PP:{text}"
        for one in text[1 : text.index(")")].split(";") if text.startswith("(") else [text]:
            if told := _ACTION.match(one):
                yield Op(told[2], int(told[1]), int(told[3]), mark)


def _with_messages(actions: list[str], rank: int, ranks: int) -> Iterator[Op]:
    """GPipe and 1F1B: receives just before, sends right behind. torch numbers the last forwards from their rank."""
    every = [(told[2], int(told[3])) for one in actions if (told := _ACTION.match(one))]
    first = min(number for kind, number in every if kind == "F")
    is_gpipe = [kind for kind, _ in every] == sorted((kind for kind, _ in every), reverse=True)
    for kind, given in every:
        number = given - first if kind == "F" else given
        onward, back = (rank + 1 < ranks, rank > 0) if kind == "F" else (rank > 0, rank + 1 < ranks)
        mark = f"{'Forward' if kind == 'F' else 'Backward'} {number}" if is_gpipe else ""
        if back:
            yield Op(f"RECV_{kind}", rank, number, "")
        yield Op(kind, rank, number, mark)
        if onward:
            yield Op(f"SEND_{kind}", rank, number, "")


def drawn(rng: np.random.Generator, schedule: str | None = None, most_ranks: int = 8, most: int = 32) -> Drawn:
    """A pipeline with `most` microbatches or so, a slow stage in half of them, jitter and transfers."""
    schedule = schedule or str(rng.choice(SCHEDULES))
    ranks = int(rng.integers(2, most_ranks + 1))
    chunks = 1 if schedule in ("GPipe", "1F1B") else 2 if schedule in V_SHAPED else int(rng.integers(2, 4))
    least = 2 * ranks if schedule in V_SHAPED else ranks
    microbatches = max(least, ranks * int(rng.integers(1, max(most // ranks, 1) + 1)), 4 if chunks == 1 else 0)
    usual = dict(zip("FBIW", rng.uniform(2_000, 6_000, 4).tolist(), strict=True))
    slow = int(rng.integers(ranks * chunks)) if rng.random() < 0.5 else None
    jitter = float(rng.choice([0.0, 0.02, 0.1]))
    transfer = float(rng.choice([20.0, 200.0, 800.0]))
    takes, moves = {}, {}
    for stage in range(ranks * chunks):
        own = float(rng.uniform(1.3, 2.0)) if stage == slow else 1.0
        for number in range(microbatches):
            for kind in "FBIW":
                takes[kind, stage, number] = round(usual[kind] * own * float(rng.lognormal(0, jitter)), 1)
            for kind in "FB":
                moves[kind, stage, number] = round(transfer * float(rng.lognormal(0, 0.1)), 1)
    return Drawn(schedule, ranks, chunks, microbatches, takes, moves, slow)


Key = tuple[str, int, int]
Played = dict[Key, tuple[float, float]]
"""When each action began and ended, by kind, stage and microbatch."""


def key_of(op: Op) -> Key:
    return op.kind, op.stage, op.microbatch


def stream_of(of: Drawn, op: Op) -> int:
    """One for all messages of torch's runtime; GPipe and 1F1B have one for each direction, or they would block."""
    return 20 if of.chunks > 1 else 20 + ("SEND_F", "RECV_F", "SEND_B", "RECV_B").index(op.kind)


def ends_of(op: Op) -> tuple[Key, Key]:
    """A message as its sender and its receiver call it."""
    way, up = op.kind[-1], 1 if op.kind[-1] == "F" else -1
    sender = op.stage if op.kind.startswith("SEND") else op.stage - up
    return (f"SEND_{way}", sender, op.microbatch), (f"RECV_{way}", sender + up, op.microbatch)


def played(of: Drawn, takes: dict[Key, float], moves: float, *, lanes: bool) -> Played:
    """Play it, with actions that take so long, and messages `moves` times as long as drawn.

    Without `lanes` a message waits for nothing but what is in it. By going over all until nothing begins later.
    """
    found: Played = {key_of(one): (0.0, 0.0) for own in of.tables for one in own}

    def computed(way: str, stage: int, microbatch: int) -> tuple[float, float]:
        kinds = ("F",) if way == "F" else ("B", "I")
        return next(found[kind, stage, microbatch] for kind in kinds if (kind, stage, microbatch) in found)

    def ready(op: Op) -> float:
        """When what an action needs from elsewhere is there."""
        kind, stage, number = key_of(op)
        if kind == "W":
            return found["I", stage, number][1]
        before = stage - 1 if kind == "F" else stage + 1
        if not 0 <= before < of.stages:
            return 0.0
        way = "F" if kind == "F" else "B"
        return found.get((f"RECV_{way}", stage, number), computed(way, before, number))[1]

    changed = True
    while changed:
        changed = False
        for own in of.tables:
            now = 0.0
            free: dict[int, float] = defaultdict(float)
            for one in own:
                if not one.is_message:
                    begin = max(now, ready(one))
                    now = end = begin + takes[key_of(one)]
                else:
                    send, receive = ends_of(one)
                    begin = max(now, free[stream_of(of, one)])
                    met = max(begin, found[send][0], found[receive][0]) if lanes else computed(*_of_send(send))[1]
                    end = met + moves * of.moves[_of_send(send)]
                    free[stream_of(of, one)] = end
                if found[key_of(one)] != (begin, end):
                    found[key_of(one)], changed = (begin, end), True
    return found


def _of_send(send: Key) -> Key:
    return send[0][-1], send[1], send[2]


def parts(of: Drawn) -> dict[int, dict[str, float]]:
    """What each rank does not compute, part by part, in us: from the definitions."""
    actions = [one for own in of.tables for one in own if not one.is_message]
    by_kind: dict[str, list[float]] = defaultdict(list)
    by_stage: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one in actions:
        by_kind[one.kind].append(of.takes[key_of(one)])
        by_stage[one.kind, one.stage].append(of.takes[key_of(one)])
    equal = {key_of(one): float(np.mean(by_kind[one.kind])) for one in actions}
    own = {key_of(one): float(np.mean(by_stage[one.kind, one.stage])) for one in actions}

    def length(takes: dict[Key, float], moves: float, *, lanes: bool) -> float:
        done = played(of, takes, moves, lanes=lanes)
        return max(done[key_of(one)][1] for one in actions)

    lengths = [length(takes, 0.0, lanes=False) for takes in (equal, own, of.takes)]
    free, moved = (length(of.takes, moves, lanes=True) for moves in (0.0, 1.0))
    found = {}
    for rank, table in enumerate(of.tables):
        mine = [key_of(one) for one in table if not one.is_message]
        idle = [all_ - sum(takes[key] for key in mine)
                for all_, takes in zip(lengths, (equal, own, of.takes), strict=True)]  # fmt: skip
        found[rank] = {
            "inherent": idle[0],
            "imbalance": idle[1] - idle[0],
            "jitter": idle[2] - idle[1],
            "order": free - lengths[2],
            "transfer": moved - free,
        }
    return found


def write(of: Drawn, folder: Path, steps: int = 2) -> None:
    """The traces of all ranks, of as many equal steps. 1F1B has no marks: autograd's operators say what is backward."""
    done = played(of, of.takes, 1.0, lanes=True)
    length = max(end for _, end in done.values()) + _OPTIMIZER_US + _GAP_US
    folder.mkdir(parents=True, exist_ok=True)
    for rank, table in enumerate(of.tables):
        events: list[dict[str, Any]] = []
        sequence = 0
        for step in range(steps):
            begin, now = _BASE_US + step * length, _BASE_US + step * length + 1.0
            mark = ""
            for one in table:
                sequence += 2
                since, until = done[key_of(one)]
                thread = 2 if one.kind in ("B", "I", "W") else 1
                if one.mark and one.mark != mark:
                    together = sum(other.mark == one.mark for other in table)
                    events.append(_event("user_annotation", one.mark, now, 5.0 * together - 1.0, 1))
                if thread == 2:
                    events.append(_event("cpu_op", "autograd::engine::evaluate_function: B", now + 0.5, 3.4, 2))
                mark = one.mark
                events += _launched(of, one, rank, sequence, (now + 1.0, thread), (begin + since, until - since))
                now += 5.0
            end, sequence = begin + length - _GAP_US, sequence + 2
            events.append(_event("cuda_runtime", "cudaLaunchKernel", now, 1.0, 1, correlation=sequence))
            events.append(_event("kernel", "adam", end - _OPTIMIZER_US, _OPTIMIZER_US, 7, device=0, stream=7,
                                 correlation=sequence))  # fmt: skip
            events.append(_event("cuda_runtime", "cudaDeviceSynchronize", now + 2.0, end - now - 2.0, 1))
            events.append(_event("user_annotation", f"ProfilerStep#{step}", begin, length - _GAP_US + 1.0, 1))
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": of.ranks},
            "traceEvents": events,
        }
        (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps(document).encode(), 1))


def _launched(
    of: Drawn, one: Op, rank: int, sequence: int, launch: tuple[float, int], ran: tuple[float, float]
) -> Iterator[dict[str, Any]]:
    yield _event("cuda_runtime", "cudaLaunchKernel", launch[0], 1.0, launch[1], correlation=sequence)
    if not one.is_message:
        half = ran[1] / 2
        yield _event("kernel", f"gemm_{one.kind}", ran[0], half, 7, device=0, stream=7, correlation=sequence)
        yield _event("cuda_runtime", "cudaLaunchKernel", launch[0] + 1.5, 1.0, launch[1], correlation=sequence + 1)
        yield _event("kernel", f"relu_{one.kind}", ran[0] + half, ran[1] - half, 7, device=0, stream=7,
                     correlation=sequence + 1)  # fmt: skip
        return
    send, receive = ends_of(one)
    is_send = one.kind.startswith("SEND")
    peer = of.rank_of((receive if is_send else send)[1])
    stream = stream_of(of, one)
    told: dict[str, Any] = {
        "Collective name": "send" if is_send else "recv", "In msg nelems": 4096, "Out msg nelems": 4096,
        "dtype": "BFloat16", "Group size": of.ranks,
        "Process Group Name": "pp" if of.chunks > 1 else f"pp {one.kind[-1]}",
        "Process Group Ranks": str(list(range(of.ranks))), "Dst Rank" if is_send else "Src Rank": peer,
    }  # fmt: skip
    yield _event(
        "kernel", "ncclDevKernel_SendRecv", *ran, stream, device=0, stream=stream, correlation=sequence, **told
    )


def _event(category: str, name: str, at: float, dur: float, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": round(at, 3),
            "dur": round(dur, 3), "args": args}  # fmt: skip
