"""Read a run too large for one process: each file is read, and its calls are made, in any process.

What comes back is what concerns all ranks together; see `run.spread` for what happens to the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..core.budget import GB, default_limit_bytes
from ..core.process import keep_freed_memory
from ..errors import ClusterError, TooLarge, TraceError
from ..metrics.device.breakdown import Devices
from ..reading.cache import Cache
from ..reading.executor import Executor, results
from ..reading.trace_input import TraceInput
from ..recording.header import ProcessGroup
from ..recording.options import Progress, ReadOptions
from ..recording.recording import NUMBER_BYTES
from ..run.file_tables import Placed, TraceFile
from ..run.run import Run, joined_run, summable
from ..run.spread import KeptFile, SpreadTables, read_and_kept
from .early_work import EarlyWork, SlimCalls, calls_of, devices_in, slim_calls

_CALL_BYTES, _FILE_BYTES = 2_000, 20_000  # a call in all tables, and whatever else a file leaves


Groups = tuple[ProcessGroup, ...]


class ReadPart(NamedTuple):
    """The result of a file."""

    kept: KeptFile
    found: SlimCalls | None
    devices: Devices | None


class SpreadReading:
    """Files being read by an executor, for a `with` block like `Reading`; starts with the first part."""

    def __init__(
        self,
        traces: Sequence[TraceInput],
        options: ReadOptions,
        executor: Executor,
        kept: Mapping[Path, bytes] | None = None,
    ) -> None:
        """Limit all results to the memory in the options. Of files that were read before, what was `kept` is read."""
        keep_freed_memory()
        limit_gb = default_limit_bytes() / GB if options.memory_gb is None else options.memory_gb
        self.paths, self.executor = [one.path for one in traces], executor
        self.options = replace(options, memory_gb=limit_gb, cache=False)
        self._kept = kept or {}
        self._cache = None if options.verify else Cache.at(options.cache)
        self._sizes = [one.size_bytes for one in traces]
        self.files_read = 0

    def __enter__(self) -> SpreadReading:
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the executor for later work on the tables."""

    @property
    def total_bytes(self) -> int:
        """Size of all files on disk, in bytes."""
        return sum(self._sizes)

    def parts(self, progress: Progress | None) -> Iterator[ReadPart | TraceError]:
        """Yield the result of each file, in order."""
        calls = (
            (path.absolute(), self.options, self._cache_of(n), self._kept.get(path))
            for n, path in enumerate(self.paths)
        )
        read_bytes = 0
        budget = self.options.budget()
        known: dict[Groups, Groups] = {}
        for number, part in enumerate(results(self.executor, read_for_run, calls)):
            self.files_read, read_bytes = number + 1, read_bytes + self._sizes[number]
            if progress is not None:
                progress(read_bytes)
            if isinstance(part, TraceError):
                yield part
                continue
            _check_part(self.paths[number], part)
            try:
                budget.draw(f"{self.paths[number]}: with all files before it", _needed_bytes(part))
            except TooLarge as err:
                yield err
                continue
            yield _found_at(self.paths[number], part, known)

    def _cache_of(self, number: int) -> Cache | None:
        if self._cache is None or self._sizes[number] >= self.options.sizes.cache_bytes:
            return self._cache
        return Cache(keeps=False)


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
    return part._replace(kept=part.kept._replace(file=file))


def _needed_bytes(part: ReadPart) -> int:
    calls = 0 if part.found is None else part.found.calls.rows + part.found.pending.rows
    devices = (part.devices or {}).values()
    seen = [*(profile.exposed for one in devices for profile in one.cycles), *(one.idle for one in devices)]
    spans_bytes = 2 * NUMBER_BYTES * sum(len(one.starts) for one in seen)
    return len(part.kept.recording) + spans_bytes + _CALL_BYTES * calls + _FILE_BYTES


def read_for_run(
    path: Path, options: ReadOptions, cache: Cache | None, before: bytes | None = None
) -> ReadPart | TraceError:
    """Read what a run needs of a file, or of what was kept of it `before`; or return its error."""
    try:
        kept, file = read_and_kept(path, options, cache, before)
        found = calls_of(file)
        return (
            ReadPart(kept, None, None) if found is None else ReadPart(kept, slim_calls(found), devices_in(file, found))
        )
    except TraceError as err:
        return err


def spread_run(paths: Sequence[Path], reading: SpreadReading, progress: Progress | None, early: EarlyWork) -> Run:
    """Make the run from files that are being read, found at `paths`; `early` gets their calls.

    Its tables are made rank by rank.
    """
    kept: dict[Path, KeptFile] = {}

    def files() -> Iterator[TraceFile | TraceError]:
        for part in reading.parts(progress):
            if isinstance(part, TraceError):
                yield part
                continue
            kept[part.kept.file.path] = part.kept
            early.keep(part.kept.file, part.found, part.devices)
            yield part.kept.file

    def tables(placed: list[Placed]) -> SpreadTables:
        return SpreadTables(kept, placed, reading.options, reading.executor)

    return joined_run(paths, summable(files()), tables, reading.options)
