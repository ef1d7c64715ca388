"""Read the bytes of a file, unpacked if it is gzip; of a damaged file, all before the damage."""

from __future__ import annotations

from io import SEEK_CUR, SEEK_END, BufferedReader
from pathlib import Path
from typing import Any, Protocol

from isal import igzip_lib

from ..core.budget import Budget
from ..errors import NotATrace
from .shared_files import file_of
from .sizes import USUAL_SIZES

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_PACKED_BYTES = 256 << 10  # at a time: enough for a chunk of events, which then is one piece
_SKIPPED_BYTES = 256 << 10  # at a time
_AT_ONCE = 16 << 20
_LEAST_GZIP_BYTES = 18
_FIRST_BYTES = 4 << 10  # enough to tell formats apart
# Traces shrink 15 to 40 times. A file beyond this ratio, and not of harmless size, is made to fill the memory.
_MOST_TIMES = 200
_NO_GZIP: Any = (igzip_lib.error, EOFError)


class Source(Protocol):
    """Something to read."""

    def read1(self, size: int, /) -> bytes:
        """Up to `size` bytes, none at the end."""

    def skip(self, size: int, /) -> None:
        """Skip this many bytes, or all that are left. Raises BrokenPacking."""


class BrokenPacking(Exception):
    """What is wrong with the packed data, as the predicate of a sentence. Earlier bytes have been returned."""


def is_regular(path: Path) -> bool:
    """Whether it is a plain file and not, for example, a pipe, which can be read only once."""
    try:
        return file_of(path).is_file()
    except OSError:
        return False


def packed_bytes(path: Path) -> int:
    """Size of a file on disk, in bytes; 0 if not known."""
    try:
        return file_of(path).stat().st_size
    except OSError:
        return 0


def is_gzip(path: Path) -> bool:
    """Whether a plain file is gzip, by its magic number, as tools rename files; False if it cannot be opened."""
    try:
        with path.open("rb") as file:
            return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    except OSError:
        return False


def unpacked(path: Path, file: BufferedReader, harmless_bytes: int = USUAL_SIZES.harmless_bytes) -> Source:
    """The content of an open file, see `ReadSizes` for `harmless_bytes`. Raises NotATrace for other packings."""
    magic = file.peek(4)[:4]
    if magic == _ZSTD_MAGIC:
        raise NotATrace(f"{path}: is packed with zstd, which is not read here; unpack it first with zstd -d")
    return _Gunzip(file, harmless_bytes) if magic[:2] == _GZIP_MAGIC else _Plain(file)


def all_bytes(path: Path, file: BufferedReader, budget: Budget) -> bytes:
    """All bytes of an open file, unpacked. Raises BrokenPacking, NotATrace; TooLarge."""
    source, parts = unpacked(path, file), []
    what = f"{path}: what it holds, unpacked,"
    while part := source.read1(_AT_ONCE):
        budget.draw(what, 2 * len(part))  # its parts, and all of it
        parts.append(part)
    whole = b"".join(parts)
    budget.give_back(len(whole))
    return whole


def first_bytes(path: Path) -> bytes:
    """The first bytes of a plain file, unpacked; empty if it cannot be read."""
    if not is_regular(path):
        return b""
    try:
        with file_of(path).open("rb") as file:
            return unpacked(path, file).read1(_FIRST_BYTES)
    except (OSError, BrokenPacking, NotATrace):
        return b""


def unpacked_bytes(path: Path) -> int:
    """Estimated size of a file after unpacking, in bytes; 0 if not known."""
    try:
        with path.open("rb") as file:
            begin = file.read(2)
            size = file.seek(0, SEEK_END)
            if begin != _GZIP_MAGIC or size < _LEAST_GZIP_BYTES:
                return size
            file.seek(-4, SEEK_END)
            # The size of the last member, modulo 4 GiB; traces have only one.
            return int.from_bytes(file.read(4), "little")
    except OSError:
        return 0


class _Plain:
    """A file that is not packed."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file

    def read1(self, size: int, /) -> bytes:
        return self._file.read1(size)

    def skip(self, size: int, /) -> None:
        self._file.seek(size, SEEK_CUR)


class _Gunzip:
    """Unpack one gzip member after another, and only as much as requested, so that a bomb does no harm."""

    def __init__(self, file: BufferedReader, harmless_bytes: int) -> None:
        self._file = file
        self._harmless_bytes = harmless_bytes
        self._member = _member()
        self._packed = b""
        self._taken_bytes = 0
        self._given_bytes = 0

    def read1(self, size: int, /) -> bytes:
        """Up to `size` bytes. Raises BrokenPacking."""
        while True:
            if self._member.eof and not self._begin_member():
                return b""
            if self._member.needs_input and not self._packed:
                self._packed = self._take()
                if not self._packed:
                    raise BrokenPacking("is gzip that ends early")
            packed, self._packed = self._packed, b""
            try:
                data: bytes = self._member.decompress(packed, size)
            except _NO_GZIP as err:
                raise BrokenPacking(f"is damaged gzip ({err})") from err
            if data:
                self._given_bytes += len(data)
                if self._given_bytes > max(self._harmless_bytes, _MOST_TIMES * self._taken_bytes):
                    raise BrokenPacking(f"is gzip that grows more than {_MOST_TIMES} times, as no trace does,")
                return data

    def skip(self, size: int, /) -> None:
        """Unpack and discard `size` bytes. Raises BrokenPacking."""
        while size > 0 and (data := self.read1(min(size, _SKIPPED_BYTES))):
            size -= len(data)

    def _take(self) -> bytes:
        """More of the packed bytes, empty at the end."""
        packed = self._file.read1(_PACKED_BYTES)
        self._taken_bytes += len(packed)
        return packed

    def _begin_member(self) -> bool:
        """Whether another member follows, perhaps after zeros."""
        rest = self._member.unused_data.lstrip(b"\0")
        while not rest:
            rest = self._take()
            if not rest:
                return False
            rest = rest.lstrip(b"\0")
        self._member, self._packed = _member(), rest
        return True


def _member() -> igzip_lib.IgzipDecompressor:
    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
