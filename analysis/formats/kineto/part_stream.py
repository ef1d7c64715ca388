"""Stream one part of a trace file's events, so that several processes can share a file. See docs/design/0010."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from ...errors import TraceError
from ...recording.compression import BrokenPacking, Source, is_gzip, unpacked_bytes
from ...recording.sizes import ReadSizes
from .stream import EventStream, P, Pick, Surrounding

_PACKED_PART_RATIO = 0.85  # size of each part of a packed file to the one before it, so that all take equally long


class Indivisible(TraceError):
    """The file has to be read as a whole; users never see this error."""


class SpanStream(EventStream[P]):
    """Stream the events of one of `parts` spans of a file, counted from 0.

    Its `surrounding` has what stands before all events, and in the last span what stands behind them. Events are not
    counted.

    A span goes from the first place between two events in the writer's layout at or behind its share of the bytes, to
    that of the next span: `began_at` and `ended_at`, in unpacked bytes, None where the events begin and end. Spans that
    join without a gap are what one reader would find. Raises Indivisible, beside the errors of EventStream.
    """

    def __init__(
        self,
        path: Path,
        part: int,
        parts: int,
        progress: Callable[[int], None] | None = None,
        *,
        picker: Callable[[Surrounding], Pick[P]],
        sizes: ReadSizes,
    ) -> None:
        super().__init__(path, progress, picker=picker, counted=False, sizes=sizes)
        self._is_first = part == 0
        begins = _begins(path, parts)
        self._from = begins[part]
        self._until = begins[part + 1] if part + 1 < parts else None
        self.began_at: int | None = None
        self.ended_at: int | None = None

    def _begin(self, source: Source) -> bytes:
        if self._is_first:
            return super()._begin(source)
        self._see_layout(self._skip_prefix(source))
        opening, separator = self._layout.opening, self._layout.separator
        self._skip_to(self._from, source)
        buffer = self._read(source, self._step_bytes(b""))
        while (at := buffer.find(separator)) < 0:
            more = self._read(source, self._step_bytes(buffer))
            if not more:
                raise Indivisible(f"{self.path}: no event begins behind byte {self._from:,}")
            buffer += more
            self._check_size(buffer, "an event")
        begin = at + len(separator) - len(opening)
        self.began_at = self.bytes_read - len(buffer) + begin
        return buffer[begin:]

    def _skip_to(self, byte: int, source: Source) -> None:
        if byte < self.bytes_read:
            raise Indivisible(f"{self.path}: is too small, or its events begin too late")
        try:
            source.skip(byte - self.bytes_read)
        except BrokenPacking as err:
            raise Indivisible(f"{self.path}: {err}") from err
        self.bytes_read = byte

    def _layout_until(self, buffer: bytes) -> int:
        """Offset behind the last event in the writer's layout, at most the end of the span, which it notes."""
        at = -1
        first_byte = self.bytes_read - len(buffer)
        if self._until is not None and self.bytes_read > self._until:
            at = buffer.find(self._layout.separator, max(0, self._until - first_byte))
        if at < 0:
            return super()._layout_until(buffer)
        if not buffer.startswith(self._layout.opening):
            raise Indivisible(f"{self.path}: is not in one layout")
        end = at + len(self._layout.closing)
        self._is_done = True
        self.ended_at = first_byte + end
        return end

    def _see_other_layout(self) -> None:
        # Then what looks like a place between two events may be within one.
        raise Indivisible(f"{self.path}: is of several layouts")


def _begins(path: Path, parts: int) -> list[int]:
    """Offsets of the parts, in unpacked bytes. Each part of a packed file unpacks everything before it."""
    total = unpacked_bytes(path)
    ratio = _PACKED_PART_RATIO if is_gzip(path) else 1.0
    ends = list(accumulate(ratio**part for part in range(parts)))
    return [0, *(int(total * end / ends[-1]) for end in ends[:-1])]
