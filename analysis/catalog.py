"""Every table: its schema, columns shown, command and explanation. Whatever lists tables reads this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Concatenate, TypeVar

from . import tables
from .core.declaring import DECLARED, Arguments, InputKind, TableEntry, Topic
from .core.tables import (
    communication,
    comparison,
    cycles,
    hang,
    lab,
    sweeps,
    training,
)
from .core.tables.columns import NO_REGIONS, NO_SHAPES_RECORDED
from .tables.memory import BATCH_MEMORY, FRAGMENTS

if TYPE_CHECKING:
    import pandas as pd

Holder = TypeVar("Holder")

_TIMES_COMPARED = ("a_ns", "b_ns", "spread_a_ns", "spread_b_ns", "difference_ns")
_CHANCE = (
    "change_frac", "change_low_frac", "change_high_frac", "seen_frac", "p_value", "significant", "steps_a",
    "steps_b",
)  # fmt: skip
_STEP_PARTS = (
    "compute_alone_ns", "overlap_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_unsplit_ns",
    "exposed_memory_ns", "idle_ns",
)  # fmt: skip
_CELL = ("model", "parallel", "workers", "batch_size_per_worker")

_ENTRIES = (
    TableEntry(
        communication.ACTIVITIES,
        Topic.overview,
        "Everything that ran on a device, as the traces have it.",
        "breakdown.md#kinds-of-activities",
        of=InputKind.traces,
    ),
    TableEntry(
        hang.HANG_ORIGINS,
        Topic.waiting,
        "Which ranks are missing from which collective, from dumps.",
        "flight-recorder.md#who-is-named",
        of=InputKind.dumps,
        command="hang --by origin",
        title="Where waiting ends",
        none_found="nothing hangs",
        narrow=("ranks", "why", "collective", "seq", "process_group", "waiting", "waiting_ranks", "since_ns"),
    ),
    TableEntry(
        hang.HANG_WAITS,
        Topic.waiting,
        "Every collective or transfer in which ranks wait, and for whom they wait.",
        "flight-recorder.md#who-waits-for-whom",
        of=InputKind.dumps,
        command="hang --by wait",
        title="Who waits for whom",
        none_found="nobody waits",
        narrow=(
            "process_group", "collective", "seq", "waiting", "missing", "without_dump", "behind", "odd", "done",
            "description", "not_begun", "unsure", "since_ns",
        ),
    ),
    TableEntry(
        hang.HANG_POSITIONS,
        Topic.waiting,
        "How far each rank got in the groups in which ranks wait.",
        "flight-recorder.md#positions",
        of=InputKind.dumps,
        command="hang --by group",
        title="Where ranks stand",
        none_found="nobody waits",
        narrow=(
            "process_group", "ranks", "state", "last_done", "last_issued", "last_started", "description", "known_by",
        ),
    ),
    TableEntry(
        hang.HANG_MISMATCHES,
        Topic.waiting,
        "Where ranks of a group first made different calls.",
        "flight-recorder.md#mismatches",
        of=InputKind.dumps,
        command="hang --by mismatch",
        title="What does not match",
        none_found="ranks made the same calls in all that the dumps hold",
    ),
    TableEntry(
        hang.HANG_STACKS,
        Topic.waiting,
        "Where the code of each rank stands, equal stacks together.",
        "flight-recorder.md#stacks",
        of=InputKind.dumps,
        command="hang --by stack",
        title="Where code stands",
        none_measured="the dumps hold no stacks of the ranks that wait or are missing",
        narrow=("ranks", "state", "stack", "collective", "seq", "process_group"),
    ),
    TableEntry(
        FRAGMENTS,
        Topic.memory,
        "What each allocator holds and cannot give: fragments, and the request that failed.",
        "memory-snapshots.md#fragments",
        of=InputKind.snapshots,
        command="memory --by fragments",
        narrow=(
            "rank", "device", "allocated_bytes", "reserved_bytes", "inactive_bytes", "fragmentation_frac",
            "largest_free_bytes", "largest_request_bytes", "failed_request_bytes", "device_free_bytes", "active_bytes",
        ),
        optional=("failed_request_bytes", "device_free_bytes"),
    ),
    TableEntry(
        BATCH_MEMORY,
        Topic.memory,
        "The largest batch that each device has memory for, from runs with different ones.",
        "memory-batches.md#the-largest-batch",
        of=InputKind.batches,
        command="memory --by batch",
        below="note",
        optional=("note",),
    ),
    TableEntry(
        comparison.COMPARISON,
        Topic.across,
        "Where steps of B spend more time than steps of A, and whether that is more than chance.",
        "comparison.md#what-is-compared",
        of=InputKind.sides,
        command="compare --by measure",
        shown=(
            "measure", *_TIMES_COMPARED, "a_bytes", "b_bytes", "difference_bytes", *_CHANCE, "note",
        ),
        title="A step in B, compared with A",
        narrow=("measure", "a_ns", "b_ns", "difference_ns", "change_frac", "significant", "p_value", "note"),
    ),
    TableEntry(
        comparison.CHANGED_CAUSES,
        Topic.across,
        "Why steps of B take longer or less: what costs them more or less than steps of A, the largest first.",
        "comparison.md#causes-of-a-change",
        of=InputKind.sides,
        command="compare --by cause",
        shown=("what", "a_ns", "b_ns", "difference_ns", "difference_low_ns", "difference_high_ns", "cause"),
        title="What costs more or less",
        narrow=("what", "a_ns", "b_ns", "difference_ns"),
        below="cause",
        none_measured="not both runs can be played again",
        none_found="no cause that commtrace knows of costs more or less",
    ),
    TableEntry(
        comparison.CHANGED_KERNELS,
        Topic.across,
        "Kernels of A and B, the largest change of time first.",
        "comparison.md#what-is-compared",
        of=InputKind.sides,
        command="compare --by kernel",
        shown=(*_TIMES_COMPARED, *_CHANCE, "kind", "name", "name_a", "note"),
        optional=("name_a",),
        title="Kernels that differ most",
        narrow=("name", "a_ns", "b_ns", "difference_ns", "change_frac", "significant", "p_value"),
    ),
    TableEntry(
        comparison.CHANGED_OPERATORS,
        Topic.across,
        "Operators of A and B, the largest change of time first.",
        "comparison.md#what-is-compared",
        of=InputKind.sides,
        command="compare --by operator",
        shown=(*_TIMES_COMPARED, *_CHANCE, "kind", "operator", "note"),
        title="Operators that differ most",
        narrow=("operator", "a_ns", "b_ns", "difference_ns", "change_frac", "significant", "p_value"),
    ),
    TableEntry(
        comparison.CHANGED_SHAPES,
        Topic.across,
        "Operators of A and B by the shapes of their inputs, the largest change of time first.",
        "comparison.md#what-is-compared",
        of=InputKind.sides,
        command="compare --by shape",
        shown=(*_TIMES_COMPARED, *_CHANCE, "operator", "inputs", "dtype", "note"),
        title="Shapes that differ most",
        narrow=("operator", "inputs", "a_ns", "b_ns", "difference_ns", "change_frac", "significant", "p_value"),
        none_measured=NO_SHAPES_RECORDED,
    ),
    TableEntry(
        comparison.CHANGED_REGIONS,
        Topic.across,
        "Regions of A and B, the largest change of time first.",
        "comparison.md#what-is-compared",
        of=InputKind.sides,
        command="compare --by region",
        shown=(*_TIMES_COMPARED, *_CHANCE, "phase", "region", "note"),
        title="Regions that differ most",
        narrow=("region", "phase", "a_ns", "b_ns", "difference_ns", "change_frac", "significant", "p_value"),
        none_measured=NO_REGIONS,
    ),
    TableEntry(
        comparison.TREND,
        Topic.across,
        "How a typical step changes from run to run, and why.",
        "comparison.md#a-series-of-runs",
        of=InputKind.series,
        command="compare --by run",
        shown=(
            "run", "began_utc", "commit", "hosts", "step_ns", "change_ns", "beyond", "cause", "from_first_ns",
            "from_first_beyond", *_STEP_PARTS, "gain_ns", "verdict", "ranks", "steps", "step_spread_ns",
        ),
        narrow=(
            "run", "step_ns", "change_ns", "beyond", "cause", "compute_alone_ns", "exposed_transfer_ns",
            "exposed_wait_ns", "idle_ns", "overlap_ns", "from_first_ns", "from_first_beyond", "began_utc", "gain_ns",
            "verdict", "steps", "ranks", "step_spread_ns", "commit", "hosts", "exposed_unsplit_ns", "exposed_memory_ns",
        ),
        below="cause",
        optional=(
            "began_utc", "commit", "hosts", "step_spread_ns", "exposed_unsplit_ns", "exposed_memory_ns", "gain_ns",
            "overlap_ns",
        ),
        title="A step, from run to run",
    ),
    TableEntry(
        sweeps.TIMINGS,
        Topic.across,
        "How long an epoch of every cell of a sweep takes.",
        "scaling.md#epoch-time",
        of=InputKind.sweep,
    ),
    TableEntry(
        sweeps.SCALING,
        Topic.across,
        "Speedup and efficiency of every cell of a sweep.",
        "scaling.md#scaling",
        of=InputKind.sweep,
        command="table scaling",
        shown=(
            *_CELL, "status", "epoch_ns", "step_spread_frac", "samples_per_s", "epoch_work", "speedup_fixed_work",
            "speedup_scaled_work", "strong_efficiency_frac", "weak_efficiency_frac", "speedup_same_batch", "note",
        ),
        in_seconds=True,
        narrow=(
            *_CELL, "epoch_ns", "speedup_fixed_work", "strong_efficiency_frac", "speedup_scaled_work",
            "weak_efficiency_frac", "samples_per_s", "status", "note",
        ),
    ),
    TableEntry(
        sweeps.SUBTRACTION,
        Topic.across,
        "Communication by subtraction, beside the measured one.",
        "subtraction.md#communication-by-subtraction",
        of=InputKind.sweep,
        command="table subtraction",
        shown=(
            *_CELL, "status", "epoch_ns", "subtracted_compute_ns", "subtracted_comm_ns", "not_compute_ns", "loader_ns",
            "compute_ns", "comm_ns", "exposed_comm_ns", "exposed_wait_ns", "exposed_transfer_ns", "difference_ns",
            "subtracted_busbw_gb_per_s", "busbw_gb_per_s", "note",
        ),
        in_seconds=True,
        narrow=(
            *_CELL, "epoch_ns", "subtracted_comm_ns", "exposed_comm_ns", "exposed_wait_ns", "exposed_transfer_ns",
            "difference_ns", "status", "note",
        ),
    ),
    TableEntry(
        sweeps.MISTAKES,
        Topic.across,
        "The bandwidth with a known mistake and without it.",
        "subtraction.md#known-mistakes",
        of=InputKind.sweep,
        command="table subtraction --mistake all",
        shown=(
            *_CELL, "mistake", "reports", "subtracted_comm_ns", "subtracted_busbw_gb_per_s",
            "mistaken_busbw_gb_per_s", "mistaken_factor", "because", "note",
        ),
        in_seconds=True,
        narrow=(*_CELL, "mistake", "mistaken_factor", "because"),
    ),
    TableEntry(
        training.TRAINING,
        Topic.across,
        "Loss, accuracy and time of trainings, against a baseline.",
        "training.md#comparing-trainings",
        of=InputKind.trainings,
        command="table training",
        shown=(
            "run", "parallel", "workers", "global_batch_size", "optimizer", "lr_scaling", "lr", "after_epochs",
            "train_loss", "train_accuracy_frac", "test_loss", "test_accuracy_frac", "test_loss_difference",
            "test_accuracy_difference_frac", "epoch_ns", "speedup_over_baseline", "note",
        ),
        in_seconds=True,
        narrow=(
            "run", "global_batch_size", "test_accuracy_frac", "test_loss", "test_accuracy_difference_frac", "epoch_ns",
            "speedup_over_baseline", "lr", "workers", "parallel",
        ),
    ),
    TableEntry(
        training.TRAINING_EPOCHS,
        Topic.across,
        "Loss, accuracy and time of trainings by epoch.",
        "training.md#comparing-trainings",
        of=InputKind.trainings,
        command="table training --by epoch",
        shown=(
            "run", "after_epochs", "phase", "global_batch_size", "lr", "train_loss", "train_accuracy_frac",
            "test_loss", "test_accuracy_frac", "steps", "epoch_steps", "step_ns", "data_ns",
        ),
        in_seconds=True,
        narrow=(
            "run", "after_epochs", "train_loss", "test_loss", "test_accuracy_frac", "train_accuracy_frac", "lr",
            "step_ns", "global_batch_size",
        ),
    ),
    TableEntry(
        lab.LAYERS,
        Topic.machine,
        "Time, memory and power of every layer, as `layers` measured them.",
        "machine.md#layers",
        of=InputKind.machine,
        command="table layers",
        decimals=3,  # a ReLU stands beside a Conv2d that takes a thousand times as long
        below="note",
        optional=("note",),
        narrow=("layer", "kind", "input", "forward_ns", "backward_ns", "peak_bytes", "activation_bytes", "power_w"),
    ),
    TableEntry(
        lab.TIME_RATIOS,
        Topic.machine,
        "How much longer the passes of one model take than those of another.",
        "machine.md#two-models",
        of=InputKind.machine,
        command="table layers --by ratio",
        none_measured="it compares no models; run `commtrace layers` with --against",
    ),
    TableEntry(
        lab.CAPACITY,
        Topic.machine,
        "How many layers devices can train, as `capacity` found.",
        "machine.md#capacity",
        of=InputKind.machine,
        command="table capacity",
        below="note",
        optional=("note",),
        narrow=("devices", "fits", "split", "conv_layers", "linear_layers", "step_ns", "step_spread_ns", "peak_bytes"),
    ),
    TableEntry(
        cycles.CYCLES,
        Topic.scale,
        "What each profiling cycle of a run cost.",
        "cycles.md#a-row-for-each-cycle",
        of=InputKind.cycles,
        command="watch",
        shown=(
            "cycle", "ended_utc", "ranks", "world_size", "missing", "step_ns", "exposed_comm_frac", "exposed_wait_frac",
            "collective", "size_bytes", "busbw_gb_per_s", "blamed_rank", "caused_wait_frac", "verdict", "limits",
            "note", "partial",
        ),
        none_found="there are no cycles",
        narrow=(
            "cycle", "step_ns", "exposed_comm_frac", "exposed_wait_frac", "blamed_rank", "verdict", "busbw_gb_per_s",
        ),
    ),
)  # fmt: skip


def in_reading_order(entries: Iterable[TableEntry], declared: Iterable[TableEntry]) -> dict[str, TableEntry]:
    """The entries by name, and each declared table behind the one that it names, or at the end.

    Raises LookupError where there is none of that name.
    """
    found = list(entries)
    missing = list(reversed([*declared]))  # so that of two behind the same one the first is next to it
    while missing:
        names = [entry.name for entry in found]
        entry = next((one for one in missing if one.after is None or one.after in names), None)
        if entry is None:
            raise LookupError(f"tables declared behind no other: {', '.join(one.name for one in missing)}")
        found.insert(len(found) if entry.after is None else names.index(entry.after) + 1, entry)
        missing.remove(entry)
    return {entry.name: entry for entry in found}


for _module in iter_modules(tables.__path__, f"{tables.__name__}."):
    import_module(_module.name)

CATALOG: Mapping[str, TableEntry] = in_reading_order(_ENTRIES, DECLARED)
"""The tables by name, in the order in which people read about them."""


def described(
    method: Callable[Concatenate[Holder, Arguments], pd.DataFrame],
) -> Callable[Concatenate[Holder, Arguments], pd.DataFrame]:
    """Have the table that this method makes say in `attrs` what its columns mean; it has the name of the method."""
    schema = CATALOG[method.__name__].schema

    @wraps(method)
    def table(holder: Holder, /, *args: Arguments.args, **options: Arguments.kwargs) -> pd.DataFrame:
        return schema.described(method(holder, *args, **options))

    return table
