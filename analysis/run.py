"""A folder, or a list of files -> a Run: which file is which rank, and the tables of all of them together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from .cache import Cache
from .cpu import cpu_activities
from .errors import DuplicateRank, MixedJobs, NoTraces, TraceError, UnreadableFile
from .kinds import comm_pattern
from .reading import Progress, Reading
from .schema import (
    ACTIVITIES,
    ANNOTATIONS,
    CLOCK_PROBES,
    COMM_ARGS,
    CPU_OPERATORS,
    LAUNCHES,
    MEMORY,
    PROCESS_GROUPS,
    STEP_TIMES,
    TRACES,
    Schema,
    records,
)
from .sidefiles import probe_rows, step_rows
from .steps import with_steps
from .trace_file import TraceFile, trace_file
from .trace_paths import TORCH_NAME, trace_files

_LONG_AGO_NS = 10**18  # in 2001: times that count from the epoch are later, all others earlier
_RANK_IN_NAME = re.compile(r"rank[-_ ]?([0-9]{1,7})(?![0-9])", re.IGNORECASE)
_MOST_RANKS = 1 << 24


@dataclass(frozen=True)
class Run:
    """Everything read from one run; tables as `schema.py` declares them, rows in order of rank and cycle.

    `cpu_operators` and `memory` are empty unless it was read with `details`.
    """

    name: str
    traces: pd.DataFrame
    process_groups: pd.DataFrame
    activities: pd.DataFrame
    launches: pd.DataFrame
    annotations: pd.DataFrame
    comm_args: pd.DataFrame
    config: dict[str, Any]
    notes: tuple[str, ...]
    failed: tuple[str, ...] = ()
    clock_probes: pd.DataFrame = field(default_factory=CLOCK_PROBES.empty)
    step_times: pd.DataFrame = field(default_factory=STEP_TIMES.empty)
    details: bool = False
    cpu_operators: pd.DataFrame = field(default_factory=CPU_OPERATORS.empty)
    memory: pd.DataFrame = field(default_factory=MEMORY.empty)

    @property
    def ranks(self) -> list[int]:
        """Ranks that have a trace, ascending."""
        return sorted(self.traces["rank"].unique().tolist())

    @property
    def hosts(self) -> dict[int, str | None]:
        """Host of each rank, None where no file tells: one name for every machine, as far as boot ids tell."""
        machines: dict[str, str] = {}
        found: dict[int, str | None] = {}
        for row in records(self.traces.drop_duplicates("rank")):
            host, boot = row["host"], row["boot_id"]
            if boot is not None and boot not in machines:
                machines[boot] = f"{host} ({boot[:8]})" if host in machines.values() else host or boot[:8]
            found[row["rank"]] = host if boot is None else machines[boot]
        return found

    @property
    def partial_ranks(self) -> list[int]:
        """Ranks of which a file is damaged, and was read up to the damage only."""
        return sorted(self.traces["rank"][self.traces["partial"].fillna(False)].unique().tolist())

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, None where no file tells."""
        known = self.traces["world_size"].dropna()
        return int(known.iloc[0]) if len(known) else None

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the job that have no trace here."""
        return sorted(set(range(self.world_size or 0)) - set(self.ranks))


@dataclass(frozen=True)
class _Member:
    """One trace file in its place in the run."""

    file: TraceFile
    rank: int
    rank_from: str
    side: dict[str, Any]
    worker: str
    digits: int
    cycle: int = 0

    @property
    def has_known_clock(self) -> bool:
        """False for a damaged file whose times count from a zero that stood behind the damage."""
        if self.file.damage is None or self.file.header.base_ns:
            return True
        tables = (self.file.activities, self.file.annotations, self.file.cpu_ops)
        return any(int(table["start_ns"].max()) > _LONG_AGO_NS for table in tables if len(table))


def load_run(
    paths: Sequence[Path],
    *,
    comm_names: Iterable[str] = (),
    details: bool = False,
    keep_going: bool = False,
    progress: Progress | None = None,
    workers: int = 1,
    cache: Cache | None = None,
) -> Run:
    """The run found at `paths`: one run directory, any folder of Kineto traces, or trace files.

    `comm_names` are further regular expressions for names of communication kernels. With `details`, operators of GPU
    runs and allocations are read too. With `keep_going`, files that cannot be used are left out, of damaged ones what
    stands before the damage is used, and `failed` names both.
    `progress` is called with the bytes read so far, of all files. `workers` processes read; 1 is this one. What was
    read of large files is kept in a `cache`, if there is one.
    Raises NoTraces, UnreadableFile, NotATrace, DamagedTrace, DuplicateRank, MixedJobs.
    """
    files, skipped = trace_files(paths)
    pattern = comm_pattern(comm_names)
    with Reading(files, pattern, workers=workers, details=details, keep_damaged=keep_going, cache=cache) as reading:
        run = run_of(paths, reading, keep_going=keep_going, progress=progress)
    return replace(run, notes=run.notes + tuple(skipped))


def run_of(
    paths: Sequence[Path], reading: Reading, *, keep_going: bool = False, progress: Progress | None = None
) -> Run:
    """The run that files being read form. Arguments and errors: see `load_run`."""
    read, failed = _read_files(reading, progress, keep_going=keep_going)
    if not read:
        raise NoTraces(f"{paths[0]}: none of the {len(reading.paths)} files could be used:\n  " + "\n  ".join(failed))
    members, lost = _members(read)
    if not members:
        raise NoTraces(f"{paths[0]}: none of the {len(reading.paths)} files could be used:\n  " + "\n  ".join(lost))
    run = _assemble(_run_name(paths), members)
    return replace(run, failed=(*failed, *lost), details=reading.details)


def _read_files(reading: Reading, progress: Progress | None, *, keep_going: bool) -> tuple[list[TraceFile], list[str]]:
    """The tables of the files, and what is wrong with some. What they were made from, as large again, is let go."""
    read: list[TraceFile] = []
    failed: list[str] = []
    for path, found in zip(reading.paths, reading.results(progress), strict=True):
        try:
            if isinstance(found, TraceError):
                raise found
            file = trace_file(path, found)
        except TraceError as err:
            if not keep_going:
                raise
            failed.append(str(err))
        else:
            read.append(file)
            failed += [file.damage] if file.damage else []
    return read, failed


def _run_name(paths: Sequence[Path]) -> str:
    first = paths[0].resolve()
    name = first.name if first.is_dir() or len(paths) == 1 else first.parent.name
    return name.encode("utf-8", "backslashreplace").decode("utf-8")  # bytes of a name that are no text


def _members(files: list[TraceFile]) -> tuple[list[_Member], list[str]]:
    """Files with their ranks and cycles, sorted, and why damaged ones have no place here.

    Raises DuplicateRank, MixedJobs.
    """
    sides: dict[Path, dict[str, Any]] = {}
    lost: list[str] = []
    by_rank: dict[int, list[_Member]] = {}
    for file in files:
        try:
            member = _member(file, alone=len(files) == 1, sides=sides)
            by_rank.setdefault(member.rank, []).append(member)
        except MixedJobs as err:
            if file.damage is None:
                raise
            lost.append(str(err))
    for rank, own in by_rank.items():
        if len(own) > 1:
            by_rank[rank] = [m for m in own if m.has_known_clock]
            lost += [f"{m.file.path}: lost the zero of its times to the damage, so its place among the cycles of rank "
                     f"{rank} is not known; it is left out" for m in own if not m.has_known_clock]  # fmt: skip
    _check_one_job([member for own in by_rank.values() for member in own])
    return [member for rank in sorted(by_rank) for member in _cycles(rank, by_rank[rank])], lost


def _member(file: TraceFile, *, alone: bool, sides: dict[Path, dict[str, Any]]) -> _Member:
    name = TORCH_NAME.match(file.path.name)
    worker = name["worker"] if name else file.path.name
    side_path = file.path.with_name(f"{worker}.meta.json")
    if side_path not in sides:
        sides[side_path] = side_file(side_path)
    side = sides[side_path]
    in_name = _RANK_IN_NAME.search(file.path.name)
    if file.header.rank is not None:
        rank, source = file.header.rank, "trace"
    elif _is_count(side.get("rank"), 0):
        rank, source = side["rank"], "side file"
    elif in_name:
        rank, source = int(in_name[1]), "file name"
    elif alone:
        rank, source = 0, "only file"
    else:
        raise MixedJobs(
            f"{file.path}: does not say which rank it is (no rank in distributedInfo, no side file, no rank<N> in its "
            "name); analyse it alone, or rename it"
        )
    return _Member(file, rank, source, side, worker, int(name["cycle"]) if name else 0)


def side_file(path: Path) -> dict[str, Any]:
    """The content of a JSON side file, empty if there is none. Raises UnreadableFile."""
    try:
        if path.exists() and not path.is_file():
            raise IsADirectoryError("is no file")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as err:
        raise UnreadableFile(f"{path}: side file cannot be read: {err}; repair or remove it") from err
    return content if isinstance(content, dict) else {}


def _check_one_job(members: list[_Member]) -> None:
    sizes: dict[int, str] = {}
    for member in members:
        if member.file.header.world_size is not None:
            sizes.setdefault(member.file.header.world_size, member.file.path.name)
    if len(sizes) > 1:
        (a, file_a), (b, file_b), *_ = sizes.items()
        raise MixedJobs(
            f"{members[0].file.path.parent}: files of different jobs: {file_a} has world size {a}, {file_b} has {b}; "
            "analyse them apart"
        )
    too_high = [m for m in members for size in sizes if m.rank >= size]
    if too_high:
        raise MixedJobs(f"{too_high[0].file.path}: is rank {too_high[0].rank} of a world of {next(iter(sizes))}")


def _cycles(rank: int, members: list[_Member]) -> list[_Member]:
    """Files of one rank in order, if they are cycles of one process."""
    members = sorted(members, key=lambda m: m.digits)
    first = members[0]
    for other in members[1:]:
        if other.worker != first.worker or other.digits == first.digits:
            raise DuplicateRank(
                f"{first.file.path.parent}: {first.file.path.name} and {other.file.path.name} both claim rank {rank}; "
                "keep the files of one run in the folder, or name them one by one"
            )
        told = {m.file.pid for m in (first, other) if m.file.damage is None or m.file.pid is not None}
        if len(told) > 1:
            raise MixedJobs(
                f"{first.file.path.parent}: {first.file.path.name} (process {first.file.pid}) and "
                f"{other.file.path.name} (process {other.file.pid}) are rank {rank} of different jobs; "
                "analyse them apart"
            )
    return [replace(member, cycle=i) for i, member in enumerate(members)]


_TABLES: dict[str, Schema] = {
    "activities": ACTIVITIES,
    "launches": LAUNCHES,
    "annotations": ANNOTATIONS,
    "comm_args": COMM_ARGS,
    "cpu_operators": CPU_OPERATORS,
    "memory": MEMORY,
}


def _assemble(name: str, members: list[_Member]) -> Run:
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in _TABLES}
    for member in members:
        file = member.file
        parts = {
            "activities": with_steps(cpu_activities(file), file.launches, file.annotations),
            "launches": file.launches,
            "annotations": file.annotations,
            "comm_args": file.comm_args,
            "cpu_operators": file.cpu_ops if len(file.activities) else CPU_OPERATORS.empty(),
            "memory": file.memory,
        }
        for key, table in parts.items():
            placed = table.copy(deep=False)
            placed["rank"], placed["cycle"] = member.rank, member.cycle
            tables[key].append(placed)
    probed = [probe_rows(member.rank, member.side) for member in members if member.cycle == 0]
    joined = {name: schema.concat(tables[name]) for name, schema in _TABLES.items()}
    return Run(
        name=name,
        traces=TRACES.frame(_trace_row(m) for m in members),
        process_groups=PROCESS_GROUPS.frame(_group_rows(members)).drop_duplicates(ignore_index=True),
        activities=joined["activities"],
        launches=joined["launches"],
        annotations=joined["annotations"],
        comm_args=joined["comm_args"],
        cpu_operators=joined["cpu_operators"],
        memory=joined["memory"],
        step_times=STEP_TIMES.frame(row for m in members if m.cycle == 0 for row in step_rows(m.rank, m.side)),
        config=side_file(members[0].file.path.with_name("run.json")),
        notes=(*_notes(members), *(note for _, note in probed if note)),
        clock_probes=CLOCK_PROBES.frame(row for rows, _ in probed for row in rows),
    )


def _trace_row(member: _Member) -> dict[str, Any]:
    header, side = member.file.header, member.side
    torch_version = _text(_mapping(side.get("versions")).get("torch"))
    nccl = f"NCCL {header.nccl_version}" if header.nccl_version else None
    versions = [f"torch {torch_version}" if torch_version else None, header.cuda_version, nccl]
    complete, reason, world_size = side.get("complete"), _text(side.get("reason")), side.get("world_size")
    if member.file.damage is not None:
        complete, reason = False, member.file.damage
    return {
        "rank": member.rank,
        "cycle": member.cycle,
        "trace": member.file.path.name.encode("utf-8", "backslashreplace").decode("utf-8"),
        "world_size": header.world_size or (world_size if _is_count(world_size, 1) else None),
        "rank_from": member.rank_from,
        # Ranks of one host share a clock, which one without a zero does not.
        "host": (_text(side.get("host")) or header.host) if member.has_known_clock else None,
        "boot_id": _text(_mapping(side.get("machine")).get("boot_id")) if member.has_known_clock else None,
        "pid": member.file.pid,
        "backend": header.backend,
        "device_name": _device_name(member),
        "complete": complete if isinstance(complete, bool) else None,
        "incomplete_reason": reason,
        "partial": member.file.damage is not None,
        "versions": ", ".join(v for v in versions if v) or None,
    }


def _device_name(member: _Member) -> str | None:
    """Name of the device the rank used, from the trace's list of devices, else from the side file."""
    names, used = member.file.header.device_names, member.file.activities["device"]
    device = _mapping(member.side.get("device"))
    index = int(used.iloc[0]) if len(used) else device.get("index")
    if isinstance(index, int) and 0 <= index < len(names):
        return names[index]
    return _text(device.get("name"))


def _mapping(value: object) -> dict[str, Any]:
    """A side file's object, empty if it is something else."""
    return value if isinstance(value, dict) else {}


def _is_count(value: object, least: int) -> bool:
    """Can it count ranks?"""
    return type(value) is int and least <= value <= _MOST_RANKS


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _group_rows(members: list[_Member]) -> Iterable[dict[str, Any]]:
    for member in members:
        groups = [(g.name, g.description, g.backend, g.ranks) for g in member.file.header.process_groups]
        if not groups:
            listed = member.side.get("process_groups")
            groups = [
                (str(g.get("name")), str(g.get("desc")), str(g.get("backend")), tuple(g.get("ranks") or ()))
                for g in (listed if isinstance(listed, list) else [])
                if isinstance(g, dict) and isinstance(g.get("ranks"), list)
            ]
        for name, description, backend, ranks in groups:
            yield {
                "rank": member.rank,
                "process_group": name,
                "description": description,
                "backend": backend,
                "pg_ranks": " ".join(map(str, sorted(ranks))) or None,
            }


def _notes(members: list[_Member]) -> Iterable[str]:
    for member in members:
        yield from member.file.notes
        if member.rank_from == "only file":
            yield f"{member.file.path.name} does not say which rank it is; being alone it is taken as rank 0"
        on_gloo = int(member.file.annotations["name"].str.startswith("gloo:").sum())
        if on_gloo and len(member.file.activities):
            yield f"rank {member.rank}: {on_gloo} gloo operations on the CPU beside the GPU are not counted"
        if not member.has_known_clock:
            yield f"rank {member.rank}: the zero of its times is lost to the damage, so its clock is taken as unknown"
        if member.side.get("complete") is False and member.cycle == 0:
            reason = _text(member.side.get("reason")) or "no reason given"
            yield f"rank {member.rank}: the capture ended early: {reason}"
