"""Assign ranks to the processes in all exports of a run; an export has every process of its session.

NCCL's own payloads tell ranks, if some communicator is that of all processes. Otherwise, where each file holds one
process, variables of its launcher do, or else names of files. Otherwise ranks are counted: files in the order that
variables or names give, in them processes by their GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ....common.wording import shortened
from ....contract.limits import RANK_LIMIT
from ...core.budget import Budget
from ...core.escaping import encodable
from ...core.kinds import COMM, kernel_kind
from ...errors import MixedJobs, TraceError
from ...recording.database import Database
from ...recording.options import ReadOptions, RunFacts
from ...recording.shared_files import MOST_IN_FILE, SharedRank, natural_order, rank_in_name
from ..format import RanksInFiles
from . import session
from .devices import COPY_TABLE, FILL_TABLE, GRAPH_TABLE, KERNEL_TABLE, NAME_COLUMNS
from .nccl.communicators import Membership, known_groups, members_in, ranks_by_world
from .tables import NSYS, TEXT_TABLE, ExportTables, process_of

_APART_NS = 2_000_000_000
"""Clocks of hosts may differ by so much; windows that are farther apart are of different runs."""
_LIMIT_BYTES = 100_000_000
"""What there is in an export that tells its ranks takes far less."""
_MOST_NAMED = 8


@dataclass(frozen=True)
class Process:
    """A process that used GPUs: the lowest of them by the machine's numbers, and its communicators."""

    pid: int
    gpu: int
    communicates: bool
    joined: tuple[Membership, ...]


@dataclass(frozen=True)
class Export:
    """Processes of an export that may be ranks, by their GPUs where these differ; `others` are left out.

    `epoch` is unix time in ns at which the clock of its host was 0, `rank` that of the process that began the session,
    as far as it says so.
    """

    path: Path
    processes: tuple[Process, ...] = ()
    others: tuple[Process, ...] = ()
    host: str | None = None
    epoch: int | None = None
    rank: int | None = None
    world_size: int | None = None


def ranks_in(paths: Sequence[Path]) -> RanksInFiles:
    """Find the ranks in the exports of a run.

    Exports that cannot be read, or hold one rank that their name tells, stay as they are. Raises MixedJobs.
    """
    with ThreadPoolExecutor() as threads:  # SQLite works without Python's lock
        exports = list(threads.map(_export, paths))
    several = _in_order([export for export in exports if export.processes])
    joined = {(export.path, each.pid): each.joined for export in several for each in export.processes}
    world = ranks_by_world(joined) if joined else None
    notes = [note for export in exports for note in _on_others(export)]
    epochs = {each.host: each.epoch for each in reversed(several) if each.host is not None and each.epoch is not None}
    run_facts = RunFacts(epochs=tuple(epochs.items()) if len(several) > 1 else ())
    size: int | None = None
    if world is not None:
        size, ranks = world[0].ranks, world[1]
        run_facts = replace(run_facts, communicators=tuple(known_groups(joined, ranks).items()))
    elif several and _are_single(several) and _launchers_differ(several):
        ranks = {(each.path, each.processes[0].pid): each.rank for each in several if each.rank is not None}
        sizes = {each.world_size for each in several}
        size = next(iter(sizes)) if len(sizes) == 1 else None
    elif _are_single(several) and _names_have_ranks(several):
        return RanksInFiles(list(paths), notes, run_facts)
    else:
        _check_one_run(several)
        ranks = {process: rank for rank, process in enumerate(joined)}
        notes += _on_counting(several, ranks)
    return RanksInFiles([path for export in exports for path in _paths(export, ranks, size)], notes, run_facts)


def _paths(export: Export, ranks: Mapping[tuple[Path, int], int], size: int | None) -> list[Path]:
    """The path of each rank in an export; the export itself if it has none."""
    shared = [SharedRank(ranks[export.path, process.pid], size, process.pid) for process in export.processes]
    return [process.in_file(export.path) for process in shared] or [export.path]


def _export(path: Path) -> Export:
    """Look at an export; an unreadable one has no processes, and its reader will say why."""
    try:
        with Database(path, NSYS, Budget(_LIMIT_BYTES)) as database:
            processes = list(islice(_processes(database), MOST_IN_FILE + 1))
            tables = ExportTables(database, ReadOptions(), None)
            host, epoch = session.host(tables), session.epoch_ns(tables)
            rank, world_size = session.rank_in_environment(tables)
    except TraceError:
        return Export(path)
    if len(processes) > MOST_IN_FILE:
        return Export(path)
    some_communicate = any(process.communicates for process in processes)
    ranks = [process for process in processes if process.communicates or not some_communicate]
    differ = len({process.gpu for process in ranks}) == len(ranks)
    ranks.sort(key=lambda process: (process.gpu if differ else 0, process.pid))
    return Export(
        path,
        tuple(ranks),
        tuple(process for process in processes if process not in ranks),
        host,
        epoch,
        rank,
        world_size,
    )


def _processes(database: Database) -> Iterator[Process]:
    """Yield the processes of an export that used GPUs."""
    tables = ExportTables(database, ReadOptions(), None)
    named = database.first_with(KERNEL_TABLE, NAME_COLUMNS)
    kernels = database.distinct(KERNEL_TABLE, ["globalPid", "deviceId", *([named] if named else [])])
    used = {(pid, device) for pid, device, *_ in kernels}
    for table in (COPY_TABLE, FILL_TABLE, GRAPH_TABLE):
        used |= database.distinct(table, ["globalPid", "deviceId"])
    texts = tables.texts(TEXT_TABLE, [row[2] for row in kernels if len(row) > 2 and type(row[2]) is int])
    communicating = {row[0] for row in kernels if kernel_kind(texts.get(row[-1], "")) == COMM}
    joined = members_in(tables)
    devices: dict[int, set[int]] = {}
    for serialized, device in used:
        if type(serialized) is int and type(device) is int:
            devices.setdefault(serialized, set()).add(device)
    gpus = session.gpus_by_process(tables)
    for serialized, devices_of_process in devices.items():
        pid = process_of(serialized)
        known = gpus.get(pid) or gpus.get(None, {})
        first = min(known[device].number if device in known else device for device in devices_of_process)
        yield Process(pid, first, serialized in communicating, tuple(joined.get(pid, ())))


def _are_single(exports: Sequence[Export]) -> bool:
    return all(len(export.processes) == 1 for export in exports)


def _launchers_differ(exports: Sequence[Export]) -> bool:
    """Whether each session was started by a process of a different, possible rank."""
    ranks = [export.rank for export in exports if export.rank is not None]
    sizes = [export.world_size for export in exports if export.world_size is not None]
    return len(set(ranks)) == len(exports) and max(ranks, default=0) < min(sizes, default=RANK_LIMIT)


def _names_have_ranks(exports: Sequence[Export]) -> bool:
    return len(exports) < 2 or all(rank_in_name(export.path.name) is not None for export in exports)


def _in_order(exports: Sequence[Export]) -> list[Export]:
    """Sort by the ranks of the starting processes if these differ, else by name."""
    if _launchers_differ(exports):
        return sorted(exports, key=lambda export: export.rank or 0)
    return sorted(exports, key=lambda export: natural_order(export.path.name))


def _check_one_run(exports: Sequence[Export]) -> None:
    """Raise MixedJobs if the files were not captured at the same time, as nothing else tells runs apart."""
    spans = {export.path: span for export in exports if (span := _span(export)) is not None}
    if len(exports) < 2 or len(spans) < 2:
        return
    last = max(spans, key=lambda path: spans[path][0])
    first = min(spans, key=lambda path: spans[path][1])
    if spans[last][0] > spans[first][1] + _APART_NS:
        raise MixedJobs(
            f"{last.parent}: {first.name} and {last.name} do not say which ranks they are, and were captured one after "
            "the other, so they are not taken for one run; analyse them apart, or name the files rank0, rank1, ..."
        )


def _span(export: Export) -> tuple[int, int] | None:
    """Start of an export's first kernel and end of its last one, as unix time; None if not known."""
    with suppress(TraceError), Database(export.path, NSYS, Budget(_LIMIT_BYTES)) as database:
        begin, end = database.ends_of(KERNEL_TABLE, "start", "end")
        if begin is not None and end is not None and export.epoch is not None:
            return begin + export.epoch, end + export.epoch
    return None


def _on_counting(exports: Sequence[Export], ranks: Mapping[tuple[Path, int], int]) -> Iterator[str]:
    if not exports:
        return
    files = len(exports)
    named = [
        f"rank {ranks[export.path, process.pid]} is process {process.pid}"
        + (f" of {encodable(export.path.name)}" * (files > 1))
        for export in exports
        for process in export.processes
    ]
    what = "files in order, and processes" if files > 1 else f"{encodable(exports[0].path.name)}: processes"
    yield f"{what} by their GPUs are counted as ranks, which nothing names: {shortened(named, _MOST_NAMED)}"


def _on_others(export: Export) -> Iterator[str]:
    if export.others:
        left_out = shortened([process.pid for process in export.others], _MOST_NAMED)
        yield (
            f"{encodable(export.path.name)}: left out what did not communicate, as the others did: process {left_out}"
        )
