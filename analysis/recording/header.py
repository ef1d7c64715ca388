"""What a trace says about itself, whatever its format: rank, devices, process groups, versions, zero of times."""

from __future__ import annotations

import msgspec


class ProcessGroup(msgspec.Struct, frozen=True):
    """A process group as the trace's header lists it."""

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]


class Header(msgspec.Struct, frozen=True):
    """What a trace says about itself besides its events; None or empty where it says nothing.

    Times of events count from `base_ns`, unix time in ns. `repaired_bytes` are not JSON, and were read as they were
    meant.
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
