"""Memory of each device: its peak, what filled it, where that was allocated, and what grows. See `metrics/memory/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, each_rank, value
from ..core.schema import Schema
from ..core.tables.columns import COLLECTIVE, PARTIAL, RANK, STEP_NUMBER

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.device.idle import HostTables
    from ..metrics.memory.table import MemoryRows
    from ..metrics.typical_step import TypicalStep

_DEVICE = ("string", "CUDA ordinal on that rank, or `cpu`: also of runs with a GPU")
_REGION = ("string", "path of regions in which it was allocated: record_function, nn.Module; NA outside of all")
_PHASE = ("string", "backward; recompute: a forward pass that runs again in it; optimizer: its step; NA: anything else")
_OPERATOR = ("string", "innermost operator in which it was allocated that does not only allocate; NA outside of all")
_LINE = (
    "string",
    "first line of your own code on the stack; of traces with stacks, where your innermost function begins; else NA",
)
_GROWS_PER = (
    "string",
    "in what: step; without marked steps, cycle: from one backward pass to the next; else part: an eighth of the time",
)
_BY_CATEGORY = {
    "parameters_bytes": ("Int64", "allocated outside of steps, held through one, and as large as a gradient"),
    "gradients_bytes": ("Int64", "allocated in a backward pass and held beyond it"),
    "optimizer_state_bytes": ("Int64", "allocated in the step of an optimizer and held through a whole step or on"),
    "activations_bytes": ("Int64", "allocated in a forward pass and held into a backward pass"),
    "temporaries_bytes": ("Int64", "released in the phase in which they were allocated"),
    "communication_buffers_bytes": ("Int64", "allocated by an operator that hands a collective over"),
    "unknown_bytes": ("Int64", "held through a step or to the end, and nothing says what for"),
    "before_the_trace_bytes": ("Int64", "allocated before the first event: what for is in no trace; NA without totals"),
}
_NO_EVENTS = (
    "no allocation was recorded; capture with profile_memory=True, in torch.profiler.profile or as "
    "`commtrace run --profile-memory`"
)

_LIMITS, _NO_LIMIT = 0.9, float("inf")
"""Of a device: an allocator that holds so much has little left to take."""

DEVICE_MEMORY = Schema("memory", "rank and device: at the peak of its allocated memory", {
    "rank": RANK,
    "device": _DEVICE,
    "peak_allocated_bytes": (
        "int64",
        "most that is allocated at a time; above what the trace began with where totals are not recorded",
    ),
    "peak_reserved_bytes": ("Int64", "most that the allocator holds with its cache; NA where that is not recorded"),
    "cached_bytes": ("Int64", "reserved - allocated at the peak: cache and fragments; NA where that is not known"),
    "device_bytes": ("Int64", "memory of the device, as the trace lists its properties; NA where it does not"),
    "outside_bytes": (
        "Int64",
        "most that is used on it outside of torch as steps end, such as by NCCL; NA unless captured with --memory",
    ),
    "peak_ns": ("Int64", "when: on the clock of the rank's trace; NA of snapshots without times"),
    "step": ("Int64", "N of the ProfilerStep#N at that time; NA outside of all"),
    "region": _REGION,
    "phase": _PHASE,
    "operator": _OPERATOR,
    "line": _LINE,
    "collective": (COLLECTIVE[0], "largest collective that was issued by then and had not ended; NA if there is none"),
    "collective_bytes": ("Int64", "its size S"),
    **_BY_CATEGORY,
    "grows_bytes": (
        "Int64", "by how much what is allocated grows, on average; 0 if nothing adds up, NA if too little was recorded"
    ),
    "grows_per": _GROWS_PER,
    "note": ("string", "why something is NA"),
    "partial": PARTIAL,
})  # fmt: skip

MEMORY_STEPS = Schema("memory_steps", "rank, device and step: at the peak of its allocated memory in the step", {
    "rank": RANK,
    "device": _DEVICE,
    "step": STEP_NUMBER,
    "peak_allocated_bytes": (
        "int64", "most that is allocated in the step, with what it began with; without totals, above what was before"
    ),
    "peak_reserved_bytes": ("Int64", "most that the allocator holds in the step; NA where that is not recorded"),
    "end_allocated_bytes": ("int64", "allocated when the step ends"),
    "region": _REGION,
    "phase": _PHASE,
    "operator": _OPERATOR,
    **_BY_CATEGORY,
    "partial": PARTIAL,
})  # fmt: skip

ALLOCATIONS = Schema("allocations", "rank, device, category and place of allocation: at the peak, and what grows", {
    "rank": RANK,
    "device": _DEVICE,
    "category": ("string", "what the blocks are for: as the columns of `memory`"),
    "region": _REGION,
    "phase": _PHASE,
    "operator": _OPERATOR,
    "line": _LINE,
    "size_bytes": ("int64", "held at the peak of the device"),
    "share_frac": ("Float64", "size_bytes / all that is allocated then; NA where totals are not recorded"),
    "blocks": ("Int64", "number of blocks; NA of those before the trace, where it is not known"),
    "grows_bytes": ("Int64", "leak: by how much what is held grows here, on average; NA where it does not"),
    "grows_per": _GROWS_PER,
    "steps": ("Int64", "steps, cycles or parts in which it grew"),
    "of_steps": ("Int64", "of so many in all"),
    "partial": PARTIAL,
})  # fmt: skip

FRAGMENTS = Schema("fragments", "rank and device: what its allocator holds and cannot give, at the peak", {
    "rank": RANK,
    "device": _DEVICE,
    "allocated_bytes": ("int64", "used by tensors: falls where a release is asked for"),
    "active_bytes": ("int64", "allocated, and what other streams still use: falls where the release is done"),
    "reserved_bytes": ("int64", "all that the allocator holds"),
    "inactive_bytes": ("int64", "reserved_bytes - active_bytes"),
    "fragmentation_frac": ("float64", "inactive_bytes / reserved_bytes; NA where nothing is reserved"),
    "free_blocks": ("int64", "number of free pieces"),
    "largest_free_bytes": ("int64", "largest of them: a larger request needs a new segment"),
    "largest_request_bytes": ("Int64", "largest request in the history; NA if it has none"),
    "failed_request_bytes": ("Int64", "last request that ran out of memory; NA if none did"),
    "device_free_bytes": ("Int64", "free on the device then, outside of the allocator; NA if none did"),
    "private_pool_bytes": ("int64", "segments of pools of their own, as CUDA graphs have, at the end"),
    "note": ("string", "how sizes are known, and what the history lacks"),
})  # fmt: skip

CHECKPOINTING = Schema("checkpointing", "rank, device and class of regions: its activations computed again", {
    "rank": RANK,
    "device": _DEVICE,
    "region": ("string", "path of its regions, with * for numbers in which they differ: layers.*"),
    "instances": ("int64", "regions of this class, each of which is checkpointed by itself"),
    "activations_bytes": ("int64", "activations that were allocated in them and are held at the peak of the device"),
    "saves_low_bytes": ("int64", "how much lower the peak is, if of each the largest block is what it hands on"),
    "saves_high_bytes": ("int64", "the same if no block of it is"),
    "recompute_ns": (
        "Float64",
        "time in which the device runs their forward passes in a step, and would again; NA if no step or time is known",
    ),
    "partial": PARTIAL,
})  # fmt: skip

BATCH_MEMORY = Schema("batch_memory", "rank and device: the largest batch that fits, from runs with different ones", {
    "rank": RANK,
    "device": _DEVICE,
    "batches": ("string", "samples per rank and step of these runs"),
    "fixed_bytes": ("Int64", "allocated at the peak whatever the batch, on the line through the smallest and largest"),
    "per_sample_bytes": ("Int64", "more with each sample, on this line"),
    "limit_bytes": ("Int64", "what the allocator may take: --limit, or what the device has without outside_bytes"),
    "low_samples": ("Int64", "largest batch that fits, if the allocator reserves as much more than it gives as it did"),
    "high_samples": ("Int64", "larger ones do not fit: tensors alone need more than there is"),
    "note": ("string", "why something is NA; or that the peaks are not on one line"),
})  # fmt: skip


@value
@each_rank
def memory_rows(
    memory_events: pd.DataFrame,
    activities: pd.DataFrame,
    operator_calls: pd.DataFrame,
    host_tables: HostTables,
    calls: pd.DataFrame,
) -> MemoryRows:
    """The rows of all tables of memory, as each rests on the lives of all blocks."""
    from ..metrics.memory.table import explained_memory, rows_of_memory

    return rows_of_memory(explained_memory(memory_events, activities, operator_calls, host_tables), calls)


@value
@each_rank
def most_held(memory_events: pd.DataFrame) -> dict[tuple[int, str], int]:
    """The most that the allocator of each device holds, in bytes, by rank and device; where events say it."""
    from ..metrics.memory.held import most_held_by

    return most_held_by(memory_events)


@value
def nearly_full(
    most_held: Mapping[tuple[int, str], int], gpu_bytes: Mapping[int, Sequence[int]]
) -> dict[tuple[int, str], float]:
    """How much of its memory each device holds at most that memory limits, by rank and device: from 0.9 on."""
    shares = {
        key: held / (_bytes_of(gpu_bytes.get(key[0], ()), key[1]) or _NO_LIMIT) for key, held in most_held.items()
    }
    return {key: share for key, share in shares.items() if share >= _LIMITS}


@TableEntry(
    DEVICE_MEMORY,
    Topic.memory,
    "Peak memory of each rank's devices, when it was, and what filled it.",
    "memory.md#the-peak",
    command="table memory",
    after="experts_layers",
    none_measured=_NO_EVENTS,
    shown=(
        "rank", "device", "peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "cached_bytes", "step",
        "region", "phase", "operator", "line", "collective", "collective_bytes", *_BY_CATEGORY, "grows_bytes",
        "grows_per", "note", "partial",
    ),
    narrow=(
        "rank", "device", "peak_allocated_bytes", "peak_reserved_bytes", "step", "region", "activations_bytes",
        "before_the_trace_bytes", "gradients_bytes", "optimizer_state_bytes", "temporaries_bytes", "unknown_bytes",
        "cached_bytes", "operator", "collective", "grows_bytes",
    ),
    below="note",
    optional=(
        "region", "phase", "operator", "line", "collective", "collective_bytes", "grows_per", "note", *_BY_CATEGORY
    ),
)  # fmt: skip
def memory(
    memory_rows: MemoryRows, gpu_bytes: Mapping[int, Sequence[int]], outside_bytes: Mapping[tuple[int, str], int]
) -> pd.DataFrame:
    """One row per rank and device: its peak, when it was, and what filled it. Needs `details`."""
    return DEVICE_MEMORY.frame(
        row
        | {
            "device_bytes": _bytes_of(gpu_bytes.get(row["rank"], ()), row["device"]),
            "outside_bytes": outside_bytes.get((row["rank"], row["device"])),
        }
        for row in memory_rows.devices
    )


def _bytes_of(listed: Sequence[int], device: str) -> int | None:
    """The memory of a device by its number among those listed; None if it is not known."""
    number = int(device) if device.isdecimal() else len(listed)
    return (listed[number] or None) if number < len(listed) else None


@TableEntry(
    MEMORY_STEPS,
    Topic.memory,
    "The same by step.",
    "memory.md#the-peak",
    command="table memory --by step",
    none_measured=f"{_NO_EVENTS}; or no step is marked: call profiler.step() in the loop",
    narrow=(
        "rank", "device", "step", "peak_allocated_bytes", "end_allocated_bytes", "peak_reserved_bytes", "region",
        "activations_bytes", "gradients_bytes", "temporaries_bytes", "before_the_trace_bytes", "operator",
    ),
    optional=("region", "phase", "operator", *_BY_CATEGORY),
)  # fmt: skip
def memory_steps(memory_rows: MemoryRows) -> pd.DataFrame:
    """One row per rank, device and step: its peak, and what filled it. Needs `details`."""
    return MEMORY_STEPS.frame(memory_rows.steps)


@TableEntry(
    ALLOCATIONS,
    Topic.memory,
    "Where memory was allocated that is held at the peak, and what grows from step to step.",
    "memory.md#where-it-was-allocated-and-what-grows",
    command="table allocations",
    none_measured=f"{_NO_EVENTS}; torch 1.9 and older record no addresses",
    shown=(
        "rank", "device", "category", "region", "phase", "operator", "line", "size_bytes", "share_frac", "blocks",
        "grows_bytes", "grows_per", "steps", "of_steps", "partial",
    ),
    narrow=("rank", "device", "category", "region", "operator", "size_bytes", "share_frac", "grows_bytes", "line"),
    optional=("region", "phase", "operator", "line", "grows_bytes", "grows_per", "steps", "of_steps"),
)  # fmt: skip
def allocations(memory_rows: MemoryRows) -> pd.DataFrame:
    """One row per rank, device, category and place: what is held at the peak, and what grows. Needs `details`."""
    return ALLOCATIONS.frame(memory_rows.places)


@TableEntry(
    CHECKPOINTING,
    Topic.memory,
    "What checkpointing of each class of regions would take from the peak, and the time that it costs.",
    "memory.md#what-checkpointing-would-save",
    command="table memory --by region",
    after="allocations",
    none_measured=(
        "no activations of regions are held at the peak; regions are modules (with_modules=True) and record_function, "
        "and memory is in the trace with profile_memory=True"
    ),
    narrow=("rank", "device", "region", "saves_low_bytes", "saves_high_bytes", "recompute_ns", "activations_bytes"),
    optional=("recompute_ns",),
)  # fmt: skip
def checkpointing(memory_rows: MemoryRows, regions_ranks: pd.DataFrame, typical_step: TypicalStep) -> pd.DataFrame:
    """One row per rank, device and class of regions, those that save most first. Needs `details`."""
    from ..metrics.memory.recomputing import forward_ns, forward_times

    times = forward_times(regions_ranks) if typical_step.steps else {}
    rows = [
        key
        | {
            "region": each.region,
            "instances": len(each.regions),
            "activations_bytes": each.activations_bytes,
            "saves_low_bytes": each.saves_low_bytes,
            "saves_high_bytes": each.saves_high_bytes,
            "recompute_ns": forward_ns(times.get((key["rank"], key["device"]), {}), each.regions),
        }
        for key, each in sorted(memory_rows.recomputed, key=lambda row: (*row[0].values(), -row[1].saves_low_bytes))
    ]
    return CHECKPOINTING.frame(rows)
