"""Why devices idle in a typical step: the verdict, and the largest causes; `words` says it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from ...core.schema import records
from ..causes.cpu_work import GARBAGE, InPython
from ..device.idle import HOST
from ..device.largest_gaps import HELD_RANGE, HeldBy
from ..prices import Priced, Prices

IDLE_CAUSES = {
    "sync_ns": "CPU in blocking calls",
    "alloc_ns": "CPU allocates or frees",
    "data_ns": "CPU waits for a batch",
    "operator_ns": "CPU in operators",
    "outside_ns": "CPU outside of operators",
    "launching_ns": "CPU launches the next",
    "queued_ns": "launched, not begun",
    "unknown_ns": "cause not known",
}
"""Parts of idle time: columns of `idle`, which add up to it, and what people call them."""
_ROWS_WITHOUT_PYTHON = {"operator_ns": "CPU in NVTX ranges", "outside_ns": "CPU in no NVTX range"}
_BY_HOST = ("sync_ns", "alloc_ns", "data_ns", "operator_ns", "outside_ns", "launching_ns")
"""Those in which the CPU did something."""
_MOST_RANGES = 2
_ON_CPU = ("no_data_wait", "no_gc")
"""Remedies that are replayed without a GPU, where causes of idle time are not known."""
QUEUED = "queued"
"""What a headline says where most of the time work was launched, but had not begun."""
_BLOCKING = {"sync-bound": ("sync", "copy"), "allocator-bound": ("alloc",)}
"""Kinds of rows of `syncs` that a verdict is about."""
IDLE_VERDICTS = frozenset({
    "sync-bound", "allocator-bound", "input-bound", "launch-bound", "host-bound", "idle",
})  # fmt: skip
_MENTIONED = 0.1  # of idle time
_MOST = 0.5  # of idle time
_NEARLY_AS_MUCH = 0.75  # of the largest gain
_MOST_CALLS = 2
_ONCE = ("long", "compile")
"""Kinds of rows of `syncs` about what is no part of every step."""


def idle_causes(idle: pd.DataFrame) -> dict[str, float] | None:
    """Idle time by cause, mean over rows of `idle` or `idle_steps`, in ns; None if some causes are not known.

    Garbage collections, which are part of other causes, count as none where they were not recorded.
    """
    columns = [*IDLE_CAUSES, "drained_ns"]
    if not len(idle) or idle[columns].isna().any(axis=None):
        return None
    return {column: float(idle[column].fillna(0).astype("float64").mean()) for column in [*columns, "gc_ns"]}


def idle_verdict(causes: dict[str, float] | None, prices: Prices | None = None, idle_ns: float = 0.0) -> str:
    """The verdict on idle time: by the change about it that gains most, if that is at least half of the `idle_ns`.

    Else it is by the cause that takes most of it, or `host-bound` if the CPU was busy with other things than launching;
    `causes` come from `idle_causes`. Without a GPU these are not known.
    """
    change = idle_change(prices, causes)
    is_known = change is not None and (causes is not None or change.verdict == "input-bound")
    if change is not None and is_known and change.gain.ns >= _MOST * idle_ns:
        return change.verdict
    if causes is None:
        return "idle"
    sizes = _sizes(causes)
    largest = max(sizes, key=lambda verdict: sizes[verdict])
    if change is None:
        return largest
    # Launching ahead does not shorten what a CPU does for 1 ms or more without any call.
    return "host-bound" if largest == "launch-bound" else "idle"


class Idling(NamedTuple):
    """What a headline says of idle time: a verdict on it, QUEUED or GARBAGE; `mostly_in` what, or partly `in_range`."""

    why: str
    mostly_in: str | None = None
    in_range: HeldBy | None = None


def idling(
    verdict: str,
    causes: dict[str, float] | None,
    holders: Mapping[str, HeldBy],
    idle_ns: float,
    *,
    prices: Prices | None = None,
    blocking: str | None = None,
) -> Idling | None:
    """What a headline about idle time says of it.

    None where other causes take most, and the change that it is about gains less than half of the `idle_ns`. `holders`
    are what CPUs were in, `blocking` is the operator that most waiting for devices, or for the allocator, is in.
    """
    sizes, change = {} if causes is None else _sizes(causes), idle_change(prices, causes)
    whole = sum(causes[cause] for cause in IDLE_CAUSES) if causes is not None else 0.0
    collects = change is not None and change.remedy == "no_gc" and change.gain.ns >= _MOST * idle_ns
    if collects or (causes is not None and causes["gc_ns"] >= _MOST * whole > 0):
        return Idling(GARBAGE)
    if verdict != "idle" and sizes.get("idle", 0.0) >= _MOST * whole > 0:
        return Idling(QUEUED) if causes is not None and causes["queued_ns"] >= _MOST * whole else None
    size = "launch-bound" if verdict == "host-bound" else verdict
    is_priced = change is not None and change.verdict == verdict and change.gain.ns >= _MOST * idle_ns
    if verdict == "idle" or (causes is not None and sizes.get(size, 0.0) < _MOST * whole and not is_priced):
        return None
    most = max(holders.values(), key=lambda each: each.ns, default=None)
    if verdict in _BLOCKING and blocking is not None:
        return Idling(verdict, mostly_in=blocking)
    if most is not None and most.ns >= _MOST * idle_ns:
        return Idling(verdict, mostly_in=most.name)
    return Idling(verdict, in_range=holders.get(HELD_RANGE))


def blocking_operator(syncs_steps: pd.DataFrame, steps: Collection[int], verdict: str) -> str | None:
    """The operator that most time in calls that wait for the device, or for the allocator, is in, or the annotation.

    None if there is none. `syncs_steps` is the table of that name; without `steps` all its rows count.
    """
    rows = syncs_steps[syncs_steps["kind"].isin(_BLOCKING.get(verdict, ()))]
    rows = rows[rows["step"].isin(list(steps))] if steps else rows
    took = rows.groupby(rows["operator"].fillna(rows["annotation"]))["total_ns"].sum()
    return str(took.idxmax()) if len(took) and took.max() >= _MOST * rows["total_ns"].sum() else None


def idle_change(prices: Prices | None, causes: dict[str, float] | None) -> Priced | None:
    """The change about idle time that gains most; None if none was replayed.

    Of those that gain nearly as much and are no bounds, it is about what takes most of the time: that a CPU waits for a
    batch, say, and not that it would have asked for that earlier, had it not waited for its device before.
    """
    changes = [change for change in (() if prices is None else prices.changes) if change.verdict in IDLE_VERDICTS]
    if not changes or causes is None:
        return changes[0] if changes else None
    sizes = _sizes(causes)
    done = [change for change in changes[1:] if not change.is_bound]
    near = [change for change in done if change.gain.ns >= _NEARLY_AS_MUCH * changes[0].gain.ns]
    return max([changes[0], *near], key=lambda change: sizes.get(change.verdict, 0.0))


def _sizes(causes: dict[str, float]) -> dict[str, float]:
    """Idle time behind each verdict, in ns.

    A blocking call that lets the queue run empty costs all of the time until the device has work again, although most
    of that is spent launching: so it counts for the call.
    """
    blocked = max(causes["sync_ns"], causes["drained_ns"])
    by_host = sum(causes[f"{part}_ns"] for part in HOST) + causes["launching_ns"]
    return {
        "sync-bound": blocked,
        "allocator-bound": causes["alloc_ns"],
        "input-bound": causes["data_ns"],
        "launch-bound": by_host - blocked - causes["alloc_ns"] - causes["data_ns"],
        "idle": causes["queued_ns"] + causes["unknown_ns"],
    }


class IdleReasons(NamedTuple):
    """Why devices idle, as far as it is worth saying, in ns.

    `by_host` is what CPUs did, the largest first, where these `ranges` of a program without Python take the place of
    its operators, and `held` what they were in, by part of idle time. `gc_ns` of it is garbage collection,
    `drained_ns` follow calls that let the queue run empty, for `queued_ns` kernels were queued, and for
    `unknown_ns` the trace does not show why. Without a GPU, `costs` is the remedy that gains most, and how much, and
    `threads` what these did, and between how much.
    """

    by_host: tuple[tuple[str, float], ...] = ()
    ranges: tuple[tuple[str, float], ...] = ()
    is_python: bool = True
    held: tuple[tuple[str, HeldBy], ...] = ()
    gc_ns: float = 0.0
    drained_ns: float = 0.0
    queued_ns: float = 0.0
    unknown_ns: float = 0.0
    costs: tuple[str, float] | None = None
    threads: tuple[str, float, float] | None = None


def idle_reasons(
    causes: dict[str, float] | None,
    prices: Prices | None = None,
    ranges: Mapping[str, float] | None = None,
    threads: InPython | None = None,
    holders: Mapping[str, HeldBy] | None = None,
) -> IdleReasons:
    """Why devices idle: the causes that take a tenth of it or more.

    Without a GPU idle time has no causes, but some have a price, and `threads` is what these did in it, if that is
    known. `holders` are what CPUs were in, by parts of idle time. `ranges` are the idle time in NVTX ranges of programs
    without Python, in ns; None where Python runs.
    """
    holders = holders or {}
    if causes is None:
        held = next(((part, holders[part]) for part in ("idle_ns", HELD_RANGE) if part in holders), None)
        of_threads = None if threads is None else _of_threads(threads)
        return IdleReasons(costs=_on_cpu(prices), threads=of_threads, held=() if held is None else (held,))
    total = sum(causes[cause] for cause in IDLE_CAUSES)
    large = {cause: causes[cause] for cause in IDLE_CAUSES if total and causes[cause] >= _MENTIONED * total}
    by_host = sorted((cause for cause in large if cause in _BY_HOST), key=lambda cause: -large[cause])
    most = sorted(ranges or (), key=lambda name: -ranges[name] if ranges else 0.0)[:_MOST_RANGES]
    parts = (*by_host, *([HELD_RANGE] if ranges is None else []))

    def if_large(cause: str) -> float:
        return causes[cause] if causes[cause] >= _MENTIONED * total > 0 else 0.0

    return IdleReasons(
        by_host=tuple((cause, large[cause]) for cause in by_host),
        ranges=tuple((name, ranges[name]) for name in most if ranges[name] >= _MENTIONED * total) if ranges else (),
        is_python=ranges is None,
        held=tuple((part, holders[part]) for part in parts if part in holders),
        gc_ns=if_large("gc_ns"),
        drained_ns=if_large("drained_ns") if causes["drained_ns"] > causes["sync_ns"] else 0.0,
        queued_ns=large.get("queued_ns", 0.0),
        unknown_ns=large.get("unknown_ns", 0.0),
    )


def _on_cpu(prices: Prices | None) -> tuple[str, float] | None:
    """The remedy that gains most on a run without a GPU, and its gain in ns; None if there is none."""
    gains = {name: prices.gains[name].ns for name in _ON_CPU if name in prices.gains} if prices is not None else {}
    name = max(gains, key=lambda remedy: gains[remedy], default=None)
    return (name, gains[name]) if name is not None and gains[name] > 0 else None


def _of_threads(threads: InPython) -> tuple[str, float, float] | None:
    """What threads did for most of it, and for how many ns at least and at most; None if nothing took that much."""
    what = max(threads.took_ns, key=lambda part: threads.took_ns[part])
    took_ns, either_ns = threads.took_ns[what], threads.unsure_ns / 2
    if took_ns - either_ns < _MOST * threads.whole_ns:
        return None
    return what, took_ns - either_ns, took_ns + either_ns


class LongCalls(NamedTuple):
    """Calls, or operators, of one name that take far longer than others of it, on the rank where they cost most.

    Or, as their `kind` says, ranges that compile. `operator` is the one around them, and `cost_frac` the part of the
    idle time of all devices that they cost on all ranks.
    """

    kind: str
    calls: int
    name: str
    operator: str | None
    rank: int
    total_ns: int
    cost_frac: float

    @classmethod
    def of(cls, syncs_steps: pd.DataFrame, steps: Collection[int], idle_ns: float) -> LongCalls | None:
        """The most costly ones, None if they cost little of `idle_ns`, the sum over these steps and all devices.

        `syncs_steps` is the table of that name. Without `steps` all its rows count.
        """
        long = syncs_steps[syncs_steps["kind"].isin(_ONCE)]
        long = long[long["step"].isin(list(steps))] if steps else long
        same = ["kind", "name", "operator"]
        alike = long.groupby(same, dropna=False)
        cost_ns = alike["lost_ns"].transform("sum")
        if not len(long) or cost_ns.max() < _MENTIONED * idle_ns:
            return None
        most_costly = long[cost_ns == cost_ns.max()]
        sums = most_costly.groupby([*same, "rank"], dropna=False)[["calls", "total_ns", "lost_ns"]].sum()
        [most] = records(sums.reset_index().nlargest(1, "lost_ns"))
        cost_frac = min(float(cost_ns.max()) / idle_ns, 1.0) if idle_ns else 0.0
        return cls(**{key: most[key] for key in (*same, "calls", "rank", "total_ns")}, cost_frac=cost_frac)

    @property
    def is_most(self) -> bool:
        """Whether they cost most of the idle time."""
        return self.cost_frac >= _MOST


class LongestCalls(NamedTuple):
    """Calls of these names, and how often each, that explain unusual idle time on a rank; all take `total_ns`."""

    rank: int
    calls: Mapping[str, int]
    total_ns: float


def longest_calls(syncs_steps: pd.DataFrame, steps: list[int], usual: list[int], idle_ns: float) -> LongestCalls | None:
    """The calls that explain unusual idle time of some steps.

    `syncs_steps` is the table of that name, `idle_ns` how much longer devices were idle than usual. A device's window
    ends where the next step begins on the device. So where the calls in the CPU's steps explain less than half, those
    in the step behind each count as well. None if no call stands out.
    """
    after = {step + 1 for step in steps}
    found = None
    for looked_at in (set(steps), {*steps, *after}):
        here = syncs_steps[syncs_steps["step"].isin(looked_at)]
        if not len(here):
            continue
        there = syncs_steps[syncs_steps["step"].isin(set(usual) - after)]
        rank = here.groupby("rank")["lost_ns"].sum().idxmax()
        in_steps, before = (table[table["rank"] == rank].groupby("name") for table in (here, there))
        usually = before["lost_ns"].sum() / max(there["step"].nunique(), 1) * here["step"].nunique()
        more = in_steps["lost_ns"].sum() - usually.reindex(list(in_steps.groups)).fillna(0)
        largest = more.sort_values(ascending=False).head(_MOST_CALLS)
        names = largest.index[largest >= _MENTIONED * idle_ns].tolist()
        if not names:
            continue
        taken = in_steps[["calls", "total_ns"]].sum().loc[names]
        found = LongestCalls(
            int(rank), {str(name): int(n) for name, n in taken["calls"].items()}, float(taken["total_ns"].sum())
        )
        if largest[names].sum() >= idle_ns / 2:
            break
    return found


def idle_rows(causes: dict[str, float] | None, *, runs_python: bool) -> Iterator[tuple[str, float]]:
    """Yield each cause of idle time worth a line, with its ns, the largest first."""
    if causes is None:
        return
    total = sum(causes[cause] for cause in IDLE_CAUSES)
    names = IDLE_CAUSES if runs_python else IDLE_CAUSES | _ROWS_WITHOUT_PYTHON
    for cause in sorted(IDLE_CAUSES, key=lambda name: -causes[name]):
        if total and causes[cause] >= _MENTIONED * total:
            yield names[cause], causes[cause]
