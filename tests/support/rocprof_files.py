"""Databases and JSON as rocprofv3 writes them, made from exports of Nsight Systems, so that both can be read.

Tables and columns are those of rocprofiler-sdk's share/rocprofiler-sdk-rocpd/*.sql, with the ids that generateRocpd.cpp
gives them; JSON is by the schema in its using-rocprofv3.rst and by generateJSON.cpp. `layout` is how a row says where
and when it was: in itself (schema 3), by a track (schema 4), or by a track and two timestamps.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsight_exports import TABLES, Export

LAYOUTS = ("3", "tracks", "timestamps")
GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
"""RCCL's kernel of every collective."""
ENDING = "_0198c1d0_0000_7000_8000_00000000000{}"
CPU_AGENT, FIRST_GPU = 0, 2
_HIP, _RCCL, _HSA, _MARKER = "HIP_RUNTIME_API_EXT", "RCCL_API", "HSA_CORE_API", "MARKER_CORE_RANGE_API"
_DISPATCH, _COPY = "KERNEL_DISPATCH", "MEMORY_COPY"
_WAYS = {1: "MEMORY_COPY_HOST_TO_DEVICE", 2: "MEMORY_COPY_DEVICE_TO_HOST"}
_PLACE = "nid pid tid"
_COLUMNS = {
    "rocpd_metadata": "id tag value",
    "rocpd_string": "id guid string",
    "rocpd_info_node": "id guid hash machine_id hostname",
    "rocpd_info_process": "id guid nid ppid pid init fini command environment extdata",
    "rocpd_info_thread": "id guid nid pid tid",
    "rocpd_info_agent": "id guid nid pid type absolute_index logical_index type_index name product_name extdata",
    "rocpd_info_kernel_symbol": "id guid nid pid code_object_id kernel_name display_name extdata",
    "rocpd_track": "id guid nid pid tid agent_id queue_id stream_id name_id extdata",
    "rocpd_timestamp": "id guid value phase track_id",
    "rocpd_event": "id guid category_id stack_id parent_stack_id correlation_id extdata",
    "rocpd_region": f"id guid {_PLACE} start end name_id event_id extdata",
    "rocpd_kernel_dispatch": f"id guid {_PLACE} agent_id kernel_id dispatch_id queue_id stream_id start end "
    "workgroup_size_x workgroup_size_y workgroup_size_z grid_size_x grid_size_y grid_size_z region_name_id event_id",
    "rocpd_memory_copy": f"id guid {_PLACE} start end name_id dst_agent_id src_agent_id size queue_id stream_id "
    "event_id",
}  # fmt: skip
_OF_EVENTS = ("rocpd_region", "rocpd_kernel_dispatch", "rocpd_memory_copy")
_WHERE = ("nid", "pid", "tid", "agent_id", "queue_id", "stream_id")


@dataclass(frozen=True)
class Call:
    """A call that was traced: of which library, by its id and that of the call around it."""

    library: str
    name: str
    thread: int
    start: int
    end: int
    own: int
    ancestor: int = 0
    text: str | None = None


@dataclass
class Process:
    """What one process did, in ns of its host's clock."""

    pid: int
    host: str = "node00"
    environment: dict[str, str] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    streams: bool = True

    def call(self, library: str, name: str, start: int, end: int, **more: Any) -> int:
        """A call of a function; its id."""
        own = 1 + max((one.own for one in self.calls), default=0)
        self.calls.append(Call(library, name, more.pop("thread", self.pid), start, end, own, **more))
        return own

    def kernel(self, name: str, start: int, end: int, *, gpu: int = 0, stream: int = 1, by: int = 0) -> None:
        """A kernel, launched by the call of that id."""
        self.kernels.append({"name": name, "start": start, "end": end, "gpu": gpu, "stream": stream, "by": by})

    def copy(self, ends: tuple[int | None, int | None], start: int, end: int, *, size: int = 4, by: int = 0) -> None:
        """A copy from and to a GPU, or the CPU where that is None."""
        self.copies.append({"ends": ends, "start": start, "end": end, "size": size, "stream": 1, "by": by})


def launched(process: Process, name: str, start: int, end: int, **where: Any) -> None:
    """A kernel with its launch, of RCCL's function where it communicates."""
    at = start - 40
    around = process.call(_RCCL, "ncclAllReduce", at - 10, at + 20) if name.startswith("nccl") else 0
    by = process.call(_HIP, "hipLaunchKernel", at, at + 10, ancestor=around)
    process.kernel(name, start, end, by=by, **where)


def processes_of(export: Export, *, generic: bool = True) -> list[Process]:
    """The processes of an export, as AMD's tools would have seen them: fills are not there, and say nothing here."""
    rows = {name: [dict(zip(TABLES[name], row, strict=True)) for row in some] for name, some in export.rows.items()}
    texts = {number: text for text, number in export.texts.items()}
    host = next((row["value"] for row in rows["TARGET_INFO_SYSTEM_ENV"] if row["name"] == "Hostname"), "node00")
    found: dict[int, Process] = {}

    def of(serialized: int) -> Process:
        pid = serialized >> 24 & 0xFFFFFF
        return found.setdefault(pid, Process(pid, host))

    for row in rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        name = texts[row["demangledName"]]
        of(row["globalPid"]).kernel(
            GENERIC if generic and name.startswith("nccl") else name, row["start"], row["end"], gpu=row["deviceId"],
            stream=row["streamId"], by=1 + (row["correlationId"] or -1),
        )  # fmt: skip
    for row in rows["CUPTI_ACTIVITY_KIND_MEMCPY"]:
        process, gpu = of(row["globalPid"]), row["deviceId"]
        ends = {1: (None, gpu), 2: (gpu, None)}.get(row["copyKind"], (gpu, gpu))
        process.copy(ends, row["start"], row["end"], size=row["bytes"], by=1 + (row["correlationId"] or -1))
        process.copies[-1]["stream"] = row["streamId"]
    for row in rows["CUPTI_ACTIVITY_KIND_RUNTIME"]:
        name = texts[row["nameId"]].replace("cuda", "hip", 1).removesuffix("_v7000")
        of(row["globalTid"]).calls.append(
            Call(_HIP, name, row["globalTid"] & 0xFFFFFF, row["start"], row["end"], 1 + row["correlationId"])
        )
    for row in rows["NVTX_EVENTS"]:
        process = of(row["globalTid"])
        is_nccl, text = row["domainId"] == 1, row["text"] or texts[row["textId"]]
        process.call(
            _RCCL if is_nccl else _MARKER, text if is_nccl else "roctxThreadRangeA", row["start"], row["end"],
            thread=row["globalTid"] & 0xFFFFFF, text=None if is_nccl else text,
        )  # fmt: skip
    return list(found.values())


class _Numbers:
    """Numbers of texts, from 1."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.of.setdefault(text, len(self.of) + 1)


def _rows(process: Process, layout: str) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _COLUMNS}
    string, symbol = _Numbers(), _Numbers()
    node, pid = 77, process.pid
    gpus = sorted({one["gpu"] for one in process.kernels}) or [0]

    def event(category: str, own: int, ancestor: int, said: str | None = None) -> int:
        number = len(rows["rocpd_event"]) + 1
        data = "{}" if said is None else json.dumps({"message": said})
        rows["rocpd_event"].append({"id": number, "category_id": string(category), "stack_id": own,
                                    "parent_stack_id": ancestor, "correlation_id": 0, "extdata": data})  # fmt: skip
        return number

    for thread in sorted({one.thread for one in process.calls}):
        rows["rocpd_info_thread"].append({"id": thread, "nid": node, "pid": pid, "tid": thread})
    for one in process.calls:
        rows["rocpd_region"].append({
            "id": len(rows["rocpd_region"]) + 1, "nid": node, "pid": pid, "tid": one.thread, "start": one.start,
            "end": one.end, "name_id": string(one.name),
            "event_id": event(one.library, one.own, one.ancestor, one.text), "extdata": "{}",
        })  # fmt: skip
    for number, ran in enumerate(process.kernels, start=1):
        rows["rocpd_kernel_dispatch"].append({
            "id": number, "nid": node, "pid": pid, "tid": pid, "agent_id": FIRST_GPU + ran["gpu"],
            "kernel_id": symbol(ran["name"]), "dispatch_id": number, "queue_id": 1 + ran["stream"],
            "stream_id": ran["stream"] if process.streams else 0, "start": ran["start"], "end": ran["end"],
            **{f"workgroup_size_{axis}": 256 if axis == "x" else 1 for axis in "xyz"},
            **{f"grid_size_{axis}": 256 * 152 if axis == "x" else 1 for axis in "xyz"},
            "region_name_id": string(""), "event_id": event(_DISPATCH, ran["by"], ran["by"]),
        })  # fmt: skip
    for number, copy in enumerate(process.copies, start=1):
        source, target = (CPU_AGENT if gpu is None else FIRST_GPU + gpu for gpu in copy["ends"])
        rows["rocpd_memory_copy"].append({
            "id": number, "nid": node, "pid": pid, "tid": pid, "start": copy["start"], "end": copy["end"],
            "name_id": string("MEMORY_COPY_DEVICE_TO_DEVICE"), "dst_agent_id": target, "src_agent_id": source,
            "size": copy["size"], "stream_id": copy["stream"] if process.streams else 0,
            "event_id": event(_COPY, copy["by"], copy["by"]),
        })  # fmt: skip
    for text, number in symbol.of.items():
        rows["rocpd_info_kernel_symbol"].append({"id": number, "nid": node, "pid": pid, "code_object_id": 1,
                                                 "kernel_name": f"{text}.kd", "display_name": text})  # fmt: skip
    rows["rocpd_info_node"].append({"id": node, "hash": node, "machine_id": process.host, "hostname": process.host})
    rows["rocpd_info_process"].append({"id": pid, "nid": node, "pid": pid, "ppid": 1, "command": "python3 train.py",
                                       "environment": json.dumps(process.environment), "extdata": "{}"})  # fmt: skip
    agents = [(CPU_AGENT, "CPU", 0), (CPU_AGENT + 1, "CPU", 1), *((FIRST_GPU + gpu, "GPU", gpu) for gpu in gpus)]
    for number, kind, place in agents:
        rows["rocpd_info_agent"].append({
            "id": number, "nid": node, "pid": pid, "type": kind, "absolute_index": number, "logical_index": number,
            "type_index": place, "name": "gfx942" if kind == "GPU" else "AMD EPYC",
            "product_name": "AMD Instinct MI300X" if kind == "GPU" else "AMD EPYC",
            "extdata": json.dumps({"cu_count": 304 if kind == "GPU" else 0}),
        })  # fmt: skip
    rows["rocpd_metadata"] += [{"id": 1, "tag": "schema_version", "value": "4" if layout == "tracks" else "3"}]
    rows["rocpd_string"] += [{"id": number, "string": text} for text, number in string.of.items()]
    if layout != "3":
        _on_tracks(rows, with_times=layout == "timestamps")
    return rows


def _on_tracks(rows: dict[str, list[dict[str, Any]]], *, with_times: bool) -> None:
    """Put what rows of events say of their place into tracks, and of their time into timestamps."""
    tracks = _Numbers()
    for table in _OF_EVENTS:
        for row in rows[table]:
            where = {key: row.pop(key) for key in _WHERE if key in row}
            row["track_id"] = tracks(json.dumps(where))
            if with_times:
                for place, key in enumerate(("start", "end"), start=1):
                    number = len(rows["rocpd_timestamp"]) + 1
                    rows["rocpd_timestamp"].append({"id": number, "value": row.pop(key), "phase": place})
                    row[f"{key}_id"] = number
    rows["rocpd_track"] += [{"id": number, **json.loads(where)} for where, number in tracks.of.items()]


def write_database(path: Path, processes: Sequence[Process], *, layout: str = "3", without: Sequence[str] = ()) -> Path:
    """A database, of several processes as `rocpd merge` makes it, without these tables or columns (`TABLE.column`)."""
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        for number, process in enumerate(processes):
            ending, rows = ENDING.format(number), _rows(process, layout)
            for table, named in _COLUMNS.items():
                if table in without:
                    continue
                keys = dict.fromkeys([*named.split(), *(key for row in rows[table] for key in row)])
                if layout != "3" and table in _OF_EVENTS:
                    keys |= dict.fromkeys(["track_id", *(["start_id", "end_id"] * (layout == "timestamps"))])
                moved = {key for key in keys if layout != "3" and _is_moved(table, key, layout)}
                kept = [key for key in keys if key not in moved and f"{table}.{key}" not in without]
                declared = [f'"{key}"' + (" INTEGER PRIMARY KEY" if key == "id" else "") for key in kept]
                connection.execute(f'CREATE TABLE "{table}{ending}" ({", ".join(declared)})')
                values = ([row.get(key, "guid" if key == "guid" else None) for key in kept] for row in rows[table])
                connection.executemany(f'INSERT INTO "{table}{ending}" VALUES ({", ".join("?" * len(kept))})', values)
        connection.execute(f'CREATE VIEW kernels AS SELECT * FROM "rocpd_kernel_dispatch{ENDING.format(0)}"')
    connection.close()
    return path


def _is_moved(table: str, key: str, layout: str) -> bool:
    return table in _OF_EVENTS and (key in _WHERE or (layout == "timestamps" and key in ("start", "end")))


def document_of(processes: Sequence[Process], *, node: bool = True) -> dict[str, Any]:
    """The JSON of these processes."""
    return {"rocprofiler-sdk-tool": [_element(one, node=node) for one in processes]}


def _element(process: Process, *, node: bool) -> dict[str, Any]:
    kinds: dict[str, _Numbers] = {"NONE": _Numbers()}
    symbol = _Numbers()

    def record(kind: str, operation: str, one: Mapping[str, Any], own: int, **more: Any) -> dict[str, Any]:
        operations = kinds.setdefault(kind, _Numbers())
        return {
            "size": 96, "kind": list(kinds).index(kind), "operation": operations(operation) - 1,
            "thread_id": one.get("thread", process.pid),
            "correlation_id": {"internal": own, "external": 0, "ancestor": one.get("ancestor", 0)},
            "start_timestamp": one["start"], "end_timestamp": one["end"], **more,
        }  # fmt: skip

    def handle(gpu: int | None) -> dict[str, int]:
        return {"handle": 2**63 + (CPU_AGENT if gpu is None else FIRST_GPU + gpu)}

    records: dict[str, list[dict[str, Any]]] = {
        "kernel_dispatch": [
            record(_DISPATCH, "KERNEL_DISPATCH_COMPLETE", one, one["by"], dispatch_info={
                "size": 64, "agent_id": handle(one["gpu"]), "queue_id": {"handle": 2**63 + one["stream"]},
                "kernel_id": symbol(one["name"]), "dispatch_id": number, "private_segment_size": 0,
                "group_segment_size": 0, "workgroup_size": {"x": 256, "y": 1, "z": 1},
                "grid_size": {"x": 256 * 152, "y": 1, "z": 1},
            }, stream_id={"handle": one["stream"] if process.streams else 0})
            for number, one in enumerate(process.kernels, start=1)
        ],
        "memory_copy": [
            record(_COPY, _WAYS[2], one, one["by"], src_agent_id=handle(one["ends"][0]),
                   dst_agent_id=handle(one["ends"][1]), bytes=one["size"],
                   stream_id={"handle": one["stream"] if process.streams else 0})
            for one in process.copies
        ],
    }  # fmt: skip
    for key, library in (("hip_api", _HIP), ("hsa_api", _HSA), ("rccl_api", _RCCL), ("marker_api", _MARKER)):
        records[key] = [
            record(library, one.name, vars(one), one.own) for one in process.calls if one.library == library
        ]
    gpus = sorted({one["gpu"] for one in process.kernels}) or [0]
    agents = [
        {"size": 280, "id": handle(gpu), "type": 1 if gpu is None else 2, "cu_count": 0 if gpu is None else 304,
         "logical_node_type_id": gpu or 0, "name": "gfx942", "product_name": "AMD Instinct MI300X"}
        for gpu in (None, *gpus)
    ]  # fmt: skip
    return {
        "metadata": {"pid": process.pid, "init_time": 1, "fini_time": 2,
                     **({"node": {"hostname": process.host}} if node else {})},
        "agents": agents,
        "strings": {
            "buffer_records": [{"kind": kind, "operations": list(numbers.of)} for kind, numbers in kinds.items()],
            "marker_api": [{"key": one.own, "value": one.text} for one in process.calls if one.text is not None],
        },
        "kernel_symbols": [{"size": 80, "kernel_id": 0, "code_object_id": 0, "kernel_name": ""}] + [
            {"size": 80, "kernel_id": number, "code_object_id": 1, "kernel_name": f"{text}.kd",
             "formatted_kernel_name": text}
            for text, number in symbol.of.items()
        ],
        "buffer_records": records,
    }  # fmt: skip


def write_json(path: Path, processes: Sequence[Process], *, node: bool = True) -> Path:
    """A document, indented as rocprofv3 does."""
    path.write_text(json.dumps(document_of(processes, node=node), indent=1), encoding="utf-8")
    return path
