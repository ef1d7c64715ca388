"""Read snapshots of all ranks on all cores, and make the tables of memory of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ...contract.rank import META_SUFFIX
from ..core.budget import GB, Budget, default_limit_bytes
from ..core.schema import Row
from ..errors import NothingMeasured, TraceError
from ..formats.snapshots.snapshot import read_snapshot
from ..metrics.memory.snapshots import calls_of_snapshot, fragment_row, memory_of_snapshot, notes_on_snapshot
from ..metrics.memory.table import rows_of_memory
from ..reading.executor import Processes, cores
from ..reading.executor import results as results_of
from ..reading.named_ranks import ranks_of
from ..reading.trace_files import run_name
from ..recording.compression import packed_bytes
from ..run.side_files import rank_file, used_outside
from ..tables.memory import ALLOCATIONS, DEVICE_MEMORY, FRAGMENTS, MEMORY_STEPS
from .files import SNAPSHOTS

_LOG = logging.getLogger("commtrace.reading")
_WORTH_PROCESSES_BYTES = 8 << 20
"""Files that have less together are read sooner than processes have started."""
SNAPSHOT_TABLES = {schema.name: schema for schema in (DEVICE_MEMORY, MEMORY_STEPS, ALLOCATIONS, FRAGMENTS)}
"""The tables that snapshots give, by name, with their schemas."""


class _Rows(NamedTuple):
    """The rows of one snapshot by table, with its own notes; the rank in them is 0."""

    by_table: dict[str, list[Row]]
    notes: list[str]
    kept_bytes: int


@dataclass(frozen=True)
class SnapshotAnalysis:
    """The memory of all ranks whose snapshots were given."""

    name: str
    memory: pd.DataFrame
    memory_steps: pd.DataFrame
    allocations: pd.DataFrame
    fragments: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def table(self, name: str) -> pd.DataFrame:
        """One of `SNAPSHOT_TABLES`. Raises NothingMeasured for others."""
        if name not in SNAPSHOT_TABLES:
            raise NothingMeasured(
                f"{name}: snapshots of the allocator say what memory was used for, and nothing else; of tables there "
                f"are {', '.join(SNAPSHOT_TABLES)}"
            )
        table: pd.DataFrame = getattr(self, name)
        return table


def analyse_snapshots(
    paths: Sequence[Path], *, keep_going: bool = False, workers: int | None = None, memory_gb: float | None = None
) -> SnapshotAnalysis:
    """Read the snapshots at `paths`: files, or folders of them, one per rank.

    With `keep_going`, files that cannot be used are left out. They must not need more than `memory_gb` of memory, in
    1e9 bytes; four fifths of what is free if not given. Raises AnalysisError.
    """
    limit_bytes = default_limit_bytes() if memory_gb is None else int(memory_gb * GB)
    files = SNAPSHOTS.named(paths)
    is_much = sum(map(packed_bytes, files)) >= _WORTH_PROCESSES_BYTES
    readers = max(1, min(workers or cores(), len(files))) if is_much else 1
    _LOG.info("reading %d snapshots of the allocator, in %d processes", len(files), readers)
    budget, results = Budget(limit_bytes), []
    with Processes(readers if readers > 1 else 0) as executor:
        for path, result in zip(
            files, results_of(executor, _read, ((path, limit_bytes // readers) for path in files)), strict=True
        ):
            results.append(result)
            if isinstance(result, _Rows):
                budget.draw(f"{path}: with all snapshots before it", result.kept_bytes)
    errors = [result for result in results if isinstance(result, TraceError)]
    if errors and (not keep_going or len(errors) == len(results)):
        raise errors[0]
    usable = [(path, result) for path, result in zip(files, results, strict=True) if isinstance(result, _Rows)]
    ranks, notes = _ranks([path for path, _ in usable])
    by_rank = sorted(zip(ranks, usable, strict=True), key=lambda pair: pair[0])
    notes += [f"rank {rank}: {note}" for rank, (_, rows) in by_rank for note in rows.notes]
    for rank, (path, rows) in by_rank:
        known = _beside(path, rank)
        for row in rows.by_table["memory"]:
            row.update(known.get(row["device"], {}))
    tables = {
        name: schema.frame([row | {"rank": rank} for rank, (_, rows) in by_rank for row in rows.by_table[name]])
        for name, schema in SNAPSHOT_TABLES.items()
    }
    if not len(tables["memory"]):
        raise NothingMeasured(f"{files[0]}: its allocator holds nothing and recorded no history")
    failed = [str(error) for error in errors]
    return SnapshotAnalysis(name=run_name(paths), **tables, notes=notes, failed=failed)


def _ranks(paths: Sequence[Path]) -> tuple[list[int], list[str]]:
    """The rank of each file; a single one needs no rank in its name. Raises UnknownRank, DuplicateRank."""
    if len(paths) == 1 and not any(letter.isdecimal() for letter in paths[0].name):
        return [0], [f"{paths[0].name} has no rank in its name: shown as rank 0"]
    return ranks_of(paths, [None] * len(paths), like="memory_rank_3.pickle", what="snapshot"), []


def _beside(path: Path, rank: int) -> dict[str, Row]:
    """What the side file of a rank beside its snapshot says of its device, by CUDA ordinal; empty without one."""
    for other in sorted(path.parent.glob(f"*_{rank}{META_SUFFIX}")):
        side = rank_file(other, [])
        used = used_outside(side)
        if used is not None and side.record.rank == rank:
            return {used[0]: {"outside_bytes": used[1], "device_bytes": side.record.step_memory[0].device_bytes}}
    return {}


def _read(path: Path, limit_bytes: int) -> _Rows | TraceError:
    begun = time.monotonic()
    try:
        snapshot = read_snapshot(path, limit_bytes)
    except TraceError as err:
        return err
    found = list(memory_of_snapshot(snapshot, 0))
    rows = rows_of_memory((one.explained for one in found), calls_of_snapshot(snapshot, 0))
    notes = {one.explained.memory.device: "; ".join(notes_on_snapshot(one)) for one in found}
    devices = [{**row, "note": "; ".join(filter(None, (notes[row["device"]], row["note"])))} for row in rows.devices]
    by_table = {
        "memory": devices,
        "memory_steps": rows.steps,
        "allocations": rows.places,
        "fragments": [fragment_row(one) for one in found],
    }
    _LOG.info("%r: read as a snapshot of the allocator, in %.3f s", str(path), time.monotonic() - begun)
    return _Rows(by_table, list(snapshot.notes), 1_000 * sum(map(len, by_table.values())))
