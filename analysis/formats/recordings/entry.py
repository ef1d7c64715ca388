"""Register the format of recordings."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ....contract.recording import RECORDING_SUFFIX
from ..format import Reader, TraceFormat

_BEGIN = b"commtrace-recording\n"


def _reader() -> Reader:
    from .reader import read_recording

    return Reader(read=read_recording)


def _recognised(path: Path, begin: Callable[[], bytes]) -> bool:  # noqa: ARG001 - as TraceFormat wants it
    return begin().startswith(_BEGIN)


RECORDING = TraceFormat(
    name="recording",
    version=1,
    file_names=(f"*{RECORDING_SUFFIX}",),
    recognises=_recognised,
    reader=_reader,
    usual_name=re.compile(rf"(?P<worker>.+?)\.(?P<cycle>\d+)\.pt\.trace{re.escape(RECORDING_SUFFIX)}$"),
    a_file="recording",
    others="recordings not named like torch's traces",
)
