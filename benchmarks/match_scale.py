"""Match and split generated calls of many ranks: how do time and memory grow? See README.md beside this.

python benchmarks/match_scale.py 128 256 512 1024
"""

import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from commtrace.analysis.core.tables.communication import CALLS  # noqa: E402
from commtrace.analysis.metrics.clocks.table import clocks  # noqa: E402
from commtrace.analysis.metrics.matching.ladder import matches  # noqa: E402
from commtrace.analysis.metrics.waiting import collectives, participation  # noqa: E402

COLLECTIVES = 2000


def generated(ranks: int) -> pd.DataFrame:
    """Calls of one process group without ids; each rank's clock is off by up to 20 ms."""
    rng = np.random.default_rng(0)
    start = np.zeros((ranks, COLLECTIVES), dtype=np.int64)
    end = start.copy()
    now = np.zeros(ranks, dtype=np.int64)
    for number in range(COLLECTIVES):
        compute = rng.exponential(300_000) + rng.exponential(100_000, ranks)
        start[:, number] = now + compute.astype(np.int64)
        now = start[:, number].max() + 200_000 + rng.integers(0, 20_000, ranks)
        end[:, number] = now
    offset = 10**18 + rng.integers(-20_000_000, 20_000_000, ranks)[:, None]
    count = ranks * COLLECTIVES
    known = {
        "call_id": np.arange(count),
        "rank": np.repeat(np.arange(ranks), COLLECTIVES),
        "cycle": 0,
        "device": "0",
        "stream": 7,
        "name": "ncclDevKernel",
        "collective": np.tile(rng.choice(["all_reduce", "all_gather"], COLLECTIVES), ranks),
        "process_group": "0",
        "pg_ranks": " ".join(map(str, range(ranks))),
        "group_size": ranks,
        "dtype": "float32",
        "size_bytes": np.tile(rng.integers(1, 5, COLLECTIVES) * 1024, ranks),
        "issue_ns": (start + offset).ravel(),
        "start_ns": (start + offset).ravel(),
        "dur_ns": (end - start).ravel(),
        "metadata_from": "kernel",
    }
    return CALLS.conform(pd.DataFrame(known, index=range(count)).reindex(columns=list(CALLS.columns)))


def measured(ranks: int) -> str:
    """One row of the table."""
    calls, hosts = generated(ranks), dict.fromkeys(range(ranks))
    begun = time.perf_counter()
    matched = matches(calls, hosts)
    found = clocks(calls, matched, hosts)
    split = participation(calls, matched, found, ranks)
    table = collectives(calls, matched, split, found, ranks)
    seconds = time.perf_counter() - begun
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    complete = int(table["complete"].sum())
    per_call = 1e6 * seconds / len(calls)
    return f"| {ranks} | {len(calls):,} | {complete:,} | {seconds:.1f} | {per_call:.1f} | {peak_gb:.1f} |"


def main() -> None:
    """Each number of ranks in a process of its own, so that peaks of memory do not mix."""
    if sys.argv[1:2] == ["--one"]:
        print(measured(int(sys.argv[2])), flush=True)
        return
    print(
        "| ranks | calls | matched complete | seconds | us per call | peak GB |\n|---:|---:|---:|---:|---:|---:|",
        flush=True,
    )
    for ranks in sys.argv[1:] or ["128", "256", "512", "1024"]:
        subprocess.run([sys.executable, __file__, "--one", ranks], check=True)


if __name__ == "__main__":
    main()
