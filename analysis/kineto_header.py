"""What a Kineto trace says of itself around its events: rank, devices, process groups, versions, zero of times."""

from __future__ import annotations

from pathlib import Path

import msgspec

from .chunks import NO_JSON
from .errors import NotATrace


class _ProcessGroup(msgspec.Struct):
    pg_name: str = ""
    pg_desc: str = ""
    backend_config: str = ""
    ranks: list[int] = []


class _DistributedInfo(msgspec.Struct):
    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    nccl_version: str | None = None
    pg_config: list[_ProcessGroup] = []


class _DeviceProperties(msgspec.Struct):
    id: int = 0
    name: str = ""


class _Surrounding(msgspec.Struct):
    distributed: _DistributedInfo | None = msgspec.field(default=None, name="distributedInfo")
    devices: list[_DeviceProperties] = msgspec.field(default=[], name="deviceProperties")
    host: str | None = msgspec.field(default=None, name="host_name")
    base_ns: int = msgspec.field(default=0, name="baseTimeNanoseconds")
    cuda_runtime: int | None = msgspec.field(default=None, name="cuda_runtime_version")
    hip_runtime: int | None = msgspec.field(default=None, name="hip_runtime_version")
    events: list[msgspec.Raw] | None = msgspec.field(default=None, name="traceEvents")


class ProcessGroup(msgspec.Struct, frozen=True):
    """A process group as the trace's header lists it."""

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]


class Header(msgspec.Struct, frozen=True):
    """What a trace says of itself besides its events; None or empty where it is silent.

    Times of events count from `base_ns`, unix time in ns.
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


def header(path: Path, document: bytes) -> Header:
    """The header in a document without its events. Raises NotATrace."""
    if document.lstrip()[:1] == b"[":  # the bare array form of the Chrome trace format
        return _header(_Surrounding(events=[]))
    try:
        surrounding = msgspec.json.decode(document, type=_Surrounding, strict=False)
    except NO_JSON as err:
        raise NotATrace(f"{path}: what surrounds the events is not what Kineto writes: {err}") from err
    if surrounding.events is None:
        raise NotATrace(f'{path}: "traceEvents" is not at the top level; expected a Kineto trace')
    return _header(surrounding)


def header_so_far(document: bytes) -> Header:
    """The header as far as it stands before the events; empty where that is no JSON."""
    try:
        return _header(msgspec.json.decode(document.rstrip() + b"]}", type=_Surrounding, strict=False))
    except NO_JSON:
        return _header(_Surrounding())


def _header(surrounding: _Surrounding) -> Header:
    distributed = surrounding.distributed or _DistributedInfo()
    return Header(
        rank=distributed.rank,
        world_size=distributed.world_size,
        backend=distributed.backend,
        host=surrounding.host,
        device_names=tuple(device.name for device in sorted(surrounding.devices, key=lambda d: d.id)),
        process_groups=tuple(
            ProcessGroup(g.pg_name, g.pg_desc, g.backend_config, tuple(sorted(g.ranks))) for g in distributed.pg_config
        ),
        cuda_version=_version("CUDA", surrounding.cuda_runtime) or _version("HIP", surrounding.hip_runtime),
        nccl_version=distributed.nccl_version,
        base_ns=surrounding.base_ns,
    )


def _version(name: str, number: int | None) -> str | None:
    """12060 -> `CUDA 12.6`, 60443483 -> `HIP 6.4` (ROCm adds two digits and a patch of five)."""
    if number is None:
        return None
    if name == "HIP":
        return f"HIP {number // 10_000_000}.{number // 100_000 % 100}"
    return f"{name} {number // 1000}.{number % 1000 // 10}"
