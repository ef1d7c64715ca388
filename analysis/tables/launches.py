"""Duration of launches: of the call, and from its end until the launched work begins.

A call may launch several activities, as for a CUDA graph. Then what it launched begins with the first of them, and its
running time is the sum of all.

Source: HolisticTraceAnalysis 0.6.1, get_cuda_kernel_launch_stats: launch_delay is the start of the kernel minus the end
of the call, at least 0, and its cutoffs are 50 us for calls and 100 us for delays. There a row is a call, and only
calls of some names count; here it is a kind or name of activities, and any call of the same correlation counts.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ..core.declaring import TableEntry, Topic, each_rank
from ..core.frames import np, pd
from ..core.kinds import NEXT
from ..core.schema import Schema, bare, grouped
from ..core.tables.columns import PARTIAL, RANK
from ..metrics.over_steps import in_steps

if TYPE_CHECKING:
    from ..metrics.device.idle import HostTables

_COLUMNS = {
    "activities": ("int64", "kernels, copies and fills"),
    "launches": ("Int64", "calls of the runtime or driver that launched them; one launch of a graph is one call"),
    "unlaunched": ("Int64", "activities without such a call in the trace"),
    "call_ns": ("Int64", "CPU time in these calls"),
    "call_mean_us": ("Float64", "call_ns / launches"),
    "delay_mean_us": ("Float64", "from the end of a call to the start of the first that it launched, mean; at least 0"),
    "delay_median_us": ("Float64", "the same, median"),
    "delay_max_us": ("Float64", "the same, longest"),
    "ran_ns": ("int64", "sum of the durations of the activities"),
    "short_kernels": ("Int64", "calls that took longer than all that they launched"),
    "long_calls": ("Int64", "calls of more than 50 us"),
    "long_delays": ("Int64", "delays of more than 100 us"),
    "note": ("string", "why something is NA"),
    "partial": PARTIAL,
}  # fmt: skip
LAUNCH_TIMES = Schema("launches", "rank and kind of activity", {
    "rank": RANK, "kind": ("string", "compute, comm or memory"), **_COLUMNS,
})  # fmt: skip
LAUNCH_TIMES_NAMES = Schema("launches_names", "rank and kernel, copy or fill", {
    "rank": RANK, "name": ("string", "kernel, copy or fill"), "kind": ("string", "compute, comm or memory"),
    **_COLUMNS,
})  # fmt: skip
_SHOWN = (
    "activities", "launches", "call_ns", "call_mean_us", "delay_median_us", "delay_mean_us", "delay_max_us", "ran_ns",
    "short_kernels", "long_calls", "long_delays", "unlaunched", "note", "partial",
)  # fmt: skip
_NARROW = (
    "launches", "call_ns", "call_mean_us", "delay_median_us", "short_kernels", "long_delays", "long_calls",
    "delay_max_us", "ran_ns", "unlaunched", "note",
)  # fmt: skip
NOTHING_LAUNCHES = "no device but CPUs ran anything, and these have no launches"

NONE_LAUNCHED = "no call in the trace launched these"
LONG_CALL_NS, LONG_DELAY_NS = 50_000, 100_000

_NEEDED = ["rank", "cycle", "device", "kind", "name", "start_ns", "dur_ns", "correlation"]
_UNKNOWN = -(1 << 63)
_NOT_KNOWN = ("launches", "unlaunched", "call_ns", "short_kernels", "long_calls", "long_delays")
_MEANS = ("call_mean_us", "delay_mean_us", "delay_median_us", "delay_max_us")


@TableEntry(
    LAUNCH_TIMES,
    Topic.time,
    "What launching costs the CPU, and how long kernels wait for their start.",
    "launches.md#launches",
    command="table launches",
    after="syncs_steps",
    shown=("rank", "kind", *_SHOWN),
    narrow=("rank", "kind", *_NARROW),
    none_measured=NOTHING_LAUNCHES,
    in_steps=True,
)
@each_rank
def launches(placed_activities: pd.DataFrame, counted_steps: Collection[int], host_tables: HostTables) -> pd.DataFrame:
    """One row per rank and kind of activity: calls that launched them, and delays. Times need `details`."""
    return LAUNCH_TIMES.conform(_table(in_steps(placed_activities, counted_steps), host_tables, ["kind"]))


@TableEntry(
    LAUNCH_TIMES_NAMES,
    Topic.time,
    "The same, by kernel.",
    "launches.md#launches",
    command="table launches --by name",
    shown=("rank", "name", *_SHOWN),
    narrow=("rank", "name", *_NARROW),
    none_measured=NOTHING_LAUNCHES,
    in_steps=True,
)
@each_rank
def launches_names(
    placed_activities: pd.DataFrame, counted_steps: Collection[int], host_tables: HostTables
) -> pd.DataFrame:
    """One row per rank and name of a kernel, copy or fill: calls that launched it, and delays.

    Those whose calls took longest are first.
    """
    ran = in_steps(placed_activities, counted_steps)
    table = LAUNCH_TIMES_NAMES.conform(_table(ran, host_tables, ["name", "kind"]))
    down = ["call_ns", "ran_ns"]
    return table.sort_values(["rank", *down], ascending=[True, False, False], kind="stable", ignore_index=True)


def _table(activities: pd.DataFrame, tables: HostTables, by: list[str]) -> pd.DataFrame:
    is_work = (bare(activities["device"]) != "cpu") & ~activities["kind"].isin([NEXT]).to_numpy()
    on_gpu = activities.loc[is_work, _NEEDED]
    keys = ["rank", *by]
    launched = [
        _launched(rows, tables, rank, cycle) for (rank, cycle), rows in grouped(on_gpu, ["rank", "cycle"], _NEEDED)
    ]
    every = pd.concat(launched, ignore_index=True) if launched else on_gpu.assign(call=0, called_ns=0, done_ns=0)
    groups = every.groupby(keys, sort=True)
    counts = groups.agg(activities=("call", "size"), ran_ns=("dur_ns", "sum")).reset_index()
    if not tables.is_read:
        from ..metrics.device.idle import NOT_READ

        not_known: dict[str, Any] = dict.fromkeys((*_NOT_KNOWN, *_MEANS), pd.NA)
        return counts.assign(**not_known, note=NOT_READ)
    counts["unlaunched"] = groups["call"].agg(lambda calls: int((calls < 0).sum())).to_numpy(dtype=np.int64)
    merged = counts.merge(_of_calls(every[every["call"] >= 0], keys), how="left", on=keys)
    merged["launches"] = merged["launches"].fillna(0)
    merged["note"] = pd.Series(pd.NA, index=merged.index, dtype="string").mask(merged["launches"] == 0, NONE_LAUNCHED)
    return merged


def _launched(activities: pd.DataFrame, tables: HostTables, rank: int, cycle: int) -> pd.DataFrame:
    """The activities of a rank in one cycle with their launching call, -1 for none."""
    host = tables.host(rank, cycle)
    call = host.launch_of(activities["correlation"].to_numpy(dtype=np.int64, na_value=_UNKNOWN))
    start, end = (np.append(times, 0)[call] for times in (host.calls.start_ns, host.calls.end_ns))
    return activities.assign(call=call, called_ns=start, done_ns=end)


def _of_calls(launched: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Sums over the calls of each key."""
    calls = launched.groupby([*keys, "cycle", "call"], sort=False).agg(
        start_ns=("start_ns", "min"), ran_ns=("dur_ns", "sum"), called_ns=("called_ns", "first"),
        done_ns=("done_ns", "first"),
    ).reset_index()  # fmt: skip
    took, delay = calls["done_ns"] - calls["called_ns"], (calls["start_ns"] - calls["done_ns"]).clip(lower=0)
    calls = calls.assign(
        took_ns=took, delay_us=delay / 1000, is_short=calls["ran_ns"] < took, is_long=took > LONG_CALL_NS,
        is_late=delay > LONG_DELAY_NS,
    )  # fmt: skip
    sums = calls.groupby(keys, sort=True).agg(
        launches=("took_ns", "size"), call_ns=("took_ns", "sum"), delay_mean_us=("delay_us", "mean"),
        delay_median_us=("delay_us", "median"), delay_max_us=("delay_us", "max"), short_kernels=("is_short", "sum"),
        long_calls=("is_long", "sum"), long_delays=("is_late", "sum"),
    ).reset_index()  # fmt: skip
    return sums.assign(call_mean_us=sums["call_ns"] / sums["launches"] / 1000)
