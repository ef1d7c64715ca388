"""The header of a Kineto trace: rank, devices, process groups, versions, zero of times."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from ....common.wording import counted
from ...core.json_repairs import Habits, without_numbers_that_are_none
from ...core.tables.events import MOST_DEVICE_BYTES
from ...errors import DamagedTrace, NotATrace
from ...recording.header import Header, ProcessGroup
from ...recording.values import PLAUSIBLE_RANKS, Int64
from .cuts import NO_JSON, bytes_not_text, changed_bytes, place_in
from .stream import REPAIR, Surrounding

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:')
# In ns, limited so that times of events, which count from it, fit 64 bits.
_BaseTime = Annotated[int, msgspec.Meta(ge=0, le=2**62 - 2**55)]


class _ProcessGroup(msgspec.Struct):
    pg_name: str = ""
    pg_desc: str = ""
    backend_config: str = ""
    ranks: list[Int64] = []


class _DistributedInfo(msgspec.Struct):
    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    nccl_version: str | None = None
    pg_config: list[_ProcessGroup] = []


class _DeviceProperties(msgspec.Struct):
    id: int = 0
    name: str = ""
    total_bytes: Any = msgspec.field(default=None, name="totalGlobalMem")

    @property
    def memory_bytes(self) -> int:
        """Its memory; 0 if that is not known."""
        known = isinstance(self.total_bytes, int) and 0 < self.total_bytes <= MOST_DEVICE_BYTES
        return int(self.total_bytes) if known else 0


class _Surrounding(msgspec.Struct):
    distributed: _DistributedInfo | None = msgspec.field(default=None, name="distributedInfo")
    devices: list[_DeviceProperties] = msgspec.field(default=[], name="deviceProperties")
    host: str | None = msgspec.field(default=None, name="host_name")
    base_ns: _BaseTime = msgspec.field(default=0, name="baseTimeNanoseconds")
    cuda_runtime: int | None = msgspec.field(default=None, name="cuda_runtime_version")
    hip_runtime: int | None = msgspec.field(default=None, name="hip_runtime_version")
    events: list[msgspec.Raw] | None = msgspec.field(default=None, name="traceEvents")


def header(path: Path, around: Surrounding, events: int = 0, habits: Habits | None = None) -> Header:
    """The header of the file at `path`; errors give the number of its `events`. Raises NotATrace, DamagedTrace.

    `habits` are what its writer is known to do.
    """
    document = around.before + around.behind
    if document.lstrip()[:1] == b"[":  # the bare array form of the Chrome trace format
        if around.behind.strip() != b"]":
            raise _damaged(path, around, events, len(around.before) + around.behind.index(b"]") + 1)
        return _header(_Surrounding(events=[]))
    try:
        known = Habits() if habits is None else habits
        not_text = bytes_not_text(document, known)
        surrounding, repaired_bytes = _surrounding(document, known)
    except msgspec.ValidationError as err:
        raise NotATrace(f"{path}: what surrounds the events is not what Kineto writes: {err}") from err
    except NO_JSON as err:
        at = place_in(err)
        raise _damaged(path, around, events, len(document) if at is None else at) from err
    if surrounding.events is None:
        raise NotATrace(f'{path}: "traceEvents" is not at the top level; expected a Kineto trace')
    if surrounding.events or len(_EVENTS_KEY.findall(document)) > 1:
        raise NotATrace(f'{path}: holds "traceEvents" more than once; expected one trace; split the file')
    return msgspec.structs.replace(_header(surrounding), repaired_bytes=repaired_bytes + not_text)


def _surrounding(document: bytes, habits: Habits) -> tuple[_Surrounding, int]:
    """The document without its events, and the number of bytes repaired in it. Raises NO_JSON."""
    try:
        return msgspec.json.decode(document, type=_Surrounding, strict=False), 0
    except NO_JSON:
        whole = habits.without_commas_around(without_numbers_that_are_none(document))
        return msgspec.json.decode(whole, type=_Surrounding, strict=False), changed_bytes(document, whole)


def _damaged(path: Path, around: Surrounding, events: int, at: int) -> DamagedTrace:
    """The error for a document that is not JSON at `at`, counted without the events."""
    prefix_bytes = len(around.before)
    behind = prefix_bytes + len(around.behind) - at
    byte = at if at < prefix_bytes else around.file_bytes - behind
    what = "ends too early" if behind <= 0 else "is not JSON"
    return DamagedTrace(
        f"{path}: {what} at byte {byte:,}, {'before' if at < prefix_bytes else 'behind'} its "
        f"{counted(events, 'event')}, all good; {REPAIR}"
    )


def header_so_far(around: Surrounding) -> Header:
    """Every valid field of the header, or of its part before the events."""
    documents = [around.before + around.behind] if around.behind else []
    for document in (*documents, around.before + b"]}"):
        try:
            return _header(_surrounding(document, Habits())[0])
        except NO_JSON:
            surrounding = _good_fields(_Surrounding, document)
        if surrounding is not None:
            return _header(surrounding)
    return _header(_Surrounding())


S = TypeVar("S", bound=msgspec.Struct)


def _good_fields(kind: type[S], document: bytes) -> S | None:
    """The object with the fields that can be decoded, each by itself; None if it is no object."""
    try:
        texts = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except NO_JSON:
        return None
    good = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in texts:
            text = bytes(texts[field.encode_name])
            try:
                good[field.name] = msgspec.json.decode(text, type=field.type, strict=False)
            except NO_JSON:
                if field.name == "distributed":
                    good[field.name] = _good_fields(_DistributedInfo, text)
    return kind(**good)


def _backend(distributed: _DistributedInfo, *, on_gpus: bool) -> str | None:
    """The backend; where none was asked for, torch writes "undefined", and one for each type of device in the group."""
    if distributed.backend != "undefined" or not distributed.pg_config:
        return distributed.backend
    default = next((g for g in distributed.pg_config if g.pg_desc == "default_pg"), distributed.pg_config[0])
    of_devices = dict(each.partition(":")[::2] for each in default.backend_config.split(","))
    first = next(iter(of_devices.values()), "")
    return of_devices.get("cuda" if on_gpus else "cpu") or first or distributed.backend


def _header(surrounding: _Surrounding) -> Header:
    distributed = surrounding.distributed or _DistributedInfo()
    devices = sorted(surrounding.devices, key=lambda device: device.id)
    return Header(
        rank=_if_in(distributed.rank, 0),
        world_size=_if_in(distributed.world_size, 1),
        backend=_backend(distributed, on_gpus=bool(surrounding.devices)),
        host=surrounding.host,
        device_names=tuple(device.name for device in devices),
        device_bytes=tuple(device.memory_bytes for device in devices),
        process_groups=tuple(
            ProcessGroup(g.pg_name, g.pg_desc, g.backend_config, tuple(sorted(g.ranks))) for g in distributed.pg_config
        ),
        cuda_version=_version("CUDA", surrounding.cuda_runtime) or _version("HIP", surrounding.hip_runtime),
        nccl_version=distributed.nccl_version,
        base_ns=surrounding.base_ns,
    )


def _if_in(number: int | None, least: int) -> int | None:
    """The number if it can count ranks, else None."""
    return number if number is not None and least <= number <= PLAUSIBLE_RANKS else None


def _version(name: str, number: int | None) -> str | None:
    """Turn 12060 into `CUDA 12.6`, 60443483 into `HIP 6.4` (ROCm adds two digits and a patch of five)."""
    if number is None:
        return None
    if name == "HIP":
        return f"HIP {number // 10_000_000}.{number // 100_000 % 100}"
    return f"{name} {number // 1000}.{number % 1000 // 10}"
