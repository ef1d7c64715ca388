"""Device time by kernel, operator and annotation, with wait, transfer and hidden time of communication.

A kernel's duration is device time whether it computes, moves data or only waits for other ranks. For communication the
tables say which of the two, and how much of it was hidden by computing. Definitions: docs/metrics/kernels.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.declaring import TableEntry, Topic, at_rank, each_rank, value
from ..core.frames import np, pd
from ..core.intervals import covered, spans
from ..core.kinds import COMM, COMPUTE, MEMORY, NEXT
from ..core.schema import Schema, bare, grouped
from ..core.tables.columns import DEVICE, KERNEL, OPERATOR, PARTIAL, PARTIAL_RUN, RANK
from ..errors import NothingMeasured
from ..metrics.over_steps import in_steps
from .values import WITH_DETAILS

if TYPE_CHECKING:
    from ..metrics.compute.contention import Slowdown
    from ..metrics.device.graphs import Captured
    from ..run.run import Run

_SHARES = {
    "calls": ("int64", "how often it ran"),
    "total_ns": ("int64", "sum of the durations"),
    "share_frac": ("Float64", "total_ns / sum of total_ns over the rows of these devices"),
    "mean_us": ("Float64", "total_ns / calls"),
    "min_us": ("Float64", "shortest"),
    "max_us": ("Float64", "longest"),
    "split_calls": ("Int64", "communication calls that could be split into wait and transfer; NA for compute"),
    "wait_ns": ("Int64", "waiting for other ranks in the calls that could be split; NA if none could"),
    "transfer_ns": ("Int64", "the rest of those calls"),
    "hidden_ns": ("Int64", "communication while the device computed; NA for compute, and where a file is damaged"),
    "hidden_net_ns": (
        "Int64",
        "hidden_ns less what compute took longer for it, by the rank's slowdown; NA where contention is not known",
    ),
    "wait_share_frac": ("Float64", "the part of share_frac that is waiting"),
    "transfer_share_frac": ("Float64", "the part of share_frac that is transfer"),
    "hidden_share_frac": ("Float64", "the part of share_frac that is hidden"),
    "blocks_per_sm": ("Float64", "mean over the calls that have it, weighted by duration"),
    "occupancy_frac": ("Float64", "estimated achieved occupancy, likewise"),
}  # fmt: skip
_ANNOTATION = {
    "annotation": ("string", "innermost annotation of your own around the launch; NA for launches outside of all"),
    "kind": ("string", "compute or comm; NA where both were launched in it"),
    "kernels": ("int64", "different kernels that were launched in it"),
}  # fmt: skip
_RANKS = {"ranks": ("int64", "ranks on which it ran")}

KERNELS = Schema("kernels", "kernel, all ranks and devices together", {
    **KERNEL, **_RANKS, **_SHARES, "partial": PARTIAL_RUN,
})  # fmt: skip
KERNELS_DEVICES = Schema("kernels_devices", "rank, device and kernel", {
    "rank": RANK, "device": DEVICE, **KERNEL, **_SHARES, "partial": PARTIAL,
})  # fmt: skip
OPERATORS = Schema("operators", "operator that launched kernels, all ranks and devices together", {
    **OPERATOR, **_RANKS, **_SHARES, "partial": PARTIAL_RUN,
})  # fmt: skip
OPERATORS_DEVICES = Schema("operators_devices", "rank, device and operator that launched kernels", {
    "rank": RANK, "device": DEVICE, **OPERATOR, **_SHARES, "partial": PARTIAL,
})  # fmt: skip
ANNOTATION_TIMES = Schema("annotation_times", "annotation in which kernels were launched, all ranks together", {
    **_ANNOTATION, **_RANKS, **_SHARES, "partial": PARTIAL_RUN,
})  # fmt: skip
ANNOTATION_TIMES_DEVICES = Schema(
    "annotation_times_devices", "rank, device and annotation in which kernels were launched", {
    "rank": RANK, "device": DEVICE, **_ANNOTATION, **_SHARES, "partial": PARTIAL,
})  # fmt: skip

_DEVICE_TIME = (
    "total_ns", "share_frac", "wait_share_frac", "transfer_share_frac", "hidden_share_frac", "hidden_net_ns", "calls",
    "split_calls",
    "mean_us", "min_us", "max_us", "occupancy_frac", "kind",
)  # fmt: skip
_COMM_SHARES = ("wait_share_frac", "transfer_share_frac", "hidden_share_frac")

_ON = ["rank", "device"]
_CALL = ["rank", "cycle", "device", "stream", "start_ns"]
_PARTS = ("split_calls", "wait_ns", "transfer_ns", "hidden_ns")
_WEIGHTED = ("blocks_per_sm", "occupancy_frac")


@value
def device_time(run: Run, placed_activities: pd.DataFrame, calls: pd.DataFrame, members: pd.DataFrame) -> pd.DataFrame:
    """One row per kernel that ran: of communication also wait, transfer and what computing hid."""
    found = _with_parts(placed_activities, calls, members)
    unknown = found["rank"].isin(run.partial_ranks) | (not run.has_starts)
    return found.assign(hidden_ns=found["hidden_ns"].mask(unknown))


@value
@each_rank
def sums_of_kernels(
    placed_activities: pd.DataFrame, calls: pd.DataFrame, members: pd.DataFrame, counted_steps: Collection[int]
) -> pd.DataFrame:
    """One row per rank, device and kernel, with what the tables below are made of; as if no file were damaged."""
    return _sums(in_steps(_with_parts(placed_activities, calls, members), counted_steps), ["name", "kind"])


@value
def kernel_sums(run: Run, sums_of_kernels: pd.DataFrame, slowdowns: Mapping[int, Slowdown]) -> pd.DataFrame:
    """One row per rank, device and kernel, with what the tables below are made of."""
    return _without_unknown(sums_of_kernels, run, slowdowns)


@value
@each_rank
def sums_of_operators(
    placed_activities: pd.DataFrame,
    calls: pd.DataFrame,
    members: pd.DataFrame,
    counted_steps: Collection[int],
    launched_in: pd.Series[str],
) -> pd.DataFrame:
    """One row per rank, device, operator and kernel that it launched; as if no file were damaged."""
    time = _with_parts(placed_activities, calls, members)
    return _sums_by_launch(in_steps(time, counted_steps), "operator", launched_in)


@value
def operator_sums(run: Run, sums_of_operators: pd.DataFrame, slowdowns: Mapping[int, Slowdown]) -> pd.DataFrame:
    """One row per rank, device, operator and kernel that it launched."""
    return _without_unknown(sums_of_operators, run, slowdowns)


@value
@each_rank
def sums_of_annotations(
    placed_activities: pd.DataFrame,
    calls: pd.DataFrame,
    members: pd.DataFrame,
    counted_steps: Collection[int],
    annotated_in: pd.Series[str],
) -> pd.DataFrame:
    """One row per rank, device, annotation and kernel launched in it; as if no file were damaged."""
    time = _with_parts(placed_activities, calls, members)
    return _sums_by_launch(in_steps(time, counted_steps), "annotation", annotated_in)


@value
def annotation_sums(run: Run, sums_of_annotations: pd.DataFrame, slowdowns: Mapping[int, Slowdown]) -> pd.DataFrame:
    """One row per rank, device, annotation and kernel launched in it."""
    return _without_unknown(sums_of_annotations, run, slowdowns)


@value
@at_rank
def launched_in(
    name: str,
    details: bool,
    is_of_cpus: bool,
    activities: pd.DataFrame,
    launches: pd.DataFrame,
    cpu_operators: pd.DataFrame,
    annotations: pd.DataFrame,
    captured_graphs: Captured,
) -> pd.Series[str]:
    """The operator of each activity of the run. Raises NothingMeasured if operators were not read."""
    from ..metrics.device.launches import operator_of_each

    if not details and not is_of_cpus:
        raise NothingMeasured(f"{name}: was read without operators; {WITH_DETAILS}")
    return operator_of_each(
        activities=captured_graphs.launched(activities),
        launches=captured_graphs.beside("launches", launches),
        cpu_operators=captured_graphs.beside("cpu_operators", cpu_operators),
        annotations=captured_graphs.beside("annotations", annotations),
    )


@value
@at_rank
def annotated_in(
    name: str,
    details: bool,
    activities: pd.DataFrame,
    launches: pd.DataFrame,
    annotations: pd.DataFrame,
    captured_graphs: Captured,
) -> pd.Series[str]:
    """The annotation of each activity of the run. Raises NothingMeasured if annotations were not read."""
    from ..metrics.device.launches import annotation_of_each

    if not details:
        raise NothingMeasured(f"{name}: was read without annotations; {WITH_DETAILS}")
    return annotation_of_each(
        activities=captured_graphs.launched(activities),
        launches=captured_graphs.beside("launches", launches),
        annotations=captured_graphs.beside("annotations", annotations),
    )


@TableEntry(
    KERNELS,
    Topic.time,
    "Device time by kernel, operator or annotation.",
    "kernels.md#by-kernel",
    command="table kernels",
    after="predictions",
    shown=(*_DEVICE_TIME, "name", "partial"),
    narrow=("name", "total_ns", "share_frac", "calls", *_COMM_SHARES, "mean_us", "kind"),
    optional=("hidden_net_ns",),
    in_steps=True,
)  # fmt: skip
def kernels(kernel_sums: pd.DataFrame) -> pd.DataFrame:
    """One row per kernel, all ranks and devices together."""
    return KERNELS.conform(_shares(kernel_sums, [], ["name", "kind"]))


@TableEntry(
    KERNELS_DEVICES,
    Topic.time,
    "Device time by kernel, rank and device.",
    "kernels.md#by-kernel",
    command="table kernels --rank all",
    shown=("rank", "device", *_DEVICE_TIME, "name", "partial"),
    narrow=("rank", "device", "name", "total_ns", "share_frac", "calls", *_COMM_SHARES, "mean_us", "kind"),
    optional=("hidden_net_ns",),
    in_steps=True,
)  # fmt: skip
def kernels_devices(kernel_sums: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device and kernel."""
    return KERNELS_DEVICES.conform(_shares(kernel_sums, _ON, ["name", "kind"]).drop(columns="ranks"))


@TableEntry(
    OPERATORS,
    Topic.time,
    "Device time by the operator that launched the kernels.",
    "kernels.md#by-operator",
    command="table kernels --by operator",
    shown=(*_DEVICE_TIME, "operator", "partial"),
    narrow=("operator", "total_ns", "share_frac", "calls", *_COMM_SHARES, "mean_us", "kind"),
    optional=("hidden_net_ns",),
    in_steps=True,
    by_launch=True,
)  # fmt: skip
def operators(operator_sums: pd.DataFrame) -> pd.DataFrame:
    """One row per operator that launched kernels, all ranks and devices together. Needs a run with `details`."""
    return OPERATORS.conform(_by_launch(operator_sums, "operator", []))


@TableEntry(
    OPERATORS_DEVICES,
    Topic.time,
    "Device time by operator, rank and device.",
    "kernels.md#by-operator",
    command="table kernels --by operator --rank all",
    shown=("rank", "device", *_DEVICE_TIME, "operator", "partial"),
    narrow=("rank", "device", "operator", "total_ns", "share_frac", "calls", *_COMM_SHARES, "mean_us", "kind"),
    optional=("hidden_net_ns",),
    in_steps=True,
    by_launch=True,
)  # fmt: skip
def operators_devices(operator_sums: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device and operator that launched kernels. Needs a run with `details`."""
    return OPERATORS_DEVICES.conform(_by_launch(operator_sums, "operator", _ON).drop(columns="ranks"))


@TableEntry(
    ANNOTATION_TIMES,
    Topic.time,
    "Device time by the annotation in which kernels were launched.",
    "kernels.md#by-annotation",
    command="table kernels --by annotation",
    shown=(*_DEVICE_TIME, "annotation", "partial"),
    narrow=("annotation", "total_ns", "share_frac", "calls", *_COMM_SHARES, "mean_us", "kind"),
    optional=("hidden_net_ns",),
    in_steps=True,
    by_launch=True,
)  # fmt: skip
def annotation_times(annotation_sums: pd.DataFrame) -> pd.DataFrame:
    """One row per annotation of the user in which kernels were launched, all ranks together. Needs `details`."""
    return ANNOTATION_TIMES.conform(_by_launch(annotation_sums, "annotation", []))


@TableEntry(
    ANNOTATION_TIMES_DEVICES,
    Topic.time,
    "Device time by annotation, rank and device.",
    "kernels.md#by-annotation",
    command="table kernels --by annotation --rank all",
    shown=("rank", "device", *_DEVICE_TIME, "annotation", "partial"),
    narrow=("rank", "device", "annotation", "total_ns", "share_frac", "calls", *_COMM_SHARES, "mean_us", "kind"),
    optional=("hidden_net_ns",),
    in_steps=True,
    by_launch=True,
)  # fmt: skip
def annotation_times_devices(annotation_sums: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device and annotation in which kernels were launched. Needs a run with `details`."""
    return ANNOTATION_TIMES_DEVICES.conform(_by_launch(annotation_sums, "annotation", _ON).drop(columns="ranks"))


def _with_parts(activities: pd.DataFrame, calls: pd.DataFrame, members: pd.DataFrame) -> pd.DataFrame:
    """The activities that compute or communicate, in order, with `wait_ns`, `transfer_ns` and `hidden_ns`."""
    kinds = bare(activities["kind"])
    busy: pd.DataFrame = activities[(kinds != MEMORY) & (kinds != NEXT)]
    split = calls[["call_id", *_CALL]].merge(members[["call_id", "wait_ns", "transfer_ns"]], on="call_id")
    # Several activities of a stream may start at the same time if a trace has only whole microseconds.
    comm = busy.loc[bare(busy["kind"]) == COMM, _CALL]
    numbered = comm.assign(nth=comm.groupby(_CALL).cumcount(), place=comm.index)
    splits = numbered.merge(split.assign(nth=split.groupby(_CALL).cumcount()), on=[*_CALL, "nth"], how="left")
    splits = splits.set_index("place").reindex(busy.index)
    return busy.assign(
        wait_ns=splits["wait_ns"].astype("Int64"),
        transfer_ns=splits["transfer_ns"].astype("Int64"),
        hidden_ns=_hidden(busy),
    )


def _hidden(busy: pd.DataFrame) -> pd.Series[int]:
    """Time during which the device computed behind each communication activity, in ns; NA for other activities."""
    result = pd.Series(pd.NA, index=busy.index, dtype="Int64")
    for _, of_device in grouped(busy, _ON):
        starts, kinds = of_device["start_ns"].to_numpy(), bare(of_device["kind"])
        ends = starts + of_device["dur_ns"].to_numpy()
        comm, compute = kinds == COMM, kinds == COMPUTE
        computing = spans(starts[compute], ends[compute])
        result[of_device.index[comm]] = covered(computing, starts[comm], ends[comm])
    return result


def _without_unknown(sums: pd.DataFrame, run: Run, slowdowns: Mapping[int, Slowdown]) -> pd.DataFrame:
    """The sums with `hidden_net_ns`: in damaged files, or without starts, nobody knows what computing hid."""
    from ..metrics.compute.contention import with_net

    unknown = sums["rank"].isin(run.partial_ranks) | (not run.has_starts)
    return with_net(sums.assign(hidden_calls=sums["hidden_calls"].mask(unknown, 0)), slowdowns)


def _sums_by_launch(time: pd.DataFrame, by: str, around: pd.Series[str]) -> pd.DataFrame:
    """Sums by what was `around` each launch, which becomes the column `by`, and by kernel."""
    return _sums(time.assign(**{by: around.reindex(time.index)}), [by, "name", "kind"])


def _by_launch(sums: pd.DataFrame, by: str, over: Sequence[str]) -> pd.DataFrame:
    """Device time by the column `by`, which says what was around each launch."""
    keys = [*over, by]
    by_keys = sums.groupby(keys, dropna=False, sort=False)
    kinds = by_keys["kind"].nunique()
    known = pd.DataFrame({
        "kind": by_keys["kind"].first().where(kinds == 1),
        "kernels": by_keys["name"].nunique(),
    }).reset_index()  # fmt: skip
    return _shares(sums, over, [by]).merge(known, on=keys)


def _sums(time: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Sums by rank, device and name."""
    weights = {}
    for column in _WEIGHTED:
        weights[f"{column}_of_ns"] = time["dur_ns"].where(time[column].notna()).astype("Float64")
        weights[column] = time[column] * weights[f"{column}_of_ns"]
    by_name = time.assign(
        calls=1,
        split_calls=time["wait_ns"].notna().astype("Int64").where(time["kind"] == COMM),
        total_ns=time["dur_ns"],
        **weights,
    ).groupby([*_ON, *names], dropna=False, sort=False)  # fmt: skip
    return (
        by_name[["calls", "total_ns"]]
        .sum()
        .join(by_name[[*_PARTS, *weights]].sum(min_count=1))
        .assign(
            comm_calls=by_name["split_calls"].count(),
            hidden_calls=by_name["hidden_ns"].count(),
            min_ns=by_name["dur_ns"].min(),
            max_ns=by_name["dur_ns"].max(),
        )
        .reset_index()
    )


def _shares(sums: pd.DataFrame, over: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Sums by name, and their share of all activities on the same `over`."""
    unpriced = sums["hidden_ns"].notna() & sums["hidden_net_ns"].isna()
    by_name = sums.assign(unpriced=unpriced).groupby([*over, *names], dropna=False, sort=False)
    result = by_name[["calls", "total_ns", "comm_calls", "hidden_calls"]].sum()
    weights = [name for column in _WEIGHTED for name in (column, f"{column}_of_ns")]
    result = result.join(by_name[[*_PARTS, "hidden_net_ns", *weights]].sum(min_count=1))
    is_whole = result["hidden_calls"] == result["comm_calls"]
    result = result.assign(
        # What is hidden of some calls only would be taken for all of it.
        hidden_ns=result["hidden_ns"].where(is_whole),
        hidden_net_ns=result["hidden_net_ns"].where(is_whole & ~by_name["unpriced"].any()).round().astype("Int64"),
        ranks=by_name["rank"].nunique(),
        mean_us=result["total_ns"] / result["calls"] / 1e3,
        min_us=by_name["min_ns"].min() / 1e3,
        max_us=by_name["max_ns"].max() / 1e3,
        # Means weighted by duration, over the activities that have them.
        **{column: _ratio(result[column], result[f"{column}_of_ns"]) for column in _WEIGHTED},
    )
    whole = result.groupby(list(over))["total_ns"].transform("sum") if over else result["total_ns"].sum()
    for part in ("", "wait_", "transfer_", "hidden_"):
        result[f"{part}share_frac"] = _ratio(result[f"{part or 'total_'}ns"], whole)
    order = [*over, "total_ns"]
    result = result.drop(columns=["comm_calls", "hidden_calls", *(f"{column}_of_ns" for column in _WEIGHTED)])
    rows = result.reset_index().sort_values(
        [*order, *names], ascending=[*[True] * len(over), False, *[True] * len(names)]
    )
    return rows.reset_index(drop=True)


def _ratio(part: pd.Series[Any], whole: Any) -> pd.Series[float]:
    """Quotients as Float64; NA if the whole is 0 or either is NA."""
    known = pd.Series(whole, index=part.index).astype("Float64")
    return part.astype("Float64") / known.mask((known == 0).fillna(False), np.nan).astype("Float64")
