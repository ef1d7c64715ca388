"""Prove that files are of one run, before anything is matched: from names alone, two runs in a folder look like one.

Processes of one host share its clock, so what they recorded of one run overlaps there. Ranks of one run have the same
libraries and the same process groups. Where hosts are not known, or have clocks of their own, times prove nothing, and
a warning says what would have to be true.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from ...common.wording import listed, ranks_in_words
from ..core.escaping import encodable
from ..errors import MixedJobs, RunFiles
from .several_runs import shell_words

_SAME_TIME_FRAC = 0.5
_BETWEEN_NS = 1_000_000
_CLOCKS_APART_NS = 1_000_000_000
"""Hosts that keep their clocks by a server of time agree better than that."""
_LONG_AGO_NS = 10**18  # in 2001: times that count from the epoch are later


class CapturedSpan(NamedTuple):
    """From the first to the last event."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class OneProcess:
    """What the files of one rank say of the run that they are of; None and empty where they do not say it.

    `clock` is the same for processes of one host, `device` and `pid` are its numbers there. `steps` are those that its
    CPU marked, `facts` what all ranks of a run have in common, in words, and `groups` its process groups without those
    of all ranks.
    """

    rank: int
    paths: tuple[Path, ...]
    host: str | None
    clock: Hashable | None
    device: int | None
    pid: int | None
    span: CapturedSpan | None
    steps: Mapping[int, CapturedSpan]
    facts: dict[str, str]
    groups: frozenset[tuple[int, ...]]


def check_one_run(processes: Sequence[OneProcess]) -> None:
    """Raise MixedJobs with the runs that these are of, if they are not of one."""
    found, why = runs_apart(processes)
    if found:
        folder = found[0].paths[0].parent
        raise MixedJobs(f"{folder}: files of {len(found):,} runs: {why}; analyse them separately", found)


def runs_apart(processes: Sequence[OneProcess]) -> tuple[tuple[RunFiles, ...], str]:
    """The runs that these are of, and what tells the first two apart; none if nothing does, or not all of one rank."""
    runs, why = _runs(processes)
    if len(runs) < 2 or any(len({process.rank for process in run}) < len(run) for run in runs):
        return (), ""
    named = {_name(run): run for run in runs}
    if len(named) < len(runs):
        named = {f"run {number}": run for number, run in enumerate(runs, 1)}
    every = [path for process in processes for path in process.paths]
    paths = {name: tuple(path for process in run for path in process.paths) for name, run in named.items()}
    return tuple(RunFiles(name, own, shell_words(own, every)) for name, own in paths.items()), why


def if_of_one_run(processes: Sequence[OneProcess]) -> Iterator[str]:
    """Yield what would have to be true of clocks if these are of one run."""
    parts = _overlapping(processes)
    for (before, after), gap_ns in zip(pairwise(parts), _gaps_ns(parts), strict=True):
        if gap_ns < _CLOCKS_APART_NS:
            continue
        ranks = f"ranks {before[-1].rank} and {after[0].rank}"
        hosts = [process.host for process in (before[-1], after[0])]
        told = f"they ran on hosts whose clocks differ by {_in_words(gap_ns)} or more"
        if None in hosts:
            told += ", of which the files say nothing"
        yield f"{ranks} have no time in common: either {told}, or they are of two runs"


def _runs(processes: Sequence[OneProcess]) -> tuple[list[list[OneProcess]], str]:
    """The runs, and what tells the first two apart."""
    for split in (_by_facts, _by_groups, _by_clocks, _by_steps):
        parts, why = split(processes)
        if len(parts) > 1:
            return [run for part in parts for run in _runs(part)[0]], why
    return [list(processes)], ""


def _by_facts(processes: Sequence[OneProcess]) -> tuple[list[list[OneProcess]], str]:
    """Processes with other versions of a library than others; those that do not say theirs are with most."""
    for fact in dict.fromkeys(name for process in processes for name in process.facts):
        counts = Counter(process.facts[fact] for process in processes if fact in process.facts)
        if len(counts) > 1:
            usual = counts.most_common(1)[0][0]
            parts = _grouped(processes, lambda process: process.facts.get(fact, usual))  # noqa: B023 - called here
            firsts = [f"rank {part[0].rank} has {part[0].facts.get(fact, usual)}" for part in parts[:2]]
            return parts, listed(firsts)
    return [list(processes)], ""


def _by_groups(processes: Sequence[OneProcess]) -> tuple[list[list[OneProcess]], str]:
    """Processes that list groups, but not one that another lists with them; those that fit several are with the first.

    A process lists the groups that it is in when a file is written, so only ranks with as many files are compared.
    """
    by_rank = {process.rank: process for process in processes if process.groups}
    against: dict[int, set[int]] = defaultdict(set)
    first = ""
    for process in by_rank.values():
        for group in process.groups:
            for other in (by_rank[rank] for rank in group if rank in by_rank):
                if group not in other.groups and len(other.paths) == len(process.paths):
                    against[process.rank].add(other.rank)
                    against[other.rank].add(process.rank)
                    first = first or (
                        f"rank {process.rank} has a group of {ranks_in_words(group)}, and rank {other.rank} has none"
                    )
    if not first:
        return [list(processes)], ""
    parts: list[list[OneProcess]] = []
    for process in processes:
        fitting = [part for part in parts if not against[process.rank] & {other.rank for other in part}]
        if fitting:
            fitting[0].append(process)
        else:
            parts.append([process])
    return parts, first


def _by_clocks(processes: Sequence[OneProcess]) -> tuple[list[list[OneProcess]], str]:
    """Processes of one host that have no time in common.

    The clocks of other hosts may differ: where each host has as many parts, they belong together in their order, and
    what has fewer is with the nearest.
    """
    on_clock: dict[Hashable, list[OneProcess]] = defaultdict(list)
    for process in processes:
        if process.clock is not None:
            on_clock[process.clock].append(process)
    parts_on = {clock: _overlapping(own) for clock, own in on_clock.items()}
    parts_on = {clock: parts for clock, parts in parts_on.items() if not _may_be_hosts(parts)}
    clock, parts = max(parts_on.items(), key=lambda item: len(item[1]), default=(None, []))
    if len(parts) < 2:
        return [list(processes)], ""
    spans = [_captured(part) for part in parts]
    runs = [list(part) for part in parts]
    for other, own in parts_on.items():
        if other != clock:
            for number, part in enumerate(own):
                runs[number if len(own) == len(parts) else _nearest(_captured(part), spans)] += part
    placed = {process.paths for own in parts_on.values() for part in own for process in part}
    for process in processes:
        if process.paths not in placed:
            runs[0 if process.span is None else _nearest(process.span, spans)].append(process)
    one, two = parts[0][-1], parts[1][0]
    gap_ns = spans[1].begin_ns - spans[0].end_ns
    where = f"on {one.host}" if one.host is not None else "on one host"
    return runs, f"{where} rank {one.rank} had ended {_in_words(gap_ns)} before the capture of rank {two.rank} began"


def _by_steps(processes: Sequence[OneProcess]) -> tuple[list[list[OneProcess]], str]:
    """Processes that ran at the same time on one host, in two sets of steps without a common number.

    More sets are of ranks that number their steps each from its own beginning.
    """
    parts = _joined([process for process in processes if process.steps], lambda process: frozenset(process.steps))
    if len(parts) != 2:
        return [list(processes)], ""
    one, two = parts
    at_once = [(first, second) for first in one for second in two if _at_once(first, second)]
    if not at_once or _may_be_hosts([[first for first, _ in at_once], [second for _, second in at_once]]):
        return [list(processes)], ""
    rest = [process for process in processes if not process.steps]
    numbers = [f"rank {p.rank} was in steps {min(p.steps)} to {max(p.steps)}" for p in at_once[0]]
    return [one + rest, two], f"at the same time, {listed(numbers)}"


def _may_be_hosts(parts: Sequence[Sequence[OneProcess]]) -> bool:
    """Whether a GPU or a process id is in several parts: these may be hosts that share their name, but no clock."""
    found = [
        {(what, number) for process in part for what, number in (("GPU", process.device), ("pid", process.pid))
         if number is not None}
        for part in parts
    ]  # fmt: skip
    return sum(map(len, found)) > len(set().union(*found))


def _at_once(one: OneProcess, two: OneProcess) -> bool:
    """Whether the CPUs of both were in their steps at the same time on one host, for most of the shorter ones."""
    if one.clock is None or one.clock != two.clock:
        return False
    spans = [_hull(process.steps.values()) for process in (one, two)]
    both_ns = min(span.end_ns for span in spans) - max(span.begin_ns for span in spans)
    return both_ns > _SAME_TIME_FRAC * min(span.end_ns - span.begin_ns for span in spans)


def _overlapping(processes: Sequence[OneProcess]) -> list[list[OneProcess]]:
    """Processes whose span is known, in parts with no time in common, in their order.

    Where next to nothing is between them, one may have begun its steps as the other had ended them.
    """
    parts: list[list[OneProcess]] = []
    end_ns = 0
    for span, process in sorted(((p.span, p) for p in processes if p.span is not None), key=lambda pair: pair[0]):
        if parts and span.begin_ns - end_ns <= _BETWEEN_NS:
            parts[-1].append(process)
            end_ns = max(end_ns, span.end_ns)
        else:
            parts.append([process])
            end_ns = span.end_ns
    return parts


def _captured(processes: Sequence[OneProcess]) -> CapturedSpan:
    return _hull(process.span for process in processes if process.span is not None)


def _hull(each: Iterable[CapturedSpan]) -> CapturedSpan:
    spans = list(each)
    return CapturedSpan(min(span.begin_ns for span in spans), max(span.end_ns for span in spans))


def _gaps_ns(parts: Sequence[Sequence[OneProcess]]) -> list[int]:
    return [_captured(after).begin_ns - _captured(before).end_ns for before, after in pairwise(parts)]


def _nearest(span: CapturedSpan, others: Sequence[CapturedSpan]) -> int:
    apart = [max(other.begin_ns - span.end_ns, span.begin_ns - other.end_ns) for other in others]
    return apart.index(min(apart))


_Key = TypeVar("_Key", bound=Hashable)


def _grouped(processes: Sequence[OneProcess], key: Callable[[OneProcess], _Key]) -> list[list[OneProcess]]:
    parts: dict[_Key, list[OneProcess]] = defaultdict(list)
    for process in processes:
        parts[key(process)].append(process)
    return list(parts.values())


def _joined(processes: Sequence[OneProcess], things: Callable[[OneProcess], frozenset[_Key]]) -> list[list[OneProcess]]:
    """Processes in parts that have none of these things in common."""
    root: dict[Hashable, Hashable] = {}

    def found(thing: Hashable) -> Hashable:
        while root.setdefault(thing, thing) != thing:
            root[thing] = thing = root[root[thing]]
        return thing

    for process in processes:
        for thing in things(process):
            root[found((thing,))] = found(process.paths)
    return _grouped(processes, lambda process: found(process.paths))


def _in_words(time_ns: int) -> str:
    return f"{time_ns / 1e9:,.1f} s" if time_ns >= 1e9 else f"{time_ns / 1e6:,.1f} ms"


def _name(run: Sequence[OneProcess]) -> str:
    """Its ranks, and when it was captured, if that is known."""
    ranks = ranks_in_words(sorted(process.rank for process in run))
    begins = [process.span.begin_ns for process in run if process.span is not None]
    if not begins or min(begins) < _LONG_AGO_NS:
        return ranks
    began = datetime.fromtimestamp(min(begins) / 1e9, timezone.utc)
    return encodable(f"{ranks}, {began:%Y-%m-%d %H:%M:%S} UTC")
