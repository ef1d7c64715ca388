"""Small files of every format that ask for very much, in memory or in time; all are well-formed as far as they go."""

from __future__ import annotations

import gzip
import pickle
import random
import sqlite3
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from builders import US, Trace
from msgspec.structs import replace
from nsight_exports import KERNEL, TABLES

from commtrace.analysis.core.budget import Budget
from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.formats.recordings.columns import CodedColumn
from commtrace.analysis.formats.recordings.content import MAGIC, Content, TraceSource, packed, recorded_content
from commtrace.analysis.recording.options import ReadOptions

Maker = Callable[[Path, random.Random, int], Path]
"""A folder to write into, chance, and how many megabytes are asked for, about -> what is to be read."""

# --- dumps of the flight recorder ------------------------------------------------------------------------------------

_ENTRY: dict[str, Any] = {
    "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0,
    "op_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 1, "input_sizes": [[3]], "output_sizes": [[3]],
    "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "scheduled", "retired": False, "is_p2p": False,
    "timeout_ms": 600000, "frames": [{"name": "f", "filename": "a.py", "line": 1}],
}  # fmt: skip
TEXTS = (
    "version", "name", "desc", "ranks", "process_group", "pg_name", "profiling_name", "input_dtypes", "input_sizes",
    "state", "frames",
)  # fmt: skip
"""What becomes text, or a part of one."""


def dump_with(field: str, value: Any) -> dict[str, Any]:
    """A dump of one call, with that value somewhere."""
    entry, config = dict(_ENTRY), {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
    dump: dict[str, Any] = {"version": "2.9", "pg_config": {"0": config}, "entries": [entry], "pg_status": {}}
    if field in config:
        config[field] = value
    elif field in dump:
        dump[field] = value
    elif field == "process_group":
        entry[field] = (value, "x")
    elif field == "pg_name":
        del entry["process_group"]
        entry[field] = value
    elif field == "frames":
        entry[field] = [{"name": value, "filename": value, "line": 1}]
    else:
        entry[field] = [value] if field == "input_dtypes" else value
    return dump


def shared(levels: int = 40) -> list[Any]:
    """A list that refers twice to one that refers twice to one, and so on."""
    inner: list[Any] = ["x", "x"]
    for _ in range(levels):
        inner = [inner, inner]
    return inner


_MARK = "@HERE@"


def nested_tuples(field: str, levels: int) -> bytes:
    """A dump with tuples in tuples, which Python itself cannot pickle."""
    text = b"X" + struct.pack("<I", len(_MARK)) + _MARK.encode()
    plain = pickle.dumps(dump_with(field, _MARK), protocol=2)
    return plain.replace(text, b")" + b"\x85" * levels, 1)


def _dump_of_many(pushes: bytes) -> bytes:
    return b"\x80\x02}(X\x07\x00\x00\x00entries]" + pushes + b"u."


def _dump_shared(chance: random.Random, _: int) -> bytes:
    return pickle.dumps(dump_with(chance.choice(TEXTS), shared()), protocol=2)


def _dump_nested(chance: random.Random, _: int) -> bytes:
    return nested_tuples(chance.choice(TEXTS), chance.choice((1000, 150_000)))


def _dump_keys(_: random.Random, megabytes: int) -> bytes:
    rows = megabytes * 1_000_000 // 12
    return _dump_of_many(b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(1000, 1000 + 2 * rows)))


def _dump_empty(chance: random.Random, megabytes: int) -> bytes:
    thing = chance.choice((b"]", b"}", b")\x85", b"(l", b"(d"))
    count = megabytes * 1_000_000 // len(thing)
    return _dump_of_many(b"X\x01\x00\x00\x00a](" + thing * count + b"e")


def _dump_memo(_: random.Random, megabytes: int) -> bytes:
    size = megabytes * 1_000_000
    return _dump_of_many(b"X\x01\x00\x00\x00ar" + struct.pack("<I", size // 5) + b"N" * (size // 2 * 2 + 1))


def _dump_packed(_: random.Random, megabytes: int) -> bytes:
    size = megabytes * 10_000_000
    return gzip.compress(b"\x80\x02}(X\x07\x00\x00\x00entriesX" + struct.pack("<I", size) + b"a" * size + b"u.", 1)


def _dump_walks(_: random.Random, megabytes: int) -> bytes:
    """Calls that all share one list of sizes."""
    sizes: list[Any] = [[]] * 9_999
    entries = [
        {**_ENTRY, "record_id": n, "collective_seq_id": n, "input_sizes": sizes} for n in range(megabytes * 2_000)
    ]
    return pickle.dumps(dump_with("entries", entries), protocol=2)


def _dump_json(chance: random.Random, megabytes: int) -> bytes:
    thing = chance.choice(("{}", '{"a":1}', "[]", '"x"', "[[1]]"))
    count = megabytes * 1_000_000 // (len(thing) + 1)
    return b'{"pg_status":{},"x":[' + b",".join([thing.encode()] * count) + b'],"entries":[]}'


def _dump(make: Callable[[random.Random, int], bytes]) -> Maker:
    def written(folder: Path, chance: random.Random, megabytes: int) -> Path:
        path = folder / "dump_0"
        path.write_bytes(make(chance, megabytes))
        return path

    return written


# --- recordings ------------------------------------------------------------------------------------------------------


def small_content(folder: Path) -> Content:
    """What a recording of a small trace holds."""
    made = Trace(0, 2)
    for number in range(8):
        made.kernel(KERNEL, number * 10 * US, 5 * US)
        made.nccl("all_reduce", number * 10 * US + 5 * US, 2 * US)
    raw = read_kineto(made.write(folder), ReadOptions(details=True))
    source = TraceSource("rank0.json", "Kineto", 1)
    return recorded_content(gzip.decompress(packed(raw, source, [])), "it", Budget(None))


def as_recording(payload: bytes) -> bytes:
    return gzip.compress(MAGIC + sha256(payload).digest() + payload, 6)


def _with_field(content: Content, field: str, thing: bytes, count: int) -> bytes:
    """The MessagePack of the content with a list of so many things in place of a field."""
    fields = msgspec.to_builtins(content, builtin_types=(bytes,))
    head = b"\xdd" + struct.pack(">I", count)
    parts = [b"\xde" + struct.pack(">H", len(fields))]
    for name, value in fields.items():
        parts += [
            msgspec.msgpack.encode(name),
            head + thing * count if name == field else msgspec.msgpack.encode(value),
        ]
    return b"".join(parts)


def _recording_rows(content: Content, chance: random.Random, _: int) -> bytes:
    rows = 2 ** chance.choice((28, 33, 40, 62))
    ran = content.sorts["activities"]
    of_ran = ran["ts"].rows
    among = CodedColumn(of_ran, "among", planes=b"\0" * of_ran, distinct=CodedColumn(rows, first=7))
    whole = CodedColumn(rows, first=7)
    which = chance.randrange(4)
    if which == 0:
        found = replace(content, sorts=content.sorts | {"activities": ran | {"stream": among}})
    elif which == 1:
        found = replace(content, sorts=content.sorts | {"activities": ran | {"stream": whole}})
    elif which == 2:
        of_all = {name: replace(whole, unit=column.unit) for name, column in ran.items()}
        found = replace(content, sorts=content.sorts | {"activities": of_all}, lists_bytes=-(2**62))
    else:
        found = replace(content, annotations=replace(content.annotations, kind=CodedColumn(rows)))
    return msgspec.msgpack.encode(found)


def _recording_objects(content: Content, chance: random.Random, megabytes: int) -> bytes:
    field = chance.choice(("names", "kinds", "operator_names", "call_names", "notes", "pids", "gloo_threads"))
    thing = chance.choice((b"\xa1x", b"\xa0")) if field not in ("pids", "gloo_threads") else b"\xd1\x7f\x00"
    return _with_field(content, field, thing, megabytes * 1_000_000 // len(thing))


def _recording_kinds(content: Content, chance: random.Random, megabytes: int) -> bytes:
    thing = chance.choice((b"\x90", b"\x80", b"\x91\x01", b"\x81\xa1a\x90", b"\xcb" + b"\1" * 8))
    count = megabytes * 1_000_000 // len(thing)
    marked = {"annotations": msgspec.Raw(b"\xdd" + struct.pack(">I", count) + thing * count)}
    fields = msgspec.to_builtins(content, builtin_types=(bytes,))
    annotations = fields["annotations"] | {"kinds": marked["annotations"]}
    return msgspec.msgpack.encode(fields | {"annotations": annotations})


def _recording_repeats(content: Content, _: random.Random, megabytes: int) -> bytes:
    """Many rows of one kind with a long list."""
    rows, times = megabytes * 1_000, [1] * 100_000
    kind = ["nccl:all_reduce", 1, times, None, None]
    columns = {name: CodedColumn(rows, unit="thousandths") for name in ("ts", "dur")}
    return msgspec.msgpack.encode(
        replace(
            content, annotations=replace(content.annotations, kind=CodedColumn(rows), kinds=[kind], columns=columns)
        )
    )


def _recording_pads(content: Content, chance: random.Random, megabytes: int) -> bytes:
    """Packed well, and large."""
    return msgspec.msgpack.encode(content) + bytes([chance.choice((0, 0x90))]) * (megabytes * 10_000_000)


def _recording(make: Callable[[Content, random.Random, int], bytes]) -> Maker:
    def written(folder: Path, chance: random.Random, megabytes: int) -> Path:
        path = folder / "rank0.ctrace"
        content = small_content(folder)
        for one in folder.iterdir():
            one.unlink()
        path.write_bytes(as_recording(make(content, chance, megabytes)))
        return path

    return written


# --- exports of Nsight Systems ---------------------------------------------------------------------------------------


def _database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA page_size=4096")
    for name, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
    connection.execute("INSERT INTO StringIds VALUES (1, ?)", (KERNEL,))
    add = connection.execute
    for number in range(50):
        start = 10_000 * number
        add(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, "
            "demangledName) VALUES (?, ?, 0, 7, ?, ?, 1)",
            (start, start + 5_000, number, 100 << 24),
        )
    return connection


_U, _SHORT = 4096, 17_000
_LEAF = 13
_MORE = (_U - 4) * 240
"""So much longer is what all chains are said to be; as many bytes of each stand in its cell as before."""


def share_chains(path: Path) -> int:
    """Let all cells that continue on overflow pages continue on those of the longest; how many there are."""
    data = bytearray(path.read_bytes())
    cells: list[tuple[int, int, int, int]] = []
    for page in range(len(data) // _U):
        at = page * _U + (100 if page == 0 else 0)
        for number in range(int.from_bytes(data[at + 3 : at + 5], "big") if data[at] == _LEAF else 0):
            cell = page * _U + int.from_bytes(data[at + 8 + 2 * number : at + 10 + 2 * number], "big")
            payload, after = _varint(data, cell)
            _, begin = _varint(data, after)
            if payload > _SHORT:
                smallest = (_U - 12) * 32 // 255 - 23
                local = smallest + (payload - smallest) % (_U - 4)
                cells.append((payload, cell, begin, begin + (smallest if local > _U - 35 else local)))
    longest = max(cells)
    for payload, cell, begin, link in cells:
        if payload == longest[0] - _MORE:
            data[link : link + 4] = data[longest[3] : longest[3] + 4]
            data[cell : cell + 3] = _three(payload + _MORE)
            header, at = _varint(data, begin)
            while at < begin + header:
                kind, after = _varint(data, at)
                if kind > 2 * _SHORT - 1_000:
                    data[at:after] = _three(kind + 2 * _MORE)
                at = after
    path.write_bytes(data)
    return len(cells)


def _varint(data: bytearray, at: int) -> tuple[int, int]:
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _three(value: int) -> bytes:
    return bytes((value >> 14 & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value & 0x7F))


_PLACES: dict[str, tuple[str, str]] = {
    "ranges": ("NVTX_EVENTS (start, end, eventType, text, globalTid)", "100, 200, 59, {x}, 1677721600000"),
    "payloads": (
        "NVTX_EVENTS (start, end, eventType, text, globalTid, binaryData)",
        "100, 200, 59, 'ncclAllReduce', 1677721600000, {x}",
    ),
    "names": ("StringIds (id, value)", "{n}, {x}"),
    "kernels": (
        "CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, demangledName)",
        "100, 200, {x}, 7, 1, 1677721600, 1",
    ),
    "processes": (
        "CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, demangledName)",
        "100, 200, 0, 7, 1, {x}, 1",
    ),
    "variables": ("TARGET_INFO_SYSTEM_ENV (name, value)", "{x}, 'x'"),
    "schemas": ("NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, type, name)", "1, 900, {n}, 5, {x}"),
    "devices": ("TARGET_INFO_GPU (id, name)", "{n}, {x}"),
    "meta": ("META_DATA_EXPORT (name, value)", "'n{n}', {x}"),
    "copies": (
        "CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, globalPid, bytes)",
        "1, 2, 0, 7, 1677721600, {x}",
    ),
}


def _chains(folder: Path, chance: random.Random, megabytes: int, where: str | None = None) -> Path:
    """Values that all are the same pages of the file."""
    path = folder / "report.sqlite"
    connection = _database(path)
    place, values = _PLACES[where or chance.choice(sorted(_PLACES))]
    text, is_blob = "'nccl' || hex(zeroblob({size} / 2 - 2))", chance.random() < 0.5
    for number in range(megabytes):
        size = _SHORT + (_MORE if number == 0 else 0)
        value = f"zeroblob({size})" if is_blob else text.format(size=size)
        connection.execute(f"INSERT INTO {place} VALUES ({values.format(x=value, n=1000 + number)})")
    if place.startswith("StringIds"):
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 999 + rowid")
    connection.commit()
    connection.close()
    share_chains(path)
    return path


def _many_rows(folder: Path, chance: random.Random, megabytes: int) -> Path:
    """Tables of small rows that nobody expects to be large."""
    path = folder / "report.sqlite"
    connection = _database(path)
    place, values = _PLACES[chance.choice(sorted(_PLACES))]
    rows = megabytes * 20_000
    counting = f"WITH RECURSIVE c(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM c WHERE n < {rows})"
    text = "'nccl' || n" if chance.random() < 0.5 else "n"
    filled = values.format(x=text, n="@").replace("'n@'", "'n' || n").replace("@", "n")
    connection.execute(f"INSERT INTO {place} {counting} SELECT {filled} FROM c")
    connection.commit()
    connection.close()
    return path


# --- logs of NCCL Inspector, and files beside traces -----------------------------------------------------------------


def _log(make: Callable[[random.Random, int], bytes]) -> Maker:
    def written(folder: Path, chance: random.Random, megabytes: int) -> Path:
        path = folder / "node00-pid4000.log.gz"
        with gzip.open(path, "wb", 1) as file:
            file.write(make(chance, megabytes))
        return path

    return written


def _line(number: int, name: str = "g", events: str = "") -> str:
    return (
        f'{{"header":{{"id":"{name}","rank":0,"n_ranks":2}},"metadata":{{"dump_timestamp_us":{1000 + number},'
        f'"hostname":"h","pid":1,"inspector_output_format_version":"v4.0"}},"coll_perf":{{"coll":"AllReduce",'
        f'"coll_sn":{number},"coll_msg_size_bytes":8,"coll_exec_time_us":1{events}}}}}\n'
    )


def _log_calls(_: random.Random, megabytes: int) -> bytes:
    return "".join(_line(number) for number in range(megabytes * 4_000)).encode()


def _log_communicators(chance: random.Random, megabytes: int) -> bytes:
    padding = "x" * chance.choice((1, 1000))
    rows = megabytes * 1_000_000 // (230 + len(padding))
    return "".join(_line(number, f"{padding}{number}") for number in range(rows)).encode()


def _log_headers(_: random.Random, megabytes: int) -> bytes:
    lines = (_line(number, f"c{number}").partition(',"coll_perf"')[0] + "}\n" for number in range(megabytes * 7_000))
    return (_line(0) + "".join(lines)).encode()


def _log_events(_: random.Random, megabytes: int) -> bytes:
    events = ",".join(["{}"] * (min(megabytes, 15) * 330_000))
    return _line(0, events=f',"event_trace_ts":{{"kernel_events":[{events}]}}').encode() * 3


def _log_empty(chance: random.Random, megabytes: int) -> bytes:
    return _line(0).encode() + chance.choice((b"{}\n", b'{"coll_perf":1}\n', b"\n")) * (megabytes * 300_000)


def _beside(name: str) -> Maker:
    def written(folder: Path, chance: random.Random, megabytes: int) -> Path:
        made = Trace(0, 1)
        made.kernel(KERNEL, 0, 5 * US)
        made.write(folder)
        thing = chance.choice(("{}", '{"a":1}', "[]", '"x"', "[[1]]", '{"a":{}}'))
        count = min(megabytes, 60) * 1_000_000 // (len(thing) + 1)
        (folder / name).write_text(f'{{"schema_version": 1, "x": [{",".join([thing] * count)}]}}')
        return folder

    return written


BOMBS: dict[str, dict[str, Maker]] = {
    "dump": {
        "shared references": _dump(_dump_shared),
        "nested tuples": _dump(_dump_nested),
        "integer keys": _dump(_dump_keys),
        "empty things": _dump(_dump_empty),
        "memo": _dump(_dump_memo),
        "packed": _dump(_dump_packed),
        "shared sizes": _dump(_dump_walks),
        "json": _dump(_dump_json),
    },
    "recording": {
        "rows": _recording(_recording_rows),
        "objects": _recording(_recording_objects),
        "kinds": _recording(_recording_kinds),
        "repeats": _recording(_recording_repeats),
        "pads": _recording(_recording_pads),
    },
    "nsight": {"chains": _chains, "many rows": _many_rows},
    "inspector": {
        "calls": _log(_log_calls),
        "communicators": _log(_log_communicators),
        "headers": _log(_log_headers),
        "events": _log(_log_events),
        "empty lines": _log(_log_empty),
    },
    "beside": {"run.json": _beside("run.json")},
}  # fmt: skip
