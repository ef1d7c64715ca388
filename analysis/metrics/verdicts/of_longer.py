"""Steps that are longer than others, in words: who or what takes most of the time by which they are longer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import pandas as pd

from ....common.wording import listed, shortened
from ...core.kinds import COMPUTE, MEMORY
from ..device.longer import Longer
from ..functions import quoted
from ..prices import Priced
from ..typical_step import STEP_PARTS, TypicalStep, with_parts
from .culprits import Culprits, length, short
from .of_idle import longest_calls
from .thresholds import LOSS_FROM

_MOST = 0.5  # of what a step takes longer: a name with less is not said
_PART_OF_IT = 0.25  # of what makes a step long: from there, waiting is mentioned
_ALIKE, _APART = 0.5, 0.25  # of the largest excess: ranks with as much are named together, if no other has more
_MOST_LENGTHS = 4  # of steps: of more, the shortest and the longest are given
_MOST_NAMED = 3
_WORK = {"compute_alone_ns": COMPUTE, "overlap_ns": COMPUTE, "exposed_memory_ns": MEMORY}
_LONGER = {
    "compute_alone_ns": "devices compute {}",
    "overlap_ns": "devices compute and communicate {}",
    "exposed_transfer_ns": "exposed transfers take {}",
    "exposed_wait_ns": "ranks wait {}",
    "exposed_unsplit_ns": "exposed communication takes {}",
    "exposed_memory_ns": "copies take {}",
    "idle_ns": "devices are idle {}",
}
_OWN = {
    "compute_alone_ns": ("computes {}", "compute {}"),
    "exposed_memory_ns": ("copies {}", "copy {}"),
    "idle_ns": ("leaves its device idle {}", "leave their devices idle {}"),
}
"""What one rank, or several, do longer by themselves."""
_IDLE = {
    "gc_ns": "Python collected garbage for {time} of it",
    "data_ns": "{cpus} waited for a batch for {time}",
    "compile_ns": "{cpus} compiled for {time}",
    "alloc_ns": "{cpus} allocated or freed memory for {time}",
}
"""Parts of idle time that say more than the operator or annotation they are in."""
_IDLE_SHORTLY = {
    "gc_ns": ("Python collects garbage for {time}", "Python collects garbage for {time}"),
    "data_ns": ("{cpus} waits for a batch for {time}", "{cpus} wait for a batch for {time}"),
    "compile_ns": ("{cpus} compiles for {time}", "{cpus} compile for {time}"),
    "alloc_ns": ("{cpus} allocates or frees memory for {time}", "{cpus} allocate or free memory for {time}"),
}
"""The same in a headline, of one CPU or several."""


class Cause(NamedTuple):
    """Who or what takes most of the time by which steps are longer: a `clause`, and what a headline says of it.

    `more` is what the clause says beside the headline.
    """

    clause: str
    shortly: str = ""
    more: str = ""


class Whose(NamedTuple):
    """CPUs in words, `their CPUs` of a subject that was said, `CPUs` of one that was not; and if they are several."""

    said: str
    alone: str
    several: bool


class ByThemselves(NamedTuple):
    """Ranks that make steps longer by what they do themselves: mostly in one of STEP_PARTS, in ns per long step."""

    ranks: list[int]
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
        return cls(sorted(named.index.tolist()), str(part), float(more.loc[named.index, part].mean()))


class Compared(NamedTuple):
    """The long steps and the usual ones."""

    long: list[int]
    usual: list[int]

    @property
    def steps(self) -> tuple[list[int], list[int]]:
        """Both."""
        return self.long, self.usual

    def time(self, ns: float) -> str:
        """In words, so much in each of the long steps, in all of them."""
        return length(len(self.long) * ns / 1e6)


class LongSteps(NamedTuple):
    """Steps left out as too long, or, if steps `differ`, the longest ones: `what` they take, and `why`, as clauses.

    `shortly` says why in a headline, empty if that is not known, and `more` what `why` says beside that. They are
    `more_ns` longer in all than as many usual steps; with these, `traced_ns` were traced, in so many `steps`. They are
    `once` if no usual step lies between them.
    """

    what: str
    shortly: str
    why: str
    more: str
    not_counted: str
    more_ns: float
    traced_ns: float
    steps: int
    once: bool

    @property
    def sentence(self) -> str:
        """`Steps 3 and 4 take 23.0 and 113.0 ms instead of 8.0, and are not counted: ranks wait 50.8 ms longer ...`"""
        return f"{self.what}{self.not_counted}: {self.why}."

    @property
    def headline(self) -> str:
        """`Step 2 takes 507.8 ms instead of 309.8: rank 2 computes 198.0 ms longer`, or how much that is in all."""
        return f"{self.what}: {self.shortly or self._in_all}"

    @property
    def because(self) -> str:
        """What is behind the headline, and how much that is in all, as sentences without the last full stop."""
        if not self.shortly:
            return self.why
        in_all = f"That is {self._in_all}"
        return f"{self.more}. {in_all}" if self.more else in_all

    @property
    def _in_all(self) -> str:
        return f"{self.more_ns / 1e6:,.1f} of the {self.traced_ns / 1e6:,.1f} ms that were traced"

    def is_event(self, leading: Priced | None) -> bool:
        """Whether no change gains as much, over all that was traced: what happens once has no price per step."""
        gained_ns = 0.0 if leading is None else leading.gain.ns * self.steps
        return self.once and bool(self.not_counted) and self.more_ns >= max(gained_ns, LOSS_FROM * self.traced_ns)

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
        if typical.differ:
            longest = whole["window_ns"] == whole["window_ns"].max()
            long, whole = whole[longest], whole[~longest]
        if not len(long) or not len(whole):
            return None
        numbers, usual, several = long["step"].tolist(), whole["step"].tolist(), len(long) > 1
        usual_ns = float(whole["window_ns"].mean())
        more = {part: float(long[part].mean() - whole[part].mean()) for part in STEP_PARTS}
        each = [f"{ns / 1e6:,.1f}" for ns in sorted(long["window_ns"])]
        lengths = f"{listed([f'{ns / 1e6:,.1f}' for ns in long['window_ns']])} ms"
        if len(each) > _MOST_LENGTHS or (several and each[0] == each[-1]):
            lengths = f"{each[0]} to {each[-1]} ms" if each[0] != each[-1] else f"{each[0]} ms each"
        compared = Compared(numbers, usual)
        own = ByThemselves.of(by_device, *compared.steps, sum(more.values()))
        if own is not None:
            cause = _of_ranks(own, culprits_in(numbers), longer, compared)
        else:
            cause = _of_all(more, lambda: culprits_in(numbers), syncs_steps, longer, compared)
        tokens = ""
        if (long["tokens"] > whole["tokens"].max()).fillna(False).all():
            has = (
                f"each has {long['tokens'].min():,} tokens or more"
                if several
                else f"it has {long['tokens'].min():,} tokens"
            )
            tokens = f"; {has}, others {whole['tokens'].max():,} at most"
        return cls(
            what=f"Step{'s' if several else ''} {listed([str(number) for number in numbers])} "
            f"take{'' if several else 's'} {lengths} instead of {usual_ns / 1e6:,.1f}",
            shortly=cause.shortly,
            why=f"{cause.clause}{tokens}",
            more=f"{cause.more}{tokens if cause.more else tokens.removeprefix('; ')}",
            not_counted="" if typical.differ else ", and are not counted" if several else ", and is not counted",
            more_ns=float(long["window_ns"].sum()) - len(long) * usual_ns,
            traced_ns=float(long["window_ns"].sum() + whole["window_ns"].sum()),
            steps=len(long) + len(whole),
            once=not whole["step"].between(min(numbers), max(numbers)).any(),
        )


def _of_ranks(own: ByThemselves, culprits: Culprits, longer: Callable[[], Longer | None], compared: Compared) -> Cause:
    """`rank 2 computes 198.0 ms longer than in other steps, mostly in `gemm``."""
    several = len(own.ranks) > 1
    few = listed([*map(str, own.ranks)]) if len(own.ranks) <= _MOST_NAMED else shortened(own.ranks, _MOST_NAMED)
    who = f"ranks {few}" if several else culprits.placed(own.ranks[0])
    does = f"{who} {_OWN[own.part][several].format(compared.time(own.more_ns))} longer"
    whose = Whose("their CPUs" if several else "its CPU", f"the CPU{'s' if several else ''} of {who}", several)
    found = _named(
        lambda: None if (known := longer()) is None else known.of(own.ranks),
        does,
        own.part,
        own.more_ns,
        compared,
        whose,
    )
    return found._replace(
        clause=found.clause.replace(does, f"{does} than in other steps", 1), shortly=found.shortly or does
    )


def _of_all(
    more: dict[str, float],
    culprits: Callable[[], Culprits],
    syncs_steps: pd.DataFrame,
    longer: Callable[[], Longer | None],
    compared: Compared,
) -> Cause:
    """`devices are idle 134.4 ms longer; their CPUs waited for a batch for 133.0 ms, and ranks wait 20.1 ms`."""
    part = max(more, key=lambda name: more[name])
    does = f"{_LONGER[part].format(compared.time(more[part]))} longer"
    found = _named(longer, does, part, more[part], compared, Whose("their CPUs", "CPUs", several=True))
    also = ""
    if part == "idle_ns" and (calls := longest_calls(syncs_steps, *compared.steps, more[part])):
        also += f"; {calls}"
    waited = more["exposed_wait_ns"]
    if waited >= _PART_OF_IT * sum(ns for ns in more.values() if ns > 0):
        also += "" if part == "exposed_wait_ns" else f", and ranks wait {compared.time(waited)}"
        also += culprits().named()
        late = culprits().in_words()
        if part == "exposed_wait_ns" and late is not None and late.frac >= _MOST:
            found = found._replace(shortly=f"{does} for {late.who}")
    return found._replace(clause=f"{found.clause}{also}", more=f"{found.more or does}{also}" if also else found.more)


def _named(
    longer: Callable[[], Longer | None], does: str, part: str, more_ns: float, compared: Compared, whose: Whose
) -> Cause:
    """What holds most of the time by which a part of `long` steps is longer, where something does.

    `...; their CPUs waited for a batch for 134.4 ms`, or `..., mostly in `Memcpy DtoH`, inside `save``. `part` is one
    of STEP_PARTS, on the mean `more_ns` longer than in usual steps, as the clause `does` says.
    """
    known = longer() if part == "idle_ns" or part in _WORK else None
    if known is None:
        return Cause(does)
    if part == "idle_ns":
        return _of_idle(known, does, more_ns, compared, whose)
    most, within = known.work(_WORK[part], *compared.steps)
    named = f"mostly in `{short(most.name)}`" if most is not None and most.ns >= _MOST * more_ns else ""
    inside = f"inside `{within.within or within.name}`" if within is not None and within.ns >= _MOST * more_ns else ""
    if named:
        more = f", {inside}" if inside else ""
        return Cause(f"{does}, {named}{more}", f"{does}, {named}", f"that is {inside}" if inside else "")
    return Cause(f"{does}, mostly {inside}", f"{does}, mostly {inside}") if inside else Cause(does)


def _of_idle(longer: Longer, does: str, more_ns: float, compared: Compared, whose: Whose) -> Cause:
    functions = longer.functions(compared.long)

    def cause(said: str, shortly: str, part: str, ns: float) -> Cause:
        within = f", in {quoted(functions[part].name)}" if part in functions else ""
        words = {"time": compared.time(ns)}
        clause = f"{does}; {said.format(cpus=whose.said, **words)}{within}"
        return Cause(clause, shortly.format(cpus=whose.alone, **words), clause if within else does)

    for part, said in _IDLE.items():
        if (ns := longer.idle_ns(part, *compared.steps)) >= _MOST * more_ns:
            return cause(said, _IDLE_SHORTLY[part][whose.several], part, ns)
    held, was, now = longer.idle_in(*compared.steps), *(("were", "are") if whose.several else ("was", "is"))
    if held is not None and held.ns >= _MOST * more_ns:
        within = f", inside `{held.within}`" if held.within is not None else ""
        clause = f"{does}; for {compared.time(held.ns)} {whose.said} {was} in `{held.name}`{within}"
        shortly = f"{whose.alone} {now} in `{held.name}` for {compared.time(held.ns)}"
        return Cause(clause, shortly, clause if within else does)
    if (ns := longer.idle_ns("outside_ns", *compared.steps)) >= _MOST * more_ns:
        outside = "in Python outside of operators for {time}"
        return cause(f"{{cpus}} {was} {outside}", f"{{cpus}} {now} {outside}", "outside_ns", ns)
    return Cause(does)
