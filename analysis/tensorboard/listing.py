"""The list of runs below a folder: read in the background, a few at a time, while somebody looks at it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock, Thread
from time import monotonic

from ..core.escaping import printable
from ..core.schema import Row
from .runs import Stamp, runs_below, stamp_of

RowReader = Callable[[Path], Row]
"""Reads the row of a run. Raises NotListed, and OSError where it might work later."""

_AT_ONCE = 2
"""Runs that are read at a time; each takes a core, and the memory of a run."""
_LOOKED_AT_S = 60.0
"""Nothing more is read once nobody has asked for so long."""
_FOUND_FOR_S = 3.0
"""How long folders are not looked through again: the page asks more often while runs are read."""


class NotListed(Exception):
    """The reason why nothing is known of a run."""


class RunList:
    """A row for each run below a folder, kept until a trace changes. Asking takes no longer than looking for runs."""

    def __init__(self, root: Path, read: RowReader) -> None:
        self._root, self._read = root, read
        self._changing = Lock()
        self._found: list[tuple[Path, Stamp]] = []
        self._looked_s = self._asked_s = float("-inf")
        self._known: dict[Path, tuple[Stamp, Row]] = {}
        self._waiting: deque[tuple[Path, Stamp]] = deque()
        self._reading: set[Path] = set()
        self._readers = 0

    def rows(self) -> list[Row]:
        """The runs with their `state`: `ready`, `failed` (`why` says it), `reading` or `waiting`.

        Runs whose traces changed have their former row until they are read again.
        """
        now = monotonic()
        if now - self._looked_s > _FOUND_FOR_S:
            found = list(self._stamped())
            with self._changing:
                self._found, self._looked_s = found, now
        with self._changing:
            self._asked_s = now
            paths = {run for run, _ in self._found}
            self._known = {run: row for run, row in self._known.items() if run in paths}
            self._waiting = deque(
                one for one in self._found if not self._is_known(*one) and one[0] not in self._reading
            )
            for _ in range(min(len(self._waiting), _AT_ONCE - self._readers)):
                self._readers += 1
                # TensorBoard ends without waiting for it.
                Thread(target=self._read_on, name="commtrace-list", daemon=True).start()
            return [self._row(run, stamp) for run, stamp in self._found]

    def _stamped(self) -> Iterator[tuple[Path, Stamp]]:
        for run in runs_below(self._root):
            try:
                yield run, stamp_of(run)
            except OSError:  # it was removed in the meantime
                continue

    def _is_known(self, run: Path, stamp: Stamp) -> bool:
        return run in self._known and self._known[run][0] == stamp

    def _row(self, run: Path, stamp: Stamp) -> Row:
        row = {"state": "ready", **self._known[run][1]} if run in self._known else {}
        if not self._is_known(run, stamp):
            row |= {"state": "reading" if run in self._reading else "waiting"}
        return {"run": printable(str(run.relative_to(self._root))), **row}

    def _read_on(self) -> None:
        """Read runs until none waits, or nobody looks any more."""
        try:
            while (one := self._next()) is not None:
                self._keep(*one)
        finally:
            with self._changing:
                self._readers -= 1

    def _next(self) -> tuple[Path, Stamp] | None:
        with self._changing:
            if not self._waiting or monotonic() - self._asked_s > _LOOKED_AT_S:
                return None
            self._reading.add(self._waiting[0][0])
            return self._waiting.popleft()

    def _keep(self, run: Path, stamp: Stamp) -> None:
        row: Row | None = None
        try:
            row = self._read(run)
        except NotListed as err:
            row = {"state": "failed", "why": printable(str(err))}
        except OSError:  # no process could be started; it is tried again
            pass
        finally:
            with self._changing:
                self._reading.discard(run)
                if row is not None:
                    self._known[run] = stamp, row
