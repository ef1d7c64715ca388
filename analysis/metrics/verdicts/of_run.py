"""What limits a run: the largest loss of a step first, and the ranks or work behind it; `words` says it.

All numbers are those of a typical step (`metrics/typical_step`), which the first screen shows beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

import pandas as pd

from ...core.schema import records
from ..causes.cpu_work import InPython
from ..device.largest_gaps import HELD_RANGE, HeldBy, LargestGaps
from ..device.longer import Longer
from ..prices import Priced, Prices
from ..typical_step import TypicalStep
from .culprits import Blamed, Culprits, Fault, Waited, faults_of
from .devices import Unequal
from .kinds import OtherKind, other_kinds
from .of_idle import (
    IDLE_VERDICTS,
    IdleReasons,
    Idling,
    LongCalls,
    blocking_operator,
    idle_change,
    idle_reasons,
    idle_verdict,
    idling,
)
from .of_longer import LongSteps
from .thresholds import COMPUTE_FROM, LEAST_SPLIT, LOSS_FROM, MENTIONED_FROM, MIXED_FROM, NAMED_FROM, SKEW_FROM

_OF_COMMUNICATION = frozenset({"skew-bound", "transfer-bound", "inconclusive"})
_MOST_BEYOND = 1.5  # what gains so many times a loss is about more than that loss
_MOST_OF_IT = 0.5  # of the waiting: from there a headline names who causes it
_NEARLY_ALL = 0.9  # of exposed communication: then the sentence is about that part alone


class Step(NamedTuple):
    """A typical step in ms: its length, compute, communication, copies and idle time; and its kind, if it is known.

    Where steps `repeat` after several of them, it is a mean over whole periods. It `sends_little` where most of the
    exposed transfer is in messages so small that they take latency.
    """

    whole: float
    compute: float
    transfer: float
    wait: float
    unsplit: float
    copies: float
    idle: float
    has_steps: bool
    kind: str | None
    repeats: bool
    sends_little: bool = False

    @classmethod
    def of(cls, typical: TypicalStep) -> Step:
        """The typical step in ms."""
        ms = {part: ns / 1e6 for part, ns in typical.parts.items()}
        return cls(
            whole=ms["window_ns"],
            compute=ms["compute_alone_ns"] + ms["overlap_ns"],
            transfer=ms["exposed_transfer_ns"],
            wait=ms["exposed_wait_ns"],
            unsplit=ms["exposed_unsplit_ns"],
            copies=ms["exposed_memory_ns"],
            idle=ms["idle_ns"],
            has_steps=bool(typical.steps),
            kind=typical.kind,
            repeats=typical.period is not None,
        )

    @property
    def comm(self) -> float:
        """Exposed communication, in ms."""
        return self.transfer + self.wait + self.unsplit

    def share(self, ms: float) -> float:
        """`ms` as a fraction of the step."""
        return ms / self.whole if self.whole else 0.0


class KnownCalls(NamedTuple):
    """How much is known of the calls of a run.

    Of its `calls`, `split_calls` could be split into wait and transfer; `why` is the kind of reason why not all could
    (`unsplit.reason`). `waited_at_least_ns` is how much of the exposed communication of a typical step is waiting for
    certain. `beyond_fastest` is the part of the calls' time by which they took longer than the fastest similar call,
    None if none is similar, and `fastest` the bandwidth that calls reach at least, waiting included. `seen_ranks` have
    a trace, of `world_size`, None if that is not known; `some_missing` says that the job certainly has others.
    `on_cpus` is whether CPUs communicated beside GPUs, which is not measured. `sends_little` as in `Step`.
    """

    calls: int
    split_calls: int
    why: str
    waited_at_least_ns: float
    beyond_fastest: float | None
    fastest: Fastest | None
    seen_ranks: int
    world_size: int | None
    some_missing: bool
    on_cpus: bool
    sends_little: bool = False


class Fastest(NamedTuple):
    """Bus bandwidth of the fastest call of this size."""

    collective: str
    size_bytes: int
    gb_per_s: float


class About(Enum):
    """What a loss is about: part of a step, or exposed communication, of which ranks mostly wait, or mostly move data.

    At least most of it may be waiting, or which it is may not be known.
    """

    idle = auto()
    copies = auto()
    transfers = auto()
    waits = auto()
    waits_mostly = auto()
    moves_mostly = auto()
    waits_at_least = auto()
    either = auto()


class BehindIdle(NamedTuple):
    """What is behind idle time: its `reasons`, `long` calls, what most of it comes `before`, and for how many ms.

    `headline` is what a headline says of it, calls that are most of it, or None for nothing; `change` is one that
    leaves most of it, None if there is none that is worth saying.
    """

    reasons: IdleReasons
    long: LongCalls | None
    before: str | None
    before_ms: float
    headline: Idling | LongCalls | None
    change: Priced | None


class Loss(NamedTuple):
    """A part of a step without compute, in ms, and the verdict if it is the largest one.

    Its sentence is `about` time `of_ms`, which is this part or most of it. `waited` says for whom others
    wait, None where another sentence does, or it is too little; `by_led` is the change that makes it one of transfers
    (`_as_led`); `idle` is what is behind idle time.
    """

    about: About
    ms: float
    verdict: str
    of_ms: float
    waited: Waited | None = None
    by_led: Priced | None = None
    idle: BehindIdle | None = None

    @property
    def late(self) -> Blamed | None:
        """Those whom others wait for most of the time that they wait, where that is most of the loss."""
        blamed = None if self.waited is None else self.waited.blamed
        is_about_waits = self.about in (About.waits, About.waits_mostly) and self.by_led is None
        return blamed if is_about_waits and blamed is not None and blamed.frac >= _MOST_OF_IT else None


class Fills(NamedTuple):
    """What fills a step: compute, or, where it is not in the trace what devices did, for more than they compute."""

    ms: float
    is_seen: bool


class RunFinding(NamedTuple):
    """The verdict on a run, what it is about first, and what else is worth saying.

    That is an event, a fault, a change that shows elsewhere, a loss, or what fills the step. Of a loss, ranks may be
    `named`, `alone_ms` is what a step gains if only these are no later, where that is much less than others wait, and
    `most_gain_ms` is what the best change gains, where that is too little to be the verdict. Steps `held_up` waited for
    so many ms for work from before the trace.
    """

    verdict: str
    step: Step
    first: LongSteps | Fault | Priced | Loss | Fills
    rest: tuple[Loss, ...]
    faults: tuple[Fault, ...]
    long_steps: LongSteps | None
    communication: KnownCalls
    gaps: LargestGaps
    unequal: Unequal | None
    other_kinds: tuple[OtherKind, ...]
    held_up: tuple[tuple[int, float], ...]
    named: bool = True
    alone_ms: float | None = None
    most_gain_ms: float | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that it is about first; empty if it is about none."""
        if isinstance(self.first, LongSteps):
            return self.first.cause.ranks
        if isinstance(self.first, Fault):
            return tuple(sorted(self.first.ranks)) or (() if self.first.links is None else self.first.links.ranks)
        late = self.first.late if isinstance(self.first, Loss) and self.named else None
        return () if late is None else late.ranks


def of_run(
    *,
    typical: TypicalStep,
    steps: pd.DataFrame,
    by_device: pd.DataFrame,
    communication: KnownCalls,
    culprits: Culprits,
    culprits_in: Callable[[Collection[int]], Culprits],
    idle: dict[str, float] | None,
    ranges: Mapping[str, float] | None,
    holders: Mapping[str, HeldBy],
    threads: InPython | None,
    gaps: LargestGaps,
    syncs_steps: pd.DataFrame,
    longer: Callable[[], Longer | None],
    prices: Prices | None,
    unequal: Unequal | None,
) -> RunFinding:
    """What the verdict on a run that does not hang is about.

    It is about the change that comes first in `prices`, if a step gains enough by it; where none does, or the run
    cannot be played again, about the largest loss, or about compute.

    `by_device` is the breakdown by step. `culprits` made others wait in the typical step, `culprits_in` says who did in
    some other steps. `idle` holds the parts of idle time in a typical step in ns, None if these are not known, `ranges`
    those in NVTX ranges of programs without Python, None where Python runs, `holders` what CPUs were in for most of a
    part, and `threads` what these did in it on CPUs, None if that is not known; `gaps` is what it comes before.
    `syncs_steps` is the table of that name, and `longer` gives what says why steps are longer, None where that is not
    known. `prices` are None where the run cannot be replayed. `unequal` are devices of a process.
    """
    step = Step.of(typical)._replace(sends_little=communication.sends_little)
    faults = [] if prices is None else faults_of(prices, culprits)
    by_name, nameless = (_of_communication(step, communication, each) for each in (culprits, None))
    waited_ms = 0.0 if by_name.late is None else by_name.late.frac * step.wait
    # What a step gains without late ranks says more than what others wait for them, if that explains it.
    is_priced = any(
        each.ranks and each.ranks >= culprits.standing_out() and each.ms >= _MOST_OF_IT * waited_ms for each in faults
    )
    communicating = nameless if is_priced else by_name
    idle_ns = typical.parts["idle_ns"] - gaps.unseen_ns
    idle_loss = _of_idle(typical, step, idle_ns, idle, ranges, holders, threads, gaps, syncs_steps, prices)
    losses = [idle_loss, Loss(About.copies, step.copies, "copy-bound", step.copies), communicating]
    losses = sorted((loss for loss in losses if loss.ms > 0), key=lambda loss: -loss.ms) or losses[:1]
    leading = _leading(prices, step)
    fault = next((each for each in faults if leading is not None and each.remedy == leading.remedy), None)
    large = [loss for loss in losses if step.share(loss.ms) >= LOSS_FROM]
    if fault is None and prices is not None and prices.unexplained_ns is not None:
        # Where others wait much longer than anything gains, that may be gained, and comes first.
        leading, large = None, sorted(large, key=lambda loss: loss.verdict not in _OF_COMMUNICATION)
    long_steps = LongSteps.of(steps, by_device, typical, culprits_in, syncs_steps, longer)
    computing = step.share(step.compute) >= COMPUTE_FROM and prices is not None
    alone_ms = most_gain_ms = None
    first: LongSteps | Fault | Priced | Loss | Fills
    if long_steps is not None and prices is not None and long_steps.is_event(leading):
        verdict, first, rest, long_steps = "event-bound", long_steps, large, None
    elif fault is not None:
        verdict, first, faults = fault.verdict, fault, [each for each in faults if each != fault]
        rest = [nameless if loss.verdict in _OF_COMMUNICATION else loss for loss in large]
    elif leading is not None and _loss_of(leading, large) is None:
        # It shows elsewhere: a late launch on one rank is waiting on the others.
        verdict, first, rest = leading.verdict, leading, large
    elif large and not (computing and leading is None):
        first = _as_led(_loss_of(leading, large) or large[0], leading)
        verdict = "mixed" if leading is not None and _is_mixed(leading, large, prices) else first.verdict
        rest = [loss for loss in large if loss.about != first.about]
        alone_ms = _alone_ms(first, step, prices)
        if leading is None and prices is not None and prices.changes:
            most_gain_ms = max(change.gain.ns for change in prices.changes) / 1e6
    else:
        unseen_ms = gaps.unseen_ns / 1e6
        first = Fills(max(step.compute, unseen_ms), is_seen=unseen_ms <= step.compute)
        verdict = "compute-bound" if first.is_seen and step.whole else "inconclusive"
        rest = [loss for loss in large or losses[:1] if step.share(loss.ms) >= MENTIONED_FROM]
    says_who = any(isinstance(each, Loss) and each.waited is not None for each in (first, *rest))
    named = culprits.standing_out() if says_who else set()
    held_up = steps[steps["left_out"].isna() & steps["unseen_ns"].notna()]
    return RunFinding(
        verdict=verdict,
        step=step,
        first=first,
        rest=tuple(rest),
        faults=tuple(each for each in faults if not named & each.ranks),
        long_steps=long_steps,
        communication=communication,
        gaps=gaps,
        unequal=unequal,
        other_kinds=tuple(other_kinds(steps)),
        held_up=tuple((row["step"], row["unseen_ns"] / 1e6) for row in records(held_up)),
        named=prices is None or prices.unexplained_ns is not None,
        alone_ms=alone_ms,
        most_gain_ms=most_gain_ms,
    )


def _leading(prices: Prices | None, step: Step) -> Priced | None:
    """The change that comes first, if a step gains enough by it to be what the verdict is about."""
    first = prices.changes[0] if prices is not None and prices.changes else None
    return first if first is not None and step.share(first.gain.ns / 1e6) >= LOSS_FROM else None


def _loss_of(leading: Priced | None, losses: Sequence[Loss]) -> Loss | None:
    """The loss that a change is about; None if it gains more than shows there."""
    if leading is None:
        return None
    for loss in losses:
        families = (IDLE_VERDICTS, _OF_COMMUNICATION, {"copy-bound"})
        if any(leading.verdict in family and loss.verdict in family for family in families):
            return loss if leading.gain.ns / 1e6 <= _MOST_BEYOND * loss.ms else None
    return None


def _as_led(loss: Loss, leading: Priced | None) -> Loss:
    """A loss by waiting is one of transfers if hiding these gains most.

    That is so in pipelines: stages wait for each other though none is late, and faster links shorten the waits.
    """
    if leading is None or loss.verdict != "skew-bound" or leading.verdict != "transfer-bound":
        return loss
    return loss._replace(verdict="transfer-bound", by_led=leading)


def _is_mixed(leading: Priced, losses: Sequence[Loss], prices: Prices | None) -> bool:
    """Whether another loss has a price of nearly as much, so that none dominates."""
    mine = _loss_of(leading, losses)
    others = [
        min(change.gain.ns, loss.ms * 1e6)
        for change in (prices.changes if prices is not None else ())
        if (loss := _loss_of(change, losses)) is not None and loss is not mine
    ]
    return max(others, default=0.0) >= MIXED_FROM * leading.gain.ns


def _alone_ms(loss: Loss, step: Step, prices: Prices | None) -> float | None:
    """What a step gains if those whom others wait for are no later, in ms, where that is much less than they wait."""
    gain = None if prices is None or prices.unexplained_ns is not None else prices.gains.get("no_straggler")
    if loss.late is None or gain is None or gain.ns / 1e6 >= _MOST_OF_IT * loss.late.frac * step.wait:
        return None
    return gain.ns / 1e6


def _of_idle(
    typical: TypicalStep,
    step: Step,
    idle_ns: float,
    causes: dict[str, float] | None,
    ranges: Mapping[str, float] | None,
    holders: Mapping[str, HeldBy],
    threads: InPython | None,
    gaps: LargestGaps,
    syncs_steps: pd.DataFrame,
    prices: Prices | None,
) -> Loss:
    """The loss by idle time, and what is behind it."""
    long = LongCalls.of(syncs_steps, typical.steps, typical.parts["idle_ns"] * typical.windows)
    if long is not None and HELD_RANGE in holders and holders[HELD_RANGE].name in (long.name, long.operator):
        holders = {part: holder for part, holder in holders.items() if part != HELD_RANGE}
    verdict = idle_verdict(causes, prices, idle_ns)
    blocking = blocking_operator(syncs_steps, typical.steps, verdict)
    change = idle_change(prices, causes)
    headline: Idling | LongCalls | None = idling(verdict, causes, holders, idle_ns, prices=prices, blocking=blocking)
    leaves_most = verdict in ("idle", "host-bound") and change is not None and idle_ns
    is_worth_saying = change is not None and step.share(change.gain.ns / 1e6) >= MENTIONED_FROM
    found = BehindIdle(
        reasons=idle_reasons(causes, prices, ranges, threads, holders),
        long=None if long is None or long.name in (ranges or ()) else long,
        before=gaps.before,
        before_ms=gaps.before_ns / 1e6,
        headline=long if long is not None and long.is_most and verdict == "launch-bound" else headline,
        change=change if leaves_most and is_worth_saying else None,
    )
    return Loss(About.idle, idle_ns / 1e6, verdict, step.idle, idle=found)


def _of_communication(step: Step, known: KnownCalls, culprits: Culprits | None) -> Loss:
    """The loss by exposed communication. Without `culprits` it names no ranks, because another sentence does."""
    waited = None if culprits is None else culprits.waited()
    if waited is not None and (waited.bubble is None or waited.bubble.whole < _MOST_OF_IT * step.wait):
        waited = waited._replace(bubble=None)
    comm, at_least = step.comm or 1.0, known.waited_at_least_ns / 1e6
    waiting, moving, unknown = step.wait / comm, step.transfer / comm, step.unsplit / comm
    of_some = waited if waiting >= NAMED_FROM else None
    if at_least / comm >= SKEW_FROM > waiting:
        return Loss(About.waits_at_least, step.comm, "skew-bound", step.comm, waited)
    if unknown > abs(waiting - moving) or unknown > 1 - LEAST_SPLIT:
        return Loss(About.either, step.comm, "inconclusive", step.comm, of_some if known.split_calls else None)
    if waiting >= _NEARLY_ALL:
        return Loss(About.waits, step.comm, "skew-bound", step.wait, waited)
    if waiting >= moving:
        return Loss(About.waits_mostly, step.comm, "skew-bound", step.comm, waited)
    if step.share(step.comm - step.transfer) < MENTIONED_FROM:
        return Loss(About.transfers, step.comm, "transfer-bound", step.transfer)
    return Loss(About.moves_mostly, step.comm, "transfer-bound", step.comm, of_some)
