"""What was reported of a run: a small file that outlives the watch, and the file of rows.

A row is written first, then remembered. Whoever is killed in between leaves a row that is not remembered: the next
watch finds it in the file of rows, and does not write it again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ...common.disk import close, held
from ..core.places.files import replace_file
from ..core.schema import Row
from ..core.small_files import NotJson, json_file
from ..core.tables.cycles import CYCLES
from ..errors import UnreadableFile, WatchedAlready
from ..reading.cache import own_folder
from .done import Cycle, DoneCycles, LastTrace, joined_ranges
from .row_file import RowFile

_NAME = ".commtrace-watch.json"
_VERSION = 1
_ID_BYTES = 6


class FolderGone(Exception):
    """The run's folder, in which the state would be, was removed."""


class Remembered(msgspec.Struct, frozen=True):
    """The state of a watch, as its JSON file has it: what was reported of which run.

    `run_id` is what rows of the run have; `run_json` tells runs apart that were in one folder, if they have a run.json.
    `reported` are ranges of cycles; `workers` has the last reported trace of each process. `passed` says in which cycle
    one of the `limits` was passed first, and by how much.
    """

    schema_version: int
    run: str
    run_id: str
    run_json: str | None
    reported: tuple[tuple[int, int], ...] = ()
    workers: Mapping[str, LastTrace] = {}
    world_size: int | None = None
    limits: tuple[str, ...] = ()
    passed: str | None = None

    @property
    def done(self) -> DoneCycles:
        """What was reported."""
        return DoneCycles(self.reported, self.workers)

    def is_of(self, run_json: str | None) -> bool:
        """Whether it is about this run. A run.json that came later than the first traces makes it no other."""
        return None in (self.run_json, run_json) or self.run_json == run_json


class Ledger:
    """Knows which cycles of a run were reported, also by watches before this one.

    No other watch can use the same files until this one ends, if the file system has locks.
    """

    def __init__(self, folder: Path, state: Path | None = None, rows: Path | None = None) -> None:
        """The state in the file that is named, held from now on; else in the usual one, held when a run begins.

        In a folder that is still empty nothing is made before: a capture would take it for one that is in use.
        Raises UnreadableFile, WatchedAlready.
        """
        self._folder, self._named, self._path = folder, state, state or folder / _NAME
        self._lock: int | None = None
        self._now: Remembered | None = None
        self.has_locks = True
        self.unseen: Row | None = None
        """A row that was written, but not remembered, and so perhaps not shown."""
        if state is not None:
            self._hold()
        self._rows = None if rows is None else RowFile(rows)

    @property
    def has_begun(self) -> bool:
        """Whether it knows which run it is about."""
        return self._now is not None

    def is_of(self, run_json: str | None) -> bool:
        """Whether that is still the one with this run.json; another one may have taken its place in the folder."""
        return self._now is not None and self._now.is_of(run_json)

    @property
    def done(self) -> DoneCycles:
        """What was reported."""
        return DoneCycles() if self._now is None else self._now.done

    @property
    def remembered(self) -> Remembered:
        """All that is remembered of the run."""
        assert self._now is not None
        return self._now

    def begin(self, run: str, run_json: str | None, *, made_again: bool = False) -> Remembered | None:
        """Begin with what is known of this run; return what was remembered of another one in the same place.

        Where its folder was made again, what is remembered outside of it is about the one before, unless run.json is
        the same. Raises FolderGone, WatchedAlready, UnreadableFile.
        """
        if self._named is None:
            self._path = _usual_place(self._folder)
            self._hold()
        before = self._read()
        is_same = before is not None and before.is_of(run_json)
        if before is not None and made_again and not self._is_in_run:
            is_same = None not in (before.run_json, run_json) and before.run_json == run_json
        if before is not None and is_same:
            now, other = replace(before, run=run, run_json=run_json or before.run_json), None
        else:
            # Without a run.json, nothing but what is remembered in its folder tells it from a later run there.
            now, other = Remembered(_VERSION, run, run_json or os.urandom(_ID_BYTES).hex(), run_json), before
            self._save(now)
        if self._rows is not None:
            written = self._rows.rows_of(now.run_id)
            if written.last is not None and not now.done.has(written.last["cycle"]):
                self.unseen = written.last
            now = replace(now, reported=joined_ranges([*now.reported, *written.ranges]))
        self._now = now
        return other

    def write(self, row: Row) -> None:
        """Make the row last. Raises UnreadableFile."""
        if self._rows is not None:
            self._rows.append(row)

    def remember(self, row: Row, traces: Cycle, limits: tuple[str, ...]) -> None:
        """Remember that this row was shown, and the first of the limits that was passed. Raises UnreadableFile."""
        now = self.remembered
        if now.limits != limits:
            now = replace(now, limits=limits, passed=None)
        passed = None if row["limits"] is None else f"cycle {row['cycle']}: {row['limits']}"
        done = now.done.with_cycle(row["cycle"], traces)
        self._now = replace(
            now,
            reported=done.ranges,
            workers=done.last,
            world_size=row["world_size"] or now.world_size,
            passed=now.passed or passed,
        )
        self._save(self._now)

    def passed(self, limits: tuple[str, ...]) -> str | None:
        """In which cycle limits were passed first, and which, also before a watch with the same ones began anew."""
        return self._now.passed if self._now is not None and self._now.limits == limits else None

    def close(self) -> None:
        """Let others have its files."""
        self._let_go()
        if self._rows is not None:
            self._rows.close()

    # --- the state ---------------------------------------------------------------------------------------------------

    @property
    def _is_in_run(self) -> bool:
        """Whether the state is in the run's folder, and goes with that."""
        return self._path.parent == self._folder

    def _hold(self) -> None:
        """Keep other watches from the state. Raises FolderGone, WatchedAlready, UnreadableFile."""
        self._let_go()  # that of a folder which another one has taken the place of
        lock = self._path.with_name(f"{self._path.name}.lock")
        try:
            if not self._is_in_run:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock, self.has_locks = held(lock)
        except BlockingIOError as err:
            raise WatchedAlready(f"{self._path}: another watch uses it; end that one, or name a --state") from err
        except OSError as err:
            if self._is_in_run and not self._folder.is_dir():
                raise FolderGone from err
            raise UnreadableFile(f"{lock}: cannot be written: {err.strerror}; name another file by --state") from err

    def _let_go(self) -> None:
        if self._lock is not None:
            close(self._lock)
            self._lock = None

    def _read(self) -> Remembered | None:
        """What is remembered; None if there is no file. Raises UnreadableFile."""
        try:
            found = msgspec.convert(json_file(self._path), Remembered)
        except FileNotFoundError:
            return None
        except (OSError, NotJson, msgspec.ValidationError) as err:
            why = err.strerror if isinstance(err, OSError) else err
            raise UnreadableFile(f"{self._path}: is not the state of a watch: {why}; remove it to begin anew") from err
        if found.schema_version != _VERSION:
            raise UnreadableFile(
                f"{self._path}: has schema_version {found.schema_version}, expected {_VERSION}; upgrade commtrace, or "
                "remove it to begin anew"
            )
        return replace(found, reported=joined_ranges(found.reported))

    def _save(self, now: Remembered) -> None:
        """Remember this, whole or not at all; nowhere if the run's folder has gone. Raises UnreadableFile."""
        try:
            replace_file(self._path, [msgspec.json.encode(now), b"\n"])
        except OSError as err:
            if self._is_in_run and not self._folder.is_dir():
                return
            raise UnreadableFile(f"{self._path}: cannot be written: {err.strerror}; name another by --state") from err


def _usual_place(folder: Path) -> Path:
    """In the folder of the run or, where that cannot be written to, in the user's cache folder."""
    inside, own = folder / _NAME, own_folder()
    if own is None or os.access(folder, os.W_OK):
        return inside
    return own / "watch" / f"{sha256(os.fsencode(folder.resolve())).hexdigest()[:16]}.json"


def numbered(run: str, run_id: str | None, cycle: int, row: Mapping[str, object]) -> Row:
    """The row of a cycle with all columns, also those that tell it from others."""
    known = {"run": run, "run_id": run_id, "cycle": cycle, **row}
    return {column: known.get(column) for column in CYCLES.columns}
