"""What a trace file must become, by plain json and decimal arithmetic: another way to the reader's tables."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from commtrace.analysis.core.kinds import COMM, MEMORY, kernel_kind, memory_kind
from commtrace.analysis.core.schema import records
from commtrace.analysis.core.tables.events import PROXY_SUMS
from commtrace.analysis.formats.kineto.events import IDLE_CALLS, RUNTIME
from commtrace.analysis.run.file_tables import TraceFile

Tables = dict[str, Any]
Object = dict[str, Any]

_KERNELS = {"kernel", "Kernel"}
_MTIA = "mtia_ccp_events"
_ACTIVITIES = _KERNELS | {_MTIA, "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime"}
_OPERATORS = {"cpu_op", "Operator"}
_LOADING = "enumerate(DataLoader)#"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class Incomparable(Exception):
    """Two readers may differ here, or refuse it: types that no trace has, keys twice, times beyond a double."""


def oracle_tables(document: bytes) -> Tables:
    """The tables of a document. Raises Incomparable, and what json.loads raises for what is not JSON."""
    content = json.loads(document.decode("utf-8-sig"), parse_float=Decimal, object_pairs_hook=_unique)
    around: Object = content if isinstance(content, dict) else {}
    listed = content if isinstance(content, list) else content.get("traceEvents")
    if not isinstance(listed, list) or not all(isinstance(event, dict) for event in listed):
        raise Incomparable("no list of events")
    events = [event for event in listed if event]
    for key in ("ph", "cat", "name"):
        if not all(isinstance(event.get(key, ""), str) for event in events):
            raise Incomparable(f"{key} is not text")
    spans = [event for event in events if event.get("ph") == "X"]
    base_ns = _integer(around.get("baseTimeNanoseconds", 0))
    activities = [_activity(e, base_ns) for e in spans if e.get("cat") in _ACTIVITIES]
    operators = [e for e in spans if e.get("cat") in _OPERATORS]
    marked = [e for e in spans if e.get("cat") == "user_annotation" and _is_mark(e.get("name", ""))]
    marked += [e for e in operators if _is_step(e.get("name", ""))]
    handed = [e for e in operators if e.get("name", "").startswith("c10d::")]
    loads = [e for e in operators if e.get("name", "").startswith(_LOADING)]
    return {
        "header": _header(around, base_ns),
        "pid": _pid(spans, operators, with_work=not activities),
        "activities": activities,
        "launches": _launches(spans, {row[5] for row in activities} - {None}, base_ns),
        "marks": [row for e in marked if not (row := _annotation(e, base_ns))[0].startswith(_LOADING)],
        "loads": sorted((_annotation(e, base_ns) for e in marked + loads if e["name"].startswith(_LOADING)), key=repr),
        "handed": [_annotation(e, base_ns) for e in handed],
        "kernel_args": [found for e in spans if (found := _kernel_args(e)) is not None],
        "record_args": [found for e in operators if (found := _record_args(e, base_ns)) is not None],
        "cpu_ops": [] if activities else [_operator(e, base_ns) for e in operators if _is_work(e.get("name", ""))],
        "gloo_threads": sorted({_row_id(e.get("tid", 0)) for e in events if _is_gloo_thread(e)}),
        "window_end": max((_ns(e["ts"]) + base_ns for e in events if _is_window_end(e)), default=None),
    }


def tables_of(file: TraceFile) -> Tables:
    """The same of what the reader made of a file."""
    rows = {name: records(getattr(file, name)) for name in ("activities", "launches", "annotations", "comm_args")}
    header = file.header
    groups = [(g.name, g.ranks) for g in header.process_groups]
    # Annotations of engines that mark steps have names as torch's own by now.
    renamed = {f"ProfilerStep#{mark.step}" for mark in file.step_marks if not _is_step(mark.name)}
    # Steps whose numbers do not go up have others.
    before = {f"ProfilerStep#{mark.step}": mark.name for mark in file.step_marks if _is_step(mark.name)}
    marks = [
        (before.get(a["name"], a["name"]), *(a[c] for c in _ANNOTATION[1:]))
        for a in rows["annotations"]
        if a["name"] not in renamed
    ]
    return {
        "header": (header.rank, header.world_size, header.backend, header.host, header.device_names, groups,
                   header.base_ns),
        "pid": file.pid,
        "activities": [tuple(a[c] for c in _ACTIVITY) for a in rows["activities"]],
        "launches": [tuple(a[c] for c in ("correlation", "thread", "start_ns", "external_id"))
                     for a in rows["launches"]],
        # Of other annotations of users, those are kept that may mark steps: tests/analysis/test_step_marks.py.
        "marks": [a for a in marks if _is_mark(a[0]) and not a[0].startswith(_LOADING)],
        "loads": sorted((a for a in marks if a[0].startswith(_LOADING)), key=repr),
        "handed": [a for a in marks if a[0].startswith("c10d::")],
        "kernel_args": [_without_place(a) for a in rows["comm_args"] if a["source"] == "kernel"],
        "record_args": [_without_place(a) for a in rows["comm_args"] if a["source"] != "kernel"],
        "cpu_ops": [] if len(file.activities) else
                   [tuple(a[c] for c in ("thread", "start_ns", "dur_ns", "name")) for a in records(file.cpu_ops)],
        "gloo_threads": sorted(file.gloo_threads),
        "window_end": file.window_end_ns,
    }  # fmt: skip


_ACTIVITY = ("device", "stream", "kind", "name", "start_ns", "correlation", "dur_ns", "external_id")
_ANNOTATION = ("name", "thread", "start_ns", "dur_ns", "in_dims", "in_types", "in_values")


_OF_PROXIES = [f"proxy_{way}_{what}" for way, sums in PROXY_SUMS.items() for what in sums]
_OF_OTHER_FORMATS = dict.fromkeys(("in_bytes", "out_bytes", "size_bytes", *_OF_PROXIES))


def _without_place(row: Object) -> Object:
    assert row.items() >= _OF_OTHER_FORMATS.items()
    return {key: value for key, value in row.items() if key not in ("rank", "cycle", "source", *_OF_OTHER_FORMATS)}


def _unique(pairs: list[tuple[str, Any]]) -> Object:
    if len({key for key, _ in pairs}) < len(pairs):
        raise Incomparable("a key stands twice")
    return dict(pairs)


# --- values ----------------------------------------------------------------------------------------------------------


def _integer(value: Any) -> int:
    number = _number(value)
    if number != int(number) or not -(2**63) <= number < 2**63:
        raise Incomparable(f"{value!r} is no integer of 64 bits")
    return int(number)


def _optional(value: Any) -> int | None:
    return None if value is None else _integer(value)


def _number(value: Any) -> Decimal:
    """A number, or the text of one."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = Decimal(value)
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise Incomparable(f"{value!r} is not a number")
    return Decimal(value)


def _ns(value: Any) -> int:
    """Microseconds -> nanoseconds, where a double holds them exactly enough."""
    us = _number(value)
    if abs(us) >= 2**52 or us != us.quantize(Decimal("0.001")):
        raise Incomparable(f"{value} us is no whole number of ns, or out of range")
    return int(us * 1000)


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise Incomparable(f"{value!r} is not text")
    return value


def _row_id(value: Any) -> int:
    """Process and thread ids; those of Kineto's own rows are texts."""
    return -1 if isinstance(value, str) else _integer(value)


def _args(event: Object) -> Object:
    args = event.get("args", {})
    if not isinstance(args, dict):
        raise Incomparable("arguments are not an object")
    return args


# --- events ----------------------------------------------------------------------------------------------------------


def _times(event: Object, base_ns: int) -> tuple[int, int]:
    dur = event.get("dur", 0)
    return _ns(event.get("ts")) + base_ns, max(0, 0 if dur is None else _ns(dur))


def _external_id(args: Object) -> int | None:
    own = _optional(args.get("External id"))
    return own if own is not None else _optional(args.get("external id"))


def _activity(event: Object, base_ns: int) -> tuple[Any, ...]:
    args, name = _args(event), event.get("name", "")
    start_ns, dur_ns = _times(event, base_ns)
    device, stream = _optional(args.get("device")), _optional(args.get("stream"))
    return (
        str(device if device is not None else _row_id(event.get("pid", 0))),
        stream if stream is not None else _row_id(event.get("tid", 0)),
        _kind(event), name, start_ns, _optional(args.get("correlation")), dur_ns, _external_id(args),
    )  # fmt: skip


def _kind(event: Object) -> str:
    name = event.get("name", "")
    if event["cat"] == _MTIA:
        return MEMORY if name == "dma_request" else kernel_kind(name)
    return kernel_kind(name) if event["cat"] in _KERNELS else memory_kind(name)


def _launches(spans: list[Object], launched: set[int], base_ns: int) -> list[tuple[Any, ...]]:
    """The earliest call of every correlation that an activity has, by start."""
    rows = []
    for event in spans:
        if event.get("cat") in _LAUNCHES:
            args = _args(event)
            correlation = _optional(args.get("correlation"))
            if correlation in launched:
                thread = _row_id(event.get("tid", 0))
                rows.append((correlation, thread, _ns(event.get("ts")) + base_ns, _external_id(args)))
    first: dict[int, tuple[Any, ...]] = {}
    for row in sorted(rows, key=lambda r: r[2]):
        first.setdefault(row[0], row)
    return list(first.values())


def _is_mark(name: str) -> bool:
    return _is_step(name) or bool(re.match(r"(nccl|xccl|hccl|ccl|gloo):", name)) or name.startswith(_LOADING)


def _is_step(name: str) -> bool:
    return bool(re.match(r"ProfilerStep#[0-9]{1,18}\Z", name))


def _is_work(name: str) -> bool:
    return not name.startswith(("c10d::", "record_param_comms")) and not _is_step(name)


def _pid(spans: list[Object], operators: list[Object], *, with_work: bool) -> int | None:
    """The process of the first annotation that names one, else of a call that may launch something, else operator."""
    annotations = [e for e in spans if e.get("cat") == "user_annotation"]
    calls = [e for e in spans if e.get("cat") in _LAUNCHES and not _is_idle(e)]
    handed = [e for e in operators if e.get("name", "").startswith(("c10d::", "record_param_comms"))]
    work = [e for e in operators if with_work and _is_work(e.get("name", ""))]
    named = [pid for e in (*annotations, *calls, *handed, *work) if _row_id(pid := e.get("pid", 0)) != -1]
    return _integer(named[0]) if named else None


def _is_idle(event: Object) -> bool:
    return bool(event["cat"] == RUNTIME and event.get("name", "").startswith(IDLE_CALLS))


def _annotation(event: Object, base_ns: int) -> tuple[Any, ...]:
    args = _args(event)
    inputs = [args.get(key) for key in ("Input Dims", "Input type", "Concrete Inputs")]
    if not all(i is None or isinstance(i, list) for i in inputs):
        raise Incomparable("inputs are no lists")
    for text in inputs[2] or ():
        _text(text)
    return (event.get("name", ""), _row_id(event.get("tid", 0)), *_times(event, base_ns), *inputs)


def _operator(event: Object, base_ns: int) -> tuple[Any, ...]:
    start_ns, dur_ns = _times(event, base_ns)
    return _row_id(event.get("tid", 0)), start_ns, dur_ns, event.get("name", "")


def _is_gloo_thread(event: Object) -> bool:
    named = event.get("ph") != "X" and event.get("name") == "thread_name"
    return named and "pt_gloo_runloop" in json.dumps(event.get("args", {}), default=str)


def _is_window_end(event: Object) -> bool:
    return event.get("ph") != "X" and event.get("name") == "Record Window End" and event.get("ts") is not None


def _kernel_args(event: Object) -> Object | None:
    if event.get("cat") not in _ACTIVITIES or _kind(event) != COMM:
        return None
    args = dict(_args(event))
    if event["cat"] not in _KERNELS and args.get("bytes") is not None:
        args |= {"Collective name": "peer_copy", "dtype": "Byte"}
        args |= {"In msg nelems": args["bytes"], "Out msg nelems": args["bytes"]}
    return None if args.get("Collective name") is None else _comm_row(args)


def _record_args(event: Object, base_ns: int) -> Object | None:
    if event.get("name") != "record_param_comms" or _args(event).get("Collective name") in (None, "wait"):
        return None
    return _comm_row(_args(event)) | {"thread": _row_id(event.get("tid", 0)), "start_ns": _times(event, base_ns)[0]}


def _comm_row(args: Object) -> Object:
    def first(*keys: str) -> int | None:
        return next((_integer(args[key]) for key in keys if args.get(key) is not None), None)

    def counted(number: int | None, least: int, most: int) -> int | None:
        return number if number is not None and least <= number <= most else None

    ranks = _text(args.get("Process Group Ranks"))
    comms_id, op = args.get("Comms Id"), _text(args["Collective name"])
    return {
        "correlation": first("correlation"),
        "external_id": first("External id", "external id"),
        "thread": None,
        "start_ns": None,
        "op": op,
        "dtype": _text(args.get("dtype")),
        "in_elems": counted(first("In msg nelems", "In msg size"), 0, 2**53),
        "out_elems": counted(first("Out msg nelems", "Out msg size"), 0, 2**53),
        "in_split": _text(args.get("In split size")),
        "out_split": _text(args.get("Out split size")),
        "group_size": counted(first("Group size"), 1, 2**24),
        "process_group": _text(args.get("Process Group Name")),
        "pg_ranks": " ".join(re.findall(r"\d+", ranks)) or None if ranks is not None and "..." not in ranks else None,
        "seq": first("Seq"),
        "comms_id": None if comms_id is None else comms_id if isinstance(comms_id, str) else str(int(comms_id)),
        "root": first("Rank"),
        "peer": first(*(("Src Rank", "Dst Rank") if op in ("recv", "recvAnySource") else ("Dst Rank", "Src Rank"))),
    }


def _header(around: Object, base_ns: int) -> tuple[Any, ...]:
    info = around.get("distributedInfo") or {}
    if not isinstance(info, dict):
        raise Incomparable("distributedInfo is not an object")
    devices = sorted(around.get("deviceProperties", []), key=lambda d: _integer(d.get("id", 0)))
    rank, size = _optional(info.get("rank")), _optional(info.get("world_size"))
    return (
        rank if rank is not None and 0 <= rank <= 2**24 else None,
        size if size is not None and 1 <= size <= 2**24 else None,
        _text(info.get("backend")),
        _text(around.get("host_name")),
        tuple(device.get("name", "") for device in devices),
        [(g.get("pg_name", ""), tuple(sorted(map(_integer, g.get("ranks", []))))) for g in info.get("pg_config", [])],
        base_ns,
    )
