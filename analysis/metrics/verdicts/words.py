"""Verdicts in words: every sentence, headline and clause about what limits a run, from what the other files find.

Amounts are those of the values; nothing is chosen here but how to say it. A clause has no full stop and begins in lower
case, so that it can follow a colon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from ....common.wording import bytes_text, counted, listed, ordinal, ranges_of, shortened
from ...core.schema import Row
from ..causes.cpu_work import BLOCKED, COMPUTING, GARBAGE, NO_CPU, OUTSIDE
from ..compute.gpu_clocks import SAMPLED, has_lower_clock
from ..compute.shapes_ranks import AT_EVERYTHING, AT_KERNEL, AT_PRODUCTS
from ..device.largest_gaps import HELD_RANGE, LargestGaps
from ..functions import quoted
from ..periods import Period
from ..pipelines.schedule import UNKNOWN_SCHEDULE
from ..pipelines.stages import HeavyStage
from ..pipelines.table import UsualBubble
from ..prices import Priced, Since, UnevenExperts
from .culprits import MOST_NAMED, Blamed, Fault, Reason, Waited
from .devices import Unequal
from .doing import Doing, RegionOf
from .durations import Durations
from .kinds import OtherKind
from .of_idle import QUEUED, IdleReasons, Idling, LongCalls, LongestCalls
from .of_longer import Cause, Filled, LongSteps
from .of_run import (
    About,
    BehindIdle,
    KnownCalls,
    Loss,
    RunFinding,
    Step,
)
from .slow_devices import MoreWork, SampledClock, Slow
from .thresholds import MENTIONED_FROM, NAMED_FROM, SKEW_FROM
from .unsplit import NO_TRACE

_LONGEST = 60  # letters of a kernel's name
_LEAST_MS = 0.01  # how much longer or later is not said if it is less: "0 us later" explains nothing
_MOST_LENGTHS = 4  # of steps: of more, the shortest and the longest are given
_MOST_HUNG = 8
_SURELY_HANGS_NS = 1_000_000_000
_ALL_OF_IT = 0.995  # from there a share would be shown as 100%, and is left out
_NEARLY_ALL = 0.9  # of the time outside of operators: from there one thing is said to be what a rank does there
_MORE_FROM = 0.2  # of a bubble: from there a second part of it is named
_SPREAD_FROM = 0.5  # of the waiting must be explained, with no rank standing out, to call it jitter
_UNEXPLAINED_FROM = 0.05  # of the waiting: less is noise
_TIMES_FROM = 1.5
_MANY_TIMES = 10  # as long: from there without a digit behind the point
_BETWEEN_NAMES, _NAMES_SAID = " > ", 2  # of the path of a region


class RunVerdict(NamedTuple):
    """A verdict, the sentences that explain it, and what is not known, with advice; empty if all is known.

    The `headline` is the first thing to say, in one short sentence without a full stop; `why` says what is behind it,
    and `ranks` are those that it names.
    """

    verdict: str
    because: str
    not_known: str = ""
    headline: str = ""
    why: str = ""
    ranks: tuple[int, ...] = ()


# Amounts and names.


def length(ms: float) -> str:
    """`2.2 ms`, `140 us`."""
    return f"{ms:,.1f} ms" if ms >= 0.1 else f"{ms * 1000:.0f} us"


def short(name: str) -> str:
    """A kernel's name without template arguments and parameters; of a long one the last part, or its beginning."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "").split("<")[0].split("(")[0].strip()
    last = plain.rpartition("::")[2] if len(plain) > _LONGEST else plain or name
    return last if len(last) <= _LONGEST else f"{last[:_LONGEST]}..."


def a_step(kind: str | None) -> str:
    """`A decode step`, `An eval step`; `A step` if its kind is not known."""
    return "A step" if kind is None else f"{'An' if kind[:1] in 'aeio' else 'A'} {kind} step"


def _time(step: Step, ms: float) -> str:
    """`7.5 ms`, or in us if the step is short."""
    return f"{1000 * ms:.0f} us" if step.whole < 1 else length(ms)


def _with_share(step: Step, ms: float) -> str:
    """`7.5 ms (52%)`."""
    return f"{_time(step, ms)} ({step.share(ms):.0%})"


def _of_whole(step: Step, ms: float, most: float | None = None) -> str:
    """`7.5 of 14.5 ms in a decode step (52%)`; `4.0 to 35.0 of ...` where it may be as much as `most`."""
    where = a_step(step.kind).lower() if step.has_steps else "the window"
    where += " on average" if step.repeats else ""
    if step.whole < 1:
        to = "" if most is None else f" to {1000 * most:.0f}"
        return f"{1000 * ms:.0f}{to} of {1000 * step.whole:.0f} us in {where} ({step.share(ms):.0%})"
    to = "" if most is None else f" to {most:,.1f}"
    return f"{ms:,.1f}{to} of {step.whole:,.1f} ms in {where} ({step.share(ms):.0%})"


def _of_every(step: Step, ms: float, most: float | None = None) -> str:
    """`7.5 ms of every 14.5 ms step`, with the kind of the step if it is known, and `4.0 to 35.0 ms` as above."""
    kind = "" if step.kind is None else f" {step.kind}"
    whole = _time(step, step.whole)
    where = f"every {whole}{kind} step" if step.has_steps else f"the {whole} window"
    where = f"a{kind} step, which takes {whole} on average" if step.repeats else where
    if most is not None:
        return f"{_time(step, ms).rsplit(' ', 1)[0]} to {_time(step, most)} of {where}"
    return f"{_time(step, ms)} of {where}"


def _capital(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}"


# What a late rank does.

_DOES = {
    "compute": ("computes", "compute", "longer"),
    "memory": ("copies", "copy", "longer"),
    "comm": ("is held up by communication", "are held up by communication", "longer"),
    "data": ("waits for its data loader", "wait for their data loaders", "longer"),
    "cpu": ("launches its kernels", "launch their kernels", "later"),
    "start": ("begins the traced step", "begin the traced step", "later"),
}
"""What one rank, or several, do longer or later than others."""
_IN_PYTHON = {
    BLOCKED: ("is {}blocked in Python, outside of any operator,", "are {}blocked in Python, outside of any operator,"),
    COMPUTING: ("{}computes in Python, outside of any operator,", "{}compute in Python, outside of any operator,"),
    GARBAGE: ("{}collects garbage", "{}collect garbage"),
    NO_CPU: ("{}waits for a CPU, outside of any operator,", "{}wait for a CPU, outside of any operator,"),
    None: ("is {}in Python, outside of any operator,", "are {}in Python, outside of any operator,"),
}
"""What one rank, or several, do outside of operators; None: not known."""
_INSTEAD = {
    COMPUTING: "computes no longer than theirs",
    BLOCKED: "is blocked",
    NO_CPU: "waits for a CPU",
}
"""What a thread does whose operators take longer, though it does not compute longer."""


def doing(found: Doing) -> str:
    """`in "aten::index", inside "forward"`, to follow "its CPU is"."""
    of = "" if found.operator is None else f" of `{found.operator}`"
    at = [] if found.what is None else [OUTSIDE if found.what == OUTSIDE else f"in `{found.what}`{of}"]
    return ", ".join([*at, *_around(found)])


def _around(found: Doing) -> list[str]:
    """`in "load_batch" (train.py:31)` and `inside "forward"`, where these are known."""
    function = [] if found.function is None else [_in_function(found)]
    return [*function, *([] if found.inside is None else [f"inside `{found.inside}`"])]


def _in_function(found: Doing) -> str:
    return f"{'mostly ' if found.mostly else ''}in {quoted(found.function or '')}"


def _clause_of(found: Doing) -> str:
    """`its thread is blocked in Python, outside of any operator, inside `# sparse arch` (98% of that time)`."""
    if found.what == OUTSIDE:
        does = _in_python(found).removesuffix(",")
        return f"its thread {', '.join([does, *_around(found)])}{_share(found.frac)}"
    return f"its CPU is {doing(found)}{_share(found.frac)}"


def _in_python(found: Doing | None, *, several: bool = False) -> str:
    """What one rank, or several, do outside of operators: `is mostly blocked in Python, outside of any operator,`."""
    python, frac = (found.python, found.python_frac) if found is not None else (None, 1.0)
    return _IN_PYTHON[python][several].format("" if frac >= _NEARLY_ALL else "mostly ")


def _share(frac: float) -> str:
    return f" ({frac:.0%} of that time)" if frac < _ALL_OF_IT else ""


def late_in_words(late: Reason) -> str:
    """`launches its kernels 2.7 ms per step later than the others; its CPU is in ...`."""
    if isinstance(late.slow, HeavyStage):
        return _heavy(late.slow)
    return f"{_does(late)}{_behind(late)}"


def _does(late: Reason, *, several: bool = False) -> str:
    *does, more = _DOES[late.because]
    said = does[several]
    if late.because == "compute" and late.instead is not None:
        said = ("is in operators", "are in operators")[several]
    if late.on_cpu and late.because == "cpu":
        said, more = _in_python(late.doing, several=several), "longer"
    per = " per step" if late.per_step else ""
    much = f" {length(late.more_ms)}{per}" if late.more_ms >= _LEAST_MS else ""
    return f"{said}{much} {more} than the others{_when(late.since, late.step, alone=late.alone)}"


def _when(since: Since | None, step: int | None, *, alone: bool) -> str:
    if step is not None:
        return f" in step {step}{' alone' if alone else ''}"
    return "" if since is None else f" from step {since.step} on"


def _behind(late: Reason, of: str = "") -> str:
    """`; its CPU is in ...`, or `, mostly in gemm; its GPU is 12% slower ...`: what a late rank does."""
    found = late.doing
    if late.because == "data":
        return "" if found is None or found.function is None else f", {_in_function(found)}"
    if late.because == "cpu":
        if late.on_cpu and found is not None and found.what == OUTSIDE:  # that is said already
            found = None if found.inside is None and found.function is None else found._replace(what=None)
        return "" if found is None else f"; {of}{_clause_of(found)}"
    where = [f"in {short(late.kernel)}"] if late.kernel else []
    where += [_in_region(late.region)] if late.region is not None else []
    mostly = f", mostly {', '.join(where)}" if where else ""
    instead = "" if late.instead is None else f"; its thread {_INSTEAD[late.instead]}"
    slow = "" if late.slow is None else f"; {_slow_device(late.slow, 'CPU' if late.on_cpu else 'GPU')}"
    return f"{mostly}{instead}{slow}"


def _in_region(region: RegionOf) -> str:
    """`inside `Block_17 > MLP_17` (92% of that time)`."""
    name = _BETWEEN_NAMES.join(region.path.split(_BETWEEN_NAMES)[-_NAMES_SAID:])
    return f"inside `{name}`{_share(region.frac)}"


def _slow_device(slow: Slow, what: str) -> str:
    """`its GPU is 12% slower at every operator: throttled or shared (1,200 MHz, others 1,980 MHz: power cap)`."""
    if isinstance(slow, HeavyStage):
        return _heavy(slow)
    if isinstance(slow, MoreWork):
        more = f"{slow.times:.1f} times the" if slow.times >= _TIMES_FROM else f"{slow.times - 1:.0%} more"
        return f"it has {more} FLOPs {'of' if slow.times >= _TIMES_FROM else 'than'} the others"
    row = slow.row
    if isinstance(slow, SampledClock):
        return f"its GPU is {'throttled' if has_lower_clock(row) else 'not throttled'}{_clocks(row)}"
    if row["slow_at"] in (AT_EVERYTHING, AT_PRODUCTS):
        at, cause = (
            ("at every operator", "throttled or shared")
            if row["slow_at"] == AT_EVERYTHING
            else ("at products of matrices, and not at what memory bounds", "its clock is lower")
        )
        if row["clock_from"] == SAMPLED and row["usual_clock_mhz"] is not None:
            cause = "throttled" if has_lower_clock(row) else "not throttled"
        model = None if row["note"] is None else row["note"].replace("its device is", "it is")
        return f"its {what} is {row['slow_over_frac']:.0%} slower {at}: {model or cause}{_clocks(row)}"
    call = f"`{row['operator']}` [{row['inputs'] or 'scalars'}]"
    over = f"{row['slow_over_frac']:.0%} longer"
    if row["slow_at"] == AT_KERNEL:
        return f"it runs another kernel for {call}, which takes {over}"
    return f"{call} takes {over}, by the same kernel"


def _heavy(stage: HeavyStage) -> str:
    """`has stage 4, which has 1.7 times the work of the others, 67.2 ms per step; give 36% of its layers to ...`."""
    times, much = f"{stage.times:.1f} times", length(stage.ms_per_step)
    schedule = "the schedule" if stage.schedule in (None, UNKNOWN_SCHEDULE) else stage.schedule
    bubble = f"{much} per step, and makes the bubble of {schedule} longer"
    if stage.is_alone:
        give = f"give {stage.given_frac:.0%} of its layers to other stages"
        return f"has stage {stage.stage}, which has {times} the work of the others, {bubble}; {give}"
    give = f"if it has more layers, give {stage.given_frac:.0%} of them to other stages"
    return f"has stage {stage.stage}, which takes {times} as long as the others, {bubble}; {give}"


def _clocks(row: Row) -> str:
    """` (1,386 MHz, others 1,980 MHz, 310 W, others 690 W, 88 °C, others 61 °C: temperature)`; empty if not known."""
    measured = [("clock_mhz", "usual_clock_mhz", "MHz")] if has_lower_clock(row) or row["clock_from"] == SAMPLED else []
    if row["clock_from"] == SAMPLED:
        measured += [("power_w", "usual_power_w", "W"), ("temperature_c", "usual_temperature_c", "°C")]
    known = [(row[own], row[usual], unit) for own, usual, unit in measured if None not in (row[own], row[usual])]
    clocks = ", ".join(f"{own:,.0f} {unit}, others {usual:,.0f} {unit}" for own, usual, unit in known)
    said = ": ".join(part for part in (clocks, row["slowed_by"]) if part)
    return f" ({said})" if said else ""


# For whom others wait.


def rank_in_words(rank: int, places: Mapping[int, str]) -> str:
    """`rank 5 (tp 1, pp 0, dp 1)`, or `rank 5` where its place in the job is not known."""
    return f"rank {rank}" + (f" ({places[rank]})" if rank in places else "")


def nearly_as_late(ranks: Sequence[int]) -> str:
    """`7 ranks nearly as late (1, 9, ...)`: others would wait for them without the latest; empty if there are none."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} (nearly as late)"
    return f"{counted(len(ranks), 'rank')} nearly as late ({shortened(ranks, MOST_NAMED)})" if ranks else ""


def _who(blamed: Blamed) -> str:
    """`rank 57 and 7 ranks nearly as late (1, 9, ...)`, `ranks 1 and 2`, or `host a (8 ranks)`."""
    ranks = blamed.ranks
    if blamed.host is not None:
        return f"host {blamed.host} ({len(ranks)} ranks)"
    if len(ranks) == 1:
        alike = nearly_as_late(blamed.as_late)
        return f"{rank_in_words(ranks[0], blamed.places)}{f' and {alike}' if alike else ''}"
    return f"ranks {listed([*map(str, ranks)])}" if len(ranks) <= MOST_NAMED else f"{len(ranks)} ranks"


def _who_why(blamed: Blamed) -> str:
    """`rank 1 launches its kernels 2.7 ms per step later than the others`; empty if not known."""
    if blamed.reason is None:
        return ""
    of_host = "" if blamed.host is None else "its "
    return f"{of_host}rank {blamed.reason.rank} {late_in_words(blamed.reason)}"


def _share_by_rank(waited: Waited | None, of: str = "it") -> str:
    """`, 72% of it for rank 7, which ...`: the ranks that stand out; empty if none does. Shares are those `of` what."""
    blamed = None if waited is None else waited.blamed
    if blamed is None:
        return ""
    frac = f", {blamed.frac:.0%} of {of} for"
    if blamed.host is not None:
        late = _late_clause(blamed.reason, "whose ranks", several=True)
        return f"{frac} host {blamed.host} ({len(blamed.ranks)} ranks, all of them late){late}"
    if len(blamed.ranks) == 1:
        return f"{frac} {_who(blamed)}{_late_clause(blamed.reason, 'the first' if blamed.as_late else 'which')}"
    first = blamed.ranks[:MOST_NAMED]
    most = ", ".join(f"{rank_in_words(rank, blamed.places)} ({blamed.shares[rank]:.0%})" for rank in first)
    return f"{frac} {len(blamed.ranks)} ranks: {most}{_late_clause(blamed.reason, 'the first')}"


def _late_clause(late: Reason | None, who: str, *, several: bool = False) -> str:
    if late is None:
        return ""
    of = f"of rank {late.rank}, " if several else ""
    return f", {who} {_does(late, several=several)}{_behind(late, of)}"


def _for_whom(waited: Waited | None) -> str:
    """`, 72% of it for rank 7, which ...`: the share of all waiting by rank, and the share without culprit."""
    if waited is None:
        return ""
    if waited.blamed is None and waited.bubble is not None:
        return f" {_for_stages(waited.bubble)}"
    if not waited.explained_frac:
        return " for other ranks, none of them late by more than clocks are uncertain"
    clause, rest = _share_by_rank(waited), 1 - waited.explained_frac
    if not clause and waited.explained_frac >= _SPREAD_FROM:
        clause = f": jitter, all are late in turn, no rank for more than {waited.most_frac:.0%} of it"
    clause = clause or ", and no rank stands out"
    return clause + (f"; {rest:.0%} of the waiting is not explained" if rest >= _UNEXPLAINED_FROM else "")


def _for_stages(bubble: UsualBubble) -> str:
    """`for other stages: 1F1B with 4 stages and 8 microbatches leaves each rank 18.0 ms without work`, and why more."""
    schedule = "their schedule" if bubble.schedule == UNKNOWN_SCHEDULE else bubble.schedule
    sizes = f"{bubble.stages} stages and {bubble.microbatches} microbatches"
    text = f"for other stages: {schedule} with {sizes} leaves each rank {bubble.inherent:.1f} ms without work"
    ms, why = max(
        (bubble.imbalance, "as stages are not equally long"),
        (bubble.jitter, "as microbatches are not"),
        (bubble.order, "as messages wait for those issued before them"),
    )
    if ms >= _MORE_FROM * bubble.whole:
        text += f", and {ms:.1f} ms more {why}"
    elif bubble.halves:
        text += f"; twice as many, half as large, would leave {bubble.inherent / 2:.1f} ms"
    return text


# Ranks and links that differ from others of their kind.


def _fault(fault: Fault, ms: str) -> str:
    """`Rank 5 costs 4.0 of 15.4 ms in a step (26%): it computes 4.0 ms per step longer than the others.`"""
    return f"{_fault_headline(fault, ms)}: {_fault_why(fault)}."


def _fault_headline(fault: Fault, ms: str) -> str:
    """`Rank 5 costs 4.0 ms of every 15.4 ms step`."""
    is_one = fault.late is not None and (len(fault.late.ranks) == 1 or fault.late.host is not None)
    return f"{_fault_who(fault)} cost{'s' if is_one else ''}{' up to' if fault.may_be_less else ''} {ms}"


def _fault_who(fault: Fault) -> str:
    if fault.uneven is not None:
        return "Uneven experts"
    if fault.late is None:
        return _capital(fault.links.label) if fault.links is not None else ""
    ranks = fault.late.ranks
    if fault.late.host is not None:
        return f"Host {fault.late.host} ({len(ranks)} ranks)"
    if len(ranks) == 1:
        return _capital(rank_in_words(ranks[0], fault.places))
    if len(ranks) > MOST_NAMED:
        return f"Ranks {shortened(sorted(ranks), MOST_NAMED)}"
    return f"Ranks {listed([*map(str, ranks)])}"


def _fault_why(fault: Fault) -> str:
    if fault.uneven is not None:
        return _uneven(fault.uneven)
    if fault.late is None:
        slower = 0.0 if fault.links is None else fault.links.slower_frac
        return f"the same takes {slower:.0%} longer over them than over others like them"
    ranks, excess, first = fault.late.ranks, fault.late.excess, late_in_words(fault.reasons[fault.late.ranks[0]])
    if fault.late.host is not None:
        why = f"its rank {ranks[0]} {first}"
    elif len(ranks) == 1:
        why = f"it {first}"
    elif len(ranks) > MOST_NAMED:
        why = f"rank {ranks[0]} {first}"
    else:
        shown = [rank for rank in fault.reasons if excess[rank].whole_ns / 1e6 >= _LEAST_MS]
        why = ", and ".join(f"rank {rank} {late_in_words(fault.reasons[rank])}" for rank in shown or fault.reasons)
    if fault.evened_ms is not None:
        # Another change than work spread over ranks, whose own stages keep their shares there.
        is_stage = isinstance(fault.reasons[ranks[0]].slow, HeavyStage)
        how = ": with stages of equal length" if is_stage else "; with equal shares"
        why = f"{why}{how} a step gains at most {length(fault.evened_ms)}"
    if fault.unexplained_ms is None:
        return why
    longer = f"others wait for up to {length(fault.unexplained_ms)}"
    return f"{why}; {longer}, which goes too if it holds up their CPUs, as no trace shows"


def _uneven(uneven: UnevenExperts) -> str:
    """`those of rank 3 get 2.1 times the mean tokens in every step`, or that it is another rank each time."""
    does, of = ("get", "tokens") if uneven.of_tokens else ("take", "time")
    times = f"{uneven.factor:.1f} times the mean {of}"
    if not uneven.ranks:
        return f"the busiest {does} {times}, those of other ranks in turn"
    few = [*map(str, uneven.ranks)]
    several = len(few) > 1
    who = listed(few) if len(few) <= MOST_NAMED else shortened(few, MOST_NAMED)
    whose = f"those of ranks {who}" if several else f"those of rank {who}"
    when = "in every step" if uneven.always else "in all, though not in every step"
    return f"{whose} {does} {times}{' of their groups' if several else ''} {when}"


def _unequal(unequal: Unequal) -> str:
    """`Device 0 computes for 8.9 ms of it, device 1 for 2.1 ms.`"""
    named = [f"device {device} for {length(ns / 1e6)}" for device, ns in unequal.compute_ns]
    named += [f"{counted(unequal.others, 'other')} for less"] if unequal.others else []
    who = "" if unequal.is_only_rank else f"Of rank {unequal.rank}, "
    return _capital(f"{who}{named[0].replace(' for', ' computes for', 1)} of it, {listed(named[1:])}.")


# BehindIdle time.

_WHILE = {
    "sync_ns": "in blocking calls",
    "alloc_ns": "allocating or freeing memory",
    "data_ns": "waiting for a batch",
    "operator_ns": "in operators",
    "outside_ns": "in Python outside of operators",
    "launching_ns": "launching what came next",
}
"""What CPUs did, to follow "their CPUs were", by part of idle time."""
_WITHOUT_PYTHON = {"operator_ns": "in NVTX ranges", "outside_ns": "outside of NVTX ranges"}
"""What programs in other languages were doing, of which only their ranges are known."""
_COSTS = {"no_data_wait": "waiting for batches", "no_gc": "collecting garbage"}
"""Remedies that are replayed without a GPU, and what the CPU did instead."""
_THREADS = {
    BLOCKED: "their threads were blocked for {}: asleep, or waiting for a file, a lock or another process",
    COMPUTING: "their threads computed in Python for {}",
    GARBAGE: "their threads collected garbage for {}",
    NO_CPU: "their threads waited for a CPU for {}",
}
"""What threads did while they ran no operator, where side files say it."""
_IDLING = {
    "sync-bound": ": the CPU waits for its device",
    "allocator-bound": ": the CPU allocates or frees memory",
    "input-bound": ": the next batch is not there",
    "launch-bound": ": the CPU launches work too slowly",
    "host-bound": ": the CPU launches nothing",
    QUEUED: ": what was launched begins late",
    GARBAGE: ": Python collects garbage",
}
"""How a headline about idle time ends."""
_HELD = {
    "outside_ns": "for {} outside of operators they were in {}",
    "data_ns": "for {} of waiting for a batch they were in {}",
    "idle_ns": "for {} their threads were in {}",
    HELD_RANGE: "for {} they were in {}",
}
"""What CPUs did for most of a part of idle time."""


def _idle(step: Step, idle: BehindIdle) -> str:
    """`: their CPUs were in operators (3.6 ms), launching what came next (0.9 ms); 37.1 ms come before gemm`."""
    text = _idle_reasons(step, idle.reasons)
    if idle.long is not None:
        within = "" if idle.long.operator is None or idle.long.kind == "compile" else f" in {idle.long.operator}"
        unusual = "" if idle.long.kind == "compile" else ", at least 100 times as long as usual"
        text += f"; on rank {idle.long.rank} {_named(idle.long)}{within} {_takes(step, idle.long)}{unusual}"
    if idle.before is not None:
        text += f"; {_time(step, idle.before_ms)} come before `{short(idle.before)}`"
    if idle.change is not None:
        text += f"; with {idle.change.what} a step gains {_time(step, idle.change.gain.ns / 1e6)}"
    return text


def _idle_shortly(step: Step, headline: Idling | LongCalls | None) -> str:
    """How a headline about idle time ends: `: the CPU waits for its device, most of the time in `aten::item``."""
    if headline is None:
        return ""
    if isinstance(headline, LongCalls):
        return f": {_named(headline)} {_takes(step, headline)}"
    shortly, held = _IDLING[headline.why], headline.in_range
    if headline.mostly_in is not None:
        return f"{shortly}, most of the time in {quoted(headline.mostly_in)}"
    return shortly if held is None else f"{shortly}, for {_time(step, held.ns / 1e6)} in `{held.name}`"


def _idle_reasons(step: Step, found: IdleReasons) -> str:
    said: list[str] = []
    if found.costs is not None:
        name, gain_ns = found.costs
        said.append(f"{_COSTS[name]} costs {_time(step, gain_ns / 1e6)}")
    if found.threads is not None:
        what, least_ns, most_ns = found.threads
        least, most = _time(step, least_ns / 1e6), _time(step, most_ns / 1e6)
        said.append(_THREADS[what].format(most if least == most else f"{least.removesuffix(' ms')} to {most}"))
    if found.by_host:
        said.append(f"their CPUs were {listed([*_by_host(step, found)])}")
    said += [_HELD[part].format(_time(step, held.ns / 1e6), quoted(held.name)) for part, held in found.held]
    if found.gc_ns:
        said.append(f"for {_time(step, found.gc_ns / 1e6)} of this Python collected garbage")
    if found.drained_ns:
        said.append(f"{_time(step, found.drained_ns / 1e6)} follow blocking calls that let the queue run empty")
    if found.queued_ns:
        said.append(f"for {_time(step, found.queued_ns / 1e6)} kernels were queued")
    if found.unknown_ns:
        said.append(f"for {_time(step, found.unknown_ns / 1e6)} the trace does not show why")
    return f": {'; '.join(said)}" if said else ""


def _by_host(step: Step, found: IdleReasons) -> Iterator[str]:
    doing_what = _WHILE if found.is_python else _WHILE | _WITHOUT_PYTHON
    for cause, ns in found.by_host:
        if cause == "operator_ns" and found.ranges:
            yield from (f"in `{name}` ({_time(step, range_ns / 1e6)})" for name, range_ns in found.ranges)
        else:
            yield f"{doing_what[cause]} ({_time(step, ns / 1e6)})"


def _named(calls: LongCalls) -> str:
    if calls.kind == "compile":
        return f"compiling in `{calls.name}`"
    return f"one {calls.name}" if calls.calls == 1 else f"{calls.calls:,} calls of {calls.name}"


def _takes(step: Step, calls: LongCalls) -> str:
    is_one = calls.calls == 1 or calls.kind == "compile"
    return f"take{'s' if is_one else ''} {_time(step, calls.total_ns / 1e6)}"


def _longest_calls(found: LongestCalls) -> str:
    """`25 cudaFree and 9 cudaMalloc take 250.7 ms on rank 0`."""
    calls = listed([f"{count:,} {name}" for name, count in found.calls.items()])
    take = "takes" if sum(found.calls.values()) == 1 else "take"
    return f"{calls} {take} {found.total_ns / 1e6:,.1f} ms on rank {found.rank}"


# Steps that are longer than others.

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
_FILLED = {
    "gc_ns": (
        "Python collected garbage for {time} of it",
        ("Python collects garbage for {time}", "Python collects garbage for {time}"),
    ),
    "data_ns": (
        "{cpus} waited for a batch for {time}",
        ("{cpus} waits for a batch for {time}", "{cpus} wait for a batch for {time}"),
    ),
    "compile_ns": ("{cpus} compiled for {time}", ("{cpus} compiles for {time}", "{cpus} compile for {time}")),
    "alloc_ns": (
        "{cpus} allocated or freed memory for {time}",
        ("{cpus} allocates or frees memory for {time}", "{cpus} allocate or free memory for {time}"),
    ),
    "outside_ns": (
        "{cpus} {was} in Python outside of operators for {time}",
        ("{cpus} is in Python outside of operators for {time}", "{cpus} are in Python outside of operators for {time}"),
    ),
}
"""What idle time is by which steps are longer: behind the sentence, and in a headline of one CPU or several."""


class _LongWords(NamedTuple):
    """Why steps are longer: a `clause`, what a headline says of it, and what the clause says beside the headline."""

    clause: str
    shortly: str = ""
    more: str = ""


def _long_sentence(long: LongSteps) -> str:
    """`Steps 3 and 4 take 23.0 and 113.0 ms instead of 8.0, and are not counted: ranks wait 50.8 ms longer ...`"""
    several = len(long.steps) > 1
    not_counted = "" if long.counted else ", and are not counted" if several else ", and is not counted"
    return f"{_long_what(long)}{not_counted}: {_long_why(long).clause}{_tokens(long)}."


def _repeating(long: LongSteps, period: Period) -> str:
    """`Every 4th step (13, 17) is an eval step, and takes 15 times as long as the others, 83% of the time`."""
    several = len(period.long)
    who = f"Every {ordinal(period.steps)} step" if several == 1 else f"{several} of every {period.steps} steps"
    what = f"is {a_step(long.kind).lower()}" if several == 1 else f"are {long.kind} steps"
    kind = "" if long.kind is None else f" {what}, and"
    which = ranges_of(long.steps, MOST_NAMED)
    times = fmean(long.lengths_ns) / long.usual_ns if long.usual_ns else math.inf
    longer = f"{times:,.0f} times as long as" if times >= _MANY_TIMES else f"{times:,.1f} times as long as"
    share = sum(long.lengths_ns) / long.traced_ns
    return f"{who} ({which}){kind} {'takes' if several == 1 else 'take'} {longer} the others, {share:.0%} of the time"


def _long_headline(long: LongSteps) -> str:
    """`Step 2 takes 507.8 ms instead of 309.8: rank 2 computes 198.0 ms longer`, or how much that is in all."""
    return f"{_long_what(long)}: {_long_why(long).shortly or _in_all(long)}"


def _long_because(long: LongSteps) -> str:
    """What is behind the headline, and how much that is in all, as sentences without the last full stop."""
    why, tokens = _long_why(long), _tokens(long)
    if not why.shortly:
        return f"{why.clause}{tokens}"
    more = f"{why.more}{tokens if why.more else tokens.removeprefix('; ')}"
    return f"{f'{more}. ' if more else ''}That is {_in_all(long)}"


def _long_what(long: LongSteps) -> str:
    several, lengths = len(long.steps) > 1, [f"{ns / 1e6:,.1f}" for ns in long.lengths_ns]
    shortest, longest = (f"{most(long.lengths_ns) / 1e6:,.1f}" for most in (min, max))
    said = f"{listed(lengths)} ms"
    if len(lengths) > _MOST_LENGTHS or (several and shortest == longest):
        said = f"{shortest} to {longest} ms" if shortest != longest else f"{shortest} ms each"
    numbers = listed([*map(str, long.steps)])
    who = f"Steps {numbers} take" if several else f"Step {numbers} takes"
    return f"{who} {said} instead of {long.usual_ns / 1e6:,.1f}"


def _in_all(long: LongSteps) -> str:
    return f"{long.more_ns / 1e6:,.1f} of the {long.traced_ns / 1e6:,.1f} ms that were traced"


def _tokens(long: LongSteps) -> str:
    if long.least_tokens is None:
        return ""
    least = f"{long.least_tokens:,} tokens"
    has = f"each has {least} or more" if len(long.steps) > 1 else f"it has {least}"
    return f"; {has}, others {long.others_tokens:,} at most"


def _long_why(long: LongSteps) -> _LongWords:
    """`devices are idle 134.4 ms longer; their CPUs waited for a batch for 133.0 ms, and ranks wait 20.1 ms`."""
    cause, times = long.cause, 1 if long.period is not None else len(long.steps)
    more = _ms(cause.more_ns, times)
    if cause.ranks:
        who, several = _by_themselves(cause), len(cause.ranks) > 1
        does = f"{who} {_OWN[cause.part][several].format(more)} longer"
        cpus = ("their CPUs", f"the CPUs of {who}") if several else ("its CPU", f"the CPU of {who}")
        found = _filled(cause.filled, does, " than in other steps", cpus, times, several=several)
        return found._replace(shortly=found.shortly or does)
    does = f"{_LONGER[cause.part].format(more)} longer"
    found = _filled(cause.filled, does, "", ("their CPUs", "CPUs"), times, several=True)
    also = "" if cause.calls is None else f"; {_longest_calls(cause.calls)}"
    if cause.waited is not None:
        is_said = cause.part == "exposed_wait_ns"
        also += "" if is_said else f", and ranks wait {_ms(cause.waited_ns, times)}"
        also += _share_by_rank(cause.waited)
        if cause.is_waiting and cause.waited.blamed is not None:
            found = found._replace(shortly=f"{does} for {_who(cause.waited.blamed)}")
    return found._replace(clause=f"{found.clause}{also}", more=f"{found.more or does}{also}" if also else found.more)


def _filled(filled: Filled, does: str, than: str, cpus: tuple[str, str], times: int, *, several: bool) -> _LongWords:
    """What fills the time by which somebody `does` something longer `than` else; `cpus` behind that, and by itself."""
    time, longer = _ms(filled.ns, times), f"{does}{than}"
    was, now = ("were", "are") if several else ("was", "is")
    if filled.idle is not None:
        behind, headlines = _FILLED[filled.idle]
        within = f", in {quoted(filled.function)}" if filled.function is not None else ""
        said = f"{behind.format(cpus=cpus[0], was=was, time=time)}{within}"
        shortly = headlines[several].format(cpus=cpus[1], time=time)
        return _LongWords(f"{longer}; {said}", shortly, f"{does}; {said}" if within else does)
    if filled.held is not None:
        name, around = filled.held.name, filled.held.within
        said = f"for {time} {cpus[0]} {was} in `{name}`{f', inside `{around}`' if around is not None else ''}"
        shortly = f"{cpus[1]} {now} in `{name}` for {time}"
        return _LongWords(f"{longer}; {said}", shortly, f"{does}; {said}" if around is not None else does)
    inside = f"inside `{filled.within}`"
    if filled.work is not None:
        mostly = f", mostly in `{short(filled.work)}`"
        if filled.within is None:
            return _LongWords(f"{longer}{mostly}", f"{does}{mostly}")
        return _LongWords(f"{longer}{mostly}, {inside}", f"{does}{mostly}", f"that is {inside}")
    if filled.within is not None:
        return _LongWords(f"{longer}, mostly {inside}", f"{does}, mostly {inside}")
    return _LongWords(longer)


def _ms(ns: float, times: int) -> str:
    """So much in each of the long steps, in all of them; in one, where steps repeat."""
    return length(times * ns / 1e6)


def _by_themselves(cause: Cause) -> str:
    """`rank 2`, `ranks 1 and 2`."""
    if len(cause.ranks) == 1:
        return rank_in_words(cause.ranks[0], {} if cause.place is None else {cause.ranks[0]: cause.place})
    few = [*map(str, cause.ranks)]
    return f"ranks {listed(few) if len(few) <= MOST_NAMED else shortened(few, MOST_NAMED)}"


# The run.

_ABOUT = {
    About.idle: "Devices are idle for",
    About.copies: "Copies that nothing hides take",
    About.transfers: "Exposed transfers take",
    About.waits: "Ranks wait",
    About.waits_mostly: "Exposed communication takes",
    About.moves_mostly: "Exposed communication takes",
    About.waits_at_least: "Exposed communication takes",
    About.either: "Exposed communication takes",
}
"""How a sentence on a loss begins."""
_LOOK = "see `note` in the table collectives"
_NONE_FITS = "no call of another rank fits them for certain"
_ALL_RANKS = "give the traces of all ranks"
_ADVICE = {
    "alone": ("there is the trace of one rank only", _ALL_RANKS),
    "missing": ("ranks have no trace here", _ALL_RANKS),
    "lost": ("some ranks do not show them", "capture the same steps on all ranks"),
    "unknown": (
        "no trace tells which collective they are",
        "name them with --comm, or capture with torch 2.2 or later, which writes NCCL's arguments",
    ),
    "unlinked": ("the clocks of their ranks cannot be compared there", "capture with `profiling`, which probes them"),
    "jumped": ("they begin where a clock jumped", "capture while no clock is being set"),
    "durations": ("their durations do not tell who waited in them", "capture a trace of some steps, which does"),
    "unmatched": (_NONE_FITS, _LOOK),
    "cut": (_NONE_FITS, f"capture whole steps, {_LOOK}"),
    "root": ("it is not known who needs whom in them", _LOOK),
    "": ("messages that are under way together end where their rank asks for them",),
}
"""Why calls could not be split (`unsplit.reason`), and what to do about it."""


def run_in_words(found: RunFinding) -> RunVerdict:
    """The verdict on a run that does not hang."""
    headline, first, why = _first(found)
    step, known = found.step, found.communication
    sentences = [_unequal(found.unequal)] if found.unequal is not None else []
    sentences += [_loss(loss, _with_share(step, loss.of_ms), step, known) for loss in found.rest]
    sentences += [_fault(fault, _with_share(step, fault.ms)) for fault in found.faults]
    if not known.calls:
        beside = "Communication ran on the CPUs, over gloo, and is not measured beside GPUs."
        sentences.append(beside if known.on_cpus else "No communication was traced.")
    sentences += [_long_sentence(found.long_steps)] if found.long_steps is not None else []
    long = found.long_steps
    if long is not None and long.period is not None:
        repeating = _repeating(long, long.period)
        headline, first = f"{repeating}. {headline}", f"{repeating}. {first}"
    because = " ".join([first, *sentences, *map(other_kind, found.other_kinds)])
    not_known = " ".join([*_not_known(step, known), *_unseen(step, found.gaps), *_held_up(found.held_up)])
    behind = " ".join([*([f"{_capital(why)}."] if why else []), *sentences])
    return RunVerdict(found.verdict, because, not_known, headline, behind, found.ranks)


def _first(found: RunFinding) -> tuple[str, str, str]:
    """The headline, the first sentence, and what is behind the headline as a clause, empty if nothing is."""
    step, first = found.step, found.first
    if isinstance(first, LongSteps):
        headline, why = _long_headline(first), _long_because(first)
        return headline, f"{headline}. {_capital(why)}.", why
    if isinstance(first, Fault):
        headline = _fault_headline(first, _of_every(step, first.ms, first.most_ms))
        return headline, _fault(first, _of_whole(step, first.ms, first.most_ms)), _fault_why(first)
    if isinstance(first, Priced):
        costs, gain_ms = f"{first.costs}{' up to' if first.is_bound else ''}", first.gain.ns / 1e6
        return f"{costs} {_of_every(step, gain_ms)}", f"{costs} {_of_whole(step, gain_ms)}.", ""
    if isinstance(first, Loss):
        more = _more(step, first, found.communication)
        late = first.late if found.named else None
        shortly = "" if first.idle is None else _idle_shortly(step, first.idle.headline)
        headline = f"{_ABOUT[first.about]} {_of_every(step, first.of_ms)}{shortly}"
        if late is not None:
            headline = f"Waiting for {_who(late)} takes {_of_every(step, late.frac * step.wait)}"
        why = (_who_why(late) if late is not None else "") or more.lstrip(",:; ")
        why = ". ".join(filter(None, [why, _alone(found), _no_change(found)]))
        return headline, _loss(first, _of_whole(step, first.of_ms), step, found.communication), why
    if not step.whole:
        return (
            "Nothing was measured",
            "Nothing was measured: what devices did took no time.",
            "what devices did took no time",
        )
    what = "Compute fills" if first.is_seen else "What devices did is not in the trace for"
    why = "" if first.is_seen else f"compute fills {_with_share(step, step.compute)}"
    sentence = f"{what} {_of_whole(step, first.ms)}{f'; {why}' if why else ''}."
    return f"{what} {_of_every(step, first.ms)}", sentence, why


def _alone(found: RunFinding) -> str:
    """`If only that changed, a step would gain 0.9 ms: ...`, where that is much less than others wait."""
    if found.alone_ms is None:
        return ""
    is_worth_it = found.step.share(found.alone_ms) >= MENTIONED_FROM
    gained = _time(found.step, found.alone_ms) if is_worth_it else "next to nothing"
    return f"If only that changed, a step would gain {gained}: without it, others are nearly as late"


def _no_change(found: RunFinding) -> str:
    """`No change that was played again gains more than 0.2 ms`: what it is due to is not known."""
    if found.most_gain_ms is None:
        return ""
    if found.step.share(found.most_gain_ms) < MENTIONED_FROM:
        return "No change that was played again gains 1% of it"
    return f"No change that was played again gains more than {_time(found.step, found.most_gain_ms)}"


def _loss(loss: Loss, ms: str, step: Step, known: KnownCalls) -> str:
    """`Exposed communication takes 10.3 ms (24%): 2.2 ms move data, 8.1 ms wait, ...`"""
    return f"{_ABOUT[loss.about]} {ms}{_more(step, loss, known)}."


def _more(step: Step, loss: Loss, known: KnownCalls) -> str:
    """What is said of a loss behind its time."""
    who = _share_by_rank(loss.waited)
    at_least = known.waited_at_least_ns / 1e6
    more = ""
    if loss.idle is not None:
        more = _idle(step, loss.idle)
    elif loss.about is About.waits_at_least:
        of_split = _share_by_rank(loss.waited, f"the {_time(step, step.wait)} that could be split")
        more = f", at least {_time(step, at_least)} of it waiting{of_split}"
    elif loss.about is About.either and known.split_calls:
        is_more = step.share(at_least - step.wait) >= MENTIONED_FROM
        low = f", at least {_time(step, at_least)} in all is waiting" if is_more else ""
        more = f": {', '.join(_split_parts(step))}{who}{low}"
    elif loss.about is About.waits:
        more = _for_whom(loss.waited)
    elif loss.about is About.waits_mostly:
        parts = [f"{_time(step, step.transfer)} {_moving(step)}", *_either(step), f"{_time(step, step.wait)} wait"]
        more = f": {', '.join(parts)}{_for_whom(loss.waited)}"
    elif loss.about is About.moves_mostly:
        more = f": {', '.join(_split_parts(step))}{who}"
    if loss.by_led is None:
        return more
    return f"{more}; with {loss.by_led.what} a step gains up to {_time(step, loss.by_led.gain.ns / 1e6)}"


def _moving(step: Step) -> str:
    """What exposed transfer is."""
    return "are the latency of small messages" if step.sends_little else "move data"


def _split_parts(step: Step) -> Iterator[str]:
    yield f"{_time(step, step.transfer)} {_moving(step)}"
    yield from _either(step)
    if step.share(step.wait) >= MENTIONED_FROM:
        yield f"{_time(step, step.wait)} wait for other ranks"


def _either(step: Step) -> Iterator[str]:
    if step.share(step.unsplit) >= MENTIONED_FROM:
        yield f"{_time(step, step.unsplit)} may be either"


def _unseen(step: Step, gaps: LargestGaps) -> Iterator[str]:
    if step.share(gaps.unseen_ns / 1e6) >= MENTIONED_FROM:
        yield (
            f"For {_time(step, gaps.unseen_ns / 1e6)} at the beginning a CPU waited in {gaps.waiting_in}, and nothing "
            "that was launched began: probably both waited for work from before the trace, which is not in it."
        )


def _held_up(steps: Sequence[tuple[int, float]]) -> Iterator[str]:
    for number, ms in steps:
        yield (
            f"For {ms:,.1f} ms step {number} waited for work from before the trace, which is not in it; that time is "
            "left out."
        )


def _advice(why: str) -> str:
    """What to do about a kind of reason: `some ranks do not show them: capture the same steps on all ranks`."""
    return ": ".join(_ADVICE[why])


def _not_known(step: Step, known: KnownCalls) -> Iterator[str]:
    """Yield sentences on calls that could not be split, and why, if that matters, and on ranks without a trace."""
    lacks_traces = known.why in NO_TRACE
    matters = step.share(step.unsplit) >= MENTIONED_FROM
    who = f"{known.seen_ranks} of {known.world_size} ranks" if known.some_missing else counted(known.seen_ranks, "rank")
    few_traces = f"Only {who} {'has' if known.seen_ranks == 1 else 'have'} a trace"
    if matters and not known.split_calls:
        if lacks_traces:
            not_told_apart = "waiting and transfer cannot be told apart"
            known_of_it = "only the least time waited is known" if known.waited_at_least_ns else not_told_apart
            yield f"{few_traces}, so {known_of_it}: {_ALL_RANKS}."
        else:
            what = f"None of {counted(known.calls, 'call')} could be split into waiting and transfer"
            yield f"{what}, because {_advice(known.why)}."
        if (known.beyond_fastest or 0.0) >= NAMED_FROM and not known.waited_at_least_ns:
            yield (
                f"{known.beyond_fastest:.0%} of the calls' time is more than the fastest similar call takes: "
                "probably waiting."
            )
        if known.fastest is not None and not known.waited_at_least_ns:
            of = f"{known.fastest.collective} of {bytes_text(known.fastest.size_bytes)}"
            yield f"Waiting included, the fastest {of} reaches {known.fastest.gb_per_s:.3g} GB/s (bus bandwidth)."
    elif matters:
        what = f"{_time(step, step.unsplit)} of exposed communication could not be split into waiting and transfer"
        yield f"{few_traces}, so {what}: {_ALL_RANKS}." if lacks_traces else f"{what}, because {_advice(known.why)}."
    if known.some_missing and not (matters and lacks_traces):
        yield f"{few_traces}."


def other_kind(found: OtherKind) -> str:
    """`A decode step takes 12.0 ms: 3.0 ms exposed communication, 1.0 ms idle (medians, n = 40).`"""
    parts = sorted(((found.comm_ms, "exposed communication"), (found.idle_ms, "idle")), reverse=True)
    said = ", ".join(f"{length(ms)} {what}" for ms, what in parts if ms > MENTIONED_FROM * found.whole_ms)
    named = "A step of no known kind" if found.kind is None else a_step(found.kind)
    medians = "medians, " if found.steps > 1 else ""
    return f"{named} takes {length(found.whole_ms)}{said and f': {said}'} ({medians}n = {found.steps:,})."


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
        issued = _capital(f"{what} was issued on all {counted(len(waiting), 'rank')} and did not end on any")
        return RunVerdict("hang", f"{issued} within {longest}.", "", issued, f"Not within {longest}.")
    missing = row["missing"].split()
    who = f"Rank{'s' if missing[1:] else ''} {shortened(missing, _MOST_HUNG)}"
    wait = f"{len(waiting)} ranks wait" if waiting[1:] else f"rank {waiting[0]} waits" if waiting else "nobody waits"
    doubt = "" if row["waited_ns"] >= _SURELY_HANGS_NS else "The capture may also have ended in a pause."
    headline, why = f"{who} never issued {what}", f"{wait} for it for {longest}."
    return RunVerdict("hang", f"{headline}; {why}", doubt, headline, _capital(why), tuple(map(int, missing)))


def without_gpu(step: Step, listed_gpus: Sequence[str]) -> RunVerdict:
    """The verdict on a run in which only CPUs were active, though its traces list these GPUs."""
    names = listed(sorted({name for name in listed_gpus if name}))
    known = f", {names}" if names else ""
    headline = f"No GPU activity was traced, though the trace lists {counted(len(listed_gpus), 'GPU')}{known}"
    why = f"Operators on the CPUs fill {_of_whole(step, step.compute)}."
    unknown = "what the GPU did, if the run used it: capture with ProfilerActivity.CUDA, without another profiler."
    return RunVerdict("inconclusive", f"{headline}. {why}", unknown, headline, why)


# Collectives of one size, and runs of which only durations are known.


def size_in_words(verdict: str, row: Row, latency_us: float | None, why: str, slowed: float | None) -> str:
    """A clause on the verdict on calls of one size; `why` is the kind of reason why too few could be split, if so.

    Compute that hides communication takes `slowed` times as long, if that is known.
    """
    if verdict == "inconclusive":
        split = f"only {row['split_calls']} of {row['calls']} calls could be split into wait and transfer"
        return f"{split}, because {_advice(why)}"
    if verdict == "hidden":
        meanwhile = "" if slowed is None else f", which takes {slowed:.2f} times as long beside communication"
        return f"{row['hidden_frac']:.0%} of its time lies behind compute{meanwhile}"
    if verdict == "latency-bound":
        return _latency(row, latency_us)
    if verdict == "skew-bound":
        return f"{row['exposed_wait_frac']:.0%} of its exposed time is waiting for other ranks"
    return f"{1 - (row['exposed_wait_frac'] or 0):.0%} of its exposed time moves data"


def durations_in_words(verdict: str, row: Row, waiting: float | None, latency_us: float | None, why: str) -> str:
    """The same where only durations are known, of which `waiting` is that part."""
    if verdict == "inconclusive" or waiting is None:
        return f"only {row['split_calls']} of {row['calls']} calls could be split, because {_advice(why)}"
    if verdict == "latency-bound":
        return _latency(row, latency_us)
    if verdict == "skew-bound":
        return f"{waiting:.0%} of its time is waiting for other ranks"
    return f"{1 - waiting:.0%} of its time moves data"


def _latency(row: Row, latency_us: float | None) -> str:
    return f"moving it takes {row['transfer_us']:.0f} us, of which {latency_us:.0f} us are latency"


def run_of_durations_in_words(found: Durations) -> RunVerdict:
    """The verdict on a run of which only durations are known."""
    if found.waiting is None:
        return RunVerdict(found.verdict, f"no call could be split into wait and transfer, because {_advice(found.why)}")
    text = f"{1 - found.waiting:.0%} of the time in collectives moves data, {found.waiting:.0%} is waiting"
    is_skew = found.waiting >= SKEW_FROM
    text += _for_whom(found.waited) if is_skew else _share_by_rank(found.waited)
    if found.unsplit >= MENTIONED_FROM:
        text += f"; besides, {found.unsplit:.0%} of all calls' time could not be split, because {_advice(found.why)}"
    if found.verdict != "inconclusive":
        text += "; how much of it compute hid, these files do not tell"
    return RunVerdict(found.verdict, text)
