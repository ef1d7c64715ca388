"""<host>_<rank>.meta.json: what is read of a rank, beside its traces and in a cell of a sweep."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from .limits import ClockAhead, Count, EpochPhase, FromZero, Instant, Rank, Ranks

STILL_RUNNING = "still running, or killed before it could say why"
"""The reason why a capture is not complete, until the rank knows a better one."""


class RankVersions(Struct, frozen=True):
    """Versions that it ran with."""

    torch: str | None = None


class RankMachine(Struct, frozen=True):
    """The machine that it ran on."""

    boot_id: str | None = None
    usable_cores: Count | None = None


class RankDevice(Struct, frozen=True):
    """The device that it used."""

    type: str | None = None
    index: int | None = None
    name: str | None = None


class GroupFacts(Struct, frozen=True):
    """A process group that it is in."""

    ranks: list[Rank]
    name: Any = None
    desc: Any = None
    backend: Any = None


class ClockOffset(Struct, frozen=True):
    """How far its clock was ahead of rank 0's."""

    at: Literal["start", "end"]
    unix_ns: Instant
    against_rank: Literal[0]
    offset_ns: ClockAhead
    uncertainty_ns: FromZero


class StepTime(Struct, frozen=True):
    """How long a step took."""

    step: FromZero
    dur_ns: FromZero
    phase: str | None = None


class GpuState(Struct, frozen=True):
    """Its GPU at one end of the capture."""

    at: Literal["start", "end"]
    sm_clock_mhz: FromZero | None = None
    slowed_by: list[str] | None = None
    temperature_c: FromZero | None = None
    nvlink_sent_bytes: FromZero | None = None


class RankFile(Struct, frozen=True):
    """What is read beside traces. All of it is optional: a field that makes no sense is treated as missing."""

    schema_version: Any = None
    rank: Rank | None = None
    world_size: Ranks | None = None
    host: str | None = None
    device: RankDevice = RankDevice()
    versions: RankVersions = RankVersions()
    machine: RankMachine = RankMachine()
    process_groups: list[GroupFacts] = []
    clock_probe: list[ClockOffset] = []
    gpu_states: list[GpuState] = []
    absent_ranks: list[Rank] = []
    complete: bool | None = None
    reason: str | None = None
    steps: list[StepTime] = []


class EpochTime(Struct, frozen=True):
    """One epoch of one rank."""

    phase: EpochPhase
    steps: Count
    data_ns: FromZero
    step_ns: Count
    step_p10_ns: FromZero | None = None
    step_median_ns: FromZero | None = None
    step_p90_ns: FromZero | None = None


class ModelSize(Struct, frozen=True):
    """The size of the model."""

    parameters: FromZero | None = None
    bytes: FromZero | None = None


class DpFacts(Struct, frozen=True):
    """What nn.DataParallel drives."""

    devices: Annotated[list[Any], Meta(min_length=1)]


class TimedRank(Struct, frozen=True):
    """What timings need; all of it is required. The ranks of a pipeline share one batch: none has a size of its own."""

    rank: FromZero
    batch_size_per_rank: Count | None
    epochs: list[EpochTime]
    dataset_samples: Count
    full_epoch_steps: Count
    schema_version: Any = None
    model: ModelSize | None = None
    dp: DpFacts | None = None
    host: str | None = None
    device: RankDevice = RankDevice()
    machine: RankMachine = RankMachine()
