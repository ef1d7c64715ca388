"""Assign ranks to the processes in all files of a run that rocprofv3 wrote.

Variables of a launcher tell them, which databases have. Else names of files do, where each holds one process. Otherwise
processes are counted: by host, on it by their GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ....common.wording import shortened
from ....contract.limits import RANK_LIMIT
from ...core.escaping import encodable
from ...errors import MixedJobs, TooLarge, TraceError
from ...recording.compression import first_bytes
from ...recording.options import ReadOptions
from ...recording.shared_files import MOST_IN_FILE, SharedRank, natural_order, rank_in_name
from ..format import RanksInFiles
from ..others import SQLITE
from .database import processes_in_database
from .document import processes_in_document
from .process import ProcessFacts

_APART_NS = 2_000_000_000
_MOST_NAMED = 8

_InFile = tuple[Path, ProcessFacts]


@dataclass(frozen=True)
class _Held:
    """The processes of a file, None if it cannot be read: its reader will say why."""

    path: Path
    processes: tuple[ProcessFacts, ...] | None = None


def processes_as_ranks(paths: Sequence[Path]) -> RanksInFiles:
    """Find the ranks in the files of a run.

    Files that cannot be read, or hold one rank that their name tells, stay as they are; processes that used no GPU are
    left out, such as a launcher's own, and others that do not communicate, where some do. Raises MixedJobs, TooLarge.
    """
    with ThreadPoolExecutor(max_workers=2) as threads:
        held = list(threads.map(_held, paths))
    every = [(one.path, facts) for one in held for facts in one.processes or ()]
    each = _working(every)
    notes = list(_on_others(every, each))
    if len(every) == len(paths) == 1:
        return RanksInFiles(list(paths), notes)
    ranks, size = _by_launcher(each)
    if ranks is None and (ranks := _by_names(each)) is None:
        _check_one_run(each)
        order = sorted(each, key=_place)
        ranks = {(path, facts.pid): rank for rank, (path, facts) in enumerate(order)}
        notes += _on_counting(order)
    in_file: dict[Path, list[SharedRank]] = {one.path: [] for one in held}
    for path, facts in each:
        in_file[path].append(SharedRank(ranks[path, facts.pid], size, facts.pid))
    unread = {one.path for one in held if one.processes is None}
    found: list[Path] = []
    for path in paths:
        found += [rank.in_file(path) for rank in sorted(in_file[path])] or ([path] if path in unread else [])
    return RanksInFiles(found, notes)


def _held(path: Path) -> _Held:
    try:
        if first_bytes(path).startswith(SQLITE):
            processes = processes_in_database(path)
        else:
            processes = processes_in_document(path, ReadOptions())
    except TooLarge:  # without it, others would be counted as if it were not there
        raise
    except TraceError:
        return _Held(path)
    is_sound = 0 < len(processes) <= MOST_IN_FILE and len({one.pid for one in processes}) == len(processes)
    return _Held(path, tuple(processes) if is_sound else None)


def _working(every: Sequence[_InFile]) -> list[_InFile]:
    """Processes that communicate; if none does, those that used GPUs; if none did, all.

    A rank of its own that used a GPU may not have communicated while it was captured.
    """
    taken = {facts.rank for _, facts in every if facts.communicates}
    if taken:
        own = [facts.gpus and facts.rank is not None and facts.rank not in taken for _, facts in every]
        return [one for one, is_rank in zip(every, own, strict=True) if one[1].communicates or is_rank]
    return [one for one in every if one[1].gpus] or list(every)


def _by_launcher(each: Sequence[_InFile]) -> tuple[dict[tuple[Path, int], int] | None, int | None]:
    """The rank of each process and the number of ranks, as the variables of all processes say; None unless they do."""
    ranks = {(path, facts.pid): facts.rank for path, facts in each if facts.rank is not None}
    sizes = {facts.world_size for _, facts in each if facts.world_size is not None}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    possible = max(ranks.values(), default=0) < min(sizes, default=RANK_LIMIT)
    is_told = bool(each) and len(ranks) == len(each) == len(set(ranks.values())) and possible
    return (ranks, size) if is_told else (None, None)


def _by_names(each: Sequence[_InFile]) -> dict[tuple[Path, int], int] | None:
    """The rank of each process as the name of its file has it; None unless each has a file, and a rank, of its own."""
    ranks = {(path, facts.pid): rank for path, facts in each if (rank := rank_in_name(path.name)) is not None}
    files = {path for path, _ in each}
    return ranks if len(files) == len(each) == len(ranks) == len(set(ranks.values())) else None


def _place(one: _InFile) -> tuple[object, ...]:
    """Where a process stands among others: by host, by the first of its GPUs, by file."""
    path, facts = one
    return natural_order(facts.host or ""), min(facts.gpus, default=0), natural_order(path.name), facts.pid


def _check_one_run(each: Sequence[_InFile]) -> None:
    """Raise MixedJobs if files of a host were not captured at the same time, as nothing else tells runs apart."""
    spans: dict[str, list[tuple[tuple[int, int], Path]]] = {}
    for path, facts in each:
        if facts.host is not None and facts.span is not None:
            spans.setdefault(facts.host, []).append((facts.span, path))
    for of_host in spans.values():
        (last, later), (first, earlier) = max(of_host), min(of_host, key=lambda one: one[0][1])
        if last[0] > first[1] + _APART_NS:
            raise MixedJobs(
                f"{later.parent}: {earlier.name} and {later.name} do not say which ranks they are, and were captured "
                "one after the other, so they are not taken for one run; analyse them apart, or name the files rank0, "
                "rank1, ..."
            )


def _on_counting(order: Sequence[_InFile]) -> Iterator[str]:
    if len(order) < 2:
        return
    files = len({path for path, _ in order})
    named = [
        f"rank {rank} is process {facts.pid}" + (f" of {encodable(path.name)}" * (files > 1))
        for rank, (path, facts) in enumerate(order)
    ]
    what = "processes" if files > 1 else f"{encodable(order[0][0].name)}: processes"
    yield f"{what} are counted as ranks by host and GPU, which nothing names: {shortened(named, _MOST_NAMED)}"


def _on_others(every: Sequence[_InFile], working: Sequence[_InFile]) -> Iterator[str]:
    kept = set(working)
    others = [f"{facts.pid} of {encodable(path.name)}" for path, facts in every if (path, facts) not in kept]
    if others:
        did = "communicate" if any(facts.communicates for _, facts in working) else "use a GPU"
        yield f"left out what did not {did}, as the others did: process {shortened(others, _MOST_NAMED)}"
