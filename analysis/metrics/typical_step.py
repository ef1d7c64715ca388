"""Length of each traced step, which steps count, and what a typical step consists of.

Windows follow the device: the first one may have lost its beginning, and the last one ends with its last activity, so
that it holds the drain after the last launch or lacks the idle time before the next step. A mean over all of them was
12 to 14 % off in real traces. And a checkpoint in one of six steps is an event, not a sixth of it in every step. So
the first screen and the verdict count whole steps that are like most others, and name those that they leave out.
Steps of several kinds, such as prefill and decode, are unlike each other: those of the kind count that takes most time.
Where steps repeat after several of them (`periods`), whole periods count, long steps and all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from ...common.wording import counted, ranks_in_words
from ..core.frames import pd
from ..core.schema import Row, grouped, records
from ..core.step_names import NOT_TRAINING
from .periods import Period, StepWork, may_repeat, period_of

STEP_PARTS = {
    "compute_alone_ns": "compute alone",
    "overlap_ns": "compute and communication",
    "exposed_transfer_ns": "exposed transfer",
    "exposed_wait_ns": "exposed wait",
    "exposed_unsplit_ns": "exposed, not split",
    "exposed_memory_ns": "exposed copies",
    "idle_ns": "idle",
}
"""What a step consists of: columns of `steps`, and what people call them. They add up to its length."""
_EDGE = 1.15
"""A window of the first or last step that differs from its CPU step by this factor more than the others do is cut."""
_LIKE = 1.05
"""A window is like another one if it is longer by this factor at most."""
_UNSHOWN = "unshown"
EDGES = ("beginning", "drain", "end", _UNSHOWN)
"""Reasons to leave out a step whose window is not its own, or lacks something on a rank."""
_IDLE = "idle"
"""A kind of step without requests, on one rank where each serves its own, or on all."""
_MIXED = "mixed"
"""A kind of step in which some requests are in prefill, others decode."""
USUALLY_BESIDE = (*NOT_TRAINING, _IDLE)
"""Kinds of steps that no run is about, whatever time they take, if it has others."""
_CHECKPOINT = "checkpoint"
"""A kind of step that only some ranks may mark, whereas the others wait for them."""
_MANY_NS = 100_000
"""Times of as much are said in ms, shorter ones in us."""
_ALIKE = 0.25
"""Steps that differ from the median by at most this part of it are alike."""


_NOTES = {
    "beginning": "its start was not traced: {0:,.1f} {2} on the devices, {1:,.1f} on the CPUs",
    "drain": "its window holds what was still queued at the end: {0:,.1f} {2} on the devices, {1:,.1f} on the CPUs",
    "end": "its window ends early, with its last activity: {0:,.1f} {2} on the devices, {1:,.1f} on the CPUs",
    _UNSHOWN: "the trace of {3} lacks what was launched in it",
    "long": "it takes {0:,.1f} {2}, longer than most",
    "short": "it takes {0:,.1f} {2}, less than most",
    "kind": "steps of another kind count",
    "period": "only whole periods of {4} steps count",
    "other": "not all runs that it is compared with count a step of its number",
}


class CycleSteps(NamedTuple):
    """The steps of a rank in one profiling cycle, ascending, and their times on the CPU, in ns."""

    rank: int
    steps: tuple[int, ...]
    cpu_ns: dict[int, int]


class TypicalStep(NamedTuple):
    """Means over the devices and the counted steps.

    Without steps it is the whole window: then `steps` is empty. `kind` is that of all of them, None if it is not known.
    `parts` has `window_ns` and the columns in STEP_PARTS, in ns; `lengths_ns` the length of each counted step;
    `windows` is how many windows of devices it is a mean of. If steps `differ`, no length is that of most steps, and
    all whole ones count. Where steps repeat after a `period`, these are whole ones of it.
    """

    steps: tuple[int, ...]
    kind: str | None
    parts: dict[str, float]
    lengths_ns: tuple[int, ...]
    windows: int
    differ: bool
    period: Period | None = None


def rows_of_steps(
    breakdown_steps: pd.DataFrame,
    cycles: Iterable[CycleSteps],
    step_marks: pd.DataFrame,
    replicas: Replicas,
    unshown: Mapping[int, Collection[int]],
    about: str | None = None,
    period: Period | None = None,
    unprofiled_ns: Mapping[int, float] | None = None,
    compared: Collection[int] | None = None,
) -> list[Row]:
    """Rows of the table `steps`, one per step, from `breakdown_steps` with a row per rank, device and step.

    `step_marks` give their kinds, of all `replicas` together; in steps that are `unshown`, a rank launched kernels that
    its trace lacks. Steps are compared with those of their kind. Those of the kind `about` count; if there are none, of
    the kind that takes most time. Where steps repeat, whole periods of them count, of all kinds: after `period`, where
    that is known of a longer part of the run, or as lengths of `unprofiled_ns` do, by step. Of those
    that count, only the `compared` do, if given.
    """
    if not len(breakdown_steps):
        return []
    listed = list(cycles)
    cpu_ns = {(each.rank, step): ns for each in listed for step, ns in each.cpu_ns.items()}
    firsts = {(each.rank, each.steps[0]) for each in listed if each.steps}
    lasts = {(each.rank, each.steps[-1]) for each in listed if each.steps}
    said = _said_of_steps(step_marks, replicas)
    unseen_ns = step_marks.groupby("step")["unseen_ns"].max().dropna().to_dict()
    rows: list[Row] = []
    for (step,), devices in grouped(with_parts(breakdown_steps), ["step"]):
        keys = [(rank, step) for rank in devices["rank"]]
        on_cpus = [cpu_ns[key] for key in keys if key in cpu_ns]
        parts = {part: round(float(devices[part].mean())) for part in STEP_PARTS}
        rows.append({
            "step": step,
            **said.get(step, _NOTHING_SAID),
            "unseen_ns": unseen_ns.get(step),
            "devices": len(devices),
            "window_ns": sum(parts.values()),
            **parts,
            "shortest_ns": int(devices["window_ns"].min()),
            "longest_ns": int(devices["window_ns"].max()),
            "cpu_ns": round(sum(on_cpus) / len(on_cpus)) if on_cpus else None,
            "is_first": any(key in firsts for key in keys),
            "is_last": any(key in lasts for key in keys),
            "period": None,
            "is_long": None,
        })  # fmt: skip
    kinds: dict[str | None, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row)
    for alike in kinds.values():
        for row in alike:
            lacks = any(row["step"] in steps for steps in unshown.values())
            row["left_out"] = _UNSHOWN if lacks else _edge(row, [other for other in alike if other is not row])
    if about is not None or not may_repeat(kinds):
        period = None
    else:
        period = period or _period(rows, breakdown_steps) or _period_of_lengths(unprofiled_ns or {})
        period = _whole_periods(rows, period)
    if period is not None:
        _leave_out_in_part(rows, period)
    else:
        _leave_out_other_kinds(kinds, about)
    for row in rows:
        if compared is not None and row["left_out"] is None and row["step"] not in compared:
            row["left_out"] = "other"
    for row in rows:
        unit, unit_ns = ("ms", 1e6) if row["window_ns"] >= _MANY_NS else ("us", 1e3)
        lacking = ranks_in_words(rank for rank, steps in unshown.items() if row["step"] in steps)
        took = (row["window_ns"] / unit_ns, (row["cpu_ns"] or 0) / unit_ns, unit, lacking, row["period"])
        row["note"] = None if row["left_out"] is None else _NOTES[row["left_out"]].format(*took)
        if row["left_out"] in ("long", "short") and row["tokens"] is not None:
            row["note"] += f", and has {counted(row['tokens'], 'token')}"
        row["note"] = "; ".join(filter(None, (row["note"], without_unseen(row["unseen_ns"])))) or None
    return rows


def without_unseen(unseen_ns: int | None) -> str | None:
    """`without the 493.3 ms in which it waited for work from before the trace`; None for a step that did not."""
    if unseen_ns is None:
        return None
    return f"without the {unseen_ns / 1e6:,.1f} ms in which it waited for work from before the trace"


_NOTHING_SAID = {"kind": None, "requests": None, "tokens": None}


class Replicas(NamedTuple):
    """The replica of each rank of an engine that serves requests, and if all ranks of the job have a trace.

    `of_rank` is None if it is not known whose requests the ranks serve, and has no ranks that serve none.
    """

    of_rank: Mapping[int, int] | None
    are_all: bool


def _said_of_steps(step_marks: pd.DataFrame, replicas: Replicas) -> dict[int, Row]:
    """What annotations say of each step: the replicas that are not idle, but a checkpoint of any rank.

    Requests and tokens are those of all replicas together; if some have no trace, or none of the step, how many there
    are is not known.
    Where replicas are busy with different things, the step is mixed.
    """
    said: dict[int, Row] = {}
    every = set((replicas.of_rank or {0: 0}).values())
    for (step,), marks in grouped(step_marks, ["step"]):
        of_replica: dict[int, list[Row]] = {}
        for row in records(marks):
            of_replica.setdefault((replicas.of_rank or {}).get(row["rank"], 0), []).append(row)
        own = [_said_of_replica(rows) for rows in of_replica.values()]
        busy = [one for one in own if one["kind"] != _IDLE] or own
        kinds = {one["kind"] for one in busy}
        said[step] = {name: _sum([one[name] for one in busy]) for name in ("requests", "tokens")}
        if (len(own) > 1 and not replicas.are_all) or not every <= set(of_replica):
            said[step] = dict(_NOTHING_SAID)
        mixed = None if None in kinds else _MIXED
        said[step]["kind"] = kinds.pop() if len(kinds) == 1 else _CHECKPOINT if _CHECKPOINT in kinds else mixed
    return said


def _said_of_replica(rows: list[Row]) -> Row:
    """What ranks say that serve the same requests; None of what they contradict each other in."""
    kinds = {row["kind"] for row in rows} - {None}
    working = kinds - {_IDLE} or kinds
    numbers = {name: {row[name] for row in rows} - {None} for name in ("requests", "tokens")}
    return {
        "kind": _CHECKPOINT if _CHECKPOINT in kinds else working.pop() if len(working) == 1 else None,
        **{name: values.pop() if len(values) == 1 else None for name, values in numbers.items()},
    }


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def mean_step(steps: pd.DataFrame, breakdown: pd.DataFrame) -> TypicalStep:
    """The typical step, from the tables `steps` and `breakdown`; the latter needs at least one row."""
    whole = steps[steps["left_out"].isna()]
    if not len(whole):
        return TypicalStep((), None, _means(with_parts(breakdown)), (), windows=len(breakdown), differ=False)
    lengths = whole["window_ns"].tolist()
    middle = median(lengths)
    first = records(whole.head(1))[0]
    period = None
    if first["period"] is not None:
        long = whole["step"][whole["is_long"].astype(bool)] % first["period"]
        period = Period(first["period"], frozenset(long.tolist()))
    return TypicalStep(
        steps=tuple(whole["step"].tolist()),
        kind=first["kind"] if whole["kind"].nunique(dropna=False) == 1 else None,
        parts=_means(whole),
        lengths_ns=tuple(lengths),
        windows=int(whole["devices"].sum()),
        differ=period is None and not all(_is_alike(length, middle) for length in lengths),
        period=period,
    )


def _means(table: pd.DataFrame) -> dict[str, float]:
    return {column: float(table[column].astype("float64").mean()) for column in ("window_ns", *STEP_PARTS)}


def with_parts(breakdown: pd.DataFrame) -> pd.DataFrame:
    """The breakdown with the columns of STEP_PARTS; if nothing could be split, exposed time counts as unsplit."""
    known = breakdown["exposed_wait_ns"].notna()
    return breakdown.assign(
        compute_alone_ns=breakdown["compute_ns"] - breakdown["overlap_ns"],
        exposed_unsplit_ns=breakdown["exposed_unsplit_ns"].where(known, breakdown["exposed_comm_ns"]),
        exposed_wait_ns=breakdown["exposed_wait_ns"].fillna(0),
        exposed_transfer_ns=breakdown["exposed_transfer_ns"].fillna(0),
    )


def _edge(row: Row, others: list[Row]) -> str | None:
    """The reason to leave out a first or last step whose window is not that of a whole step; None to keep it.

    A device that runs behind its CPU has long windows beside short steps of the CPU, in all steps. So the window must
    differ from the CPU's step, and by more than it does in the other steps, where devices did anything in these.
    """
    measured = [other for other in others if other["cpu_ns"] and other["window_ns"]]
    factors = [other["window_ns"] / other["cpu_ns"] for other in measured]
    if not factors or not row["cpu_ns"]:
        return None
    factor = row["window_ns"] / row["cpu_ns"]
    shorter, longer = (min(factor, factor / median(factors)), max(factor, factor / median(factors)))
    if row["is_first"] and longer * _EDGE < 1:
        return "beginning"
    if row["is_last"] and shorter > _EDGE and row["window_ns"] > min(other["window_ns"] for other in others):
        # As long a window of a whole step, beside a CPU step as short, is no drain: steps may be slow from some on.
        is_like = (
            other["window_ns"] * _LIKE >= row["window_ns"] and of_other * _LIKE >= factor
            for other, of_other in zip(measured, factors, strict=True)
        )
        return None if any(is_like) else "drain"
    if row["is_last"] and longer * _EDGE < 1:
        return "end"
    return None


def _leave_out_other_kinds(kinds: Mapping[str | None, list[Row]], about: str | None) -> None:
    """Mark steps as left out that are unlike others of their kind, and those of all kinds but the main one."""
    for alike in kinds.values():
        _leave_out_unlike(alike)
    usual = {kind: alike for kind, alike in kinds.items() if kind not in USUALLY_BESIDE} or kinds
    longest = max(usual, key=lambda kind: sum(row["window_ns"] for row in usual[kind]))
    main = about if about is not None and about in kinds else longest
    for kind, alike in kinds.items():
        for row in alike:
            if kind != main and row["left_out"] not in EDGES:
                row["left_out"] = "kind"


def _whole_periods(rows: Sequence[Row], period: Period | None) -> Period | None:
    """The period, if there are whole ones of it among the steps that are not left out."""
    whole = [row["step"] for row in rows if row["left_out"] is None]
    return period if period is not None and period.whole(whole) else None


def _period(rows: Sequence[Row], breakdown_steps: pd.DataFrame) -> Period | None:
    """The period in which steps repeat that are not left out."""
    counts = breakdown_steps.groupby("step")[["n_comm", "n_compute", "n_memory"]].sum()
    work = {step: (comm, compute + memory) for step, comm, compute, memory in counts.itertuples()}
    whole = [row for row in rows if row["left_out"] is None]
    return period_of([StepWork(row["step"], row["kind"], *work[row["step"]], row["window_ns"]) for row in whole])


def _period_of_lengths(unprofiled_ns: Mapping[int, float]) -> Period | None:
    return period_of([StepWork(step, None, 0, 0, round(ns)) for step, ns in sorted(unprofiled_ns.items())])


def _leave_out_in_part(rows: Sequence[Row], period: Period) -> None:
    """Mark steps as left out that are part of no whole period, or unlike all others in the same place of it.

    Unlike is what would be so beside a mean step of the period; and long ones are not compared, for a rollout takes as
    long as it takes. If no whole period were left, all steps of whole ones count, unlike ones too.
    """
    whole = [row for row in rows if row["left_out"] is None]
    mean = fmean(fmean(row["window_ns"] for row in own) for own in _by_place(whole, period).values())
    for place, own in _by_place(whole, period).items():
        if place not in period.long:
            _leave_out_unlike(own, mean)
    counted = set(period.whole([row["step"] for row in whole if row["left_out"] is None]))
    if not counted:
        for row in whole:
            row["left_out"] = None
        counted = set(period.whole([row["step"] for row in whole]))
    for row in rows:
        row |= {"period": period.steps, "is_long": period.is_long(row["step"])}
        if row["left_out"] is None and row["step"] not in counted:
            row["left_out"] = "period"


def _by_place(rows: Iterable[Row], period: Period) -> dict[int, list[Row]]:
    places: dict[int, list[Row]] = {}
    for row in rows:
        places.setdefault(period.place(row["step"]), []).append(row)
    return places


def _leave_out_unlike(rows: list[Row], least_ns: float = 0.0) -> None:
    """Mark whole steps as left out that are unlike most others, provided that most are alike.

    Steps differ by a part of their median, or of `least_ns` if that is more.
    Each one that is left out moves the median of the rest, beside which others may be unlike: so again until none is.
    """
    if not any(row["left_out"] is None for row in rows):  # then the edges are all there is
        for row in rows:
            row["left_out"] = None
        return
    while True:
        whole = [row for row in rows if row["left_out"] is None]
        middle = median(row["window_ns"] for row in whole)
        unlike = [row for row in whole if abs(row["window_ns"] - middle) > _ALIKE * max(middle, least_ns)]
        if not unlike or 2 * len(unlike) >= len(whole):
            return
        for row in unlike:
            row["left_out"] = "long" if row["window_ns"] > middle else "short"


def _is_alike(length_ns: float, middle_ns: float) -> bool:
    return abs(length_ns - middle_ns) <= _ALIKE * middle_ns
