"""Find global ranks of processes that know only their places in communicators.

A communicator of all processes has the job's ranks. If a job does not show one, its processes are numbered by host and
process, which need not be its ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ..core.markers import NCCL
from .header import Communicator, ProcessGroup


class Shown(NamedTuple):
    """The content of one file: communicators, and the time from its first call to its last."""

    communicators: Sequence[Communicator]
    first_us: int
    last_us: int


@dataclass(frozen=True)
class JobRanks:
    """The rank of every file, and the global ranks of every communicator, in its order.

    `world_size` is None, and `note` says why, if ranks are only numbers. `members` lacks communicators of which a
    member is not seen, unless they are of the whole job.
    """

    ranks: tuple[int, ...]
    world_size: int | None
    note: str | None
    members: Mapping[str, tuple[int, ...]]

    def groups_of(self, shown: Shown) -> tuple[ProcessGroup, ...]:
        """The process groups of one file."""
        names = {one.id: one.name for one in shown.communicators}
        return tuple(ProcessGroup(id_, name or id_, NCCL, self.members.get(id_, ())) for id_, name in names.items())


def job_ranks(files: Sequence[Shown]) -> JobRanks:
    """The ranks of files of one job; files of one rank, one after the other, are its restarts."""
    largest = max(one.size for file in files for one in file.communicators)
    places = [{one.rank for one in file.communicators if one.size == largest} for file in files]
    if all(len(own) == 1 for own in places):
        ranks = tuple(next(iter(own)) for own in places)
        if not _clash(files, ranks):
            return JobRanks(ranks, largest, None, _members(files, ranks, largest))
    why = (
        "one file holds several ranks"
        if any(len(own) > 1 for own in places)
        else "no communicator of all processes is in the logs"
    )
    order = sorted(range(len(files)), key=lambda number: _by_process(files[number]))
    ranks = tuple(order.index(number) for number in range(len(files)))
    note = f"{why}: processes are numbered by host and process id, which need not be the ranks of the job"
    return JobRanks(ranks, None, note, _members(files, ranks, None))


def _clash(files: Sequence[Shown], ranks: Sequence[int]) -> bool:
    """Whether two files given one rank belong to different ranks.

    Then they have different places in a communicator, or ran at the same time and share none.
    """
    by_rank: dict[int, list[Shown]] = {}
    for file, rank in zip(files, ranks, strict=True):
        by_rank.setdefault(rank, []).append(file)
    for own in by_rank.values():
        ordered = sorted(own, key=lambda file: file.first_us)
        for before, after in pairwise(ordered):
            places = {one.id: one.rank for one in before.communicators}
            shared = [places[one.id] != one.rank for one in after.communicators if one.id in places]
            if any(shared) or (after.first_us <= before.last_us and not shared):
                return True
    return False


def _by_process(file: Shown) -> tuple[str, int]:
    host, _, pid = file.communicators[0].process.rpartition(":")
    return host, int(pid)


def _members(files: Sequence[Shown], ranks: Sequence[int], world_size: int | None) -> dict[str, tuple[int, ...]]:
    found: dict[str, dict[int, int]] = {}
    sizes: dict[str, int] = {}
    for file, rank in zip(files, ranks, strict=True):
        for one in file.communicators:
            sizes[one.id] = one.size
            found.setdefault(one.id, {})[one.rank] = rank
    members = {
        id_: tuple(own[place] for place in range(sizes[id_])) for id_, own in found.items() if len(own) == sizes[id_]
    }
    if world_size is not None:
        members |= {id_: tuple(range(size)) for id_, size in sizes.items() if size == world_size}
    return members
