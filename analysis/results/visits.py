"""What is made of each rank in one visit to it: whatever was asked for and can be made by then.

A rank's events are decoded for each visit, and what several functions make of them there is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from ..catalog import CATALOG
from ..core.declaring import AT_RANK, EACH_RANK, PLAYED, VALUES, is_later
from ..errors import AnalysisError
from ..run.event_tables import AT_RANKS
from ..run.run import Run
from ..run.spread import made_of
from .joining import join_ranks
from .part import cut_files

Make = Callable[..., Any]
Need = Callable[[str], Any]
"""Gives what a function needs, by name."""


@dataclass(frozen=True)
class Visits:
    """What will be needed of ranks, and what visits to them have found that nobody has asked for yet."""

    _wanted: dict[Make, None] = field(default_factory=dict)
    _walked: set[Make] = field(default_factory=set)
    _under_way: set[Make] = field(default_factory=set)
    _found: dict[Make, Any] = field(default_factory=dict)

    def want(self, make: Make) -> None:
        """Note that this will be asked for, and what it surely needs; what is played needs files that are cut."""
        if make in PLAYED:
            make = cut_files
        if make in self._walked:
            return
        self._walked.add(make)
        for each in _needs(make, surely=True):
            self.want(each)
        if make in EACH_RANK:
            self._wanted[make] = None

    def of(self, make: Make, run: Run, need: Need, is_made: Callable[[Make], bool]) -> Any:
        """What the function makes of all ranks; `is_made` says which ones nobody will ask for. Raises AnalysisError."""
        if make not in self._found:
            self._visit(make, run, need, lambda one: one in self._found or is_made(one))
        found = self._found[make]
        if isinstance(found, AnalysisError):
            raise found
        self._wanted.pop(make, None)
        return self._found.pop(make)  # the caller keeps it

    def _visit(self, make: Make, run: Run, need: Need, is_made: Callable[[Make], bool]) -> None:
        spread = run.spread if run.tables.ran else None
        # Where all ranks are, what is made at ranks is made once for all visits.
        at_rank_of: Callable[[Make], Mapping[str, Make]] = _at_rank if spread else lambda _: {}
        given = {name: need(name) for name in _given_to(make, at_rank_of(make))}
        also = [
            one
            for one in self._wanted
            if one is not make and one not in self._under_way and not is_made(one) and all(map(is_made, _before(one)))
        ]
        self._under_way.update((make, *also))
        together = [make]
        for one in also:
            try:
                given |= {name: need(name) for name in _given_to(one, at_rank_of(one)) if name not in given}
            except AnalysisError:  # whoever asks for it is told
                continue
            together.append(one)
        at_rank = {name: one for each in together for name, one in at_rank_of(each).items()}
        each_rank = spread.of_each_rank if spread else lambda *of: [made_of(run.tables.whole, *of)]
        of_ranks = list(each_rank(together, at_rank, given))
        self._under_way.difference_update((make, *also))
        for one, parts in zip(together, zip(*of_ranks, strict=True), strict=True):
            failed = next((part for part in parts if isinstance(part, AnalysisError)), None)
            self._found[one] = join_ranks(parts) if failed is None else failed


def declared(name: str) -> Make | None:
    """The function that makes the value or table of this name."""
    entry = CATALOG.get(name)
    return VALUES.get(name) or (None if entry is None else entry.make)


def _needs(make: Make, *, surely: bool = False) -> Iterator[Make]:
    """Yield the declared functions that make what a function needs; `surely` leaves out what it may not call."""
    for name, parameter in signature(make).parameters.items():
        needed = None if name in AT_RANKS or (surely and is_later(parameter)) else declared(name)
        if needed is not None:
            yield needed


def _at_rank(make: Make) -> Mapping[str, Make]:
    """What a function needs that is made where the events of a rank are, by name."""
    found: dict[str, Make] = {}
    for name in signature(make).parameters:
        if VALUES.get(name) in AT_RANK:
            found |= {name: VALUES[name], **_at_rank(VALUES[name])}
    return found


def _given_to(make: Make, at_rank: Mapping[str, Make]) -> list[str]:
    """What a function, and what is made `at_rank` for it, is given besides the events there, by name."""
    needed = {name for each in (make, *at_rank.values()) for name in signature(each).parameters}
    return sorted(name for name in needed if name not in AT_RANKS and name not in at_rank)


def _before(make: Make) -> set[Make]:
    """What is made of each rank and needed before this function can be."""
    found: set[Make] = set()
    waiting = [one for name in _given_to(make, _at_rank(make)) if (one := declared(name)) is not None]
    seen: set[Make] = set()
    while waiting:
        each = waiting.pop()
        if each in seen or each in PLAYED:
            continue
        seen.add(each)
        if each in EACH_RANK:
            found.add(each)
        waiting += _needs(each)
    return found
