"""What was reported of a run: its rows, and what is remembered of them, as one fact.

A row is written first, then remembered. Whoever is killed in between leaves a row that is not remembered: the next
watch finds it in the file of rows, and does not write it again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from ..core.schema import Row
from ..core.tables.cycles import CYCLES
from .done import Cycle, DoneCycles, joined_ranges
from .row_file import RowFile
from .state import Remembered, StateFile

_ID_BYTES = 6


class Ledger:
    """Knows which cycles of a run were reported, also by watches before this one."""

    def __init__(self, state: StateFile, rows: RowFile | None) -> None:
        self.state = state
        self.rows = rows
        self._now: Remembered | None = None
        self.unseen: Row | None = None
        """A row that was written, but not remembered, and so perhaps not shown."""

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
        """Begin with what is known of this run; what was remembered of another one in the same place is returned.

        Where its folder was made again, what is remembered outside of it is about the one before, unless run.json is
        the same. Raises FolderGone, WatchedAlready, UnreadableFile.
        """
        self.state.hold()
        before = self.state.read()
        is_same = before is not None and before.is_of(run_json)
        if before is not None and made_again and not self.state.is_in_run:
            is_same = None not in (before.run_json, run_json) and before.run_json == run_json
        if before is not None and is_same:
            now, other = replace(before, run=run, run_json=run_json or before.run_json), None
        else:
            # Without a run.json, nothing but what is remembered in its folder tells it from a later run there.
            now, other = Remembered(run, run_json or os.urandom(_ID_BYTES).hex(), run_json), before
            self.state.write(now)
        if self.rows is not None:
            written = self.rows.rows_of(now.run_id)
            if written.last is not None and not now.done.has(written.last["cycle"]):
                self.unseen = written.last
            ranges = joined_ranges([*now.done.ranges, *written.ranges])
            now = replace(now, done=replace(now.done, ranges=ranges))
        self._now = now
        return other

    def close(self) -> None:
        """Let others have its files."""
        self.state.close()
        if self.rows is not None:
            self.rows.close()

    def write(self, row: Row) -> None:
        """Make the row last. Raises UnreadableFile."""
        if self.rows is not None:
            self.rows.append(row)

    def remember(self, row: Row, traces: Cycle, limits: tuple[str, ...]) -> None:
        """Remember that this row was shown, and the first of the limits that was passed. Raises UnreadableFile."""
        now = self.remembered
        if now.limits != limits:
            now = replace(now, limits=limits, passed=None)
        told = None if row["limits"] is None else f"cycle {row['cycle']}: {row['limits']}"
        self._now = replace(
            now,
            done=now.done.with_cycle(row["cycle"], traces),
            world_size=row["world_size"] or now.world_size,
            passed=now.passed or told,
        )
        self.state.write(self._now)

    def passed(self, limits: tuple[str, ...]) -> str | None:
        """In which cycle limits were passed first, and which, also before a watch with the same ones began anew."""
        return self._now.passed if self._now is not None and self._now.limits == limits else None


def numbered(run: str, run_id: str | None, cycle: int, row: Mapping[str, object]) -> Row:
    """The row of a cycle with all columns, also those that tell it from others."""
    known = {"run": run, "run_id": run_id, "cycle": cycle, **row}
    return {column: known.get(column) for column in CYCLES.columns}
