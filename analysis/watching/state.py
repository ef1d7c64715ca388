"""What a watch remembers: a small file, whole at any moment, that one watch at a time holds."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import msgspec

from ...common.disk import close, held
from ..core.places.files import replace_file
from ..core.small_files import NotJson, json_file
from ..errors import UnreadableFile, WatchedAlready
from ..reading.cache import own_folder
from .done import DoneCycles, LastTrace, joined_ranges

_VERSION = 1
_NAME = ".commtrace-watch.json"


class _Remembered(msgspec.Struct):
    """The file, as JSON. `workers` has of each process the number in the name of its last trace, and its cycle."""

    schema_version: int
    run: str
    run_id: str
    run_json: str | None
    reported: list[tuple[int, int]]
    workers: dict[str, tuple[int, int]]
    world_size: int | None = None
    limits: list[str] = []
    passed: str | None = None


@dataclass(frozen=True)
class Remembered:
    """What was reported of which run, how many ranks it has; and which of the limits was passed first, in words.

    `run_id` is what rows of the run have; `run_json` tells runs apart that were in one folder, if they have a run.json.
    """

    run: str
    run_id: str
    run_json: str | None
    done: DoneCycles = field(default_factory=DoneCycles)
    world_size: int | None = None
    limits: tuple[str, ...] = ()
    passed: str | None = None

    def is_of(self, run_json: str | None) -> bool:
        """Whether it is about this run. A run.json that came later than the first traces makes it no other."""
        return None in (self.run_json, run_json) or self.run_json == run_json


class FolderGone(Exception):
    """The run's folder, in which the state would be, was removed."""


class StateFile:
    """A file that remembers a run. While it is held no other watch can hold it, as far as the file system has locks."""

    def __init__(self, run: Path, named: Path | None) -> None:
        """The file that is named, held from now on; else the usual one of the run, made when it is first held.

        In a folder that is still empty nothing is made before: a capture would take it for one that is in use.
        """
        self._run, self._named, self.path = run, named, named or run / _NAME
        self._lock: int | None = None
        self.has_locks = True
        if named is not None:
            self._hold_this()

    @property
    def is_in_run(self) -> bool:
        """Whether it is in the run's folder, and goes with that."""
        return self.path.parent == self._run

    def hold(self) -> None:
        """Keep other watches from it until this process ends. Raises FolderGone, WatchedAlready, UnreadableFile."""
        if self._named is None:
            self.path = _usual_place(self._run)
            self._hold_this()

    def _hold_this(self) -> None:
        self.close()  # that of a folder which another one has taken the place of
        lock = self.path.with_name(f"{self.path.name}.lock")
        try:
            if not self.is_in_run:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock, self.has_locks = held(lock)
        except BlockingIOError as err:
            raise WatchedAlready(f"{self.path}: another watch uses it; end that one, or name a --state") from err
        except OSError as err:
            if self.is_in_run and not self._run.is_dir():
                raise FolderGone from err
            raise UnreadableFile(f"{lock}: cannot be written: {err.strerror}; name another file by --state") from err

    def close(self) -> None:
        """Let others have it."""
        if self._lock is not None:
            close(self._lock)
            self._lock = None

    def read(self) -> Remembered | None:
        """What is remembered; None if there is no file. Raises UnreadableFile."""
        try:
            found = msgspec.convert(json_file(self.path), _Remembered)
        except FileNotFoundError:
            return None
        except (OSError, NotJson, msgspec.ValidationError) as err:
            why = err.strerror if isinstance(err, OSError) else err
            raise UnreadableFile(f"{self.path}: is not the state of a watch: {why}; remove it to begin anew") from err
        if found.schema_version != _VERSION:
            raise UnreadableFile(
                f"{self.path}: has schema_version {found.schema_version}, expected {_VERSION}; upgrade commtrace, or "
                "remove it to begin anew"
            )
        last = {worker: LastTrace(*trace) for worker, trace in found.workers.items()}
        done = DoneCycles(joined_ranges(found.reported), last)
        named = (found.run, found.run_id, found.run_json)
        return Remembered(*named, done, found.world_size, tuple(found.limits), found.passed)

    def write(self, remembered: Remembered) -> None:
        """Remember this, whole or not at all; nowhere if the run's folder has gone. Raises UnreadableFile."""
        content = msgspec.json.encode(_Remembered(
            schema_version=_VERSION,
            run=remembered.run,
            run_id=remembered.run_id,
            run_json=remembered.run_json,
            reported=list(remembered.done.ranges),
            workers={worker: (last.number, last.cycle) for worker, last in remembered.done.last.items()},
            world_size=remembered.world_size,
            limits=list(remembered.limits),
            passed=remembered.passed,
        ))  # fmt: skip
        try:
            replace_file(self.path, [content, b"\n"])
        except OSError as err:
            if self.is_in_run and not self._run.is_dir():
                return
            raise UnreadableFile(f"{self.path}: cannot be written: {err.strerror}; name another by --state") from err


def _usual_place(folder: Path) -> Path:
    """In the folder of the run or, where that cannot be written to, in the user's cache folder."""
    inside, own = folder / _NAME, own_folder()
    if own is None or os.access(folder, os.W_OK):
        return inside
    return own / "watch" / f"{sha256(os.fsencode(folder.resolve())).hexdigest()[:16]}.json"
