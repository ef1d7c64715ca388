"""Payloads that NCCL attaches to ranges of its functions: sizes, communicators, ranks.

NCCL registers a schema for each function (nvtx_payload_schemas.h, and before NCCL 2.26 nvtx.h). Its numbers change from
version to version, and each process has its own, so entries are found by their names. Values are in the column
`binaryData` if the report was exported with --include-blobs=true: 32 bytes that name domain, schema and size, all of 64
bits, and then the structure as it was in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from .....contract.limits import RANK_LIMIT
from ...nccl_functions import Payload
from ..tables import ExportTables

_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_HEADER = struct.Struct("<QQQQ")
# NVTX_PAYLOAD_ENTRY_TYPE_* of nvToolsExtPayload.h, for 64 bit Linux.
_TYPES = {
    3: "<h", 4: "<H", 5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q", 11: "<b", 12: "<B", 13: "<h", 14: "<H",
    15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q", 23: "<Q",
}  # fmt: skip
_FIELDS = {
    "ncclcommunicatorid": "comm", "messagesize[bytes]": "bytes", "bytes": "bytes", "no.ofranks": "ranks",
    "rank": "rank", "peerrank": "peer", "peer": "peer", "root": "root",
}  # fmt: skip
"""Names of entries, in lower case and without spaces -> what they are here."""
_MOST_BYTES = 1 << 50
_MOST_RANKS = RANK_LIMIT


_LIMITS = {"bytes": _MOST_BYTES, "ranks": _MOST_RANKS, "rank": _MOST_RANKS, "peer": _MOST_RANKS, "root": _MOST_RANKS}
_Entry = tuple[str, str, int]  # field, type and offset


class Schemas:
    """The schemas of an export that have used entries."""

    def __init__(self, tables: ExportTables) -> None:
        columns = ("domainId", "schemaId", "idx", "type", "name", "offset")
        rows = (row for some in tables.rows(_ENTRIES, columns) for row in some)
        listed: dict[tuple[int, int], dict[int, set[tuple[object, ...]]]] = {}
        for domain, schema, place, kind, name, offset in rows:
            if all(type(number) is int for number in (domain, schema, place)):
                listed.setdefault((domain, schema), {}).setdefault(place, set()).add((kind, name, offset))
        self._entries = {key: entries for key, layouts in listed.items() if (entries := list(_entries(layouts)))}

    def payload(self, domain: int | None, data: object) -> Payload:
        """Decode the payload; empty without data or without a schema for it."""
        if isinstance(data, str):  # some tools convert blobs
            try:
                data = bytes.fromhex(data)
            except ValueError:
                return Payload()
        if not isinstance(data, bytes) or len(data) < _HEADER.size:
            return Payload()
        own_domain, schema, size, _ = _HEADER.unpack_from(data)
        entries = self._entries.get((own_domain, schema)) or self._entries.get((domain or 0, schema), [])
        content = data[_HEADER.size : _HEADER.size + size]
        values = {}
        for field, form, offset in entries:
            if offset + struct.calcsize(form) <= len(content):
                (values[field],) = struct.unpack_from(form, content, offset)
        return Payload(**{name: value for name, value in values.items() if 0 <= value <= _LIMITS.get(name, value)})

    def __bool__(self) -> bool:
        return bool(self._entries)


def _entries(layouts: dict[int, set[tuple[object, ...]]]) -> Iterable[_Entry]:
    """The used entries of a schema; none if processes registered different ones under its number."""
    for place, variants in layouts.items():
        kind, name, offset = next(iter(variants))
        if len(variants) > 1:
            continue
        at = 0 if offset is None and place == 0 else offset
        field = _FIELDS.get(name.lower().replace(" ", "")) if isinstance(name, str) else None
        if field and isinstance(kind, int) and kind in _TYPES and type(at) is int and 0 <= at < 2**16:
            yield field, _TYPES[kind], at
