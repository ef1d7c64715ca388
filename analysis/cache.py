"""What was read of a trace file, kept beside it, so that a large file is read once.

A cache file is `commtrace-cache`, a key, a checksum, and the content as msgpack. The key says of which bytes, and by
which reader, it was made; where anything does not fit, the trace is read again and the cache written again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from isal import isal_zlib

from .kineto import read_kineto
from .names import as_text
from .raw_trace import RawTrace

# To be raised when the reader reads more, or otherwise.
READER_VERSION = 11
FOLDER = ".commtrace-cache"

_MAGIC = b"commtrace-cache\n"
_KEY_BYTES, _SUM_BYTES = 32, 4
_ENDS_BYTES = 64 << 10
_CONTENT = msgspec.msgpack.Decoder(RawTrace)


@dataclass(frozen=True)
class Cache:
    """Where to keep what was read: in `folder`, or (None) in a hidden folder beside each file."""

    folder: Path | None = None

    @staticmethod
    def at(place: str | os.PathLike[str] | bool) -> Cache | None:
        """The cache in a folder; for True the one beside each file, for False none."""
        if isinstance(place, bool):
            return Cache() if place else None
        return Cache(Path(place))

    def read(
        self,
        path: Path,
        comm_names: re.Pattern[str],
        *,
        details: bool = False,
        keep_damaged: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> RawTrace:
        """As `read_kineto`, from the cache where it holds that. Of damaged files nothing is kept."""
        slot = self.slot(path, comm_names, details=details)
        found = slot.load() if slot else None
        if found is None:
            found = read_kineto(path, comm_names, details=details, keep_damaged=keep_damaged, progress=progress)
            if slot:
                slot.keep(found)
        return found

    def slot(self, path: Path, comm_names: re.Pattern[str], *, details: bool = False) -> Slot | None:
        """The place for the trace at `path` as it is now; None for what is no regular file."""
        key = _key(path, comm_names, details)
        return None if key is None else Slot(path, comm_names, details, self.place(path, details=details), key)

    def place(self, path: Path, *, details: bool = False) -> Path:
        """The cache file of the trace at `path`; a reading with details has one of its own."""
        name = f"{path.name}.details.cache" if details else f"{path.name}.cache"
        if self.folder is None:
            return path.parent / FOLDER / name
        folder = _digest(os.fsencode(path.absolute().parent), 8).hex()
        return self.folder / f"{folder}-{name}"


@dataclass
class Slot:
    """The place for one state of a trace. `complaint` says what was wrong with what was found there, if anything."""

    path: Path
    comm_names: re.Pattern[str]
    details: bool
    place: Path
    key: bytes
    complaint: str | None = None

    def load(self) -> RawTrace | None:
        """What is kept there, if that can be used."""
        found, self.complaint = _load(self.place, self.key)
        return found

    def keep(self, found: RawTrace) -> None:
        """Keep what was read of the trace, and note in it what is to be said of the cache."""
        if self.complaint is not None:
            name = as_text(self.path.name)
            found.notes.append(f"{name}: its cache {self.complaint}; the trace was read again")
        # A file that has been written to meanwhile is of no key.
        if found.damage is None and _key(self.path, self.comm_names, self.details) == self.key:
            _store(self.place, self.key, found, self.path)


def _key(path: Path, comm_names: re.Pattern[str], details: bool) -> bytes | None:
    """Size, time of change, both ends of the file, and what the reading depends on; None for what is no file."""
    try:
        status = path.stat()
        if not path.is_file():
            return None
        with path.open("rb") as file:
            head = file.read(_ENDS_BYTES)
            file.seek(max(0, status.st_size - _ENDS_BYTES))
            tail = file.read(_ENDS_BYTES)
    except OSError:
        return None
    facts = f"{READER_VERSION} {details} {status.st_size} {status.st_mtime_ns} {comm_names.pattern}".encode()
    return _digest(b"\0".join((facts, head, tail)), _KEY_BYTES)


def _digest(content: bytes, size: int) -> bytes:
    from hashlib import blake2b  # it loads OpenSSL, which not everybody needs

    return blake2b(content, digest_size=size).digest()


def _load(place: Path, key: bytes) -> tuple[RawTrace | None, str | None]:
    """What is kept there; or nothing, and what is wrong with it, if there is something at all."""
    try:
        if place.is_fifo():  # nobody may ever write into it
            return None, "cannot be read (is a pipe)"
        content = memoryview(place.read_bytes())
    except FileNotFoundError:
        return None, None
    except OSError as err:
        return None, f"cannot be read ({err.strerror})"
    begin = len(_MAGIC) + _KEY_BYTES + _SUM_BYTES
    if bytes(content[: len(_MAGIC)]) != _MAGIC or len(content) < begin:
        return None, "is damaged"
    if bytes(content[len(_MAGIC) : len(_MAGIC) + _KEY_BYTES]) != key:
        return None, "is of another state of the file, or of another version"
    if bytes(content[begin - _SUM_BYTES : begin]) != _sum(content[begin:]):
        return None, "is damaged"
    try:
        return _CONTENT.decode(content[begin:]), None
    except msgspec.DecodeError:
        return None, "is damaged"


def _store(place: Path, key: bytes, found: RawTrace, path: Path) -> None:
    """Keep it for all who may read the trace at `path`, whoever does so at the same time.

    Not keeping it, in a read-only folder, costs time only.
    """
    import tempfile

    content = msgspec.msgpack.encode(msgspec.structs.replace(found, notes=[]))
    partial = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".partial-", delete=False) as file:
            partial = Path(file.name)
            partial.chmod(0o600 | path.stat().st_mode & 0o666)
            file.write(_MAGIC + key + _sum(memoryview(content)))
            file.write(content)
        partial.replace(place)
    except OSError:
        if partial is not None:
            with suppress(OSError):
                partial.unlink()


def _sum(content: memoryview) -> bytes:
    return isal_zlib.crc32(content).to_bytes(_SUM_BYTES, "little")
