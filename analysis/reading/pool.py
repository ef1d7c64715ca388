"""Many trace files -> what was read from each, in their order, using all cores.

An executor reads whole files, and returns what is made of each. Without one, processes of this machine read, and return
arrays: if there are more cores than files, or than files left, large ones are read in parts
(docs/design/0010), and reading begins when a `Reading` is made, so that the caller can import pandas in the meantime.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ...contract.recording import RECORDING_SUFFIX
from ..core.budget import GB, Budget, default_limit_bytes
from ..core.places.place import address, fetch_begins, is_remote
from ..core.process import keep_freed_memory
from ..errors import TooLarge, TraceError
from ..formats.format import Reader
from ..formats.registry import format_named_like
from ..recording.options import Progress, ReadOptions
from ..recording.recording import RawTrace
from ..recording.row_bytes import tables_bytes
from .cache import Cache, Slot
from .executor import Executor, ProcessCall, Processes, cores, results
from .one_file import file_at, part_at, read_file, whole_at
from .spawn import Worker
from .trace_input import TraceInput
from .worker import Answer

_LOG = logging.getLogger("commtrace.reading")
_T = TypeVar("_T")
ReadWhole = Callable[[TraceInput, ReadOptions, Cache | None, Progress | None], Any]
"""Reads a file as a whole, as `one_file.read_file` does: something with a `needed_bytes`, or raises TraceError."""
_PACKED = 15  # how many times larger a packed file is than it looks
_RECORDED = 300  # how many times larger than a recording its trace is
# A worker that is done early takes another part. Parts of a plain file are limited, so that copies of what is found in
# them never exist in several places for long.
_PARTS_PER_WORKER = 4
_LARGEST_PART_BYTES = 64 << 20
# Each part of a packed file costs unpacking everything before it: twice as many would save only a fifth of the time.
_MOST_PACKED_PARTS = 8


_JSON_OF_LIMIT = 4
"""Tables with details take at most this many times as many bytes of memory as their JSON has."""
_LEAST_PROCESSES = 4
"""What fewer would do, this process does at once: rank by rank takes 1.3 times the CPU time, and two took as long."""


def executor_of_ranks(traces: Sequence[TraceInput], options: ReadOptions) -> Processes | None:
    """The processes that make the tables of ranks: one for each `ranks_bytes` to read, if there are workers and files.

    None for fewer than four: then this process makes all tables at once, as it does of files that only it can read.
    """
    if len(traces) < 2 or not all(one.is_for_all for one in traces) or any(map(_calls_in, traces)):
        return None
    fetch_begins(one.path for one in traces)
    each_bytes = options.sizes.ranks_bytes
    if options.details and options.limit_bytes is not None:
        each_bytes = min(each_bytes, options.limit_bytes // _JSON_OF_LIMIT // _LEAST_PROCESSES)
    wanted = sum(map(_json_bytes, traces)) // max(1, each_bytes)
    if wanted < _LEAST_PROCESSES:
        return None
    workers = min(wanted, len(traces), cores() if options.workers is None else options.workers)
    return Processes(workers if workers > 1 else 0)


def check_calls(traces: Sequence[TraceInput], options: ReadOptions) -> None:
    """Raises TooLarge for logs that hold more calls than fit into memory, before any is read."""
    calls = sum(map(_calls_in, traces))
    limit_bytes = default_limit_bytes() if options.limit_bytes is None else options.limit_bytes
    if calls:
        folder = traces[0].path.parent
        what = f"{folder}: more than {calls:,} calls (`commtrace bandwidth --by time` reads logs of any size)"
        Budget(limit_bytes).check(what, tables_bytes(activities=calls, calls=calls))


def _calls_in(trace: TraceInput) -> int:
    """How many calls are in a file of a format that consists of calls, at least; 0 for those of others."""
    one = format_named_like(trace.path.name)
    return _json_bytes(trace) // one.call_bytes if one is not None and one.call_bytes else 0


def _json_bytes(trace: TraceInput) -> int:
    times = _RECORDED if trace.path.suffix == RECORDING_SUFFIX else _PACKED if trace.is_gzip else 1
    return trace.size_bytes * times


@dataclass
class _File:
    """A file, and what is known about it so far."""

    trace: TraceInput
    number: int
    read: ReadWhole = read_file
    parts: int = 1
    slot: Slot | None = None
    position: int = 0
    found: Any = None
    is_read: bool = False
    _positions: dict[int, float] = field(default_factory=dict)
    _early: dict[int, Any] = field(default_factory=dict)
    _joining: Any = None

    @property
    def is_packed(self) -> bool:
        """Whether it is gzip. Only a plain file is opened to find out: anything else can be read only once."""
        return self.trace.is_for_all and self.trace.is_gzip

    @cached_property
    def reader(self) -> Reader:
        """The reader of its format."""
        return self.trace.format.reader()

    @property
    def weight_bytes(self) -> int:
        """Estimated size, unpacked, in bytes."""
        return self.trace.size_bytes * (_PACKED if self.is_packed else 1)

    def tell(self, part: int, position: int) -> None:
        """Note that a process has read up to this byte."""
        share = self.trace.size_bytes / self.parts
        self._positions[part] = min(max(position - share * part, 0), share)
        self.position = max(self.position, int(sum(self._positions.values())))

    def be_whole(self) -> None:
        """Read it as a whole from now on."""
        self.parts = 1
        self._positions.clear()
        self._forget_parts()

    def end(self, found: Any) -> None:
        """Mark the file as read."""
        self.found, self.position, self.is_read = found, self.trace.size_bytes, True
        self._forget_parts()

    def _forget_parts(self) -> None:
        self._early.clear()
        self._joining = None

    def add(self, part: int, found: Any, options: ReadOptions) -> bool:
        """A part was read; False if all parts are there, but cannot be joined."""
        in_parts = self.reader.parts
        assert in_parts is not None
        self._joining = self._joining or in_parts.joining()
        self._early[part] = found
        while self._joining.parts in self._early:
            self._joining.add(self._early.pop(self._joining.parts))
        if self._joining.parts == self.parts:
            try:
                trace = in_parts.joined(self.trace.path, self._joining, options)
            except TraceError as err:
                _LOG.debug("%r: its parts cannot be joined: %r", str(self.trace.path), str(err))
                return False
            if _LOG.isEnabledFor(logging.INFO):
                how = "%r: read as %s, %d bytes, in %d parts"
                _LOG.info(how, str(self.trace.path), self.trace.format.name, self.trace.size_bytes, self.parts)
            if self.slot:
                self.slot.keep(trace)
            self.end(trace)
        return True


class Reading:
    """Trace files being read. Iterate over it once."""

    def __init__(
        self,
        traces: Sequence[TraceInput],
        options: ReadOptions,
        executor: Executor | None = None,
        reads: Sequence[ReadWhole] | None = None,
    ) -> None:
        """Let the `executor` read, once results are asked for, or begin to read in processes of this machine.

        `reads` say what is made of each file as a whole, arrays if not given. Without an executor and with one worker,
        or little to read, everything happens in this process. A cache is used for large files only. What is read must
        not need more memory than the options allow.
        """
        keep_freed_memory()
        self.traces, self.paths = list(traces), [one.path for one in traces]
        self._cache = None if options.verify else Cache.at(options.cache)
        limit_gb = default_limit_bytes() / GB if options.memory_gb is None else options.memory_gb
        self.options = replace(options, memory_gb=limit_gb, cache=False)
        self._budget = self.options.budget()
        self.executor, self.processes = executor, list[Worker]()
        fetch_begins(self.paths)
        reads = reads or [read_file] * len(self.traces)
        self._files = [_File(one, number, read) for number, (one, read) in enumerate(zip(traces, reads, strict=True))]
        self._calls: dict[ProcessCall[Any], tuple[_File, int, int]] = {}
        self._own = Processes(0)
        self._elsewhere = self._read_elsewhere()
        if executor is None:
            self._begin()

    def _begin(self) -> None:
        """Let processes of this machine read, which end as soon as nothing is left for them."""
        workers = cores() if self.options.workers is None else self.options.workers
        for file in self._files:
            _ = file.reader  # imported once, before this process is copied
        wanted = list(self._divided(workers))
        self._own = Processes(min(workers, len(wanted)))
        self._log_plan(min(workers, len(wanted)))
        try:
            for file, part in wanted:
                self._submit(file, part)
            self._own.close()
        except BaseException:
            self._end()
            raise
        self.processes = list(self._own.workers)

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def total_bytes(self) -> int:
        """The size of all files on disk."""
        return sum(one.size_bytes for one in self.traces)

    def _cache_for(self, file: _File) -> Cache | None:
        if self._cache is None or not self._cache.keeps or file.weight_bytes >= self.options.sizes.cache_bytes:
            return self._cache
        return Cache(keeps=False)

    def within_limit(self, path: Path, found: _T, needed_bytes: int) -> _T | TooLarge:
        """What was read from a file, if there is memory for it and all files before it."""
        try:
            self._budget.draw(f"{path}: with all files before it", needed_bytes)
        except TooLarge as err:
            return err
        return found

    def _log_plan(self, processes: int) -> None:
        if _LOG.isEnabledFor(logging.INFO):
            how = f"{processes} other processes" if processes else "this process"
            _LOG.info("reading %d files, %d bytes, in %s", len(self._files), self.total_bytes, how)
            for file in self._files:
                if file.parts > 1:
                    _LOG.info("%r: to be read in %d parts", str(file.trace.path), file.parts)

    def _divided(self, workers: int) -> Iterator[tuple[_File, int]]:
        """The files for other processes to read, each with the numbers of its parts; none if it is not worth it."""
        regular = [file for file in self._files if file.trace.is_for_all]
        weight_bytes = sum(file.weight_bytes for file in regular)
        if workers < 2 or weight_bytes < self.options.sizes.process_bytes or not sys.executable:
            return
        last = len(regular) % workers or workers  # files that are left when all others are read
        for file in regular[-last:]:
            self._divide(file, workers // last)
        yield from ((file, part) for file in regular if file.found is None for part in range(file.parts))

    def _submit(self, file: _File, part: int, *, is_next: bool = False) -> None:
        """Submit a file, or a part of it, to a process."""
        where, tell = address(file.trace.path), partial(self._tell, file, part, file.parts)
        if file.parts > 1:
            arguments: tuple[Any, ...] = (part_at, where, self.options, part, file.parts)
        else:
            arguments = (file_at, where, self.options, self._cache_for(file))
        self._calls[self._own.submit(*arguments, progress=tell, is_next=is_next)] = file, part, file.parts

    def _tell(self, file: _File, part: int, parts: int, position: int) -> None:
        if parts == file.parts:
            file.tell(part, position)

    @property
    def files_read(self) -> int:
        """How many of the files are read, or found to be useless."""
        return sum(file.is_read for file in self._files)

    def _divide(self, file: _File, workers: int) -> None:
        """Decide in how many parts this many workers read a file, unless the cache has it."""
        wanted = max(workers * _PARTS_PER_WORKER, file.trace.size_bytes // _LARGEST_PART_BYTES)
        if file.is_packed:
            # Each would fetch those before it.
            wanted = 1 if is_remote(file.trace.path) else min(workers, _MOST_PACKED_PARTS)
        parts = min(wanted, file.weight_bytes // self.options.sizes.part_bytes)
        if workers < 2 or parts < 2 or self.options.verify or file.reader.parts is None:
            return
        file.parts = parts
        cache = self._cache_for(file)
        file.slot = cache.slot(file.trace, self.options) if cache else None
        cached = file.slot.load() if file.slot else None
        if cached is not None:
            file.end(cached)

    def _end(self) -> None:
        for file in self._files:
            file.found = None
        self._elsewhere.close()
        self._own.cancel()

    def __iter__(self) -> Iterator[RawTrace | TraceError]:
        """What was read from each file, or why it cannot be used, in the order of the files."""
        return self.results(None)

    def results(self, progress: Progress | None) -> Iterator[Any]:
        """Yield what was made of each file, its arrays or what `reads` make, or a TraceError; and report progress."""
        for file in self._files:
            if self.executor is not None and file.trace.is_for_all:
                file.end(found := next(self._elsewhere))
                self._report(progress)
            else:
                found = self._wait_for(file, progress)
            file.found = None
            if isinstance(found, RawTrace):
                found = self.within_limit(file.trace.path, found, found.needed_bytes)
            yield found
        for _ in self._elsewhere if self.executor is not None else ():  # so it ends, and cancels nothing
            pass

    def _read_elsewhere(self) -> Generator[Any, None, None]:
        """Yield what the executor makes of each file, or its error."""
        assert self.executor is not None
        files = (file for file in self._files if file.trace.is_for_all)
        calls = ((one.trace.path.absolute(), one.read, self.options, self._cache_for(one)) for one in files)
        yield from results(self.executor, whole_at, calls)

    def give_back(self, freed_bytes: int) -> None:
        """Return what was cut away of a file to the memory that others may use."""
        self._budget.give_back(freed_bytes)

    def _wait_for(self, file: _File, progress: Progress | None) -> Any:
        while file.found is None and file.trace.is_for_all and self._own.is_busy:
            for call in self._own.wait():
                self._take(call, *self._calls.pop(call))
            self._report(progress)
        if file.found is None:  # there are no workers, or they were killed
            if self.processes and file.trace.is_for_all:
                _LOG.info("%r: no other process read it, so this one does", str(file.trace.path))
            file.end(self._read_here(file, progress))
        self._report(progress)
        assert file.found is not None
        return file.found

    def _report(self, progress: Progress | None) -> None:
        if progress:
            progress(sum(file.position for file in self._files))

    def _read_here(self, file: _File, progress: Progress | None) -> Any:
        file.be_whole()

        def tell(position: int) -> None:
            file.tell(0, position)
            self._report(progress)

        try:
            return file.read(file.trace, self.options, self._cache_for(file), tell)
        except TraceError as err:
            return err

    def _take(self, call: ProcessCall[Any], file: _File, part: int, parts: int) -> None:
        """Take the result of reading a file, or a part of it."""
        if parts != file.parts:
            return  # a part of a file that is now read as a whole
        if call.answer is Answer.result:
            if parts == 1:
                file.end(call.value)
            elif not self._add(file, part, call):
                self._undivide(file)
        elif isinstance(call.value, TraceError):
            if parts == 1:
                file.end(call.value)
            else:
                self._undivide(file)
        # Otherwise it is read here, once it is waited for and nobody is at work.

    def _add(self, file: _File, part: int, call: ProcessCall[Any]) -> bool:
        """Add a part to a file; False if the file cannot be read in parts."""
        in_parts = file.reader.parts
        assert in_parts is not None
        found, call.value = call.value, None  # which is not to be kept twice
        # The file may have been replaced by one of another format.
        return isinstance(found, in_parts.part) and file.add(part, found, self.options)

    def _undivide(self, file: _File) -> None:
        """Read a file as a whole, and next, because its parts could not be used."""
        _LOG.info("%r: cannot be read in parts, so it is read as a whole", str(file.trace.path))
        file.be_whole()
        for call in [call for call, (of, _, _) in self._calls.items() if of is file]:
            self._own.withdraw(call)
        self._submit(file, 0, is_next=True)
