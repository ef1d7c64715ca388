"""Choose part of a run's ranks, by number, host or process group, as if the other files did not exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ...common.wording import ranges_of
from ...contract.rank import META_SUFFIX
from ..core.places.place import fetch_begins
from ..errors import NoSuchRanks
from ..formats.registry import name_parts
from ..reading.trace_input import TraceInput
from ..recording.options import ReadOptions
from ..recording.shared_files import shared_rank
from .rank_files import Member, ReadFile, host_of
from .side_files import rank_file

_F = TypeVar("_F", bound=ReadFile)


def worth_reading(traces: Sequence[TraceInput], options: ReadOptions) -> tuple[list[TraceInput], list[str]]:
    """Leave out files of other ranks, if side files or paths give all ranks; with a note on that."""
    if not options.ranks:
        return list(traces), []
    names = {trace: name_parts(trace.path.name) for trace in traces}
    sides = {
        trace: trace.path.with_name(name.worker + META_SUFFIX) for trace, name in names.items() if name is not None
    }
    fetch_begins(sides.values())
    rank_of = {trace: _rank_of_file(trace.path, sides.get(trace)) for trace in traces}
    if None in rank_of.values() or not set(options.ranks) <= set(rank_of.values()):
        return list(traces), []
    left = sorted({rank for rank in rank_of.values() if rank is not None} - set(options.ranks))
    return [trace for trace, rank in rank_of.items() if rank in options.ranks], list(_left_out(left))


def _rank_of_file(path: Path, side: Path | None) -> int | None:
    """The rank of a file from its path or its side file."""
    shared = shared_rank(path)
    if shared is not None:
        return shared.rank
    return None if side is None else rank_file(side, []).record.rank


def chosen(members: list[Member[_F]], options: ReadOptions) -> tuple[list[Member[_F]], list[str]]:
    """The members whose ranks the options name, and notes on what is left out. Raises NoSuchRanks."""
    if not (options.ranks or options.hosts or options.groups):
        return members, []
    there = sorted({member.rank for member in members})
    kept = set(there)
    if options.ranks:
        kept &= _known("rank", options.ranks, there)
    if options.hosts:
        by_host = _ranks_by(((host_of(member)[0], member.rank) for member in members), "host", options.hosts)
        kept &= by_host
    if options.groups:
        kept &= _ranks_by(_group_names(members), "process group", options.groups)
    if not kept:
        raise NoSuchRanks("no rank with a trace is in all that was asked for; choose by ranks, hosts or groups alone")
    notes = [*_left_out([rank for rank in there if rank not in kept]), *_seen_in_part(members, kept)]
    return [member for member in members if member.rank in kept], notes


def _known(what: str, asked: Iterable[int], there: Sequence[int]) -> set[int]:
    wanted = set(asked)
    unknown = sorted(wanted - set(there))
    if unknown:
        raise NoSuchRanks(f"no trace of {what} {ranges_of(unknown)}; there are those of {ranges_of(list(there))}")
    return wanted


def _ranks_by(named: Iterable[tuple[str | None, int]], what: str, asked: Sequence[str]) -> set[int]:
    """The ranks of these names. Raises NoSuchRanks for a name that nothing has."""
    ranks_of: dict[str, set[int]] = {}
    for name, rank in named:
        if name:
            ranks_of.setdefault(name, set()).add(rank)
    unknown = [name for name in asked if name not in ranks_of]
    if unknown:
        known = ", ".join(sorted(ranks_of)[:12]) or "none is named"
        raise NoSuchRanks(f"no {what} is called {unknown[0]}; those of the traces are: {known}")
    return set().union(*(ranks_of[name] for name in asked))


def _group_names(members: Iterable[Member[_F]]) -> Iterator[tuple[str | None, int]]:
    """Yield the names and descriptions of process groups with each of their ranks."""
    for member in members:
        for group in member.file.header.process_groups:
            yield from ((name, rank) for name in (group.name, group.description) for rank in group.ranks)
        for side in [] if member.file.header.process_groups else member.side.record.process_groups:
            yield from ((str(name), rank) for name in (side.name, side.desc) if name for rank in side.ranks)


def _left_out(ranks: Sequence[int]) -> Iterator[str]:
    if ranks:
        yield f"left out, as asked for: rank {ranges_of(ranks)}"


def _seen_in_part(members: Iterable[Member[_F]], kept: set[int]) -> Iterator[str]:
    """Yield notes on process groups of which some ranks are left out."""
    groups = {
        (group.description or group.name, tuple(sorted(group.ranks)))
        for member in members
        if member.rank in kept
        for group in member.file.header.process_groups
    }
    cut = sorted((name, ranks) for name, ranks in groups if set(ranks) & kept and set(ranks) - kept)
    if cut:
        named = "; ".join(f"{name} ({ranges_of(list(ranks))})" for name, ranks in cut[:4])
        more = f"; {len(cut) - 4:,} more" if len(cut) > 4 else ""
        yield f"process groups read in part, so that few of their calls can be split: {named}{more}"
