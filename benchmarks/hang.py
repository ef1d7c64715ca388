"""How long `commtrace hang` takes for many ranks, and how much memory: `python benchmarks/hang.py [RANKS [CALLS]]`.

Ranks are those of a job parallel in tensors, pipelines and data; one does not come to the last three calls.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TENSOR, PIPELINE = 8, 8
FRAMES = [
    [{"name": f"f{n}", "filename": f"/opt/train/layers_{n}.py", "line": n + k} for n in range(12)] for k in range(8)
]
START_NS = 1_758_581_237_000_000_000


def groups_of(ranks: int) -> list[tuple[str, list[int]]]:
    """Description and ranks of every process group."""
    data = max(ranks // (TENSOR * PIPELINE), 1)
    stage = TENSOR * data
    tensor = [list(range(first, first + TENSOR)) for first in range(0, ranks, TENSOR)]
    replicas = [
        list(range(s * stage + t, (s + 1) * stage, TENSOR)) for s in range(ranks // stage) for t in range(TENSOR)
    ]
    named = [("TENSOR_MODEL_PARALLEL_GROUP", g) for g in tensor] + [("DATA_PARALLEL_GROUP", g) for g in replicas]
    return [("default_pg", list(range(ranks))), *named]


def dump_of(rank: int, of_rank: list[tuple[str, str, str]], calls: int, missing: bool) -> dict[str, Any]:
    """The dump of one rank, of which the last calls are not done; groups are name, description and ranks."""
    world, tensor, data = of_rank
    entries, counts = [], {}
    for number in range(calls - 3 if missing else calls):
        name, about, _ = group = (tensor, tensor, tensor, tensor, tensor, tensor, data, world)[number % 8]
        seq = counts[name] = counts.get(name, 50_000) + 1
        done = number < calls - 3
        created = START_NS + number * 1000 + rank
        entries.append({
            "record_id": 400_000 + number, "pg_id": of_rank.index(group), "process_group": (name, about),
            "thread_name": "python3", "thread_id": "23456244340032", "collective_seq_id": seq, "p2p_seq_id": 0,
            "op_id": seq, "profiling_name": "nccl:all_reduce", "time_created_ns": created,
            "input_sizes": [[2048, 1, 5120]], "input_dtypes": ["BFloat16"], "output_sizes": [[2048, 1, 5120]],
            "output_dtypes": ["BFloat16"], "state": "completed" if done else "scheduled",
            "time_discovered_started_ns": None, "time_discovered_completed_ns": created + 5 if done else None,
            "retired": done, "timeout_ms": 600_000, "is_p2p": False, "frames": FRAMES[number % 8],
        })  # fmt: skip
    config = {name: {"name": name, "desc": about, "ranks": ranks} for name, about, ranks in of_rank}
    return {"version": "2.9", "pg_config": config, "nccl_version": "2.27", "pg_status": {}, "entries": entries}


def main(ranks: int, calls: int) -> None:
    """Write the dumps, read them, and say what that took."""
    with tempfile.TemporaryDirectory() as folder:
        groups = [(str(number), about, str(members)) for number, (about, members) in enumerate(groups_of(ranks))]
        of_rank: dict[int, list[tuple[str, str, str]]] = {rank: [] for rank in range(ranks)}
        for group, (_, members) in zip(groups, groups_of(ranks), strict=True):
            for rank in members:
                of_rank[rank].append(group)
        for rank in range(ranks):
            content = pickle.dumps(dump_of(rank, of_rank[rank], calls, rank == ranks * 3 // 4), protocol=2)
            (Path(folder) / f"nccl_trace_rank_{rank}").write_bytes(content)
        command = ["/usr/bin/time", "-v", sys.executable, "-m", "commtrace", "hang", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    for item in ("Elapsed", "User time", "Maximum resident"):
        print(*re.findall(rf"^\s*({item}.*)$", done.stderr, re.MULTILINE))
    print(done.stdout.partition("\n\n")[0])


if __name__ == "__main__":
    given = [int(value) for value in sys.argv[1:]]
    main(*(given + [1024, 2000][len(given) :]))
