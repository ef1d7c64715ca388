"""Find dumps of the flight recorder and the rank of each, which the files themselves do not say."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

from ...common.wording import counted
from ...contract.limits import RANK_LIMIT
from ..errors import AnalysisError, DuplicateRank, NoTraces, UnknownRank, UnreadableFile
from ..formats.flight_recorder.entry import looks_like_dump
from ..reading.trace_files import is_side_file, is_without_traces

_NUMBER = re.compile(r"[0-9]{1,7}")
_RANK = re.compile(r"rank[-_.= ]?([0-9]{1,7})", re.IGNORECASE)
_HINT = "torch writes one per rank when a collective times out, see docs/hang.md"


def dump_files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and dumps in the folders named, sorted. Raises NoTraces, UnreadableFile."""
    files: list[Path] = []
    for path in paths:
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError) as err:
            raise NoTraces(f"{path}: no such file or directory; expected dumps of the flight recorder") from err
        except OSError as err:
            raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
        files += sorted(_dumps_in(path)) if is_folder else [path]
    return list(dict.fromkeys(files))


def looks_like_dumps(paths: Sequence[Path]) -> bool:
    """Whether the first of these paths has dumps and no traces; False if it cannot be read."""
    first = paths[0] if paths else Path()
    if not first.is_dir():
        return looks_like_dump(first)
    try:
        return is_without_traces(first) and bool(_dumps_in(first))
    except AnalysisError:
        return False


def holds_dumps(paths: Sequence[Path]) -> bool:
    """Whether any of these paths is a dump, or a folder that holds one; False where nothing can be read."""

    def holds(path: Path) -> bool:
        try:
            return bool(_dumps_in(path)) if path.is_dir() else looks_like_dump(path)
        except (AnalysisError, OSError):
            return False

    return any(map(holds, paths))


def _dumps_in(folder: Path) -> list[Path]:
    """The dumps in a folder. Raises NoTraces, UnreadableFile."""
    try:
        inside = sorted(folder.iterdir())
        files = [p for p in inside if p.name[0] != "." and not is_side_file(p.name) and p.is_file()]
    except OSError as err:
        raise UnreadableFile(f"{folder}: cannot be read: {err.strerror}") from err
    dumps = [path for path in files if looks_like_dump(path)]
    if not dumps:
        inner = [path.name for path in inside if path.is_dir()]
        hint = f"did you mean one of its folders ({', '.join(inner[:5])})?" if inner else _HINT
        raise NoTraces(f"{folder}: holds no dump of the flight recorder; {hint}")
    return dumps


def ranks_of(paths: Sequence[Path], possible: Sequence[Set[int] | None]) -> list[int]:
    """The rank of each file: the only one in all its groups, or a number in its name that is one of them.

    The numbers of all files stand in the same place: behind the word rank, or last, or first, and so on. `possible` are
    the ranks in all groups of each file, None where it names none. Raises UnknownRank, DuplicateRank.
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
        _refuse_twice(paths, tried[0])
    if all(rank is not None for rank in sure):
        _refuse_twice(paths, sure)
    vague = [path for path, rank in zip(paths, sure, strict=True) if rank is None]
    others = f", nor {'does' if len(vague) == 2 else 'do'} {counted(len(vague) - 1, 'other')}"
    raise UnknownRank(
        f"{vague[0]}: does not say which rank it is of{others if len(vague) > 1 else ''}; a dump has no rank in it: "
        "let its name end in the rank, as torch does (nccl_trace_rank_3), and name all files alike"
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


def _refuse_twice(paths: Sequence[Path], ranks: Sequence[int | None]) -> None:
    """Raise DuplicateRank if two files have the same rank."""
    first: dict[int | None, Path] = {}
    for path, rank in zip(paths, ranks, strict=True):
        if rank in first:
            raise DuplicateRank(
                f"{path}: is of rank {rank}, as {first[rank]} is; give the dumps of one moment of one job only"
            )
        first[rank] = path
