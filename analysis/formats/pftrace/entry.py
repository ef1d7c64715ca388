"""Register the format in which torch 2.14 and later write traces if their name ends in `.pftrace`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...core.tables.events import COLUMNS
from ..format import Reader, TraceFormat
from ..others import begins_like_perfetto

_ENDINGS = (".pftrace", ".pftrace.gz")


def _reader() -> Reader:
    from .reader import read_pftrace

    return Reader(read=read_pftrace)


def _recognised(path: Path, begin: Callable[[], bytes]) -> bool:
    return path.name.lower().endswith(_ENDINGS) or begins_like_perfetto(begin())


PFTRACE = TraceFormat(
    name="Perfetto",
    version=1 + COLUMNS,
    file_names=tuple(f"*{ending}" for ending in _ENDINGS),
    recognises=_recognised,
    reader=_reader,
    a_file=".pftrace of torch",
    others=".pftrace files",
    is_less=True,
)
"""Of the same window, JSON says when kernels ended, and more of copies; so it is preferred."""
