"""Traces as Kineto writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from isal import igzip

from .arguments import (
    CallRecord,
    annotation_name,
    call_record,
    counted_args,
    fixed_args,
    group_description,
    group_name,
    kernel_name,
    message_record,
    operator_name,
    shape_args,
    work_args,
)
from .clock import EPOCH_NS
from .ops import COMPUTE_STREAM, P2P, Block, Comm, Communication, Cpu, Group, Kernel, Wait
from .physics import LAUNCHED_AT
from .ran import Ran
from .shown import Seen, Trace
from .world import World

_BASES_APART_NS = 1_000_000_000_000
_OWN_STEPS = 3
_MEANINGLESS = 1 << 30
_FIRST_ID, _FIRST_CORRELATION = 100, 5000
_BEFORE_COLLECTIVES = ("cudaStreamIsCapturing", "cudaEventRecordWithFlags", "cudaStreamWaitEvent")
_WATCHED_US, _WATCHING = 100.0, 1
"""How often a thread of its own looks after collectives, and what its number is beside that of the main thread."""


def file_name(world: World, trace: Trace) -> str:
    """The name of a trace file; digits rise with the cycles."""
    layout, many = world.layout, len(world.window.cycles) > 1 and not world.window.spans
    end = ".gz" if layout.gz else ""
    digits = trace.clock.cpu_ns(trace.closed_us)
    if layout.names == "torch":
        return f"{host_name(world, trace.rank)}_{pid_of(world, trace.rank)}.{digits}.pt.trace.json{end}"
    return f"rank{trace.rank}.{digits}.pt.trace.json{end}" if many else f"rank{trace.rank}.json{end}"


def host_name(world: World, rank: int) -> str:
    return f"node{0 if world.layout.one_name else world.host_of(rank):02d}"


def pid_of(world: World, rank: int) -> int:
    return 4000 + 7 * (rank if world.layout.one_name else rank % world.gpus)


def write_trace(path: Path, content: str) -> None:
    """Packed if its name says so."""
    raw = content.encode()
    path.write_bytes(igzip.compress(raw, 1) if path.suffix == ".gz" else raw)


def header(world: World, trace: Trace, groups: Iterable[Group]) -> str:
    """What stands before the events."""
    layout, rank = world.layout, trace.rank
    fields = [
        '"schemaVersion": 1',
        '"deviceProperties": [' + ", ".join(f'{{"id": {i}, "name": "{layout.gpu}"}}' for i in range(world.gpus)) + "]",
    ]
    info: dict[str, object] = {"backend": "nccl", "rank": rank, "world_size": world.size}
    if layout.header == "groups":
        own = [group for group in groups if rank in group.ranks]
        info |= {"pg_count": len(own), "pg_config": [_group(world, group) for group in own], "nccl_version": "2.27.5"}
    if layout.header != "none":
        fields.append(f'"distributedInfo": {json.dumps(info)}')
    if layout.host_in_header:
        fields.append(f'"host_name": "{host_name(world, rank)}"')
    fields.append('"displayTimeUnit": "ms"')
    if not layout.whole_us:
        fields.append(f'"baseTimeNanoseconds": {base_ns(trace)}')
    return "".join(f"  {text},\n" for text in fields)


def _group(world: World, group: Group) -> dict[str, object]:
    return {
        "pg_name": group_name(group, world.layout),
        "pg_desc": group_description(group),
        "backend_config": "cuda:nccl",
        "pg_size": len(group.ranks),
        "ranks": list(group.ranks),
    }


def base_ns(trace: Trace) -> int:
    """What the times of a file count from, in ns since 1970; not the same in all files."""
    return 0 if trace.clock.whole_us else EPOCH_NS - (1 + trace.rank % 3) * _BASES_APART_NS


@dataclass
class Events:
    """The events of one file under construction."""

    world: World
    trace: Trace
    times: list[float]
    texts: list[str] = field(default_factory=list)
    ids: int = _FIRST_ID

    def __post_init__(self) -> None:
        self.base_ns, self.pid = base_ns(self.trace), pid_of(self.world, self.trace.rank)
        self.device = self.trace.rank % self.world.gpus
        self.closed_ns = self.trace.clock.cpu_ns(self.trace.closed_us)

    def all(self) -> list[str]:
        """Their texts."""
        for step in self.trace.steps:
            self._step(step.step, self.times[step.begin], self.times[step.done])
        for number, seen in enumerate(self.trace.seen):
            self._operation(seen, _FIRST_CORRELATION + number)
        end_ns = self.closed_ns - self.base_ns
        self.texts.append(
            '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", '
            f'"ts": {_us(end_ns)}\n  }}'
        )
        return self.texts

    def _step(self, step: int, begin: float, done: float) -> None:
        own = self.world.layout.steps == "own"
        number = step + (_OWN_STEPS * (self.trace.rank % 4) if own else 0)
        self._cpu("user_annotation", f"ProfilerStep#{number}", begin, done, f'"External id": {self._id()}')
        if self.world.layout.every_call:
            for turn in range(round((done - begin) / _WATCHED_US)):
                self._call("cudaEventQuery", begin + turn * _WATCHED_US, 1.0, self.pid + _WATCHING)

    def _id(self) -> int:
        self.ids += 1
        return self.ids

    def _event(self, kind: str, name: str, where: str, begin_ns: int, end_ns: int, args: str) -> None:
        since = begin_ns - self.base_ns
        self.texts.append(
            f'  {{\n    "ph": "X", "cat": "{kind}", "name": "{name}", {where},\n    "ts": {_us(since)}, '
            f'"dur": {_us(end_ns - begin_ns)},\n    "args": {{\n      {args}\n    }}\n  }}'
        )

    def _cpu(self, kind: str, name: str, begin: float, end: float, args: str) -> None:
        """An event of the CPU, cut where the window ends; times are true ones in us."""
        clock = self.trace.clock
        begin_ns = clock.cpu_ns(begin)
        end_ns = min(clock.cpu_ns(end), self.closed_ns) if end < self.trace.closed_us else self.closed_ns
        self._event(kind, name, f'"pid": {self.pid}, "tid": {self.pid}', begin_ns, max(begin_ns, end_ns), args)

    def _operation(self, seen: Seen, correlation: int) -> None:
        op = seen.ran.op
        number = self._id()
        if isinstance(op, Communication):
            self._communication(seen, correlation, number)
        elif isinstance(op, Kernel):
            if seen.cpu:
                shapes = work_args(op, self.world.layout)
                self._within("cpu_op", op.cpu_op, seen.ran, 0.1, 0.95, f'"External id": {number}{shapes}')
            self._launch(seen, correlation, number, "cudaMemcpyAsync" if op.is_copy else "cudaLaunchKernel")
            self._kernel(seen, correlation, number, op.name, "")
        elif isinstance(op, Block):
            self._block(seen, correlation, number, op)
        elif isinstance(op, Cpu) and op.shown and seen.cpu:
            called = f', "correlation": {correlation + _MEANINGLESS}' if op.category == "cuda_runtime" else ""
            self._within(op.category, op.shown, seen.ran, 0.0, 1.0, f'"External id": {number}{called}')
        elif isinstance(op, Wait) and seen.cpu and self.world.layout.since("2.4"):
            args = f'"External id": {number}, "Collective name": "wait", "dtype": "Byte", "Group size": 1'
            self._within("cpu_op", "record_param_comms", seen.ran, 0.2, 0.8, args)
        if isinstance(op, Wait):
            self._event_call(seen, correlation, "cudaStreamWaitEvent", 0.5)

    def _call(self, name: str, at_us: float, dur_us: float, thread: int) -> None:
        """A call of the runtime that launches nothing."""
        clock, where = self.trace.clock, f'"pid": {self.pid}, "tid": {thread}'
        if at_us + dur_us < self.trace.closed_us:
            args = f'"External id": {self._id()}, "correlation": {2 * _MEANINGLESS + self.ids}'
            self._event("cuda_runtime", name, where, clock.cpu_ns(at_us), clock.cpu_ns(at_us + dur_us), args)

    def _within(self, kind: str, name: str, ran: Ran, begin: float, end: float, args: str) -> None:
        """An event from one part (0..1) of an operation's CPU time to another."""
        at = self.times[ran.begin]
        self._cpu(kind, name, at + begin * ran.cost_us, at + end * ran.cost_us, args)

    def _old_ids(self) -> bool:
        """Until torch 2.1, kernels and launches had their correlation as External id."""
        return not self.world.layout.since("2.2")

    def _launch(self, seen: Seen, correlation: int, number: int, name: str) -> None:
        if seen.launch:
            args = f'"External id": {correlation if self._old_ids() else number}, "correlation": {correlation}'
            self._within("cuda_runtime", name, seen.ran, LAUNCHED_AT, LAUNCHED_AT + 0.25, args)

    def _event_call(self, seen: Seen, correlation: int, name: str, at: float) -> None:
        """A call of no length that records an event or lets a stream wait for one, where these are shown."""
        if seen.cpu and self.world.layout.events:
            self._within("cuda_runtime", name, seen.ran, at, at, f'"correlation": {correlation + _MEANINGLESS}')

    def _kernel(self, seen: Seen, correlation: int, number: int, name: str, args: str) -> None:
        if not seen.kernel:
            return
        ran, clock = seen.ran, self.trace.clock
        shown = f'"External id": {correlation if self._old_ids() else number}, ' if seen.cpu else ""
        if self.world.layout.graph:
            correlation = _FIRST_CORRELATION + ran.step
            args = f', "graph id": 3, "graph node id": {ran.key + 1}'
        shown += f'"device": {self.device}, "context": 1, "stream": {ran.stream}, "correlation": {correlation}{args}'
        kind = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        where = f'"pid": {self.device}, "tid": {ran.stream}'
        begin_ns, end_ns = clock.gpu_ns(self.times[ran.start]), clock.gpu_ns(self.times[ran.end])
        self._event(kind, name, where, begin_ns, end_ns, shown)

    def _block(self, seen: Seen, correlation: int, number: int, op: Block) -> None:
        """A call that waits for the GPU, with an operator around it where it copies."""
        ran, own = seen.ran, f'"External id": {number}'
        begin, done = self.times[ran.begin], self.times[ran.done]
        if op.copy_us:
            if seen.cpu:
                self._cpu("cpu_op", op.cpu_op, begin, done, own)
            self._launch(seen, correlation, number, "cudaMemcpyAsync")
            self._kernel(seen, correlation, number, op.copy, "")
        if seen.cpu:
            args = f'{own}, "correlation": {correlation + _MEANINGLESS}'
            self._cpu("cuda_runtime", op.call, begin + 0.8 * ran.cost_us, done, args)

    def _communication(self, seen: Seen, correlation: int, number: int) -> None:
        ran, op = seen.ran, seen.ran.op
        if ran.stream != COMPUTE_STREAM:
            self._event_call(seen, correlation, "cudaEventRecord", 0.42)
            self._event_call(seen, correlation, "cudaStreamWaitEvent", 0.44)
            self._event_call(seen, correlation, "cudaEventRecord", 0.91)
            if not getattr(op, "work", True):
                self._event_call(seen, correlation, "cudaStreamWaitEvent", 0.95)
        if isinstance(op, P2P):
            records = [message_record(m, op.group, ran.rank, op.dtype) for m in op.messages]
        else:
            assert isinstance(op, Comm)
            records = [call_record(op, ran.rank)]
        name = kernel_name(records[0].op, records[0].dtype)
        if isinstance(op, P2P) and op.batched:
            self._batch(seen, correlation, records, name)
            return
        first = records[0]
        counted = counted_args(first, self.world.layout, ran.turn)
        if seen.cpu:
            if isinstance(op, Comm) and op.under:
                self._within("cpu_op", op.under, ran, 0.01, 0.99, f'"External id": {self._id()}')
            around, inside = f'"External id": {self._id()}', f'"External id": {self._id()}'
            self._within("cpu_op", operator_name(first), ran, 0.05, 0.95, around)
            self._record(first, ran, (0.1, 0.9), number, counted)
            shapes = shape_args(first, self.world.layout)
            self._within("user_annotation", annotation_name(first), ran, 0.2, 0.85, inside + shapes)
        if seen.cpu and self.world.layout.every_call:
            at = self.times[ran.begin]
            for turn, call in enumerate(_BEFORE_COLLECTIVES):
                self._call(call, at + (0.1 * turn + 0.1) * ran.cost_us, 0.05 * ran.cost_us, self.pid)
        self._launch(seen, correlation, number, "cudaLaunchKernelExC")
        linked = seen.cpu and self.world.layout.args_on_kernel
        fixed = fixed_args(first, self.world.layout, on_kernel=True) if linked else ""
        self._kernel(seen, correlation, number, name, f", {fixed}{counted}" if fixed else "")

    def _record(self, record: CallRecord, ran: Ran, part: tuple[float, float], number: int, counted: str) -> None:
        fixed = fixed_args(record, self.world.layout, on_kernel=False)
        args = f'"External id": {number}' + (f", {fixed}{counted}" if fixed else "")
        self._within("cpu_op", "record_param_comms", ran, *part, args)

    def _batch(self, seen: Seen, correlation: int, records: list[CallRecord], name: str) -> None:
        """A record for each message, and a launch in a `nccl:coalesced` that none of them holds."""
        ran, apart = seen.ran, 0.4 / len(records)
        if seen.cpu:
            for place, each in enumerate(records):
                part = (0.02 + place * apart, 0.02 + (place + 0.8) * apart)
                self._within("cpu_op", operator_name(each), ran, *part, f'"External id": {self._id()}')
                inner = (part[0] + 0.1 * apart, part[1] - 0.1 * apart)
                self._record(each, ran, inner, self._id(), counted_args(each, self.world.layout, ran.turn))
            self._within("user_annotation", "nccl:coalesced", ran, 0.45, 0.9, f'"External id": {self._id()}')
        meaningless = _MEANINGLESS + correlation
        self._launch(seen, correlation, meaningless, "cudaLaunchKernelExC")
        self._kernel(seen, correlation, meaningless, name, "")


def _us(ns: int) -> str:
    """Microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def document(world: World, trace: Trace, times: list[float], groups: Iterable[Group]) -> str:
    """A whole trace file."""
    events = ",\n".join(Events(world, trace, times).all())
    return f'{{\n{header(world, trace, groups)}  "traceEvents": [\n{events}\n  ],\n  "traceName": "trace.json"\n}}'
