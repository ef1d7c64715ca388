"""A trace file as decoded batches of events, a few MiB at a time, and the JSON that surrounds them.

Where a chunk may be cut is guessed and then proven: `[` + bytes + `]` decodes only if the bytes are whole elements of
the array, because a cut inside a string or a nested value leaves it open. So any layout of JSON gives the same events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
from isal import igzip

from .errors import DamagedTrace, NotATrace, UnreadableFile

CHUNK_BYTES = 2 << 20
_HEADER_LIMIT_BYTES = 256 << 20

_GZIP_MAGIC = b"\x1f\x8b"
_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_ARRAY = re.compile(rb"\s*\[")
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_CLOSING = re.compile(rb"\}\s*\]")
# The lone quote opens a string that the buffer does not close.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{},]', re.DOTALL)
_GUESSES = 4

E = TypeVar("E")


class _Input(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass
class EventStream(Generic[E]):
    """Iterate over it for lists of events; afterwards `surrounding` is the document without its events."""

    path: Path
    event_type: type[E]
    surrounding: bytes = b""
    events_read: int = 0
    bytes_read: int = 0
    _decoder: msgspec.json.Decoder[list[E]] = field(init=False)

    def __post_init__(self) -> None:
        self._decoder = msgspec.json.Decoder(list[self.event_type], strict=False)  # type: ignore[name-defined]

    def __iter__(self) -> Iterator[list[E]]:
        """Lists of events in file order.

        Raises UnreadableFile, NotATrace, DamagedTrace.
        """
        try:
            with self.path.open("rb") as raw:
                is_gzip = raw.peek(2)[:2] == _GZIP_MAGIC
                # The magic number decides, not the name: tools rename files.
                yield from self._batches(igzip.GzipFile(fileobj=raw) if is_gzip else raw)
        except (EOFError, igzip.BadGzipFile) as err:
            raise DamagedTrace(
                f"{self.path}: the gzip data end early or are damaged after {self.bytes_read:,} unpacked bytes "
                f"({self.events_read:,} events were good); capture or copy it again"
            ) from err
        except OSError as err:
            raise UnreadableFile(f"{self.path}: cannot be read: {err.strerror or err}") from err

    def _batches(self, source: _Input) -> Iterator[list[E]]:
        buffer = self._skip_prefix(source)
        while True:
            events, cut, closed = self._whole_events(buffer)
            self.events_read += len(events)
            yield events
            if closed:
                self.surrounding += buffer[cut:] + self._rest(source)
                return
            if cut:
                buffer = buffer[cut + 1 :]  # past the comma
            more = self._read(source, max(CHUNK_BYTES, len(buffer)))
            if not more and not cut:
                raise DamagedTrace(
                    f"{self.path}: ends in the middle of its events after {self.bytes_read:,} bytes "
                    f"({self.events_read:,} events were good); the writer did not finish, or the copy is incomplete"
                )
            buffer += more

    def _read(self, source: _Input, size: int) -> bytes:
        data = source.read(size)
        self.bytes_read += len(data)
        return data

    def _rest(self, source: _Input) -> bytes:
        parts = []
        while data := self._read(source, CHUNK_BYTES):
            parts.append(data)
        return b"".join(parts)

    def _skip_prefix(self, source: _Input) -> bytes:
        """Read up to the opening bracket of the events; what follows it in the buffer is returned."""
        buffer = b""
        while len(buffer) <= _HEADER_LIMIT_BYTES:
            data = self._read(source, CHUNK_BYTES)
            buffer += data
            start = _ARRAY_START.search(buffer) or _BARE_ARRAY.match(buffer)
            if start:
                self.surrounding = buffer[: start.end()]
                return buffer[start.end() :]
            if not data:
                break
        raise NotATrace(f"{self.path}: {_what_it_is(buffer)}")

    def _whole_events(self, buffer: bytes) -> tuple[list[E], int, bool]:
        """The whole events in the buffer, how many bytes they take, and whether the array closes behind them."""
        for cut, closed in _guesses(buffer):
            try:
                return self._decoder.decode(b"[" + buffer[:cut] + b"]"), cut, closed
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        cut, closed = _exact_cut(buffer)
        try:
            return self._decoder.decode(b"[" + buffer[:cut] + b"]"), cut, closed
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            raise DamagedTrace(
                f"{self.path}: malformed events within the {len(buffer):,} bytes before byte {self.bytes_read:,} "
                f"({self.events_read:,} events were good): {err}"
            ) from err


def _guesses(buffer: bytes) -> Iterator[tuple[int, bool]]:
    """Ends of an event near the end of the buffer: first between two events, then before the closing bracket."""
    tail = max(0, len(buffer) - (64 << 10))
    for match in list(_BETWEEN.finditer(buffer, tail))[: -_GUESSES - 1 : -1]:
        comma = buffer.index(b",", match.start())
        yield comma, False
    for match in list(_CLOSING.finditer(buffer, tail))[: -_GUESSES - 1 : -1]:
        yield match.end() - 1, True


def _exact_cut(buffer: bytes) -> tuple[int, bool]:
    """The same by walking over every string and bracket: slow, for layouts in which no guess holds."""
    depth, last_comma = 0, 0
    for token in _TOKEN.finditer(buffer):
        match token.group():
            case b"{" | b"[":
                depth += 1
            case b"]" if depth == 0:
                return token.start(), True
            case b"}" | b"]":
                depth -= 1
            case b"," if depth == 0:
                last_comma = token.start()
            case b'"':
                break
    return last_comma, False


def _what_it_is(document: bytes) -> str:
    """Why a document without events is no Kineto trace."""
    if not document.strip():
        return "is empty; the capture was interrupted before torch wrote it"
    try:
        content = msgspec.json.decode(document)
    except msgspec.DecodeError as err:
        return f"is neither JSON nor gzip ({err}); expected a Kineto trace as torch.profiler exports it"
    if isinstance(content, dict) and "nodes" in content and "schema" in content:
        return (
            "is a PyTorch execution trace (ExecutionTraceObserver), which has no times; "
            "expected a Kineto trace as torch.profiler exports it"
        )
    found = f"an object with the keys {sorted(content)[:8]}" if isinstance(content, dict) else "no object"
    return f'is JSON but no Kineto trace: expected "traceEvents", found {found}'
