"""<host>_<rank>.meta.json: one rank, from the device it has to the time of every step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ..schedule import Phase
from .fields import Doc, People, Record
from .machine import Device, Links, Machine, Settings, Versions
from .modes import DpFacts, FsdpFacts, PipelineFacts
from .run import SCHEMA_VERSION, ModelSize

EpochPhase = Literal["warmup", "timed"]
End = Literal["start", "end"]


@dataclass(frozen=True)
class ScheduleFacts:
    """The cycles of the profiler."""

    wait: Annotated[int, People("steps without the profiler")]
    warmup: Annotated[int, People("steps with it that are thrown away")]
    active: Annotated[int, People("steps that are traced")]
    repeat: Annotated[int, People("how many cycles there are")]


@dataclass(frozen=True)
class ProfilerOptions:
    """What torch.profiler was told to record."""

    record_shapes: Annotated[bool, People("shapes of tensors")]
    with_stack: Annotated[bool, People("source lines")]
    profile_memory: Annotated[bool, People("allocations")]


@dataclass(frozen=True)
class GroupFacts:
    """A process group that this rank is in."""

    name: Annotated[str, Doc("torch's name of it")]
    desc: Annotated[str, Doc("torch's description of it")]
    backend: Annotated[str, Doc("its backend for each type of device")]
    ranks: Annotated[Sequence[int], Doc("its ranks, as numbered in the job")]


@dataclass(frozen=True)
class EpochTime:
    """One epoch of one rank, or as many steps of it as were asked for; no profiler is on in it.

    `dur_ns = data_ns + step_ns`: waiting for the data loader, and everything else, from the copy to the device to the
    update of the weights. Testing is not in them.
    """

    epoch: Annotated[int, People("its number, from 0")]
    phase: Annotated[EpochPhase, Doc("whether it is one that counts")]
    steps: Annotated[int, Doc("its steps")]
    samples: Annotated[int, People("samples that this rank trained on")]
    start_unix_ns: Annotated[int, People("when it began, on the host's clock")]
    dur_ns: Annotated[int, People("how long it took")]
    data_ns: Annotated[int, Doc("waiting for data")]
    step_ns: Annotated[int, Doc("everything else")]


@dataclass(frozen=True)
class ClockOffset:
    """When this rank's clock shows `unix_ns` it is `offset_ns` ahead of that of `against_rank`."""

    at: Annotated[End, Doc("of the capture")]
    unix_ns: Annotated[int, Doc("time on this rank's clock")]
    against_rank: Annotated[int, Doc("0")]
    offset_ns: Annotated[int, Doc("how far this rank's clock is ahead")]
    uncertainty_ns: Annotated[int, Doc("the offset is right within so much")]
    round_trips: Annotated[int, People("exchanges that it follows from")]
    basis: Annotated[str, People("how it is known")]


@dataclass(frozen=True)
class StepTime:
    """One step."""

    step: Annotated[int, Doc("its number, from 0, as in `ProfilerStep#N`")]
    phase: Annotated[Phase, Doc("what the profiler did in it")]
    start_unix_ns: Annotated[int, People("when it began, on the host's clock")]
    dur_ns: Annotated[int, Doc("how long it took")]


@dataclass(frozen=True, kw_only=True)
class RankFile(Record):
    """Written by every rank when the capture begins, and replaced whole after each trace and at the end."""

    schema_version: Annotated[int, Doc("version of this layout")] = SCHEMA_VERSION
    rank: Annotated[int, Doc("number of this rank in the job, from 0")]
    local_rank: Annotated[int, People("its number on its host, from 0")]
    world_size: Annotated[int, Doc("ranks of the job")]
    host: Annotated[str, Doc("host name")]
    pid: Annotated[int, People("process id")]
    worker: Annotated[str, People("what the names of its files begin with")]
    device: Annotated[Device, Doc("the device it uses")]
    links: Annotated[Links | None, People("NVLink, PCIe and the other GPUs of the host, as NVML tells")]
    links_reason: Annotated[str | None, People("why `links` is null")]
    schedule: Annotated[ScheduleFacts, People("which steps the profiler sees")]
    batch_size_per_rank: Annotated[
        int | None, Doc("samples of a step of this rank; null where ranks share each batch, or nobody tells")
    ]
    model: Annotated[ModelSize | None, Doc("size of the whole model; null where it is not known")]
    versions: Annotated[Versions, Doc("versions it ran with")]
    machine: Annotated[Machine, Doc("the machine it ran on")]
    settings: Annotated[Settings, People("environment variables that change how communication behaves")]
    profiler: Annotated[ProfilerOptions, People("options of torch.profiler")]
    step_clock: Annotated[str, People("what `steps` are timed by: `host`, or `cuda_event` for events on the stream")]
    process_groups: Annotated[Sequence[GroupFacts], Doc("process groups it is in; the trace's own come first")] = ()
    dp: Annotated[DpFacts | None, Doc("of nn.DataParallel, else null")] = None
    ddp: Annotated[
        Mapping[str, Any] | None,
        People("of DistributedDataParallel, else null: torch's own logging data, times in ns, sizes in bytes"),
    ] = None
    fsdp: Annotated[FsdpFacts | None, People("of FSDP2, else null")] = None
    pipeline: Annotated[PipelineFacts | None, People("of a pipeline, else null")] = None
    dataset_samples: Annotated[int | None, Doc("samples of the data set, all ranks together", may_lack=True)] = None
    full_epoch_steps: Annotated[
        int | None, Doc("steps of this rank in the whole data set, at its last batch size", may_lack=True)
    ] = None
    epochs: Annotated[Sequence[EpochTime] | None, Doc("epochs that were timed", may_lack=True)] = None
    clock_probe: Annotated[
        Sequence[ClockOffset] | None, Doc("how far its clock was ahead of rank 0's; null where that was not measured")
    ] = None
    clock_probe_reason: Annotated[str | None, People("why not, or not at both ends")] = None
    complete: Annotated[bool, Doc("whether every scheduled step was traced")] = False
    reason: Annotated[str | None, Doc("why it is not complete")] = None
    steps: Annotated[Sequence[StepTime], Doc("every step, traced or not")] = ()
    traces: Annotated[Sequence[str], People("names of its traces, in order of the cycles")] = ()
