"""What kernels take longer because their device communicates meanwhile: the price of hiding communication."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..core.declaring import Later, TableEntry, Topic, each_rank, value
from ..core.schema import Schema
from ..core.tables.columns import COLLECTIVE, PARTIAL, RANK
from ..metrics.over_steps import in_steps

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.compute.contention import Hiding, Pair, Slowdown
    from ..metrics.compute.shared_by import Load

_CATEGORY = ("string", "what people sort by: GEMM, convolution, attention forward, elementwise, ...")
_BESIDE = {
    "beside_ns": ("int64", "time of kernels of which communication covers 90 % or more"),
    "paired_ns": ("int64", "the part of it in kernels whose time without communication is known"),
    "extra_ns": ("Int64", "paired_ns less as many times the median without communication; NA if nothing is paired"),
    "slowdown": ("Float64", "medians beside communication over those without, weighted by calls"),
    "slowdown_low": ("Float64", "it is at least this: end of an interval of 99 %"),
    "slowdown_high": ("Float64", "it is at most this"),
    "alone_calls": ("int64", "kernels without communication that are compared with"),
    "beside_calls": ("int64", "kernels in paired_ns"),
    "pooled": ("boolean", "some ran alone on other ranks only, whose own speed was taken out"),
    "note": ("string", "why the most of the rest of beside_ns is not paired"),
    "partial": PARTIAL,
}  # fmt: skip
CONTENTION = Schema("contention", "rank, kind of collective, and category of kernels that ran beside it", {
    "rank": RANK,
    "collective": COLLECTIVE,
    "category": _CATEGORY,
    **_BESIDE,
    "memory_frac": (
        "Float64",
        "mean of the counter DRAM BW at samples while the rank computes beside such collectives; NA of under three",
    ),
    "sm_active_frac": ("Float64", "likewise of SM Active: how much of the multiprocessors did anything"),
    "shared": (
        "string",
        "what both need: memory bandwidth (memory_frac >= 0.75), multiprocessors (<= 0.5, and these are busy), or NA",
    ),
})  # fmt: skip
CONTENTION_KERNELS = Schema("contention_kernels", "rank, kind of collective, and kernel that ran beside it", {
    "rank": RANK,
    "collective": COLLECTIVE,
    "category": _CATEGORY,
    "operator": ("string", "operator that launched it, as in `shapes`"),
    "inputs": ("string", "shapes of its inputs that are tensors; NA if none were recorded"),
    "dtype": ("string", "element type of the first matrix, else of the first tensor"),
    "kernel": ("string", "name of the kernel"),
    **_BESIDE,
})  # fmt: skip

_SHOWN = (
    "beside_ns", "paired_ns", "extra_ns", "slowdown", "slowdown_low", "slowdown_high", "alone_calls", "beside_calls",
    "pooled", "note", "partial",
)  # fmt: skip
_NARROW = (
    "extra_ns", "slowdown", "slowdown_low", "slowdown_high", "paired_ns", "beside_ns", "beside_calls", "alone_calls",
    "pooled",
)  # fmt: skip
_NONE_FOUND = "no kernel computes while its device communicates"


@value
@each_rank
def times_of_kernels(computed: pd.DataFrame, calls: pd.DataFrame, counted_steps: Collection[int]) -> pd.DataFrame:
    """What each kernel takes on a rank beside communication, and without."""
    from ..metrics.compute.contention import times_with_and_without

    return times_with_and_without(in_steps(computed, counted_steps), calls)


@value
@each_rank
def loads_of_devices(
    counter_samples: pd.DataFrame, activities: pd.DataFrame, calls: pd.DataFrame, counted_steps: Collection[int]
) -> dict[tuple[int, str | None], Load]:
    """How busy each rank's devices are while they compute beside a kind of collective, by both; by counters of GPUs."""
    from ..metrics.compute.shared_by import loads_beside

    return loads_beside(counter_samples, activities, in_steps(calls, counted_steps)) if len(counter_samples) else {}


@value
def contention_pairs(times_of_kernels: pd.DataFrame) -> list[Pair]:
    """Every kernel that ran beside communication, with what it takes without."""
    from ..metrics.compute.contention import beside_and_alone

    return beside_and_alone(times_of_kernels)


@value
def slowdowns(details: bool, contention_pairs: Later[list[Pair]]) -> dict[int, Slowdown]:
    """What hiding communication costs each rank; without operators, nobody knows."""
    from ..metrics.compute.contention import slowdown_of_ranks

    return slowdown_of_ranks(contention_pairs()) if details else {}


@value
def hiding(breakdown_of_typical_step: pd.DataFrame, slowdowns: dict[int, Slowdown]) -> Hiding | None:
    """What communication a typical step hides, and what that gains; None where contention is not known."""
    from ..metrics.compute.contention import hiding_of

    return hiding_of(breakdown_of_typical_step, slowdowns)


@TableEntry(
    CONTENTION,
    Topic.time,
    "What overlapping costs: kernels that run longer beside communication.",
    "contention.md#beside-and-alone",
    command="table contention",
    after="categories",
    shown=("rank", "collective", "category", *_SHOWN, "memory_frac", "sm_active_frac", "shared"),
    narrow=("rank", "collective", "category", *_NARROW, "shared", "memory_frac", "sm_active_frac"),
    optional=("memory_frac", "sm_active_frac", "shared"),
    below="note",
    none_found=_NONE_FOUND,
    in_steps=True,
    by_launch=True,
)
def contention(contention_pairs: list[Pair], loads_of_devices: dict[tuple[int, str | None], Load]) -> pd.DataFrame:
    """One row per rank, kind of collective and category of kernels beside it: what that costs. Needs `details`."""
    from ..metrics.compute.contention import contention_rows
    from ..metrics.compute.shared_by import with_loads

    rows = contention_rows(contention_pairs, ["rank", "collective", "category"])
    return CONTENTION.frame(with_loads(rows, loads_of_devices))


@TableEntry(
    CONTENTION_KERNELS,
    Topic.time,
    "The same, by kernel.",
    "contention.md#beside-and-alone",
    command="table contention --by kernel",
    shown=("rank", "collective", "operator", "inputs", "dtype", "kernel", *_SHOWN),
    narrow=("rank", "collective", "operator", "inputs", *_NARROW, "dtype", "kernel"),
    below="note",
    none_found=_NONE_FOUND,
    in_steps=True,
    by_launch=True,
)
def contention_kernels(contention_pairs: list[Pair]) -> pd.DataFrame:
    """One row per rank, kind of collective and kernel beside it: what that costs. Needs `details`."""
    from ..metrics.compute.contention import contention_rows

    keys = ["rank", "collective", "category", "operator", "inputs", "dtype", "kernel"]
    return CONTENTION_KERNELS.frame(contention_rows(contention_pairs, keys))
