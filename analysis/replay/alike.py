"""Find activities of different ranks and steps that do the same work, and how long they usually take."""

from __future__ import annotations

import operator
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.arrays import Flags, Ints
from .programs import NONE, RankProgram, steps_of

_MOST_ALIGNED = 5_000
"""Activities of a step and stream, beyond which those of another program are not looked for one by one."""
_MOSTLY, _MOSTLY_STAGES = 0.9, 0.5
"""Two ranks do the same, one of them more of it, if at least this part of what they share comes in one order.

Two stages do, if this part of what the one with less runs is run by the other as well.
"""
_OF_WORK = ("lane", "step", "name", "start", "is_comm")
"""What tells which activities are alike; changes of a CPU's time leave it."""
_LARGEST = np.iinfo(np.int64).max
_MOST_ORDERED = 16
"""Sets of values whose order is kept: four with delays as measured, four with usual ones, each in two orders."""


class Alike:
    """A number for each activity of all members; equal numbers mean the same work."""

    def __init__(
        self,
        members: Sequence[RankProgram],
        code: Any,
        most: Ints,
        orders: Sequence[int] = (),
        is_stage: Sequence[bool] = (),
        together: Sequence[int] | None = None,
    ) -> None:
        self.orders, self.is_stage = list(orders), list(is_stage)
        """By place: a number for each member, shared by those that do the same in the same order on all streams; and
        whether it is a stage that is compared with other ones."""
        self._together = together
        self._members = members
        self._ends = np.cumsum([len(p) for p in members])
        self._code: Ints = np.asarray(code, dtype=np.int64)
        self._at: Ints = self._code - NONE
        self._size = int(self._at.max(initial=0)) + 1
        self._name_of: Ints = np.zeros(self._size, dtype=np.int64)
        self._name_of[self._at] = np.concatenate([p.name for p in members])
        self._known: deque[tuple[list[Ints], bool, _Ordered]] = deque(maxlen=_MOST_ORDERED)
        counts = pd.Series(code).groupby(code).transform("size").to_numpy()
        self._is_rare = (code == NONE) | (counts * 2 <= most)

    @classmethod
    def by_name(cls, members: Sequence[RankProgram]) -> Alike:
        """Number activities by name and occurrence in the step, for ranks with different programs.

        What is in no step, at either end of a trace, is like nothing else.
        """
        table = _table(members)
        table["nth"] = _counted(table, ["member", "step", "name"])
        alike = table.groupby(["place", "name", "nth"], sort=False)
        code = np.array(alike.ngroup(), dtype=np.int64)  # a copy, to write into
        alone = np.flatnonzero(np.concatenate([outside_steps(program) for program in members]))
        code[alone] = len(code) + np.arange(len(alone))
        return cls(members, code, np.zeros(len(code), dtype=np.int64))

    @classmethod
    def by_place(cls, members: Sequence[RankProgram], *, across: bool = False) -> Alike:
        """Number activities by place in the step, among ranks that communicate alike; rare ones get no number.

        Ranks that do the same in another order, such as stages of a pipeline, are compared only `across` orders, or
        where a rank has no other like it. The last ones are remembered: many scenarios of one run ask for the same.
        """
        recent = members[0].recent.alike
        alike: Alike
        for known, were_across, alike in recent:
            if across == were_across and len(known) == len(members) and all(map(_is_same_work, known, members)):
                return alike
        orders = cls.by_place(members).orders if across else None
        alike = cls._by_place(members, orders)
        recent.append((tuple(members), across, alike))
        return alike

    @classmethod
    def _by_place(cls, members: Sequence[RankProgram], stages: Sequence[int] | None) -> Alike:
        table = _table(members)
        code, most = np.full(len(table), NONE), np.zeros(len(table), dtype=np.int64)
        together = comparable(members) if stages is None else _joined(stages, members)
        table["together"] = table["member"].map(dict(enumerate(together)))
        # What is in no step, at either end of a trace, is like nothing else.
        apart = ((table["step"] < 0) & (table.groupby("member")["step"].transform("max") >= 0)).to_numpy()
        numbers = int(apart.sum())
        code[apart] = np.arange(numbers)
        orders: list[list[tuple[int, ...]]] = [[] for _ in members]
        keys = ["together", "lane", "place"]
        for _, lane in table[~apart].sort_values("start", kind="stable").groupby(keys, sort=False):
            by_member: dict[int, list[pd.DataFrame]] = {}
            for _, run in lane.groupby(["member", "step"], sort=False):
                by_member.setdefault(int(run["member"].iloc[0]), []).append(run)
            groups = _in_one_order(by_member)
            for group in groups:
                for member in group:
                    orders[member].append(tuple(group))
            if stages is not None or any(len(group) == 1 for group in groups):  # it would be by itself
                groups = [list(by_member)]
            for group in groups:
                runs = [run for member in group for run in by_member[member]]
                sequences = [tuple(run["name"]) for run in runs]
                usual = _most_common(sequences)
                # Ranks and steps mostly do the same: each sequence is looked at once.
                places = {names: _places(names, usual) for names in set(sequences)}
                for run, names in zip(runs, sequences, strict=True):
                    numbered, at = places[names], run.index.to_numpy()
                    known = numbered != NONE
                    code[at[known]] = numbers + numbered[known]
                    most[at] = len(runs)
                numbers += len(usual)
        in_order = pd.factorize(pd.Series(list(map(tuple, orders)), dtype=object))[0].tolist()
        own = peers(members) if stages is None else stages
        is_stage = [
            own.count(mine) < together.count(wider) and program.is_sending
            for mine, wider, program in zip(own, together, members, strict=True)
        ]
        return cls(members, code, most, in_order if stages is None else stages, is_stage, together)

    @cached_property
    def peers(self) -> list[int]:
        """As `peers`."""
        return peers(self._members)

    @cached_property
    def places_by_step(self) -> list[dict[int, Ints]]:
        """By member: step -> places of its activities in it."""
        of_members = [steps_of(program) for program in self._members]
        return [
            {step: np.flatnonzero(steps == step) for step in np.unique(steps[steps >= 0]).tolist()}
            for steps in of_members
        ]

    @property
    def codes(self) -> list[Ints]:
        """The numbers, by member."""
        return np.split(self._code, self._ends[:-1])

    def median(self, values: Sequence[Ints], among: Sequence[bool] | None = None) -> Sequence[Ints]:
        """Lower median of each activity's equals, by member; 0 for rare ones.

        If only some members are `among` them, what none of these does is 0 where it is `lacking`. What has no equals
        otherwise has the largest of its name among them, or its own value: a stage has work of its own.
        """
        [median] = self.quantiles((0.5,), values, among)
        return median

    def quantiles(
        self,
        shares: Sequence[float],
        values: Sequence[Ints],
        among: Sequence[bool] | None = None,
        own: Sequence[Ints] | None = None,
    ) -> list[Sequence[Ints]]:
        """Values below which these shares of each activity's equals lie, computed as in `median`.

        What has no equals among the others is compared by its `own` values, if these are not the same. Of the same
        arrays, quantiles among other members cost little: they are sorted once.
        """
        counted = None if among is None or all(among) else np.array(among)
        found = self._ordered(values).quantiles(shares, counted)
        lacking = self._lacking(among)
        for quantile in found:
            quantile[lacking] = 0.0
        absent = np.isnan(found[0])
        if counted is not None and absent.any():
            [by_name] = self._ordered(values, by_name=True).quantiles((1.0,), counted)
            largest = by_name[self._name_of]
            itself = None if np.isfinite(largest[absent]).all() else _Ordered.of(self._at, own or values, self._size)
            alone = [largest] * len(found) if itself is None else itself.quantiles(shares, ~counted)
            for quantile, of_own in zip(found, alone, strict=True):
                quantile[absent] = np.where(np.isnan(largest), of_own, largest)[absent]
        return [_ByMember(self._by_member, np.rint(each)) for each in found]

    def _ordered(self, values: Sequence[Ints], *, by_name: bool = False) -> _Ordered:
        for known, were_by_name, ordered in self._known:
            if by_name == were_by_name and len(known) == len(values) and all(map(operator.is_, known, values)):
                return ordered
        at = np.concatenate([member.name for member in self._members]) if by_name else self._at
        self._known.append((list(values), by_name, _Ordered.of(at, values, int(at.max(initial=0)) + 1)))
        return self._known[-1][2]

    def is_usual(self, among: Sequence[bool] | None = None) -> list[Flags]:
        """Whether each activity is neither rare nor lacking among these members, by member."""
        return np.split(~self._is_rare & ~self._lacking(among)[self._at], self._ends[:-1])

    def _lacking(self, among: Sequence[bool] | None) -> Flags:
        """Work, by its number, that none of these members does, of members that are compared with some of them.

        What stages do is no such work, nor what is in no step.
        """
        left_out, own = (np.zeros(self._size, dtype=dtype) for dtype in (bool, np.int64))
        if among is None or all(among) or self._together is None:
            return left_out
        compared = {group for group, counts in zip(self._together, among, strict=True) if counts}
        starts = self._ends - [len(program) for program in self._members]
        for number in np.flatnonzero(~np.array(among)).tolist():
            at = self._at[starts[number] : self._ends[number]]
            own += np.bincount(at, minlength=self._size)
            if self._together[number] in compared and not self.is_stage[number]:
                left_out[at[~outside_steps(self._members[number])]] = True
        lacking: Flags = left_out & (own == self._how_often)
        return lacking

    @cached_property
    def _how_often(self) -> Ints:
        """Activities of all members with each number."""
        return np.bincount(self._at, minlength=self._size)

    @cached_property
    def _by_member(self) -> list[tuple[Ints, Flags]]:
        """Of each member, where its activities stand among all codes, and whether they are usual ones."""
        return list(zip(np.split(self._at, self._ends[:-1]), self.is_usual(), strict=True))


class _ByMember(Sequence[Ints]):
    """Values by code as those of each member's activities, made when they are asked for; 0 for rare ones."""

    def __init__(self, of_members: Sequence[tuple[Ints, Flags]], by_code: NDArray[np.float64]) -> None:
        self._members, self._by_code = of_members, by_code

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, number: Any) -> Any:
        at, usual = self._members[number]
        return np.where(usual, self._by_code[at], 0.0).astype(np.int64)


class _Ordered(NamedTuple):
    """Values of activities by code and size: `at` is the place of the code, of `size`, and `member` whose it is."""

    at: Ints
    value: Ints
    member: Ints
    size: int

    @classmethod
    def of(cls, at: Ints, values: Sequence[Ints], size: int) -> _Ordered:
        """Sort the values of all members. One sort of single numbers takes a tenth of one by two columns."""
        together = np.concatenate(values)
        member = np.repeat(np.arange(len(values)), [len(each) for each in values])
        least = int(together.min(initial=0))
        span = int(together.max(initial=0)) - least + 1
        order = np.argsort(at * span + (together - least)) if size * span <= _LARGEST else np.lexsort((together, at))
        return cls(at[order].astype(np.int32), together[order], member[order].astype(np.int32), size)

    def quantiles(self, shares: Sequence[float], counted: Flags | None) -> list[NDArray[np.float64]]:
        """Quantiles by place of the code, among members that are `counted`, or all; NaN for codes without values."""
        at, value = self.at, self.value
        if counted is not None:
            kept = np.flatnonzero(counted[self.member])
            at, value = at[kept], value[kept]
        counts = np.bincount(at, minlength=self.size)
        before, known = np.cumsum(counts) - counts, counts > 0
        found = []
        for share in shares:
            quantile = np.full(self.size, np.nan)
            quantile[known] = value[(before + np.floor(share * np.maximum(counts - 1, 0)).astype(np.int64))[known]]
            found.append(quantile)
        return found


def outside_steps(program: RankProgram) -> Flags:
    """Whether each activity is in no step, on a rank that has steps."""
    outside: Flags = (program.step < 0) & (program.step >= 0).any()
    return outside


def _is_same_work(program: RankProgram, other: RankProgram) -> bool:
    return all(getattr(program, column) is getattr(other, column) for column in _OF_WORK)


def _table(members: Sequence[RankProgram]) -> pd.DataFrame:
    parts = [
        pd.DataFrame({"member": k, "lane": p.lane, "step": p.step, "name": p.name, "start": p.start})
        for k, p in enumerate(members)
    ]
    places = np.concatenate([place_in_period(program) for program in members])
    return pd.concat(parts, ignore_index=True).assign(place=places)


def place_in_period(program: RankProgram) -> Ints:
    """Which step of a period each activity is in, 0 where steps do not repeat: only those of one place do the same."""
    period = program.recent.period
    places: Ints = np.zeros(len(program), dtype=np.int64) if period is None else program.step % period.steps
    return places


def _counted(table: pd.DataFrame, keys: list[str]) -> pd.Series[int]:
    return table.sort_values("start", kind="stable").groupby(keys).cumcount().reindex(table.index)


def peers(members: Sequence[RankProgram]) -> list[int]:
    """A number for each member; equal ones call the same collectives equally often in most of their steps.

    Not in all: at the beginning and end of a trace, calls may be missing.
    """
    known: dict[frozenset[tuple[int, int]], int] = {}
    return [known.setdefault(_usual_calls(p), len(known)) for p in members]


def comparable(members: Sequence[RankProgram]) -> list[int]:
    """Numbers like `peers`, but ranks without peers are grouped if they run mostly the same, like stages.

    What a stage has more than the others keeps a pipeline waiting, whether it is meant to or not.
    """
    groups = peers(members)
    alone = [number for number, group in enumerate(groups) if groups.count(group) == 1]
    joined = _joined([groups[number] for number in alone], [members[number] for number in alone])
    for number, group in zip(alone, joined, strict=True):
        groups[number] = group
    return groups


def _joined(groups: Sequence[int], members: Sequence[RankProgram]) -> list[int]:
    """Numbers like `groups`, one for those that run mostly the same; a group runs what its first member does."""
    runs: dict[int, Counter[int]] = {}
    joined: dict[int, int] = {}
    for group, member in zip(groups, members, strict=True):
        if group in joined:
            continue
        work = _usual_work(member)
        like = (other for other, of_other in runs.items() if _is_mostly(work, of_other))
        joined[group] = joined.get(next(like, group), group)
        runs[group] = work
    return [joined[group] for group in groups]


def _is_mostly(work: Counter[int], other: Counter[int]) -> bool:
    return (work & other).total() >= max(_MOSTLY_STAGES * min(work.total(), other.total()), 1)


def _usual_work(program: RankProgram) -> Counter[int]:
    """How often each name runs in the most common step, without communication."""
    step, name = program.step[~program.is_comm], program.name[~program.is_comm]
    in_steps = [tuple(sorted(Counter(name[step == each].tolist()).items())) for each in np.unique(step[step >= 0])]
    return Counter(dict(Counter(in_steps or [tuple(Counter(name.tolist()).items())]).most_common(1)[0][0]))


def _usual_calls(program: RankProgram) -> frozenset[tuple[int, int]]:
    step, name = program.step[program.is_comm], program.name[program.is_comm]
    in_steps = [frozenset(Counter(name[step == each].tolist()).items()) for each in np.unique(step[step >= 0])]
    return Counter(in_steps or [frozenset(Counter(name.tolist()).items())]).most_common(1)[0][0]


def _most_common(names: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return Counter(names).most_common(1)[0][0]


def _in_one_order(by_member: Mapping[int, Sequence[pd.DataFrame]]) -> list[list[int]]:
    """Group members that do the same in the same order in most of their steps."""
    # Two that each do something more, in different places, are both like a third: groups that one joins become one.
    alike: list[tuple[set[tuple[int, ...]], list[int]]] = []
    for member, runs in by_member.items():
        names = _most_common([tuple(run["name"]) for run in runs])
        like = [each for each in alike if any(_is_one_order(names, usual) for usual in each[0])]
        joined = (
            {names}.union(*(orders for orders, _ in like)),
            sorted([member, *(n for _, group in like for n in group)]),
        )
        alike = [each for each in alike if each not in like] + [joined]
    return [group for _, group in sorted(alike, key=lambda each: each[1])]


def _is_one_order(names: tuple[int, ...], usual: tuple[int, ...]) -> bool:
    """Whether the work that both do comes in the same order; one may do more."""
    if names == usual:
        return True
    both = Counter(names) & Counter(usual)
    known = set(names) & set(usual)
    at, theirs = _aligned(names, usual)
    matched = sum(names[a] in known and names[a] == usual[b] for a, b in zip(at, theirs, strict=True))
    exact = Counter(n for n in names if n in known) == Counter(n for n in usual if n in known)
    return matched == both.total() if exact else matched >= _MOSTLY * both.total()


def _places(names: tuple[int, ...], usual: tuple[int, ...]) -> Ints:
    """Place of each name among the usual ones, NONE for what runs more often than usual.

    What comes in another order corresponds to one of its name.
    """
    at, theirs = _aligned(names, usual)
    numbered = np.full(len(names), NONE)
    numbered[at] = theirs
    more = Counter(names) - Counter(usual)
    left: dict[int, list[int]] = {}
    for place in sorted(set(range(len(usual))) - set(theirs), reverse=True):
        left.setdefault(usual[place], []).append(place)
    for place in np.flatnonzero(numbered == NONE).tolist():
        if not more[names[place]] and left.get(names[place]):
            numbered[place] = left[names[place]].pop()
    return numbered


def _aligned(names: tuple[int, ...], usual: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Align two sequences of names: places in the first, and the matching places in the second.

    What only one side has is set aside; where as many of both sides lie between two names that correspond, these are
    the same by other names.
    """
    if names == usual:
        return list(range(len(names))), list(range(len(names)))
    of_usual, of_names = set(usual), set(names)
    mine = [place for place, name in enumerate(names) if name in of_usual]
    theirs = [place for place, name in enumerate(usual) if name in of_names]
    pairs = [(mine[a], theirs[b]) for a, b in _blocks([names[m] for m in mine], [usual[t] for t in theirs])]
    renamed = []
    for (a, b), (c, d) in pairwise([(-1, -1), *pairs, (len(names), len(usual))]):
        between, others = range(a + 1, c), range(b + 1, d)
        if len(between) == len(others):
            renamed += [
                (m, t)
                for m, t in zip(between, others, strict=True)
                if names[m] not in of_usual and usual[t] not in of_names
            ]
    both = sorted([*pairs, *renamed])
    return [a for a, _ in both], [b for _, b in both]


def _blocks(names: list[int], usual: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the places of equal names in both, in order."""
    if names == usual:
        yield from zip(range(len(names)), range(len(names)), strict=True)
    elif max(len(names), len(usual)) <= _MOST_ALIGNED:
        for a, b, size in SequenceMatcher(None, names, usual, autojunk=False).get_matching_blocks():
            yield from zip(range(a, a + size), range(b, b + size), strict=True)
