"""What collectives normally reach: measurements by others on GPUs of the same model, as many ranks, and the same size.

This is neither what the links can carry (`yardsticks`) nor what they reached on this machine (`headroom`), and is never
mixed with these. The measurements are of loops of nccl-tests: calls back to back, with nothing beside them. A call in
training also pays for starting, and shares the GPU with kernels, so that somewhat less is usual.

Source: data/README.md.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...common.nccl_tests import bus_factor, collective_name
from ..core.schema import Row, records
from .files import measured_by_others
from .one_host import why_not_one_host

NORMAL_FROM = 0.8
"""Of what others reach: from there on a collective is normal. In nine of ten cases, versions of NCCL differ by up to
15 % in these measurements, and a loop is somewhat faster than single calls."""
_NEARLY_ALL = 0.9
# By the whole name that torch gives, as MIG instances and cards with fewer links have longer ones.
_SYSTEMS: tuple[tuple[str, str, str], ...] = (
    ("a100_sxm", "A100 SXM", r"A100-SXM4?-[48]0GB"),
    ("h100_sxm", "H100 SXM", r"H100 80GB HBM3"),
    ("h200_sxm", "H200 SXM", r"H200"),
    ("b200_sxm", "B200 SXM", r"B200"),
    ("b300_sxm", "B300 SXM", r"B300( SXM6)?( AC)?"),
    ("gb200", "GB200", r"GB200"),
    ("gb300", "GB300", r"GB300"),
    ("rtx_pro_6000_server", "RTX PRO 6000 Server", r"RTX PRO 6000 Blackwell Server Edition"),
)
_REDUCING = frozenset({"all_reduce", "reduce_scatter"})
_MEASURED_DTYPES = ("float16", "bfloat16", "int8")
"""Measured was half, which bfloat16 moves and is reduced as, and int8. It matters only where something is reduced."""


class Curve(NamedTuple):
    """The times that a collective took on one system: sizes in bytes, ascending, and us of each."""

    sizes: tuple[int, ...]
    times_us: tuple[float, ...]


class Setting(NamedTuple):
    """What was measured together: GPU system, collective in torch's spelling, and number of ranks."""

    system: str
    collective: str
    ranks: int


@dataclass(frozen=True)
class Machine:
    """What is known of the GPUs of a run: their models, and of each rank the host and the version of NCCL.

    `sharing` are ranks that share a GPU.
    """

    models: Collection[str] = ()
    hosts: Mapping[int, str | None] = field(default_factory=dict)
    nccl_versions: Mapping[int, str] = field(default_factory=dict)
    sharing: Collection[int] = ()


@functools.lru_cache(maxsize=1)
def measurements() -> Mapping[Setting, Mapping[str, Curve]]:
    """All curves by what was measured, and version of NCCL."""
    times: dict[Setting, dict[str, list[tuple[int, float]]]] = {}
    for system, version, collective, ranks, size, us in measured_by_others():
        setting = Setting(system, collective_name(collective) or "", int(ranks))
        times.setdefault(setting, {}).setdefault(version, []).append((int(size), float(us)))
    return {
        setting: {version: Curve(*zip(*sorted(points), strict=True)) for version, points in versions.items()}
        for setting, versions in times.items()
    }


def with_normal(bandwidth: pd.DataFrame, machine: Machine) -> Iterator[Row]:
    """The rows of the bandwidth table with what others reach at that size, and the fraction of it.

    The bus bandwidth is interpolated between neighbouring sizes, linearly in the logarithm of the size, and never
    extrapolated. `normal_note` says what was measured, or why nothing can be compared.
    """
    return (row | _compared(row, machine) for row in records(bandwidth))


def _compared(row: Row, machine: Machine) -> Row:
    members = [int(rank) for rank in (row["pg_ranks"] or "").split()]
    system = _system(machine.models)
    why = _why_not(row, members, system, machine)
    if why is not None or system is None:
        return {"normal_note": why}
    key, name = system
    of_versions = measurements()[Setting(key, row["collective"], len(members))]
    (own,) = {machine.nccl_versions[rank] for rank in members if rank in machine.nccl_versions}
    version = min(sorted(of_versions, key=_code), key=lambda one: abs(_code(one) - _code(own)))  # else the older
    curve = of_versions[version]
    if not curve.sizes[0] <= row["size_bytes"] <= curve.sizes[-1]:
        return {"normal_note": f"measured were {curve.sizes[0]:,} to {curve.sizes[-1]:,} bytes"}
    factor = bus_factor(row["collective"], len(members))
    speeds = [factor * size / (us * 1000) for size, us in zip(*curve, strict=True)]
    normal = float(np.interp(np.log(row["size_bytes"]), np.log(curve.sizes), speeds))
    note = f"{len(members)} {name}, NCCL {version}"
    if machine.hosts.get(members[0]) is None:
        note += "; if all are in one host, which no file says"
    reached = row["busbw_gb_per_s"]
    if reached is None:
        note += "; its own bandwidth is not known"
    of_normal = None if reached is None else reached / normal
    return {"normal_busbw_gb_per_s": normal, "of_normal_frac": of_normal, "normal_note": note}


def _why_not(row: Row, members: list[int], system: tuple[str, str] | None, machine: Machine) -> str | None:
    """Why nothing can be compared; None if something can, unless it is the size."""
    if system is None:
        models = sorted(machine.models)
        known = f"no measurements of {', '.join(models)}" if len(models) == 1 else "its GPUs are of several models"
        return known if models else "the traces do not name the model of its GPUs"
    collective, key = row["collective"], system[0]
    measured = {setting.ranks for setting in measurements() if setting[:2] == (key, collective)}
    if not measured:
        return f"no measurements of {collective}" if collective else "the trace does not name the collective"
    if not members:
        return "its ranks are not known"
    why = why_not_one_host(members, machine.hosts, machine.sharing)
    if why is not None:
        return why
    if len(members) not in measured:
        return f"measured were {', '.join(map(str, sorted(measured)))} ranks, not {len(members)}"
    if collective in _REDUCING and row["dtype"] not in _MEASURED_DTYPES:
        return f"measured were {' and '.join(_MEASURED_DTYPES[::2])}, not {row['dtype'] or 'a dtype that is not known'}"
    versions = {machine.nccl_versions[rank] for rank in members if rank in machine.nccl_versions}
    if len(versions) != 1:
        return "its ranks have several versions of NCCL" if versions else "the traces do not say the version of NCCL"
    return None


def _system(models: Collection[str]) -> tuple[str, str] | None:
    """The measured system of these GPUs and its name for people; None if they differ, or it was not measured."""
    if len(set(models)) != 1:
        return None
    (model,) = set(models)
    plain = model.strip().removeprefix("NVIDIA ")
    return next(((key, name) for key, name, pattern in _SYSTEMS if re.fullmatch(pattern, plain)), None)


def _code(version: str) -> int:
    """A version as NCCL numbers it, for distances: 22703 for 2.27.3, which is nearer to 2.28 than to 2.29."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    return 10_000 * major + 100 * minor + patch


def links_are_normal(bandwidth: pd.DataFrame) -> bool:
    """Whether nearly all transfer time of a run is of collectives that are as fast as for others, or faster."""
    times_us = (bandwidth["calls"] * bandwidth["time_us_median"]).fillna(0.0).astype("float64")
    is_normal = (bandwidth["of_normal_frac"] >= NORMAL_FROM).fillna(False).astype(bool)
    total = float(times_us.sum())
    return total > 0 and float(times_us[is_normal].sum()) >= _NEARLY_ALL * total
