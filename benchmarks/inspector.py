"""How fast logs of NCCL Inspector become bandwidth by time, and in how much memory: `python benchmarks/inspector.py 1`.

Makes a log per rank of about so many GB in all, with an all_reduce over all ranks, an all_gather within each host, and
a straggler; then runs `commtrace bandwidth --by time` on them, and says MB/s and the peak of memory.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
_LINE_BYTES = {"v4.0": 429, "v4.3": 219}
_AT_ONCE = 20_000
_BEGIN_US = 1_748_030_377_000_000
_STEP_US = 40_000
_BATCH = 50


def make_logs(folder: Path, gb: float, ranks: int, version: str) -> int:
    """Write the logs; their bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = int(gb * 1e9 / ranks / _LINE_BYTES[version] / 2)
    for rank in range(ranks):
        with (folder / f"node{rank // 8:02d}-pid{4000 + rank}.log").open("w", encoding="ascii") as file:
            for first in range(0, steps, _AT_ONCE):
                file.writelines(_lines(rank, ranks, range(first, min(first + _AT_ONCE, steps)), version))
    return sum(path.stat().st_size for path in folder.iterdir())


def _lines(rank: int, ranks: int, steps: range, version: str) -> list[str]:
    rng = np.random.default_rng([rank, steps.start])
    late = np.where(np.arange(len(steps)) % 97 < 60, 180, 0) if rank == 5 else rng.integers(0, 60, len(steps))
    whole = (900 + np.random.default_rng(steps.start).integers(0, 40, len(steps)) - late).tolist()
    own = rng.integers(200, 260, len(steps)).tolist()
    host = rank // 8
    groups = (
        ("AllReduce", 64 << 20, f'{{"id":"0xa110","rank":{rank},"n_ranks":{ranks},"nnodes":{-(-ranks // 8)}}}', whole),
        ("AllGather", 1 << 20, f'{{"id":"0xb{host:03x}","rank":{rank % 8},"n_ranks":8,"nnodes":1}}', own),
    )
    found = []
    for begin in range(0, len(steps), _BATCH):
        batch = range(begin, min(begin + _BATCH, len(steps)))
        for kind, size, header, took in groups:
            for at in batch:
                context = (
                    f'"header":{header},"metadata":{{"inspector_output_format_version":"{version}","git_rev":"",'
                    '"rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":'
                    f'{_BEGIN_US + steps[at] * _STEP_US + rank},"hostname":"node{host:02d}","pid":{4000 + rank}}}'
                )
                call = (
                    f'"coll_perf":{{"coll":"{kind}","coll_sn":{steps[at]},"coll_msg_size_bytes":{size},'
                    f'"coll_exec_time_us":{took[at]},"coll_timing_source":"kernel_gpu","coll_algobw_gbs":'
                    f'{size / took[at] / 1000:f},"coll_busbw_gbs":{size * 1.75 / took[at] / 1000:f}}}'
                )
                if version == "v4.0":
                    found.append(f"{{{context},{call}}}\n")
                    continue
                if at == begin:
                    found.append(f'{{{context},"dump_stats":{{"coll_records":{len(batch)},"p2p_records":0}}}}\n')
                found.append(f"{{{call}}}\n")
    return found


def measured(folder: Path) -> tuple[float, float, float]:
    """Seconds of the command, and of the core that it uses, and the most MB that it held."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "commtrace", "bandwidth", "--by", "time", "--format", "csv", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    on_core = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, on_core, after.ru_maxrss / 1000


def main() -> None:
    """Print one line for each size, the smallest first: the peak is that of all so far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gb", nargs="*", type=float, default=[0.1, 1.0], help="sizes of all logs together, in GB")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--version", choices=sorted(_LINE_BYTES), default="v4.0")
    parser.add_argument("--folder", type=Path, help="where logs are made; a folder that is removed if not given")
    args = parser.parse_args()
    print("| version | ranks | MB | s | MB/s | MB per s of the core | peak MB |\n|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        for gb in sorted(args.gb):
            folder = Path(made) / "logs"
            size = make_logs(folder, gb, args.ranks, args.version)
            seconds, on_core, peak = measured(folder)
            mb = size / 1e6
            rates = f"{mb / seconds:.0f} | {mb / on_core:.0f}"
            print(f"| {args.version} | {args.ranks} | {mb:,.0f} | {seconds:.1f} | {rates} | {peak:.0f} |", flush=True)
            for path in folder.iterdir():
                path.unlink()


if __name__ == "__main__":
    main()
