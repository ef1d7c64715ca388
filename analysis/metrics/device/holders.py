"""In which operator or annotation a CPU was while it kept a device idle.

Of names that nest, one is chosen: the one in which most of the time passed, or the innermost one within it that has
three quarters of that. So operators that do little but call another give way to it, and one that spends its time in
many is named for all of them. See docs/metrics/idle.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.arrays import Flags, Ints
from ...core.intervals import Times
from ...core.schema import flags_of_texts

_HASHED = re.compile(r"## Call CompiledFxGraph \w+ ##")
_GRAPHS = "CompiledFxGraph"
"""torch.compile, around a graph that it compiled, named by a hash: all of them count as one."""


class Ranges(NamedTuple):
    """Operators or annotations of a thread, none within another one of the same name; all of shape (ranges,)."""

    name: NDArray[Any]
    start_ns: Times
    end_ns: Times

    @classmethod
    def of(cls, events: pd.DataFrame) -> Ranges:
        """Those of these events of one thread, with `name`, `start_ns` and `dur_ns`, that lie in no other one alike."""
        code, unique = pd.factorize(events["name"])
        alike, names = pd.factorize(np.array([_HASHED.sub(_GRAPHS, str(name)) for name in unique], dtype=object))
        number = alike[code]
        start = events["start_ns"].to_numpy(dtype=np.int64)
        end = start + events["dur_ns"].to_numpy(dtype=np.int64)
        order = np.lexsort((-end, start, number))
        number, start, end = number[order], start[order], end[order]
        reached = pd.Series(end).groupby(number).cummax().groupby(number).shift(fill_value=np.iinfo(np.int64).min)
        outer = start >= reached.to_numpy()
        return cls(names[number[outer]], start[outer], end[outer])

    def without(self, is_left_out: Callable[[str], bool]) -> Ranges:
        """Those whose names are not left out."""
        kept = ~flags_of_texts(pd.Series(self.name, dtype="string"), is_left_out)
        return Ranges(*(each[kept] for each in self))


class Stretches(NamedTuple):
    """When a thread kept devices idle, in ascending order, none over another; all but `ranges` of shape (stretches,).

    `ranges` are those of the thread. Stretches of one `group` are looked at together. How long a range was in a stretch
    counts times its `weight`.
    """

    ranges: Ranges
    start_ns: Times
    end_ns: Times
    group: Ints
    weight: NDArray[Any]

    @classmethod
    def alike(cls, ranges: Ranges, start_ns: Times, end_ns: Times, weight: float = 1) -> Stretches:
        """Stretches of one group that weigh the same."""
        return cls(ranges, start_ns, end_ns, np.zeros(len(start_ns), dtype=np.int64), np.full(len(start_ns), weight))

    def within(self) -> pd.DataFrame:
        """A row for each range in each stretch: name, group, and when it was there."""
        ranges = self.ranges
        first = np.searchsorted(self.end_ns, ranges.start_ns, side="right")
        count = np.maximum(np.searchsorted(self.start_ns, ranges.end_ns, side="left") - first, 0)
        of = np.repeat(np.arange(len(count)), count)
        stretch = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count) + first[of]
        start = np.maximum(ranges.start_ns[of], self.start_ns[stretch])
        end = np.minimum(ranges.end_ns[of], self.end_ns[stretch])
        weight = self.weight[stretch]
        return pd.DataFrame({
            "name": ranges.name[of], "group": self.group[stretch], "start_ns": start, "end_ns": end, "weight": weight,
            "ns": (end - start) * weight,
        })  # fmt: skip

    def only(self, within: pd.DataFrame) -> Stretches:
        """The parts of these stretches in which a range was."""
        ordered = within.sort_values("start_ns", kind="stable")
        return Stretches(self.ranges, *(ordered[name].to_numpy() for name in ("start_ns", "end_ns", "group", "weight")))


def holders(stretches: Sequence[Stretches]) -> pd.DataFrame:
    """The `name` of the range that holds most of each group of stretches, and for how many `ns` it does, by group.

    The ns are weighed. `outer` is the range that holds most, within which the named one is, if it is not the same, and
    `start_ns` when the named one was there longest at a time. Groups in which no range was are left out.
    There is one thread with stretches at least.
    """
    found = [each.within() for each in stretches]
    most = _sums(found).groupby("group").tail(1).set_index("group")
    held = [each[_is_of(each, most)] for each in found]
    inside = [stretch.only(rows).within() for stretch, rows in zip(stretches, held, strict=True)]
    sums = _sums(inside)
    innermost = sums[4 * sums["ns"] >= 3 * sums["group"].map(most["ns"])].groupby("group").head(1)
    innermost = innermost.set_index("group")
    longest = pd.concat([each[_is_of(each, innermost)] for each in inside])
    longest = longest.sort_values("ns", kind="stable").groupby("group").tail(1).set_index("group")
    # Of groups in which nothing was longer none may be left, and to a table without rows `assign` adds those of others.
    of_these = {"start_ns": longest["start_ns"], "outer": most["name"]}
    return innermost.assign(**{name: column.reindex(innermost.index) for name, column in of_these.items()})


def _is_of(within: pd.DataFrame, named: pd.DataFrame) -> Flags:
    """Whether each row has the name of its group."""
    flags: Flags = (within["name"] == within["group"].map(named["name"])).to_numpy(dtype=bool)
    return flags


def _sums(within: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The time of each name in each group, ascending."""
    sums: pd.DataFrame = pd.concat(within).groupby(["group", "name"])[["ns"]].sum().reset_index()
    return sums.sort_values(["ns", "name"], kind="stable")
