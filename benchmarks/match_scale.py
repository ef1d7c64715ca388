"""Match and split generated calls of many ranks: how do time and memory grow? See README.md beside this.

python benchmarks/match_scale.py [--known nothing|steps|ids] [--calls 2000] [RANKS ...]

What traces say of calls decides how they are matched. `nothing`: no host, step or id, so each rank is placed by times.
`steps`: hosts of eight ranks, whose clocks are 20 ms apart, and the step and place in it of each call. `ids`: hosts,
and torch's id of each collective.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from commtrace.analysis.metrics.matching.ladder import matches  # noqa: E402
from commtrace.analysis.tables.calls import CALLS  # noqa: E402
from commtrace.analysis.tables.clocks import compared_clocks  # noqa: E402
from commtrace.analysis.tables.collectives import collectives  # noqa: E402
from commtrace.analysis.tables.participation import split_calls  # noqa: E402

IN_STEP = 20


def generated(ranks: int, calls: int, known: str) -> tuple[pd.DataFrame, dict[int, str | None]]:
    """Calls of one process group, so many of each rank, and the host of each rank. Clocks are up to 20 ms apart."""
    rng = np.random.default_rng(0)
    start = np.zeros((ranks, calls), dtype=np.int64)
    end = start.copy()
    now = np.zeros(ranks, dtype=np.int64)
    for number in range(calls):
        compute = rng.exponential(300_000) + rng.exponential(100_000, ranks)
        start[:, number] = now + compute.astype(np.int64)
        now = start[:, number].max() + 200_000 + rng.integers(0, 20_000, ranks)
        end[:, number] = now
    hosts = {rank: None if known == "nothing" else f"node{rank // 8}" for rank in range(ranks)}
    apart = rng.integers(-20_000_000, 20_000_000, ranks)
    offset = 10**18 + (apart if known == "nothing" else apart[np.arange(ranks) // 8])[:, None]
    number = np.tile(np.arange(calls), ranks)
    columns = {
        "call_id": np.arange(ranks * calls),
        "rank": np.repeat(np.arange(ranks), calls),
        "cycle": 0,
        "device": "0",
        "stream": 7,
        "name": "ncclDevKernel",
        "collective": np.tile(rng.choice(["all_reduce", "all_gather"], calls), ranks),
        "process_group": "0",
        "pg_ranks": " ".join(map(str, range(ranks))),
        "group_size": ranks,
        "dtype": "float32",
        "size_bytes": np.tile(rng.integers(1, 5, calls) * 1024, ranks),
        "issue_ns": (start + offset).ravel(),
        "start_ns": (start + offset).ravel(),
        "dur_ns": (end - start).ravel(),
        "metadata_from": "kernel",
    }
    if known != "nothing":
        columns |= {"step": number // IN_STEP, "turn": number % IN_STEP}
    if known == "ids":
        columns["comms_id"] = number.astype(str)
    table = pd.DataFrame(columns, index=range(ranks * calls)).reindex(columns=list(CALLS.columns))
    return CALLS.conform(table), hosts


def measured(ranks: int, calls_each: int, known: str) -> str:
    """One row of the table."""
    calls, hosts = generated(ranks, calls_each, known)
    begun = time.process_time()
    matched = matches(calls, hosts)
    found = compared_clocks(calls, matched, hosts)
    clear = time.process_time()
    split = split_calls(calls, matched, found, ranks)
    table = collectives(calls, matched, split, found, ranks)
    ended = time.process_time()
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    complete = int(table["complete"].sum())
    matching, split_us = (1e6 * seconds / len(calls) for seconds in (clear - begun, ended - clear))
    return (
        f"| {known} | {ranks} | {len(calls):,} | {complete:,} | {ended - begun:.1f} | {matching:.1f} | {split_us:.1f} "
        f"| {peak_gb:.1f} |"
    )


def main() -> None:
    """Each number of ranks in a process of its own, so that peaks of memory do not mix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", nargs="*", type=int, default=[128, 256, 512, 1024])
    parser.add_argument("--known", choices=("nothing", "steps", "ids"), nargs="+", default=["nothing", "steps", "ids"])
    parser.add_argument("--calls", type=int, default=2000, help="calls of each rank")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(measured(args.ranks[0], args.calls, args.known[0]), flush=True)
        return
    print(
        "| known | ranks | calls | matched complete | CPU s | us a call: matching and clocks | waits | peak GB |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        flush=True,
    )
    for known in args.known:
        for ranks in args.ranks:
            one = [str(ranks), "--known", known, "--calls", str(args.calls), "--one"]
            subprocess.run([sys.executable, __file__, *one], check=True)


if __name__ == "__main__":
    main()
