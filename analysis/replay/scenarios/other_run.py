"""Let parts of a run take as long as in another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..engine import Playing
from .scenario import Scenario


def as_long_as(
    name: str, of_activities: NDArray[np.float64] | None = None, of_collectives: Mapping[int, float] | None = None
) -> Scenario:
    """Multiply lengths by these factors: of activities by row of their table, shape (activities,); of transfers.

    `of_collectives` is by collective; what has no factor stays as it is, and so does communication itself, whose length
    is that of its transfer and its waiting.
    """

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [_with_transfers(_with_durations(member)) for member in members]

    def _with_durations(member: Playing) -> Playing:
        if of_activities is None:
            return member
        program = member.program
        longer = np.rint(member.duration * of_activities[program.row]).astype(np.int64)
        return replace(member, duration=np.where(program.is_comm, member.duration, longer))

    def _with_transfers(member: Playing) -> Playing:
        if of_collectives is None:
            return member
        times = np.array([of_collectives.get(number, 1.0) for number in member.program.collective.tolist()])
        return replace(member, transfer=np.rint(member.transfer * times).astype(np.int64))

    return Scenario(name, "all else takes as long as it did", (change,))
