"""Kineto traces and runs made in memory: times are integer nanoseconds, everything not said has a plain default.

trace = Trace(rank=0, world=2).step(5, 0, 9 * MS).kernel("gemm", 1 * MS, 2 * MS).nccl("all_reduce", 2 * MS, 1 * MS)
path = trace.write(tmp_path, layout="compact", gz=False)

write_run(tmp_path, 4, [Collective(arrivals=(0, 5 * MS, 2 * MS, 0), transfer=10 * MS, elems=250_000_000)])
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from commtrace.analysis.core.tables.communication import TRACES
from commtrace.analysis.core.tables.events import ACTIVITIES
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import load_run
from commtrace.analysis.tables.calls import CALLS

US = 1_000
MS = 1_000_000
BASE_NS = 1_759_300_074_000_000_000
MAIN_THREAD = 4242
GLOO_THREAD = 9001
AT_START = -1

Event = dict[str, Any]

# Name in the metadata, and input and output elements of a rank for a whole array of S elements over W ranks.
_RECORDED: dict[str, tuple[str, Callable[[int, int], tuple[int, int]]]] = {
    "all_reduce": ("allreduce", lambda s, w: (s, s)),
    "all_gather": ("_allgather_base", lambda s, w: (s // w, s)),
    "reduce_scatter": ("_reduce_scatter_base", lambda s, w: (s, s // w)),
    "all_to_all": ("all_to_allv", lambda s, w: (s, s)),
    "broadcast": ("broadcast", lambda s, w: (s, s)),
    "reduce": ("reduce", lambda s, w: (s, s)),
    "gather": ("gather", lambda s, w: (s // w, s)),
    "scatter": ("scatter", lambda s, w: (s, s // w)),
    "send": ("send", lambda s, w: (s, s)),
    "recv": ("recv", lambda s, w: (s, s)),
    "barrier": ("barrier", lambda s, w: (0, 0)),
}


def us(ns: int) -> float:
    """Nanoseconds as a trace writes them: microseconds with three decimals."""
    return round(ns / 1000, 3)


def ranks_text(ranks: Iterable[int]) -> str:
    """A list of ranks as record_param_comms writes it: cut after 30 entries."""
    listed = [str(r) for r in ranks]
    return "[" + ", ".join(listed[:30]) + (", ..." if len(listed) > 30 else "") + "]"


def comm_args(
    collective: str,
    elems: int,
    *,
    dtype: str = "Float",
    group: str | None = "0",
    ranks: Sequence[int] = (0, 1),
    **more: Any,
) -> dict[str, Any]:
    """Arguments that torch >= 2.4 gives a collective of a whole array of `elems` elements."""
    name, elements = _RECORDED[collective]
    given, got = elements(elems, len(ranks))
    args = {
        "Collective name": name,
        "In msg nelems": given,
        "Out msg nelems": got,
        "Group size": len(ranks),
        "dtype": dtype,
        "In split size": "[]",
        "Out split size": "[]",
    }
    if group is not None:
        args |= {
            "Process Group Name": group,
            "Process Group Description": "pg",
            "Process Group Ranks": ranks_text(ranks),
        }
    return args | more


@dataclass
class Trace:
    """One rank's trace file under construction; every method returns the trace."""

    rank: int | None = 0
    world: int | None = 1
    groups: Mapping[str, Sequence[int]] | None = None
    backend: str | None = "nccl"
    base_ns: int | None = BASE_NS
    pid: int = 1000
    device: int = 0
    device_names: Sequence[str] = ("NVIDIA H100 80GB HBM3",) * 8
    host: str | None = None
    nccl_version: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    next_id: int = 1

    # --- any event ---------------------------------------------------------------------------------------------

    def event(
        self, cat: str, name: str, start: int, dur: int, *, tid: Any = MAIN_THREAD, pid: Any = None, **args: Any
    ) -> Trace:
        self.events.append({
            "ph": "X", "cat": cat, "name": name, "pid": self.pid if pid is None else pid, "tid": tid,
            "ts": us(start), "dur": us(dur), "args": args,
        })  # fmt: skip
        return self

    def metadata(self, name: str, tid: int, /, **args: Any) -> Trace:
        self.events.append({"name": name, "ph": "M", "ts": 0, "pid": self.pid, "tid": tid, "args": args})
        return self

    def step(self, number: int, start: int, end: int) -> Trace:
        return self.event("user_annotation", f"ProfilerStep#{number}", start, end - start)

    # --- a GPU -------------------------------------------------------------------------------------------------

    def kernel(
        self,
        name: str,
        start: int,
        dur: int,
        *,
        launch: int | None = AT_START,
        thread: int = MAIN_THREAD,
        device: int | None = None,
        stream: int = 7,
        cat: str = "kernel",
        external_id: int | None = None,
        launch_external_id: int | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> Trace:
        """A device activity launched at `launch`, by default when it starts; None: before the window."""
        correlation, self.next_id = self.next_id, self.next_id + 1
        device = self.device if device is None else device
        own: dict[str, Any] = {"device": device, "stream": stream, "correlation": correlation}
        if external_id is not None:
            own = {"External id": external_id, **own}
        if launch is not None:
            ids = {} if launch_external_id is None else {"External id": launch_external_id}
            self.event("cuda_runtime", "cudaLaunchKernel", start if launch == AT_START else launch, 5 * US, tid=thread,
                       correlation=correlation, cbid=211, **ids)  # fmt: skip
        return self.event(cat, name, start, dur, pid=device, tid=stream, **own, **(args or {}))

    def memcpy(self, kind: str, start: int, dur: int, *, nbytes: int = 4096, **where: Any) -> Trace:
        """`kind`: HtoD, DtoH, DtoD, PtoP."""
        return self.kernel(
            f"Memcpy {kind} (Device -> Device)", start, dur, cat="gpu_memcpy", args={"bytes": nbytes}, **where
        )

    def nccl(
        self,
        collective: str,
        start: int,
        dur: int,
        *,
        elems: int = 1024,
        name: str = "ncclDevKernel_Generic",
        stream: int = 20,
        launch: int | None = AT_START,
        **args: Any,
    ) -> Trace:
        """An NCCL kernel that carries its arguments, as from torch 2.4 on."""
        return self.kernel(name, start, dur, stream=stream, launch=launch, args=comm_args(collective, elems, **args))

    def record(self, collective: str, start: int, *, external_id: int, elems: int = 1024, **args: Any) -> Trace:
        """The record_param_comms that a kernel of the same External id belongs to."""
        recorded = comm_args(collective, elems, **args)
        return self.event("cpu_op", "record_param_comms", start, 20 * US, **{"External id": external_id, **recorded})

    def annotation(
        self,
        name: str,
        start: int,
        dur: int,
        *,
        dims: list[Any] | None = None,
        types: list[str] | None = None,
        thread: int = MAIN_THREAD,
        **args: Any,
    ) -> Trace:
        """An annotation such as `nccl:all_reduce`, with shapes if they were recorded."""
        shapes = {} if dims is None else {"Input Dims": dims, "Input type": types or []}
        return self.event("user_annotation", name, start, dur, tid=thread, **shapes, **args)

    # --- gloo --------------------------------------------------------------------------------------------------

    def op(self, name: str, start: int, dur: int, *, thread: int = MAIN_THREAD) -> Trace:
        return self.event("cpu_op", name, start, dur, tid=thread)

    def c10d(
        self,
        op: str,
        start: int,
        dur: int = 10 * US,
        *,
        dims: list[Any] | None = None,
        types: list[str] | None = None,
        values: list[str] | None = None,
        thread: int = MAIN_THREAD,
    ) -> Trace:
        shapes = (
            {} if dims is None else {"Input Dims": dims, "Input type": types or [], "Concrete Inputs": values or []}
        )
        return self.event("cpu_op", f"c10d::{op}", start, dur, tid=thread, **shapes)

    def gloo(
        self,
        op: str,
        start: int,
        dur: int,
        *,
        dims: list[Any] | None = None,
        types: list[str] | None = None,
        thread: int = GLOO_THREAD,
    ) -> Trace:
        return self.annotation(f"gloo:{op}", start, dur, dims=dims, types=types, thread=thread)

    def counter(self, name: str, at: int, value: Any, *, device: int = 0) -> Trace:
        """A sample of a counter of a GPU, as torch 2.14 writes it with `cupti_monitor`."""
        self.events.append({
            "ph": "C", "name": name, "pid": f"GPU {device} Counters", "ts": us(at), "args": {"": value}
        })  # fmt: skip
        return self

    # --- the file ----------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """The trace as json would read it, events last."""
        info: dict[str, Any] = {"backend": self.backend, "rank": self.rank, "world_size": self.world}
        info["nccl_version"] = self.nccl_version
        if self.groups is not None:
            info["pg_count"] = len(self.groups)
            info["pg_config"] = [
                {
                    "pg_name": name,
                    "pg_desc": "pg",
                    "backend_config": self.backend,
                    "pg_size": len(ranks),
                    "ranks": list(ranks),
                }
                for name, ranks in self.groups.items()
            ]
        info = {key: value for key, value in info.items() if value is not None}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": i, "name": name} for i, name in enumerate(self.device_names)],
            **({"distributedInfo": info} if info else {}),
            **({"host_name": self.host} if self.host else {}),
            **({"baseTimeNanoseconds": self.base_ns} if self.base_ns is not None else {}),
            **self.more,
            "traceEvents": self.events,
        }

    def write(self, folder: Path, name: str | None = None, *, layout: str = "kineto", gz: bool = True) -> Path:
        """The file, named as torch names one unless `name` says otherwise."""
        path = folder / (name or f"node_{self.rank}.{1:04d}.pt.trace.json{'.gz' if gz else ''}")
        return write_bytes(path, LAYOUTS[layout](self.document()), gz=gz)


def write_bytes(path: Path, content: bytes, *, gz: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1, mtime=0) if gz else content)
    return path


# --- layouts of the same document ------------------------------------------------------------------------------------


def _kineto(document: Mapping[str, Any]) -> bytes:
    """As Kineto prints it: three-decimal times, its own line breaks and blanks within the arguments."""

    def time(value: float) -> str:
        return f"{value:.3f}"

    def event(e: Event) -> str:
        head = ", ".join(f'"{k}": {json.dumps(e[k])}' for k in ("ph", "cat", "name", "pid", "tid") if k in e)
        times = ", ".join(f'"{k}": {time(e[k])}' for k in ("ts", "dur") if k in e)
        args = ",      ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in e.get("args", {}).items())
        return f'  {{\n    {head},\n    {times},\n    "args": {{\n      {args}\n    }}\n  }}'

    around = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in document.items() if k != "traceEvents"]
    events = ",\n".join(event(e) for e in document["traceEvents"])
    last = [f'  "traceEvents": [\n{events}\n  ]', '  "traceName": "trace.json"\n}']
    return ("{\n" + ",\n".join(around + last)).encode()


def _kineto_of_torch_2_13(document: Mapping[str, Any]) -> bytes:
    """The same since torch 2.13: a line for every key, and an empty one before the first event."""

    def event(e: Event) -> str:
        keys = [f'"{k}": {json.dumps(e[k])}' for k in ("ph", "cat", "name", "pid", "tid") if k in e]
        keys += [f'"{k}": {e[k]:.3f}' for k in ("ts", "dur") if k in e]
        args = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in e.get("args", {}).items())
        lines = ",\n    ".join(keys)
        return f'  {{\n    {lines}\n    ,\n    "args": {{\n      {args}\n    }}\n  }}'

    around = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in document.items() if k != "traceEvents"]
    events = ",\n".join(event(e) for e in document["traceEvents"])
    lines = ",\n".join([*around, f'    "traceEvents": [\n    \n{events}\n  ],"traceName": "trace.json" }}'])
    return ("{\n" + lines).encode()


def _ordered(document: Mapping[str, Any], position: str) -> dict[str, Any]:
    events = {"traceEvents": document["traceEvents"]}
    rest = {k: v for k, v in document.items() if k != "traceEvents"}
    half = len(rest) // 2
    before = {"first": 0, "middle": half, "last": len(rest)}[position]
    items = list(rest.items())
    return {**dict(items[:before]), **events, **dict(items[before:])}


def _reordered(document: Mapping[str, Any]) -> bytes:
    turned = [dict(reversed(list(e.items()))) for e in document["traceEvents"]]
    return json.dumps({**document, "traceEvents": turned}).encode()


def _blanks(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=("\n ,\t", " :\r\n  "), indent=None).encode()


def _compact(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


LAYOUTS: dict[str, Callable[[Mapping[str, Any]], bytes]] = {
    "kineto": _kineto,
    "kineto of torch 2.13": _kineto_of_torch_2_13,
    "compact": _compact,
    "indented": lambda d: json.dumps(d, indent=2).encode(),
    "crlf": lambda d: json.dumps(d, indent=4).encode().replace(b"\n", b"\r\n"),
    "blanks": _blanks,
    "reordered": _reordered,
    "events first": lambda d: _compact(_ordered(d, "first")),
    "events in the middle": lambda d: json.dumps(_ordered(d, "middle"), indent=1).encode(),
    "events last": lambda d: _compact(_ordered(d, "last")),
}


# --- a whole run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collective:
    """One collective of known truth: who arrives when, and how long the data moves once everybody is there."""

    arrivals: Sequence[int] | Mapping[int, int]
    transfer: int = 10 * MS
    collective: str = "all_reduce"
    elems: int = 1024
    dtype: str = "Float"
    group: str | None = "0"
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def by_rank(self) -> dict[int, int]:
        listed = self.arrivals
        return dict(listed) if isinstance(listed, Mapping) else dict(enumerate(listed))


def traces_of(
    world: int, collectives: Sequence[Collective], *, offsets: Sequence[int] | None = None, **trace: Any
) -> list[Trace]:
    """One trace per rank; `offsets` are what each rank's clock shows too much."""
    offsets = offsets or [0] * world
    memberships: list[dict[str, list[int]]] = [{} for _ in range(world)]
    for made in collectives:
        for rank in made.by_rank:
            if made.group is not None:
                memberships[rank][made.group] = sorted(made.by_rank)
    traces = [Trace(rank, world, groups=memberships[rank], device=rank, **trace) for rank in range(world)]
    counts: dict[tuple[str | None, tuple[int, ...]], int] = {}
    for made in collectives:
        ranks = tuple(sorted(made.by_rank))
        counts[made.group, ranks] = counts.get((made.group, ranks), 0) + 1
        end = max(made.by_rank.values()) + made.transfer
        for rank, arrival in made.by_rank.items():
            args: dict[str, Any] = {"Seq": counts[made.group, ranks], **made.args}
            args |= {"elems": made.elems, "dtype": made.dtype, "group": made.group, "ranks": ranks}
            traces[rank].nccl(made.collective, arrival + offsets[rank], end - arrival, **args)
    return traces


def write_run(
    folder: Path, world: int, collectives: Sequence[Collective], *, offsets: Sequence[int] | None = None, **trace: Any
) -> Path:
    """A folder with one trace per rank."""
    for made in traces_of(world, collectives, offsets=offsets, **trace):
        made.write(folder)
    return folder


def analysed(folder: Path, *traces: Trace) -> Analysis:
    """The analysis of these traces, written into `folder`."""
    for trace in traces:
        trace.write(folder)
    return Analysis(load_run([folder]))


# --- tables ----------------------------------------------------------------------------------------------------------


def activities_table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Device activities; a row says at least kind, start_ns and dur_ns."""
    plain = {"rank": 0, "cycle": 0, "device": "0", "stream": 7, "name": "activity"}
    return ACTIVITIES.frame({**plain, **row} for row in rows)


def calls_table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Calls, numbered; a row says at least rank, start_ns and dur_ns. Default: all_reduce of 4 KiB on ranks 0 and 1."""
    plain = {
        "cycle": 0, "device": "0", "stream": 20, "name": "ncclDevKernel", "collective": "all_reduce",
        "process_group": "0", "pg_ranks": "0 1", "group_size": 2, "dtype": "float32", "in_elems": 1024,
        "out_elems": 1024, "size_bytes": 4096, "metadata_from": "kernel",
    }  # fmt: skip
    made = []
    for number, row in enumerate(rows):
        full = {"call_id": number, "issue_ns": row["start_ns"], **plain, **row}
        if "pg_ranks" in row and row["pg_ranks"] is not None and "group_size" not in row:
            full["group_size"] = len(str(row["pg_ranks"]).split())
        made.append(full)
    return CALLS.frame(made)


def traces_table(hosts: Sequence[str | None]) -> pd.DataFrame:
    """One trace per rank, on these hosts."""
    return TRACES.frame(
        {
            "rank": rank,
            "cycle": 0,
            "trace": f"rank{rank}.json",
            "world_size": len(hosts),
            "rank_from": "trace",
            "host": host,
        }
        for rank, host in enumerate(hosts)
    )
