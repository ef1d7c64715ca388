"""Recordings taken apart, and put together with sums that are right and contents that are not."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from commtrace.analysis.core.budget import Budget
from commtrace.analysis.formats.recordings.columns import CodedColumn
from commtrace.analysis.formats.recordings.content import MAGIC, Content, recorded_content


def content_in(path: Path) -> Content:
    """What a recording holds."""
    return recorded_content(gzip.decompress(path.read_bytes()), str(path), Budget(None))


def as_file(content: Any) -> bytes:
    """The bytes of a recording of this content, with a sum that is right."""
    payload = msgspec.msgpack.encode(content)
    return gzip.compress(MAGIC + sha256(payload).digest() + payload)


def odd_contents(content: Content) -> Iterator[dict[str, Any]]:
    """Changes after which the content makes no sense, of a recording with kernels and collectives."""
    sorts, ran = content.sorts, content.sorts["activities"]
    rows = ran["ts"].rows

    def with_column(name: str, column: CodedColumn) -> dict[str, Any]:
        return {"sorts": sorts | {"activities": ran | {name: column}}}

    yield {"names": content.names[:-1]}
    yield {"kinds": ["x"] * len(content.kinds)}
    yield {"pids": []}
    yield {"sorts": {}}
    yield {"sorts": sorts | {"activities": {}}}
    yield {"sorts": sorts | {"activities": {name: ran[name] for name in list(ran)[1:]}}}
    yield with_column("ts", replace(ran["ts"], rows=rows + 1))
    yield with_column("ts", replace(ran["ts"], unit="whole"))
    yield with_column("ts", CodedColumn(rows, first=2**63 - 1, unit="bits"))
    yield with_column("ts", CodedColumn(rows, first=2**63 - 1, unit="thousandths"))
    yield with_column("dur", CodedColumn(0, absent=b"\xff" * -(-rows // 8), unit="bits"))
    yield with_column("name", CodedColumn(rows, first=len(content.names)))
    yield with_column("name", CodedColumn(rows, first=-1))
    yield with_column("stream", CodedColumn(rows, "above", planes=b"\0" * (rows - 1)))
    yield with_column("stream", CodedColumn(rows, "among", planes=b"\1" * rows, distinct=CodedColumn(1)))
    yield with_column("stream", CodedColumn(rows, "among", planes=b"\0" * rows))
    yield with_column("stream", CodedColumn(rows - 1, absent=b""))
    yield with_column("stream", CodedColumn(rows, absent=b"\xff" * rows))
    calls, annotations = content.comm_args, content.annotations
    yield {"comm_args": replace(calls, kind=CodedColumn(calls.kind.rows, first=len(calls.kinds)))}
    yield {"comm_args": replace(calls, kinds=[{"source": "kernel", "op": 7}] * len(calls.kinds))}
    yield {"comm_args": replace(calls, kinds=[3] * len(calls.kinds))}
    yield {"comm_args": replace(calls, columns={})}
    yield {"annotations": replace(annotations, kinds=["x"] * len(annotations.kinds))}
    yield {"annotations": replace(annotations, kinds=[["a", "b", None, None, None]] * len(annotations.kinds))}
    yield {"annotations": replace(annotations, columns={"ts": annotations.columns["ts"]})}
    yield {"header": replace(content.header, rank=-5)}
    yield {"header": replace(content.header, base_ns=2**63 - 1)}
