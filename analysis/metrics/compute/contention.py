"""What kernels take longer while their device communicates: the same kernel beside communication, and without.

The same is: kernel, its place in the call of its operator, operator, shapes and types of the inputs, and how the kernel
was launched. Without shapes a name stands for different work, and its times say nothing of communication. Definitions:
docs/metrics/contention.md.

Sources: intervals of a median by order statistics, David and Nagaraja, Order Statistics, 7.1; how intervals of parts
make that of a sum or ratio, Zou and Donner 2008, Construction of confidence limits about effect measures (MOVER).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.arrays import Floats
from ...core.intervals import Times, covered, spans
from ...core.kinds import is_copy
from ...core.schema import Row, bare, combined, flags_of_texts, grouped, records, text_codes
from .categories import category
from .shapes import formula_of
from .shapes_ranks import weighted_median

_BESIDE = 0.9
"""A kernel is beside communication that covers so much of it. What is covered less is neither: see the page."""
_SPREAD = 0.5
"""(P90 - P10) / median of the times without communication, beyond which these are not of the same work."""
_LEAST_CALLS = 3
_LEAST_PAIRED = 0.1
"""Of the time of kernels beside communication: what is known of less says little of what hiding costs a rank."""
_MOST_TIMES = 64
"""So many times of a kernel stand for all of them, evenly spaced in their order, so that they are few to send."""
_WHOLE_US = 1000
"""Old traces have times to a microsecond."""
_OUTSIDE = 0.01
"""Probability that an interval does not hold the true value."""
_STUDENT = {3: 9.925, 4: 5.841, 5: 4.604, 6: 4.032, 7: 3.707}
"""Student's t for 99 %, by the number of times: of fewer than 8, the shortest and longest are no such interval."""
_SAME = ["kernel", "operator", "inputs", "blocks_per_sm", "occupancy_frac", "nth"]

WITHOUT_SHAPES = "no operator with shapes launched them; capture with record_shapes=True"
NEVER_ALONE = "fewer than three of the same ran without communication"
TOO_FEW = "fewer than three of the same ran beside communication"
UNNAMED = "communication"
"""A kind of collective that the trace does not say."""
DIFFERING = "without communication they differ by more than half of the median, so that they are not the same work"
FASTER = "they are faster beside communication, so that they are not the same work"


class Pair(NamedTuple):
    """A kernel of a rank beside a kind of collective, and what it takes without; of `reason`, why that is not known.

    `beside_ns` is the sum of `beside_calls`. Medians stand between the ends of their intervals.
    """

    rank: int
    collective: str | None
    category: str
    kernel: str
    operator: str | None
    inputs: str | None
    dtype: str | None
    beside_ns: int
    beside_calls: int
    alone_calls: int = 0
    beside: tuple[float, float, float] = (0.0, 0.0, 0.0)
    alone: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pooled: bool = False
    reason: str | None = None

    @property
    def extra_ns(self) -> float:
        """How much longer all calls took than without communication."""
        return self.beside_ns - self.beside_calls * self.alone[1]


def beside_communication(work: pd.DataFrame, calls: pd.DataFrame) -> tuple[Times, NDArray[Any]]:
    """How much of each row of `work` communication of its device covers, in ns; and the kind that covers most of that.

    `work` is from `compute_work`; `calls` are those of the run. The kind is None where nothing is covered, or the trace
    does not say it. On CPUs nothing counts as covered: what communicates there are threads.
    """
    beside = np.zeros(len(work), dtype=np.int64)
    kinds: NDArray[Any] = np.full(len(work), None, dtype=object)
    start = bare(work["start_ns"])
    end = start + bare(work["dur_ns"])
    places = work.groupby(["rank", "device"], sort=False).indices
    for key, own in grouped(calls, ["rank", "device"]):
        if key[1] == "cpu" or (rows := places.get(key)) is None:
            continue
        beside[rows] = covered(_spans(own), start[rows], end[rows])
        most = np.zeros(len(rows), dtype=np.int64)
        for kind, of_kind in own.groupby("collective", sort=True):
            by_kind = covered(_spans(of_kind), start[rows], end[rows])
            kinds[rows[by_kind > most]] = kind
            most = np.maximum(most, by_kind)
    return beside, kinds


def company(work: pd.DataFrame, calls: pd.DataFrame) -> pd.Series[str]:
    """What each row of `work` runs beside: a kind of collective that covers 90 %, empty for nothing, NA for less."""
    beside, kinds = beside_communication(work, calls)
    kinds[pd.isna(kinds)] = UNNAMED
    kinds[beside < _BESIDE * bare(work["dur_ns"])] = None
    kinds[beside == 0] = ""
    return pd.Series(kinds, work.index, dtype="string")


def _spans(calls: pd.DataFrame) -> Any:
    start = bare(calls["start_ns"])
    return spans(start, start + bare(calls["dur_ns"]))


def times_with_and_without(work: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, kernel that is the same, and kind of collective beside which it ran; NA for without.

    `is_beside` says which, `inputs` are shapes and types, NA where there are none, `times_ns` an array of up to 64
    times in order, `bare_ns` one of the parts of these that nothing covers. What runs without communication, and has no
    shapes, is left out.
    """
    kernels = work[flags_of_texts(work["kernel"], lambda name: not is_copy(name)) & (bare(work["dur_ns"]) > 0)]
    beside, kinds = beside_communication(kernels, calls)
    took = bare(kernels["dur_ns"])
    nth = kernels.groupby(["rank", "call", "kernel"], sort=False).cumcount().to_numpy()
    inputs, texts = text_codes(kernels["inputs"])
    is_beside = beside >= _BESIDE * took
    is_known = np.array([*(_shapes(text) is not None for text in texts), False], dtype=bool)[inputs]
    chosen = np.flatnonzero(is_beside | ((beside == 0) & is_known))
    kernels, is_beside, took, beside = kernels.iloc[chosen], is_beside[chosen], took[chosen], beside[chosen]
    named = kernels.assign(
        inputs=pd.array([*map(_shapes, texts)], dtype="string").take(inputs[chosen], allow_fill=True),
        collective=pd.Series(kinds[chosen], kernels.index, dtype="string"),
        is_beside=is_beside,
        nth=np.where(is_known, nth, 0)[chosen],
    )
    numbers = [bare(named["rank"]), bare(named["nth"]), is_beside.astype(np.int64)]
    rounded = [pd.factorize(named[name].to_numpy(np.float64, na_value=-1))[0] for name in _SAME[3:5]]
    codes = [text_codes(named[name])[0] for name in ("kernel", "operator", "inputs", "collective")]
    number, first = combined([*numbers, *rounded, *codes])
    order = np.lexsort((took, number))
    bounds = np.searchsorted(number[order], np.arange(len(first) + 1))
    times, uncovered = (np.empty(len(first), dtype=object) for _ in range(2))
    for place in range(len(first)):
        rows = _sampled(order[bounds[place] : bounds[place + 1]])
        times[place], uncovered[place] = took[rows], took[rows] - beside[rows]
    found = named[["rank", *_SAME, "collective", "is_beside"]].iloc[first].reset_index(drop=True)
    return found.assign(
        calls=np.diff(bounds),
        total_ns=np.bincount(number, took, len(first)).astype(np.int64),
        times_ns=times,
        bare_ns=uncovered,
    )


@lru_cache(maxsize=1 << 14)
def _shapes(inputs: str) -> str | None:
    """Shapes and types of inputs as JSON, without values; None where no shape is known."""
    if not formula_of("", inputs).shapes:
        return None
    dims, types, _ = msgspec.json.decode(inputs)
    return msgspec.json.encode([dims, types, None]).decode()


def _sampled(ordered: NDArray[Any]) -> NDArray[Any]:
    """What is in order of times, or as many as stand for all."""
    if len(ordered) <= _MOST_TIMES:
        return ordered
    kept: NDArray[Any] = ordered.take(np.linspace(0, len(ordered) - 1, _MOST_TIMES).round().astype(np.int64))
    return kept


def beside_and_alone(times: pd.DataFrame) -> list[Pair]:
    """Every kernel that ran beside communication, with its like without.

    `times` are `times_with_and_without` of all ranks.
    """
    same, _ = combined(
        [*(text_codes(times[name])[0] for name in _SAME[:3]), *(pd.factorize(times[name])[0] for name in _SAME[3:])]
    )
    is_beside = bare(times["is_beside"]).astype(bool)
    alone: dict[int, dict[int, tuple[int, Times]]] = {}
    columns = (bare(times[name])[~is_beside].tolist() for name in ("rank", "calls", "times_ns"))
    for number, rank, calls, own in zip(same[~is_beside].tolist(), *columns, strict=True):
        alone.setdefault(number, {})[rank] = (calls, own)
    never_beside = {number: alone[number] for number in alone.keys() - set(same[is_beside].tolist())}
    speeds = _speeds(never_beside.values())
    numbers = same[is_beside].tolist()
    rows = records(times[is_beside].drop(columns=["times_ns", "bare_ns"]))
    took = zip(*(bare(times[name])[is_beside] for name in ("times_ns", "bare_ns")), strict=True)
    return [
        _pair(row, _as_on(row["rank"], alone.get(number, {}), speeds), *own)
        for row, number, own in zip(rows, numbers, took, strict=True)
    ]


def _speeds(kernels: Iterable[Mapping[int, tuple[int, Times]]]) -> dict[int, float]:
    """How much longer each rank takes than the median of ranks, at kernels that no rank runs beside communication."""
    over: dict[int, list[tuple[float, float]]] = {}
    for ranks in kernels:
        medians = {rank: float(np.median(own)) for rank, (calls, own) in ranks.items() if calls >= _LEAST_CALLS}
        if len(medians) > 1:
            usual = float(np.median([*medians.values()]))
            for rank, took in medians.items():
                over.setdefault(rank, []).append((took / usual, usual * ranks[rank][0]))
    return {rank: weighted_median(*map(np.array, zip(*own, strict=True))) for rank, own in over.items()}


class _Alone(NamedTuple):
    """Times of a kernel without communication, in order, of how many calls, and whether other ranks ran these."""

    times: Floats
    calls: int
    pooled: bool


def _as_on(rank: int, ranks: Mapping[int, tuple[int, Times]], speeds: Mapping[int, float]) -> _Alone:
    """What a kernel takes on a rank: by its own calls, or if these are too few, by those of all ranks at its speed."""
    calls, own = ranks.get(rank, (0, np.zeros(0)))
    if calls >= _LEAST_CALLS or rank not in speeds:
        return _Alone(own.astype(np.float64), calls, pooled=False)
    others = {other: found for other, found in ranks.items() if other in speeds}
    if not others:
        return _Alone(own.astype(np.float64), calls, pooled=False)
    times = [own * (speeds[rank] / speeds[other]) for other, (_, own) in others.items()]
    return _Alone(_sampled(np.sort(np.concatenate(times))), sum(calls for calls, _ in others.values()), pooled=True)


def _pair(row: Row, alone: _Alone, times: Times, uncovered: Times) -> Pair:
    inputs = row["inputs"]
    formula = formula_of(row["operator"], inputs) if inputs is not None else None
    pair = Pair(
        rank=row["rank"],
        collective=row["collective"],
        category=category(row["operator"], row["kernel"]),
        kernel=row["kernel"],
        operator=row["operator"],
        inputs=None if formula is None else formula.shapes,
        dtype=None if formula is None else formula.dtype,
        beside_ns=row["total_ns"],
        beside_calls=row["calls"],
    )
    if inputs is None:
        return pair._replace(reason=WITHOUT_SHAPES)
    if alone.calls < _LEAST_CALLS:
        return pair._replace(reason=NEVER_ALONE)
    if row["calls"] < _LEAST_CALLS:
        return pair._replace(reason=TOO_FEW)
    low, middle, high = np.quantile(alone.times, (0.1, 0.5, 0.9))
    if high - low > _SPREAD * middle:
        return pair._replace(reason=DIFFERING)
    grain = 0 if (times % _WHOLE_US).any() else _WHOLE_US
    pair = pair._replace(
        alone_calls=alone.calls,
        beside=median_between(_wholly_beside(times, uncovered, middle), grain),
        alone=median_between(alone.times, grain),
        pooled=alone.pooled,
    )
    return pair._replace(reason=FASTER) if _slowdown([pair])[2] < 1 else pair


def _wholly_beside(times: Times, uncovered: Times, alone: float) -> Floats:
    """What kernels would have taken, had communication covered all of them, in order.

    What it does not cover runs as without: so much of `alone` is over, and the rest takes the covered time.
    """
    rest = np.maximum(alone - uncovered, alone / 2)
    return np.sort((times - uncovered) * alone / rest)


def median_between(times: NDArray[Any], grain_ns: int = 0) -> tuple[float, float, float]:
    """The median of times in order, between the ends of its interval of 99 %; there are three or more.

    Times may be off by `grain_ns`. Of 8 and more times these are two of them, whatever their distribution; of fewer, by
    Student's t of their logarithms, and by how much less a median is certain than a mean of as many.
    """
    count, middle = len(times), float(np.median(times))
    if count in _STUDENT:
        over = math.exp(_STUDENT[count] * math.sqrt(math.pi / 2 / count) * float(np.std(np.log(times), ddof=1)))
        low, high = middle / over, middle * over
    else:
        nth = _nth_of(count)
        low, high = float(times[nth]), float(times[count - 1 - nth])
    off = 1 + grain_ns / middle
    return low / off, middle, high * off


@lru_cache(maxsize=_MOST_TIMES)
def _nth_of(count: int) -> int:
    """So many of the shortest, and of the longest, of `count` times are outside of the interval of their median."""
    below = nth = 0
    while 2 * (below := below + math.comb(count, nth)) <= _OUTSIDE * 2**count:
        nth += 1
    return nth - 1


def _slowdown(pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """Time beside communication over that without, at their medians, between the ends of its interval."""
    beside = _sum((pair.beside_calls, pair.beside) for pair in pairs)
    alone = _sum((pair.beside_calls, pair.alone) for pair in pairs)
    ratio = beside[1] / alone[1]
    down = math.hypot(math.log(beside[1] / beside[0]), math.log(alone[2] / alone[1]))
    up = math.hypot(math.log(beside[2] / beside[1]), math.log(alone[1] / alone[0]))
    return ratio * math.exp(-down), ratio, ratio * math.exp(up)


def _sum(parts: Iterable[tuple[int, tuple[float, float, float]]]) -> tuple[float, float, float]:
    """So many times each of these, between the ends of their interval: as far out as they are together, squared."""
    values = np.array([[times * value for value in values] for times, values in parts])
    low, middle, high = values.T
    total = float(middle.sum())
    return total - float(np.hypot.reduce(middle - low)), total, total + float(np.hypot.reduce(high - middle))


def contention_rows(pairs: Iterable[Pair], keys: Sequence[str]) -> list[Row]:
    """One row per combination of these fields of pairs: those of a rank that cost most come first."""

    def of(pair: Pair) -> tuple[Any, ...]:
        return tuple(getattr(pair, key) for key in keys)

    ordered = sorted(pairs, key=lambda pair: tuple((value is None, value) for value in of(pair)))
    rows = [dict(zip(keys, key, strict=True)) | _row([*same]) for key, same in groupby(ordered, of)]
    rows.sort(key=lambda row: (row["rank"], -(row["extra_ns"] or 0), -row["beside_ns"]))
    return rows


def _row(pairs: list[Pair]) -> Row:
    paired = [pair for pair in pairs if pair.reason is None]
    row: Row = {
        "beside_ns": sum(pair.beside_ns for pair in pairs),
        "paired_ns": sum(pair.beside_ns for pair in paired),
        "extra_ns": None,
        "alone_calls": sum(pair.alone_calls for pair in paired),
        "beside_calls": sum(pair.beside_calls for pair in paired),
        "note": _note([pair for pair in pairs if pair.reason is not None]),
    }
    if paired:
        low, ratio, high = _slowdown(paired)
        row |= {"extra_ns": round(sum(pair.extra_ns for pair in paired)), "pooled": any(one.pooled for one in paired)}
        row |= {"slowdown_low": low, "slowdown": ratio, "slowdown_high": high}
    return row


def _note(unpaired: list[Pair]) -> str | None:
    """Why most of the time without a like has none."""
    lost: dict[str, int] = {}
    for pair in unpaired:
        assert pair.reason is not None
        lost[pair.reason] = lost.get(pair.reason, 0) + pair.beside_ns
    return max(lost, key=lambda reason: (lost[reason], reason), default=None)


class Slowdown(NamedTuple):
    """How many times as long compute of a rank takes beside communication, between the ends of its interval.

    Each is 1 or more: what communication hides for free is hidden for free, and no more.
    """

    low: float
    usual: float
    high: float


def slowdown_of_ranks(pairs: Iterable[Pair]) -> dict[int, Slowdown]:
    """What each rank pays for hiding communication, over all of its kernels, where enough of these are known."""
    of_rank: dict[int, list[Pair]] = {}
    for pair in pairs:
        of_rank.setdefault(pair.rank, []).append(pair)
    found = {}
    for rank, own in sorted(of_rank.items()):
        known = [pair for pair in own if pair.reason is None]
        beside_ns, known_ns = (sum(pair.beside_ns for pair in some) for some in (own, known))
        if known and known_ns >= _LEAST_PAIRED * beside_ns:
            found[rank] = Slowdown(*(max(value, 1.0) for value in _slowdown(known)))
    return found


def usual_slowdown(slowdowns: Mapping[int, Slowdown], ranks: Collection[int]) -> float | None:
    """Mean over these ranks; None where that of any of them is not known."""
    if not ranks or not slowdowns.keys() >= set(ranks):
        return None
    return sum(slowdowns[rank].usual for rank in ranks) / len(ranks)


class Hiding(NamedTuple):
    """Communication that is hidden in a step, mean over devices; and what of it is gained, net of slower compute."""

    hidden_ns: float
    net_ns: float


def hiding_of(breakdown: pd.DataFrame, slowdowns: Mapping[int, Slowdown]) -> Hiding | None:
    """That of rows by step of `breakdown_steps`; None where a rank hides some, and what that costs it is not known."""
    net = with_net(breakdown.assign(hidden_ns=breakdown["overlap_ns"]), slowdowns)
    if not len(net) or net["hidden_net_ns"].isna().any():
        return None
    of_step = net.groupby("step")[["hidden_ns", "hidden_net_ns"]].mean().mean()
    return Hiding(*of_step.tolist())


def with_net(sums: pd.DataFrame, slowdowns: Mapping[int, Slowdown]) -> pd.DataFrame:
    """Add `hidden_net_ns` to sums of a rank: `hidden_ns` less what compute took longer for it; NA if that is unknown.

    In a hidden ms, compute that takes `s` times as long does what takes 1/s ms alone.
    """
    usual = sums["rank"].map({rank: each.usual for rank, each in slowdowns.items()}).astype("Float64")
    hidden = sums["hidden_ns"].astype("Float64")
    # Where nothing is hidden, nothing was slowed down.
    return sums.assign(hidden_net_ns=(hidden / usual).mask((hidden == 0).fillna(False), 0.0))
