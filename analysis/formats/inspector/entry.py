"""Register the format of NCCL Inspector."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ..format import Reader, TraceFormat

_NAME = re.compile(r"-pid[0-9]+\.(log|jsonl)(\.gz)?$")
_MARKS = (b'"inspector_output_format_version"', b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"')


def _reader() -> Reader:
    from .reader import read_inspector

    return Reader(read=read_inspector)


def _recognised(path: Path, begin: Callable[[], bytes]) -> bool:
    first = begin()
    named = _NAME.search(path.name) is not None  # one that is empty, or damaged where it begins
    return b'"traceEvents"' not in first and (named or any(mark in first for mark in _MARKS))


INSPECTOR = TraceFormat(
    name="NCCL Inspector",
    version=2,
    file_names=("*-pid*.log", "*-pid*.log.gz", "*-pid*.jsonl", "*-pid*.jsonl.gz"),
    recognises=_recognised,
    reader=_reader,
    a_file="log of NCCL Inspector",
    others="logs of NCCL Inspector",
    call_bytes=500,
    is_less=True,
)
