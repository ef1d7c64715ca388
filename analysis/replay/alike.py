"""Which activities of different ranks and steps do the same, and how long they usually take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..metrics.clocks.frame import Flags, Ints
from .programs import NONE, RankProgram

_MOST_ALIGNED = 5_000
"""Activities of a step and stream, beyond which those of another program are not looked for one by one."""


class Alike:
    """A number for each activity of all members, shared by those that do the same."""

    def __init__(self, members: Sequence[RankProgram], code: Any, most: Ints) -> None:
        self._ends = np.cumsum([len(p) for p in members])
        self._code: Ints = np.asarray(code, dtype=np.int64)
        counts = pd.Series(code).groupby(code).transform("size").to_numpy()
        self._is_rare = (code == NONE) | (counts * 2 <= most)

    @classmethod
    def by_name(cls, members: Sequence[RankProgram]) -> Alike:
        """The n-th of a name in its step, whatever else the rank does: for ranks with different programs.

        What is in no step, at either end of a trace, is like nothing else.
        """
        table = _table(members)
        table["nth"] = _counted(table, ["member", "step", "name"])
        code = table.groupby(["name", "nth"], sort=False).ngroup().to_numpy(dtype=np.int64)
        alone = np.flatnonzero(np.concatenate([outside_steps(program) for program in members]))
        code[alone] = len(code) + np.arange(len(alone))
        return cls(members, code, np.zeros(len(code), dtype=np.int64))

    @classmethod
    def by_place(cls, members: Sequence[RankProgram]) -> Alike:
        """The same place in a step of ranks that communicate alike, by whatever name; what few of them do is rare."""
        table = _table(members)
        code, most = np.full(len(table), NONE), np.zeros(len(table), dtype=np.int64)
        table["peers"] = table["member"].map(dict(enumerate(peers(members))))
        numbers = 0
        for _, lane in table.sort_values("start", kind="stable").groupby(["peers", "lane"], sort=False):
            runs = [own for _, own in lane.groupby(["member", "step"], sort=False)]
            usual = Counter(tuple(own["name"]) for own in runs).most_common(1)[0][0]
            for own in runs:
                for mine, theirs in _aligned(tuple(own["name"]), usual):
                    code[own.index[mine]] = numbers + np.arange(theirs.start, theirs.stop)
                most[own.index] = len(runs)
            numbers += len(usual)
        return cls(members, code, most)

    @property
    def codes(self) -> list[Ints]:
        """The numbers, by member."""
        return np.split(self._code, self._ends[:-1])

    def median(self, values: Sequence[Ints], among: Sequence[bool] | None = None) -> list[Ints]:
        """The lower median of those that do the same, by member; 0 for what is rare.

        If only some members are `among` them, those that do what none of these does have their own.
        """
        together = pd.Series(np.concatenate(values))
        counted = np.repeat([True] * len(values) if among is None else among, [len(v) for v in values])
        found = together.groupby(self._code).quantile(0.5, interpolation="lower")
        found.update(together[counted].groupby(self._code[counted]).quantile(0.5, interpolation="lower"))
        return self._by_member(found.reindex(self._code).to_numpy(np.float64))

    def _by_member(self, found: NDArray[Any]) -> list[Ints]:
        usual = np.rint(np.where(self._is_rare, 0.0, found)).astype(np.int64)
        return np.split(usual, self._ends[:-1])


def outside_steps(program: RankProgram) -> Flags:
    """Which activities are in no step, of a rank that has steps."""
    outside: Flags = (program.step < 0) & (program.step >= 0).any()
    return outside


def _table(members: Sequence[RankProgram]) -> pd.DataFrame:
    parts = [
        pd.DataFrame({"member": k, "lane": p.lane, "step": p.step, "name": p.name, "start": p.start})
        for k, p in enumerate(members)
    ]
    return pd.concat(parts, ignore_index=True)


def _counted(table: pd.DataFrame, keys: list[str]) -> pd.Series[int]:
    return table.sort_values("start", kind="stable").groupby(keys).cumcount().reindex(table.index)


def peers(members: Sequence[RankProgram]) -> list[int]:
    """A number for each member, shared by those that call the same collectives equally often."""
    known: dict[frozenset[tuple[int, int]], int] = {}
    told = [frozenset(Counter(p.name[p.is_comm].tolist()).items()) for p in members]
    return [known.setdefault(each, len(known)) for each in told]


def _aligned(names: tuple[int, ...], usual: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Which part of the names corresponds to which part of the usual ones, equally long."""
    if len(names) == len(usual):
        yield slice(0, len(names)), slice(0, len(usual))
    elif max(len(names), len(usual)) <= _MOST_ALIGNED:
        for tag, a, b, c, d in SequenceMatcher(None, names, usual, autojunk=False).get_opcodes():
            if tag == "equal" or (tag == "replace" and b - a == d - c):
                yield slice(a, b), slice(c, d)
