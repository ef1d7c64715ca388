"""Process groups as merged from all dumps, and the position of each rank in each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..formats.flight_recorder.dump import Call, Dump, GroupLog, GroupName, listed_ranks


@dataclass(frozen=True)
class Standing:
    """Position of a rank in a group: numbers of its last issued, started and finished collective, or None.

    `waiting` is the first one that is not done. `by_status` says that the dump has no call of the group, only its
    numbers, and that these are taken to be the group's because all other ranks count it alike.
    """

    issued: int | None
    started: int | None
    done: int | None
    waiting: Call | None = None
    last: Call | None = None
    by_status: bool = False


@dataclass
class JobGroup:
    """A process group. `members` are in its order; if not `is_sure`, only members that left a trace are known."""

    name: str
    about: str
    members: tuple[int, ...]
    is_sure: bool
    logs: dict[int, GroupLog]
    positions: dict[int, Standing]

    @property
    def only_retired(self) -> bool:
        """Whether it is only known which collectives ended, not which succeeded."""
        return any(log.only_retired for log in self.logs.values())


def groups_of(dumps: Mapping[int, Dump]) -> list[JobGroup]:
    """The groups of a job, by their first ranks."""
    logs: dict[tuple[str, str, tuple[int, ...]], dict[int, GroupLog]] = defaultdict(dict)
    parsed: dict[str, tuple[int, ...]] = {"": ()}
    for rank, dump in dumps.items():
        for called, log in dump.groups.items():
            if called.ranks not in parsed:
                parsed[called.ranks] = listed_ranks(called.ranks)
            logs[called.name, called.about, parsed[called.ranks]][rank] = log
    world = world_of(dumps, parsed.values())
    groups = []
    for (name, about, ranks), of_rank in logs.items():
        is_world = GroupName(name, about, "").is_world
        members = ranks or (tuple(range(world)) if is_world else tuple(sorted(of_rank)))
        group = JobGroup(name, about, members, bool(ranks) or is_world, of_rank, {})
        if any(log.seqs or log.issued for log in of_rank.values()):
            group.positions = _positions(group, dumps)
            groups.append(group)
    return groups


def world_of(dumps: Mapping[int, Dump], groups: Iterable[Sequence[int]]) -> int:
    """The smallest number of ranks that dumps and groups allow for the job."""
    listed = [max(ranks) for ranks in groups if ranks]
    return 1 + max([*listed, *dumps], default=-1)


def _positions(group: JobGroup, dumps: Mapping[int, Dump]) -> dict[int, Standing]:
    positions = {rank: _of_log(log) for rank, log in group.logs.items() if log.seqs}
    number = _number(group, dumps)
    least = max((standing.done for standing in positions.values() if standing.done is not None), default=-1)
    for rank in group.members:
        if rank in positions or rank not in dumps:
            continue
        status = None if number is None else dumps[rank].unplaced.get(number)
        if status is not None and status.issued >= least:
            positions[rank] = Standing(max(status.issued, 0), status.started, status.done, by_status=True)
        elif dumps[rank].is_whole:
            positions[rank] = Standing(0, None, None)
    return _capped(positions) if group.only_retired else positions


def _capped(positions: dict[int, Standing]) -> dict[int, Standing]:
    """Positions corrected: a collective that some rank never issued cannot have succeeded."""
    common = min((standing.issued for standing in positions.values() if standing.issued is not None), default=0)
    return {
        rank: replace(standing, done=min(standing.done or 0, common) or None, started=None)
        for rank, standing in positions.items()
    }


def _of_log(log: GroupLog) -> Standing:
    done = next((log.seqs[at] for at in range(len(log.seqs) - 1, -1, -1) if log.done[at]), None)
    started = next((log.seqs[at] for at in range(len(log.seqs) - 1, -1, -1) if log.started[at]), None)
    if done is None and log.waiting is not None and log.waiting.seq > 1:
        done = log.waiting.seq - 1  # of what is not in the dump, all is done: it was left out, or overwritten long ago
    return Standing(log.seqs[-1], started, done, log.waiting, log.last)


def _number(group: JobGroup, dumps: Mapping[int, Dump]) -> int | None:
    """The number that all ranks give this group; None if they differ or it counts transfers too."""
    numbers = {number for rank in group.logs for number, name in dumps[rank].numbers.items() if _is(name, group)}
    if len(numbers) != 1 or any(log.issued or log.only_retired for log in group.logs.values()):
        return None
    return numbers.pop()


def _is(name: GroupName, group: JobGroup) -> bool:
    return name.name == group.name and name.about == group.about
