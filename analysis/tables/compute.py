"""What devices computed: operators with their shapes, and how much of the peak a step reached."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, Worst, each_rank, value
from ..core.schema import Schema
from ..core.tables.columns import DEVICE, NO_SHAPES_RECORDED, NO_STEPS_MARKED, PARTIAL, PARTIAL_RUN, RANK, STEP_NUMBER
from ..metrics.compute.peaks import DevicePeaks
from ..metrics.over_steps import in_steps

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.compute.gpu_clocks import Clock
    from ..run.run import Run

SHAPES = Schema("shapes", "operator with the shapes and types of its inputs, all ranks and devices together", {
    "operator": ("string", "outermost operator with a formula for its FLOPs around the launch, else the innermost one"),
    "category": ("string", "what people sort by: GEMM, convolution, attention forward, elementwise, ..."),
    "inputs": ("string", "shapes of its inputs that are tensors, such as 8944x1024 1024x2816"),
    "dtype": ("string", "element type of the first matrix, else of the first tensor, as in torch; tf32 if it ran so"),
    "calls": ("int64", "calls of the operator that launched something"),
    "kernels": ("int64", "kernels, copies and fills that these launched; on CPU runs 0"),
    "total_ns": ("int64", "sum of the durations of these; on CPU runs of the operator without those that it called"),
    "share_frac": ("Float64", "total_ns / its sum over all rows"),
    "mean_us": ("Float64", "total_ns / calls"),
    "min_us": ("Float64", "the least that a call took"),
    "max_us": ("Float64", "the most that a call took"),
    "gflop_per_call": ("Float64", "1e9 floating-point operations of a call, as torch.utils.flop_counter counts them"),
    "mb_per_call": ("Float64", "1e6 bytes: those of all inputs and outputs, each once"),
    "tflop_per_s": ("Float64", "1e12 floating-point operations a second: gflop_per_call * calls / total_ns"),
    "tb_per_s": ("Float64", "1e12 bytes a second: mb_per_call * calls / total_ns"),
    "peak_frac": ("Float64", "tflop_per_s / peak of the devices for this dtype, dense; NA where that is not known"),
    "memory_frac": ("Float64", "tb_per_s / peak bandwidth of the devices' memory"),
    "peak_from": ("string", "where these peaks come from: table (data sheets), given, measured; NA without one"),
    "bound": ("string", "compute or memory: what takes longer at the peak; NA where it is not known"),
    "tensor_core_frac": ("Float64", "part of total_ns in kernels of tensor cores, by their names; NA if no name says"),
    "ranks": ("int64", "ranks on which it ran"),
    "slowest_rank": (
        "Int64",
        "rank whose mean call takes longest, of calls beside no communication; NA if fewer than two ranks have such",
    ),
    "slowest_over_frac": ("Float64", "how much longer than the median of all ranks that is"),
    "note": ("string", "why FLOPs are NA; how many a causal mask leaves"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

SHAPES_RANKS = Schema("shapes_ranks", "rank and device that ran shapes which other ranks ran, too", {
    "rank": RANK,
    "device": DEVICE,
    "shapes": (
        "int64",
        "operators with shapes that it called three times or more beside the same, and another rank as well",
    ),
    "compared_frac": ("Float64", "part of the time of its kernels, copies and fills in these"),
    "over_frac": ("Float64", "how much longer they took in sum than by the medians of the other ranks"),
    "typical_over_frac": ("Float64", "median over these shapes, weighted by time: how much longer a call takes"),
    "agreeing_frac": ("Float64", "part of the time in shapes that are slower by half of that or more; same kernels"),
    "extra_ns": ("int64", "how much longer they took, in sum"),
    "slow_at": (
        "string",
        "everything, products of matrices, a shape, or a shape, by another kernel; NA if it is as fast as others",
    ),
    "slow_over_frac": ("Float64", "how much longer that takes: the median over shapes, or the calls of the shape"),
    "operator": ("string", "where slow_at is a shape: the operator that took longer"),
    "inputs": ("string", "the shapes of its inputs"),
    "kernel": ("string", "the kernel that it ran there, the first of several"),
    "usual_kernel": ("string", "the kernel that most others ran; NA if it is the same"),
    "clock_mhz": (
        "Int64",
        "clock of the GPU's multiprocessors: mean while it computed, or when the capture ended; NA if not recorded",
    ),
    "usual_clock_mhz": ("Float64", "median of that of the other ranks"),
    "power_w": ("Float64", "power of the GPU, mean while it computed; NA if it was not sampled"),
    "usual_power_w": ("Float64", "median of that of the other ranks"),
    "temperature_c": ("Float64", "temperature of the GPU in °C, mean while it computed; NA if it was not sampled"),
    "usual_temperature_c": ("Float64", "median of that of the other ranks"),
    "clock_from": ("string", "where the clock is from: samples while it computed, or the end of the capture"),
    "slowed_by": ("string", "what held the clock down then: power cap, temperature, ..."),
    "note": ("string", "what else differs: the model of the device"),
    "partial": PARTIAL,
})  # fmt: skip

CATEGORIES = Schema("categories", "category of operators and kernels, all ranks and devices together", {
    "category": ("string", "what people sort by: GEMM, convolution, attention forward, elementwise, ..."),
    "operators": ("int64", "different operators that launched them; 0 where none is known"),
    "kernels": ("int64", "kernels, copies and fills; on CPU runs calls of operators"),
    "total_ns": ("int64", "sum of their durations, as in `shapes`"),
    "share_frac": ("Float64", "total_ns / its sum over all rows"),
    "with_flop_frac": ("Float64", "part of total_ns of which the FLOPs are known"),
    "tflop": ("Float64", "1e12 floating-point operations in that part; NA if there is none"),
    "tflop_per_s": ("Float64", "1e12 floating-point operations a second: tflop over the time of that part"),
    "short_kernels": ("int64", "kernels shorter than 10 us, about as long as a launch takes; on CPU runs 0"),
    "slowest_rank": ("Int64", "rank on which they take longest in sum; NA if there is one rank"),
    "slowest_over_frac": ("Float64", "how much longer than on the median of all ranks that is"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

_MFU = {
    "window_ns": ("int64", "as in `breakdown`; the times below add up to it exactly, NA counting as 0"),
    "at_peak_ns": ("Int64", "what its FLOPs would take at the device's dense peak for their dtype"),
    "below_peak_ns": ("Int64", "compute_ns - at_peak_ns: kernels slower than the peak, and those without FLOPs"),
    "exposed_transfer_ns": ("Int64", "communication without compute, data moves; NA if none of it could be split"),
    "exposed_wait_ns": ("Int64", "likewise, waiting for other ranks"),
    "exposed_unsplit_ns": ("int64", "likewise, in calls that could not be split into wait and transfer"),
    "exposed_memory_ns": ("int64", "only copies and fills"),
    "idle_ns": ("int64", "nothing runs: why, `account` and `idle` say"),
    "tflop": ("Float64", "1e12 floating-point operations of operators with a formula; NA if no shapes were recorded"),
    "mfu_frac": ("Float64", "at_peak_ns / window_ns; with one dtype, tflop / (window * peak)"),
    "mfu_causal_frac": (
        "Float64",
        "mfu_frac if attention counts as far as causal masks leave it; there it counts in full",
    ),
    "mfu_most_frac": (
        "Float64",
        "the same if kernels whose FLOPs are not known had run at the peak, or had as many as shapes allow",
    ),
    "compute_frac": ("Float64", "at_peak_ns / compute_ns: how near to the peak the device was while it computed"),
    "peak_from": ("string", "where the peak comes from: table (data sheets), given, measured; NA without one"),
    "without_flop_frac": (
        "Float64",
        "part of the time of kernels that multiply matrices, or may, whose FLOPs are not known",
    ),
    "note": ("string", "why columns are NA, or why mfu_frac is a lower bound"),
    "partial": PARTIAL,
}
MFU = Schema("mfu", "rank and device", {"rank": RANK, "device": DEVICE, **_MFU})
MFU_STEPS = Schema("mfu_steps", "rank, device and step", {
    "rank": RANK, "device": DEVICE, "step": STEP_NUMBER, **_MFU,
})  # fmt: skip

_SHAPES_SHOWN = (
    "operator", "inputs", "dtype", "category", "calls", "total_ns", "share_frac", "mean_us", "gflop_per_call",
    "mb_per_call", "tflop_per_s", "tb_per_s", "peak_frac", "memory_frac", "bound", "peak_from", "tensor_core_frac",
    "ranks", "slowest_rank", "slowest_over_frac", "note", "partial",
)  # fmt: skip

_SHAPES_NARROW = (
    "operator", "inputs", "share_frac", "mean_us", "tflop_per_s", "peak_frac", "tb_per_s", "calls", "dtype", "bound",
    "category", "slowest_rank", "slowest_over_frac", "memory_frac",
)  # fmt: skip

_RANKS_SHOWN = (
    "slow_at", "slow_over_frac", "typical_over_frac", "agreeing_frac", "over_frac", "extra_ns", "shapes",
    "compared_frac", "operator", "inputs", "clock_mhz", "usual_clock_mhz", "power_w",
    "usual_power_w", "temperature_c", "usual_temperature_c", "clock_from", "slowed_by", "kernel", "usual_kernel",
)  # fmt: skip

_CATEGORIES_SHOWN = (
    "category", "total_ns", "share_frac", "kernels", "short_kernels", "operators", "tflop", "tflop_per_s",
    "with_flop_frac", "slowest_rank", "slowest_over_frac", "partial",
)  # fmt: skip

_MFU_SHOWN = (
    "window_ns", "mfu_frac", "mfu_causal_frac", "mfu_most_frac", "at_peak_ns", "below_peak_ns", "exposed_transfer_ns",
    "exposed_wait_ns", "exposed_unsplit_ns", "exposed_memory_ns", "idle_ns", "tflop", "compute_frac",
    "without_flop_frac", "peak_from",
)  # fmt: skip


@TableEntry(
    MFU,
    Topic.time,
    "MFU: how much of its peak each device reached, and the rest.",
    "compute.md#how-much-of-the-peak",
    command="compute",
    after="idle_steps",
    shown=("rank", "device", *_MFU_SHOWN, "note", "partial"),
    narrow=("rank", "device", *_MFU_SHOWN),
    worst=Worst("mfu_frac", smallest=True),
    none_measured="no device shows any activity",
    in_steps=True,
    by_launch=True,
)
@each_rank
def mfu(
    breakdown: pd.DataFrame, computed: pd.DataFrame, counted_steps: Collection[int], device_peaks: DevicePeaks
) -> pd.DataFrame:
    """One row per rank and device: how much of its peak it reached, and where the rest went. Needs `details`."""
    from ..metrics.compute.mfu import mfu_rows

    return MFU.frame(mfu_rows(["rank", "device"], breakdown, in_steps(computed, counted_steps), device_peaks))


@TableEntry(
    MFU_STEPS,
    Topic.time,
    "The same, by step.",
    "compute.md#how-much-of-the-peak",
    command="compute --by step",
    shown=("rank", "device", "step", *_MFU_SHOWN, "note", "partial"),
    narrow=("rank", "device", "step", *_MFU_SHOWN),
    none_measured=f"{NO_STEPS_MARKED}, or use `compute` without --by step",
    by_launch=True,
)
@each_rank
def mfu_steps(breakdown_steps: pd.DataFrame, computed: pd.DataFrame, device_peaks: DevicePeaks) -> pd.DataFrame:
    """One row per rank, device and step: how much of its peak it reached. Needs `details`."""
    from ..metrics.compute.mfu import mfu_rows

    return MFU_STEPS.frame(mfu_rows(["rank", "device", "step"], breakdown_steps, computed, device_peaks))


@value
@each_rank
def sums_of_shapes(computed: pd.DataFrame, calls: pd.DataFrame, counted_steps: Collection[int]) -> pd.DataFrame:
    """What calls of each operator with the same inputs took on each device."""
    from ..metrics.compute.contention import company
    from ..metrics.compute.shapes import shape_sums

    work = in_steps(computed, counted_steps)
    return shape_sums(work.assign(beside=company(work, calls)))


@value
@each_rank
def usual_calls(computed: pd.DataFrame, calls: pd.DataFrame, counted_steps: Collection[int]) -> pd.DataFrame:
    """The usual call of each operator with the same inputs on each device, beside the same communication."""
    from ..metrics.compute.contention import company
    from ..metrics.compute.shapes_ranks import usual_of_devices

    work = in_steps(computed, counted_steps)
    return usual_of_devices(work.assign(beside=company(work, calls)))


@value
@each_rank
def sums_of_categories(computed: pd.DataFrame, counted_steps: Collection[int]) -> pd.DataFrame:
    """What each rank ran, by category and operator."""
    from ..metrics.compute.shapes import category_sums

    return category_sums(in_steps(computed, counted_steps))


@TableEntry(
    SHAPES,
    Topic.time,
    "How fast each operator computed, by the shapes of its inputs.",
    "compute.md#operators-and-their-shapes",
    command="compute --by shape",
    shown=_SHAPES_SHOWN,
    narrow=_SHAPES_NARROW,
    below="note",
    negligible=("share_frac",),
    none_measured=NO_SHAPES_RECORDED,
    in_steps=True,
    by_launch=True,
)
def shapes(sums_of_shapes: pd.DataFrame, device_peaks: DevicePeaks) -> pd.DataFrame:
    """One row per operator and shapes of its inputs, all ranks together: how fast it computed. Needs `details`."""
    from ..metrics.compute.shapes import shape_rows

    return SHAPES.frame(shape_rows(sums_of_shapes, device_peaks))


@value
def gpu_clocks(run: Run, counters: pd.DataFrame, counted_steps: Collection[int]) -> Mapping[tuple[int, str], Clock]:
    """The clock of each device, by rank and device, where counters or side files tell it."""
    from ..metrics.compute.gpu_clocks import clocks_of

    return clocks_of(run.gpu_clocks, counters, run.device_names, counted_steps)


@TableEntry(
    SHAPES_RANKS,
    Topic.time,
    "What each rank's device is slower at than the others.",
    "compute.md#slow-devices",
    command="compute --by rank",
    shown=("rank", "device", *_RANKS_SHOWN, "note", "partial"),
    narrow=("rank", "device", *_RANKS_SHOWN),
    worst=Worst("typical_over_frac"),
    none_measured="no operator of 5 us or more ran three times with the same shapes on two ranks; capture several "
    "ranks, and with record_shapes=True",
    in_steps=True,
    by_launch=True,
)
def shapes_ranks(run: Run, usual_calls: pd.DataFrame, gpu_clocks: Mapping[tuple[int, str], Clock]) -> pd.DataFrame:
    """One row per rank and device: what it is slower at than others that ran the same shapes. Needs `details`."""
    from ..metrics.compute.shapes_ranks import rows_of_devices

    return SHAPES_RANKS.frame(rows_of_devices(usual_calls, gpu_clocks, run.device_names))


@TableEntry(
    CATEGORIES,
    Topic.time,
    "The same by category: GEMM, attention, elementwise and others.",
    "compute.md#categories",
    command="compute --by category",
    shown=_CATEGORIES_SHOWN,
    narrow=_CATEGORIES_SHOWN,
    negligible=("share_frac",),
    none_measured="no device shows any activity",
    in_steps=True,
    by_launch=True,
)
def categories(sums_of_categories: pd.DataFrame) -> pd.DataFrame:
    """One row per category of operators and kernels, all ranks together. Needs `details`."""
    from ..metrics.compute.shapes import category_rows

    return CATEGORIES.frame(category_rows(sums_of_categories))
