"""Read a ceiling from comms.json, or from JSON or printed tables of nccl-tests, as the table `ceiling`.

The layouts are those of `commtrace comms` (docs/comms.md) and of NVIDIA/nccl-tests src/util.cu: its option -J, and what
it prints.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pandas as pd

from ...common.nccl_tests import NoFormula, bus_factor, collective_name
from ...contract.comms import COMMS_FILE, COMMS_TOOL, CommsFile, Measured
from ...contract.limits import RANK_LIMIT
from ...contract.reading import OtherVersion, check_version, typed
from ..core.schema import Row
from ..core.small_files import NotJson, json_of, small_file
from ..core.tables.communication import CEILING
from ..errors import NotACeiling, UnreadableFile
from .nccl_tests_json import Measurement, NcclTestsFile

_EXPECTED = "expected comms.json of `commtrace comms`, or what nccl-tests wrote with -J or printed"
# mpirun --tag-output puts this before every line.
_TAG = re.compile(r"^\[[\d,]+\](<std(out|err)>)?:? ?")
_DEVICE = re.compile(r"#\s+Rank\s+\d+(\s+Group\s+(?P<group>\d+))?\s+Pid")
_STARTING = re.compile(r"# Collective test starting: (?P<program>\S+)")
_ROW = re.compile(r"\s*(?P<size>[0-9]{1,18})\s+\d+\s+\w+\s+\w+\s+-?\d+\s+(?P<figures>\S.*)")
_FIGURES = 4  # time, algbw, busbw, #wrong; with the times of single calls as many again


@dataclass(frozen=True)
class Ceiling:
    """A table `ceiling`, its name, and notes on it."""

    name: str
    table: pd.DataFrame
    notes: tuple[str, ...] = ()


def read_ceiling(path: Path) -> Ceiling:
    """Read the file at `path`, or comms.json in that folder. Raises UnreadableFile, NotACeiling."""
    file = path / COMMS_FILE if path.is_dir() else path
    try:
        content = small_file(file)
    except OSError as err:
        raise UnreadableFile(f"{file}: cannot be read: {err.strerror}; {_EXPECTED}") from err
    rows, notes = _from_json(file, content) if content.lstrip()[:1] == b"{" else _from_text(file, content)
    kept = [row for row in rows if not row["wrong"]]
    if len(kept) < len(rows):
        notes.append(f"{file.name}: left out {len(rows) - len(kept)} rows of the ceiling whose results were wrong")
    kept = [row for row in kept if row["size_bytes"] > 0 and row["busbw_gb_per_s"] is not None]
    if not kept:
        raise NotACeiling(f"{file}: holds no measurement; {_EXPECTED}")
    table = CEILING.frame({name: row[name] for name in CEILING.columns} for row in kept)
    return Ceiling(path.name or str(path), table, tuple(notes))


def _from_json(file: Path, content: bytes) -> tuple[list[Row], list[str]]:
    try:
        parsed = json_of(content)
        if isinstance(parsed, dict) and parsed.get("tool") == COMMS_TOOL:
            check_version(parsed)
            return _from_comms(file, typed(parsed, CommsFile))
        return _from_nccl_tests(file, typed(parsed, NcclTestsFile)), []
    except msgspec.ValidationError as err:
        raise NotACeiling(f"{file}: {_EXPECTED}, found other JSON: {err}") from err
    except OtherVersion as err:
        raise NotACeiling(f"{file}: {err}") from err
    except NotJson as err:
        raise NotACeiling(f"{file}: is damaged or ends early: {err}; measure again") from err


def _from_comms(file: Path, comms: CommsFile) -> tuple[list[Row], list[str]]:
    rows = [
        _row(file, result.collective, comms.world_size, result.size, place)
        for result in comms.results
        for place in (result.out_of_place, result.in_place)
        if place is not None
    ]
    return rows, [] if comms.complete else [f"{file.name}: the ceiling is not complete: {comms.reason}"]


def _from_nccl_tests(file: Path, nccl_tests: NcclTestsFile) -> list[Row]:
    ranks = _ranks(file, nccl_tests)
    program = nccl_tests.args[0] if nccl_tests.args else None
    return [
        _row(file, result.experiment_name or program, ranks, result.size, place)
        for result in nccl_tests.results
        for place in (result.out_of_place, result.in_place)
        if place is not None
    ]


def _ranks(file: Path, content: NcclTestsFile) -> int:
    """Ranks of one communicator. nccl-tests lists one device per process, and splits processes into groups."""
    groups = [device.group for device in content.config.devices or ()]
    if not groups:
        raise NotACeiling(f"{file}: names no devices, so the number of ranks is not known; {_EXPECTED}")
    ranks = groups.count(groups[0]) * content.config.nthreads * content.config.ngpus
    if ranks > RANK_LIMIT:
        raise NotACeiling(f"{file}: is of {ranks:,} ranks, expected {RANK_LIMIT:,} at most; {_EXPECTED}")
    return ranks


def _from_text(file: Path, content: bytes) -> tuple[list[Row], list[str]]:
    """Read tables printed by nccl-tests, several of them if one file has several."""
    rows: list[Row] = []
    program, groups, each, cpu_time = None, list[str | None](), _FIGURES, False
    for line in _lines(content):
        if starting := _STARTING.match(line):
            program, groups = starting["program"], []
        elif device := _DEVICE.match(line):
            groups.append(device["group"])
        elif line.startswith("#") and "busbw" in line:
            each, cpu_time = 2 * _FIGURES if "i_min" in line else _FIGURES, "cputime" in line
        elif match := _ROW.match(line):
            figures = match["figures"].split()
            ranks = groups.count(groups[0]) if groups else 0
            for place in (figures[:_FIGURES], figures[each : each + _FIGURES]):
                if len(place) == _FIGURES:
                    measured = Measurement(None if cpu_time else place[0], place[1], place[3])
                    rows.append(_row(file, program, ranks, int(match["size"]), measured))
    if not rows:
        raise NotACeiling(f"{file}: {_EXPECTED}, found neither JSON nor a row of nccl-tests")
    if not all(row["group_size"] for row in rows):
        raise NotACeiling(f"{file}: lacks nccl-tests' lines on the devices, so the number of ranks is not known")
    return rows, []


def _lines(content: bytes) -> Iterator[str]:
    return (_TAG.sub("", line) for line in content.decode("utf-8", "replace").splitlines())


def _row(file: Path, name: str | None, ranks: int, size_bytes: int, place: Measured | Measurement) -> Row:
    """One measurement; `name` is that of a collective, or of the program that measured it."""
    collective = _collective(file, name)
    try:
        busbw = _busbw(collective, ranks, size_bytes, place)
    except NoFormula as err:
        raise NotACeiling(f"{file}: {err}") from err
    return {
        "collective": collective,
        "group_size": ranks,
        "size_bytes": size_bytes,
        "busbw_gb_per_s": busbw,
        "wrong": _number(place.nwrong) or 0,
    }


def _busbw(collective: str, ranks: int, size_bytes: int, place: Measured | Measurement) -> float | None:
    """Bus bandwidth in GB/s, from the time if there is one, since printed bandwidths have few digits.

    Not the bus bandwidth that was written: with NCCL_ALGO=NVLS nccl-tests takes another factor for all_reduce than it
    does else, and than the run is measured with.
    """
    time_us, algbw = _number(place.time), _number(place.alg_bw)
    if time_us:
        algbw = size_bytes / (time_us * 1000)
    return algbw * bus_factor(collective, ranks) if algbw is not None and ranks else None


def _collective(file: Path, name: str | None) -> str:
    plain = re.sub(r"_perf.*", "", Path(name or "").name)
    spelled = "send_recv" if plain.lower() in ("sendrecv", "send_recv") else collective_name(plain)
    if spelled is None:
        raise NotACeiling(
            f"{file}: says not which collective it measured (found {name!r}); {_EXPECTED}: older versions do not say it"
        )
    return spelled


def _number(value: float | str | None) -> float | None:
    """The number; nccl-tests writes nan or N/A as text."""
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None


def measured_by_others() -> list[list[str]]:
    """The rows of the packaged data/nccl.csv: GPU system, version of NCCL, collective, ranks, bytes, and us."""
    text = (Path(__file__).parent / "data" / "nccl.csv").read_text(encoding="utf-8")
    return list(csv.reader(text.splitlines()))[1:]
