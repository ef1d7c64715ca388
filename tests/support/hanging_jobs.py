"""Jobs that hang, played here, and the dumps that a flight recorder would make of them: who is at fault is known.

Every rank issues its program call by call, at most `ahead` calls before the oldest one that is not done. A call is done
when all its members have issued the same, and are done with what they issued before.
"""

from __future__ import annotations

import json
import pickle
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

START_NS = 1_758_581_237_000_000_000


@dataclass(frozen=True)
class Op:
    """A call of a group; of a send or receive, with whom."""

    group: str
    kind: str
    elems: int = 8
    dtype: str = "Float"
    peer: int | None = None


@dataclass(frozen=True)
class Fault:
    """What goes wrong on a rank when it comes to a place of its program: sleep, exit, other, or device.

    `device`: nothing from there on is seen as done, though the device does `unseen` calls more.
    """

    rank: int
    at: int
    what: str
    instead: Op | None = None
    unseen: int = 0


@dataclass
class Job:
    """Groups by name -> (description, ranks), the program of each rank, and what goes wrong."""

    groups: dict[str, tuple[str, list[int]]]
    programs: dict[int, list[Op]]
    faults: list[Fault] = field(default_factory=list)
    ahead: int = 1
    issued: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)

    def run(self) -> Job:
        """Until nothing moves any more."""
        fault = {one.rank: one for one in self.faults}
        for one in self.faults:
            if one.what == "other" and one.instead is not None:
                self.programs[one.rank][one.at] = one.instead
        self.issued = dict.fromkeys(self.programs, 0)
        self.done = dict.fromkeys(self.programs, 0)
        moves = True
        while moves:
            moves = False
            for rank, program in self.programs.items():
                stop = fault[rank].at if rank in fault and fault[rank].what in ("sleep", "exit") else len(program)
                while self.issued[rank] < min(stop, len(program)) and self.issued[rank] < self.done[rank] + self.ahead:
                    self.issued[rank] += 1
                    moves = True
            for rank in self.programs:
                while self._next_is_done(rank, fault):
                    self.done[rank] += 1
                    moves = True
        return self

    def _next_is_done(self, rank: int, fault: dict[int, Fault]) -> bool:
        at = self.done[rank]
        if at >= self.issued[rank] or not self._device_goes_on(rank, at, fault):
            return False
        op = self.programs[rank][at]
        if op.peer is not None:
            return self._meets(rank, at, op.peer, fault)
        number = self.number(rank, at)
        return all(self._arrives(member, op, number, fault) for member in self.groups[op.group][1])

    def _device_goes_on(self, rank: int, at: int, fault: dict[int, Fault]) -> bool:
        one = fault.get(rank)
        return one is None or one.what != "device" or at < one.at + one.unseen

    def _arrives(self, member: int, op: Op, number: int, fault: dict[int, Fault]) -> bool:
        """Whether a member's device is at that collective, or beyond it."""
        for at, other in enumerate(self.programs[member][: self.issued[member]]):
            if other.group == op.group and other.peer is None and self.number(member, at) == number:
                same = (other.kind, other.elems, other.dtype) == (op.kind, op.elems, op.dtype)
                return same and at <= self.done[member] and self._device_goes_on(member, at, fault)
        return False

    def _meets(self, rank: int, at: int, peer: int, fault: dict[int, Fault]) -> bool:
        op = self.programs[rank][at]
        wanted = {"send": "recv", "recv": "send"}[op.kind]
        turn = sum(1 for o in self.programs[rank][:at] if (o.kind, o.peer, o.group) == (op.kind, peer, op.group))
        for there, other in enumerate(self.programs[peer][: self.issued[peer]]):
            if (other.kind, other.peer, other.group) == (wanted, rank, op.group):
                if turn == 0:
                    return there <= self.done[peer] and self._device_goes_on(peer, there, fault)
                turn -= 1
        return False

    def number(self, rank: int, at: int) -> int:
        """The number of a collective in its group, from 1; of a send or receive, among those of the rank."""
        op = self.programs[rank][at]
        alike = [
            o for o in self.programs[rank][: at + 1] if o.group == op.group and (o.peer is None) == (op.peer is None)
        ]
        return len(alike)

    @property
    def hangs(self) -> bool:
        """Whether somebody waits."""
        return any(self.done[rank] < self.issued[rank] for rank in self.programs)

    @property
    def culprits(self) -> set[int]:
        """Ranks whose fault came about, and for whom others wait."""
        awaited = {other for rank in self.programs for other in self._awaited_by(rank)}
        return {
            one.rank for one in self.faults if self.came_about(one) and (one.rank in awaited or one.what == "other")
        }

    def came_about(self, one: Fault) -> bool:
        """Whether the rank got as far as to its fault."""
        if one.what == "other":
            return self.done[one.rank] == one.at < self.issued[one.rank]
        if one.what == "device":
            return self.issued[one.rank] > one.at
        return self.issued[one.rank] == one.at == self.done[one.rank]

    def _awaited_by(self, rank: int) -> Iterator[int]:
        """Ranks that have not issued what this one has, or that do not get done with it."""
        for at in range(self.done[rank], self.issued[rank]):
            op, number = self.programs[rank][at], self.number(rank, at)
            if op.peer is None:
                for member in self.groups[op.group][1]:
                    there = [self.number(member, a) for a, o in self._issued_in(member, op.group) if o.peer is None]
                    if max(there, default=0) < number or (member, "device") in [(f.rank, f.what) for f in self.faults]:
                        yield member
            else:
                wanted = {"send": "recv", "recv": "send"}[op.kind]
                mine = [o for o in self.programs[rank][: at + 1] if (o.kind, o.peer) == (op.kind, op.peer)]
                theirs = [o for _, o in self._issued_in(op.peer, op.group) if (o.kind, o.peer) == (wanted, rank)]
                if len(theirs) < len(mine):
                    yield op.peer

    def _issued_in(self, rank: int, group: str) -> list[tuple[int, Op]]:
        return [(at, op) for at, op in enumerate(self.programs[rank][: self.issued[rank]]) if op.group == group]


@dataclass(frozen=True)
class Writing:
    """How dumps are made: of how many calls, which, and how."""

    buffer: int = 2000
    only_active: bool = False
    as_json: bool = False
    backend: str = "nccl"
    frames: bool = True
    statuses: bool = True
    protocol: int = 2
    name: Callable[[int], str] = "nccl_trace_rank_{}".format
    numbers_from: int = 0
    """By how much collectives were numbered before, as after days of training."""


def dumps_of(job: Job, writing: Writing = Writing()) -> dict[int, dict[str, Any]]:
    """A dump of each rank that is still there."""
    gone = {one.rank for one in job.faults if one.what == "exit" and job.came_about(one)}
    return {rank: _dump(job, rank, writing) for rank in job.programs if rank not in gone}


def write_job(folder: Path, job: Job, writing: Writing = Writing()) -> Path:
    """The dumps as files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps_of(job, writing).items():
        packed = json.dumps(dump).encode() if writing.as_json else pickle.dumps(dump, protocol=writing.protocol)
        (folder / writing.name(rank)).write_bytes(packed)
    return folder


def _dump(job: Job, rank: int, writing: Writing) -> dict[str, Any]:
    of_rank = [name for name, (_, ranks) in job.groups.items() if rank in ranks]
    seen = _seen(job, rank)
    entries = [_entry(job, rank, at, seen, of_rank, writing) for at in range(job.issued[rank])]
    entries = entries[-writing.buffer :]
    if writing.only_active:
        entries = [entry for entry in entries if entry["state"] != "completed"]
    found: dict[str, Any] = {
        "version": "2.10" if writing.as_json else "2.9",
        "pg_config": {n: {"name": n, "desc": job.groups[n][0], "ranks": str(job.groups[n][1])} for n in of_rank},
        "comm_lib_version" if writing.as_json else "nccl_version": "2.27.3",
        "entries": entries,
    }
    if writing.statuses:
        found["pg_status"] = {
            str(n): _status(job, rank, seen, name, writing) for n, name in enumerate(of_rank) if job.issued[rank]
        }
    return found


def _seen(job: Job, rank: int) -> int:
    """How many calls the rank itself sees as done."""
    stops = [one.at for one in job.faults if one.rank == rank and one.what == "device"]
    return min([job.done[rank], *stops])


def _entry(job: Job, rank: int, at: int, seen: int, of_rank: list[str], writing: Writing) -> dict[str, Any]:
    op = job.programs[rank][at]
    ranks = job.groups[op.group][1]
    name, is_done = op.kind, at < seen
    if op.peer is not None:
        name += f" {ranks.index(rank)}{'->' if op.kind == 'send' else '<-'}{ranks.index(op.peer)}"
    number = job.number(rank, at)
    created = START_NS + at * 1_000_000 + rank
    none = 0 if writing.as_json else None
    out = op.elems * len(ranks) if op.kind in ("_all_gather_base",) else op.elems
    entry = {
        "record_id": at + (writing.numbers_from and 10 * writing.numbers_from),
        "pg_id": of_rank.index(op.group),
        "process_group": (op.group, job.groups[op.group][0]),
        "collective_seq_id": 0 if op.peer is not None else number + writing.numbers_from,
        "p2p_seq_id": number if op.peer is not None else 0,
        "op_id": at + 1,
        "profiling_name": f"{writing.backend}:{name}",
        "time_created_ns": created,
        "input_sizes": [[op.elems]],
        "input_dtypes": [op.dtype],
        "output_sizes": [[out]],
        "output_dtypes": [op.dtype],
        "state": "completed" if is_done else "scheduled",
        "time_discovered_started_ns": none,
        "time_discovered_completed_ns": created + 500_000 if is_done else none,
        "retired": is_done,
        "timeout_ms": 600_000,
        "is_p2p": op.peer is not None,
    }
    if writing.frames and not writing.as_json:
        entry["frames"] = [
            {"name": op.kind, "filename": "/opt/lib/python3.11/site-packages/torch/distributed/c10d.py", "line": 7},
            {"name": "step", "filename": "train.py", "line": 100 + at},
        ]
    return entry


def _status(job: Job, rank: int, seen: int, name: str, writing: Writing) -> dict[str, Any]:
    ats = [at for at, op in enumerate(job.programs[rank][: job.issued[rank]]) if op.group == name]
    before = writing.numbers_from
    numbers = {
        "last_enqueued_collective": before + len(ats) or -1,
        "last_started_collective": -1,
        "last_completed_collective": before + sum(at < seen for at in ats) or -1,
    }
    return {key: str(value) for key, value in numbers.items()} if writing.as_json else numbers


# Programs


def data_parallel(world: int, steps: int = 4) -> Job:
    """An all_reduce or two of all ranks, step by step."""
    program = [op for _ in range(steps) for op in (Op("0", "all_reduce", 1000), Op("0", "_all_gather_base", 64))]
    return Job({"0": ("default_pg", list(range(world)))}, {rank: list(program) for rank in range(world)})


def three_dimensional(tp: int, pp: int, dp: int, steps: int = 2, micros: int = 2) -> Job:
    """Tensors, pipelines and data in parallel, as Megatron numbers ranks: tp fastest, pp slowest."""
    world = tp * pp * dp

    def place(t: int, p: int, d: int) -> int:
        return t + tp * (d + dp * p)

    groups: dict[str, tuple[str, list[int]]] = {"0": ("default_pg", list(range(world)))}
    kinds = {
        "TENSOR": [[place(t, p, d) for t in range(tp)] for p in range(pp) for d in range(dp)],
        "PIPELINE": [[place(t, p, d) for p in range(pp)] for t in range(tp) for d in range(dp)],
        "DATA": [[place(t, p, d) for d in range(dp)] for p in range(pp) for t in range(tp)],
    }
    of_rank: dict[int, dict[str, str]] = defaultdict(dict)
    for kind, members in kinds.items():
        for ranks in members:
            name = str(len(groups))
            groups[name] = (f"{kind}_PARALLEL_GROUP", ranks)
            for rank in ranks:
                of_rank[rank][kind] = name
    programs = {
        place(t, p, d): list(_stage(of_rank[place(t, p, d)], groups, place(t, p, d), steps, micros))
        for t in range(tp)
        for p in range(pp)
        for d in range(dp)
    }
    return Job(groups, programs)


def _stage(of: dict[str, str], groups: dict[str, Any], rank: int, steps: int, micros: int) -> Iterator[Op]:
    line = groups[of["PIPELINE"]][1]
    at = line.index(rank)
    for _ in range(steps):
        for back in (False, True):
            source, target = (at + 1, at - 1) if back else (at - 1, at + 1)
            for _ in range(micros):
                if 0 <= source < len(line):
                    yield Op(of["PIPELINE"], "recv", 512, "BFloat16", line[source])
                yield Op(of["TENSOR"], "_all_gather_base", 256, "BFloat16")
                yield Op(of["TENSOR"], "all_reduce", 512, "BFloat16")
                if 0 <= target < len(line):
                    yield Op(of["PIPELINE"], "send", 512, "BFloat16", line[target])
        yield Op(of["DATA"], "all_reduce", 4096)
        yield Op("0", "all_reduce", 1)


def ring(world: int, rounds: int = 3) -> Job:
    """Every rank passes something on; rank 0 sends first, the others receive first."""
    programs = {}
    for rank in range(world):
        send = Op("0", "send", 64, peer=(rank + 1) % world)
        receive = Op("0", "recv", 64, peer=(rank - 1) % world)
        programs[rank] = ([send, receive] if rank == 0 else [receive, send]) * rounds
    return Job({"0": ("default_pg", list(range(world)))}, programs)


def broken(job: Job, choice: random.Random, faults: int = 1) -> Job:
    """The job with random faults."""
    for rank in choice.sample(sorted(job.programs), faults):
        program = job.programs[rank]
        at = choice.randrange(1, len(program))
        what = choice.choice(["sleep", "exit", "other", "sleep"])
        instead = None
        if what == "other":
            members = job.groups[program[at].group][1]
            if program[at].peer is not None or len(members) < 3:  # of two, nobody knows which one is wrong
                what = "sleep"
            else:
                change = {"elems": 7} if choice.random() < 0.5 else {"kind": "broadcast"}
                instead = replace(program[at], **change)
        job.faults.append(Fault(rank, at, what, instead))
    job.ahead = choice.choice([1, 1, 3, 6])
    return job.run()
