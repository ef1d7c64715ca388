"""Read a log of NCCL Inspector block by block, as columns of numbers, in constant memory.

Nothing that grows with the log is kept, unless `proxies` is asked for: only the communicators it names, and counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import UnreadableFile
from ...recording.compression import BrokenPacking, Source, unpacked
from ...recording.header import Communicator
from ...recording.options import Progress
from .columns import LogBlock, WrittenCalls
from .lines import DumpStats, Line, LineHeader, LineMetadata, ProxyTrace, decoded_line, decoded_lines, last_whole_line
from .proxies import ProxySums

LOG_BLOCK_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 2 << 20


@dataclass
class InspectorLog:
    """One log. `blocks` reads it once; the other fields grow until it is finished."""

    path: Path
    block_bytes: int = LOG_BLOCK_BYTES
    communicators: list[Communicator] = field(default_factory=list)
    """Of each process and rank that wrote; `columns` count into them."""
    versions: dict[str, None] = field(default_factory=dict)
    records: int = 0
    first_us: int = 1 << 62
    last_us: int = 0
    read_bytes: int = 0
    cut_bytes: int = 0
    broken_lines: int = 0
    broken_bytes: int = 0
    first_broken: str = ""
    orphans: int = 0
    dropped: int = 0
    timed_by_cpu: int = 0
    proxies: ProxySums | None = None
    """What proxies did, by call; None where nobody asks for it, since it grows with the log."""
    proxies_dropped: int = 0
    _codes: dict[tuple[str, int, int, str, int], int] = field(default_factory=dict)
    _line: int = 0
    _context: tuple[int, LineMetadata] | None = None
    _left: int = 0

    def blocks(self, progress: Progress | None = None) -> Iterator[LogBlock]:
        """Yield the log block by block; `progress` is called with the bytes read so far.

        Lines that cannot be read are left out and counted. A last line that was cut is no damage: its process still
        writes, or was killed. Raises UnreadableFile, and NotATrace for packings that are not read.
        """
        try:
            with self.path.open("rb") as file:
                for text in self._texts(unpacked(self.path, file)):
                    block = self._block(self._decoded(text))
                    del text  # many logs may be read side by side, each waiting here
                    if progress:
                        progress(file.tell())
                    if len(block.sn):
                        yield block
        except OSError as err:
            raise UnreadableFile(f"{self.path}: cannot be read: {err.strerror}") from err

    def _texts(self, source: Source) -> Iterator[bytes]:
        """Yield whole lines; the last one may be incomplete."""
        rest = b""
        while True:
            try:
                part = source.read1(self.block_bytes)
            except BrokenPacking as err:
                self._note_broken(0, 1, str(err))
                break
            if not part:
                break
            self.read_bytes += len(part)
            end = part.rfind(b"\n") + 1
            held, rest = [rest + part[:end]], (part[end:] if end else rest + part)
            del part
            if end:
                yield held.pop()
            del held
            if len(rest) > _LONGEST_LINE_BYTES:
                self._note_broken(len(rest), 1, f"has {len(rest):,} bytes and does not end")
                rest = b""
        if rest:
            yield rest

    def _decoded(self, text: bytes) -> list[Line]:
        whole = decoded_lines(text) if text.endswith(b"\n") else None
        if whole is not None:
            self._line += text.count(b"\n")
            return whole
        lines: list[Line] = []
        for raw_line in text.splitlines(keepends=True):
            self._line += 1
            line = decoded_line(raw_line) if raw_line.strip() else Line()
            if isinstance(line, Line):
                lines.append(line)
            elif not raw_line.endswith(b"\n"):
                self.cut_bytes = len(raw_line)
                self.read_bytes -= len(raw_line)
            else:
                self._note_broken(len(raw_line), self._line, line)
                # Lines without a header belong to the marker before them, which may be what is broken here.
                lines.append(Line(dump_stats=DumpStats()))
                behind = last_whole_line(raw_line)
                lines += [] if behind is None else [behind]
        return lines

    def _note_broken(self, size: int, line: int, why: str) -> None:
        self.first_broken = self.first_broken or f"line {line:,}: {why}"
        self.broken_lines += 1
        self.broken_bytes += size

    def _block(self, lines: list[Line]) -> LogBlock:
        written = WrittenCalls()
        for line in lines:
            is_whole = line.header is not None and line.metadata is not None
            if line.header is not None and line.metadata is not None:
                self._begin(line.header, line.metadata, line.dump_stats)
            elif line.dump_stats is not None:
                self._context, self._left = None, 0
            call, message = line.coll_perf, line.p2p_perf
            if call is None and message is None:
                if line.proxy_trace is not None:
                    self._note_proxy(line.proxy_trace, is_whole=is_whole)
            elif self._context is None or (self._left <= 0 and not is_whole):
                self.orphans += 1
            else:
                self._left -= 1
                number, metadata = self._context
                numbers, times, calls = written.collectives if call is not None else written.messages
                numbers.append(number)
                times.append(metadata.dump_timestamp_us)
                calls.append(call if call is not None else message)  # type: ignore[arg-type]
        return self._columns(written)

    def _note_proxy(self, trace: ProxyTrace, *, is_whole: bool) -> None:
        if self.proxies is not None and self._context is not None and (self._left > 0 or is_whole):
            self.proxies.add(self._context[0], trace)
            self.proxies_dropped += trace.n_steps_dropped
        self._left -= 1

    def _begin(self, header: LineHeader, metadata: LineMetadata, stats: DumpStats | None) -> None:
        """Set the communicator of the next lines: as many as the marker says, or one."""
        key = (header.id, header.rank, header.n_ranks, metadata.hostname, metadata.pid)
        number = self._codes.get(key)
        if number is None:
            number = self._codes[key] = len(self._codes)
            process = f"{metadata.hostname}:{metadata.pid}"
            self.communicators.append(
                Communicator(header.id, header.rank, header.n_ranks, header.comm_name or "", process)
            )
            self.versions[metadata.inspector_output_format_version] = None
        self._context = number, metadata
        self._left = 0
        if stats is not None:
            self._left = stats.coll_records + stats.p2p_records + stats.proxy_records
            self.proxies_dropped += stats.proxy_dropped_since_last_dump + stats.proxy_ops_dropped_since_last_dump
            self.dropped += stats.coll_dropped_since_last_dump + stats.p2p_dropped_since_last_dump

    def _columns(self, written: WrittenCalls) -> LogBlock:
        block = written.columns([communicator.size for communicator in self.communicators])
        self.records += len(block.sn)
        self.timed_by_cpu += int((~block.by_gpu).sum())
        if len(block.sn):
            self.first_us = min(self.first_us, int(block.ended_us.min()))
            self.last_us = max(self.last_us, int(block.ended_us.max()))
        return block
