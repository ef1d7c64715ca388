"""The rank of each of several files that do not say it themselves, by a number in their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

from ...common.wording import counted
from ...contract.limits import RANK_LIMIT
from ..errors import DuplicateRank, UnknownRank

_NUMBER = re.compile(r"[0-9]{1,7}")
_RANK = re.compile(r"rank[-_.= ]?([0-9]{1,7})", re.IGNORECASE)


def ranks_of(
    paths: Sequence[Path], possible: Sequence[Set[int] | None], *, like: str = "nccl_trace_rank_3", what: str = "dump"
) -> list[int]:
    """The rank of each file: the only one in all its groups, or a number in its name that is one of them.

    The numbers of all files stand in the same place: behind the word rank, or last, or first, and so on. `possible` are
    the ranks in all groups of each file, None where it names none. Errors call a file `what`, with a name `like` this.
    Raises UnknownRank, DuplicateRank.
    """
    sure = [next(iter(ranks)) if ranks is not None and len(ranks) == 1 else None for ranks in possible]
    names = [path.name for path in paths]
    tried: list[list[int | None]] = []
    for place in _places(names):
        read = [certain if certain is not None else place(name) for certain, name in zip(sure, names, strict=True)]
        if all(_fits(rank, ranks) for rank, ranks in zip(read, possible, strict=True)):
            tried.append(read)
            if len(set(read)) == len(read):
                return [rank for rank in read if rank is not None]
    if tried:
        _refuse_twice(paths, tried[0], what)
    if all(rank is not None for rank in sure):
        _refuse_twice(paths, sure, what)
    vague = [path for path, rank in zip(paths, sure, strict=True) if rank is None]
    others = f", nor {'does' if len(vague) == 2 else 'do'} {counted(len(vague) - 1, 'other')}"
    raise UnknownRank(
        f"{vague[0]}: does not say which rank it is of{others if len(vague) > 1 else ''}; a {what} has no rank in "
        f"it: let its name end in the rank ({like}), and name all files alike"
    )


def _places(names: Sequence[str]) -> Iterator[Callable[[str], int | None]]:
    """Yield functions that take the rank from different places of a name."""
    most = max((len(_NUMBER.findall(name)) for name in names), default=0)
    yield lambda name: _last(_RANK.findall(name))
    for turn in [-1, *range(most)]:
        yield lambda name, turn=turn: _at(_NUMBER.findall(name), turn)  # type: ignore[misc]


def _last(numbers: list[str]) -> int | None:
    return int(numbers[-1]) if numbers else None


def _at(numbers: list[str], turn: int) -> int | None:
    return int(numbers[turn]) if numbers and turn < len(numbers) else None


def _fits(rank: int | None, possible: Set[int] | None) -> bool:
    return rank is not None and rank < RANK_LIMIT and (possible is None or rank in possible)


def _refuse_twice(paths: Sequence[Path], ranks: Sequence[int | None], what: str) -> None:
    """Raise DuplicateRank if two files have the same rank."""
    first: dict[int | None, Path] = {}
    for path, rank in zip(paths, ranks, strict=True):
        if rank in first:
            raise DuplicateRank(
                f"{path}: is of rank {rank}, as {first[rank]} is; give the {what}s of one moment of one job only"
            )
        first[rank] = path
