"""Exports of Nsight Systems made from Kineto documents, so that both can be read and compared.

What NCCL would have marked is made from what torch says of its kernels: ranges of its functions around launches, with
payloads whose layout is that of nvtx_payload_schemas.h, in the tables that nsys export writes (schema 3.25).
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator import simulate
from simulator.worlds import PRESETS

from commtrace.common.nccl_tests import collective_name, dtype_name, item_bytes

KERNEL, ALL_REDUCE = "gemm(float*)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
UTC_NS, SYSTEM_NS = 1_759_299_000_000_000_000, 7_000_000_000
"""When sessions began: unix time, and the clock that their events are on."""
_PID_BITS, _VM = 24, 1 << 48
_DOMAIN, _PUSH_POP = 1, 59
_COMM, _SIZE, _INT, _REDUCTION = 18, 22, 5, 16777232
_WAYS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_PLACES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_PLACE = "start end deviceId contextId streamId correlationId globalPid"
_COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_PLACE} demangledName shortName gridX gridY gridZ",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_PLACE} bytes copyKind srcKind dstKind srcDeviceId dstDeviceId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_PLACE} bytes memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_PLACE} graphId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_PLACE} syncType eventId eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "timestamp deviceId contextId streamId correlationId globalPid eventId "
    "eventSyncId",
    "NVTX_EVENTS": "start end eventType text globalTid textId domainId binaryData",
    "NVTX_PAYLOAD_SCHEMAS": "domainId schemaId name type flags numEntries payloadSize alignTo",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId schemaId idx flags type name description arrayOrUnionDetail offset",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime systemClockNs",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName name nameEnum value",
    "TARGET_INFO_GPU": "id name smCount",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid numMultiprocessors",
    "META_DATA_EXPORT": "name value",
    "PROCESSES": "globalPid pid name",
    "StringIds": "id value",
}  # fmt: skip
TABLES = {name: tuple(columns.split()) for name, columns in _COLUMNS.items()}
"""The tables of an export, as far as they are read, with their columns."""
# Schema number and its entries: name, type, offset. The numbers are not those of any NCCL.
_RANKED, _PLAIN, _REDUCING, _ROOTED, _ROOTED_REDUCING, _PEER = range(900, 906)
_NAMED = ("NCCL communicator ID", _COMM, None), ("Message size [bytes]", _SIZE, 8)
SCHEMAS: dict[int, tuple[tuple[str, int, int | None], ...]] = {
    _RANKED: (_NAMED[0], ("No. of ranks", _INT, 8), ("Rank", _INT, 12), ("CUDA device", _INT, 16)),
    _PLAIN: _NAMED,
    _REDUCING: (*_NAMED, ("Reduction operation", _REDUCTION, 16)),
    _ROOTED: (*_NAMED, ("Root", _INT, 16)),
    _ROOTED_REDUCING: (*_NAMED, ("Root", _INT, 16), ("Reduction operation", _REDUCTION, 20)),
    _PEER: (*_NAMED, ("Peer rank", _INT, 16)),
}
_FUNCTIONS = {
    "all_reduce": ("ncclAllReduce", _REDUCING), "all_gather": ("ncclAllGather", _PLAIN),
    "gather": ("ncclGather", _ROOTED),
    "reduce_scatter": ("ncclReduceScatter", _REDUCING), "broadcast": ("ncclBroadcast", _ROOTED),
    "reduce": ("ncclReduce", _ROOTED_REDUCING), "scatter": ("ncclScatter", _ROOTED), "send": ("ncclSend", _PEER),
    "recv": ("ncclRecv", _PEER), "barrier": ("ncclAllReduce", _REDUCING),
}  # fmt: skip


def payload(schema: int, comm: int, size: int, *numbers: int) -> bytes:
    """What stands as binaryData: the header, and the structure padded to 8 bytes."""
    content = struct.pack("<Q", comm) + (struct.pack("<Q", size) if schema != _RANKED else b"")
    content += b"".join(struct.pack("<i", number) for number in numbers)
    content += bytes(-len(content) % 8)
    return struct.pack("<QQQQ", _DOMAIN, schema, len(content), 32) + content


@dataclass
class Export:
    """The rows of an export so far."""

    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: {name: [] for name in TABLES})
    texts: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, **values: Any) -> None:
        """A row of a table; columns that are not given are NULL."""
        assert values.keys() <= set(TABLES[table]), (table, values.keys() - set(TABLES[table]))
        self.rows[table].append(tuple(values.get(column) for column in TABLES[table]))

    def text(self, text: str) -> int:
        """The number of a text in StringIds."""
        if text not in self.texts:
            self.texts[text] = len(self.texts) + 100
            self.add("StringIds", id=self.texts[text], value=text)
        return self.texts[text]

    def range(
        self, thread: int, name: str, start: int, end: int, *, data: bytes | None = None, nccl: bool = False
    ) -> None:
        """An NVTX range; NCCL registers its names, torch does not."""
        named = {"textId": self.text(name), "domainId": _DOMAIN} if nccl else {"text": name, "domainId": 0}
        self.add("NVTX_EVENTS", start=start, end=end, eventType=_PUSH_POP, globalTid=thread, binaryData=data, **named)

    def about(self, *, host: str = "node00", gpus: Sequence[str] = (), blobs: bool = True, sms: int = 132) -> None:
        """What the export says about its session."""
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC_NS, systemClockNs=SYSTEM_NS)
        self.add("TARGET_INFO_SYSTEM_ENV", globalVid=_VM, devStateName="Local", name="Hostname", nameEnum=1, value=host)
        self.add("META_DATA_EXPORT", name="EXPORT_PARAM_INCLUDE_BLOBS", value="true" if blobs else "false")
        for number, name in enumerate(gpus):
            self.add("TARGET_INFO_GPU", id=number, name=name, smCount=sms)
        for schema, entries in SCHEMAS.items():
            self.add("NVTX_PAYLOAD_SCHEMAS", domainId=_DOMAIN, schemaId=schema, type=1, numEntries=len(entries))
            for place, (name, kind, offset) in enumerate(entries):
                self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=_DOMAIN, schemaId=schema, idx=place, type=kind,
                         name=name, offset=offset)  # fmt: skip

    def write(self, path: Path, *, without: Iterable[str] = ()) -> Path:
        """Write it; `without` are tables, or columns as `TABLE.column`."""
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as connection:
            for table, columns in TABLES.items():
                if table in without or not (self.rows[table] or table == "StringIds"):
                    continue  # tables are made when there is something to hold
                kept = [place for place, column in enumerate(columns) if f"{table}.{column}" not in set(without)]
                key = [f'"{columns[n]}"' + (" INTEGER PRIMARY KEY" if columns[n] == "id" else "") for n in kept]
                connection.execute(f'CREATE TABLE "{table}" ({", ".join(key)})')
                rows = ([row[place] for place in kept] for row in self.rows[table])
                connection.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(kept))})', rows)
        connection.close()
        return path


@dataclass
class _Process:
    """One rank's Kineto document becoming rows."""

    export: Export
    document: dict[str, Any]
    with_payloads: bool

    def __post_init__(self) -> None:
        self.events = [event for event in self.document["traceEvents"] if event.get("ph") == "X"]
        self.pid = next(e["pid"] for e in self.events if e.get("cat") == "cuda_runtime")
        self.serialized = _VM + (self.pid << _PID_BITS)
        self.records = {e["args"].get("External id"): e["args"] for e in self.of("cpu_op", "record_param_comms")}
        self.launches = {e["args"]["correlation"]: e for e in self.of("cuda_runtime")}
        self.marks = self.of("user_annotation", "nccl:")

    def of(self, kind: str, begin: str = "") -> list[dict[str, Any]]:
        return [e for e in self.events if e.get("cat") == kind and e["name"].startswith(begin)]

    def ns(self, us: float) -> int:
        return int(self.document.get("baseTimeNanoseconds", 0)) + round(us * 1000) - UTC_NS + SYSTEM_NS

    def span(self, event: dict[str, Any]) -> dict[str, int]:
        start = self.ns(event["ts"])
        return {"start": start, "end": start + round(event["dur"] * 1000)}

    def thread(self, event: dict[str, Any]) -> int:
        return int(self.serialized + event["tid"])

    def add(self) -> None:
        self.export.add("PROCESSES", globalPid=self.serialized, pid=self.pid, name="python3")
        for event in self.events:
            kind, args = event.get("cat"), event.get("args", {})
            if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
                self._on_device(event, kind, args)
            elif kind == "cuda_runtime":
                name = self.export.text(f"{event['name']}_v7000")
                self.export.add("CUPTI_ACTIVITY_KIND_RUNTIME", **self.span(event), globalTid=self.thread(event),
                                correlationId=args["correlation"], nameId=name)  # fmt: skip
            elif kind in ("user_annotation", "cpu_op"):
                operation = (
                    "" if event["name"].startswith("ProfilerStep") else f", op_id = {args.get('External id', 1)}"
                )
                start, end = self.span(event).values()
                self.export.range(self.thread(event), event["name"] + operation, start, end)
        if self.with_payloads:
            self._joined()
            for event in self.of("kernel", "nccl"):
                self._functions(event)

    def _on_device(self, event: dict[str, Any], kind: str, args: dict[str, Any]) -> None:
        place = {
            **self.span(event), "deviceId": args["device"], "contextId": 1, "streamId": args["stream"],
            "correlationId": args.get("correlation"), "globalPid": self.serialized,
        }  # fmt: skip
        if kind == "kernel":
            name = self.export.text(event["name"])
            short = self.export.text(event["name"].split("<")[0].split("(")[0])
            self.export.add("CUPTI_ACTIVITY_KIND_KERNEL", **place, demangledName=name, shortName=short, gridX=132,
                            gridY=2, gridZ=1)  # fmt: skip
        elif kind == "gpu_memcpy":
            way, _, rest = event["name"].removeprefix("Memcpy ").partition(" (")
            source, _, target = rest.rstrip(")").partition(" -> ")
            self.export.add("CUPTI_ACTIVITY_KIND_MEMCPY", **place, bytes=args.get("bytes", 4), copyKind=_WAYS[way],
                            srcKind=_PLACES.index(source), dstKind=_PLACES.index(target))  # fmt: skip
        else:
            memory = event["name"].removeprefix("Memset (").rstrip(")")
            self.export.add("CUPTI_ACTIVITY_KIND_MEMSET", **place, bytes=args.get("bytes", 4),
                            memKind=_PLACES.index(memory))  # fmt: skip

    def _joined(self) -> None:
        info = self.document["distributedInfo"]
        thread, start = self.thread(self.of("cuda_runtime")[0]), min(self.ns(e["ts"]) for e in self.events) - 10**9
        for number, group in enumerate(info.get("pg_config", [])):
            ranks = group["ranks"]
            data = payload(_RANKED, comm_of(ranks), 0, len(ranks), ranks.index(info["rank"]), 0)
            name = "ncclCommInitRankConfig" if len(ranks) == info["world_size"] else "ncclCommSplit"
            self.export.range(thread, name, start + number * 100, start + number * 100 + 50, data=data, nccl=True)

    def _functions(self, kernel: dict[str, Any]) -> None:
        """The ranges of NCCL's functions around the launch of a kernel."""
        launch = self.launches.get(kernel["args"].get("correlation"))
        if launch is None:
            return
        mark = next((m for m in self.marks if m["ts"] <= launch["ts"] <= m["ts"] + m["dur"]), None)
        start, end, thread = *self.span(launch).values(), self.thread(launch)
        args = (
            kernel["args"]
            if "Collective name" in kernel["args"]
            else self.records.get(kernel["args"].get("External id"))
        )
        if args is None and mark is not None and mark["name"] == "nccl:coalesced":
            records = [e for e in self.of("cpu_op", "record_param_comms") if "In msg nelems" in e["args"]]
            before = [e for e in records if e["ts"] < mark["ts"]]
            since = max((m["ts"] + m["dur"] for m in self.marks if m["ts"] < mark["ts"]), default=0)
            calls = [self._call(e["args"]) for e in before if e["ts"] > since]
        elif args is not None:
            op = collective_name(args["Collective name"])
            calls = self._exchange(args) if op == "all_to_all" else [self._call(args)]
        else:
            return
        if len(calls) == 1:
            self.export.range(thread, calls[0][0], start - 5, end + 5, data=calls[0][1], nccl=True)
            return
        self.export.range(thread, "ncclGroupStart", start - 500, start - 490, nccl=True)
        for place, (name, data) in enumerate(calls):
            at = start - 480 + place * 4
            self.export.range(thread, name, at, at + 2, data=data, nccl=True)
        self.export.range(thread, "ncclGroupEnd", start - 5, end + 5, nccl=True)

    def _group(self, args: dict[str, Any]) -> list[int]:
        groups: dict[str, list[int]] = {
            g["pg_name"]: g["ranks"] for g in self.document["distributedInfo"].get("pg_config", [])
        }
        listed = args.get("Process Group Ranks", "[]")
        return groups.get(str(args.get("Process Group Name"))) or list(json.loads(listed))

    def _call(self, args: dict[str, Any]) -> tuple[str, bytes]:
        record = self.records.get(args.get("External id"), args)  # only it has the root
        op = collective_name(args["Collective name"]) or "all_reduce"
        name, schema = _FUNCTIONS[op]
        ranks, item = self._group(args), item_bytes(dtype_name(args["dtype"]) or "float32")
        elems = args["Out msg nelems"] if op in ("reduce_scatter", "scatter") else args["In msg nelems"]
        numbers = []
        if schema == _PEER:
            peer = args.get("Dst Rank" if op == "send" else "Src Rank", args.get("Rank"))
            numbers = [ranks.index(peer) if peer in ranks else 0]
        elif schema in (_ROOTED, _ROOTED_REDUCING):
            numbers = [record.get("Rank", 0)]
        return name, payload(schema, comm_of(ranks), elems * item, *numbers, *([0] if schema != _PLAIN else []))

    def _exchange(self, args: dict[str, Any]) -> list[tuple[str, bytes]]:
        """An all_to_all as torch makes it: a send and a receive for each rank."""
        ranks, item = self._group(args), item_bytes(dtype_name(args["dtype"]) or "float32")
        calls = []
        for op, key in (("send", "In msg nelems"), ("recv", "Out msg nelems")):
            share, rest = divmod(args[key], len(ranks))
            for peer in range(len(ranks)):
                size = (share + (rest if peer == 0 else 0)) * item
                calls.append((_FUNCTIONS[op][0], payload(_PEER, comm_of(ranks), size, peer, 0)))
        return calls


def comm_of(ranks: Sequence[int]) -> int:
    """The hash of a communicator, the same on all its ranks."""
    return zlib.crc32(repr(list(ranks)).encode()) << 32 | 0x8000_0001


def documents_in(folder: Path) -> list[dict[str, Any]]:
    """The Kineto documents in a folder, by rank."""
    texts = (
        gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes()
        for p in folder.glob("*.pt.trace.json*")
    )
    return sorted(map(json.loads, texts), key=lambda one: one["distributedInfo"]["rank"])


def export_of(documents: Sequence[dict[str, Any]], *, payloads: bool = True) -> Export:
    """One session that traced the processes of these documents."""
    export = Export()
    export.about(host=documents[0].get("host_name", "node00"), blobs=payloads)
    for document in documents:
        _Process(export, document, payloads).add()
    return export


def documents(name: str, folder: Path) -> list[dict[str, Any]]:
    """The Kineto traces of a simulated run, which are written to a folder."""
    folder.mkdir(exist_ok=True)
    simulate(PRESETS[name]).write(folder)
    return documents_in(folder)


def small(
    kernels: Sequence[tuple[str, int, int]] = ((KERNEL, 0, 100), (ALL_REDUCE, 50, 100)), *, pid: int = 7, gpu: int = 0
) -> Export:
    """One process with kernels of name, start and end, each launched 10 ns before the one before began."""
    export = Export()
    export.about(gpus=["H100", "H100"])
    add(export, kernels, pid=pid, gpu=gpu)
    return export


def add(export: Export, kernels: Sequence[tuple[str, int, int]], *, pid: int, gpu: int) -> None:
    for number, (name, start, end) in enumerate(kernels):
        text = export.text(name)
        export.add("CUPTI_ACTIVITY_KIND_KERNEL", start=SYSTEM_NS + start, end=SYSTEM_NS + end, deviceId=gpu, streamId=7,
                   contextId=1, correlationId=number, globalPid=process(pid), demangledName=text, shortName=text,
                   gridX=66, gridY=1, gridZ=1)  # fmt: skip
        called, at = export.text("cudaLaunchKernel_v7000"), SYSTEM_NS + start
        export.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=at - 20, end=at - 10, globalTid=process(pid) + pid,
                   correlationId=number, nameId=called)  # fmt: skip


def process(pid: int) -> int:
    return (1 << 48) + (pid << 24)
