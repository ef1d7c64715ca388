"""A Kineto trace file -> the reader's tables. The only place that knows raw trace keys.

Facts about versions are in the comments where they matter. Times become integer nanoseconds here and stay so.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .chunks import EventStream
from .errors import DamagedTrace, NotATrace
from .kinds import COMPUTE, kernel_kind, memory_kind
from .schema import ACTIVITIES, ANNOTATIONS, COMM_ARGS, LAUNCHES


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _LaunchArgs(msgspec.Struct, gc=False):
    correlation: _Int64 | None = None
    external_id: _Int64 | None = msgspec.field(default=None, name="External id")
    external_id_1: _Int64 | None = msgspec.field(default=None, name="external id")  # torch <= 1.12


class _AnnotationArgs(msgspec.Struct, gc=False):
    in_dims: list[Any] | None = msgspec.field(default=None, name="Input Dims")
    in_types: list[Any] | None = msgspec.field(default=None, name="Input type")
    in_values: list[Any] | None = msgspec.field(default=None, name="Concrete Inputs")


class _ActivityArgs(_LaunchArgs, gc=False):
    device: _Int64 | None = None
    stream: _Int64 | None = None


class _CommArgs(_ActivityArgs, gc=False):
    """Arguments of NCCL kernels and of record_param_comms; torch 2.2 called the element counts sizes."""

    op: str | None = msgspec.field(default=None, name="Collective name")
    dtype: str | None = None
    in_elems: int | None = msgspec.field(default=None, name="In msg nelems")
    out_elems: int | None = msgspec.field(default=None, name="Out msg nelems")
    in_elems_2_2: int | None = msgspec.field(default=None, name="In msg size")
    out_elems_2_2: int | None = msgspec.field(default=None, name="Out msg size")
    in_split: str | None = msgspec.field(default=None, name="In split size")
    out_split: str | None = msgspec.field(default=None, name="Out split size")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    process_group: str | None = msgspec.field(default=None, name="Process Group Name")
    pg_ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")
    seq: int | None = msgspec.field(default=None, name="Seq")
    comms_id: int | str | None = msgspec.field(default=None, name="Comms Id")  # unsigned 64 bit
    rank: int | None = msgspec.field(default=None, name="Rank")
    src_rank: int | None = msgspec.field(default=None, name="Src Rank")
    dst_rank: int | None = msgspec.field(default=None, name="Dst Rank")
    bytes: int | None = None  # of a copy


class _ProcessGroup(msgspec.Struct):
    pg_name: str = ""
    pg_desc: str = ""
    backend_config: str = ""
    ranks: list[int] = []


class _DistributedInfo(msgspec.Struct):
    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    nccl_version: str | None = None
    pg_config: list[_ProcessGroup] = []


class _DeviceProperties(msgspec.Struct):
    id: int = 0
    name: str = ""


class _Surrounding(msgspec.Struct):
    distributed: _DistributedInfo | None = msgspec.field(default=None, name="distributedInfo")
    devices: list[_DeviceProperties] = msgspec.field(default=[], name="deviceProperties")
    host: str | None = msgspec.field(default=None, name="host_name")
    base_ns: int = msgspec.field(default=0, name="baseTimeNanoseconds")
    cuda_runtime: int | None = msgspec.field(default=None, name="cuda_runtime_version")
    hip_runtime: int | None = msgspec.field(default=None, name="hip_runtime_version")
    events: list[msgspec.Raw] | None = msgspec.field(default=None, name="traceEvents")


@dataclass(frozen=True)
class ProcessGroup:
    """A process group as the trace's header lists it."""

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Header:
    """What a trace says of itself besides its events; None or empty where it is silent."""

    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    pid: int | None
    device_names: tuple[str, ...]
    process_groups: tuple[ProcessGroup, ...]
    cuda_version: str | None
    nccl_version: str | None


@dataclass(frozen=True)
class TraceFile:
    """The tables of one file. Their `rank` and `cycle` are 0: only the run knows them."""

    path: Path
    header: Header
    activities: pd.DataFrame
    launches: pd.DataFrame
    annotations: pd.DataFrame
    comm_args: pd.DataFrame
    cpu_ops: pd.DataFrame
    gloo_threads: frozenset[int]


# Spellings of categories: torch <= 1.12 on the right.
_KERNEL = ("kernel", "Kernel")
_MEMCPY = ("gpu_memcpy", "Memcpy")
_MEMSET = ("gpu_memset", "Memset")
_RUNTIME = ("cuda_runtime", "cuda_driver", "Runtime")
_CPU_OP = ("cpu_op", "Operator")

_ANNOTATION = re.compile(r"ProfilerStep#\d+$|(?:nccl|gloo):")
_launch_args = msgspec.json.Decoder(_LaunchArgs, strict=False)
_activity_args = msgspec.json.Decoder(_ActivityArgs, strict=False)
_comm_args = msgspec.json.Decoder(_CommArgs, strict=False)
_annotation_args = msgspec.json.Decoder(_AnnotationArgs, strict=False)


def read_trace(path: Path, comm_names: re.Pattern[str]) -> TraceFile:
    """The tables of one trace file; kernels whose name `comm_names` finds are communication.

    Raises UnreadableFile, NotATrace, DamagedTrace.
    """
    stream = EventStream(path, _Event)
    columns = _Columns(comm_names)
    handlers = columns.handlers()
    for batch in stream:
        for event in batch:
            handler = handlers.get(event.cat)
            if handler is not None and event.ph == "X":
                try:
                    handler(event)
                except msgspec.DecodeError as err:
                    raise DamagedTrace(
                        f"{path}: event {event.name!r} ({event.cat}) has arguments that Kineto does not write: {err}"
                    ) from err
            elif event.ph == "M":
                columns.metadata(event)
    surrounding = _surrounding(path, stream.surrounding)
    return columns.tables(path, surrounding)


def _surrounding(path: Path, document: bytes) -> _Surrounding:
    if document.lstrip()[:1] == b"[":  # the bare array form of the Chrome trace format
        return _Surrounding(events=[])
    try:
        surrounding = msgspec.json.decode(document, type=_Surrounding, strict=False)
    except msgspec.DecodeError as err:
        raise NotATrace(f"{path}: what surrounds the events is not what Kineto writes: {err}") from err
    if surrounding.events is None:
        raise NotATrace(f'{path}: "traceEvents" is not at the top level; expected a Kineto trace')
    return surrounding


@dataclass
class _Columns:
    """Collects events as columns: one Python object per distinct name, not per event."""

    comm_names: re.Pattern[str]
    names: dict[str, int] = field(default_factory=dict)
    activities: dict[str, list[Any]] = field(
        default_factory=lambda: {
            k: [] for k in ("device", "stream", "kind", "name", "ts", "dur", "correlation", "external_id")
        }
    )
    launches: dict[str, list[Any]] = field(
        default_factory=lambda: {k: [] for k in ("correlation", "thread", "ts", "external_id")}
    )
    annotations: list[tuple[str, int, float, float, _AnnotationArgs]] = field(default_factory=list)
    comm_args: list[tuple[str, _CommArgs]] = field(default_factory=list)
    op_thread: array[int] = field(default_factory=lambda: array("q"))
    op_ts: array[float] = field(default_factory=lambda: array("d"))
    op_dur: array[float] = field(default_factory=lambda: array("d"))
    op_name: array[int] = field(default_factory=lambda: array("q"))
    gloo_threads: set[int] = field(default_factory=set)
    pid: int | None = None
    kinds: dict[str, str] = field(default_factory=dict)

    def handlers(self) -> dict[str, Callable[[_Event], None]]:
        """What to do with an event of each category."""
        table: dict[str, Callable[[_Event], None]] = {"user_annotation": self.annotation}
        table.update(dict.fromkeys(_KERNEL, self.kernel))
        table.update(dict.fromkeys((*_MEMCPY, *_MEMSET), self.memory))
        table.update(dict.fromkeys(_RUNTIME, self.launch))
        table.update(dict.fromkeys(_CPU_OP, self.cpu_op))
        return table

    def kernel(self, event: _Event) -> None:
        kind = self.kinds.get(event.name)
        if kind is None:
            kind = self.kinds[event.name] = kernel_kind(event.name, self.comm_names)
        if kind == COMPUTE:
            self._activity(event, kind, _activity_args.decode(event.args))
            return
        args = _comm_args.decode(event.args)
        self._activity(event, kind, args)
        if args.op is not None:
            self.comm_args.append(("kernel", args))

    def memory(self, event: _Event) -> None:
        args = _comm_args.decode(event.args)
        self._activity(event, memory_kind(event.name), args)
        if args.bytes is not None and event.name.startswith("Memcpy PtoP"):
            args.op, args.dtype, args.in_elems, args.out_elems = "peer_copy", "Byte", args.bytes, args.bytes
            self.comm_args.append(("kernel", args))

    def launch(self, event: _Event) -> None:
        args = _launch_args.decode(event.args)
        if args.correlation is None:
            return
        columns = self.launches
        columns["correlation"].append(args.correlation)
        columns["thread"].append(_number(event.tid))
        columns["ts"].append(event.ts)
        columns["external_id"].append(args.external_id if args.external_id is not None else args.external_id_1)

    def annotation(self, event: _Event) -> None:
        if self.pid is None and isinstance(event.pid, int):
            self.pid = event.pid
        if _ANNOTATION.match(event.name):
            self._annotation(event)

    def _annotation(self, event: _Event) -> None:
        # Not the event itself: its raw arguments would keep the whole chunk in memory.
        args = _annotation_args.decode(event.args)
        self.annotations.append((event.name, _number(event.tid), event.ts, event.dur or 0.0, args))

    def cpu_op(self, event: _Event) -> None:
        if self.pid is None and isinstance(event.pid, int):
            self.pid = event.pid
        if event.name == "record_param_comms":
            args = _comm_args.decode(event.args)
            if args.op is not None and args.op != "wait":
                self.comm_args.append(("record_param_comms", args))
        elif event.name.startswith("c10d::"):
            self._annotation(event)
        elif not self.activities["ts"]:  # they matter on CPU runs only
            self.op_thread.append(_number(event.tid))
            self.op_ts.append(event.ts)
            self.op_dur.append(event.dur or 0.0)
            self.op_name.append(self._name(event.name))

    def metadata(self, event: _Event) -> None:
        # A thread has several such events, an earlier process name among them.
        if event.name == "thread_name" and b"pt_gloo_runloop" in bytes(event.args):
            self.gloo_threads.add(_number(event.tid))

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _activity(self, event: _Event, kind: str, args: _ActivityArgs) -> None:
        columns = self.activities
        columns["device"].append(_number(event.pid if args.device is None else args.device))
        columns["stream"].append(_number(event.tid if args.stream is None else args.stream))
        columns["kind"].append(kind)
        columns["name"].append(self._name(event.name))
        columns["ts"].append(event.ts)
        columns["dur"].append(event.dur or 0.0)
        columns["correlation"].append(args.correlation)
        columns["external_id"].append(args.external_id if args.external_id is not None else args.external_id_1)

    def tables(self, path: Path, surrounding: _Surrounding) -> TraceFile:
        base_ns, names = surrounding.base_ns, np.array(list(self.names), dtype=object)
        return TraceFile(
            path=path,
            header=_header(surrounding, self.pid),
            activities=self._activity_table(base_ns, names),
            launches=self._launch_table(base_ns),
            annotations=self._annotation_table(base_ns),
            comm_args=COMM_ARGS.frame(_comm_row(source, args) for source, args in self.comm_args),
            cpu_ops=self._cpu_op_table(base_ns, names),
            gloo_threads=frozenset(self.gloo_threads),
        )

    def _cpu_op_table(self, base_ns: int, names: NDArray[np.object_]) -> pd.DataFrame:
        count = 0 if self.activities["ts"] else len(self.op_ts)
        return pd.DataFrame({
            "thread": np.array(self.op_thread[:count], dtype=np.int64),
            "start_ns": _ns(self.op_ts[:count]) + base_ns,
            "dur_ns": _ns(self.op_dur[:count]),
            "name": names[np.array(self.op_name[:count], dtype=np.int64)],
        })  # fmt: skip

    def _activity_table(self, base_ns: int, names: NDArray[np.object_]) -> pd.DataFrame:
        columns = self.activities
        if not columns["ts"]:
            return ACTIVITIES.empty()
        return ACTIVITIES.conform(pd.DataFrame({
            "rank": 0,
            "cycle": 0,
            "device": np.array(columns["device"], dtype=np.int64).astype(str),
            "stream": columns["stream"],
            "kind": columns["kind"],
            "name": names[np.array(columns["name"], dtype=np.int64)],
            "start_ns": _ns(columns["ts"]) + base_ns,
            "dur_ns": _ns(columns["dur"]),
            "step": pd.array([pd.NA] * len(columns["ts"]), dtype="Int64"),
            "correlation": pd.array(columns["correlation"], dtype="Int64"),
            "external_id": pd.array(columns["external_id"], dtype="Int64"),
        }))  # fmt: skip

    def _launch_table(self, base_ns: int) -> pd.DataFrame:
        """Launches of the activities that are there; a correlation may have several calls, the first counts."""
        columns = self.launches
        correlation = np.array(columns["correlation"], dtype=np.int64)
        launched = np.array([c for c in self.activities["correlation"] if c is not None], dtype=np.int64)
        keep = np.flatnonzero(np.isin(correlation, launched))
        start_ns = _ns(columns["ts"]) + base_ns
        keep = keep[np.argsort(start_ns[keep], kind="stable")]
        return LAUNCHES.conform(pd.DataFrame({
            "rank": 0,
            "cycle": 0,
            "correlation": correlation[keep],
            "thread": np.array(columns["thread"], dtype=np.int64)[keep],
            "start_ns": start_ns[keep],
            "external_id": pd.array([columns["external_id"][i] for i in keep], dtype="Int64"),
        }, index=range(len(keep))).drop_duplicates("correlation"))  # fmt: skip

    def _annotation_table(self, base_ns: int) -> pd.DataFrame:
        start_ns = _ns([ts for _, _, ts, _, _ in self.annotations]) + base_ns
        dur_ns = _ns([dur for _, _, _, dur, _ in self.annotations])
        rows = [
            {
                "rank": 0, "cycle": 0, "name": name, "thread": thread, "start_ns": start, "dur_ns": dur,
                "in_dims": args.in_dims, "in_types": args.in_types, "in_values": args.in_values,
            }
            for (name, thread, _, _, args), start, dur in zip(self.annotations, start_ns, dur_ns, strict=True)
        ]  # fmt: skip
        return ANNOTATIONS.frame(rows)


def _number(value: int | str) -> int:
    """Thread, stream and device ids are integers but for Kineto's own bookkeeping rows."""
    return value if isinstance(value, int) else -1


def _ns(us: list[float] | array[float]) -> NDArray[np.int64]:
    """Microseconds with 3 decimals -> integer nanoseconds, exact below 2^43 us, and for whole microseconds always.

    The product us * 1000 of an absolute time (1.7e15 us) would not fit a double, so the whole part goes separately.
    """
    values = np.asarray(us, dtype=np.float64)
    whole = np.floor(values)
    ns: NDArray[np.int64] = whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
    return ns


def _comm_row(source: str, args: _CommArgs) -> dict[str, Any]:
    external_id = args.external_id if args.external_id is not None else args.external_id_1
    peer = args.dst_rank if args.dst_rank is not None else args.src_rank
    return {
        "rank": 0,
        "cycle": 0,
        "source": source,
        "correlation": args.correlation,
        "external_id": external_id,
        "op": args.op,
        "dtype": args.dtype,
        "in_elems": args.in_elems if args.in_elems is not None else args.in_elems_2_2,
        "out_elems": args.out_elems if args.out_elems is not None else args.out_elems_2_2,
        "in_split": args.in_split,
        "out_split": args.out_split,
        "group_size": args.group_size,
        "process_group": args.process_group,
        "pg_ranks": _ranks_in(args.pg_ranks),
        "seq": args.seq,
        "comms_id": None if args.comms_id is None else str(args.comms_id),
        "root": args.rank,
        "peer": peer,
    }


def _ranks_in(text: str | None) -> str | None:
    """`"[0, 1]"` -> `"0 1"`; None when the list was cut (over 30 ranks) or is empty (groups without a stride)."""
    if text is None or "..." in text:
        return None
    return " ".join(re.findall(r"\d+", text)) or None


def _header(surrounding: _Surrounding, pid: int | None) -> Header:
    distributed = surrounding.distributed or _DistributedInfo()
    return Header(
        rank=distributed.rank,
        world_size=distributed.world_size,
        backend=distributed.backend,
        host=surrounding.host,
        pid=pid,
        device_names=tuple(device.name for device in sorted(surrounding.devices, key=lambda d: d.id)),
        process_groups=tuple(
            ProcessGroup(g.pg_name, g.pg_desc, g.backend_config, tuple(sorted(g.ranks))) for g in distributed.pg_config
        ),
        cuda_version=_version("CUDA", surrounding.cuda_runtime) or _version("HIP", surrounding.hip_runtime),
        nccl_version=distributed.nccl_version,
    )


def _version(name: str, number: int | None) -> str | None:
    """12060 -> `CUDA 12.6`, 60443483 -> `HIP 6.4` (ROCm adds two digits and a patch of five)."""
    if number is None:
        return None
    if name == "HIP":
        return f"HIP {number // 10_000_000}.{number // 100_000 % 100}"
    return f"{name} {number // 1000}.{number % 1000 // 10}"
