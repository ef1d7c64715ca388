"""A hang in dumps of the flight recorder: the answer, and the tables behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..catalog import described
from ..core.escaping import printable
from ..core.tables import hang as schemas
from .answer import answer, notes, shows_nothing, unshown
from .groups import JobGroup, groups_of
from .mismatches import Mismatch
from .origins import HangOrigin, origins_of
from .reading import Dumps, read_dumps
from .tables import mismatch_rows, origin_rows, position_rows, stack_rows, wait_rows
from .waits import Wait, waits_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Hang:
    """What dumps show about a hang, or that nothing hangs. Its tables are described in docs/tables.md."""

    dumps: Dumps
    groups: Sequence[JobGroup]
    waits: Sequence[Wait]
    origins: Sequence[HangOrigin]

    @property
    def found(self) -> bool:
        """Whether something hangs."""
        return bool(self.origins)

    @property
    def is_sure(self) -> bool:
        """Whether the dumps show enough to exclude a hang."""
        return not (unshown(self.dumps.by_rank) or shows_nothing(self.dumps.by_rank))

    @property
    def answer(self) -> list[str]:
        """Missing ranks, since when, and where their code stood: one text per set of ranks."""
        return list(map(printable, answer(self.origins, self._waiting, self.dumps.by_rank)))

    @property
    def notes(self) -> list[str]:
        """What these dumps cannot show."""
        return list(notes(self.origins, self.waits, self.groups, self.dumps.by_rank))

    @cached_property
    @described
    def hang_origins(self) -> pd.DataFrame:
        """The ranks to look at first."""
        return schemas.HANG_ORIGINS.frame(origin_rows(self.origins, self.dumps.by_rank, self._waiting))

    @cached_property
    @described
    def hang_waits(self) -> pd.DataFrame:
        """Every collective or transfer in which a rank waits."""
        return schemas.HANG_WAITS.frame(wait_rows(self.waits, self.origins))

    @cached_property
    @described
    def hang_positions(self) -> pd.DataFrame:
        """Position of every rank in the groups in which a rank waits."""
        return schemas.HANG_POSITIONS.frame(position_rows(self.groups, self.waits, self.dumps.by_rank))

    @cached_property
    @described
    def hang_mismatches(self) -> pd.DataFrame:
        """The first calls in which ranks of a group differ."""
        return schemas.HANG_MISMATCHES.frame(mismatch_rows(self._mismatches))

    @cached_property
    @described
    def hang_stacks(self) -> pd.DataFrame:
        """Positions of code, ranks with equal stacks together."""
        return schemas.HANG_STACKS.frame(stack_rows(self.origins, self.waits, self.dumps.by_rank))

    @property
    def _mismatches(self) -> list[tuple[JobGroup, Mismatch]]:
        mismatches = {id(w.group): (w.group, w.mismatch) for w in self.waits if w.mismatch is not None}
        return list(mismatches.values())

    @cached_property
    def _waiting(self) -> list[int]:
        """Number of ranks that wait because of each origin, directly or through others."""
        waiters: dict[int, set[int]] = defaultdict(set)  # of a rank
        for wait in self.waits:
            for rank in wait.blamed or tuple(wait.waiting):
                waiters[rank].update(wait.waiting)
        counts = []
        for origin in self.origins:
            reached, left = set(origin.ranks), list(origin.ranks)
            while left:
                new = waiters[left.pop()] - reached
                reached |= new
                left += new
            inside = 0 if origin.why.value not in ("all there", "circle") else len(origin.ranks)
            counts.append(len(reached) - len(origin.ranks) + inside)
        return counts


def find_hang(
    dumps: str | Path | Sequence[str | Path],
    *,
    keep_going: bool = False,
    workers: int | None = None,
    memory_gb: float | None = None,
) -> Hang:
    """Find ranks missing from a collective, from flight recorder dumps: files, or folders of them.

    With `keep_going`, dumps that cannot be used are left out; `workers` processes read. The dumps must not need more
    than `memory_gb` of memory, in 1e9 bytes; four fifths of what is free if not given. Raises AnalysisError.
    """
    paths = [dumps] if isinstance(dumps, str | Path) else list(dumps)
    read = read_dumps([Path(path) for path in paths], keep_going=keep_going, workers=workers, memory_gb=memory_gb)
    groups = groups_of(read.by_rank)
    waits = waits_of(groups, read.by_rank)
    return Hang(read, groups, waits, origins_of(waits))
