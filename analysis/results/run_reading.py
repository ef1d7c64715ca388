"""Read a run: of each file its calls are made, and what its devices did, wherever it is read; then the run of all.

The tables of files stay in this process. Where an executor reads, they stay there, and what comes back is what concerns
all ranks together: `run.spread` says what happens to the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..errors import ClusterError, TooLarge, TraceError
from ..reading.cache import Cache
from ..reading.pool import Reading
from ..reading.trace_input import TraceInput
from ..recording.header import ProcessGroup
from ..recording.options import Progress, ReadOptions
from ..recording.recording import NUMBER_BYTES
from ..run.file_tables import TraceFile, joined_tables
from ..run.run import Run, file_of_arrays, joined_run, summable
from ..run.spread import KeptFile, SpreadTables, cut_and_kept, read_and_kept
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

    @property
    def needed_bytes(self) -> int:
        """Upper bound of the memory that it takes, in bytes."""
        kept_bytes = len(self.kept.recording) + _FILE_BYTES
        if self.made is None:
            return kept_bytes
        seen = self.made.devices.values()
        spans = [*(profile.exposed for one in seen for profile in one.cycles), *(one.idle for one in seen)]
        spans_bytes = 2 * NUMBER_BYTES * sum(len(one.starts) for one in spans)
        return kept_bytes + spans_bytes + _CALL_BYTES * (self.made.calls.rows + self.made.pending.rows)


def _check_part(path: Path, part: object) -> None:
    """Raise ClusterError if a worker returned anything but what it read of this file."""
    read = part.kept.file.path if isinstance(part, ReadPart) and isinstance(part.kept, KeptFile) else None
    if read is None or read.absolute() != path.absolute():
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


def read_for_run(
    trace: TraceInput,
    options: ReadOptions,
    cache: Cache | None,
    progress: Progress | None,
    at_hand: ReadPart | None = None,
) -> ReadPart:
    """Read what a run needs from a file, unless that is `at_hand`. Raises TraceError."""
    if at_hand is not None:
        return at_hand
    kept, file = read_and_kept(trace, options, cache, progress)
    return ReadPart(kept, of_file(file))


def cut_part(file: TraceFile, steps: tuple[int, ...]) -> ReadPart:
    """What reading a file gives if only these of its steps are chosen."""
    kept, cut = cut_and_kept(file, ReadOptions(steps=steps))
    return ReadPart(kept, of_file(cut))


def read_run(paths: Sequence[Path], reading: Reading, progress: Progress | None) -> ReadRun:
    """Make the run from files that are being read, found at `paths`. Raises AnalysisError."""
    kept: dict[Path, KeptFile] = {}
    made: dict[Path, OfFile | None] = {}
    executor = reading.executor

    def here() -> Iterator[TraceFile | TraceError]:
        for path, found in zip(reading.paths, reading.results(progress), strict=True):
            file = file_of_arrays(reading, path, found)
            if not isinstance(file, TraceError):
                made[file.path] = of_file(file)
            yield file

    def elsewhere() -> Iterator[TraceFile | TraceError]:
        for part in made_elsewhere(reading, progress):
            if isinstance(part, TraceError):
                yield part
                continue
            kept[part.kept.file.path], made[part.kept.file.path] = part
            yield part.kept.file

    if executor is None:
        run = joined_run(paths, summable(here()), joined_tables, reading.options)
    else:
        spread = partial(SpreadTables, kept, options=reading.options, executor=executor)
        run = joined_run(paths, summable(elsewhere()), spread, reading.options)
    return ReadRun(run, early_of(run, made))


def made_elsewhere(reading: Reading, progress: Progress | None) -> Iterator[ReadPart | TraceError]:
    """Yield what was made of each file elsewhere, or its error, in order. Raises ClusterError."""
    known: dict[Groups, Groups] = {}
    for path, part in zip(reading.paths, reading.results(progress), strict=True):
        if isinstance(part, TraceError):
            yield part
            continue
        _check_part(path, part)
        part = reading.within_limit(path, part, part.needed_bytes)
        yield part if isinstance(part, TooLarge) else _found_at(path, part, known)
