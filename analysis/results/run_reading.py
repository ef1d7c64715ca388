"""Read a run: of each file its calls are made, and what its devices did, wherever it is read; then the run of all.

The tables of files stay in this process, or where executors are: then what comes back is what concerns all ranks
together, and `run.spread` says what happens to the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..errors import ClusterError, TooLarge, TraceError
from ..reading.cache import Cache
from ..reading.executor import Executor, results
from ..reading.pool import Files, Reading
from ..reading.trace_input import TraceInput
from ..recording.header import ProcessGroup
from ..recording.options import Progress, ReadOptions
from ..recording.recording import NUMBER_BYTES
from ..run.event_tables import RunTables
from ..run.file_tables import Placed, TraceFile, joined_tables
from ..run.run import Run, files_in, joined_run, summable
from ..run.spread import KeptFile, SpreadTables, read_and_kept
from .of_files import Early, OfFile, early_of, of_file

_CALL_BYTES, _FILE_BYTES = 2_000, 20_000  # a call in all tables, and whatever else a file leaves


Groups = tuple[ProcessGroup, ...]


class ReadRun(NamedTuple):
    """A run, and what was made of its files while others were being read; None where that needs several files."""

    run: Run
    early: Early | None


class ReadPart(NamedTuple):
    """What a process keeps of a file, and what it made of it."""

    kept: KeptFile
    made: OfFile | None


class SpreadReading(Files):
    """Files being read by an executor, which is kept for later work on the tables; starts with the first part."""

    def __init__(
        self,
        traces: Sequence[TraceInput],
        options: ReadOptions,
        executor: Executor,
        kept: Mapping[Path, bytes] | None = None,
    ) -> None:
        """Of files that were read before, what was `kept` is read."""
        super().__init__(traces, options)
        self.executor, self._kept, self._read = executor, kept or {}, dict[Path, KeptFile]()
        self.files_read = 0

    def files(self, progress: Progress | None) -> Iterator[tuple[TraceFile, OfFile | None] | TraceError]:
        """Yield each file without its tables and what was made of it, or its error, in order."""
        calls = (
            (one.path.absolute(), self.options, self._cache_for(one.size_bytes), self._kept.get(one.path))
            for one in self.traces
        )
        read_bytes = 0
        known: dict[Groups, Groups] = {}
        for number, part in enumerate(results(self.executor, read_for_run, calls)):
            self.files_read, read_bytes = number + 1, read_bytes + self.traces[number].size_bytes
            if progress is not None:
                progress(read_bytes)
            if isinstance(part, TraceError):
                yield part
                continue
            _check_part(self.paths[number], part)
            part = self._within_limit(self.paths[number], part, _needed_bytes(part))
            if isinstance(part, TooLarge):
                yield part
                continue
            kept, made = _found_at(self.paths[number], part, known)
            self._read[kept.file.path] = kept
            yield kept.file, made

    def tables(self, placed: list[Placed]) -> SpreadTables:
        """The tables of these files, made rank by rank."""
        read, self._read = self._read, {}  # which is as large as the recordings, and nobody needs twice
        return SpreadTables(read, placed, self.options, self.executor)


def _check_part(path: Path, part: object) -> None:
    """Raise ClusterError if a worker returned anything but what it read of this file."""
    read = part.kept.file.path if isinstance(part, ReadPart) and isinstance(part.kept, KeptFile) else None
    if read != path.absolute():
        told = type(part).__name__ if read is None else f"what it read of {read}"
        raise ClusterError(
            f"Dask: a worker was to read {path}, and returned {told}; start the workers again, with the same commtrace"
        )


def _found_at(path: Path, part: ReadPart, known: dict[Groups, Groups]) -> ReadPart:
    """The part with the caller's path of the file, which other processes may not know.

    Large groups are listed by all of their ranks: of lists that are equal, the one that is `known` is kept.
    """
    header = part.kept.file.header
    groups = known.setdefault(header.process_groups, header.process_groups)
    file = replace(part.kept.file, path=path, header=msgspec.structs.replace(header, process_groups=groups))
    made = None if part.made is None else part.made._replace(groups=groups)
    return ReadPart(part.kept._replace(file=file), made)


def _needed_bytes(part: ReadPart) -> int:
    kept_bytes = len(part.kept.recording) + _FILE_BYTES
    if part.made is None:
        return kept_bytes
    seen = part.made.devices.values()
    spans = [*(profile.exposed for one in seen for profile in one.cycles), *(one.idle for one in seen)]
    spans_bytes = 2 * NUMBER_BYTES * sum(len(one.starts) for one in spans)
    return kept_bytes + spans_bytes + _CALL_BYTES * (part.made.calls.rows + part.made.pending.rows)


def read_for_run(
    path: Path, options: ReadOptions, cache: Cache | None, before: bytes | None = None
) -> ReadPart | TraceError:
    """Read what a run needs of a file, or of what was kept of it `before`; or return its error."""
    try:
        kept, file = read_and_kept(path, options, cache, before)
    except TraceError as err:
        return err
    return ReadPart(kept, of_file(file))


def read_run(paths: Sequence[Path], reading: Reading | SpreadReading, progress: Progress | None) -> ReadRun:
    """Make the run from files that are being read, found at `paths`. Raises AnalysisError."""
    made: dict[Path, OfFile | None] = {}
    parts: Iterator[tuple[TraceFile, OfFile | None] | TraceError]
    tables: Callable[[list[Placed]], RunTables]
    if isinstance(reading, SpreadReading):
        parts, tables = reading.files(progress), reading.tables
    else:
        read = files_in(reading, progress)
        parts = (file if isinstance(file, TraceError) else (file, of_file(file)) for file in read)
        tables = joined_tables

    def files() -> Iterator[TraceFile | TraceError]:
        for found in parts:
            if isinstance(found, TraceError):
                yield found
                continue
            file, made[file.path] = found
            yield file

    run = joined_run(paths, summable(files()), tables, reading.options)
    return ReadRun(run, early_of(run, made))
