"""What makes a typical step longer or shorter from one side to the other, in the words of the verdict.

A cause is what costs a step more than before, by both runs played again (`candidates`). Where a run cannot be played,
or no candidate explains the change, it is where the time shows: the parts of a typical step add up to its length on
both sides, so their differences add up to the change. The largest of them is named by what is behind it: a collective
and size, the rank that others wait for, what the CPU did, a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple, TypeVar

import pandas as pd

from ...common.wording import bytes_text, counted
from ..core.schema import records
from ..metrics.causes.blame import kernel_of, shares_of_waiting
from ..metrics.typical_step import STEP_PARTS
from ..metrics.verdicts.of_idle import IDLE_CAUSES
from ..render.units import TimeUnit
from ..results.analysis import Analysis
from .candidates import Candidate, Sort
from .work import WorkGroup

_K = TypeVar("_K")
_Sides = tuple[Sequence[Analysis], Sequence[Analysis]]
_Size = tuple[str, int | None]
"""Kind of collective, and bytes."""

_MENTIONED = 0.2
"""Of the largest difference of a part: less is left out."""
_MOST_PARTS = 3
_ALONE = 0.2
"""A single part that differs from the whole change by at most this part of it is named without its amount."""
_MOST_OF_IT = 0.5
_EXPOSED = ("exposed_transfer_ns", "exposed_wait_ns", "exposed_unsplit_ns")
_NOT_SPLIT = "exposed_comm_ns"
_NEARLY_ALL = 0.75
"""Of the largest candidate: one with as much that says more comes first, as does one that differs from the change by no
larger factor."""
_SMALL = 0.005
"""Of a step: if it changed by as much, causes count that are too small for the unit of its length."""
_LEAST_SHOWN = 0.0005
"""Of a step: no part that differs by less is named."""
_UNPLAYED = ", by where the time shows: not both runs can be played again"
_NEXT_TO_NOTHING = 0.2
"""Of what a rank makes others wait on the other side: less is as if they did not."""


class PartChange(NamedTuple):
    """What a typical step takes longer for on the second side, in ns; `words` say what, and `amount` how much.

    `a_ns` and `b_ns` are what it costs a step of each side. `bounds_ns` are None where the change is not that of a
    price; `what` is then a column of a typical step, else the candidate.
    """

    what: str
    a_ns: float
    b_ns: float
    words: str
    amount: str
    bounds_ns: tuple[float, float] | None = None

    @property
    def ns(self) -> float:
        """How much more that is on the second side."""
        return self.b_ns - self.a_ns


class StepChange(NamedTuple):
    """How much longer a typical step takes on the second side, in ns, and why: in words, and by `parts`."""

    ns: float
    words: str
    unit: TimeUnit
    parts: tuple[PartChange, ...] = ()

    @property
    def sentence(self) -> str:
        """`+7.4 ms: ranks wait for rank 1`."""
        return f"{signed(self.ns, self.unit)}: {self.words}"


def step_change(
    a: Sequence[Analysis],
    b: Sequence[Analysis],
    found: Sequence[Candidate] | None,
    groups: Sequence[WorkGroup],
    *,
    is_proven: bool,
) -> StepChange | None:
    """The change of a typical step from one side to the other; None where a side shows no activity.

    Each side is one run, or several captures, of which it is the mean. `found` are the candidates, None where a run
    cannot be played again, `groups` what both sides compute, the largest difference first. A change that `is_proven`
    has its parts named, however small they are for the unit of its length.
    """
    if not all(len(one.table("breakdown")) for one in (*a, *b)):
        return None
    parts = _parts((a, b))
    total = sum(parts.values())
    unit = TimeUnit.of(max(fmean(one.typical_step.parts["window_ns"] for one in side) for side in (a, b)))
    length = fmean(one.typical_step.parts["window_ns"] for one in a)
    all_count = is_proven or abs(total) >= _SMALL * length
    seen = [each for each in found or () if not unit.is_zero(each.ns) or all_count]
    named = [
        PartChange(each.what, each.a.ns, each.b.ns, each.words, signed(each.ns, unit), each.bounds_ns)
        for each in _explaining(seen, total)
    ]
    shown = signed(total, unit)
    if len(named) == 1 and named[0].ns / total > 1 + _ALONE and named[0].amount != shown:  # the rest hides some of it
        named = [named[0]._replace(amount=f"{named[0].amount}, of which {shown} shows")]
    unplayed = ""
    if not named:
        least = _LEAST_SHOWN * length
        large = sorted(
            (name for name in parts if not unit.is_zero(parts[name]) or (all_count and abs(parts[name]) >= least)),
            key=lambda name: -abs(parts[name]),
        )
        large = [name for name in large if abs(parts[name]) >= _MENTIONED * abs(parts[large[0]])][:_MOST_PARTS]
        of_a, of_b = _of_both((a, b))
        named = [
            _part(name, (of_a[name], of_b[name]), _words(name, parts[name], (a, b), groups, unit), unit)
            for name in large
        ]
        unplayed = "" if found is not None else _UNPLAYED
    if not named:
        return StepChange(total, "no part of a step changed", unit)
    if len(named) == 1 and abs(named[0].ns - total) <= _ALONE * abs(total):
        return StepChange(total, f"{named[0].words}{unplayed}", unit, tuple(named))
    return StepChange(
        total, "; ".join(f"{part.words} ({part.amount})" for part in named) + unplayed, unit, tuple(named)
    )


def _explaining(found: Sequence[Candidate], total: float) -> list[Candidate]:
    """The candidates that explain a change: the largest first, then what leaves less of it unexplained.

    None if that is less than half of the change: then what changed is none of the candidates.
    """
    rest, chosen = list(found), list[Candidate]()
    while rest and len(chosen) < _MOST_PARTS:
        left = total - sum(each.ns for each in chosen)
        largest = _largest(rest, total if not chosen else left)
        if largest is None or (chosen and abs(left - largest.ns) > abs(left) - _MENTIONED * abs(chosen[0].ns)):
            break
        chosen.append(largest)
        rest.remove(largest)
    left = total - sum(each.ns for each in chosen)
    return chosen if abs(left) <= _MOST_OF_IT * max(abs(total), *(abs(each.ns) for each in chosen), 0.0) else []


def _largest(found: Sequence[Candidate], change: float) -> Candidate | None:
    """The largest candidate of a change that surely is one; of those that are nearly it, the one that says most.

    A CPU that waits for its device lets all else cost more, and a bound is more than anybody can do: they count where
    nothing else explains half as much, and, of the former, no more than the change. Of alike ones, that is the cause
    which surely explains most.
    """
    alike = [each for each in found if each.ns * change > 0 and each.is_sure]
    most = max((abs(each.ns) for each in alike), default=0.0)
    for last, at_most in ((Sort.remedy, math.inf), (Sort.what, abs(change) / _NEARLY_ALL)):
        causes = [each for each in alike if each.sort <= last]
        if any(_MOST_OF_IT * most <= abs(each.ns) <= at_most for each in causes):
            alike, most = causes, max(abs(each.ns) for each in causes)
    large = [
        each
        for each in alike
        if abs(each.ns) >= _NEARLY_ALL * most or _NEARLY_ALL <= each.ns / change <= 1 / _NEARLY_ALL
    ]
    return min(large, key=lambda each: (each.sort, -min(map(abs, each.bounds_ns))), default=None)


def _part(name: str, times_ns: tuple[float, float], words: str, unit: TimeUnit) -> PartChange:
    return PartChange(name, *times_ns, words, signed(times_ns[1] - times_ns[0], unit))


def _parts(sides: _Sides) -> dict[str, float]:
    """Differences of the parts of a typical step in ns, compute as one."""
    of_a, of_b = _of_both(sides)
    return {part: of_b[part] - of_a[part] for part in of_a}


def _of_both(sides: _Sides) -> list[dict[str, float]]:
    """Parts of a typical step of each side in ns; communication as one where either cannot split most of its own."""
    both = [_of_parts(side) for side in sides]
    if not all(map(_is_split, both)):
        for parts in both:
            parts[_NOT_SPLIT] = sum(parts.pop(name) for name in _EXPOSED)
    return both


def _is_split(parts: Mapping[str, float]) -> bool:
    """Whether most of what communication costs is known as waiting or transfer; also where it costs nothing."""
    return parts["exposed_unsplit_ns"] <= _MOST_OF_IT * sum(parts[name] for name in _EXPOSED)


def _of_parts(side: Sequence[Analysis]) -> dict[str, float]:
    """Parts of a typical step in ns, mean over captures, compute as one."""
    parts = parts_of_side(side)
    compute = parts.pop("compute_alone_ns") + parts.pop("overlap_ns")
    return {"compute_ns": compute, **parts}


def parts_of_side(side: Sequence[Analysis]) -> dict[str, float]:
    """What a typical step of a side consists of: STEP_PARTS in ns, mean over its captures."""
    means = _mean([one.typical_step.parts for one in side])
    return {part: means[part] for part in STEP_PARTS}


def _words(part: str, ns: float, sides: _Sides, groups: Sequence[WorkGroup], unit: TimeUnit) -> str:
    """What is behind the difference of this part."""
    if part == "compute_ns":
        return _compute(ns, groups, unit)
    if part == "exposed_wait_ns":
        return _waiting(ns, sides)
    if part == "exposed_transfer_ns":
        return f"{_collective(ns, sides, _transfers)}, transfer"
    if part == _NOT_SPLIT and any(_is_split(parts_of_side(side)) for side in sides):
        return "exposed communication, which only one side can split into waiting and transfer"
    if part in (_NOT_SPLIT, "exposed_unsplit_ns"):
        return f"{_collective(ns, sides, _unsplit)}, waiting or transfer"
    return _idle(ns, sides) if part == "idle_ns" else "copies that nothing hides"


def _compute(ns: float, groups: Sequence[WorkGroup], unit: TimeUnit) -> str:
    """`compute, gemm`; `compute (gemm +0.5 ms, relu +0.3 ms)` if one alone is only a part of it, or more."""
    alike = [group for group in groups if not group.is_copy and group.difference_ns * ns > 0]
    if not alike or abs(alike[0].difference_ns) < _MENTIONED**2 * abs(ns):
        return "compute"
    if abs(alike[0].difference_ns - ns) <= _ALONE * abs(ns):
        return alike[0].words
    large = [group for group in alike if abs(group.difference_ns) >= _MOST_OF_IT * abs(alike[0].difference_ns)]
    named = ", ".join(f"{group.name} {signed(group.difference_ns, unit)}" for group in large[:_MOST_PARTS])
    more = f", {counted(len(large) - _MOST_PARTS, 'more kernel')}" if len(large) > _MOST_PARTS else ""
    return f"compute ({named}{more})"


def _waiting(ns: float, sides: _Sides) -> str:
    """`ranks wait for rank 1`, or how that changed."""
    rank = _whom(ns, sides)
    if rank is None:
        was, now = (fmean(one.typical_step.parts["exposed_wait_ns"] for one in side) for side in sides)
    else:
        was, now = (_mean([_waited_for(one) for one in side]).get(rank, 0.0) for side in sides)
    whom = "each other" if rank is None else f"rank {rank}"
    if ns > 0:
        return f"ranks wait {'longer ' if was > _NEXT_TO_NOTHING * now else ''}for {whom}"
    return f"ranks wait less for {whom}" if now > _NEXT_TO_NOTHING * was else f"ranks no longer wait for {whom}"


def _whom(ns: float, sides: _Sides) -> int | None:
    """The rank for which most of the change of waiting is; None if there is none."""
    of_a, of_b = (_mean([_waited_for(one) for one in side]) for side in sides)
    changes = {rank: of_b.get(rank, 0.0) - of_a.get(rank, 0.0) for rank in {**of_a, **of_b}}
    rank = max(changes, key=lambda each: changes[each] * ns, default=None)
    return rank if rank is not None and changes[rank] * ns >= _MOST_OF_IT * ns * ns else None


def _waited_for(one: Analysis) -> dict[int, float]:
    """Exposed waiting of a typical step that each rank caused, in ns."""
    waiting = one.typical_step.parts["exposed_wait_ns"]
    shares = shares_of_waiting(one.typical_waiting.ranks, "rank")
    return {rank: share * waiting for rank, share in zip(shares.index.tolist(), shares.tolist(), strict=True) if share}


def _collective(ns: float, sides: _Sides, times: Callable[[Analysis], Mapping[_Size, float]]) -> str:
    """`all_gather of 144 MiB`: the collective, then its size, whose time changed most."""
    of_a, of_b = (_mean([times(one) for one in side]) for side in sides)
    sign = 1 if ns > 0 else -1
    changes = {key: sign * (of_b.get(key, 0.0) - of_a.get(key, 0.0)) for key in {**of_a, **of_b}}
    by_kind: dict[str, float] = {}
    for (kind, _), change in changes.items():
        by_kind[kind] = by_kind.get(kind, 0.0) + change
    if not by_kind:
        return "communication"
    kind = max(by_kind, key=lambda each: by_kind[each])
    size = max((key for key in changes if key[0] == kind), key=lambda key: changes[key])[1]
    before, after = ({key[1] for key in side if key[0] == kind} for side in (of_a, of_b))
    return kind + _of_size(size, before, after)


def _of_size(size: int | None, before: set[int | None], after: set[int | None]) -> str:
    """` of 144 MiB`; if all calls had another size before, ` of 144 MiB instead of 72 MiB`."""
    if len(before) == len(after) == 1 and before != after:
        [was], [now] = before, after
        if was and now:
            return f" of {bytes_text(now)} instead of {bytes_text(was)}"
    return f" of {bytes_text(size)}" if size else ""


def _transfers(one: Analysis) -> dict[_Size, float]:
    """Exposed transfer of a typical step by collective and size, mean over devices, in ns."""
    participation = one.table("participation")
    rows = participation[~kernel_of(participation).duplicated()][["collective_id", "call_id", "exposed_transfer_ns"]]
    named = one.table("collectives")[["collective_id", "collective", "size_bytes"]]
    return _by_size(one, rows.merge(named, on="collective_id"), "exposed_transfer_ns")


def _unsplit(one: Analysis) -> dict[_Size, float]:
    """Time of calls that could not be split, exposed or not, likewise."""
    participation, calls = one.table("participation"), one.table("calls")
    split = participation["call_id"][participation["wait_ns"].notna()]
    return _by_size(one, calls[~calls["call_id"].isin(split)], "dur_ns")


def _by_size(one: Analysis, rows: pd.DataFrame, column: str) -> dict[_Size, float]:
    """Sums of the column by collective and size, in a typical step, mean over devices."""
    if one.typical_step.steps:
        of_call = one.table("calls").set_index("call_id")["step"]
        rows = rows[rows["call_id"].map(of_call).isin(one.typical_step.steps)]
    times: dict[_Size, float] = {}
    for row in records(rows[["collective", "size_bytes", column]]):
        key = row["collective"] or "a collective", row["size_bytes"]
        times[key] = times.get(key, 0.0) + (row[column] or 0) / (one.typical_step.windows or 1)
    return times


def _idle(ns: float, sides: _Sides) -> str:
    """`idle, CPU in blocking calls`: the cause that changed most; `idle` where causes are not known."""
    causes = [[one.idle_causes for one in side] for side in sides]
    of_a, of_b = ([known for known in side if known is not None] for side in causes)
    if len(of_a) < len(sides[0]) or len(of_b) < len(sides[1]):
        return "idle"
    before, after = _mean(of_a), _mean(of_b)
    sign = 1 if ns > 0 else -1
    changes = {cause: sign * (after[cause] - before[cause]) for cause in IDLE_CAUSES}
    drained = sign * (after["drained_ns"] - before["drained_ns"])
    largest = max(changes, key=lambda cause: changes[cause])
    if largest not in ("alloc_ns", "data_ns") and drained > changes["sync_ns"] and drained >= _MOST_OF_IT * abs(ns):
        return "idle, after blocking calls"
    return f"idle, {IDLE_CAUSES[largest]}" if changes[largest] >= _MENTIONED * abs(ns) else "idle"


def _mean(values: Sequence[Mapping[_K, float]]) -> dict[_K, float]:
    """Means by key; 0 for what one lacks."""
    return {key: fmean(each.get(key, 0.0) for each in values) for key in {key for each in values for key in each}}


def signed(ns: float, unit: TimeUnit) -> str:
    """`+7.4 ms`; `+40 us` where that is too little for the unit."""
    shown = unit.for_amount(ns)
    return f"{'-' if ns < 0 else '+'}{(unit if shown.is_zero(ns) else shown).text(abs(ns))}"
