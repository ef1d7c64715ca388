"""Which ranks of a job to trace to see whole process groups, from the layout of the job.

A collective splits into waiting and transfer if all ranks of its group have traces. So a few whole groups tell more
than many single ranks. Ranks are numbered as Megatron-Core's RankGenerator does (megatron/core/parallel_state.py): in
the order of the dimensions, the first one innermost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

SORTS = {
    "tp": "a tensor-parallel group",
    "cp": "a context-parallel group",
    "dp": "a data-parallel group",
    "dp-cp": "a group that reduces gradients",
    "pp": "a pipeline",
}
"""Sorts of process groups, and what one of them is called."""
INNERMOST_FIRST = "tp-cp-dp-pp"
"""The order of Megatron-Core, of which expert parallelism is part of `dp-cp`."""


class Plan(NamedTuple):
    """Ranks to trace, ascending; the number of their hosts; and the number of whole groups of each sort."""

    what: str
    ranks: tuple[int, ...]
    hosts: int
    whole: dict[str, int]


@dataclass(frozen=True)
class Layout:
    """A job: the size of each dimension, innermost first, and how many ranks a host has."""

    sizes: Mapping[str, int]
    ranks_per_host: int = 8

    @property
    def ranks(self) -> int:
        """Number of ranks of the job."""
        return prod(self.sizes.values())

    @property
    def sorts(self) -> list[str]:
        """The sorts of groups with more than one rank, smallest groups first."""
        several = [sort for sort in SORTS if all(self.sizes[dim] > 1 for dim in sort.split("-"))]
        return sorted(several, key=self.size_of)

    def size_of(self, sort: str) -> int:
        """Number of ranks in a group of this sort."""
        return prod(self.sizes[dim] for dim in sort.split("-"))

    def group_of_first(self, dimensions: Iterable[str]) -> set[int]:
        """The ranks that differ from rank 0 in these dimensions only."""
        return set(self._numbers(set(dimensions)))

    def groups(self, sort: str) -> Iterator[set[int]]:
        """All groups of a sort."""
        within = set(sort.split("-"))
        offsets = list(self._numbers(within))
        yield from ({first + offset for offset in offsets} for first in self._numbers(set(self.sizes) - within))

    def plan(self, what: str, ranks: Iterable[int]) -> Plan:
        """The plan of tracing these ranks: what it shows."""
        chosen = set(ranks)
        whole = {sort: sum(group <= chosen for group in self.groups(sort)) for sort in self.sorts}
        hosts = {rank // self.ranks_per_host for rank in chosen}
        return Plan(what, tuple(sorted(chosen)), len(hosts), whole)

    def _numbers(self, dimensions: set[str]) -> Iterator[int]:
        """Yield the ranks with any index in these dimensions and index 0 in all others."""
        strides, stride = [], 1
        for name, size in self.sizes.items():
            strides.append([place * stride for place in range(size if name in dimensions else 1)])
            stride *= size
        yield from (sum(places) for places in product(*strides))


def rank_plans(layout: Layout) -> list[Plan]:
    """Plans, fewest ranks first: one group of each sort, one of every sort, a replica of the model, all ranks.

    Those that show the same, or no group, are left out.
    """
    each = {sort: layout.group_of_first(sort.split("-")) for sort in layout.sorts}
    offered = [layout.plan(SORTS[sort], ranks) for sort, ranks in each.items()]
    offered.append(layout.plan("one group of each sort", {0}.union(*each.values())))
    offered.append(layout.plan("a whole replica of the model", layout.group_of_first(set(layout.sizes) - {"dp"})))
    offered.append(layout.plan("all ranks", range(layout.ranks)))
    first = {plan.ranks: plan for plan in reversed(offered) if len(plan.ranks) > 1}
    return sorted(first.values(), key=lambda plan: len(plan.ranks))


def cheapest_of_each(layout: Layout) -> Plan:
    """The plan with the fewest ranks that shows a whole group of every sort."""
    return min(
        (plan for plan in rank_plans(layout) if all(plan.whole.values())),
        key=lambda plan: (len(plan.ranks), plan.hosts),
    )
