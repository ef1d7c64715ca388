"""Bandwidth and waiting over time from logs of NCCL Inspector, in one pass and bounded memory.

All logs are read side by side: next is the one that others wait for, or the one of which least is read. No clock
decides that, so those of hosts may differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ...common.wording import counted
from ..core.arrays import Flags, Ints
from ..core.process import allow_open_files
from ..errors import DamagedTrace, NoTraces, TooLarge, TraceError
from ..formats.inspector.columns import SEND, LogBlock
from ..formats.inspector.log import LOG_BLOCK_BYTES, InspectorLog
from ..formats.inspector.reader import check_log, damage_in, notes_of
from ..metrics.over_time import GroupNames, OverTime
from ..recording.communicators import JobRanks, Shown, job_ranks
from ..recording.compression import packed_bytes
from ..tables.bandwidth_times import BANDWIDTH_TIMES
from .met import KIND_NAMES, met_collectives, met_messages
from .waiting_calls import (
    KIND_BITS,
    LANE_BITS,
    MOST_COMMUNICATORS,
    WaitingCalls,
    WaitingColumns,
    key_of,
    key_parts,
    runs_of,
)

_LOG = logging.getLogger("commtrace.reading")
_LATE_US = 1_000_000
_SLACK = 64
"""By so many numbers a log may be out of order."""


@dataclass
class _Group:
    """A communicator, and the logs that show each of its places."""

    id: str
    size: int
    members: set[tuple[int, int]] = field(default_factory=set)

    @property
    def is_whole(self) -> bool:
        """Whether all its ranks have been seen."""
        return len({place for _, place in self.members}) >= self.size


@dataclass
class _Stream:
    """A log being read. `reached` is the latest number by lane (of keys) and place.

    `took_us` is the sum of the durations of each of its communicators.
    """

    log: InspectorLog
    size: int
    blocks: Iterator[LogBlock]
    position: int = 0
    codes: list[int] = field(default_factory=list)
    reached: dict[tuple[int, int], int] = field(default_factory=dict)
    took_us: dict[int, float] = field(default_factory=dict)
    is_open: bool = True

    @property
    def is_written_late(self) -> bool:
        """Whether its calls took longer than writing them: then these are not the times of the calls."""
        return max(self.took_us.values(), default=0.0) > self.log.last_us - self.log.first_us + _LATE_US

    @property
    def part(self) -> float:
        """Fraction of the log that is read."""
        return self.position / self.size if self.is_open and self.size else 1.0


class LogsOverTime:
    """Logs being read; `table` when finished. Unusable logs are in `failed`, remarks in `notes`."""

    def __init__(
        self,
        paths: Sequence[Path],
        every_ns: int,
        *,
        keep_going: bool = False,
        most_waiting: int = 2_000_000,
        blocks_bytes: int = 64 << 20,
        least_block_bytes: int = 64 << 10,
    ) -> None:
        """Read nothing yet. With `keep_going`, unreadable lines are skipped, else they are errors.

        At most `most_waiting` calls wait until their collectives are complete; each takes some 60 bytes, and twice that
        for a moment. Of all logs together `blocks_bytes` of text are kept, but of each at least `least_block_bytes`.
        """
        self.paths = list(paths)
        self.failed: list[str] = []
        self.notes: list[str] = []
        self.files_read = 0
        self.total_bytes = sum(map(packed_bytes, paths))
        self._keep_going = keep_going
        self._over_time = OverTime(every_ns)
        self._most_waiting = most_waiting
        self._waiting = WaitingCalls(most_waiting, self._met)
        self._groups: list[_Group] = []
        self._ids: dict[str, int] = {}
        self._behind: tuple[int, tuple[int, int], int] | None = None
        self._damaged: set[int] = set()
        block_bytes = min(max(blocks_bytes // max(1, len(paths)), least_block_bytes), LOG_BLOCK_BYTES)
        self._streams = [self._opened(path, block_bytes) for path in paths]

    def _opened(self, path: Path, block_bytes: int) -> _Stream:
        stream = _Stream(InspectorLog(path, block_bytes), packed_bytes(path), iter(()))
        _LOG.info("%r: to be read as a log of NCCL Inspector, %d bytes", str(path), stream.size)

        def tell(position: int) -> None:
            stream.position = position

        stream.blocks = stream.log.blocks(tell)
        return stream

    def read(self, progress: Callable[[int], None] | None = None) -> None:
        """Read all logs; `progress` is called with the bytes read so far. Raises TraceError, NoTraces."""
        allow_open_files(len(self.paths))
        while (number := self._next()) is not None:
            block = self._block_of(self._streams[number])
            if block is not None and self._take(number, block):
                self._waiting.settle(self._is_over)
            if progress:
                progress(sum(each.position for each in self._streams))
        self._waiting.settle(lambda keys, _: np.ones(len(keys), dtype=bool))
        if not self._ids:
            raise NoTraces("no log could be used: " + "; ".join(self.failed))

    def _block_of(self, stream: _Stream) -> LogBlock | None:
        """The next block; None at the end, after closing the log. Raises TraceError."""
        log = stream.log
        try:
            block = next(stream.blocks, None)
            if log.broken_lines and not self._keep_going:
                raise DamagedTrace(
                    f"{log.path}: {damage_in(log)}; write it again, or leave these out with --keep-going"
                )
            if block is not None:
                return block
            check_log(log)
            if log.broken_lines:
                self.failed.append(f"{log.path}: {damage_in(log)}, and left out")
                self._damaged.update(stream.codes)
        except TraceError as err:
            if not self._keep_going:
                raise
            self.failed.append(str(err))
            self._damaged.update(stream.codes)
        stream.is_open, stream.position = False, stream.size
        self.files_read += 1
        return None

    def _next(self) -> int | None:
        """The log to read next: the one that many calls wait for, or the least read one."""
        if self._behind is not None:
            number, lane, wanted = self._behind
            stream = self._streams[number]
            if stream.is_open and stream.reached.get(lane, -1) < wanted:
                return number
            self._behind = None
        open_ones = [number for number, stream in enumerate(self._streams) if stream.is_open]
        return min(open_ones, key=lambda number: self._streams[number].part) if open_ones else None

    def _take(self, number: int, block: LogBlock) -> bool:
        """Add a block; return whether it is time to settle."""
        stream = self._streams[number]
        for one in stream.log.communicators[len(stream.codes) :]:
            code = self._ids.setdefault(one.id, len(self._ids))
            if code >= MOST_COMMUNICATORS:
                raise TooLarge(
                    f"{stream.log.path}: names more than {MOST_COMMUNICATORS:,} communicators with the others"
                )
            if code == len(self._groups):
                self._groups.append(_Group(one.id, one.size))
            self._groups[code].members.add((number, one.rank))
            stream.codes.append(code)
        codes = np.array(stream.codes, dtype=np.int64)[block.communicator]
        for number_in_log, took_us in enumerate(np.bincount(block.communicator, block.dur_us).tolist()):
            stream.took_us[number_in_log] = stream.took_us.get(number_in_log, 0.0) + took_us
        messages = block.kind >= SEND
        if messages.any():
            self._over_time.add(met_messages(block.taken(messages), codes[messages]))
            block, codes = block.taken(~messages), codes[~messages]
        places = np.array([one.rank for one in stream.log.communicators], dtype=np.int64)[block.communicator]
        sizes = np.array([group.size for group in self._groups], dtype=np.int64)[codes]
        key = key_of(codes, block.kind, block.sn)
        _advance(stream.reached, key >> LANE_BITS, places, block.sn)
        rest = (block.size_bytes, block.dur_us, block.ended_us, block.by_gpu, block.busbw_gb_per_s)
        return self._waiting.add(WaitingColumns(key, places, sizes, *rest))

    def _is_over(self, keys: Ints, calls: Ints) -> Flags:
        """Whether no log can have another call of these collectives; also finds the most awaited log.

        The keys ascend.
        """
        over = np.zeros(len(keys), dtype=bool)
        most, self._behind = self._most_waiting // 16, None
        sn = key_parts(keys)[2]
        for lane, own in runs_of(keys >> LANE_BITS):
            last, slowest = self._reached(lane)
            if slowest is None:
                over[own] = True
                continue
            over[own] = sn[own] <= last - _SLACK
            waiting = int(calls[own][sn[own] > last].sum())
            if waiting > most:
                most, self._behind = waiting, (*slowest, int(sn[own].max()))
        return over

    def _reached(self, lane: int) -> tuple[int, tuple[int, tuple[int, int]] | None]:
        """The number that all logs with calls of a lane have reached, and the last of these logs.

        As long as a rank of the communicator has not been seen, it may be in any log that has not shown it.
        """
        group = self._groups[lane >> KIND_BITS]
        if not group.is_whole:
            shown = {number for number, _ in group.members}
            others = [number for number, each in enumerate(self._streams) if each.is_open and number not in shown]
            if others:
                return -1, (min(others, key=lambda number: self._streams[number].part), (lane, -1))
        reached = [
            (self._streams[number].reached.get((lane, place), -1), (number, (lane, place)))
            for number, place in group.members
            if self._streams[number].is_open
        ]
        return min(reached) if reached else (-1, None)

    def _met(self, calls: WaitingColumns) -> None:
        self._over_time.add(met_collectives(calls))

    def table(self) -> pd.DataFrame:
        """One row per interval, communicator, collective and size class. Only when all is read."""
        streams = [stream for stream in self._streams if stream.log.communicators]
        shown = [Shown(s.log.communicators, s.log.first_us, s.log.last_us) for s in streams]
        job = job_ranks(shown)
        self.notes += [*notes_of([stream.log for stream in self._streams]), *self._remarks(job)]
        damaged = {self._groups[code].id for code in self._damaged}
        table = BANDWIDTH_TIMES.frame(self._over_time.rows(KIND_NAMES, lambda code: self._names(code, job)))
        return table.assign(partial=table["process_group"].isin(damaged).astype("boolean"))

    def _names(self, code: int, job: JobRanks) -> GroupNames:
        group = self._groups[code]
        ranks = job.members.get(group.id)
        listed = None if ranks is None else " ".join(map(str, sorted(ranks)))
        files = [number for number, stream in enumerate(self._streams) if stream.log.communicators]
        own = {place: job.ranks[files.index(number)] for number, place in group.members}
        return GroupNames(group.id, listed, group.size, own.get)

    def _remarks(self, job: JobRanks) -> Iterator[str]:
        if job.note:
            yield job.note
        partial = [group for group in self._groups if not group.is_whole]
        if partial:
            yield (
                f"{len(partial):,} of {counted(len(self._groups), 'communicator')} have a rank without a log: of their "
                "waiting only a lower bound is known (wait_low_frac), and no bandwidth"
            )
        late = sum(stream.is_written_late for stream in self._streams)
        if late:
            yield (
                f"{counted(late, 'log')} of {len(self._streams):,} written long after the calls, all at once: times of "
                "intervals are those of writing; set NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
            )
        if self._waiting.repeated:
            yield f"{counted(self._waiting.repeated, 'line')} repeated, counted once"
        if self._waiting.late:
            yield (
                f"{counted(self._waiting.late, 'call')} left out: they stand so much later in their log than those of "
                "other ranks in theirs that these were not kept so long"
            )


def _advance(reached: dict[tuple[int, int], int], lanes: Ints, places: Ints, sn: Ints) -> None:
    """Note the largest number of each lane and place."""
    if not len(sn):
        return
    order = np.lexsort((sn, places, lanes))
    lane, place, number = lanes[order], places[order], sn[order]
    last = np.append((lane[1:] != lane[:-1]) | (place[1:] != place[:-1]), True)
    for key, value in zip(
        zip(lane[last].tolist(), place[last].tolist(), strict=True), number[last].tolist(), strict=True
    ):
        reached[key] = max(reached.get(key, -1), value)
