"""comms.json: how fast collectives are. Keys are those of nccl-tests' own JSON where it has them; see docs/comms.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from .limits import FromZero, Ranks
from .machine import Settings, Versions
from .record import SCHEMA_VERSION, Doc, Needed, People, Record

COMMS_FILE = "comms.json"
COMMS_TOOL = "commtrace comms"


@dataclass(frozen=True)
class CommsDevice:
    """The device of one rank."""

    rank: Annotated[int, People("rank in the job")]
    pid: Annotated[int, People("process id")]
    hostname: Annotated[str, People("host name")]
    device: Annotated[int | None, People("CUDA ordinal; null on CPU")]
    device_info: Annotated[str | None, People("name of the GPU or CPU")]


@dataclass(frozen=True)
class CommsOptions:
    """How it was measured."""

    minimum_bytes: Annotated[int, People("smallest size")]
    maximum_bytes: Annotated[int, People("largest size")]
    step_factor: Annotated[int, People("factor from one size to the next")]
    warmup_iters: Annotated[int, People("calls before those that are timed")]
    iterations: Annotated[int, People("timed calls")]
    traced_iterations: Annotated[int, People("calls of each size that are traced afterwards")]
    validation: Annotated[int, People("1 if results were checked")]
    stream: Annotated[str | None, People("from which stream collectives were called; null on CPU")]
    devices: Annotated[Sequence[CommsDevice] | None, People("the device of each rank")]


@dataclass(frozen=True)
class Measured:
    """A measurement. A rank's time is the mean of one call."""

    time: Annotated[float, Needed("mean of the ranks' times", unit="us")]
    alg_bw: Annotated[float, Needed("size / time", unit="1e9 bytes/s")]
    bus_bw: Annotated[float, People("`alg_bw` x bus factor", unit="1e9 bytes/s")]
    nwrong: Annotated[int, Needed("number of wrong elements on all ranks")]
    time_min: Annotated[float, People("time of the fastest rank", unit="us")]
    time_max: Annotated[float, People("time of the slowest rank", unit="us")]
    time_per_rank: Annotated[Sequence[float], People("time of each rank", unit="us")]


@dataclass(frozen=True)
class CommsResult:
    """One row: a collective at one size."""

    collective: Annotated[str, Needed("name of the collective, as in torch")]
    size: Annotated[FromZero, Needed("size of the whole array", unit="bytes")]
    count: Annotated[int, People("elements of the array, or of one rank's share if ranks share it", unit="elements")]
    type: Annotated[str, People("dtype, as in torch")]
    redop: Annotated[str, People("reduction, or `none`")]
    root: Annotated[int, People("root of the collective; -1 if it has none")]
    out_of_place: Annotated[Measured | None, Doc("the measurement; null if torch works in place")]
    in_place: Annotated[Measured | None, Doc("the measurement; null if torch does not work in place")]
    actual_iterations: Annotated[int, People("timed calls")]
    traced_times_us: Annotated[
        Sequence[Sequence[float]] | None, People("times of each rank's traced calls; null without --trace")
    ]


@dataclass(frozen=True)
class CommsSkipped:
    """Something that was asked for and cannot be measured."""

    collective: Annotated[str, People("name of the collective, as in torch")]
    type: Annotated[str, People("dtype")]
    redop: Annotated[str, People("reduction, or `none`")]
    size: Annotated[int | None, People("size of the whole array; null if no size can be measured", unit="bytes")]
    reason: Annotated[str, People("why it cannot be measured")]


@dataclass(frozen=True)
class OutOfBounds:
    """Wrong elements in all results."""

    count: Annotated[int, People("number of wrong elements", unit="elements")]
    okay: Annotated[bool, People("true if there are none")]


@dataclass(frozen=True, kw_only=True)
class CommsFile(Record):
    """Written by rank 0, and replaced as a whole after every row."""

    tool: Annotated[str, Needed("`commtrace comms`; distinguishes the file from one written by nccl-tests")]
    schema_version: Annotated[int, Doc("version of this layout", reads=Any)] = SCHEMA_VERSION
    start_time: Annotated[str, People("when the measurement began, ISO 8601", unit="UTC")]
    args: Annotated[Sequence[str], People("the command line")]
    backend: Annotated[str | None, People("backend of torch.distributed")]
    world_size: Annotated[Ranks, Needed("number of ranks")]
    versions: Annotated[Versions, People("versions that rank 0 ran with")]
    settings: Annotated[Settings, People("environment variables that change how communication behaves")]
    config: Annotated[CommsOptions, People("how it was measured")]
    complete: Annotated[bool, Needed("whether the measurement is complete")] = False
    reason: Annotated[str | None, Doc("why it is not complete")] = None
    end_time: Annotated[str | None, People("when it was complete, ISO 8601; null until then", unit="UTC")] = None
    results: Annotated[Sequence[CommsResult], Needed("one entry per row of the printed table")] = ()
    skipped: Annotated[Sequence[CommsSkipped], People("what was asked for and cannot be measured")] = ()
    out_of_bounds: Annotated[OutOfBounds, People("wrong elements in all results")] = OutOfBounds(0, okay=True)
