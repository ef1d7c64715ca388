"""Register the format of JAX and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.tables.events import COLUMNS
from ...recording.shared_files import file_of
from ..format import RanksInFiles, Reader, TraceFormat
from ..others import begins_like_xspace

_ENDINGS = (".xplane.pb", ".xplane.pb.gz")


def _reader() -> Reader:
    from .reader import read_xplane

    return Reader(read=read_xplane)


def _ranks(paths: Sequence[Path]) -> RanksInFiles:
    from .ranks import devices_as_ranks

    return devices_as_ranks(paths)


def _recognised(path: Path, begin: Callable[[], bytes]) -> bool:
    """Whether it is an XSpace; by name as well, so that damaged files get fitting errors."""
    return file_of(path).name.lower().endswith(_ENDINGS) or begins_like_xspace(begin())


XPLANE = TraceFormat(
    name="XProf",
    version=1 + COLUMNS,
    file_names=tuple(f"*{ending}" for ending in _ENDINGS),
    recognises=_recognised,
    reader=_reader,
    ranks=_ranks,
    a_file="xplane.pb of JAX",
    others="xplane.pb files",
    also_written=("*.trace.json", "*.trace.json.gz", "perfetto_trace.json.gz"),
)
