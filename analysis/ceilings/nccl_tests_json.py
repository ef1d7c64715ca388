"""What a ceiling needs of the JSON that nccl-tests writes (src/util.cu, option -J). Ours is in `contract/comms`."""

from __future__ import annotations

from msgspec import Struct, field

from ...contract.limits import FromZero, Ranks


class Measurement(Struct, frozen=True):
    """A measurement: `time` in us, None where only the CPU's was taken (`cpu_time`); `alg_bw` in GB/s.

    What could not be measured is text such as "N/A", or null.
    """

    time: float | str | None = None
    alg_bw: float | str | None = None
    nwrong: float | str | None = None


class MeasuredSize(Struct, frozen=True):
    """One collective at one size, in bytes; `experiment_name` is the program that measured it."""

    size: FromZero
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
    """The part of the file that is read. The first of `args` is the program, which names the collective."""

    results: list[MeasuredSize]
    config: NcclOptions = field(default_factory=NcclOptions)
    args: list[str] = []
