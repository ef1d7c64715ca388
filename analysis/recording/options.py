"""Options of reading trace files: one set, from the caller down to every reader."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from ..core.budget import GB, Budget
from ..core.step_names import may_mark_steps
from .sizes import USUAL_SIZES, ReadSizes

_MOST_NUMBERS = 1 << 20
_STEPS_OF_A_CYCLE = 100_000
"""More than any file has."""

Progress = Callable[[int], None]
"""Called now and then with the bytes read so far: of one file as it is on disk, or of all files of a run."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What only all files of a run together give, and what must be known before one is read.

    `communicators` are hashes, which all members know, and the global ranks of the members; `epochs` are names of
    hosts, and unix time in ns at which the clock of the host was 0.
    """

    communicators: tuple[tuple[int, tuple[int, ...]], ...] = ()
    epochs: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read the files of a run.

    Those that `analyse` has mean what it says of them. With `details_if_recorded`, recordings without details are as
    good. With `dask`, workers of Dask read: of the scheduler at this address, or of the one that wrote this file;
    `local` means `workers` of this machine, without Dask. With an `executor`, what calling this `MODULE:NAME` makes
    does so. `whole` is for tables: no reader needs to know it. `cycles` are the files that follow others of their rank,
    by name, with the number of the profiling cycle. `run_facts` come from all files of the run together. `sizes` decide
    how files are read.
    """

    comm_names: tuple[str, ...] = ()
    details: bool = False
    details_if_recorded: bool = False
    keep_going: bool = False
    workers: int | None = None
    cache: str | bool = False
    verify: bool = False
    memory_gb: float | None = None
    dask: str | None = None
    executor: str | None = None
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    last: int = 0
    whole: bool = False
    step_marker: str | None = None
    cycles: tuple[tuple[str, int], ...] = ()
    run_facts: RunFacts = RunFacts()
    sizes: ReadSizes = USUAL_SIZES

    def first_step(self, name: str) -> int:
        """The number of the first step in the file of this name, if its steps have none: unlike all of other cycles.

        A file cannot know how many steps those before it have, and all ranks must number the same step alike.
        """
        return dict(self.cycles).get(name, 0) * _STEPS_OF_A_CYCLE

    def may_mark(self, name: str) -> bool:
        """Whether an annotation of this name may mark a step."""
        return may_mark_steps(name, self.step_marker)

    @property
    def limit_bytes(self) -> int | None:
        """Limit of the data's memory in bytes; None without limit."""
        return None if self.memory_gb is None else int(self.memory_gb * GB)

    def budget(self, file_bytes: int = 0) -> Budget:
        """The budget for reading a file of `file_bytes` bytes."""
        return Budget(self.limit_bytes, file_bytes)


def cache_place(cache: str | os.PathLike[str] | bool) -> str | bool:
    """Convert the library's option `cache`: a folder, or whether to keep anything."""
    return cache if isinstance(cache, bool) else os.fspath(cache)


def numbers_in(text: str) -> list[int]:
    """Parse `0-2,5` as [0, 1, 2, 5]. Raises ValueError."""
    numbers: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if not first <= last < first + _MOST_NUMBERS:
            raise ValueError(f"{text!r} is not a number or a range, such as 3 or 0-7")
        numbers.extend(range(first, last + 1))
    return numbers
