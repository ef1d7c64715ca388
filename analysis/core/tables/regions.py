"""Tables of regions: where in the model the time of devices and CPUs goes."""

from __future__ import annotations

from ..schema import Schema
from .columns import DEVICE, PARTIAL, PARTIAL_RUN, RANK

REGION = {
    "region": (
        "string",
        "names of ranges around a launch, outermost first: record_function, NVTX, nn.Module",
    ),
    "phase": (
        "string",
        "backward; recompute: forward operators that run again in it; NA: called directly, forward, optimizer ...",
    ),
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
    **REGION, **_MEANS, **_SLOWEST, "partial": PARTIAL_RUN,
})  # fmt: skip

REGION_CLASSES = Schema("region_classes", "class of regions and phase: means over devices and the steps that count", {
    "region": (
        "string",
        "path of its regions, with * for numbers in which they differ: layers.*.mlp",
    ),
    "phase": REGION["phase"],
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
    "rank": RANK, "device": DEVICE, **REGION, **_MEANS, "partial": PARTIAL,
})  # fmt: skip

REGIONS_STEPS = Schema("regions_steps", "rank, device, step, region and phase", {
    "rank": RANK,
    "device": DEVICE,
    "step": ("Int64", "N of ProfilerStep#N; NA where no step is marked, then the row is of the whole window"),
    **REGION,
    "window_ns": ("int64", "of the step, as in `breakdown_steps`; self_ns of all its regions add up to it exactly"),
    **_took("Int64", "in this step"),
    "partial": PARTIAL,
})  # fmt: skip
