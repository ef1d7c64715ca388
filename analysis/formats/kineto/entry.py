"""Register the format of Kineto."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ...core.tables.events import COLUMNS
from ..format import Parts, Reader, TraceFormat


def _reader() -> Reader:
    from .joining import Joining, Part
    from .reader import joined_trace, read_kineto, read_part
    from .verified import verified

    parts = Parts(part=Part, read=read_part, joining=Joining, joined=joined_trace)
    return Reader(read=read_kineto, verified=verified, parts=parts)


def _takes_what_is_left(path: Path, begin: Callable[[], bytes]) -> bool:  # noqa: ARG001 - as TraceFormat wants it
    return True


KINETO = TraceFormat(
    name="Kineto",
    version=19 + COLUMNS,
    file_names=("*.json", "*.json.gz"),
    recognises=_takes_what_is_left,
    reader=_reader,
    usual_name=re.compile(r"(?P<worker>.+?)\.(?P<cycle>\d+)\.pt\.trace\.json(\.gz)?$"),
    others="JSON files not named like torch's traces",
)
