"""Send small files of all ranks to rank 0 through the store, since nodes need not share a file system.

    rank N                                      rank 0
    N/I/0, N/I/1, ... = file I, in chunks       looks whether a label is there, for each rank that it awaits,
    arrived/N         = the parcel's label      takes and deletes what the label names

A label is written last: what it names is there. Nobody waits for rank 0, and rank 0 waits for others as long as it is
told. A collective would need a communicator, and would block where a rank is gone. The store is held from the
beginning, so that it is there when the process group no longer is.

Others may write to the store, too. A label has a seal, and digests of what it names; its numbers are bounded by what
this capture can have written. What does not verify is left where it is, and the rank is awaited on.
"""

import atexit
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ....contract.rank import META_SUFFIX
from ....contract.run import RUN_FILE
from ...base import run_directory as rundir
from ...errors import RunDirError
from ...ranks import process_group as parallel
from ...ranks import secret
from ...ranks.process_group import Identity
from .messages import Messages

if TYPE_CHECKING:
    from ...base.torch_private import Store

_POLL_S = 0.01
_THREAD_GRACE_S = 0.5
# For a thread that waits for the store when Python ends: its return into a Python that is gone aborts the process.
_AT_EXIT_S = 5.0
_TOGETHER_S = 0.001
_CHUNK_BYTES = 1 << 20  # TCPStore refuses values of 8 MiB
_MARK_BYTES = 64
_REASON_LETTERS = 500
_LABEL_BYTES, _FILE_BYTES = 8192, 512  # in JSON: what a label is at most, and each file in it
# How long what did not verify is left alone, as reading it costs time: at first, and after it did not again and again.
_LEFT_ALONE_S, _LONGEST_ALONE_S = 0.1, 5.0
_OF_RANK = r"[A-Za-z0-9_-]{{1,200}}_{}\.([0-9]{{1,20}}\.pt\.trace\.ctrace|meta\.json)"

SAME_SECRET = f"{secret.VARIABLE} has to be the same for all ranks"

_T = TypeVar("_T")


class HandOverError(Exception):
    """The reason why the hand-over failed or is incomplete, in one line."""


class _ForgedError(Exception):
    """A message on the store was not written by a rank of this run."""


@dataclass(frozen=True)
class Parcel:
    """Files by name that one rank hands to rank 0, and the reason if some are missing."""

    files: Sequence[tuple[str, bytes]] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Allowance:
    """Limits of what one rank may hand over."""

    bytes: int
    files: int


@dataclass(frozen=True)
class Taken:
    """Ranks missing on rank 0, with the reason; and ranks whose messages did not verify."""

    missing: dict[int, str]
    forged: tuple[int, ...] = ()


class HandOver:
    """The hand-over of one capture, as seen by one rank. Every rank makes one, inside `capture()`.

    `key` tells this capture from others of its run, and `known` is the run's secret.
    """

    def __init__(self, store: "Store", who: Identity, key: str, known: bytes = b"") -> None:
        self._messages = Messages(store, key, known)
        self._who = who

    @staticmethod
    def of(who: Identity) -> "HandOver | None":
        """The hand-over through the default process group's store; None without it or without other ranks."""
        store = parallel.default_store()
        if store is None or who.world_size == 1:
            return None
        return HandOver(store, who, f"commtrace/hand_over/{parallel.entries(store, who)}", secret.of_run())

    def announce(self, run_dir: Path) -> None:
        """As rank 0, announce the mark of its folder."""
        self._messages.post("folder", _mark(run_dir).encode())

    def give(self, run_dir: Path, parcel: Callable[[], Parcel], most_bytes: int, is_over: Callable[[], bool]) -> bool:
        """As another rank, hand over what `parcel` returns; False if rank 0 sees `run_dir` itself.

        Returns when that is in the store. Raises HandOverError.
        """
        return _bounded(lambda: self._handed_over(run_dir, parcel, most_bytes, is_over), is_over)

    def until_closed(self, is_over: Callable[[], bool]) -> None:
        """As another rank, wait until rank 0 is finished, so that all ranks go on together."""

        def closed() -> None:
            while not self._is_closed() and not is_over():
                time.sleep(_TOGETHER_S)

        with suppress(HandOverError):  # the server is gone, and rank 0 with it
            _bounded(closed, is_over)

    def take(self, run_dir: Path, most: Allowance, is_over: Callable[[], bool]) -> Taken:
        """As rank 0, write what the others hand over to `run_dir`, at most `most` of each rank.

        No file is replaced.
        """
        taking = _Taking(self._messages, run_dir, most, range(1, self._who.world_size), is_over)
        try:
            _bounded(taking.run, is_over)
        except HandOverError as err:
            return taking.taken(str(err))
        return taking.taken("no word came")

    def _is_closed(self) -> bool:
        return self._messages.read("closed", 0) is not None

    def _handed_over(
        self, run_dir: Path, parcel: Callable[[], Parcel], most_bytes: int, is_over: Callable[[], bool]
    ) -> bool:
        if self._is_closed():
            raise HandOverError("rank 0 no longer waited for this rank")
        folder = (self._messages.read("folder", _MARK_BYTES) or b"").decode("ascii", "replace")
        if "folder" in self._messages.forged:
            raise HandOverError(f"what the store says of rank 0 does not verify; {SAME_SECRET}")
        shared = bool(folder) and folder == _mark(run_dir)
        given = Parcel() if shared else parcel()
        size = sum(len(content) for _, content in given.files)
        if size > most_bytes:
            why = f"{size:,} bytes are more than this rank's share of --analyse-max-gb, {most_bytes:,}"
            self._send(Parcel(reason=why), folder, is_over)
            raise HandOverError(why)
        self._send(given, folder, is_over, shared=shared)
        return not shared

    def _send(self, parcel: Parcel, folder: str, is_over: Callable[[], bool], *, shared: bool = False) -> None:
        rank = self._who.rank
        for place, (_, content) in enumerate(parcel.files):
            for number, begin in enumerate(range(0, len(content), _CHUNK_BYTES)):
                _check_time(is_over)
                self._messages.put_piece(f"{rank}/{place}/{number}", content[begin : begin + _CHUNK_BYTES])
        files = [_File(name, len(content), hashlib.sha256(content).hexdigest()) for name, content in parcel.files]
        reason = parcel.reason and parcel.reason[:_REASON_LETTERS]
        label = json.dumps(asdict(_Label(folder, files, reason, shared)))
        self._messages.post(f"arrived/{rank}", label.encode())


@dataclass(frozen=True)
class _File:
    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class _Label:
    """The description of a rank's parcel; `folder` is rank 0's announcement, so that no other run's label counts."""

    folder: str
    files: Sequence[_File]
    reason: str | None
    shared: bool


def _label(content: bytes, rank: int, most: Allowance) -> _Label:
    """Decode a label written by `_send`. Raises _ForgedError."""
    try:
        record = json.loads(content)
        files = [_File(**file) for file in record["files"]]
        label = _Label(**{**record, "files": files})
    except (ValueError, TypeError, KeyError, RecursionError) as err:
        raise _ForgedError from err
    name = re.compile(_OF_RANK.format(rank))
    fits = (
        isinstance(label.folder, str)
        and isinstance(label.shared, bool)
        and (label.reason is None or isinstance(label.reason, str))
        and len(files) <= most.files
        and all(isinstance(file.name, str) and name.fullmatch(file.name) for file in files)
        and all(type(file.size) is int and 0 <= file.size <= most.bytes for file in files)
        and sum(file.size for file in files) <= most.bytes
        and len({file.name for file in files}) == len(files)
    )
    if not fits:
        raise _ForgedError
    return label


class _Taking:
    """Rank 0 while it takes parcels."""

    def __init__(
        self, messages: Messages, run_dir: Path, most: Allowance, ranks: Sequence[int], is_over: Callable[[], bool]
    ) -> None:
        self._messages = messages
        self._run_dir = run_dir
        self._folder = _mark(run_dir)
        self._most = most
        self._awaited = set(ranks)
        self._is_over = is_over
        self._reasons: dict[int, str] = {}
        self._in_folder: set[int] = set()
        self._left_alone_s: dict[int, float] = {}
        self._look_again_s: dict[int, float] = {}

    def run(self) -> None:
        """Take parcels until all are there, or the time is over."""
        try:
            while self._awaited and not self._is_over():
                begin_s = time.monotonic()
                for rank in sorted(self._awaited):
                    if self._is_over():
                        return
                    self._look(rank)
                time.sleep(max(_POLL_S, time.monotonic() - begin_s))  # thousands of ranks keep the store busy
        finally:
            self._messages.post("closed", b"")

    def taken(self, why: str) -> Taken:
        """The result; `why` is the reason for ranks that are still awaited."""
        awaited, reasons = set(self._awaited), dict(self._reasons)  # a thread may still be at work
        missing = dict.fromkeys(awaited, why) | reasons
        here = _ranks_here(self._run_dir) if self._in_folder else set()
        missing |= dict.fromkeys(self._in_folder - here, "it says that it writes here, and there is nothing of it")
        return Taken(dict(sorted(missing.items())), tuple(sorted(self._left_alone_s)))

    def _look(self, rank: int) -> None:
        if time.monotonic() < self._look_again_s.get(rank, 0):
            return
        name = f"arrived/{rank}"
        content = self._messages.read(name, _LABEL_BYTES + _FILE_BYTES * self._most.files)
        if content is None and name not in self._messages.forged:
            return  # its rank has not come so far
        self._messages.forged.discard(name)
        try:
            if content is None:
                raise _ForgedError
            self._unpack(rank, _label(content, rank, self._most))
        except _ForgedError:
            alone_s = min(_LONGEST_ALONE_S, 2 * self._left_alone_s.get(rank, _LEFT_ALONE_S / 2))
            self._left_alone_s[rank] = alone_s
            self._look_again_s[rank] = time.monotonic() + alone_s
            return
        self._messages.remove(name)

    def _unpack(self, rank: int, label: _Label) -> None:
        """Write the files of a label. Raises _ForgedError, HandOverError."""
        if label.folder != self._folder:
            raise _ForgedError
        reason = label.reason and _plain(label.reason)
        try:
            for place, file in enumerate(label.files):
                _check_time(self._is_over)
                path = self._run_dir / file.name
                if not path.exists():
                    rundir.write_pieces(path, self._pieces(rank, place, file))
        except RunDirError as err:
            reason = str(err)
        if label.shared:
            self._in_folder.add(rank)
        elif reason:
            self._reasons[rank] = reason
        self._awaited.remove(rank)

    def _pieces(self, rank: int, place: int, file: _File) -> Iterator[bytes]:
        """Yield the content of a file, complete if it ends. Raises _ForgedError, HandOverError."""
        digest = hashlib.sha256()
        for number, begin in enumerate(range(0, file.size, _CHUNK_BYTES)):
            _check_time(self._is_over)
            piece = self._messages.take_piece(f"{rank}/{place}/{number}")
            if piece is None or len(piece) != min(_CHUNK_BYTES, file.size - begin):
                raise _ForgedError
            digest.update(piece)
            yield piece
        if digest.hexdigest() != file.sha256:
            raise _ForgedError


def _check_time(is_over: Callable[[], bool]) -> None:
    """Raise HandOverError if the time is over."""
    if is_over():
        raise HandOverError("there was not enough time")


def _plain(text: str) -> str:
    """Text of another process as one line that cannot control a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_REASON_LETTERS])


def _ranks_here(run_dir: Path) -> set[int]:
    """Ranks whose side files are in the folder."""
    try:
        names = [path.name for path in run_dir.iterdir()]
    except OSError:
        return set()
    ranks = (re.fullmatch(rf".*_([0-9]{{1,9}}){re.escape(META_SUFFIX)}", name) for name in names)
    return {int(rank[1]) for rank in ranks if rank}


def _bounded(action: Callable[[], _T], is_over: Callable[[], bool]) -> _T:
    """Run `action` in a thread and return its result, unless the store never answers.

    A store whose server is gone may not answer ever: then this ends, and the thread waits. Raises HandOverError.
    """
    results: list[_T] = []
    errors: list[Exception] = []

    def act() -> None:
        try:
            results.append(action())
        except Exception as err:  # noqa: BLE001  (it is told)
            errors.append(err)

    thread = threading.Thread(target=act, name="commtrace-hand-over", daemon=True)
    thread.start()
    while thread.is_alive() and not is_over():
        thread.join(_POLL_S)
    thread.join(_THREAD_GRACE_S)
    if thread.is_alive():
        atexit.register(thread.join, _AT_EXIT_S)
    if results:
        return results[0]
    if not errors:
        raise HandOverError("the store of the process group did not answer in time")
    error = errors[0]
    if isinstance(error, HandOverError):
        raise error
    raise HandOverError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error


def _mark(run_dir: Path) -> str:
    """A mark that distinguishes this run directory from all others."""
    try:
        return hashlib.sha256((run_dir / RUN_FILE).read_bytes()).hexdigest()
    except OSError:
        return ""
