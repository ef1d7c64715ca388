"""Register what rocprofv3 writes: databases of rocpd, which is its usual format, and JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.tables.events import COLUMNS
from ...recording.shared_files import file_of
from ..format import RanksInFiles, Reader, TraceFormat
from ..others import SQLITE

_DATABASES = ("*_results.db", "rocpd-*.db")
_IS_DATABASE = re.compile(r"_results\.db\Z|\Arocpd-.*\.db\Z|\.rpd\Z")
_DOCUMENTS = ("*_results.json", "*_results.json.gz")
_IS_DOCUMENT = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:')


def _reader() -> Reader:
    from .reader import read_rocprof

    return Reader(read=read_rocprof)


def _ranks(paths: Sequence[Path]) -> RanksInFiles:
    from .ranks import processes_as_ranks

    return processes_as_ranks(paths)


def _is_database(path: Path, begin: Callable[[], bytes]) -> bool:
    """Whether it is a database of rocpd; by name as well, so that damaged ones get fitting errors."""
    if _IS_DATABASE.search(file_of(path).name.lower()):
        return True
    if not begin().startswith(SQLITE):
        return False
    from .database import is_rocpd

    return is_rocpd(file_of(path))


def _is_document(path: Path, begin: Callable[[], bytes]) -> bool:  # noqa: ARG001 - of any name
    return _IS_DOCUMENT.match(begin()) is not None


ROCPD = TraceFormat(
    name="rocpd",
    version=1 + COLUMNS,
    file_names=_DATABASES,
    recognises=_is_database,
    reader=_reader,
    ranks=_ranks,
    a_file="database of rocprofv3",
    others="databases of rocprofv3",
    also_written=(*_DOCUMENTS, "*_results.pftrace"),
    journals=("-wal", "-journal"),
    is_less=True,
)
ROCPROF_JSON = TraceFormat(
    name="rocprofv3",
    version=1 + COLUMNS,
    file_names=_DOCUMENTS,
    recognises=_is_document,
    reader=_reader,
    ranks=_ranks,
    a_file="JSON of rocprofv3",
    others="JSON files of rocprofv3",
    is_less=True,
)
"""Of the same run, traces of torch say more: sizes and groups of collectives."""
