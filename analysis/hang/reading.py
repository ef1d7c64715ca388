"""Read dump files on all cores: what every rank recorded."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.budget import GB, Budget, default_limit_bytes
from ..errors import TraceError
from ..formats.flight_recorder.dump import Dump, listed_ranks, read_dump
from ..reading.executor import Processes, cores
from ..reading.executor import results as results_of
from ..reading.named_ranks import ranks_of
from .files import DUMPS

_LOG = logging.getLogger("commtrace.reading")
_AT_ONCE = 16


@dataclass(frozen=True)
class Dumps:
    """The dumps of a job by rank, and the errors of others."""

    by_rank: dict[int, Dump]
    paths: dict[int, Path]
    failed: list[str]


def read_dumps(
    paths: Sequence[Path], *, keep_going: bool = False, workers: int | None = None, memory_gb: float | None = None
) -> Dumps:
    """Read the dumps at `paths`: files, or folders of them.

    With `keep_going`, files that cannot be used are left out. They must not need more than `memory_gb` of memory, in
    1e9 bytes; four fifths of what is free if not given. Raises AnalysisError.
    """
    limit_bytes = default_limit_bytes() if memory_gb is None else int(memory_gb * GB)
    budget = Budget(limit_bytes)
    files = DUMPS.named(paths)
    blocks = [tuple(files[first : first + _AT_ONCE]) for first in range(0, len(files), _AT_ONCE)]
    results: list[Dump | TraceError] = []
    readers = max(1, min(workers or cores(), len(blocks)))
    _LOG.info("reading %d dumps of the flight recorder, in %d processes", len(files), readers)
    with Processes(readers if readers > 1 else 0) as executor:
        for block in results_of(executor, _read_all, ((block, limit_bytes // readers) for block in blocks)):
            results += block
            kept_bytes = sum(result.kept_bytes for result in block if isinstance(result, Dump))
            budget.draw(f"{files[len(results) - 1]}: with all dumps before it", kept_bytes)
    errors = [result for result in results if isinstance(result, TraceError)]
    if errors and (not keep_going or len(errors) == len(results)):
        raise errors[0]
    usable = [(path, result) for path, result in zip(files, results, strict=True) if isinstance(result, Dump)]
    ranks = ranks_of([path for path, _ in usable], possible_ranks(usable))
    ordered = sorted(zip(ranks, usable, strict=True), key=lambda pair: pair[0])
    return Dumps(
        by_rank={rank: dump for rank, (_, dump) in ordered},
        paths={rank: path for rank, (path, _) in ordered},
        failed=[str(error) for error in errors],
    )


def _read_all(paths: Sequence[Path], limit_bytes: int) -> list[Dump | TraceError]:
    return [_read(path, limit_bytes) for path in paths]


def _read(path: Path, limit_bytes: int) -> Dump | TraceError:
    begun = time.monotonic()
    try:
        dump = read_dump(path, limit_bytes)
    except TraceError as err:
        return err
    _LOG.info("%r: read as a dump of the flight recorder, in %.3f s", str(path), time.monotonic() - begun)
    return dump


def possible_ranks(dumps: Sequence[tuple[Path, Dump]]) -> list[frozenset[int] | None]:
    """Ranks that are in all groups of each dump, None if it names none. Raises DamagedTrace."""
    known: dict[str, frozenset[int]] = {"": frozenset()}
    possible: list[frozenset[int] | None] = []
    for path, dump in dumps:
        texts = {name.ranks for name in dump.groups if name.ranks}
        for text in texts - known.keys():
            known[text] = frozenset(listed_ranks(text, str(path)))
        possible.append(frozenset.intersection(*(known[text] for text in texts)) if texts else None)
    return possible
