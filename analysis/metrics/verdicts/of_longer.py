"""Steps that are longer than others: who or what takes most of the time by which they are longer; `words` says it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import pandas as pd

from ...core.kinds import COMPUTE, MEMORY
from ..device.largest_gaps import HeldBy
from ..device.longer import Longer
from ..periods import Period
from ..prices import Priced
from ..typical_step import STEP_PARTS, TypicalStep, with_parts
from .culprits import Culprits, Waited
from .of_idle import LongestCalls, longest_calls
from .thresholds import LOSS_FROM

_MOST = 0.5  # of what a step takes longer: a name with less is not said
_PART_OF_IT = 0.25  # of what makes a step long: from there, waiting is mentioned
_ALIKE, _APART = 0.5, 0.25  # of the largest excess: ranks with as much are named together, if no other has more
_WORK = {"compute_alone_ns": COMPUTE, "overlap_ns": COMPUTE, "exposed_memory_ns": MEMORY}
_OWN = ("compute_alone_ns", "exposed_memory_ns", "idle_ns")
"""What a rank does longer by itself."""
_IDLE = ("gc_ns", "data_ns", "compile_ns", "alloc_ns")
"""Parts of idle time that say more than the operator or annotation they are in."""


class Filled(NamedTuple):
    """What most of the time is, by which a part of some steps is longer: `ns` of each step, or None if nothing is.

    Of idle time a part of it, `idle`, or what CPUs were in: `held`; with the function of the user `function` that they
    were in. Of compute and copies, what ran, `work`, and the annotation `within` that launched it.
    """

    idle: str | None = None
    ns: float = 0.0
    held: HeldBy | None = None
    function: str | None = None
    work: str | None = None
    within: str | None = None


class Cause(NamedTuple):
    """Who or what takes most of the time by which steps are longer, in ns of each of these steps.

    That is a `part` of a step, one of STEP_PARTS, `more_ns` longer: of `ranks` by themselves, or of all if there are
    none. `filled` is what that is; `calls` are those that explain idle time, and `waited_ns` is how much longer ranks
    wait, for whom `waited` says, where that is much.
    """

    part: str
    more_ns: float
    filled: Filled
    ranks: tuple[int, ...] = ()
    place: str | None = None
    calls: LongestCalls | None = None
    waited_ns: float = 0.0
    waited: Waited | None = None

    def of_each(self, steps: int) -> Cause:
        """The same with what late ranks do longer in one of so many steps, not in all of them."""
        blamed = None if self.waited is None else self.waited.blamed
        if self.waited is None or blamed is None or blamed.reason is None or blamed.reason.step is not None:
            return self
        reason = blamed.reason._replace(more_ms=blamed.reason.more_ms / steps)
        return self._replace(waited=self.waited._replace(blamed=blamed._replace(reason=reason)))

    @property
    def is_waiting(self) -> bool:
        """Whether ranks that others wait for are most of it."""
        blamed = None if self.waited is None else self.waited.blamed
        return self.part == "exposed_wait_ns" and blamed is not None and blamed.frac >= _MOST


class ByThemselves(NamedTuple):
    """Ranks that make steps longer by what they do themselves: mostly in one of STEP_PARTS, in ns per long step."""

    ranks: tuple[int, ...]
    part: str
    more_ns: float

    @classmethod
    def of(
        cls, by_device: pd.DataFrame, long: Collection[int], usual: Collection[int], more_ns: float
    ) -> ByThemselves | None:
        """The ranks whose own time explains most of the `more_ns`; None if no ranks stand out.

        Each is compared with itself in usual steps, for in a pipeline no other rank does the same. Whoever waits for it
        communicates; a device that idles may wait as well, so that others must have little of anything.
        `by_device` is the breakdown by step.
        """
        own = with_parts(by_device)
        own = own.assign(compute_alone_ns=own["compute_alone_ns"] + own["overlap_ns"]).astype({"rank": "int64"})
        means = [own[own["step"].isin(list(steps))].groupby("rank")[[*_OWN]].mean() for steps in (long, usual)]
        more = (means[0] - means[1]).dropna()
        whole = more.sum(axis=1).sort_values(ascending=False)
        if len(whole) < 2 or whole.iloc[0] < _MOST * more_ns:
            return None
        named, others = whole[whole >= _ALIKE * whole.iloc[0]], whole[whole < _ALIKE * whole.iloc[0]]
        if 2 * len(named) > len(whole) or others.max() > _APART * whole.iloc[0]:
            return None
        part = more.loc[named.index].mean().idxmax()
        return cls(tuple(sorted(named.index.tolist())), str(part), float(more.loc[named.index, part].mean()))


class LongSteps(NamedTuple):
    """Steps left out as too long, or, if steps `differ`, the longest ones: their numbers and lengths, and why.

    Where steps repeat after a `period`, they are those of it that take longer; if no other is of their `kind`, that is
    given.

    Usual ones take `usual_ns`. If all have more tokens than any other, `least_tokens` is what each has, and
    `others_tokens` what others have at most. They are `more_ns` longer in all than as many usual steps; with these,
    `traced_ns` were traced, in so many `traced_steps`. They are `once` if no usual step lies between them.
    """

    steps: tuple[int, ...]
    lengths_ns: tuple[float, ...]
    usual_ns: float
    cause: Cause
    least_tokens: int | None
    others_tokens: int | None
    differ: bool
    more_ns: float
    traced_ns: float
    traced_steps: int
    once: bool
    period: Period | None = None
    kind: str | None = None

    @property
    def counted(self) -> bool:
        """Whether these steps count, too."""
        return self.differ or self.period is not None

    def is_event(self, leading: Priced | None) -> bool:
        """Whether no change gains as much, over all that was traced: what happens once has no price per step."""
        gained_ns = 0.0 if leading is None else leading.gain.ns * self.traced_steps
        return self.once and not self.counted and self.more_ns >= max(gained_ns, LOSS_FROM * self.traced_ns)

    @classmethod
    def of(
        cls,
        steps: pd.DataFrame,
        by_device: pd.DataFrame,
        typical: TypicalStep,
        culprits_in: Callable[[Collection[int]], Culprits],
        syncs_steps: pd.DataFrame,
        longer: Callable[[], Longer | None],
    ) -> LongSteps | None:
        """The long steps of a run; None if there are none, or nothing to compare them with."""
        whole = steps[steps["left_out"].isna()]
        long = steps[steps["left_out"] == "long"]
        if typical.period is not None:
            is_long = whole["is_long"].astype(bool)
            long, whole = whole[is_long], whole[~is_long]
        elif typical.differ:
            longest = whole["window_ns"] == whole["window_ns"].max()
            long, whole = whole[longest], whole[~longest]
        if not len(long) or not len(whole):
            return None
        numbers, usual = long["step"].tolist(), whole["step"].tolist()
        more = {part: float(long[part].mean() - whole[part].mean()) for part in STEP_PARTS}
        own = ByThemselves.of(by_device, numbers, usual, sum(more.values()))
        if own is not None:
            cause = _of_ranks(own, culprits_in(numbers), longer, numbers, usual)
        else:
            cause = _of_all(more, lambda: culprits_in(numbers), syncs_steps, longer, numbers, usual)
        if typical.period is not None:
            cause = cause.of_each(len(numbers))
        has_more = bool((long["tokens"] > whole["tokens"].max()).fillna(False).all())
        usual_ns = float(whole["window_ns"].mean())
        kinds = set(long["kind"])
        return cls(
            steps=tuple(numbers),
            lengths_ns=tuple(map(float, long["window_ns"])),
            usual_ns=usual_ns,
            cause=cause,
            least_tokens=int(long["tokens"].min()) if has_more else None,
            others_tokens=int(whole["tokens"].max()) if has_more else None,
            differ=bool(typical.differ),
            more_ns=float(long["window_ns"].sum()) - len(long) * usual_ns,
            traced_ns=float(long["window_ns"].sum() + whole["window_ns"].sum()),
            traced_steps=len(long) + len(whole),
            once=not whole["step"].between(min(numbers), max(numbers)).any(),
            period=typical.period,
            kind=kinds.pop() if len(kinds) == 1 and not kinds & set(whole["kind"]) else None,
        )


def _of_ranks(
    own: ByThemselves, culprits: Culprits, longer: Callable[[], Longer | None], long: list[int], usual: list[int]
) -> Cause:
    """The ranks that make these steps longer by themselves."""
    known = longer() if own.part == "idle_ns" or own.part in _WORK else None
    of_ranks = None if known is None else known.of(own.ranks)
    filled = _filled(of_ranks, own.part, own.more_ns, long, usual)
    return Cause(own.part, own.more_ns, filled, own.ranks, culprits.places.get(own.ranks[0]))


def _of_all(
    more: dict[str, float],
    culprits: Callable[[], Culprits],
    syncs_steps: pd.DataFrame,
    longer: Callable[[], Longer | None],
    long: list[int],
    usual: list[int],
) -> Cause:
    """The part of a step that is longer on all devices, and for whom ranks wait if that is much of it."""
    part = max(more, key=lambda name: more[name])
    known = longer() if part == "idle_ns" or part in _WORK else None
    calls = longest_calls(syncs_steps, long, usual, more[part]) if part == "idle_ns" else None
    waits_too = more["exposed_wait_ns"] >= _PART_OF_IT * sum(ns for ns in more.values() if ns > 0)
    return Cause(
        part,
        more[part],
        _filled(known, part, more[part], long, usual),
        calls=calls,
        waited_ns=more["exposed_wait_ns"] if waits_too else 0.0,
        waited=culprits().waited() if waits_too else None,
    )


def _filled(known: Longer | None, part: str, more_ns: float, long: list[int], usual: list[int]) -> Filled:
    """What holds most of the time by which a part of `long` steps is longer, on the mean `more_ns`."""
    if known is None:
        return Filled()
    if part == "idle_ns":
        return _of_idle(known, more_ns, long, usual)
    most, within = known.work(_WORK[part], long, usual)
    return Filled(
        work=most.name if most is not None and most.ns >= _MOST * more_ns else None,
        within=(within.within or within.name) if within is not None and within.ns >= _MOST * more_ns else None,
    )


def _of_idle(longer: Longer, more_ns: float, long: list[int], usual: list[int]) -> Filled:
    functions = longer.functions(long)

    def of_part(part: str, ns: float) -> Filled:
        return Filled(part, ns, function=functions[part].name if part in functions else None)

    for part in _IDLE:
        if (ns := longer.idle_ns(part, long, usual)) >= _MOST * more_ns:
            return of_part(part, ns)
    held = longer.idle_in(long, usual)
    if held is not None and held.ns >= _MOST * more_ns:
        return Filled(ns=held.ns, held=held)
    if (ns := longer.idle_ns("outside_ns", long, usual)) >= _MOST * more_ns:
        return of_part("outside_ns", ns)
    return Filled()
