"""Dump files -> what every rank recorded, read by all cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import TraceError
from ..formats.flight_recorder.dump import Dump, listed_ranks, read_dump
from ..reading.crew import LocalCrew
from ..reading.pool import cores
from .files import dump_files, ranks_of

_AT_ONCE = 16


@dataclass(frozen=True)
class Dumps:
    """The dumps of a job by rank, and what was wrong with others."""

    by_rank: dict[int, Dump]
    paths: dict[int, Path]
    failed: list[str]


def read_dumps(paths: Sequence[Path], *, keep_going: bool = False, workers: int | None = None) -> Dumps:
    """The dumps at `paths`: files, or folders that hold some.

    With `keep_going`, files that cannot be used are left out. Raises AnalysisError.
    """
    files = dump_files(paths)
    blocks = [tuple(files[first : first + _AT_ONCE]) for first in range(0, len(files), _AT_ONCE)]
    found: list[Dump | TraceError] = []
    with LocalCrew(min(workers or cores(), len(blocks))) as crew:
        for block in crew.results(_read_all, ((block,) for block in blocks)):
            found += block
    errors = [one for one in found if isinstance(one, TraceError)]
    if errors and (not keep_going or len(errors) == len(found)):
        raise errors[0]
    usable = [(path, one) for path, one in zip(files, found, strict=True) if isinstance(one, Dump)]
    ranks = ranks_of([path for path, _ in usable], possible_ranks(usable))
    ordered = sorted(zip(ranks, usable, strict=True), key=lambda pair: pair[0])
    return Dumps(
        by_rank={rank: dump for rank, (_, dump) in ordered},
        paths={rank: path for rank, (path, _) in ordered},
        failed=[str(error) for error in errors],
    )


def _read_all(paths: Sequence[Path]) -> list[Dump | TraceError]:
    return [_read(path) for path in paths]


def _read(path: Path) -> Dump | TraceError:
    try:
        return read_dump(path)
    except TraceError as err:
        return err


def possible_ranks(dumps: Sequence[tuple[Path, Dump]]) -> list[frozenset[int] | None]:
    """The ranks that are in all groups of a dump, None where it names none. Raises DamagedTrace."""
    known: dict[str, frozenset[int]] = {"": frozenset()}
    found: list[frozenset[int] | None] = []
    for path, dump in dumps:
        texts = {name.ranks for name in dump.groups if name.ranks}
        for text in texts - known.keys():
            known[text] = frozenset(listed_ranks(text, str(path)))
        found.append(frozenset.intersection(*(known[text] for text in texts)) if texts else None)
    return found
