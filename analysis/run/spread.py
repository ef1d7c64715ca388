"""Runs too large for one process: large tables stay with the process that read them, or travel as recordings.

Each file is read by some process, which returns what concerns the whole run, and a recording of the rest, some hundred
times smaller than the trace. From recordings, the tables of a rank are made again wherever they are needed next. So
the memory of this process grows with calls, not with kernels.
"""

from __future__ import annotations

import logging
import pickle
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import pandas as pd

from ..core.escaping import encodable
from ..errors import AnalysisError
from ..formats.recordings.content import TraceSource, packed, recording_of
from ..formats.recordings.entry import RECORDING
from ..formats.recordings.reader import packed_content, recorded_in
from ..reading.cache import Cache
from ..reading.executor import Executor, results
from ..reading.one_file import read_file
from ..reading.trace_input import TraceInput
from ..recording.options import Progress, ReadOptions
from ..recording.recording import RawTrace
from .captures import GraphCaptures
from .chosen_steps import of_steps
from .cpu_activities import with_activities
from .event_tables import EventTables, RanInCycle, marked_steps, ran_in_cycles
from .file_tables import Placed, TraceFile, joined_tables, trace_file

_LOG = logging.getLogger("commtrace.analysis")
_T = TypeVar("_T")
_P = ParamSpec("_P")


class KeptFile(NamedTuple):
    """A file without its tables: a summary of its devices' activity, and a recording of everything.

    If only some steps are read, `recording` is the file with its tables, pickled.
    """

    file: TraceFile
    ran: tuple[RanInCycle, ...]
    recording: bytes


def read_and_kept(
    trace: TraceInput, options: ReadOptions, cache: Cache | None, progress: Progress | None
) -> tuple[KeptFile, TraceFile]:
    """Read a file: what is kept of it, and the file with its tables. Raises TraceError."""
    raw, recording = _read(trace, options, cache, progress)
    file = with_activities(trace_file(trace.path, raw, options))
    if options.steps or options.last:
        return cut_and_kept(file, options)
    return _kept(file, recording), file


def cut_and_kept(whole: TraceFile, options: ReadOptions) -> tuple[KeptFile, TraceFile]:
    """What is kept of a file that is cut to the chosen steps, and the cut file with its tables."""
    file = of_steps(whole, options)
    # Tables of few steps are small, and need not be cut out of the recording again for every look at them.
    return _kept(file, pickle.dumps(file, protocol=5)), file


def _kept(file: TraceFile, recording: bytes) -> KeptFile:
    ran = ran_in_cycles(file.ran, {(0, 0): marked_steps(file.annotation_rows)})
    return KeptFile(file.without_tables(), tuple(ran), recording)


def _read(
    trace: TraceInput, options: ReadOptions, cache: Cache | None, progress: Progress | None
) -> tuple[RawTrace, bytes]:
    """The content of a file, and a recording of it: the file itself, if it is one."""
    path, one = trace.path, trace.format
    if one is RECORDING and not options.verify:
        data = packed_content(path, options.budget())
        recorded = recorded_in(path, data, options)
        return recorded.trace, data if recorded.is_all else recording_of(recorded.content, how="fast")
    raw = read_file(trace, options, cache, progress)
    source = TraceSource(encodable(path.name), one.name, one.version, comm_names=options.comm_names)
    return raw, packed(raw, source, [], how="fast")


class _Piece(NamedTuple):
    """The recording of a file with its place in the run."""

    rank: int
    cycle: int
    path: Path
    recording: bytes
    options: ReadOptions

    @property
    def is_cut(self) -> bool:
        """Whether it has some steps only."""
        return bool(self.options.steps or self.options.last)


class SpreadTables:
    """Tables of a run that are made rank by rank."""

    def __init__(
        self, kept: Mapping[Path, KeptFile], placed: Iterable[Placed], options: ReadOptions, executor: Executor
    ) -> None:
        """Keep the parts `kept` of files read with `options`; `executor` makes their tables."""
        self.executor = executor
        options = replace(options, keep_going=True, memory_gb=None)
        self._pieces: dict[int, list[_Piece]] = {}
        ran: list[RanInCycle] = []
        for file, rank, cycle in placed:
            part = kept[file.path]
            self._pieces.setdefault(rank, []).append(_Piece(rank, cycle, file.path, part.recording, options))
            ran += [one._replace(rank=rank, cycle=cycle) for one in part.ran]
        self.ran = tuple(ran)

    @cached_property
    def whole(self) -> EventTables:
        """All tables in this process, which takes the memory that spreading saves."""
        return _tables([piece for own in self._pieces.values() for piece in own])

    def taken(self) -> EventTables:
        """All tables, moved into this process: each recording goes as soon as it is read, and nothing stays here."""
        pieces = deque(piece for own in self._pieces.values() for piece in own)
        self._pieces.clear()
        return _tables(pieces.popleft() for _ in range(len(pieces)))

    def of_rank(self, rank: int) -> EventTables:
        """The tables of one rank, made in this process."""
        return _tables(self._pieces[rank])

    def by_rank(
        self, work: Callable[Concatenate[EventTables, _P], _T], given: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[_T]:
        """Yield the result of `work`, a module's function, for the tables and arguments of each rank."""
        calls = ((work, self._pieces[rank], arguments) for rank, arguments in given.items())
        for number, result in enumerate(results(self.executor, _on_rank, calls), 1):
            _LOG.debug("%d of %d ranks", number, len(given))
            yield result

    @cached_property
    def ranks(self) -> list[int]:
        """Ranks whose devices did anything, ascending."""
        return sorted({ran.rank for ran in self.ran})

    def of_each_rank(
        self,
        makes: Sequence[Callable[..., Any]],
        at_rank: Mapping[str, Callable[..., Any]],
        given: Mapping[str, Any],
    ) -> Iterator[list[Any]]:
        """Yield what each of `makes`, functions of modules, makes of each rank: a result, or an AnalysisError.

        By the names of its parameters it gets the tables of the rank, what functions `at_rank` make of these, and what
        is `given`; of tables, the rank's rows.
        """
        _LOG.info("looking at what each rank did")
        own = {name: rows_of_ranks(one, self.ranks) for name, one in given.items()}
        given_to = {rank: (makes, at_rank, {name: of[rank] for name, of in own.items()}) for rank in self.ranks}
        return self.by_rank(made_of, given_to)


def rows_of_ranks(given: Any, ranks: Collection[int]) -> Mapping[int, Any]:
    """The rows of each rank, by rank; what is no table of ranks is the same for all."""
    if isinstance(given, GraphCaptures):
        return {rank: given.of_rank(rank) for rank in ranks}
    if not isinstance(given, pd.DataFrame) or "rank" not in given:
        return dict.fromkeys(ranks, given)
    rows = given.groupby("rank").indices
    return {rank: given.iloc[rows.get(rank, [])] for rank in ranks}


def made_of(
    tables: EventTables,
    makes: Sequence[Callable[..., Any]],
    at_rank: Mapping[str, Callable[..., Any]],
    given: Mapping[str, Any],
) -> list[Any]:
    """What each of `makes` makes of these tables, as in `SpreadTables.of_each_rank`."""
    made = dict(given)

    def made_by(function: Callable[..., Any]) -> Any:
        return function(**{name: needed(name) for name in signature(function).parameters})

    def needed(name: str) -> Any:
        if name not in made:
            made[name] = made_by(at_rank[name]) if name in at_rank else getattr(tables, name)
        return made[name]

    def found(make: Callable[..., Any]) -> Any:
        try:
            return made_by(make)
        except AnalysisError as err:  # others may be asked for all the same
            return err

    return list(map(found, makes))


def _on_rank(work: Callable[..., _T], pieces: list[_Piece], arguments: tuple[Any, ...]) -> _T:
    # With details, annotations of calls say what CPUs did meanwhile.
    with_calls = any(piece.options.details for piece in pieces)
    files = [_placed(piece, with_calls=with_calls) for piece in pieces]
    whole = tuple(one.file for one, piece in zip(files, pieces, strict=True) if not piece.is_cut)
    return work(replace(joined_tables(files), whole_files=whole), *arguments)


def _tables(pieces: Iterable[_Piece]) -> EventTables:
    """The tables of these files."""
    return joined_tables(map(_placed, pieces))


def _placed(piece: _Piece, *, with_calls: bool = True) -> Placed:
    """The file; `with_calls` false leaves out that from which calls are made."""
    return Placed(_file_in(piece, with_calls), piece.rank, piece.cycle)


def _file_in(piece: _Piece, with_calls: bool) -> TraceFile:
    if piece.is_cut:
        file: TraceFile = pickle.loads(piece.recording)  # noqa: S301 - from `read_and_kept`, in this run
        return file
    raw = recorded_in(piece.path, piece.recording, piece.options, with_calls=with_calls).trace
    return with_activities(trace_file(piece.path, raw, piece.options))
