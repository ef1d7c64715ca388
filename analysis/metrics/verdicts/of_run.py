"""The verdict on a run, in sentences: the largest loss of a step first, and the ranks or work behind it.

All numbers are those of a typical step (`metrics/typical_step`), which the first screen shows beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from ....common.wording import counted, listed
from ...core.schema import Row, records
from ..causes.cpu_work import InPython
from ..device.largest_gaps import HELD_RANGE, HeldBy, LargestGaps
from ..device.longer import Longer
from ..prices import Priced, Prices
from ..typical_step import TypicalStep
from .culprits import Culprits, LateInWords, faults_of, length, short
from .kinds import a_step, other_kinds
from .of_idle import (
    IDLE_VERDICTS,
    LongCalls,
    blocking_operator,
    idle_change,
    idle_reasons,
    idle_shortly,
    idle_verdict,
)
from .of_longer import LongSteps
from .thresholds import COMPUTE_FROM, LEAST_SPLIT, LOSS_FROM, MENTIONED_FROM, MIXED_FROM, NAMED_FROM, SKEW_FROM
from .unsplit import ALL_RANKS, NO_TRACE, advice

_SURELY_HANGS_NS = 1_000_000_000
_NOT_TOLD_APART = "waiting and transfer cannot be told apart"
_OF_COMMUNICATION = frozenset({"skew-bound", "transfer-bound", "inconclusive"})
_MOST_BEYOND = 1.5  # what gains so many times a loss is about more than that loss
_MOST_OF_IT = 0.5  # of the waiting: from there a headline names who causes it
_NEARLY_ALL = 0.9  # of exposed communication: then the sentence is about that part alone


class RunVerdict(NamedTuple):
    """A verdict, the sentences that explain it, and what is not known, with advice; empty if all is known.

    The `headline` is the first thing to say, in one short sentence without a full stop; `why` says what is behind it.
    """

    verdict: str
    because: str
    not_known: str = ""
    headline: str = ""
    why: str = ""


class Step(NamedTuple):
    """A typical step in ms: its length, compute, communication, copies and idle time; and its kind, if it is known."""

    whole: float
    compute: float
    transfer: float
    wait: float
    unsplit: float
    copies: float
    idle: float
    has_steps: bool
    kind: str | None

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
        )

    @property
    def comm(self) -> float:
        """Exposed communication, in ms."""
        return self.transfer + self.wait + self.unsplit

    def share(self, ms: float) -> float:
        """`ms` as a fraction of the step."""
        return ms / self.whole if self.whole else 0.0

    def of_whole(self, ms: float, most: float | None = None) -> str:
        """`7.5 of 14.5 ms in a decode step (52%)`; `4.0 to 35.0 of ...` where it may be as much as `most`."""
        where = a_step(self.kind).lower() if self.has_steps else "the window"
        if self.whole < 1:
            to = "" if most is None else f" to {1000 * most:.0f}"
            return f"{1000 * ms:.0f}{to} of {1000 * self.whole:.0f} us in {where} ({self.share(ms):.0%})"
        to = "" if most is None else f" to {most:,.1f}"
        return f"{ms:,.1f}{to} of {self.whole:,.1f} ms in {where} ({self.share(ms):.0%})"

    def of_every(self, ms: float, most: float | None = None) -> str:
        """`7.5 ms of every 14.5 ms step`, with the kind of the step if it is known, and `4.0 to 35.0 ms` as above."""
        kind = "" if self.kind is None else f" {self.kind}"
        where = f"every {self.time(self.whole)}{kind} step" if self.has_steps else f"the {self.time(self.whole)} window"
        if most is not None:
            return f"{self.time(ms).rsplit(' ', 1)[0]} to {self.time(most)} of {where}"
        return f"{self.time(ms)} of {where}"

    def time(self, ms: float) -> str:
        """`7.5 ms`, or in us if the step is short."""
        return f"{1000 * ms:.0f} us" if self.whole < 1 else length(ms)

    def with_share(self, ms: float) -> str:
        """`7.5 ms (52%)`."""
        return f"{self.time(ms)} ({self.share(ms):.0%})"


class KnownCalls(NamedTuple):
    """How much is known of the calls of a run.

    Of its `calls`, `split_calls` could be split into wait and transfer; `why` is the kind of reason why not all could
    (`unsplit.reason`). `waited_at_least_ns` is how much of the exposed communication of a typical step is waiting for
    certain. `beyond_fastest` is the part of the calls' time by which they took longer than the fastest similar call,
    None if none is similar. `fastest` is a clause on the bandwidth that calls reach at least, waiting included.
    `on_cpus` is whether CPUs communicated beside GPUs, which is not measured.
    """

    calls: int
    split_calls: int
    why: str
    waited_at_least_ns: float
    beyond_fastest: float | None
    fastest: str | None
    on_cpus: bool


def hang(row: Row, group_in_words: str | None) -> RunVerdict:
    """The verdict on a run with this row of `hangs`; its group goes by its name where no words for it are known."""
    number = f" number {row['seq']}" if row["seq"] is not None else ""
    named = f" of group {row['process_group']}" if row["process_group"] is not None else ""
    group = named if group_in_words is None else f" of {group_in_words}"
    step = f" in step {row['step']}" if row["step"] is not None else ""
    waiting = row["waiting"].split()
    what = f"{row['collective'] or 'a collective'}{number}{group}{step}"
    usual = f", where {length(row['usual_ns'] / 1e6)} is the longest otherwise" if row["usual_ns"] else ""
    longest = f"{length(row['waited_ns'] / 1e6)}{usual}"
    if not row["missing"]:
        issued = f"{what} was issued on all {counted(len(waiting), 'rank')} and did not end on any"
        issued = f"{issued[0].upper()}{issued[1:]}"
        return RunVerdict("hang", f"{issued} within {longest}.", "", issued, f"Not within {longest}.")
    missing = row["missing"].split()
    who = f"Rank{'s' if missing[1:] else ''} {', '.join(missing[:8])}{', ...' if missing[8:] else ''}"
    wait = f"{len(waiting)} ranks wait" if waiting[1:] else f"rank {waiting[0]} waits" if waiting else "nobody waits"
    doubt = "" if row["waited_ns"] >= _SURELY_HANGS_NS else "The capture may also have ended in a pause."
    headline, why = f"{who} never issued {what}", f"{wait} for it for {longest}."
    return RunVerdict("hang", f"{headline}; {why}", doubt, headline, f"{why[0].upper()}{why[1:]}")


def without_gpu(typical: TypicalStep, listed_gpus: Sequence[str]) -> RunVerdict:
    """The verdict on a run in which only CPUs were active, though its traces list these GPUs."""
    step, names = Step.of(typical), listed(sorted({name for name in listed_gpus if name}))
    known = f", {names}" if names else ""
    headline = f"No GPU activity was traced, though the trace lists {counted(len(listed_gpus), 'GPU')}{known}"
    why = f"Operators on the CPUs fill {step.of_whole(step.compute)}."
    unknown = "what the GPU did, if the run used it: capture with ProfilerActivity.CUDA, without another profiler."
    return RunVerdict("inconclusive", f"{headline}. {why}", unknown, headline, why)


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
    few_traces: str,
    some_missing: bool,
    prices: Prices | None,
    unequal_devices: str,
) -> RunVerdict:
    """The verdict on a run that does not hang.

    It is about the change that comes first in `prices`, if a step gains enough by it; where none does, or the run
    cannot be played again, about the largest loss, or about compute.

    `by_device` is the breakdown by step. `culprits` made others wait in the typical step, `culprits_in` says who did in
    some other steps. `idle` holds the parts of idle time in a typical step in ns, None if these are not known, `ranges`
    those in NVTX ranges of programs without Python, None where Python runs, `holders` what CPUs were in for most of a
    part, and `threads` what these did in it on CPUs, None if that is not known; `gaps` is what it comes before.
    `syncs_steps` is the table of that name, and `longer` gives what says why steps are longer, None where that is not
    known. `prices` are None where the run cannot be replayed. `few_traces` is a clause on how many ranks have a trace,
    and `some_missing` says that the job certainly has others. `unequal_devices` is a sentence on those of a process.
    """
    step, faults = Step.of(typical), [] if prices is None else faults_of(prices, culprits)
    by_name, nameless = (_of_communication(step, communication, each) for each in (culprits, None))
    # What a step gains without late ranks says more than what others wait for them, if that explains it.
    is_priced = any(
        each.late and each.late >= culprits.standing_out() and each.ms >= _MOST_OF_IT * by_name.wait_ms
        for each in faults
    )
    communicating = nameless if is_priced else by_name
    long = LongCalls.of(syncs_steps, typical.steps, typical.parts["idle_ns"] * typical.windows)
    if long is not None and HELD_RANGE in holders and holders[HELD_RANGE].name in (long.name, long.operator):
        holders = {part: holder for part, holder in holders.items() if part != HELD_RANGE}
    idle_ns = typical.parts["idle_ns"] - gaps.unseen_ns
    of_idle = idle_verdict(idle, prices, idle_ns)
    by_one = long.shortly(step.time) if long is not None and of_idle == "launch-bound" else ""
    losses = [
        Loss(
            idle_ns / 1e6,
            of_idle,
            "Devices are idle for",
            idle_reasons(idle, step.time, prices, ranges, threads, holders)
            + ("" if long is None or long.name in (ranges or ()) else long.sentence(step.time))
            + _before(gaps, step)
            + _most_of_idle(of_idle, idle_ns, step, prices),
            step.idle,
            shortly=by_one
            or idle_shortly(
                of_idle,
                idle,
                holders,
                idle_ns,
                prices=prices,
                blocking=blocking_operator(syncs_steps, typical.steps, of_idle),
                time=step.time,
            ),
        ),
        Loss(step.copies, "copy-bound", "Copies that nothing hides take"),
        communicating,
    ]
    losses = sorted((loss for loss in losses if loss.ms > 0), key=lambda loss: -loss.ms) or losses[:1]
    leading = _leading(prices, step)
    fault = next((each for each in faults if leading is not None and each.remedy == leading.remedy), None)
    large = [loss for loss in losses if step.share(loss.ms) >= LOSS_FROM]
    is_named = prices is None or prices.unexplained_ns is not None
    if fault is None and prices is not None and prices.unexplained_ns is not None:
        # Where others wait much longer than anything gains, that may be gained, and comes first.
        leading, large = None, sorted(large, key=lambda loss: loss.verdict not in _OF_COMMUNICATION)
    long_steps = LongSteps.of(steps, by_device, typical, culprits_in, syncs_steps, longer)
    is_event = long_steps is not None and prices is not None and long_steps.is_event(leading)
    computing = step.share(step.compute) >= COMPUTE_FROM and prices is not None
    if long_steps is not None and is_event:
        verdict, headline, why, rest = "event-bound", long_steps.headline, long_steps.because, large
        sentences = [f"{headline}. {why[0].upper()}{why[1:]}."]
    elif fault is not None:
        verdict, sentences = fault.verdict, [fault.sentence(step.of_whole(fault.ms, fault.most_ms))]
        headline, why = fault.headline(step.of_every(fault.ms, fault.most_ms)), fault.why
        large = [nameless if loss.verdict in _OF_COMMUNICATION else loss for loss in large]
        rest, faults = large, [each for each in faults if each != fault]
    elif leading is not None and _loss_of(leading, large) is None:
        # It shows elsewhere: a late launch on one rank is waiting on the others.
        verdict, why, rest = leading.verdict, "", large
        up_to = "up to " if leading.is_bound else ""
        sentences = [f"{leading.costs} {up_to}{step.of_whole(leading.gain.ns / 1e6)}."]
        headline = f"{leading.costs} {up_to}{step.of_every(leading.gain.ns / 1e6)}"
    elif large and not (computing and leading is None):
        first = _as_led(_loss_of(leading, large) or large[0], leading, step)
        verdict = "mixed" if leading is not None and _is_mixed(leading, large, prices) else first.verdict
        rest = [loss for loss in large if loss.what != first.what]
        sentences = [f"{first.what} {step.of_whole(first.of_ms)}{first.more}."]
        headline, why = first.headline(step, named=is_named), first.why(named=is_named)
        why += _little_alone(first, step, prices)
        if leading is None and prices is not None:
            why = (why + _nothing_gains(step, prices)).removeprefix(". ")
    else:
        verdict, why, what, ms = "compute-bound", "", "Compute fills", step.compute
        rest = [loss for loss in large or losses[:1] if step.share(loss.ms) >= MENTIONED_FROM]
        unseen_ms = gaps.unseen_ns / 1e6
        if unseen_ms > step.compute:
            why = f"compute fills {step.with_share(step.compute)}"
            verdict, what, ms = "inconclusive", "What devices did is not in the trace for", unseen_ms
        sentences = [f"{what} {step.of_whole(ms)}{'; ' if why else ''}{why}."]
        headline = f"{what} {step.of_every(ms)}"
    sentences += [unequal_devices] if unequal_devices else []
    sentences += [f"{loss.what} {step.with_share(loss.of_ms)}{loss.more}." for loss in rest]
    is_named = communicating.more != nameless.more and communicating.more in " ".join(sentences)
    named = culprits.standing_out() if is_named else set()
    sentences += [fault.sentence(step.with_share(fault.ms)) for fault in faults if not named & fault.late]
    if not communication.calls:
        beside = "Communication ran on the CPUs, over gloo, and is not measured beside GPUs."
        sentences.append(beside if communication.on_cpus else "No communication was traced.")
    sentences += [long_steps.sentence] if long_steps is not None and not is_event else []
    unsplit = _not_known(step, communication, few_traces, some_missing=some_missing)
    not_known = " ".join([*unsplit, *_unseen(gaps, step), *_held_up(steps)])
    behind = " ".join([*([f"{why[0].upper()}{why[1:]}."] if why else []), *sentences[1:]])
    return RunVerdict(verdict, " ".join([*sentences, *other_kinds(steps)]), not_known, headline, behind)


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


def _as_led(loss: Loss, leading: Priced | None, step: Step) -> Loss:
    """A loss by waiting is one of transfers if hiding these gains most.

    That is so in pipelines: stages wait for each other though none is late, and faster links shorten the waits.
    """
    if leading is None or loss.verdict != "skew-bound" or leading.verdict != "transfer-bound":
        return loss
    gained = f"; with {leading.what} a step gains up to {step.time(leading.gain.ns / 1e6)}"
    return loss._replace(verdict="transfer-bound", more=f"{loss.more}{gained}", late=None)


def _is_mixed(leading: Priced, losses: Sequence[Loss], prices: Prices | None) -> bool:
    """Whether another loss has a price of nearly as much, so that none dominates."""
    mine = _loss_of(leading, losses)
    others = [
        min(change.gain.ns, loss.ms * 1e6)
        for change in (prices.changes if prices is not None else ())
        if (loss := _loss_of(change, losses)) is not None and loss is not mine
    ]
    return max(others, default=0.0) >= MIXED_FROM * leading.gain.ns


def _little_alone(loss: Loss, step: Step, prices: Prices | None) -> str:
    """`. Were it no later than the others, a step would gain 0.9 ms: ...`, where that is much less than they wait."""
    gain = None if prices is None or prices.unexplained_ns is not None else prices.gains.get("no_straggler")
    if loss.late is None or gain is None or gain.ns / 1e6 >= _MOST_OF_IT * loss.wait_ms:
        return ""
    gained = step.time(gain.ns / 1e6) if step.share(gain.ns / 1e6) >= MENTIONED_FROM else "next to nothing"
    return f". If only that changed, a step would gain {gained}: without it, others are nearly as late"


def _nothing_gains(step: Step, prices: Prices) -> str:
    """`. No change that was played again gains more than 0.2 ms`: what it is due to is not known."""
    most = max((change.gain.ns for change in prices.changes), default=0.0) / 1e6
    if step.share(most) < MENTIONED_FROM:
        return ". No change that was played again gains 1% of it" if prices.changes else ""
    return f". No change that was played again gains more than {step.time(most)}"


def _most_of_idle(of_idle: str, idle_ns: float, step: Step, prices: Prices | None) -> str:
    """`; with every kernel launched in time a step gains 7.5 ms`, where that leaves most of the idle time."""
    change = idle_change(prices)
    if (
        of_idle not in ("idle", "host-bound")
        or change is None
        or step.share(change.gain.ns / 1e6) < MENTIONED_FROM
        or not idle_ns
    ):
        return ""
    return f"; with {change.what} a step gains {step.time(change.gain.ns / 1e6)} of it"


class Loss(NamedTuple):
    """A part of a step without compute, in ms, and the verdict if it is the largest one.

    Its sentence consists of `what`, the time `of_ms`, which is this part or, if `most_ms` is given, most of it, and
    `more`. Its headline ends `shortly`; if ranks or a host are `late`, it says that waiting for these takes `wait_ms`.
    """

    ms: float
    verdict: str
    what: str
    more: str = ""
    most_ms: float | None = None
    shortly: str = ""
    late: LateInWords | None = None
    wait_ms: float = 0.0

    @property
    def of_ms(self) -> float:
        """The time that the sentence is about, in ms."""
        return self.ms if self.most_ms is None else self.most_ms

    def headline(self, step: Step, *, named: bool) -> str:
        """`Waiting for rank 1 takes 7.4 ms of every 42.0 ms step`: on the mean of all devices, as all parts of it.

        A rank is `named` only where no price is known, or none explains the wait: else it would come first itself if
        its cure gained most.
        """
        if self.late is not None and named:
            return f"Waiting for {self.late.who} takes {step.of_every(self.wait_ms)}"
        return f"{self.what} {step.of_every(self.of_ms)}{self.shortly}"

    def why(self, *, named: bool) -> str:
        """What is behind the loss, as a clause, where the headline has `named` a rank or not; empty if not known."""
        if self.late is not None and self.late.why and named:
            return self.late.why
        return self.more.lstrip(",:; ")


def _before(gaps: LargestGaps, step: Step) -> str:
    """`; 37.1 ms come before linear_relu_square_kernel`."""
    return "" if gaps.before is None else f"; {step.time(gaps.before_ns / 1e6)} come before `{short(gaps.before)}`"


def _unseen(gaps: LargestGaps, step: Step) -> Iterator[str]:
    if step.share(gaps.unseen_ns / 1e6) >= MENTIONED_FROM:
        yield (
            f"For {step.time(gaps.unseen_ns / 1e6)} at the beginning a CPU waited in {gaps.waiting_in}, and nothing "
            "that was launched began: probably both waited for work from before the trace, which is not in it."
        )


def _held_up(steps: pd.DataFrame) -> Iterator[str]:
    for row in records(steps[steps["left_out"].isna() & steps["unseen_ns"].notna()]):
        yield (
            f"For {row['unseen_ns'] / 1e6:,.1f} ms step {row['step']} waited for work from before the trace, which is "
            "not in it; that time is left out."
        )


def _of_communication(step: Step, known: KnownCalls, culprits: Culprits | None) -> Loss:
    """The loss by exposed communication. Without `culprits` it names no ranks, because another sentence does."""

    def named(of: str = "it") -> str:
        return culprits.named(of) if culprits is not None else ""

    def for_whom() -> str:
        return culprits.sentence() if culprits is not None else ""

    late = culprits.in_words() if culprits is not None else None
    if late is not None and late.frac < _MOST_OF_IT:
        late = None
    caused_ms = 0.0 if late is None else late.frac * step.wait
    comm, at_least = step.comm or 1.0, known.waited_at_least_ns / 1e6
    waiting, moving, unknown = step.wait / comm, step.transfer / comm, step.unsplit / comm
    total = "Exposed communication takes"
    if at_least / comm >= SKEW_FROM > waiting:
        who = named(f"the {step.time(step.wait)} that could be split")
        return Loss(step.comm, "skew-bound", total, f", at least {step.time(at_least)} of it waiting{who}")
    if unknown > abs(waiting - moving) or unknown > 1 - LEAST_SPLIT:
        more = step.share(at_least - step.wait) >= MENTIONED_FROM
        low = f", at least {step.time(at_least)} in all is waiting" if more else ""
        who = named() if waiting >= NAMED_FROM else ""
        split = f": {', '.join(_split_parts(step))}{who}{low}" if known.split_calls else ""
        return Loss(step.comm, "inconclusive", total, split)
    if waiting >= _NEARLY_ALL:
        return Loss(step.comm, "skew-bound", "Ranks wait", for_whom(), step.wait, late=late, wait_ms=caused_ms)
    if waiting >= moving:
        split = ": " + ", ".join(
            [f"{step.time(step.transfer)} move data", *_either(step), f"{step.time(step.wait)} wait"]
        )
        return Loss(step.comm, "skew-bound", total, split + for_whom(), late=late, wait_ms=caused_ms)
    if step.share(step.comm - step.transfer) < MENTIONED_FROM:
        return Loss(step.comm, "transfer-bound", "Exposed transfers take", "", step.transfer)
    who = named() if waiting >= NAMED_FROM else ""
    return Loss(step.comm, "transfer-bound", total, f": {', '.join(_split_parts(step))}{who}")


def _split_parts(step: Step) -> Iterator[str]:
    yield f"{step.time(step.transfer)} move data"
    yield from _either(step)
    if step.share(step.wait) >= MENTIONED_FROM:
        yield f"{step.time(step.wait)} wait for other ranks"


def _either(step: Step) -> Iterator[str]:
    if step.share(step.unsplit) >= MENTIONED_FROM:
        yield f"{step.time(step.unsplit)} may be either"


def _not_known(step: Step, known: KnownCalls, few_traces: str, *, some_missing: bool) -> Iterator[str]:
    """Yield sentences on calls that could not be split, and why, if that matters, and on ranks without a trace."""
    lacks_traces = known.why in NO_TRACE
    matters = step.share(step.unsplit) >= MENTIONED_FROM
    if matters and not known.split_calls:
        if lacks_traces:
            known_of_it = "only the least time waited is known" if known.waited_at_least_ns else _NOT_TOLD_APART
            yield f"{few_traces}, so {known_of_it}: {ALL_RANKS}."
        else:
            what = f"None of {counted(known.calls, 'call')} could be split into waiting and transfer"
            yield f"{what}, because {advice(known.why)}."
        if (known.beyond_fastest or 0.0) >= NAMED_FROM and not known.waited_at_least_ns:
            yield (
                f"{known.beyond_fastest:.0%} of the calls' time is more than the fastest similar call takes: "
                "probably waiting."
            )
        if known.fastest is not None and not known.waited_at_least_ns:
            yield f"Waiting included, {known.fastest}."
    elif matters:
        what = f"{step.time(step.unsplit)} of exposed communication could not be split into waiting and transfer"
        yield f"{few_traces}, so {what}: {ALL_RANKS}." if lacks_traces else f"{what}, because {advice(known.why)}."
    if some_missing and not (matters and lacks_traces):
        yield f"{few_traces}."
