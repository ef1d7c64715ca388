"""Where in the model the time of devices and CPUs goes. `metrics/regions/` finds what belongs to which region."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, each_rank, value
from ..core.schema import Schema
from ..core.tables.columns import DEVICE, NO_REGIONS, PARTIAL, PARTIAL_RUN, PHASE, RANK
from ..errors import NothingMeasured
from .values import WITH_DETAILS

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.compute.contention import Slowdown
    from ..metrics.device.graphs import Captured
    from ..metrics.device.idle import HostTables
    from ..metrics.regions.times import RegionTimes
    from ..metrics.typical_step import TypicalStep

_REGION = {
    "region": (
        "string",
        "names of ranges around a launch, outermost first: record_function, NVTX, nn.Module",
    ),
    "phase": PHASE,
}


def _took(whole: str, of: str) -> dict[str, tuple[str, str]]:
    """Columns of time; `whole` is the dtype of counts, `of` what they are: sums or means."""
    began = of.replace("in this step", "that began in this step on the device")
    return {
        "calls": (whole, f"how often it was entered, {of}; NA where it was not, as of backward operators"),
        "share_frac": ("Float64", "self_ns / window_ns"),
        "self_ns": ("int64", "time of the device in it, without regions inside: the sum of the next six"),
        "compute_ns": ("int64", "kernels launched in it, without regions inside; on CPU runs its operators"),
        "exposed_transfer_ns": (
            "Int64",
            "likewise communication without compute, data moves; NA if none could be split",
        ),
        "exposed_wait_ns": ("Int64", "likewise, waiting for other ranks"),
        "exposed_unsplit_ns": ("int64", "likewise, in calls that could not be split into wait and transfer"),
        "exposed_memory_ns": ("int64", "likewise only copies and fills"),
        "idle_ns": ("int64", "nothing ran, and what ended that was launched in it"),
        "hidden_ns": ("int64", "communication launched in it, while the device computed; not part of self_ns"),
        "hidden_net_ns": (
            "Int64",
            "hidden_ns less what compute took longer for it, by the rank's slowdown; NA where contention is not known",
        ),
        "total_ns": ("int64", "self_ns with that of the regions inside, of the same phase"),
        "cpu_self_ns": ("Int64", "CPU time in it, without regions inside; NA outside of all"),
        "cpu_ns": ("Int64", "CPU time in it, with regions inside, of the same phase"),
        "kernels": (whole, f"kernels, copies and fills launched in it, without regions inside, {began}"),
    }


_MEANS = _took("Float64", "mean of a step")

_SLOWEST = {
    "ranks": ("int64", "ranks that have it"),
    "slowest_rank": (
        "Int64",
        "rank on which it takes longest itself, waiting aside; NA if there is one rank, or all take as long",
    ),
    "slowest_over_ns": ("Int64", "how much longer than the median of the other ranks that is"),
    "slowest_over_frac": ("Float64", "slowest_over_ns / that median; NA if that is 0"),
}

REGIONS = Schema("regions", "region and phase: means over devices and the steps that count", {
    **_REGION, **_MEANS, **_SLOWEST, "partial": PARTIAL_RUN,
})  # fmt: skip

REGION_CLASSES = Schema("region_classes", "class of regions and phase: means over devices and the steps that count", {
    "region": (
        "string",
        "path of its regions, with * for numbers in which they differ: layers.*.mlp",
    ),
    "phase": PHASE,
    "instances": ("int64", "regions of this class"),
    **_MEANS,
    **_SLOWEST,
    "slowest_region": (
        "string",
        "of its regions the one that takes longest itself, waiting aside; NA if there is one",
    ),
    "slowest_region_over_ns": ("Int64", "how much longer than the median of the other regions that is"),
    "slowest_region_over_frac": ("Float64", "slowest_region_over_ns / that median"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

REGIONS_RANKS = Schema("regions_ranks", "rank, device, region and phase: means over the steps that count", {
    "rank": RANK, "device": DEVICE, **_REGION, **_MEANS, "partial": PARTIAL,
})  # fmt: skip

REGIONS_STEPS = Schema("regions_steps", "rank, device, step, region and phase", {
    "rank": RANK,
    "device": DEVICE,
    "step": ("Int64", "N of ProfilerStep#N; NA where no step is marked, then the row is of the whole window"),
    **_REGION,
    "window_ns": ("int64", "of the step, as in `breakdown_steps`; self_ns of all its regions add up to it exactly"),
    **_took("Int64", "in this step"),
    "partial": PARTIAL,
})  # fmt: skip

_SHOWN = (
    "calls", "share_frac", "self_ns", "compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_unsplit_ns",
    "exposed_memory_ns", "idle_ns", "hidden_ns", "hidden_net_ns", "total_ns", "cpu_self_ns", "cpu_ns", "kernels",
)  # fmt: skip
_NARROW = (
    "share_frac", "self_ns", "compute_ns", "idle_ns", "exposed_wait_ns", "exposed_transfer_ns", "total_ns", "cpu_ns",
    "hidden_ns", "hidden_net_ns", "exposed_memory_ns", "exposed_unsplit_ns", "calls", "kernels", "cpu_self_ns",
)  # fmt: skip
_SLOWEST_REGION = ("slowest_rank", "slowest_over_ns", "slowest_over_frac")
_SLOWEST_OF_CLASS = ("slowest_region", "slowest_region_over_ns", "slowest_region_over_frac")


@value
@each_rank
def times_of_regions(
    name: str,
    details: bool,
    activities: pd.DataFrame,
    operator_calls: pd.DataFrame,
    host_tables: HostTables,
    calls: pd.DataFrame,
    believed_splits: pd.DataFrame,
    captured_graphs: Captured,
) -> RegionTimes:
    """What regions took, without those inside. Raises NothingMeasured if operators were not read."""
    from ..metrics.regions.times import region_times

    if not details:
        raise NothingMeasured(f"{name}: was read without operators; {WITH_DETAILS}")
    return region_times(
        activities=activities,
        host_tables=host_tables,
        operator_calls=operator_calls,
        calls=calls,
        participation=believed_splits,
        captured=captured_graphs,
    )


@value
def time_of_classes(times_of_regions: RegionTimes) -> pd.DataFrame:
    """One row per rank, device, step, class of regions and phase: its device time, without the regions inside.

    Empty without any region. Raises NothingMeasured if operators were not read.
    """
    from ..metrics.regions.table import class_time

    found = class_time(times_of_regions)
    return found if times_of_regions.has_regions else found[:0]


@value
def excess_of_classes(times_of_regions: RegionTimes, typical_step: TypicalStep) -> pd.DataFrame:
    """One row per class of regions, phase and rank: how much longer than on the median of the other ranks.

    Raises NothingMeasured if operators were not read.
    """
    from ..metrics.regions.table import class_excess

    return class_excess(times_of_regions, typical_step.steps)


@TableEntry(
    REGIONS,
    Topic.time,
    "Where in the model time goes: record_function, nn.Module, NVTX.",
    "regions.md#what-a-region-takes",
    command="regions",
    after="categories",
    shown=("region", "phase", *_SHOWN, "ranks", *_SLOWEST_REGION, "partial"),
    narrow=("region", "phase", *_NARROW[:4], "slowest_rank", "slowest_over_ns", *_NARROW[4:]),
    negligible=("share_frac",),
    adds_up=True,
    none_measured=NO_REGIONS,
    in_steps=True,
    by_launch=True,
)  # fmt: skip
def regions(
    times_of_regions: RegionTimes, typical_step: TypicalStep, slowdowns: Mapping[int, Slowdown]
) -> pd.DataFrame:
    """One row per region and phase, the costliest first: means over ranks and steps. Needs `details`."""
    from ..metrics.regions.table import mean_regions

    return _table(REGIONS, times_of_regions, slowdowns, lambda times: mean_regions(times, typical_step.steps))


@TableEntry(
    REGION_CLASSES,
    Topic.time,
    "The same with repeated layers as one row, and the layer that stands out.",
    "regions.md#repeated-layers",
    command="regions --by class",
    shown=("region", "phase", "instances", *_SHOWN, "ranks", *_SLOWEST_REGION, *_SLOWEST_OF_CLASS, "partial"),
    narrow=(
        "region", "phase", "instances", *_NARROW[:4], *_SLOWEST_OF_CLASS[:2], "slowest_rank",
        "slowest_over_ns", *_NARROW[4:],
    ),
    negligible=("share_frac",),
    adds_up=True,
    none_measured=NO_REGIONS,
    in_steps=True,
    by_launch=True,
)  # fmt: skip
def region_classes(
    times_of_regions: RegionTimes, typical_step: TypicalStep, slowdowns: Mapping[int, Slowdown]
) -> pd.DataFrame:
    """One row per class of regions and phase, the costliest first: repeated layers as one. Needs `details`."""
    from ..metrics.regions.table import mean_classes

    return _table(REGION_CLASSES, times_of_regions, slowdowns, lambda times: mean_classes(times, typical_step.steps))


@TableEntry(
    REGIONS_RANKS,
    Topic.time,
    "Where in the model time goes by rank.",
    "regions.md#what-a-region-takes",
    command="regions --by rank",
    shown=("rank", "device", "region", "phase", *_SHOWN, "partial"),
    narrow=("rank", "region", "phase", *_NARROW),
    negligible=("share_frac",),
    adds_up=True,
    none_measured=NO_REGIONS,
    in_steps=True,
    by_launch=True,
)  # fmt: skip
def regions_ranks(
    times_of_regions: RegionTimes, typical_step: TypicalStep, slowdowns: Mapping[int, Slowdown]
) -> pd.DataFrame:
    """One row per rank, device, region and phase, the costliest first: means over steps. Needs `details`."""
    from ..metrics.regions.table import mean_regions_of_ranks

    return _table(
        REGIONS_RANKS, times_of_regions, slowdowns, lambda times: mean_regions_of_ranks(times, typical_step.steps)
    )


@TableEntry(
    REGIONS_STEPS,
    Topic.time,
    "The same by rank and step: those of a step add up to it, to the ns.",
    "regions.md#what-adds-up",
    command="regions --by step",
    shown=("rank", "device", "step", "region", "phase", *_SHOWN, "partial"),
    narrow=("rank", "step", "region", "phase", *_NARROW),
    negligible=("share_frac",),
    adds_up=True,
    none_measured=NO_REGIONS,
    by_launch=True,
)  # fmt: skip
def regions_steps(times_of_regions: RegionTimes, slowdowns: Mapping[int, Slowdown]) -> pd.DataFrame:
    """One row per rank, device, step, region and phase; those of a step add up to it. Needs `details`."""
    from ..metrics.regions.table import regions_by_step

    return _table(REGIONS_STEPS, times_of_regions, slowdowns, regions_by_step)


def _table(
    schema: Schema,
    times: RegionTimes,
    slowdowns: Mapping[int, Slowdown],
    rows: Callable[[RegionTimes], pd.DataFrame],
) -> pd.DataFrame:
    """The columns of the table in these rows; none where there is no region, but only time outside of all."""
    if not times.has_regions:
        return schema.empty()
    return schema.conform(rows(times.priced(slowdowns))[[column for column in schema.columns if column != "partial"]])
