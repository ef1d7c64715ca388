"""What a ceiling needs of the JSON of nccl-tests (src/util.cu, option -J); comms.json has the same keys."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from ...contract.limits import Ranks


class Measurement(Struct, frozen=True):
    """`time` in us, None where that is the CPU's (`cpu_time`); `alg_bw` in GB/s."""

    time: float | str | None = None
    alg_bw: float | str | None = None
    nwrong: float | str | None = None


class MeasuredSize(Struct, frozen=True):
    """One collective at one size; nccl-tests names the program instead, as `experiment_name`."""

    size: Annotated[int, Meta(ge=0, le=2**62)]
    collective: str | None = None
    experiment_name: str | None = None
    out_of_place: Measurement | None = None
    in_place: Measurement | None = None


class NcclDevice(Struct, frozen=True):
    """A device as nccl-tests lists it."""

    group: int = 0


class NcclOptions(Struct, frozen=True):
    """How many ranks nccl-tests had."""

    nthreads: Ranks = 1
    ngpus: Ranks = 1
    devices: list[NcclDevice] | None = None


class NcclTestsFile(Struct, frozen=True):
    """All of it that is read; `config` and `args` of nccl-tests only, the rest from `world_size` on of comms.json."""

    results: list[MeasuredSize]
    config: NcclOptions = field(default_factory=NcclOptions)
    args: list[str] = []
    world_size: Ranks | None = None
    complete: bool = True
    reason: str | None = None
