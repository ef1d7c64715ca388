"""What threads of gloo runs did while no rank computed: the counters in side files tell it, if all do the same."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from builders import MS, US, Trace

from commtrace import analyse
from commtrace.analysis.metrics.causes.cpu_work import Counted

STEPS = 3


def run_of(folder: Path, *, idle_ms: int, did: dict[str, int], ready: bool = True):
    """Two ranks that compute for 5 ms, reduce for 2 ms and then run no operator for the rest of a step."""
    step_ns = (7 + idle_ms) * MS
    for rank in range(2):
        trace = Trace(rank, 2, groups={"0": [0, 1]}, backend="gloo", device_names=(), host="node")
        for step in range(STEPS):
            begin = step * step_ns
            trace.step(step, begin, begin + step_ns)
            trace.event("cpu_op", "aten::mm", begin, 5 * MS)
            trace.c10d("allreduce_", begin + 5 * MS, dims=[[[1000]], [], []], types=["TensorList", "", ""])
            trace.gloo("all_reduce", begin + 5 * MS + 10 * US, 2 * MS, dims=[[1000]], types=["float"])
        trace.event("cpu_op", "aten::mm", STEPS * step_ns, US)
        path = trace.write(folder)
        took = {"blocked": 0, "ready": 0, "gc": 0, **did}
        work = {
            "wall_ns": step_ns, "cpu_ns": step_ns - (took["blocked"] + took["ready"] + 2) * MS,
            "ready_ns": took["ready"] * MS if ready else None, "process_cpu_ns": step_ns, "gc_ns": took["gc"] * MS,
            "gc_collections": [0, 0, 0], "voluntary_switches": 1, "involuntary_switches": 0, "major_faults": 0,
            "blocks_read": 0, "blocks_written": 0, "eval_ns": 0, "checkpoint_ns": 0, "compile_ns": 0,
        }  # fmt: skip
        steps = [
            {"step": k, "phase": "active", "start_unix_ns": 1, "dur_ns": step_ns, "work": work} for k in range(STEPS)
        ]
        side = {"schema_version": 1, "rank": rank, "world_size": 2, "host": "node", "complete": True, "steps": steps}
        (folder / f"{path.name.split('.')[0]}.meta.json").write_text(json.dumps(side), encoding="utf-8")
    return analyse(folder, details=True)


@pytest.mark.quick_cases("computing")
@pytest.mark.parametrize(
    ("did", "said"),
    [
        ({"blocked": 30}, "heir threads were blocked for 30.0 to "),
        ({}, "heir threads computed in Python for "),
        ({"gc": 28}, "heir threads collected garbage for 27.0 to 29.0 ms"),
        ({"blocked": 15, "gc": 10}, None),
    ],
    ids=["asleep", "computing", "garbage", "nothing most of the time"],
)
def test_what_threads_did_is_said(tmp_path, did, said):
    verdict = run_of(tmp_path, idle_ms=32, did=did).verdict
    assert "idle for" in verdict
    assert "heir threads" in verdict if said else "heir threads" not in verdict
    assert said is None or said in verdict


@pytest.mark.slow
def test_nothing_is_said_where_the_system_does_not_count(tmp_path):
    assert "threads" not in run_of(tmp_path, idle_ms=32, did={"blocked": 20}, ready=False).verdict


@pytest.mark.parametrize("seed", range(50))
def test_parts_add_up_and_hold_the_truth(seed):
    """A thread that sleeps in and outside of idle time, computes, collects garbage and waits for a CPU."""
    rng = Random(seed)
    asleep, elsewhere, garbage, computing, ready, operators = (rng.randrange(1000) for _ in range(6))
    outside = asleep + garbage + computing
    counted = Counted(
        wall_ns=outside + elsewhere + ready + operators, cpu_ns=garbage + computing + operators,
        ready_ns=ready, gc_ns=garbage,
    )  # fmt: skip
    found = counted.outside(outside, elsewhere)
    assert found.whole_ns == pytest.approx(outside)
    assert abs(found.took_ns["blocked"] - asleep) <= found.unsure_ns / 2 + 1e-6
