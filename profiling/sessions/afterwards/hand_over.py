"""Small files of all ranks -> rank 0, through the store of the process group: nodes need not share a file system.

    rank N                                      rank 0
    N/0, N/1, ...  = content, in chunks         takes and deletes them,
    arrived/K      = a parcel's label           for K = 1, 2, ... as `arrivals` counts them

A label is written last: what it names is there. Nobody waits for rank 0, and rank 0 waits for others as long as it is
told. A collective would need a communicator, and would block where a rank is gone. The store is held from the
beginning, so that it is there when the process group no longer is.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from ...base import run_directory as rundir
from ...errors import RunDirError
from ...ranks import process_group as parallel
from ...ranks.process_group import Identity

if TYPE_CHECKING:
    from ...base.torch_private import Store

_POLL_S = 0.01
_LAST_WORDS_S = 0.5
_TOGETHER_S = 0.001
_CHUNK_BYTES = 1 << 20  # TCPStore refuses values of 8 MiB
_MOST_FILES = 10_000
_OF_RANK = r"[A-Za-z0-9_-]+_{}\.(\d+\.pt\.trace\.ctrace|meta\.json)"

_T = TypeVar("_T")


class HandOverError(Exception):
    """Why nothing, or not all, was handed over, in one line."""


@dataclass(frozen=True)
class Parcel:
    """What one rank has for rank 0: files by name, and in words why they are not all that was expected."""

    files: Sequence[tuple[str, bytes]] = ()
    reason: str | None = None


class HandOver:
    """The hand-over of one capture, as one of its ranks sees it. Every rank makes one, inside `capture()`."""

    def __init__(self, store: "Store", who: Identity, key: str) -> None:
        self._store: Any = dist.distributed_c10d.PrefixStore(key, store)
        self._who = who

    @staticmethod
    def of(who: Identity) -> "HandOver | None":
        """With the store of the default process group; None without one, or without other ranks."""
        store = parallel.default_store()
        if store is None or who.world_size == 1:
            return None
        return HandOver(store, who, f"commtrace/hand_over/{parallel.entries(store, who)}")

    def announce(self, run_dir: Path) -> None:
        """As rank 0, say what its folder is recognised by."""
        self._store.set("folder", _mark(run_dir))

    def give(self, run_dir: Path, parcel: Callable[[], Parcel], most_bytes: int, is_over: Callable[[], bool]) -> bool:
        """As any other rank, hand over what `parcel` returns; False if rank 0 sees `run_dir` itself.

        Returns when that is in the store. Raises HandOverError.
        """
        return _bounded(lambda: self._given(run_dir, parcel, most_bytes), is_over)

    def until_closed(self, is_over: Callable[[], bool]) -> None:
        """As any other rank, wait until rank 0 takes no more: ranks that part here go on together."""

        def closed() -> None:
            while not self._store.check(["closed"]) and not is_over():
                time.sleep(_TOGETHER_S)

        with suppress(HandOverError):  # the server is gone, and rank 0 with it
            _bounded(closed, is_over)

    def take(self, run_dir: Path, most_bytes: int, is_over: Callable[[], bool]) -> dict[int, str]:
        """As rank 0, write what the others hand over into `run_dir`; which ranks are missing there, and why.

        No file is replaced.
        """
        taking = _Taking(self._store, run_dir, most_bytes, range(1, self._who.world_size))
        try:
            _bounded(lambda: taking.until(is_over), is_over)
        except HandOverError as err:
            return taking.missing(str(err))
        return taking.missing("nothing was heard of it")

    def _given(self, run_dir: Path, parcel: Callable[[], Parcel], most_bytes: int) -> bool:
        if self._store.check(["closed"]):
            raise HandOverError("rank 0 no longer waited for this rank")
        shared = self._store.check(["folder"]) and self._store.get("folder").decode() == (_mark(run_dir) or None)
        given = Parcel() if shared else parcel()
        size = sum(len(content) for _, content in given.files)
        if size > most_bytes:
            why = f"{size:,} bytes are more than this rank's share of --analyse-max-gb, {most_bytes:,}"
            self._send(Parcel(reason=why), shared=False)
            raise HandOverError(why)
        self._send(given, shared=shared)
        return not shared

    def _send(self, parcel: Parcel, *, shared: bool) -> None:
        rank, content = self._who.rank, b"".join(content for _, content in parcel.files)
        chunks = range(0, len(content), _CHUNK_BYTES)
        for number, begin in enumerate(chunks):
            self._store.set(f"{rank}/{number}", content[begin : begin + _CHUNK_BYTES])
        label = {
            "rank": rank,
            "files": [[name, len(content)] for name, content in parcel.files],
            "chunks": len(chunks),
            "reason": parcel.reason,
            "shared": shared,
        }
        self._store.set(f"arrived/{self._store.add('arrivals', 1)}", json.dumps(label))


class _Taking:
    """Rank 0 while it takes parcels. They come from a store to which others may write, too."""

    def __init__(self, store: Any, run_dir: Path, most_bytes: int, ranks: Sequence[int]) -> None:
        self._store = store
        self._run_dir = run_dir
        self._left_bytes = most_bytes
        self._awaited = set(ranks)
        self._reasons: dict[int, str] = {}
        self._seen = 0
        self._slots: set[int] = set()  # taken by ranks, and still empty

    def until(self, is_over: Callable[[], bool]) -> None:
        """Take parcels until all are there, or `is_over` says that no more are taken."""
        try:
            while self._awaited and not is_over():
                self._look()
                time.sleep(_POLL_S)
        finally:
            self._store.set("closed", "")

    def missing(self, why: str) -> dict[int, str]:
        """Ranks whose files are not all there, and why; `why` is for those that are still awaited."""
        silent = dict.fromkeys(self._awaited, why)
        return dict(sorted({**silent, **self._reasons}.items()))

    def _look(self) -> None:
        count = self._store.add("arrivals", 0)
        self._slots.update(range(self._seen + 1, count + 1))
        self._seen = count
        for slot in sorted(self._slots):
            key = f"arrived/{slot}"
            if self._store.check([key]):  # else its rank is writing it, or was killed
                self._slots.remove(slot)
                self._unpack(self._taken(key))

    def _unpack(self, label: bytes) -> None:
        try:
            given = json.loads(label)
            rank, files = int(given["rank"]), [(str(name), int(size)) for name, size in given["files"][:_MOST_FILES]]
            chunks, reason, shared = int(given["chunks"]), given["reason"], given["shared"] is True
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # not from a rank of ours, which stays missing
        if rank not in self._awaited:
            return
        try:
            self._write(rank, files, chunks)
        except (HandOverError, RunDirError) as err:
            reason = str(err)
        self._awaited.remove(rank)
        if reason and not shared:
            self._reasons[rank] = str(reason)

    def _write(self, rank: int, files: Sequence[tuple[str, int]], chunks: int) -> None:
        total = sum(size for _, size in files)
        if total > self._left_bytes or any(size < 0 for _, size in files) or chunks > total // _CHUNK_BYTES + 1:
            raise HandOverError("it hands over more than --analyse-max-gb allows")
        self._left_bytes -= total
        content = b"".join(self._taken(f"{rank}/{number}") for number in range(chunks))
        if len(content) != total or not all(re.fullmatch(_OF_RANK.format(rank), name) for name, _ in files):
            raise HandOverError("what it handed over is not what it said, or not its own")
        begin = 0
        for name, size in files:
            path = self._run_dir / name
            if not path.exists():
                rundir.write_bytes(path, content[begin : begin + size])
            begin += size

    def _taken(self, key: str) -> bytes:
        if not self._store.check([key]):  # else `get` would wait
            raise HandOverError("a part of what it handed over is missing")
        found: bytes = self._store.get(key)
        with suppress(RuntimeError, NotImplementedError):  # not every store can
            self._store.delete_key(key)
        return found


def _bounded(action: Callable[[], _T], is_over: Callable[[], bool]) -> _T:
    """What `action` returns. A store whose server is gone may not answer ever: then this ends, and the thread waits.

    Raises HandOverError.
    """
    found: list[_T] = []
    errors: list[Exception] = []

    def act() -> None:
        try:
            found.append(action())
        except Exception as err:  # noqa: BLE001  (it is told)
            errors.append(err)

    thread = threading.Thread(target=act, name="commtrace-hand-over", daemon=True)
    thread.start()
    while thread.is_alive() and not is_over():
        thread.join(_POLL_S)
    thread.join(_LAST_WORDS_S)
    if found:
        return found[0]
    if not errors:
        raise HandOverError("the store of the process group did not answer in time")
    error = errors[0]
    if isinstance(error, HandOverError):
        raise error
    raise HandOverError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error


def _mark(run_dir: Path) -> str:
    """What tells this run directory from all others."""
    try:
        return hashlib.sha256((run_dir / rundir.RUN_FILE).read_bytes()).hexdigest()
    except OSError:
        return ""
