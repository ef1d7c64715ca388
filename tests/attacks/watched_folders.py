"""A folder that goes and comes while it is watched: `python tests/attacks/watched_folders.py --tries 10000 --seed 0`.

Each try is one turn of the loop of `watch`. Before it, the folder gets the next cycle, is removed, made again with
another run or without a run.json, replaced by a file or a link, or loses what the watch remembers in it. Every cycle
that is there for a turn is reported in it, once for each run that was in the folder, and nothing ends the watch. Its
memory and its open files do not grow.
"""

from __future__ import annotations

import gc
import random
import shutil
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

from attacking import run_attack
from builders import MS, Collective, analysed, traces_of
from watched import Heard, as_said, touch, write_side

from commtrace.analysis.errors import AnalysisError
from commtrace.analysis.watching.files import RunFolder
from commtrace.analysis.watching.follow import Watch
from commtrace.analysis.watching.ledger import Ledger
from commtrace.analysis.watching.limits import Limits, Pace

SETTLED = 200
"""Turns after which nothing of the watch is new any more."""
MOST_BYTES = 2_500_000
"""Python's table of names, which has parts of paths, doubles once, by 1.9 MB, whether after 3,000 turns or 10,000."""
MOST_FILES = 2  # which are open while there is a run
KINDS = ("cycle",) * 6 + ("removed", "another run", "another run", "no run.json", "file", "link", "forgotten")


class _Over(Exception):
    """There were enough turns."""


class Turns:
    """What happens in the folder between two turns, and what has to be reported of it."""

    def __init__(self, folder: Path, tries: int, chance: random.Random) -> None:
        self.folder, self.tries, self.chance = folder, tries, chance
        self.heard = Heard()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.next_cycle, self.now_s, self.expected = 0, 0.0, 0
        self.before: tuple[int, int] | None = None

    def sleep(self, seconds: float) -> None:
        """A turn is over, and another one is about to begin. Raises _Over."""
        self.now_s += seconds
        turn = self.counts.total()
        reported = len(self.heard.rows)
        if reported != self.expected:
            self.wrong.append(f"turn {turn}: {reported} rows instead of {self.expected}: {self.heard.notes[-2:]}")
        self.heard.rows.clear()
        self.heard.at_s.clear()
        self.heard.notes.clear()
        if turn == min(SETTLED, self.tries // 2):
            self.before = size()
        if turn == self.tries:
            raise _Over
        kind = self.chance.choice(KINDS)
        self.counts[kind] += 1
        self.expected = self._happens(kind)

    def _happens(self, kind: str) -> int:
        """How many cycles have to be reported after that."""
        if kind in ("cycle", "forgotten") and not self.folder.is_dir():
            kind = "no run.json"
        if kind == "forgotten":
            (self.folder / ".commtrace-watch.json").unlink(missing_ok=True)
            return 0
        if kind != "cycle":
            remove(self.folder)
            self.next_cycle = 0
        if kind == "removed":
            return 0
        if kind == "file":
            self.folder.write_text("no folder")
            return 0
        if kind == "link":
            other = self.folder.with_name("other")
            remove(other)
            other.mkdir()
            self.folder.symlink_to(other)
        if kind == "another run":
            self.folder.mkdir()
            (self.folder / "run.json").write_text(str(self.chance.random()))
        touch(self.folder, self.next_cycle)
        for rank in (0, 1):
            write_side(self.folder, rank)
        self.next_cycle += 1
        return 1


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def size() -> tuple[int, int]:
    """Bytes of this process's objects, and its open files."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0], len(list(Path("/proc/self/fd").iterdir()))


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    truth = [Collective((10 * MS, 13 * MS), 10 * MS, elems=250_000_000)]
    made: Any = analysed(folder / "made", *(trace.step(1, 0, 40 * MS) for trace in traces_of(2, truth)))
    turns = Turns(folder / "run", tries, random.Random(seed))
    ledger = Ledger(turns.folder)
    pace = Pace(now=lambda: turns.now_s, sleep=turns.sleep)
    gc.collect()
    gc.freeze()  # as the command does with its modules: the watch collects garbage after every cycle
    tracemalloc.start()
    try:
        Watch(RunFolder(turns.folder), ledger, as_said(made), turns.heard, pace).run(Limits())
    except _Over:
        assert turns.before is not None
        grown, opened = (now - then for now, then in zip(size(), turns.before, strict=True))
        turns.wrong += [f"grew by {grown:,} bytes"] * (grown > MOST_BYTES) + [f"opened {opened} files"] * (
            opened > MOST_FILES
        )
    except AnalysisError as err:
        turns.wrong.append(f"turn {turns.counts.total()} ended it: {err}")
    finally:
        tracemalloc.stop()
        ledger.close()
    return turns.counts, turns.wrong


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
