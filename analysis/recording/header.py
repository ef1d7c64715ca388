"""The description of a trace in its header, for all formats: rank, devices, groups, versions, zero of times."""

from __future__ import annotations

import msgspec


class ProcessGroup(msgspec.Struct, frozen=True):
    """A process group as listed in a trace's header."""

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]


class Communicator(msgspec.Struct, frozen=True):
    """A communicator and a rank's place in it: `rank` counts within it, `process` wrote the record."""

    id: str
    rank: int
    size: int
    name: str
    process: str


class Header(msgspec.Struct, frozen=True):
    """The fields of a trace besides its events; None or empty where missing.

    Times of events count from `base_ns`, unix time in ns. `repaired_bytes` are not JSON, and were read as they were
    meant. A format that knows no global ranks lists `communicators`, from which the run finds them; from `first_us` to
    `last_us` its calls ended. If not `has_starts`, it says how long calls took, but not when they began, and times only
    keep their order. If `steps_on_device`, steps are marked on the device, and work is of the step that it runs in. If
    not `runs_python`, its process is known to run another program. `device_bytes` is the memory
    of each of the `device_names`, 0 where it is not known; empty in older recordings.
    """

    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    device_names: tuple[str, ...]
    process_groups: tuple[ProcessGroup, ...]
    cuda_version: str | None
    nccl_version: str | None
    base_ns: int = 0
    repaired_bytes: int = 0
    communicators: tuple[Communicator, ...] = ()
    first_us: int = 0
    last_us: int = 0
    has_starts: bool = True
    runs_python: bool = True
    device_bytes: tuple[int, ...] = ()
    steps_on_device: bool = False
