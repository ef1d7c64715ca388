"""A TAR of trace files and their timeline, with the offsets of their clocks. No file is opened here.

Perfetto reads such a TAR from version 58 on. What the manifest may say: perfetto.dev/docs, "Multiple traces".
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from ..core.schema import Row, records
from ..run.event_tables import RanInCycle
from .ranks import RankClock

MANIFEST = "perfetto_manifest.json"
TIMELINE = "timeline.pftrace"
_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Bundled:
    """A trace file in a bundle, under its own name; its times are shifted by `offset_ns`."""

    rank: int
    cycle: int
    name: str
    machine: str
    offset_ns: int


@dataclass(frozen=True)
class Bundle:
    """Files beside the timeline in a bundle; the timeline's own times are shifted by `offset_ns`.

    The file that is first on the common clock has an offset of 0, and all others positive ones, because Perfetto drops
    what comes before 0. One offset cannot follow a clock that drifts: at the ends of the traces it is off by `drift_ns`
    at most.
    """

    files: tuple[Bundled, ...]
    offset_ns: int
    drift_ns: int

    def manifest(self) -> bytes:
        """The manifest for Perfetto, as JSON."""
        (first, *_) = sorted(self.files, key=lambda file: file.offset_ns)
        rows = [(file.name, file.machine, file.offset_ns) for file in self.files]
        rows.append((TIMELINE, "commtrace", self.offset_ns))
        files = [
            {"path": name, "machine": {"name": machine}}
            | ({} if name == first.name else {"clocks": {"sync_to": {"file": first.name}, "offset_ns": offset_ns}})
            for name, machine, offset_ns in rows
        ]
        return json.dumps({"perfetto_manifest": {"version": 1, "files": files}}, indent=1).encode()


def bundle(traces: pd.DataFrame, ran: Iterable[RanInCycle], clocks: pd.DataFrame, zero_ns: int) -> Bundle:
    """Bundle these trace files with a timeline that counts from `zero_ns`.

    What a file says at time t happened, on the common clock, at t + base_ns - the error of its clock.
    """
    of_rank = {row["rank"]: RankClock(row) for row in records(clocks)}
    windows = {(each.rank, each.cycle): (each.began_ns, each.ended_ns) for each in ran}
    rows = records(traces)
    errors = [_error_ns(of_rank[row["rank"]], windows.get((row["rank"], row["cycle"]), ())) for row in rows]
    zeros = [(row["base_ns"] or 0) - error for row, (error, _) in zip(rows, errors, strict=True)]
    files = tuple(
        Bundled(row["rank"], row["cycle"], _name(row), _machine(row), zero - min(zeros))
        for row, zero in zip(rows, zeros, strict=True)
    )
    return Bundle(files, zero_ns - min(zeros), max(drift for _, drift in errors))


def _error_ns(clock: RankClock, window: tuple[int, ...]) -> tuple[int, int]:
    """How far the clock is ahead in the middle of a window, and how much that changes at its ends."""
    ends = [clock.ahead_ns(time_ns) for time_ns in window or (clock.row["origin_ns"],)]
    middle = (min(ends) + max(ends)) // 2
    return middle, max(ends) - middle


def _name(row: Row) -> str:
    return f"rank{row['rank']}.{row['cycle']}.json{'.gz' if row['trace'].endswith('.gz') else ''}"


def _machine(row: Row) -> str:
    return f"rank {row['rank']}" if row["host"] is None else f"rank {row['rank']} ({row['host']})"


def tar(members: Iterable[tuple[str, int, Iterable[bytes]]]) -> Iterator[bytes]:
    """Yield a TAR of files, each with name, size in bytes, and content in parts."""
    for name, size, content in members:
        header = tarfile.TarInfo(name)
        header.size = size
        yield header.tobuf(tarfile.GNU_FORMAT)
        yield from content
        yield bytes(-size % _BLOCK)
    yield bytes(2 * _BLOCK)
