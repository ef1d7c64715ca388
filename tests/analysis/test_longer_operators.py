"""A late rank without a GPU whose operators take longer: whether it computes longer, by the counters in side files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest
from builders import MS, US, Trace

from commtrace import analyse

STEPS = 3


def said_of(folder: Path, longer_ms: int, counters: dict[int, tuple[int, int]] | None, late: int = 1) -> str:
    """What is said first of two ranks, of which one is in an operator for longer; counters are blocked and ready ms.

    The other waits for it. Without counters there are no side files.
    """
    step_ns = (20 + longer_ms) * MS
    for rank in range(2):
        trace = Trace(rank, 2, groups={"0": [0, 1]}, backend="gloo", device_names=(), host="node")
        for step in range(STEPS):
            begin = step * step_ns
            ready = begin + (10 + longer_ms * (rank == late)) * MS
            trace.step(step, begin, begin + step_ns)
            trace.op("aten::mm", begin, ready - begin - 20 * US)
            trace.c10d("allreduce_", ready, dims=[[[1000]], [], []], types=["TensorList", "", ""])
            end = begin + step_ns - 5 * MS
            trace.gloo("all_reduce", ready + 10 * US, end - ready, dims=[[1000]], types=["float"])
            trace.op("aten::add", end + 20 * US, 4 * MS)
        path = trace.write(folder)
        if counters is None:
            continue
        blocked, ready_ms = counters[rank]
        work = {
            "wall_ns": step_ns, "cpu_ns": step_ns - (blocked + ready_ms) * MS, "ready_ns": ready_ms * MS,
            "process_cpu_ns": step_ns, "gc_ns": 0, "gc_collections": [0, 0, 0], "voluntary_switches": 1,
            "involuntary_switches": 0, "major_faults": 0, "blocks_read": 0, "blocks_written": 0, "eval_ns": 0,
            "checkpoint_ns": 0, "compile_ns": 0,
        }  # fmt: skip
        steps = [
            {"step": k, "phase": "active", "start_unix_ns": 1, "dur_ns": step_ns, "work": work} for k in range(STEPS)
        ]
        side = {"schema_version": 1, "rank": rank, "world_size": 2, "host": "node", "complete": True, "steps": steps}
        (folder / f"{path.name.split('.')[0]}.meta.json").write_text(json.dumps(side), encoding="utf-8")
    return analyse(folder, details=True, cache=False).verdict


@pytest.mark.quick_cases("asleep-0")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("blocked", "ready", "does", "meanwhile"),
    [(1, 0, "is in operators", "; its thread is blocked"), (0, 1, "is in operators", "; its thread waits for a CPU"),
     (0, 0, "computes", "")],
    ids=["asleep", "without a CPU", "computing"],
)  # fmt: skip
def test_what_the_thread_does_is_said(
    tmp_path: Path, blocked: int, ready: int, does: str, meanwhile: str, seed: int
) -> None:
    longer, late = Random(seed).randrange(12, 40), seed % 2
    of_rank = {late: (5 + longer * blocked, longer * ready), 1 - late: (5, 0)}
    if not blocked and not ready:  # while the late one computes, the other is blocked in its collective
        of_rank[1 - late] = (5 + longer, 0)
    said = said_of(tmp_path, longer, of_rank, late)
    assert re.search(rf"it {does} [\d.]+ ms per step longer than the others, mostly in aten::mm{meanwhile}\. ", said)


@pytest.mark.slow
def test_without_side_files_an_operator_that_takes_longer_computes(tmp_path: Path) -> None:
    assert re.search(r"it computes [\d.]+ ms per step longer than the others", said_of(tmp_path, 30, None))
