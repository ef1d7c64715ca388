"""The session of an export: when it began, on which host, with which GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ..launchers import rank_of_launcher
from .tables import ExportTables

_LONG_AGO_NS = 10**18  # in 2001: times that count from the epoch are later, all others earlier
_MOST_GPUS = 1 << 16
_LATEST_EPOCH_NS = 2**62 - 2**55
_PYTHON = re.compile(r"python|pypy|torch|pt_main|ray::|vllm|sglang|accelerate|deepspeed|jupyter|pytest", re.IGNORECASE)
_VARIABLE = re.compile(r'(?:^|;)([A-Z0-9_]*(?:RANK|PROCID|SIZE))="?([0-9]{1,7})"?(?=;|$)')
_ENVIRONMENT = ("DeviceEnvironment", "ENVIRONMENT_VARIABLE")
SAME_CLOCK_NS = 1_000_000_000
"""What sessions say of a host's clock differs by less, unless the host was started again in between."""


class Gpu(NamedTuple):
    """A GPU as numbered by a process."""

    number: int
    name: str | None
    multiprocessors: int | None


def epoch_ns(tables: ExportTables) -> int | None:
    """Unix time of the session's time 0, in ns; None if the export does not say.

    Newer exports count from the start of the system, and say when the session began on that clock too; older ones from
    the beginning of the session. `nsys export --ts-normalize` counts from the epoch.
    """
    for rows in tables.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs")):
        for utc, system in rows:
            if type(utc) is int and _LONG_AGO_NS < utc < _LATEST_EPOCH_NS:
                return utc - (system if type(system) is int and 0 <= system < utc else 0)
    return None


def base_ns(tables: ExportTables, first_ns: int, epochs: Mapping[str, int]) -> int:
    """Unix time of `first_ns` in the export, in ns; `first_ns` itself if the session's time is not known.

    Sessions on one host share the clock of its system, but each notes what time it is: `epochs` says for a host when
    that clock was 0.
    """
    epoch, common = epoch_ns(tables), epochs.get(host(tables) or "")
    if epoch is not None and common is not None and abs(epoch - common) < SAME_CLOCK_NS:
        epoch = common
    return first_ns if epoch is None or first_ns > _LONG_AGO_NS else first_ns + epoch


def runs_python(tables: ExportTables) -> bool:
    """Whether the process may run Python: false only where the export names its program, and that is another one."""
    names = [
        name
        for rows in tables.rows("PROCESSES", ("pid", "name"))
        for pid, name in rows
        if isinstance(name, str) and name and tables.pid in (None, pid)
    ]
    return not names or any(_PYTHON.search(name) for name in names)


def host(tables: ExportTables) -> str | None:
    """The name of the host."""
    for rows in tables.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
        for name, value in rows:
            if name == "Hostname" and isinstance(value, str) and value:
                return value
    return None


def rank_in_environment(tables: ExportTables) -> tuple[int | None, int | None]:
    """Rank and number of ranks from the session's environment variables, None where missing."""
    variables: dict[str, str] = {}
    for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE"):
        for rows in tables.rows(table, ("name", "value")):
            for name, value in rows:
                if isinstance(name, str) and name.endswith(_ENVIRONMENT) and isinstance(value, str):
                    variables |= dict(_VARIABLE.findall(value))
    return rank_of_launcher(variables)


def gpus_by_process(tables: ExportTables) -> dict[int | None, dict[int, Gpu]]:
    """GPUs of each process by its ordinals, if the export lists them; the key None stands for any process."""
    listed: dict[int, tuple[object, object]] = {}
    for rows in tables.rows("TARGET_INFO_GPU", ("id", "name", "smCount")):
        listed.update({number: (name, count) for number, name, count in rows if type(number) is int})
    gpus: dict[int | None, dict[int, Gpu]] = {}
    columns = ("gpuId", "cudaId", "pid", "numMultiprocessors")
    for rows in tables.rows("TARGET_INFO_CUDA_DEVICE", columns):
        for number, ordinal, pid, count in rows:
            if type(number) is int and type(ordinal) is int and 0 <= ordinal < _MOST_GPUS:
                name, of_gpu = listed.get(number, (None, None))
                sms = next(
                    (
                        multiprocessors
                        for multiprocessors in (count, of_gpu)
                        if type(multiprocessors) is int and multiprocessors > 0
                    ),
                    None,
                )
                gpu = Gpu(number, name if isinstance(name, str) else None, sms)
                gpus.setdefault(pid if type(pid) is int else None, {})[ordinal] = gpu
    return gpus


def gpus_of(tables: ExportTables) -> dict[int, Gpu]:
    """GPUs of the process that is read, by its ordinals."""
    by_process = gpus_by_process(tables)
    if tables.pid is None:
        return {ordinal: gpu for of_process in by_process.values() for ordinal, gpu in of_process.items()}
    return by_process.get(tables.pid) or by_process.get(None, {})
