"""A run directory that fills up while it is watched, on a clock of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from builders import MS, Collective, traces_of

from commtrace.analysis.core.schema import Row
from commtrace.analysis.errors import DamagedTrace
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.watching.files import RunFolder
from commtrace.analysis.watching.follow import Ending, Watch
from commtrace.analysis.watching.ledger import Ledger
from commtrace.analysis.watching.limits import Limits, Pace
from commtrace.analysis.watching.opening import analysis_by
from commtrace.cli import main
from commtrace.contract.rank import STILL_RUNNING

WORKER = "node_{rank}"


def name_of(rank: int, cycle: int, suffix: str = ".pt.trace.json.gz") -> str:
    return f"node_{rank}.{cycle:04d}{suffix}"


def write_cycle(folder: Path, cycle: int, ranks: Sequence[int] = (0, 1), *, world: int = 2, late: int = 3 * MS) -> None:
    """Traces of one step with an all_reduce, for which the last rank is late."""
    arrivals = tuple(10 * MS + (late if rank == world - 1 else 0) for rank in range(world))
    for trace in traces_of(world, [Collective(arrivals, 10 * MS, elems=250_000_000)]):
        if trace.rank in ranks:
            trace.step(cycle * 5, 0, 40 * MS).kernel("gemm", 0, 9 * MS)
            trace.write(folder, name_of(int(trace.rank or 0), cycle))


def write_side(folder: Path, rank: int, *, world: int = 2, reason: str | None = STILL_RUNNING) -> None:
    """A side file; without a reason the capture is complete."""
    folder.mkdir(exist_ok=True)
    content = {"schema_version": 1, "rank": rank, "world_size": world, "complete": reason is None, "reason": reason}
    (folder / f"node_{rank}.meta.json").write_text(json.dumps(content), encoding="utf-8")


class Clock:
    """Sleeping makes it later, and makes happen what was to happen by then."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._plans: list[tuple[float, Callable[[], object]]] = []

    def at(self, after_s: float, action: Callable[[], object]) -> None:
        self._plans.append((self.now_s + after_s, action))

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert self.now_s < 100_000, "the watch does not end"
        self.now_s += seconds
        due = [plan for plan in self._plans if plan[0] <= self.now_s]
        self._plans = [plan for plan in self._plans if plan not in due]
        for _, action in sorted(due, key=lambda plan: plan[0]):
            action()


class Heard:
    """What a watch reports, and when."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self.rows: list[Row] = []
        self.drawn = 0
        self.notes: list[str] = []
        self.at_s: list[float] = []

    def draw(self, cycle: Any) -> None:
        self.drawn += 1

    def show(self, row: Row) -> None:
        self.rows.append(row)
        self.at_s.append(0.0 if self._clock is None else self._clock.now_s - 1000.0)

    def say(self, note: str) -> None:
        self.notes.append(note)

    def show_job(self, job: object) -> None:
        """Only a watch with a job shows one."""

    @property
    def cycles(self) -> list[int]:
        return [row["cycle"] for row in self.rows]


class Watched:
    """A watch of a folder, which can be started again and again."""

    def __init__(self, folder: Path, rows: Path | None = None, analyse: Any = None) -> None:
        self.folder, self.rows_path, self.clock = folder, rows, Clock()
        self.heard = Heard(self.clock)
        self.read: list[tuple[list[str], bool]] = []
        self._analyse = analyse or analysis_by(ReadOptions(workers=1))
        self.watch: Watch

    def run(self, limits: Limits | None = None, *, state: Path | None = None, **pace: Any) -> Ending:
        """What a new process does. The locks of the one before are gone."""
        ledger = Ledger(self.folder, state, self.rows_path)
        try:
            how = Pace(now=self.clock.now, sleep=self.clock.sleep, **pace)
            self.watch = Watch(RunFolder(self.folder), ledger, self._analysed, self.heard, how)
            return self.watch.run(limits or Limits())
        finally:
            ledger.close()

    def _analysed(self, paths: Sequence[Path], keep_going: bool) -> Any:
        self.read.append(([path.name for path in paths], keep_going))
        return self._analyse(paths, keep_going)


def as_said(made: Any) -> Callable[[Sequence[Path], bool], Any]:
    """An analysis made before, of whatever files. One that says `cut` is damaged, and used only if need be."""

    def analyse(paths: Sequence[Path], keep_going: bool) -> Any:
        cut = [path for path in paths if path.read_bytes() == b"cut"]
        if cut and not keep_going:
            raise DamagedTrace(f"{cut[0]}: is cut")
        return made

    return analyse


def touch(folder: Path, cycle: int, ranks: Sequence[int] = (0, 1), content: bytes = b"whole") -> None:
    """Files that look like the traces of a cycle."""
    folder.mkdir(exist_ok=True)
    for rank in ranks:
        (folder / name_of(rank, cycle)).write_bytes(content)


def rows_in(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def command(*arguments: object) -> int:
    return main(["watch", *map(str, arguments)])
