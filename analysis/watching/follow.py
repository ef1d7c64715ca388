"""A run followed: its folder is listed again and again, and each cycle that is whole is analysed, then reported."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol

from ...common.wording import counted
from ..core.schema import Row
from ..errors import AnalysisError, UnreadableFile
from ..results.analysis import Analysis
from .attempts import Attempts
from .done import Cycle, Writers, is_whole, open_cycles
from .files import FileStates, Listing, RunFolder
from .job import Job
from .ledger import FolderGone, Ledger, numbered
from .limits import Limit, Limits, Pace, passed
from .rows import cycle_row, unusable_row

Analyse = Callable[[Sequence[Path], bool], Analysis]
"""The tables of the run that these files are; with True, of what can be used of them. Raises AnalysisError."""
_LISTING_SHARE = 10
"""Listing a folder of very many files may take this part of the time at most."""


class Outputs(Protocol):
    """Where a watch reports to. Whoever is killed in between leaves a cycle drawn or shown twice, never not at all."""

    def draw(self, cycle: Analysis) -> None: ...  # noqa: D102 - before its row is written
    def show(self, row: Row) -> None: ...  # noqa: D102 - after that
    def say(self, note: str) -> None: ...  # noqa: D102
    def show_job(self, job: Job) -> None: ...  # noqa: D102 - after each look at it


class Ending(str, Enum):
    """Why a watch ended."""

    complete = "the run has ended"
    once = "all existing cycles were processed"
    idle = "nothing new came"
    limit = "a limit was passed"


class Watch:
    """Follows one run until there is a reason to end. Afterwards it says how that went."""

    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        analyse: Analyse,
        outputs: Outputs,
        pace: Pace,
        job: Job | None = None,
    ) -> None:
        self._job = job
        self._folder, self._ledger, self._analyse, self._outputs, self._pace = folder, ledger, analyse, outputs, pace
        self._limits = Limits()
        self._attempts = Attempts()
        self._said: set[str] = set()
        self._world_size: int | None = None
        self._peeked: FileStates | None = None
        self._done: dict[str, int] = {}
        self._looks, self._look_s = 0, 0.0
        self._before: object = None
        self._changed_at = pace.now()
        self.reported, self.unusable = 0, 0
        """Cycles that were reported, and those of them that had files which could not be used."""
        self.passed: str | None = None
        """In which cycle limits were passed first, and which, if that is why the watch ended, or it was to go on."""
        self.unchecked: set[Limit] = set()
        """Limits on something that was not known in any of these cycles."""
        self.left: dict[int, str] = {}
        """Cycles that were not reported, and why."""
        self.ended_early: list[str] = []
        """Why ranks ended before the last step that was to be traced."""

    def run(self, limits: Limits) -> Ending:
        """Report cycles until there is a reason to end. Raises AnalysisError."""
        try:
            return self._followed(limits)
        finally:
            self._folder.let_go()

    def _followed(self, limits: Limits) -> Ending:
        self._limits, self.unchecked = limits, set(limits.each)
        while True:
            listing = self._look()
            for row in self._rows(listing) if listing is not None and self._ledger.has_begun else ():
                if row["limits"] and not limits.go_on:
                    self.passed = f"cycle {row['cycle']}: {row['limits']}"
                    return Ending.limit
            if self._job is not None:
                self._look_at(self._job)
            ending = self._ending(listing)
            if ending is not None:
                self.passed = self._ledger.passed(limits.texts) if limits.go_on else None
                return ending
            self._pace.sleep(max(self._pace.every_s, _LISTING_SHARE * self._look_s))

    def _look_at(self, job: Job) -> None:
        for note in job.look():  # analyses what was captured, which must not make the next look late
            self._outputs.say(note)
        self._outputs.show_job(job)

    # --- looking ---------------------------------------------------------------------------------------------------

    def _look(self) -> Listing | None:
        """What is there that was not reported; None if there is nothing yet. Raises UnreadableFile, WatchedAlready."""
        began = self._pace.now()
        listing = self._listed()
        if listing is not None and listing.traces:
            run_json = self._folder.run_json()
            if not (self._folder.is_held and self._ledger.is_of(run_json)):
                listing = self._begun(run_json)
        self._looks, self._look_s = self._looks + 1, self._pace.now() - began
        return listing

    def _begun(self, run_json: str | None) -> Listing | None:
        """What is there of a run that is new, or whose folder is. Raises UnreadableFile, WatchedAlready."""
        made_again = self._ledger.has_begun and not self._folder.is_held
        try:
            self._folder.hold()
            self._attempts, self._done = Attempts(), {}
            other = self._ledger.begin(self._folder.name, run_json, made_again=made_again)
        except (FolderGone, OSError):
            return None  # it has just been removed
        if other is not None:
            self._say(f"what was remembered is about another run, called {other.run}; this run starts anew")
        elif made_again:
            self._say(f"{self._folder.path}: was made again, and is watched anew")
        if not self._ledger.has_locks:
            self._say("the file system has no locks: two watches of this run would not notice each other")
        return self._listed()

    def _listed(self) -> Listing | None:
        try:
            listing = self._folder.listing(self._ledger.done.is_done)
        except OSError as err:
            if not self._looks:
                raise UnreadableFile(f"{self._folder.path}: cannot be read: {err.strerror}") from err
            self._say(f"{self._folder.path}: cannot be read at the moment: {err.strerror}")
            return None
        if listing is None or not listing.traces:
            self._say(f"{self._folder.path}: {'no such folder' if listing is None else 'no traces'} yet")
        return listing

    def _say(self, note: str) -> None:
        """Once."""
        if note not in self._said:
            self._said.add(note)
            self._outputs.say(note)

    # --- cycles ----------------------------------------------------------------------------------------------------

    def _rows(self, listing: Listing) -> Iterator[Row]:
        """The rows of the cycles that are ready, each reported before the next one is looked at."""
        opened = open_cycles(listing.traces, self._ledger.done)
        unseen = self._ledger.unseen
        if unseen is not None:
            yield self._reported(unseen, {})
            self._ledger.unseen = None
        self._notice_set_back(listing)
        writers = self._writers(listing, opened)
        self._attempts.keep(opened)
        self.left = {}
        for cycle, traces in opened.items():
            names = [listing.traces[worker][number] for worker, number in traces.items()]
            now = self._pace.now()
            attempt = self._attempts.look(cycle, self._folder.stamp(names), now)
            given_up = now - attempt.since >= self._pace.patience_s
            if given_up or is_whole(cycle, opened, self._ledger.done, writers):
                row = self._row(cycle, names, given_up) if given_up or attempt.is_worth_it else None
                if row is not None:
                    yield self._reported(row, traces)
                    continue
            self.left[cycle] = attempt.why or f"has traces of {counted(len(names), 'rank')}{_of(writers.world_size)}"

    def _row(self, cycle: int, names: Sequence[str], given_up: bool) -> Row | None:
        """The row of a cycle, which is written then; None if its files may become better. Raises UnreadableFile."""
        try:
            tables = self._analyse(self._folder.paths(names), given_up)
            found = cycle_row(tables)
        except (AnalysisError, OSError) as err:
            if not given_up:
                self._attempts[cycle].fail(str(err))
                return None
            tables, found = None, unusable_row(str(err))
        self.unusable += tables is None or bool(tables.run.failed)
        remembered = self._ledger.remembered
        row = numbered(remembered.run, remembered.run_id, cycle, found)
        row["limits"] = passed(row, self._limits.each)
        if tables is not None:
            self._outputs.draw(tables)
        self._ledger.write(row)
        del tables
        gc.collect()  # tables refer to each other in circles, and would stay until as much again is made
        return row

    def _reported(self, row: Row, traces: Cycle) -> Row:
        """The row, shown and remembered."""
        self._outputs.show(row)
        self._ledger.remember(row, traces, self._limits.texts)
        for worker in traces:
            self._done[worker] = self._done.get(worker, 0) + 1
        self.reported += 1
        self.unchecked -= {limit for limit in self.unchecked if limit.value(row) is not None}
        return row

    def _notice_set_back(self, listing: Listing) -> None:
        """Say which processes have more traces from before the last one that was reported than were reported."""
        for worker, count in listing.done.items():
            known = self._done.setdefault(worker, count)
            if count > known:
                self._done[worker] = count
                self._say(f"{worker}: wrote a trace that its name says is older than one that was reported; left out")

    def _writers(self, listing: Listing, opened: dict[int, Cycle]) -> Writers:
        ended = frozenset(worker for worker, side in listing.sides.items() if side.has_ended)
        told = (side.world_size for side in listing.sides.values())
        self._world_size = next(filter(None, told), self._world_size or self._ledger.remembered.world_size)
        if self._world_size is None and opened:
            self._peek(listing, next(iter(opened.values())))
        return Writers(self._world_size, ended)

    def _peek(self, listing: Listing, traces: Cycle) -> None:
        """How many ranks there are, as one of these traces says it."""
        names = [listing.traces[worker][number] for worker, number in traces.items()][:1]
        stamp = self._folder.stamp(names)
        if stamp != self._peeked:
            self._peeked = stamp
            try:
                self._world_size = self._analyse(self._folder.paths(names), False).run.world_size
            except (AnalysisError, OSError):
                return  # it may be cut; once it has changed, it is looked at again

    # --- the end ---------------------------------------------------------------------------------------------------

    def _ending(self, listing: Listing | None) -> Ending | None:
        if self._pace.once:
            return Ending.once
        now, sides = self._pace.now(), {} if listing is None else listing.sides
        state = (self.reported, self._attempts.state(), tuple(sides.items()), listing is None)
        is_alive = self._job is not None and self._job.is_alive
        if state != self._before or is_alive:
            self._before, self._changed_at = state, now
        quiet_s = now - self._changed_at
        if not is_alive and sides and not self.left and all(side.has_ended for side in sides.values()):
            ranks = next(filter(None, (side.world_size for side in sides.values())), len(sides))
            if quiet_s >= (self._pace.every_s if len(sides) >= ranks else self._pace.patience_s):
                self.ended_early = sorted({side.reason for side in sides.values() if side.reason})
                return Ending.complete
        return Ending.idle if self._pace.idle_s is not None and quiet_s >= self._pace.idle_s else None


def _of(world_size: int | None) -> str:
    return "" if world_size is None else f" of {world_size:,}"
