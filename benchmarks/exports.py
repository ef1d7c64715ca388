"""How fast exports of Nsight Systems are read: `python benchmarks/exports.py EXPORT [TIMES]`; a line for each rank.

Events are repeated so many times in a copy, each time later. Times are those of the CPU, on one core.
"""

from __future__ import annotations

import resource
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commtrace.analysis.formats.nsight.ranks import ranks_in
from commtrace.analysis.formats.nsight.reader import read_nsight
from commtrace.analysis.recording.options import ReadOptions

EVENTS = (
    *(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")),
    "NVTX_EVENTS",
)
LATER = {"start": 10**9, "end": 10**9, "correlationId": 10**6, "eventSyncId": 10**4}
"""By how much a value grows from one time to the next."""


def repeat(path: Path, times: int) -> int:
    """Repeat all events of an export, and how many there are then."""
    count = 0
    with sqlite3.connect(path) as connection:
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in sorted(there.intersection(EVENTS)):
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            values = ", ".join(
                f'"{name}" + {LATER[name]} * :time' if name in LATER else f'"{name}"' for name in columns
            )
            connection.execute(f'CREATE TEMP TABLE once AS SELECT * FROM "{table}"')
            for number in range(1, times):
                connection.execute(f'INSERT INTO "{table}" SELECT {values} FROM once', {"time": number})
            connection.execute("DROP TABLE once")
            ((rows,),) = connection.execute(f'SELECT count(*) FROM "{table}"')
            count += rows
    connection.close()
    return count


def lines(path: Path, rows: int) -> Iterator[str]:
    """What there is to say of each rank."""
    yield f"{path.name}: {path.stat().st_size / 1e9:.2f} GB, {rows:,} events"
    for rank in ranks_in([path]).paths:
        for details in (False, True):
            begun = time.process_time()
            read_nsight(rank, ReadOptions(details=details))
            took_s = time.process_time() - begun
            peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            how = "with details" if details else "without details"
            yield f"{rank.name} {how}: {took_s:.1f} s, {rows / took_s:,.0f} events looked at per s, {peak_gb:.2f} GB"


def main() -> None:
    """Print a line for each rank, with and without details; the memory is the most so far."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copyfile(sys.argv[1], Path(folder) / "report.sqlite"))
        rows = repeat(path, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
        for line in lines(path, rows):
            print(line, flush=True)


if __name__ == "__main__":
    main()
