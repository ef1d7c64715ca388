"""All the time of a device: parts that add up to its window to the ns, and whom it waited for.

The parts are columns of `breakdown` and `idle` that do not overlap. Definitions and examples: docs/metrics/account.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from ..core.declaring import Later, TableEntry, Topic, Worst, value
from ..core.frames import pd
from ..core.schema import Row, Schema
from ..core.tables.columns import DEVICE, NO_STEPS_MARKED, PARTIAL, PARTIAL_MEMBER, PARTIAL_RUN, RANK, STEP_NUMBER

if TYPE_CHECKING:
    from ..metrics.typical_step import TypicalStep
    from ..run.run import Run

_COLUMNS = {
    "window_ns": ("int64", "as in `breakdown`; the other times of the row add up to it exactly, NA counting as 0"),
    "compute_alone_ns": ("int64", "compute without communication beside it"),
    "overlap_ns": ("int64", "compute and communication at once: hidden communication"),
    "exposed_transfer_ns": ("Int64", "communication without compute, data moves; NA if none of it could be split"),
    "exposed_wait_ns": ("Int64", "likewise, waiting for other ranks: for which, `account_waits` says"),
    "exposed_unsplit_ns": ("int64", "likewise, in calls that could not be split into wait and transfer"),
    "exposed_memory_ns": ("int64", "only copies and fills"),
    "idle_sync_ns": ("Int64", "nothing runs or is queued: the CPU is in a blocking call, cudaStreamSynchronize ..."),
    "idle_alloc_ns": ("Int64", "likewise: otherwise in a call that allocates or frees, cudaMalloc, cudaFree ..."),
    "idle_data_ns": ("Int64", "likewise: otherwise it gets a batch from the DataLoader"),
    "idle_gc_ns": ("Int64", "likewise: otherwise Python collects garbage; NA where the run has no record of that"),
    "idle_cpu_comm_ns": ("Int64", "likewise: otherwise the CPU communicates, or waits for those of others"),
    "idle_compile_ns": ("Int64", "likewise: otherwise torch.compile compiles"),
    "idle_operator_ns": ("Int64", "likewise: otherwise the CPU is in any other operator"),
    "idle_outside_ns": ("Int64", "likewise: the CPU is in none of these; mostly Python of the user"),
    "idle_launching_ns": ("Int64", "nothing runs; the CPU is in the call that launches what comes next"),
    "idle_queued_ns": ("Int64", "nothing runs; what comes next is launched, and has not begun"),
    "idle_unknown_ns": ("int64", "idle time whose cause is not known; all of it where causes were not read"),
    "note": ("string", "why causes of idle time are NA"),
    "partial": PARTIAL,
}  # fmt: skip
ACCOUNT = Schema("account", "rank and device", {"rank": RANK, "device": DEVICE, **_COLUMNS})
ACCOUNT_STEPS = Schema("account_steps", "rank, device and step", {
    "rank": RANK, "device": DEVICE, "step": STEP_NUMBER, **_COLUMNS,
})  # fmt: skip

ACCOUNT_WAITS = Schema("account_waits", "rank, device, step, rank it waited for, and why that was late", {
    "rank": ("int64", "rank that waited"),
    "device": DEVICE,
    "step": ("Int64", "N of ProfilerStep#N; NA for waiting outside of all steps"),
    "waited_for": ("Int64", "rank that arrived last of those it needed"),
    "exposed_wait_ns": ("int64", "wait without compute; the rows of a device and step add up to that in `account`"),
    "because": ("string", "why that rank was late, as in `lateness`; NA if it was not late by more than clocks tell"),
    "origin_rank": ("Int64", "rank with which that began, as in `lateness`"),
    "origin_because": ("string", "why that one was late"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip

ACCOUNT_PARTS = Schema("account_parts", "part of a typical step, the largest first", {
    "part": ("string", "what it is, in words"),
    "column": ("string", "its column in `account`"),
    "mean_ns": ("int64", "mean over devices and the steps that count, as in `steps`; all rows add up to the step"),
    "share_frac": ("Float64", "mean_ns / length of the step"),
    "least_frac": ("Float64", "its share on the rank where that is smallest; NA if there is one rank"),
    "least_rank": ("Int64", "that rank"),
    "most_frac": ("Float64", "its share on the rank where that is largest"),
    "most_rank": ("Int64", "that rank"),
    "waited_for": ("string", "of the exposed wait: for which ranks, mean of all devices"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

WINDOW_PARTS = {
    "compute_alone_ns": "compute alone",
    "overlap_ns": "compute and communication",
    "exposed_transfer_ns": "exposed transfer",
    "exposed_wait_ns": "exposed wait",
    "exposed_unsplit_ns": "exposed, not split",
    "exposed_memory_ns": "exposed copies",
    "idle_sync_ns": "idle: CPU in blocking calls",
    "idle_alloc_ns": "idle: CPU allocates or frees",
    "idle_data_ns": "idle: CPU waits for a batch",
    "idle_gc_ns": "idle: CPU collects garbage",
    "idle_cpu_comm_ns": "idle: CPU communicates",
    "idle_compile_ns": "idle: CPU compiles",
    "idle_operator_ns": "idle: CPU in operators",
    "idle_outside_ns": "idle: CPU outside of operators",
    "idle_launching_ns": "idle: CPU launches the next",
    "idle_queued_ns": "idle: launched, not begun",
    "idle_unknown_ns": "idle: cause not known",
}
"""What a window consists of: columns of `account`, and what people call them."""
_SUMMED_UP = "idle_unknown_ns"
_AS_IN_IDLE = ("sync", "alloc", "data", "gc", "cpu_comm", "compile", "launching", "queued")
_MENTIONED, _WORTH_A_NAME = 3, 0.05
"""The most ranks that are named as waited for, and the least part of the waiting that each of them has."""
_CAUSES = (*_AS_IN_IDLE, "operator", "outside")
_TIMES = tuple(column for column in _COLUMNS if column.endswith("_ns"))
_NARROW = (
    "window_ns", "compute_alone_ns", "exposed_wait_ns", "exposed_transfer_ns", "overlap_ns", "idle_outside_ns",
    "idle_operator_ns", "idle_unknown_ns", "idle_sync_ns", "idle_data_ns", "idle_alloc_ns", "idle_launching_ns",
    "idle_queued_ns", "exposed_memory_ns", "exposed_unsplit_ns", "idle_gc_ns", "idle_cpu_comm_ns", "idle_compile_ns",
)  # fmt: skip


class WaitedFor(NamedTuple):
    """The rank that others waited for (None if not known), and how long they waited, in ns."""

    rank: int | None
    mean_ns: float


class StepPart(NamedTuple):
    """A part of a typical step, mean over steps and devices; `column` is its column in `account`.

    `of_ranks` is its share of the time of each rank, `waited_for` whom a wait was for, the longest first.
    """

    column: str
    name: str
    mean_ns: float
    share_frac: float
    of_ranks: dict[int, float]
    waited_for: tuple[WaitedFor, ...]


@TableEntry(
    ACCOUNT_PARTS,
    Topic.time,
    "All the time of a step, part by part, the largest first.",
    "account.md#a-step-in-full",
    command="table account",
    after="regions_steps",
    shown=(
        "part", "share_frac", "mean_ns", "least_frac", "least_rank", "most_frac", "most_rank", "waited_for", "partial",
    ),
    narrow=("part", "share_frac", "mean_ns", "least_frac", "least_rank", "most_frac", "most_rank"),
    below="waited_for",
    negligible=("share_frac", "most_frac"),
    none_measured="nothing that ran took any time",
)  # fmt: skip
def account_parts(typical_parts: Sequence[StepPart]) -> pd.DataFrame:
    """One row per part of a typical step, the largest first, and the ranks in which it is smallest and largest."""
    ends = [round(end) for end in accumulate((part.mean_ns for part in typical_parts), initial=0.0)]
    rows: list[Row] = []
    for part, (begin, end) in zip(typical_parts, pairwise(ends), strict=True):
        least, most = (pick(part.of_ranks, key=lambda rank: part.of_ranks[rank]) for pick in (min, max))
        several = len(part.of_ranks) > 1
        rows.append({
            "part": part.name,
            "column": part.column,
            "mean_ns": end - begin,  # so that they add up although each is rounded
            "share_frac": part.share_frac,
            "least_frac": part.of_ranks[least] if several else None,
            "least_rank": least if several else None,
            "most_frac": part.of_ranks[most] if several else None,
            "most_rank": most if several else None,
            "waited_for": _in_words(part.waited_for),
        })  # fmt: skip
    return ACCOUNT_PARTS.frame(rows)


@TableEntry(
    ACCOUNT,
    Topic.time,
    "The same by device: parts that add up to its time, to the ns.",
    "account.md#what-adds-up",
    command="table account --by device",
    shown=("rank", "device", *_TIMES, "note", "partial"),
    narrow=("rank", "device", *_NARROW),
    worst=Worst("compute_alone_ns", smallest=True),
    in_steps=True,
)
def account(run: Run, breakdown: pd.DataFrame, idle: Later[pd.DataFrame]) -> pd.DataFrame:
    """One row per rank and device: all of its window, part by part. Causes of idle time need `details`."""
    return _accounted(ACCOUNT, breakdown, idle() if _knows_causes(run) else None)


@TableEntry(
    ACCOUNT_STEPS,
    Topic.time,
    "The same by device and step.",
    "account.md#what-adds-up",
    command="table account --by step",
    shown=("rank", "device", "step", *_TIMES, "note", "partial"),
    none_measured=f"{NO_STEPS_MARKED}, or use `table account` without --by step",
    narrow=("rank", "device", "step", *_NARROW),
)
def account_steps(run: Run, breakdown_steps: pd.DataFrame, idle_steps: Later[pd.DataFrame]) -> pd.DataFrame:
    """One row per rank, device and step: all of its time, part by part."""
    return _accounted(ACCOUNT_STEPS, breakdown_steps, idle_steps() if _knows_causes(run) else None)


def _knows_causes(run: Run) -> bool:
    """Whether idle time has causes; without them, activities need not be looked at."""
    return run.details and run.has_starts


@TableEntry(
    ACCOUNT_WAITS,
    Topic.time,
    "Whom the exposed wait was for.",
    "account.md#whom-the-wait-was-for",
    command="table account --by culprit",
    none_found="no device waited for another rank without computing",
    none_measured="no device shows any activity",
    needs_starts=True,
    narrow=("rank", "device", "step", "waited_for", "exposed_wait_ns", "because", "origin_rank"),
)
def account_waits(waits_in_steps: pd.DataFrame, members: pd.DataFrame, lateness: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device, step and rank it waited for: whom the exposed wait of `account` was for.

    The longest wait is first. By device and step the rows add up to `exposed_wait_ns` of the account.
    """
    late = lateness[["collective_id", "rank", "because", "origin_rank", "origin_because"]]
    late = late.drop_duplicates(["collective_id", "rank"])  # each wait is to be counted once
    of_call = members[["call_id", "collective_id", "waited_for"]]
    joined = waits_in_steps.merge(of_call, on="call_id").merge(
        late.rename(columns={"rank": "waited_for"}), on=["collective_id", "waited_for"], how="left"
    )
    keys = ["rank", "device", "step", "waited_for", "because", "origin_rank", "origin_because"]
    sums = joined.groupby(keys, dropna=False, sort=True)["exposed_wait_ns"].sum().reset_index()
    return ACCOUNT_WAITS.conform(sums.sort_values("exposed_wait_ns", ascending=False, kind="stable"))


@value
def typical_parts(
    breakdown: pd.DataFrame,
    typical_step: TypicalStep,
    account: pd.DataFrame,
    account_steps: pd.DataFrame,
    account_waits: pd.DataFrame,
) -> list[StepPart]:
    """What a typical step consists of, the largest part first, with whom the waiting was for."""
    if not len(breakdown):
        return []
    steps = list(typical_step.steps)
    if not steps:
        return _step_parts(account, account_waits)
    return _step_parts(*(table[table["step"].isin(steps)] for table in (account_steps, account_waits)))


def _accounted(schema: Schema, breakdown: pd.DataFrame, idle: pd.DataFrame | None) -> pd.DataFrame:
    """Split each row of the breakdown into parts that add up to its `window_ns`; by step or not.

    `idle` is the table of idle time with the same rows; None where its causes were not read.
    """
    from ..metrics.device.idle import NOT_READ, ON_CPU

    keys = [key for key in ("rank", "device", "step") if key in schema.columns]
    known = breakdown["exposed_wait_ns"].notna()
    parts = breakdown[[*keys, "window_ns", "overlap_ns", "exposed_memory_ns"]].assign(
        compute_alone_ns=breakdown["compute_ns"] - breakdown["overlap_ns"],
        exposed_transfer_ns=breakdown["exposed_transfer_ns"],
        exposed_wait_ns=breakdown["exposed_wait_ns"],
        # Over several cycles, the split of some may be known, but then not that of all.
        exposed_unsplit_ns=breakdown["exposed_unsplit_ns"].where(known, breakdown["exposed_comm_ns"]),
        note=(breakdown["device"] == "cpu").map({True: ON_CPU, False: NOT_READ}),
    )
    causes = {f"idle_{cause}_ns": pd.Series(pd.NA, breakdown.index, dtype="Int64") for cause in _CAUSES}
    if idle is not None:
        assert breakdown[keys].equals(idle[keys])
        parts["note"] = idle["note"]
        causes |= _causes(idle)
    known_ns = sum(column.fillna(0) for column in causes.values())
    return schema.conform(parts.assign(**causes, idle_unknown_ns=breakdown["idle_ns"] - known_ns))


def _causes(idle: pd.DataFrame) -> dict[str, pd.Series[int]]:
    """Idle time by cause, each ns counted once: `operator` and `outside` without gc, cpu_comm and compile."""
    causes = {f"idle_{cause}_ns": idle[f"{cause}_ns"] for cause in _AS_IN_IDLE}
    # python_ns is part of `outside`; what is left of the two belongs to operators.
    remains = idle["operator_ns"] + idle["outside_ns"] - idle["python_ns"] - idle["gc_ns"].fillna(0)
    causes["idle_operator_ns"] = remains - idle["cpu_comm_ns"] - idle["compile_ns"]
    causes["idle_outside_ns"] = idle["python_ns"]
    return causes


def _step_parts(account: pd.DataFrame, waits: pd.DataFrame) -> list[StepPart]:
    """The parts of a typical step, from rows of `account` and the waits in the same steps.

    Rows of a step count as its mean, as in `steps`, so that this is the typical step of the first screen.
    """
    if "step" in account:
        steps = account["step"]
        weight = 1 / steps.map(steps.value_counts()) / steps.nunique()
        of_wait = waits["step"].map(dict(zip(steps, weight, strict=True)))
    else:
        weight = pd.Series(1 / len(account), account.index)
        of_wait = pd.Series(1 / len(account), waits.index)
    mean_waits = waits["waited_for"].to_frame().assign(mean_ns=waits["exposed_wait_ns"] * of_wait.astype("float64"))
    window_ns = float((account["window_ns"] * weight).sum())
    by_rank = account.groupby("rank")[["window_ns", *WINDOW_PARTS]].sum()
    shares = by_rank.div(by_rank["window_ns"].where(by_rank["window_ns"] > 0), axis=0).astype("Float64").fillna(0.0)
    has_causes = account["idle_sync_ns"].notna().any()
    parts = []
    for column, name in WINDOW_PARTS.items():
        if (account[column].fillna(0) > 0).any():
            mean_ns = float((account[column].fillna(0) * weight).sum())
            parts.append(
                StepPart(
                    column=column,
                    name=name if has_causes or column != _SUMMED_UP else "idle",
                    mean_ns=mean_ns,
                    share_frac=mean_ns / window_ns if window_ns else 0.0,
                    of_ranks=dict(zip(shares.index.tolist(), shares[column].tolist(), strict=True)),
                    waited_for=_waited_for(mean_waits) if column == "exposed_wait_ns" else (),
                )
            )
    return sorted(parts, key=lambda part: -part.mean_ns)


def _waited_for(waits: pd.DataFrame) -> tuple[WaitedFor, ...]:
    sums = waits.groupby("waited_for", dropna=False)["mean_ns"].sum()
    ranks = [None if pd.isna(rank) else int(rank) for rank in sums.index]
    waited_for = [WaitedFor(rank, float(ns)) for rank, ns in zip(ranks, sums, strict=True) if ns > 0]
    return tuple(sorted(waited_for, key=lambda each: -each.mean_ns))


def _in_words(waited_for: Sequence[WaitedFor]) -> str | None:
    """List the ranks that matter: `rank 3: 2.1 ms, rank 5: 0.4 ms, others: 0.2 ms`."""
    total_ns = sum(each.mean_ns for each in waited_for)
    unit, unit_ns = ("us", 1e3) if total_ns < 1e6 else ("ms", 1e6)
    named = [each for each in waited_for[:_MENTIONED] if each.mean_ns >= _WORTH_A_NAME * total_ns]
    names = ["not known" if each.rank is None else f"rank {each.rank}" for each in named]
    rest_ns = total_ns - sum(each.mean_ns for each in named)
    times = [*zip(names, (each.mean_ns for each in named), strict=True), ("others", rest_ns)]
    texts = [f"{name}: {ns / unit_ns:,.1f} {unit}" for name, ns in times if round(ns / unit_ns, 1)]
    return ", ".join(texts) or None
