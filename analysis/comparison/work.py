"""The work of two runs side by side: which kernels do the same, whatever their names, and how long each takes.

A kernel is known by the operator that launched it and its place among the launches of that operator in a step: another
version of a library, or of a compiler, gives the same work other names. Only where a side launches more or fewer, names
and categories have to do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...common.wording import counted
from ..core.escaping import printable
from ..core.kinds import COMM, MEMORY
from ..core.schema import Row, records
from ..errors import NothingMeasured
from ..metrics.compute.categories import category
from ..metrics.over_steps import placed
from ..metrics.verdicts.words import short
from ..replay.scenarios.usual import named_ranks
from ..results.analysis import Analysis
from ..tables.kernels import launched_in

_Place = tuple[int, str, int]
"""Which ranks, the operator, and the number of its launch in a step."""

_PLACE = ["of", "operator", "nth"]
_HASH = re.compile(r"(?<![a-z0-9])(?=[0-9a-f]*\d)[0-9a-f]{8,}(?![a-z0-9])")
_NUMBER = re.compile(r"\d+")
_COMPILED = "triton_"
_OF_COPIES, _OF_COLLECTIVES = " of memory", " of collectives"
_UNKNOWN = ("", _OF_COPIES)
"""What stands for the operator where none launched a kernel, as in CUDA graphs."""
_OF_STAGES = ("send", "recv")
_MOSTLY = 0.5
_MOST_TIMES = 100.0
_SAME_FACTOR, _SAME_LEAST, _SAME_SMALL = 0.25, 0.01, 0.5
"""Kernels take the same number of times as long if its logarithm differs by this part of it, or by that much; but at
most by the last part of it, so that what takes as long as before is not alike."""
_LEAST_TIMES = 0.006
"""Times that differ by less than this part are the same: GPUs of one kind differ by as much."""
_NEARLY_ALL = 0.8
_EVERY, _ALL = "every kernel", "compute in all"
_ONE_PROGRAM = 0.5
"""Of the time of both sides: if less is the same by place or by name, they do other work."""
_NAMED = ("name", "plain")
_LEAST_OTHERS = 0.05
"""Of all compute: if all kernels but the largest take less, it is that one which takes longer."""


class SideNames(NamedTuple):
    """What words call the two sides: `A` and `B`, or `the run before` and `this run`."""

    a: str
    b: str


SIDES = SideNames("A", "B")


@dataclass
class WorkGroup:
    """Work of both sides that is the same: names there, ns per step, mean over ranks, and what to multiply it by.

    `to_b` are factors that make the places of A as long as in B, `to_a` those for B; a side without it has no places.
    `times` is for nearly all kernels as one group: so many times as long does B take for them. What only one side has
    is one group, of so many `kernels`. `is_whole` is for all that two programs compute which have little in common.
    `of` is the role of the ranks that do it, None for several, and `who` these ranks, where only their kernels changed.
    """

    name_a: str
    name_b: str
    kind: str
    a_ns: float = 0.0
    b_ns: float = 0.0
    to_b: dict[_Place, float] = field(default_factory=dict)
    to_a: dict[_Place, float] = field(default_factory=dict)
    times: float | None = None
    kernels: int = 1
    sides: SideNames = SIDES
    is_whole: bool = False
    of: int | None = None
    who: str | None = None

    @property
    def difference_ns(self) -> float:
        """How much longer B takes for it."""
        return self.b_ns - self.a_ns

    @property
    def is_copy(self) -> bool:
        """Whether it copies or fills memory."""
        return self.kind == MEMORY

    @property
    def name(self) -> str:
        """What it is called in B, or in A if B has none of it."""
        name = printable(short(self.name_b or self.name_a))
        return name if self.who is None else f"{name} of {self.who}"

    @property
    def words(self) -> str:
        """`compute, gemm_v2 in place of gemm`."""
        before, after = (printable(short(name)) if name else "" for name in (self.name_a, self.name_b))
        kind = "copies, " if self.is_copy else "compute, "
        if self.is_whole:
            return f"compute in all ({self.sides.a} and {self.sides.b} have few kernels in common)"
        if self.times is not None:
            return f"{self.name} takes {self.times:.2f} times as long"
        more = f" and {counted(self.kernels - 1, 'more kernel')}" if self.kernels > 1 else ""
        if not before:
            return f"{kind}{after}{more}, which {self.sides.a} does not have"
        if not after:
            return f"{kind}{before}{more}, which {self.sides.b} does not have"
        return f"{kind}{after}" if before == after else f"{kind}{after} in place of {before}"

    @property
    def operators(self) -> set[str]:
        """The operators that launch it on either side."""
        return {operator_at(place) for place in (*self.to_a, *self.to_b)}

    def with_all_of(self, other: WorkGroup) -> None:
        """Add the work of another group."""
        self.a_ns, self.b_ns = self.a_ns + other.a_ns, self.b_ns + other.b_ns
        self.to_a |= other.to_a
        self.to_b |= other.to_b
        self.kernels = max(self.kernels, other.kernels)
        self.of = self.of if self.of == other.of else None


class CaptureWork(NamedTuple):
    """What a capture computed and copied: `ran` has a row per activity in a step, `times` one per place in a step.

    `launched` is `ran` with what communicated.
    """

    ran: pd.DataFrame
    times: pd.DataFrame
    launched: pd.DataFrame
    activities: int

    def factors(self, by_place: Mapping[_Place, float]) -> NDArray[np.float64]:
        """The factor of each activity of the run, shape (activities,)."""
        known = pd.Series(list(by_place.values()), index=pd.MultiIndex.from_tuples(list(by_place), names=_PLACE))
        found = known.reindex(pd.MultiIndex.from_frame(self.ran[_PLACE])).fillna(1.0).to_numpy(dtype=np.float64)
        result = np.ones(self.activities)
        result[self.ran["row"].to_numpy()] = found
        return result

    def by_place(self, of_activities: NDArray[np.float64]) -> pd.Series[float]:
        """Values of activities, NaN where there is none, by place in a step: as `times` has how long they take."""
        values = self.launched.assign(value=of_activities[self.launched["row"].to_numpy()])
        by_rank = values[values["counts"]].groupby(["rank", *_PLACE])["value"].median().dropna()
        return by_rank.groupby(_PLACE).quantile(0.5, interpolation="lower")

    def at_places(self, of_places: pd.Series[float]) -> NDArray[np.float64]:
        """The value of the place of each activity of the run, inf where there is none; shape (activities,)."""
        result = np.full(self.activities, np.inf)
        found = of_places.reindex(pd.MultiIndex.from_frame(self.launched[_PLACE])).to_numpy(dtype=np.float64)
        result[self.launched["row"].to_numpy()] = np.where(np.isnan(found), np.inf, found)
        return result


class SameWork(NamedTuple):
    """What both sides do, the largest difference first, and the captures of each.

    `renamed` are names of A whose work has another one in B.
    """

    groups: list[WorkGroup]
    a: list[CaptureWork]
    b: list[CaptureWork]
    renamed: dict[str, str]
    sides: SideNames


def same_work(a: Sequence[Analysis], b: Sequence[Analysis], sides: SideNames) -> SameWork:
    """Match the work of both sides; between vendors, whose kernels have nothing in common, by category.

    `sides` are what words call them.
    """
    by_category = _vendors(a) != _vendors(b)
    launched = [[_launched(one) for one in side] for side in (a, b)]
    ran = [_computed(each) for side in launched for each in side]
    roles = _roles(ran, [_messages(one) for side in (a, b) for one in side])
    works_a, works_b = (
        [_timed(each, roles, len(one.part.run.activities)) for each, one in zip(side, ones, strict=True)]
        for side, ones in zip(launched, (a, b), strict=True)
    )
    by_role, alike_frac = _matched(_mean(works_a), _mean(works_b), by_category=by_category)
    groups = _together(by_role)
    renamed = _renamed(groups)
    joined = _with_all_of_roles(by_role, lambda role: _named(roles, role, (*a, *b))) or _with_all_alike(groups)
    if alike_frac < _ONE_PROGRAM and (whole := _whole(groups)):
        known = joined if by_category else [group for group in joined if group.is_copy]
        joined = [*known, *whole]
    ordered = sorted(joined, key=lambda group: -abs(group.difference_ns))
    for group in ordered:
        group.sides = sides
    return SameWork(ordered, works_a, works_b, renamed, sides)


def _whole(groups: Sequence[WorkGroup]) -> list[WorkGroup]:
    """All that both sides compute as one group, whatever it is."""
    computed = [group for group in groups if not group.is_copy]
    a_ns, b_ns = sum(group.a_ns for group in computed), sum(group.b_ns for group in computed)
    if not a_ns or not b_ns:
        return []
    to_b, to_a = (
        {place: factor for group in computed for place in getattr(group, of)}
        for of, factor in (("to_b", _factor(b_ns, a_ns)), ("to_a", _factor(a_ns, b_ns)))
    )
    return [WorkGroup(_ALL, _ALL, computed[0].kind, a_ns, b_ns, to_b, to_a, is_whole=True)]


def _renamed(groups: Sequence[WorkGroup]) -> dict[str, str]:
    """Names of A and what their work is called in B, if nearly all that either names is that."""
    of_a, of_b = Counter[str](), Counter[str]()
    for group in groups:
        of_a[group.name_a] += round(group.a_ns)
        of_b[group.name_b] += round(group.b_ns)
    return {
        group.name_a: group.name_b
        for group in groups
        if "" != group.name_a != group.name_b != ""
        and group.a_ns >= _NEARLY_ALL * of_a[group.name_a]
        and group.b_ns >= _NEARLY_ALL * of_b[group.name_b]
    }


def _vendors(side: Sequence[Analysis]) -> set[str]:
    """The vendors of the devices: the first word of each name; empty if no trace names its device."""
    return {str(name).split()[0] for one in side for name in one.run.device_names.values() if name}


def _computed(launched: pd.DataFrame) -> pd.DataFrame:
    """What computed or copied."""
    return launched[launched["kind"] != COMM]


def _launched(one: Analysis) -> pd.DataFrame:
    """What ran in steps, by rank, step, operator and its place among the launches of that."""
    part = one.part
    activities = placed(part.run.activities)
    columns = ["rank", "cycle", "device", "stream", "start_ns", "dur_ns", "step", "name", "kind"]
    ran = activities[columns].assign(operator=_operators(part), row=np.arange(len(activities)))
    ran = ran.assign(step=ran["step"] if ran["step"].notna().any() else 0).dropna(subset="step")
    # Copies of an operator are numbered apart from its kernels, as the other side may have none of them.
    ran["operator"] += ran["kind"].map({MEMORY: _OF_COPIES, COMM: _OF_COLLECTIVES}).fillna("")
    in_order = ran.sort_values(["rank", "cycle", "device", "step", "operator", "stream", "start_ns"], kind="stable")
    nth = in_order.groupby(["rank", "cycle", "device", "step", "operator"], sort=False).cumcount()
    steps = part.typical_step.steps
    return in_order.assign(nth=nth, counts=in_order["step"].isin(steps) if steps else True)


def _operators(part: Analysis) -> pd.Series[str]:
    """The operator of each activity; empty where there is none, or operators were not read."""
    try:
        operators = part.of(launched_in).fillna("")
    except NothingMeasured:
        return pd.Series("", index=part.run.activities.index, dtype="string")
    return operators.map({name: _plain(name) for name in operators.unique()})


def _plain(name: str) -> str:
    """An operator without what a compiler numbers anew in each run."""
    plain = _HASH.sub("*", name)
    return _NUMBER.sub("*", plain) if plain.startswith(_COMPILED) else plain


def operator_at(place: _Place) -> str:
    """The operator of a place in a step, whatever it launches there."""
    return place[1].removesuffix(_OF_COPIES).removesuffix(_OF_COLLECTIVES)


def _messages(one: Analysis) -> dict[int, tuple[str, ...]]:
    """What each rank sends and receives in a step, in order: the stage of a pipeline; what most of its steps do."""
    calls, steps = one.part.table("calls"), one.part.typical_step.steps
    chosen = calls[calls["collective"].isin(_OF_STAGES) & (calls["step"].isin(steps) if steps else True)]
    in_order = chosen.sort_values(["rank", "start_ns"], kind="stable").groupby(["rank", "step"], dropna=False)
    of_steps: dict[int, Counter[tuple[str, ...]]] = {}
    for row in records(in_order["collective"].agg(tuple).reset_index()):
        of_steps.setdefault(row["rank"], Counter())[row["collective"]] += 1
    return {rank: counts.most_common(1)[0][0] for rank, counts in of_steps.items()}


def _roles(ran: Sequence[pd.DataFrame], messages: Sequence[Mapping[int, tuple[str, ...]]]) -> dict[int, int]:
    """A number for each rank, shared by ranks that launch the same: the first of them; 0 for all if runs disagree.

    Stages of a pipeline may launch the same in another order, so that another place in each is slower. They are told
    apart where each has several ranks: of one alone, nothing tells what it does from what it does longer than others.
    """
    by_stage = _shared_roles(ran, messages)
    if by_stage and min(Counter(by_stage.values()).values()) > 1:
        return by_stage
    return _shared_roles(ran, [{} for _ in ran])


def _shared_roles(ran: Sequence[pd.DataFrame], messages: Sequence[Mapping[int, tuple[str, ...]]]) -> dict[int, int]:
    """The roles that all captures agree on; none if they do not."""
    found: list[dict[int, int]] = []
    for activities, sent in zip(ran, messages, strict=True):
        launched = activities[activities["counts"]].groupby(["rank", "operator"])["nth"].max()
        by_rank: dict[int, set[tuple[str, int]]] = {}
        for row in records(launched.reset_index()):
            by_rank.setdefault(row["rank"], set()).add((row["operator"], row["nth"]))
        first: dict[tuple[frozenset[tuple[str, int]], tuple[str, ...]], int] = {}
        does = {rank: (frozenset(launches), sent.get(rank, ())) for rank, launches in sorted(by_rank.items())}
        found.append({rank: first.setdefault(each, rank) for rank, each in does.items()})
    return found[0] if all(each == found[0] for each in found) else {}


def _timed(launched: pd.DataFrame, roles: dict[int, int], activities: int) -> CaptureWork:
    """The lower median over ranks of the median over steps: what one rank, or half of them, do longer is theirs."""
    launched = launched.assign(of=launched["rank"].map(roles).fillna(0).astype("int64"))
    ran = _computed(launched)
    typical = ran[ran["counts"]]
    steps = max(typical["step"].nunique(), 1)
    by_rank = typical.groupby(["rank", *_PLACE]).agg(
        ns=("dur_ns", "median"), steps=("step", "nunique"), name=("name", "first"), kind=("kind", "first")
    )
    by_rank = by_rank[by_rank["steps"] > _MOSTLY * steps].reset_index()
    times = by_rank.groupby(_PLACE).agg(ranks=("rank", "nunique"), kind=("kind", "first"))
    names = by_rank.groupby([*_PLACE, "name"]).size().sort_values(kind="stable").reset_index("name")["name"]
    times["name"] = names[~names.index.duplicated(keep="last")]  # the one that most ranks have
    times["ns"] = by_rank.groupby(_PLACE)["ns"].quantile(0.5, interpolation="lower")
    with_operator = by_rank.groupby(["of", "operator"])["rank"].nunique()
    known = with_operator.reindex(times.index.droplevel("nth")).to_numpy()
    times = times[times["ranks"].to_numpy() >= _MOSTLY * known]
    per_step = times["ns"] * times["ranks"] / max(typical["rank"].nunique(), 1)
    return CaptureWork(ran, times.assign(per_step=per_step.astype("float64")).reset_index(), launched, activities)


def _mean(works: Sequence[CaptureWork]) -> pd.DataFrame:
    """The times of several captures: means of the places that the first of them has."""
    first = works[0].times.set_index(_PLACE)
    for column in ("ns", "per_step"):
        every = pd.concat([work.times.set_index(_PLACE)[column] for work in works], axis=1)
        first[column] = every.mean(axis=1).reindex(first.index)
    return first.reset_index()


def _matched(a: pd.DataFrame, b: pd.DataFrame, *, by_category: bool) -> tuple[list[WorkGroup], float]:
    """Groups of the same work: by place; where a side launches more, by name, operator and category.

    Also how much of the time of both is the same by place or by name, as a part of it.
    """
    groups = _Groups(by_category)
    of = ["of", "operator"]
    counts_a, counts_b = (side.groupby(of).size() for side in (a, b))
    shared = counts_a.index.intersection(counts_b.index)
    alike = shared[counts_a[shared].to_numpy() == counts_b[shared].to_numpy()]
    alike = alike[[key[1] not in _UNKNOWN or _in_one_order(a, b, key) for key in alike]]
    in_a, in_b = (pd.MultiIndex.from_frame(side[of]).isin(alike) for side in (a, b))
    for row in records(a[in_a].merge(b[in_b], on=_PLACE, suffixes=("_a", "_b"))):
        groups.add_place(row)
    alike_ns = float(a["per_step"][in_a].sum() + b["per_step"][in_b].sum())
    rest_a, rest_b = _with_names(a[~in_a]), _with_names(b[~in_b])
    for keys in (["of", "operator", "name"], ["of", "operator"], ["plain"], ["category"]):
        of_a, of_b = (dict(list(side.groupby(keys))) for side in (rest_a, rest_b))
        for key in of_a.keys() & of_b.keys():
            groups.add_sums(of_a[key], of_b[key])
            if keys[-1] in _NAMED:
                alike_ns += float(of_a[key]["per_step"].sum() + of_b[key]["per_step"].sum())
        rest_a = pd.concat([rest_a[:0], *(rows for key, rows in of_a.items() if key not in of_b)])
        rest_b = pd.concat([rest_b[:0], *(rows for key, rows in of_b.items() if key not in of_a)])
    for _, rows in rest_a.groupby("kind"):
        groups.add_sums(rows, rest_b[:0])
    for _, rows in rest_b.groupby("kind"):
        groups.add_sums(rest_a[:0], rows)
    whole_ns = float(a["per_step"].sum() + b["per_step"].sum())
    return list(groups.found.values()), alike_ns / whole_ns if whole_ns else 1.0


def _in_one_order(a: pd.DataFrame, b: pd.DataFrame, key: tuple[int, str]) -> bool:
    """Whether what no operator launched runs in the same order on both sides, going by the names that both have."""
    both = a.merge(b, on=_PLACE, suffixes=("_a", "_b"))
    both = both[(both["of"] == key[0]) & (both["operator"] == key[1])]
    common = {*both["name_a"]} & {*both["name_b"]}
    known = both[both["name_a"].isin(common) | both["name_b"].isin(common)]
    return not len(known) or bool((known["name_a"] == known["name_b"]).mean() >= _NEARLY_ALL)


@dataclass
class _Groups:
    """Groups by their names in A and in B, and by role; kernels by their category if `by_category`."""

    by_category: bool
    found: dict[tuple[str, str, int | None], WorkGroup] = field(default_factory=dict)

    def add_place(self, row: Row) -> None:
        """Add one place in a step, which both sides have."""
        group = self._of(row["name_a"], row["name_b"], row["kind_b"], row["of"])
        place = _place(row)
        group.a_ns, group.b_ns = group.a_ns + row["per_step_a"], group.b_ns + row["per_step_b"]
        group.to_b[place], group.to_a[place] = _factor(row["ns_b"], row["ns_a"]), _factor(row["ns_a"], row["ns_b"])

    def add_sums(self, a: pd.DataFrame, b: pd.DataFrame) -> None:
        """Add work of which only the whole is comparable, or that only one side has."""
        both = pd.concat([a, b])
        role = int(both["of"].iloc[0]) if both["of"].nunique() == 1 else None
        group = self._of(_largest(a), _largest(b), str(both["kind"].iloc[0]), role)
        group.kernels = both["name"].nunique()
        a_ns, b_ns = float(a["per_step"].sum()), float(b["per_step"].sum())
        group.a_ns, group.b_ns = group.a_ns + a_ns, group.b_ns + b_ns
        group.to_b |= {_place(row): _factor(b_ns, a_ns) for row in records(a)}
        group.to_a |= {_place(row): _factor(a_ns, b_ns) for row in records(b)}

    def _of(self, name_a: str, name_b: str, kind: str, role: int | None) -> WorkGroup:
        if self.by_category and kind != MEMORY:
            name_a = name_b = category(None, name_b or name_a)
        return self.found.setdefault((name_a, name_b, role), WorkGroup(name_a, name_b, kind, of=role))


def _place(row: Row) -> _Place:
    return row["of"], row["operator"], row["nth"]


def _largest(times: pd.DataFrame) -> str:
    """The name that takes most; empty if there is nothing."""
    return str(times["name"].iloc[int(times["per_step"].to_numpy().argmax())]) if len(times) else ""


def _with_names(times: pd.DataFrame) -> pd.DataFrame:
    names = [str(name) for name in times["name"]]
    plain = [_NUMBER.sub("*", _HASH.sub("*", short(name))) for name in names]
    return times.assign(plain=plain, category=[category(None, name) for name in names])


def _factor(of: float, to: float) -> float:
    return min(of / to, _MOST_TIMES) if to else 1.0


def _times(group: WorkGroup) -> float | None:
    """How many times as long B takes for it; None where a side has none of it, and of copies."""
    return group.b_ns / group.a_ns if group.a_ns and group.b_ns and not group.is_copy else None


def _together(by_role: Sequence[WorkGroup]) -> list[WorkGroup]:
    """The groups of all roles: one for the same names."""
    found: dict[tuple[str, str], WorkGroup] = {}
    for group in by_role:
        names = group.name_a, group.name_b
        if names in found:
            found[names].with_all_of(group)
        else:
            found[names] = replace(group, to_a=dict(group.to_a), to_b=dict(group.to_b))
    return list(found.values())


def _with_all_of_roles(by_role: Sequence[WorkGroup], who: Callable[[int], str]) -> list[WorkGroup] | None:
    """The groups, with nearly all kernels of the roles that alone take another time as one each; None if none do.

    As those of a stage of a pipeline whose GPUs are throttled: of all ranks, every kernel would seem to take longer by
    a part of that.
    """
    changed, rest, rest_changed = list[WorkGroup](), list[WorkGroup](), list[float]()
    for role in dict.fromkeys(group.of for group in by_role):
        of_role = [group for group in by_role if group.of == role]
        joined = _with_all_alike(of_role)
        if role is not None and joined[0].times is not None:
            changed.append(replace(joined[0], who=who(role)))
            rest += joined[1:]
            continue
        rest += of_role
        a_ns, b_ns = (sum(ns) for ns in zip(*((each.a_ns, each.b_ns) for each in of_role), strict=True))
        if a_ns and b_ns:
            rest_changed.append(abs(np.log(b_ns / a_ns)))
    least = min((abs(np.log(group.times)) for group in changed if group.times), default=0.0)
    if not changed or not rest_changed or max(rest_changed) > _SAME_SMALL * least:
        return None
    return [*changed, *_together(rest)]


def _named(roles: Mapping[int, int], role: int, runs: Sequence[Analysis]) -> str:
    """The ranks of a role: `rank 3`, `ranks 2, 3` or `host node1`."""
    ranks = sorted(rank for rank, of in roles.items() if of == role)
    return printable(named_ranks(ranks, whole_host(ranks, runs)))


def whole_host(ranks: Collection[int], runs: Sequence[Analysis]) -> str | None:
    """The host whose ranks these are, all of them and several, in every run; None if there is none."""
    found = set[str | None]()
    for one in runs:
        hosts = one.run.hosts
        names = {hosts.get(rank) for rank in ranks}
        found |= names if {*ranks} == {rank for rank, name in hosts.items() if name in names} else {None}
    return found.pop() if len(found) == 1 and len(ranks) > 1 else None


def _with_all_alike(groups: Sequence[WorkGroup]) -> list[WorkGroup]:
    """The groups, with nearly all kernels as one if they take the same number of times as long."""
    known = sorted((times, number) for number, group in enumerate(groups) if (times := _times(group)) is not None)
    if not known:
        return list(groups)
    sums = np.cumsum([groups[number].a_ns for _, number in known])
    common = known[int(np.searchsorted(sums, sums[-1] / 2))][0]
    log = abs(np.log(common))
    allowed = max(_SAME_FACTOR * log, min(_SAME_LEAST, _SAME_SMALL * log))
    alike = [number for times, number in known if abs(np.log(times / common)) <= allowed]
    of_alike = [groups[number].a_ns for number in alike]
    computed = sum(group.a_ns for group in groups if not group.is_copy)
    if (
        log < _LEAST_TIMES
        or sum(of_alike) < _NEARLY_ALL * computed
        or sum(of_alike) - max(of_alike) < _LEAST_OTHERS * computed
    ):
        return list(groups)
    every = WorkGroup(_EVERY, _EVERY, groups[alike[0]].kind, times=common)
    for number in alike:
        every.with_all_of(groups[number])
    return [every, *(group for number, group in enumerate(groups) if number not in alike)]
