"""Recognise files of other profilers that are not read by their first bytes, and say what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

SNAPSHOT = (
    "is a snapshot of torch's memory allocator, which shows neither kernels nor collectives; `commtrace memory` reads "
    "it, and https://pytorch.org/memory_viz draws it"
)
"""The refusal of files that `torch.cuda.memory._dump_snapshot` writes."""
RPD = (
    "is a database of rocmProfileData (rpd), which is not read; capture with rocprofv3, or with torch.profiler, which "
    "traces AMD GPUs as well and knows sizes and groups of collectives"
)
"""The refusal of databases whose tables begin with `rocpd`, but are not those of rocprofv3."""
_PICKLE = (
    "is a pickle of Python, which no profiler writes as a trace; expected a Kineto trace as torch.profiler exports it"
)
_XSPACE = "is an XSpace of JAX or TensorFlow; name it `<host>.xplane.pb` to have it read with the others of its folder"
_PERFETTO = "is a trace in Perfetto's format; name it `....pftrace` to have it read if torch wrote it"
SQLITE = b"SQLite format 3\0"
"""How databases of SQLite begin."""
UNZIP = "python3 -m zipfile -e {archive} {folder}"
"""Not every machine has unzip."""
UNTAR = "tar -xf {archive} -C {folder}"
_ARCHIVE = "is {} archive, which is not read as it is; unpack it into a folder: {}; and give that folder"
_ZIP = _ARCHIVE.format("a zip", UNZIP.format(archive="ARCHIVE", folder="FOLDER"))
_TAR = _ARCHIVE.format("a tar", UNTAR.format(archive="ARCHIVE", folder="FOLDER"))
_ROCPROF = (
    "is a CSV table of rocprof, of which others are needed as well; capture with rocprofv3 --runtime-trace "
    "--output-format rocpd, or with torch.profiler, which traces AMD GPUs as well"
)
_CHAKRA = (
    "is a Chakra execution trace, from which simulators work and which says what waits for what rather than when; give "
    "the Kineto trace that it was made from"
)
_IS_ROCPROF = re.compile(
    rb'\s*"?(?:Kind"?,"?(?:Agent_Id|Domain|Operation)|Domain"?,"?Function|Index"?,"?KernelName|Name"?,"?Calls"?,"?Total|'
    rb'BeginNs"?,|Agent_Id"?,|Dispatch_ID"?,|Correlation_Id"?,)'
)
_IS_CHAKRA = re.compile(
    rb'[\x05-\x7f]\x0a[\x03-\x10][0-9]+\.[0-9]+\.[0-9]|\s*\{\s*"(?:schema|version)"\s*:\s*"[^"]*chakra', re.I
)
_IS_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_SNAPSHOT_KEYS = (b"segments", b"device_traces")
_PLANES = (b"/host:", b"/device:", b"Task Environment")
_IS_JSON_SNAPSHOT = re.compile(rb'\s*\{\s*"(?:segments|device_traces|allocator_settings|external_annotations)"\s*:')
_KINETO_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"baseTimeNanoseconds"')
_NEAR = 256
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
# Fields of a TracePacket with their wire types: https://perfetto.dev/docs/reference/trace-packet-proto
_OF_PACKETS = frozenset({
    (1, _BYTES), (2, _BYTES), (3, _VARINT), (6, _BYTES), (8, _VARINT), (10, _VARINT), (11, _BYTES), (12, _BYTES),
    (13, _VARINT), (33, _BYTES), (35, _BYTES), (36, _BYTES), (41, _VARINT), (42, _VARINT), (43, _BYTES), (44, _BYTES),
    (45, _BYTES), (50, _BYTES), (58, _VARINT), (59, _BYTES), (60, _BYTES), (79, _VARINT), (87, _VARINT), (89, _BYTES),
})  # fmt: skip
_IS_JSON = re.compile(rb"\s*[{\[]\s*[\"{}\[\]]")
"""JSON behind an empty line begins as a packet of 123 or 91 bytes would."""
_FIRST_FIELD = b"\x0a"  # field 1, bytes: a plane of an XSpace, a packet of a Perfetto trace


def foreign_file(begin: bytes) -> str | None:
    """What a file with these first bytes, unpacked, is and what to do instead; None if that is not known."""
    if _IS_PICKLE.match(begin):
        return SNAPSHOT if any(key in begin[:_NEAR] for key in _SNAPSHOT_KEYS) else _PICKLE
    if _IS_JSON_SNAPSHOT.match(begin):
        return SNAPSHOT
    for said, is_so in _BY_BEGIN:
        if is_so(begin):
            return said
    if not begin.startswith(_FIRST_FIELD) or _IS_JSON.match(begin):
        return None
    if begins_like_xspace(begin):
        return _XSPACE
    return _PERFETTO if begins_like_perfetto(begin) else None


def begins_like_xspace(begin: bytes) -> bool:
    """Whether the first bytes of a file, unpacked, are planes of an XSpace."""
    is_message = begin.startswith(_FIRST_FIELD) and not _IS_JSON.match(begin)
    return is_message and b"\x12" in begin[:_NEAR] and any(name in begin[:_NEAR] for name in _PLANES)


_BY_BEGIN: tuple[tuple[str, Callable[[bytes], object]], ...] = (
    (_ZIP, lambda begin: begin.startswith((b"PK\x03\x04", b"PK\x05\x06"))),
    (_TAR, lambda begin: begin[257:262] == b"ustar"),
    (_ROCPROF, _IS_ROCPROF.match),
    (_CHAKRA, _IS_CHAKRA.match),
)


def begins_like_kineto(begin: bytes) -> bool:
    """Whether JSON with these first bytes is a trace of Kineto rather than another file of torch."""
    return any(key in begin for key in _KINETO_KEYS)


def begins_like_perfetto(begin: bytes) -> bool:
    """Whether the bytes are packets of Perfetto one behind the other, each with fields that a packet has."""
    if not begin.startswith(_FIRST_FIELD) or _IS_JSON.match(begin) or begins_like_xspace(begin):
        return False
    return all(begin[at : at + 1] == _FIRST_FIELD and _is_packet(begin, at + 1) for at in _packets(begin))


def _packets(begin: bytes) -> Iterator[int]:
    at = 0
    while at < len(begin):
        yield at
        length, inside = _number(begin, at + 1)
        at = inside + length


def _is_packet(begin: bytes, at: int) -> bool:
    """Whether a packet whose length stands here has a known first field; true where the bytes end before it."""
    length, inside = _number(begin, at)
    key, _ = _number(begin, inside)
    return length > 0 and (inside >= len(begin) or (key >> 3, key & 7) in _OF_PACKETS)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """The variable-length integer at a place, and the place behind it."""
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 128:
            break
    return value, at
