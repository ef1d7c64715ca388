"""Why devices idle in a typical step: the verdict, and a sentence on the largest causes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from ....common.wording import listed
from ...core.schema import records
from ..causes.cpu_work import BLOCKED, COMPUTING, GARBAGE, NO_CPU, InPython
from ..device.idle import HOST
from ..device.largest_gaps import HELD_RANGE, HeldBy
from ..functions import quoted
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
_SENTENCES = {
    "sync_ns": "in blocking calls",
    "alloc_ns": "allocating or freeing memory",
    "data_ns": "waiting for a batch",
    "operator_ns": "in operators",
    "outside_ns": "in Python outside of operators",
    "launching_ns": "launching what came next",
}
_WITHOUT_PYTHON = {"operator_ns": "in NVTX ranges", "outside_ns": "outside of NVTX ranges"}
"""What programs in other languages were doing, of which only their ranges are known."""
_ROWS_WITHOUT_PYTHON = {"operator_ns": "CPU in NVTX ranges", "outside_ns": "CPU in no NVTX range"}
_MOST_RANGES = 2
_ON_CPU = {"no_data_wait": "waiting for batches", "no_gc": "collecting garbage"}
"""Remedies that are replayed without a GPU, where causes of idle time are not known; and what the CPU did instead."""
_THREADS = {
    BLOCKED: "their threads were blocked for {}: asleep, or waiting for a file, a lock or another process",
    COMPUTING: "their threads computed in Python for {}",
    GARBAGE: "their threads collected garbage for {}",
    NO_CPU: "their threads waited for a CPU for {}",
}
"""What threads did while they ran no operator, where side files say it."""
_SHORTLY = {
    "sync-bound": ": the CPU waits for its device",
    "allocator-bound": ": the CPU allocates or frees memory",
    "input-bound": ": the next batch is not there",
    "launch-bound": ": the CPU launches work too slowly",
    "host-bound": ": the CPU launches nothing",
}
"""How a headline about idle time ends, by verdict."""
_BEGINS_LATE = ": what was launched begins late"
_BLOCKING = {"sync-bound": ("sync", "copy"), "allocator-bound": ("alloc",)}
"""Kinds of rows of `syncs` that a verdict is about."""
IDLE_VERDICTS = frozenset({*_SHORTLY, "idle"})
_MENTIONED = 0.1  # of idle time
_MOST = 0.5  # of idle time
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
    change = idle_change(prices)
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


def idle_shortly(
    verdict: str,
    causes: dict[str, float] | None,
    holders: Mapping[str, HeldBy],
    idle_ns: float,
    *,
    prices: Prices | None = None,
    blocking: str | None = None,
    time: Callable[[float], str],
) -> str:
    """How a headline about idle time ends: `: the CPU waits for its device, most of the time in `aten::item``.

    Empty where other causes take most, and the change that it is about gains less than half of the `idle_ns`. `holders`
    are what CPUs were in, `blocking` is the operator that most waiting for devices, or for the allocator, is in.
    """
    sizes, change = {} if causes is None else _sizes(causes), idle_change(prices)
    whole = sum(causes[cause] for cause in IDLE_CAUSES) if causes is not None else 0.0
    if verdict != "idle" and sizes.get("idle", 0.0) >= _MOST * whole > 0:
        return _BEGINS_LATE if causes is not None and causes["queued_ns"] >= _MOST * whole else ""
    size = "launch-bound" if verdict == "host-bound" else verdict
    is_priced = change is not None and change.verdict == verdict and change.gain.ns >= _MOST * idle_ns
    if causes is not None and sizes.get(size, 0.0) < _MOST * whole and not is_priced:
        return ""
    shortly, most = _SHORTLY.get(verdict, ""), max(holders.values(), key=lambda each: each.ns, default=None)
    if shortly and verdict in _BLOCKING and blocking is not None:
        return f"{shortly}, most of the time in `{blocking}`"
    if shortly and most is not None and most.ns >= _MOST * idle_ns:
        return f"{shortly}, most of the time in {quoted(most.name)}"
    held = holders.get(HELD_RANGE)
    return f"{shortly}, for {time(held.ns / 1e6)} in `{held.name}`" if shortly and held is not None else shortly


def blocking_operator(syncs_steps: pd.DataFrame, steps: Collection[int], verdict: str) -> str | None:
    """The operator that most time in calls that wait for the device, or for the allocator, is in, or the annotation.

    None if there is none. `syncs_steps` is the table of that name; without `steps` all its rows count.
    """
    rows = syncs_steps[syncs_steps["kind"].isin(_BLOCKING.get(verdict, ()))]
    rows = rows[rows["step"].isin(list(steps))] if steps else rows
    took = rows.groupby(rows["operator"].fillna(rows["annotation"]))["total_ns"].sum()
    return str(took.idxmax()) if len(took) and took.max() >= _MOST * rows["total_ns"].sum() else None


def idle_change(prices: Prices | None) -> Priced | None:
    """The first of the changes about idle time; None if none was replayed."""
    changes = () if prices is None else prices.changes
    return next((change for change in changes if change.verdict in IDLE_VERDICTS), None)


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


def _on_cpu(prices: Prices | None) -> tuple[str | None, float]:
    """The remedy that gains most on a run without a GPU, and its gain in ns; None and 0 if there is none."""
    gains = {name: prices.gains[name].ns for name in _ON_CPU if name in prices.gains} if prices is not None else {}
    name = max(gains, key=lambda remedy: gains[remedy], default=None)
    return (name, gains[name]) if name is not None and gains[name] > 0 else (None, 0.0)


def idle_reasons(
    causes: dict[str, float] | None,
    time: Callable[[float], str],
    prices: Prices | None = None,
    ranges: Mapping[str, float] | None = None,
    threads: InPython | None = None,
    holders: Mapping[str, HeldBy] | None = None,
) -> str:
    """`: their CPUs were in operators (3.6 ms), launching what came next (0.9 ms)`; `time` formats ms.

    Without a GPU idle time has no causes, but some have a price, and `threads` is what these did in it, if that is
    known. `holders` are what CPUs were in, by parts of idle time. `ranges` are the idle time in NVTX ranges of programs
    without Python, in ns; None where Python runs.
    """
    if causes is None:
        name, gain_ns = _on_cpu(prices)
        priced = "" if name is None else f": {_ON_CPU[name]} costs {time(gain_ns / 1e6)}"
        did = ["" if threads is None else _of_threads(threads, time), _held(holders, ("idle_ns", HELD_RANGE), time)]
        text = "; ".join(filter(None, did))
        return priced + (f"{';' if priced else ':'} {text}" if text else "")
    total = sum(causes[cause] for cause in IDLE_CAUSES)
    large = {cause: causes[cause] for cause in IDLE_CAUSES if total and causes[cause] >= _MENTIONED * total}
    by_host = sorted((cause for cause in large if cause in _SENTENCES), key=lambda cause: -large[cause])
    doing = _SENTENCES if ranges is None else _SENTENCES | _WITHOUT_PYTHON
    parts = [f"{doing[cause]} ({time(large[cause] / 1e6)})" for cause in by_host]
    if ranges and "operator_ns" in by_host:
        most = sorted(ranges, key=lambda name: -ranges[name])[:_MOST_RANGES]
        named = [f"in `{name}` ({time(ranges[name] / 1e6)})" for name in most if ranges[name] >= _MENTIONED * total]
        at = by_host.index("operator_ns")
        parts[at : at + 1] = named or parts[at : at + 1]
    text = f": their CPUs were {listed(parts)}" if parts else ""
    for part in (*by_host, *([HELD_RANGE] if ranges is None else [])):
        held = _held(holders, (part,), time)
        text += f"{';' if text else ':'} {held}" if held else ""
    if causes["gc_ns"] >= _MENTIONED * total > 0:
        text += f"; for {time(causes['gc_ns'] / 1e6)} of this Python collected garbage"
    if causes["drained_ns"] >= _MENTIONED * total and causes["drained_ns"] > causes["sync_ns"]:
        text += f"; {time(causes['drained_ns'] / 1e6)} follow blocking calls that let the queue run empty"
    if "queued_ns" in large:
        text += f"{';' if text else ':'} for {time(large['queued_ns'] / 1e6)} work was launched but had not begun"
    if "unknown_ns" in large:
        text += f"{';' if text else ':'} for {time(large['unknown_ns'] / 1e6)} the trace does not show why"
    return text


_HELD = {
    "outside_ns": "for {} outside of operators they were in {}",
    "data_ns": "for {} of waiting for a batch they were in {}",
    "idle_ns": "for {} their threads were in {}",
    HELD_RANGE: "for {} they were in {}",
}
"""In words, what CPUs did for most of a part of idle time."""


def _held(holders: Mapping[str, HeldBy] | None, parts: Sequence[str], time: Callable[[float], str]) -> str:
    """`for 3.4 ms outside of operators they were in `load_batch` (train.py:31)`, of the first part that has a name."""
    for part in parts:
        if holders and part in holders:
            return _HELD[part].format(time(holders[part].ns / 1e6), quoted(holders[part].name))
    return ""


def _of_threads(threads: InPython, time: Callable[[float], str]) -> str:
    """`their threads were blocked for 29.9 to 33.3 ms: asleep, or ...`: what took most of it, empty if nothing did."""
    what = max(threads.took_ns, key=lambda part: threads.took_ns[part])
    took_ns, either_ns = threads.took_ns[what], threads.unsure_ns / 2
    if took_ns - either_ns < _MOST * threads.whole_ns:
        return ""
    least, most = time((took_ns - either_ns) / 1e6), time((took_ns + either_ns) / 1e6)
    return _THREADS[what].format(most if least == most else f"{least.removesuffix(' ms')} to {most}")


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

    def shortly(self, time: Callable[[float], str]) -> str:
        """`: one cudaLaunchKernel takes 300.0 ms`, if that is most of the idle time, else empty."""
        return f": {self._named} {self._takes(time)}" if self.cost_frac >= _MOST else ""

    def sentence(self, time: Callable[[float], str]) -> str:
        """`; on rank 0 one cudaLaunchKernel in aten::mm takes 300.0 ms, at least 100 times as long as usual`."""
        if self.kind == "compile":
            return f"; on rank {self.rank} {self._named} {self._takes(time)}"
        within = "" if self.operator is None else f" in {self.operator}"
        return f"; on rank {self.rank} {self._named}{within} {self._takes(time)}, at least 100 times as long as usual"

    @property
    def _named(self) -> str:
        if self.kind == "compile":
            return f"compiling in `{self.name}`"
        return f"one {self.name}" if self.calls == 1 else f"{self.calls:,} calls of {self.name}"

    def _takes(self, time: Callable[[float], str]) -> str:
        return f"take{'s' if self.calls == 1 or self.kind == 'compile' else ''} {time(self.total_ns / 1e6)}"


def longest_calls(syncs_steps: pd.DataFrame, steps: list[int], usual: list[int], idle_ns: float) -> str:
    """`25 cudaFree and 9 cudaMalloc take 250.7 ms on rank 0`, if these explain unusual idle time of some steps.

    `syncs_steps` is the table of that name, `idle_ns` how much longer devices were idle than usual. A device's window
    ends where the next step begins on the device. So where the calls in the CPU's steps explain less than half, those
    in the step behind each count as well. Empty if no call stands out.
    """
    after = {step + 1 for step in steps}
    named = ""
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
        calls = listed([f"{int(count):,} {name}" for name, count in taken["calls"].items()])
        take = "takes" if taken["calls"].sum() == 1 else "take"
        named = f"{calls} {take} {taken['total_ns'].sum() / 1e6:,.1f} ms on rank {rank}"
        if largest[names].sum() >= idle_ns / 2:
            break
    return named


def idle_rows(causes: dict[str, float] | None, *, runs_python: bool) -> Iterator[tuple[str, float]]:
    """Yield each cause of idle time worth a line, with its ns, the largest first."""
    if causes is None:
        return
    total = sum(causes[cause] for cause in IDLE_CAUSES)
    names = IDLE_CAUSES if runs_python else IDLE_CAUSES | _ROWS_WITHOUT_PYTHON
    for cause in sorted(IDLE_CAUSES, key=lambda name: -causes[name]):
        if total and causes[cause] >= _MENTIONED * total:
            yield names[cause], causes[cause]
