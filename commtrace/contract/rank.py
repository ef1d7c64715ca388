"""<host>_<rank>.meta.json: one rank, from its device to the time of every step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from .limits import ClockAhead, Count, FromZero, Instant, Rank, Ranks
from .machine import Device, End, GpuState, Links, Machine, Numerics, Settings, Versions
from .modes import DpFacts, FsdpFacts, PipelineFacts
from .record import SCHEMA_VERSION, Doc, Needed, People, Record
from .run import ModelSize

META_SUFFIX = ".meta.json"
STILL_RUNNING = "still running, or killed before it could say why"
"""The reason why a capture or measurement is not complete, until the rank knows a better one."""

EpochPhase = Literal["warmup", "timed"]
Phase = Literal["idle", "warmup", "active"]
Keep = Literal["trace", "recording", "both"]


@dataclass(frozen=True)
class ScheduleFacts:
    """The profiler's cycles of steps."""

    wait: Annotated[int, People("unprofiled steps at the start of a cycle")]
    warmup: Annotated[int, People("profiled steps that are discarded")]
    active: Annotated[int, People("traced steps")]
    repeat: Annotated[int, People("number of cycles")]


@dataclass(frozen=True)
class ProfilerOptions:
    """The options of torch.profiler."""

    record_shapes: Annotated[bool, People("whether shapes of tensors are recorded")]
    with_stack: Annotated[bool, People("whether source lines are recorded")]
    profile_memory: Annotated[bool, People("whether allocations are recorded")]
    sync_events: Annotated[bool, People("whether CUDA's synchronisations are recorded")]
    kineto_buffer_mb: Annotated[
        int | None, People("MiB that Kineto's buffers for a GPU may take; null if nobody said", unit="MiB")
    ]


@dataclass(frozen=True)
class GroupFacts:
    """A process group that this rank is in."""

    name: Annotated[str, Doc("torch's name for the group", reads=Any)]
    desc: Annotated[str, Doc("torch's description of the group", reads=Any)]
    backend: Annotated[str, Doc("backend for each type of device", reads=Any)]
    ranks: Annotated[Sequence[Rank], Needed("its ranks, as numbered in the whole job")]


@dataclass(frozen=True)
class EpochTime:
    """One epoch on one rank, or as many steps of it as were asked for, without the profiler.

    `dur_ns = data_ns + step_ns`: waiting for the data loader, and everything else, from the copy to the device to the
    update of the weights. Testing is not included.
    """

    epoch: Annotated[int, People("number of the epoch, from 0")]
    phase: Annotated[EpochPhase, Needed("`timed`, or `warmup`, which does not count")]
    steps: Annotated[Count, Needed("number of steps")]
    samples: Annotated[int, People("number of samples that this rank trained on")]
    start_unix_ns: Annotated[int, People("when the epoch began, on the host's clock")]
    dur_ns: Annotated[int, People("how long the epoch took")]
    data_ns: Annotated[FromZero, Needed("time waiting for data")]
    step_ns: Annotated[Count, Needed("the rest of the time")]
    step_p10_ns: Annotated[FromZero | None, Doc("the same of a single step, 10th percentile", may_lack=True)] = None
    step_median_ns: Annotated[FromZero | None, Doc("median", may_lack=True)] = None
    step_p90_ns: Annotated[FromZero | None, Doc("90th percentile", may_lack=True)] = None


@dataclass(frozen=True)
class ClockOffset:
    """How far this rank's clock is ahead of that of `against_rank` when it shows `unix_ns`."""

    at: Annotated[End, Needed("which end of the capture")]
    unix_ns: Annotated[Instant, Needed("time on this rank's clock")]
    against_rank: Annotated[Literal[0], Needed("0: the rank that all others are compared with")]
    offset_ns: Annotated[ClockAhead, Needed("how far this rank's clock is ahead")]
    uncertainty_ns: Annotated[FromZero, Needed("largest possible error of the offset")]
    round_trips: Annotated[int, People("number of exchanges that it is derived from")]
    basis: Annotated[str, People("how it was measured")]


@dataclass(frozen=True)
class StepWork:
    """What the thread that trains and its process did in a step.

    That thread was blocked for `wall_ns - cpu_ns - ready_ns`: it slept, or waited for a file, a device, another rank.
    """

    wall_ns: Annotated[FromZero, Needed("how long the step took on the host's clock")]
    cpu_ns: Annotated[FromZero, Needed("how long the thread ran on a CPU")]
    ready_ns: Annotated[
        FromZero | None, Doc("how long the thread could have run, but had no CPU; null where the system does not say")
    ]
    process_cpu_ns: Annotated[int, People("how long all threads of the process ran on CPUs")]
    gc_ns: Annotated[FromZero, Needed("how long Python collected garbage, on any thread")]
    gc_collections: Annotated[Sequence[int], People("collections of each generation, from 0")]
    voluntary_switches: Annotated[int, People("how often the thread gave its CPU away to wait")]
    involuntary_switches: Annotated[int, People("how often it lost its CPU to another thread")]
    major_faults: Annotated[int, People("its accesses to memory that had to be read from disk")]
    blocks_read: Annotated[int, People("blocks of 512 bytes that it had read from disk")]
    blocks_written: Annotated[int, People("blocks of 512 bytes that it wrote, also those not yet on disk")]
    eval_ns: Annotated[FromZero, Needed("how long a model was evaluated: from `eval()` to `train()`, same weights")]
    checkpoint_ns: Annotated[FromZero, Needed("how long `torch.save` took")]
    compile_ns: Annotated[FromZero, Needed("how long torch.compile compiled")]


@dataclass(frozen=True)
class StepTime:
    """One step."""

    step: Annotated[FromZero, Needed("number of the step, from 0, as in `ProfilerStep#N`")]
    phase: Annotated[Phase, Doc("what the profiler did during the step", reads=str | None)]
    start_unix_ns: Annotated[int, People("when the step began, on the host's clock")]
    dur_ns: Annotated[FromZero, Needed("how long the step took")]
    work: Annotated[StepWork | None, Doc("what was done in a traced step", may_lack=True)] = None


@dataclass(frozen=True)
class StepMemory:
    """The memory of the rank's CUDA device in one step, as torch and the driver report it when the step ends."""

    step: Annotated[FromZero, Needed("number of the step, from 0, as in `steps`")]
    peak_allocated_bytes: Annotated[FromZero, Needed("most that torch had allocated in the step")]
    peak_reserved_bytes: Annotated[FromZero, Needed("most that torch's allocator held in the step")]
    outside_bytes: Annotated[
        FromZero, Needed("used on the device and not held by torch's allocator: NCCL, contexts, other processes")
    ]
    device_bytes: Annotated[FromZero, Needed("memory of the device")]


@dataclass(frozen=True, kw_only=True)
class RankFile(Record):
    """Written by every rank when the capture begins, and replaced as a whole after each trace and at the end."""

    schema_version: Annotated[int, Doc("version of this layout", reads=Any)] = SCHEMA_VERSION
    rank: Annotated[Rank | None, Doc("number of this rank in the job, from 0", always=True)]
    local_rank: Annotated[int, People("number of this rank on its host, from 0")]
    world_size: Annotated[Ranks | None, Doc("number of ranks in the job", always=True)]
    host: Annotated[str | None, Doc("host name", always=True)]
    pid: Annotated[int, People("process id")]
    worker: Annotated[str, People("what the names of this rank's files begin with")]
    device: Annotated[Device, Doc("the device that the rank uses")]
    links: Annotated[Links | None, People("NVLink, PCIe and the other GPUs of the host, as NVML reports them")]
    links_reason: Annotated[str | None, People("why `links` is null")]
    schedule: Annotated[ScheduleFacts, People("which steps the profiler sees")]
    batch_size_per_rank: Annotated[
        Count | None, Doc("samples per step on this rank; null if ranks share each batch, or if it is not known")
    ]
    model: Annotated[ModelSize | None, Doc("size of the whole model; null if not known")]
    versions: Annotated[Versions, Doc("versions that the rank ran with")]
    machine: Annotated[Machine, Doc("the machine that the rank ran on")]
    settings: Annotated[Settings, People("environment variables that change how communication behaves")]
    numerics: Annotated[Numerics, People("switches of torch that change how fast it computes")]
    profiler: Annotated[ProfilerOptions, People("options of torch.profiler")]
    step_clock: Annotated[
        str, People("how `steps` are timed: `host` for its clock, `cuda_event` for events on the stream")
    ]
    process_groups: Annotated[
        Sequence[GroupFacts], Doc("process groups that the rank is in; those in the trace come first")
    ] = ()
    dp: Annotated[DpFacts | None, Doc("nn.DataParallel; null for other models")] = None
    ddp: Annotated[
        Mapping[str, Any] | None,
        People("DistributedDataParallel: torch's own logging data, times in ns, sizes in bytes; null for other models"),
    ] = None
    fsdp: Annotated[FsdpFacts | None, People("FSDP2; null for other models")] = None
    pipeline: Annotated[PipelineFacts | None, People("this rank's stage of a pipeline; null for other models")] = None
    dataset_samples: Annotated[Count | None, Doc("samples in the data set, over all ranks", may_lack=True)] = None
    full_epoch_steps: Annotated[
        Count | None, Doc("steps of this rank in a whole epoch, at its last batch size", may_lack=True)
    ] = None
    epochs: Annotated[
        Sequence[EpochTime] | None, Doc("timed epochs, and warm-up epochs before them", may_lack=True)
    ] = None
    clock_probe: Annotated[
        Sequence[ClockOffset] | None, Doc("how far this rank's clock was ahead of rank 0's; null if not measured")
    ] = None
    clock_probe_reason: Annotated[str | None, People("why `clock_probe` is null, or lacks one end")] = None
    gpu_states: Annotated[
        Sequence[GpuState], Doc("its GPU when the capture began, and when it ended; empty without NVML")
    ] = ()
    absent_ranks: Annotated[
        Sequence[Rank], Doc("ranks that took no part in the capture, as rank 0 sees it; empty on other ranks")
    ] = ()
    complete: Annotated[
        bool | None, Doc("whether every scheduled step was traced, as far as can be told, and timed", always=True)
    ] = False
    reason: Annotated[str | None, Doc("why the capture is not complete")] = None
    steps: Annotated[Sequence[StepTime], Doc("all steps, traced or not")] = ()
    step_memory: Annotated[
        Sequence[StepMemory], Doc("memory of the device in each step; empty without `--memory`, and on CPUs")
    ] = ()
    memory_snapshot: Annotated[
        str | None, People("file with a snapshot of torch's allocator; null if there is none")
    ] = None
    memory_snapshot_reason: Annotated[
        str | None, People("the error that the snapshot is of, or why there is none; null otherwise")
    ] = None
    traces: Annotated[
        Sequence[str], People("names of this rank's trace files and recordings that are kept, in order of cycles")
    ] = ()
    keep: Annotated[Keep, People("what was to be kept of each cycle: `trace`, `recording` or `both`")] = "trace"
    packing_reason: Annotated[str | None, People("why traces could not be packed; null if they could")] = None
    hand_over_reason: Annotated[
        str | None, People("why rank 0 did not get this rank's recordings; null if it did, or if nobody asked")
    ] = None


TIMED = ("rank", "batch_size_per_rank", "epochs", "dataset_samples", "full_epoch_steps")
"""The fields of a RankFile without which it has no timings."""
BESIDE_TIMED = ("model", "dp", "host", "device", "machine")
"""The fields that are read beside them, if they are there."""
