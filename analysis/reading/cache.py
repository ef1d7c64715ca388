"""What was read from a trace file, kept beside it, so that a large file is read only once.

A cache file is a recording (formats/recordings) that says of which state of the trace it is: by the reader, and the
file's size, times, inode, both ends, and blocks throughout. If anything differs, the trace is read again and the cache
is rewritten. A recording that somebody packed beside a trace is used in the same way.

Whoever can write a cache decides what is reported about a trace. So only files are trusted that belong to this user or
root, and that no one else can write to. For traces of other users, the cache is in the user's own folder.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...common.disk import open_plain, remove_partial_files
from ...contract.recording import recording_name
from ..core.escaping import encodable
from ..core.kinds import COMM_NAMES
from ..core.places.files import plain_file, replace_file
from ..core.places.place import is_remote, is_there
from ..errors import NotATrace, TooLarge
from ..formats.format import TraceFormat
from ..recording.compression import BrokenPacking, all_bytes
from ..recording.options import Progress, ReadOptions, RunFacts
from ..recording.recording import RawTrace
from .trace_input import TraceInput

_LOG = logging.getLogger("commtrace.reading")
FOLDER, CACHE_SUFFIX = ".commtrace-cache", ".cache"

_KEY_BYTES = 32
_ENDS_BYTES = 64 << 10
_SAMPLES, _SAMPLE_BYTES = 64, 4 << 10
# A cache is a fraction of the unpacked trace: of a packed one, a few times the file.
_SMALL_BYTES, _MOST_TIMES = 64 << 20, 64
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


@dataclass(frozen=True)
class Cache:
    """Where to keep what was read: in `folder`, or (None) in a hidden folder beside each file that is the user's own.

    Otherwise, for None, in the user's cache folder, which is searched as well. With `keeps` False nothing is kept, and
    only recordings that were packed beside their traces are used.
    """

    folder: Path | None = None
    keeps: bool = True

    @staticmethod
    def at(place: str | bool) -> Cache:
        """The cache in a folder; for True the one beside each file, for False none."""
        if isinstance(place, bool):
            return Cache(keeps=place)
        return Cache(Path(place).absolute())  # other processes work in other folders

    def read(
        self,
        trace: TraceInput,
        options: ReadOptions,
        progress: Progress | None = None,
    ) -> RawTrace:
        """What a file holds, from the cache if possible. Nothing is kept of damaged files."""
        slot = self.slot(trace, options)
        found = slot.load() if slot else None
        if found is None:
            found = read_anew(trace, options, progress)
            if slot:
                slot.keep(found)
        return found

    def slot(self, trace: TraceInput, options: ReadOptions) -> Slot | None:
        """The place for a trace as it is now; None for anything but a regular file, or if there is none."""
        beside = _recording_of(trace.path)
        if not self.keeps and beside is None:
            return None
        state = file_state(trace)
        places = self.places(trace.path, details=options.details) if self.keeps else []
        return None if state is None else Slot(trace, options, places, state, beside)

    def place(self, path: Path, *, details: bool = False) -> Path:
        """The first of the places where the cache file of the trace at `path` may be."""
        return self.places(path, details=details)[0]

    def places(self, path: Path, *, details: bool = False) -> list[Path]:
        """Where the cache file of the trace at `path` may be; a reading with details has one of its own."""
        name = f"{path.name}.details{CACHE_SUFFIX}" if details else f"{path.name}{CACHE_SUFFIX}"
        of_folder = f"{_digest(os.fsencode(str(path.absolute().parent)), 8).hex()}-{name}"
        if self.folder is not None:
            return [self.folder / of_folder]
        own = own_folder()
        beside = [] if is_remote(path) else [path.parent / FOLDER / name]
        return beside + ([] if own is None else [own / of_folder])


def read_anew(trace: TraceInput, options: ReadOptions, progress: Progress | None = None) -> RawTrace:
    """What a file holds, from the file itself. Raises TraceError."""
    begun = time.monotonic()
    found = trace.format.reader().read(trace.path, options, progress)
    if _LOG.isEnabledFor(logging.INFO):
        how = "%r: read as %s, %d bytes, in %.3f s"
        _LOG.info(how, str(trace.path), trace.format.name, trace.size_bytes, time.monotonic() - begun)
    return found


@dataclass
class Slot:
    """The place for one state of a trace, and the recording `beside` it, if there is one.

    `problem` says what was wrong with what was found there, if anything.
    """

    trace: TraceInput
    options: ReadOptions
    places: list[Path]
    state: bytes
    beside: Path | None = None
    problem: str | None = None

    @property
    def key(self) -> bytes:
        """A digest of the state of the file and of the options that change what is read."""
        facts = "" if self.options.run_facts == RunFacts() else str(self.options.run_facts)
        marker = "" if self.options.step_marker is None else f" {self.options.step_marker!r}"
        how = f"{self.options.details} {COMM_NAMES.pattern} {self.options.comm_names}{facts}{marker}"
        return _digest(self.state + how.encode("utf-8", "surrogatepass"), _KEY_BYTES)

    def load(self) -> RawTrace | None:
        """Load the cached trace; None if there is no usable one."""
        self.problem = None
        places = [(place, self.key, "cache") for place in self.places]
        if self.beside is not None and not self.options.comm_names:  # of other kernels it holds no arguments
            places.insert(0, (self.beside, self.state, "recording"))
        for place, key, what in places:
            try:
                found = _load(place, key, self)
                if found is not None:
                    _LOG.info("%r: its %s is used instead, %r", str(self.trace.path), what, str(place))
                    return found
            except FileNotFoundError:
                pass
            except OSError as err:
                self._note_problem(what, f"cannot be read ({err.strerror})")
            except MemoryError:
                self._note_problem(what, "does not fit into the memory")
            except _Unusable as err:
                self._note_problem(what, str(err))
        return None

    def _note_problem(self, what: str, why: str) -> None:
        self.problem = self.problem or f"its {what} {why}"
        _LOG.info("%r: its %s %s", str(self.trace.path), what, why)

    def keep(self, found: RawTrace) -> None:
        """Keep what was read from the trace, and add a note if the cache was unusable."""
        if self.problem is not None:
            found.notes.append(f"{encodable(self.trace.path.name)}: {self.problem}; the trace was read again")
        # A file that was written to in the meantime is in another state.
        if self.places and found.damage is None and file_state(self.trace) == self.state:
            # If it cannot be kept, in a read-only folder or on a full disk, only time is lost.
            try:
                place = self._own_place()
                if _store(place, self.key, found, self.trace):
                    _LOG.info("%r: cached in %r", str(self.trace.path), str(place))
            except (OSError, MemoryError) as err:
                _LOG.info("%r: cannot be cached: %s", str(self.trace.path), type(err).__name__)

    def _own_place(self) -> Path:
        """The first place, or the last if the first is beside another user's file, or in their folder."""
        first = self.places[0]
        if len(self.places) > 1:
            folder = first.parent if os.path.lexists(first.parent) else self.trace.path
            if self.trace.path.stat().st_uid != os.geteuid() or not _is_own(os.lstat(folder)):
                return self.places[-1]
        return first


class _Unusable(Exception):
    """A reason why a cache cannot be used, as the predicate of a sentence."""


def own_folder() -> Path | None:
    """The user's cache folder, following the XDG base directory specification; None if there is no home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "commtrace"
    try:
        return Path.home() / ".cache" / "commtrace"
    except RuntimeError:
        return None


def _recording_of(path: Path) -> Path | None:
    """The recording beside a trace, if there is one."""
    name = recording_name(path.name)
    beside = path.with_name(name)
    with suppress(OSError):  # it may not be allowed to look
        return beside if name != path.name and is_there(beside) else None
    return None


def file_state(trace: TraceInput) -> bytes | None:
    """What identifies the state of a file and its reader, without reading all of it.

    None if there is no such file, if a journal beside it changes what it holds, or if its filesystem, named by URL,
    tells nothing by which a state could be known. The device is left out: network file systems get another number at
    every mount.
    """
    path = trace.path
    try:
        if any(is_there(path.with_name(path.name + ending)) for ending in trace.format.journals):
            return None
        if is_remote(path):
            return _state(trace.format, path.facts.state, []) if path.facts.identity else None
        descriptor, status = open_plain(path)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            parts = [os.pread(file.fileno(), size, at) for at, size in _sampled(status.st_size)]
    except OSError:
        return None
    return _state(trace.format, _facts_of(status), parts)


def _facts_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _state(one: TraceFormat, facts: tuple[int, ...], parts: list[bytes]) -> bytes:
    return _digest(b"\0".join((f"{(one.name, one.version, *facts)}".encode(), *parts)), _KEY_BYTES)


def _sampled(size: int) -> list[tuple[int, int]]:
    """Offsets and sizes of the parts of a file that are sampled: both ends, and blocks spread evenly."""
    ends = [(0, _ENDS_BYTES), (max(0, size - _ENDS_BYTES), _ENDS_BYTES)]
    return ends + [(size * number // _SAMPLES, _SAMPLE_BYTES) for number in range(_SAMPLES)]


def _digest(content: bytes, size: int) -> bytes:
    from hashlib import blake2b  # it loads OpenSSL, which is not always needed

    return blake2b(content, digest_size=size).digest()


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), _ROOT)


def _load(place: Path, key: bytes, slot: Slot) -> RawTrace | None:
    """Load a cached trace; None if it lacks what was asked for. Raises OSError, MemoryError, _Unusable."""
    from ..formats.recordings.content import BadRecording, recorded_content, trace_of, without_details

    file, status = plain_file(place, follow=False)
    with file:
        if not is_remote(place):  # who can write there can write the trace
            _check_trust(place, status)
        if status.st_size > _most_bytes(slot.trace.path.stat().st_size):
            raise _Unusable("is larger than what is kept of such a trace")
        try:
            budget, what = slot.options.budget(), f"{place}: what it holds"
            plain = all_bytes(place, file, budget)
        except (BrokenPacking, NotATrace, TooLarge) as err:
            raise _Unusable("is damaged") from err
    try:
        content = recorded_content(plain, what, budget)
        budget.give_back(len(plain))
        del plain
        if content.source.state != key:
            raise _Unusable("is of another state of the file, or of another version")
        if not slot.options.details:
            content = without_details(content, slot.options, what, budget)
        found = trace_of(content, what, budget)
    except (BadRecording, TooLarge) as err:
        raise _Unusable("is damaged") from err
    needs_details = slot.options.details and not slot.options.details_if_recorded
    if found.damage is not None or (needs_details and not found.detailed):
        return None
    return found


def _check_trust(place: Path, status: os.stat_result) -> None:
    """Raise _Unusable if another user may have written the file, or put it there."""
    folder = place.parent.stat()
    if not _is_own(status) or not _is_own(folder):
        raise _Unusable("belongs to somebody else")
    # It has no name left if another of our processes has replaced it since it was opened.
    if status.st_mode & _OTHERS_WRITE or status.st_nlink > 1 or _is_open(folder):
        raise _Unusable("can be written to by others")


def _is_open(folder: os.stat_result) -> bool:
    """Whether other users can replace files in the folder."""
    return bool(folder.st_mode & _OTHERS_WRITE) and not folder.st_mode & stat.S_ISVTX


def _most_bytes(trace_bytes: int) -> int:
    return _SMALL_BYTES + _MOST_TIMES * trace_bytes


def _store(place: Path, key: bytes, found: RawTrace, trace: TraceInput) -> bool:
    """Keep it, even if others do so at the same time; whether it was kept. Raises OSError, MemoryError."""
    from ..formats.recordings.content import TraceSource, packed

    one, of_trace, folder = trace.format, trace.path.stat(), place.parent
    content = packed(found, TraceSource(encodable(trace.path.name), one.name, one.version, key), [], how="fast")
    if len(content) > _most_bytes(of_trace.st_size):
        return False
    folder.mkdir(mode=_mode(of_trace, 0o700, 0o055), parents=True, exist_ok=True)
    status = folder.stat()
    if folder.name == FOLDER and status.st_uid == os.geteuid() and not folder.is_symlink():
        folder.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)  # older versions left that to the umask
    elif not _is_own(status) or _is_open(status):
        return False
    remove_partial_files(folder)
    replace_file(place, [content], mode=_mode(of_trace, 0o600, 0o044), lasting=False)
    return True


def _mode(trace: os.stat_result, own: int, others: int) -> int:
    """Permissions: root's cache is for all who may read the trace, since all trust root; other users' is private."""
    if os.geteuid() != _ROOT:
        return own
    readers = trace.st_mode & 0o044 if trace.st_gid == os.getegid() else trace.st_mode & 0o004
    return own | (readers | readers >> 2) & others
