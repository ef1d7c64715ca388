"""The bytes of a file named by URL, fetched as they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from io import SEEK_CUR, SEEK_END, SEEK_SET, BytesIO, RawIOBase, UnsupportedOperation
from typing import Any

from .failures import changed, plain_errors
from .filesystem import BEGIN_BYTES, BLOCK_BYTES, RemoteFacts, content_at, facts_at, stream_at

_REMOVED = "was removed while it was read"


class RemoteFile(RawIOBase):
    """A file to read from that has to stay as it was found. Methods raise UnreachableFile."""

    def __init__(self, url: str, found: RemoteFacts, begin: Callable[[], bytes]) -> None:
        """`begin` gives its first bytes: whoever needs no others causes nothing else to be fetched."""
        self._url, self._found = url, found
        self._begin = begin
        self._at = 0
        self._stream: Any = None

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is, though it may cost reading what is skipped."""
        return True

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        """Raises UnsupportedOperation for the end of a file whose size is not known."""
        if whence == SEEK_END and self._found.size is None:
            raise UnsupportedOperation("the size is not known")
        self._at = offset + {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._found.size or 0}[whence]
        return self._at

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """As RawIOBase."""
        data = self._bytes(len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        """Nothing is fetched any more."""
        if self._stream is not None and not self.closed:
            self._stream.close()
        super().close()

    def state(self) -> tuple[int, int]:
        """As `RemoteFacts.state`: as it was found, and behind its first byte as it is now."""
        if not self._at:
            return self._found.state
        try:
            return facts_at(self._url).state
        except FileNotFoundError as err:
            raise changed(self._url, _REMOVED) from err

    def _bytes(self, size: int) -> bytes:
        begin = self._begin() if self._stream is None and self._at < BEGIN_BYTES else b""
        if self._at < len(begin):
            return begin[self._at : self._at + size]
        if self._found.size is not None and self._at >= self._found.size:
            return b""
        stream = self._opened()
        try:
            with plain_errors(self._url):
                _move(stream, self._at)
                data: bytes = stream.read(size)
        except FileNotFoundError as err:
            raise changed(self._url, _REMOVED) from err
        if not data and self._found.size is not None:
            raise changed(self._url, "became shorter while it was read")
        return data

    def _opened(self) -> Any:
        if self._stream is None:
            try:
                is_small = self._found.size is not None and self._found.size <= BLOCK_BYTES
                self._stream = BytesIO(content_at(self._url)) if is_small else stream_at(self._url)
            except FileNotFoundError as err:
                raise changed(self._url, "was removed after it was found") from err
        return self._stream


def _move(stream: Any, at: int) -> None:
    """Go to this byte; web servers may give files only from their beginning."""
    here = stream.tell()
    if here == at:
        return
    try:
        stream.seek(at)
    except ValueError:
        if at < here:
            raise
        while here < at and stream.read(min(BLOCK_BYTES, at - here)):
            here = stream.tell()
