"""Stream a trace file as texts of its events, some hundred KiB at a time, and the JSON around them.

Kineto writes all events in one layout, and what torch 2.14 writes by itself is in another one. So a chunk can be cut by
searching for what stands between two events, and the caller picks what it wants: nothing else is touched. In any other
layout the place of a cut is guessed and then proven: `[` + bytes + `]` decodes only if the bytes are whole elements of
the array, because a cut inside a string or a nested value leaves it open. So any layout of JSON gives the same events.
See docs/design/0001 and 0007.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from ....common.wording import counted, listed
from ...core.json_repairs import Habits, with_quoted_names
from ...core.places.files import open_state
from ...errors import DamagedTrace, NotATrace, TraceError, UnreadableFile
from ...recording.compression import BrokenPacking, Source, unpacked
from ...recording.sizes import USUAL_SIZES, ReadSizes
from ..others import foreign_file
from .cuts import (
    NO_JSON,
    Elements,
    Malformed,
    changed_bytes,
    malformed_at,
    repaired_texts,
    texts_or_none,
    whole_elements,
)

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_ARRAY = re.compile(rb"\s*\[")


class EventLayout(NamedTuple):
    """How a writer writes events one after another: what an event begins and ends with, and its first fields.

    `is_plain` if what stands between two events stands nowhere else, as a string of JSON holds no line feed. Otherwise
    each event that is cut out has to be proven to be one.
    """

    opening: bytes
    closing: bytes
    heads: tuple[bytes, ...]
    """What stands between the opening and the category."""
    before_name: tuple[bytes, ...]
    """What stands between the category and the name."""
    before_duration: bytes
    first: re.Pattern[bytes]
    """The beginning of the first event."""
    is_plain: bool

    @property
    def separator(self) -> bytes:
        """What stands between two events."""
        return self.closing + self.opening


_GAPS = (b" ", b"\n    ")  # what stands before the category and the name, up to torch 2.12, and since
KINETO_LAYOUT = EventLayout(
    b'\n  {\n    "', b"\n  },", tuple(b'ph": "X",' + gap + b'"cat": ' for gap in _GAPS),
    tuple(b"," + gap + b'"name": ' for gap in _GAPS), b'"dur": ', re.compile(rb'\s*\{\n    "'), is_plain=True,
)  # fmt: skip
COMPACT = EventLayout(
    b'{"', b"},", (b'ph":"X","cat":',), (b',"name":',), b'"dur":', re.compile(rb'\{"(?!\s)'), is_plain=False
)
"""Without a space, as torch 2.14 and later write what `cupti_monitor` recorded."""
# The process of an event of a CPU, as Kineto writes it: that of one of a GPU is the number of the device.
_PID_OF_CPU = re.compile(
    rb'"cat": ?"(?:cpu_op|cuda_[a-z]+|user_annotation|Operator|Runtime)",[^{}]{0,999}?"pid": ?"?([0-9]+)"?,'
)
REPAIR = "repair it there, or capture it again; if several ranks write to this path, give each one its own"
"""What to do about a file that is not JSON somewhere."""
NEAR_BYTES = 64 << 10
"""So much around damage is looked at for its cause."""
_MOST_PIDS = 4
_LEAST_PART = 0.1  # of the events of another process: a number that is cut off may look like a process, too


P = TypeVar("P")
Pick = Callable[[bytes, int, Habits, EventLayout], P | None]
"""Picks what is wanted from the events before a place in a buffer in one layout, which begins with an opening; the
place is behind a closing. None if the buffer turns out to hold other layouts as well. What is repaired depends on the
writer's habits."""


@dataclass(frozen=True)
class Batch(Generic[P]):
    """Successive events: the ones `picked`, or else the `texts` of all.

    A text is an event without its braces and its first quote: `{"` + text + `}` is the event. The events stand in
    `source` before the place `end`; it begins at the byte `first_byte` of the unpacked file. `first_event` is the
    number of the first one in the file, from 0, where events are counted. `repaired_bytes` of their bytes were
    repaired, as the writer's habits allow.
    """

    picked: P | None
    texts: list[bytes]
    source: bytes
    end: int
    first_byte: int
    first_event: int
    habits: Habits
    layout: EventLayout
    repaired_bytes: int = 0

    def taken_apart(self) -> Batch[P]:
        """The batch with the texts of all events."""
        if self.picked is None:
            return self
        try:  # it may be of several layouts
            repaired = repaired_texts(self.source[: self.end - 1], self.habits)
        except NO_JSON:
            opening, closing = self.layout.opening, self.layout.closing
            texts = self.source[len(opening) : self.end - len(closing)].split(self.layout.separator)
            return replace(self, picked=None, texts=texts)
        return replace(self, picked=None, texts=repaired.texts, repaired_bytes=repaired.repaired_bytes)

    def before(self, index: int) -> Batch[P]:
        """The first `index` events of a batch that has all texts."""
        return replace(self, texts=self.texts[:index])

    def byte_of(self, index: int) -> int:
        """Offset of the text with this index in the unpacked file."""
        at = end = 0
        for text in self.texts[: index + 1]:
            at = max(self.source.find(text, end), end)
            end = at + len(text)
        return self.first_byte + at


class Surrounding(msgspec.Struct, array_like=True, frozen=True):
    """A document without its events: the parts before and behind them. `file_bytes` is its unpacked size.

    Until everything is read, these hold what has been read so far.
    """

    before: bytes
    behind: bytes
    file_bytes: int


def of_several_writers(text: bytes) -> str | None:
    """What to do about damage in this text if events of several processes stand there; else None."""
    counts = Counter(int(match[1]) for match in _PID_OF_CPU.finditer(text))
    least = max(2.0, _LEAST_PART * max(counts.values(), default=0))
    pids = sorted(pid for pid, count in counts.items() if count >= least)
    if len(pids) < 2:
        return None
    named = listed([str(pid) for pid in pids[:_MOST_PIDS]])
    return f"processes {named} wrote into this one file: give each rank a file of its own, and capture again"


class EventStream(Generic[P]):
    """Iterate to get batches of events; afterwards `surrounding` is the document without its events.

    After an error, `events_read` and `bytes_read` (unpacked) say how far it got. `state` changes when the file is
    replaced or written to. `habits` are what its writer is known to do.
    """

    def __init__(
        self,
        path: Path,
        progress: Callable[[int], None] | None = None,
        *,
        picker: Callable[[Surrounding], Pick[P]] | None = None,
        counted: bool = True,
        sizes: ReadSizes = USUAL_SIZES,
    ) -> None:
        """Open a file; `progress` is called at times with the position in the file, in bytes on disk.

        `picker` is called once, when it is known what stands before the events. Unless `counted`, events that are
        picked from are not counted, so errors do not say how many there were. `sizes` are those of what is read at a
        time, and of what is too much.
        """
        self.path = path
        self._picker = picker
        self._pick: Pick[P] | None = None
        self._counted = counted
        self._sizes = sizes
        self.events_read = 0
        self.bytes_read = 0
        self.state: tuple[int, ...] = ()
        self.habits = Habits()
        self._before = b""
        self._behind = b""
        self._last_events = b""
        self._progress = progress
        self._broken: Exception | None = None
        self._is_done = False
        self._layout = KINETO_LAYOUT

    @property
    def surrounding(self) -> Surrounding:
        """The document around the events, as read so far."""
        return Surrounding(self._before, self._behind, self.bytes_read)

    @property
    def is_packing_broken(self) -> bool:
        """Whether unpacking failed, so that the rest of the file is unknown."""
        return self._broken is not None

    def __iter__(self) -> Iterator[Batch[P]]:
        """Yield batches in file order.

        Raises UnreadableFile, NotATrace, DamagedTrace.
        """
        try:
            with self.path.open("rb") as file:
                self.state = open_state(file)
                try:
                    yield from self._counting(file)
                except TraceError:
                    self._check_state(file)
                    raise
                self._check_state(file)
        except OSError as err:
            raise UnreadableFile(f"{self.path}: cannot be read: {err.strerror or err}") from err

    def _counting(self, file: BufferedReader) -> Iterator[Batch[P]]:
        """Yield batches, and count their events and report progress."""
        for batch in self._batches(unpacked(self.path, file, self._sizes.harmless_bytes)):
            if batch.picked is None:
                self.events_read += len(batch.texts)
            elif self._counted:
                self.events_read += batch.source.count(self._layout.separator, 0, batch.end) + 1
            yield batch
            if self._progress and file.seekable():
                self._progress(file.tell())

    def _check_state(self, file: BufferedReader) -> None:
        """Raise UnreadableFile if the file has changed in the meantime."""
        if file.seekable() and open_state(file) != self.state:
            raise UnreadableFile(f"{self.path}: was written to while it was read; wait for the writer, then try again")

    def _batches(self, source: Source) -> Iterator[Batch[P]]:
        buffer = self._begin(source)
        if self._picker is not None:
            self._pick = self._picker(self.surrounding)
        ended, renamed_bytes = False, 0
        while True:
            picked, end = (None, 0) if ended else self._picked(buffer)
            if picked is not None:
                yield self._batch(buffer, end, picked=picked)
                if self._is_done:
                    return
                buffer = buffer[end:]
            else:
                whole = yield from self._whole(buffer)
                if whole.texts:
                    repaired_bytes = whole.repaired_bytes + renamed_bytes
                    yield replace(self._batch(buffer, whole.cut, whole.texts), repaired_bytes=repaired_bytes)
                    renamed_bytes = 0
                if whole.closed:
                    self._behind = buffer[whole.cut :] + self._rest(source)
                    return
                if whole.cut:
                    buffer = buffer[whole.cut + 1 :]  # past the comma
                elif ended and (renamed := with_quoted_names(buffer)) != buffer:
                    # Quotes in the last name may look like a text without an end.
                    renamed_bytes += changed_bytes(buffer, renamed)
                    buffer = renamed
                    continue
                elif ended:
                    yield self._batch(buffer, len(buffer), texts_or_none(buffer))
                    raise self._unfinished(buffer)
            more = self._read(source, self._step_bytes(buffer))
            ended = not more
            buffer += more
            self._check_size(buffer, "an event")

    def _picked(self, buffer: bytes) -> tuple[P | None, int]:
        """The wanted events in the writer's layout, and where they end; None if some have another layout."""
        end = self._layout_until(buffer)
        picked = self._pick(buffer, end, self.habits, self._layout) if end and self._pick else None
        if picked is None and end and self._pick:
            self._see_other_layout()
        return picked, end

    def _whole(self, buffer: bytes) -> Generator[Batch[P], None, Elements]:
        """Yield the whole events of a buffer in any layout; at an error, first the events before it."""
        try:
            return whole_elements(buffer, self.habits)
        except Malformed as err:
            yield self._batch(buffer, err.at, err.texts)
            raise self._malformed(buffer, err.at) from err

    def _begin(self, source: Source) -> bytes:
        """Read to the beginning of the first event; return it with the rest of the buffer."""
        buffer = self._skip_prefix(source)
        first = self._see_layout(buffer)
        return self._layout.opening + buffer[first.end() :] if first else buffer

    def _see_layout(self, buffer: bytes) -> re.Match[bytes] | None:
        """Note the layout of the first event; its opening if it is a known one."""
        for layout in (KINETO_LAYOUT, COMPACT):
            if first := layout.first.match(buffer):
                self._layout = layout
                return first
        return None

    def _batch(self, buffer: bytes, end: int, texts: list[bytes] | None = None, *, picked: P | None = None) -> Batch[P]:
        """A batch of events from the beginning of the buffer, which ends with the last bytes read."""
        first_byte, self._last_events = self.bytes_read - len(buffer), buffer[max(0, end - NEAR_BYTES) : end]
        return Batch(picked, texts or [], buffer, end, first_byte, self.events_read, self.habits, self._layout)

    def _layout_until(self, buffer: bytes) -> int:
        """Offset behind the last event in the writer's layout that another one follows; 0 without any."""
        cut = buffer.rfind(self._layout.separator) if buffer.startswith(self._layout.opening) else -1
        return cut + len(self._layout.closing) if cut >= 0 else 0

    def _see_other_layout(self) -> None:
        """Note that a file in a known layout has other layouts as well."""

    def _step_bytes(self, buffer: bytes) -> int:
        """Bytes to read next: twice as many after a buffer that was too small, up to the limit."""
        return max(1, min(max(self._sizes.chunk_bytes, len(buffer)), self._sizes.entry_limit_bytes + 1 - len(buffer)))

    def _read(self, source: Source, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end, or where unpacking fails."""
        parts: list[bytes] = []
        while size > 0 and self._broken is None:
            try:
                data = source.read1(size)
            except BrokenPacking as err:
                self._broken = err  # everything unpacked before is good
                break
            if not data:
                break
            parts.append(data)
            size -= len(data)
            self.bytes_read += len(data)
        return b"".join(parts)

    def _rest(self, source: Source) -> bytes:
        rest = b""
        while data := self._read(source, self._step_bytes(rest)):
            rest += data
            self._check_size(rest, "what follows the events")
        if self._broken is not None:
            raise self._cut_short()
        return rest

    def _cut_short(self) -> DamagedTrace:
        """The error for a file that ends before its events, or cannot be unpacked."""
        good = f"after {self.bytes_read:,} bytes ({counted(self.events_read, 'event')}, all good)"
        if self._broken is not None:
            error: DamagedTrace = DamagedTrace(
                f"{self.path}: {self._broken} {good}, counted unpacked; capture, pack or copy it again"
            )
            error.__cause__ = self._broken
            return error
        return DamagedTrace(
            f"{self.path}: ends in the middle of its events {good}; "
            "the writer did not finish, or the copy is incomplete"
        )

    def _unfinished(self, buffer: bytes) -> DamagedTrace:
        """The error for a file that ends before its events: cut short, or a stray quote hides the end."""
        at = malformed_at(buffer)
        if self._broken is not None or at is None:
            return self._cut_short()
        return self._malformed(buffer, at)

    def _malformed(self, buffer: bytes, at: int) -> DamagedTrace:
        """The error for a file that stops being JSON at this place of the buffer."""
        advice = of_several_writers(self._last_events + buffer[: at + NEAR_BYTES]) or REPAIR
        return DamagedTrace(
            f"{self.path}: is not JSON at byte {self.bytes_read - len(buffer) + at:,} "
            f"({counted(self.events_read, 'event')} before it, all good); {advice}"
        )

    def _check_size(self, buffer: bytes, what: str) -> None:
        """Raise DamagedTrace before the buffer fills the memory: no trace, or a gzip bomb."""
        limit_bytes = self._sizes.entry_limit_bytes
        if len(buffer) > limit_bytes:
            raise DamagedTrace(
                f"{self.path}: {what} takes more than {limit_bytes >> 20} MiB before byte {self.bytes_read:,} "
                f"({counted(self.events_read, 'event')}, all good); no trace of torch.profiler has that"
            )

    def _skip_prefix(self, source: Source) -> bytes:
        """Read past the opening bracket of the events, and return the rest of the buffer."""
        buffer = b""
        while True:
            data = self._read(source, self._step_bytes(buffer))
            buffer = (buffer + data).removeprefix(_BYTE_ORDER_MARK)
            if (foreign := foreign_file(buffer)) is not None:
                raise NotATrace(f"{self.path}: {foreign}")
            start = _BARE_ARRAY.match(buffer) or _ARRAY_START.search(buffer)
            if start:
                self._before = buffer[: start.end()]
                return buffer[start.end() :]
            if not data:
                break
            self._check_size(buffer, "what stands before the events")
        if self._broken is not None:
            raise self._cut_short()
        raise NotATrace(f"{self.path}: {_why_no_trace(buffer)}")


def _why_no_trace(document: bytes) -> str:
    """The reason why a document without events is not a Kineto trace."""
    if not document.strip():
        return "is empty; the capture was interrupted before torch wrote it"
    try:
        content = msgspec.json.decode(document)
    except NO_JSON as err:
        return f"holds no JSON, packed with gzip or not ({err}); expected a Kineto trace as torch.profiler exports it"
    if isinstance(content, dict) and "nodes" in content and "schema" in content:
        return (
            "is a PyTorch execution trace (ExecutionTraceObserver), which has no times; "
            "expected a Kineto trace as torch.profiler exports it"
        )
    description = f"an object with the keys {sorted(content)[:8]}" if isinstance(content, dict) else "something else"
    return f'is JSON but not a Kineto trace: expected a list of "traceEvents", found {description}'
