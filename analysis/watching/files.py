"""What is in a run directory at a moment. Only here, paths of it are made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ...common.disk import close, held_folder
from ...contract.rank import META_SUFFIX, STILL_RUNNING
from ...contract.recording import RECORDING_SUFFIX
from ...contract.run import RUN_FILE
from ..core.escaping import encodable
from ..core.small_files import small_file
from ..formats.registry import format_named_like, name_parts
from ..reading.trace_files import is_side_file, run_name
from ..run.side_files import rank_file

_ID_DIGITS = 12

FileStates = tuple[tuple[int, ...] | None, ...]
"""The state of some files, as far as that can be told without reading them; None for one that is not there."""


class RankFacts(NamedTuple):
    """What the side file of a process says: how many ranks there are, whether it has ended, and why too early."""

    world_size: int | None
    has_ended: bool
    reason: str | None


@dataclass
class Listing:
    """Traces by the process that wrote them and the number in their name; side files by process.

    Of traces that are done with, only how many there are of each process.
    """

    traces: dict[str, dict[int, str]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    sides: dict[str, RankFacts] = field(default_factory=dict)


class RunFolder:
    """A run directory, which may not be there yet, looked at again and again. Unchanged side files are read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sides: dict[str, tuple[FileStates, RankFacts]] = {}
        self._held: int | None = None

    @property
    def name(self) -> str:
        """The name of the run."""
        return run_name([self.path])

    def listing(self, is_done: Callable[[str, int], bool]) -> Listing | None:
        """What is there but for traces that are done with; None if there is no such folder. Raises OSError.

        Where a trace and its recording stand beside each other, the trace counts, with which the recording is read.
        """
        try:
            entries = os.scandir(self.path)
        except FileNotFoundError:
            return None
        found, others, side_names = Listing(), list[str](), list[str]()
        with entries:
            for entry in entries:
                name = entry.name
                if name.endswith(META_SUFFIX):
                    side_names.append(name)
                elif parts := name_parts(name):
                    worker = encodable(parts.worker)
                    of_worker = found.traces.setdefault(worker, {})
                    if is_done(worker, parts.cycle):
                        found.done[worker] = found.done.get(worker, 0) + 1
                    elif (parts.cycle not in of_worker or not name.endswith(RECORDING_SUFFIX)) and _is_file(entry):
                        of_worker[parts.cycle] = name
                elif name[0] != "." and not is_side_file(name) and format_named_like(name) and _is_file(entry):
                    others.append(name)
        if not found.traces:  # as everywhere: traces of other names count if there are none with the usual ones
            found.traces = {encodable(name): {} if is_done(encodable(name), 0) else {0: name} for name in others}
        found.sides = {encodable(name.removesuffix(META_SUFFIX)): self._side(name) for name in side_names}
        self._sides = {name: self._sides[name] for name in side_names}
        return found

    def hold(self) -> None:
        """Remember which folder is there now. Raises OSError."""
        held = held_folder(self.path)
        self.let_go()
        self._held = held

    def let_go(self) -> None:
        """Remember none."""
        if self._held is not None:
            close(self._held)
            self._held = None

    @property
    def is_held(self) -> bool:
        """Whether the folder is the one that is remembered, and not one that was made in its place.

        That one is open, so that its number cannot be given to another one.
        """
        if self._held is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._held), self.path.stat())
        except OSError:  # on a network, what another machine removed is stale
            return False

    def paths(self, names: Iterable[str]) -> list[Path]:
        """Where these files are."""
        return [self.path / name for name in sorted(names)]

    def stamp(self, names: Iterable[str]) -> FileStates:
        """The state that these files are in."""
        return tuple(_state(self.path / name) for name in sorted(names))

    def run_json(self) -> str | None:
        """What tells this run's run.json from others that were in the folder before; None without one."""
        try:
            return sha256(small_file(self.path / RUN_FILE)).hexdigest()[:_ID_DIGITS]
        except OSError:
            return None

    def _side(self, name: str) -> RankFacts:
        stamp = self.stamp([name])
        known = self._sides.get(name)
        if known is None or known[0] != stamp:
            record = rank_file(self.path / name, []).record
            ended = record.complete is True or (record.complete is False and record.reason not in (None, STILL_RUNNING))
            self._sides[name] = known = stamp, RankFacts(record.world_size, ended, record.reason if ended else None)
        return known[1]


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Rather than a pipe, reading which may never end."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino
