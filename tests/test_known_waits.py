"""What commtrace says of gloo trainings, against clocks of their threads and a count of their events: within 5 %.

Both are of the same capture, so other work on the machine changes both alike.
"""

import gzip
import json
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from capturing import SCRIPTS, torchrun

from commtrace import analyse

pytestmark = [pytest.mark.slow, pytest.mark.alone]

NEAR = 0.05
"""Of a step: how far apart two measures of the same thing may be."""
JOBS = [
    ("mesh", 2),
    ("mesh", 4),
    *((job, 2) for job in ("experts", "pipeline", "broadcast", "garbage", "sleep", "loader")),
]
MESSAGES = ("gloo:send", "gloo:recv")
US = 1000


class Traced:
    """What the trace of a rank shows, in ns."""

    def __init__(self, content):
        self.base = content["baseTimeNanoseconds"]
        events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
        named = sorted(((str(event["name"]), event) for event in events), key=lambda pair: self.start(pair[1]))
        self.gloo = [event for name, event in named if name.startswith("gloo:")]
        self.c10d = [event for name, event in named if name.startswith("c10d::")]
        steps = [e for name, e in named if name.startswith("ProfilerStep#") and e["cat"] == "user_annotation"]
        self.steps = [self.span(event) for event in steps]
        workers = {event["tid"] for event in self.gloo if not event["name"].startswith(MESSAGES)}
        self.operators = [event for _, event in named if event.get("cat") == "cpu_op" and event["tid"] not in workers]

    def start(self, event):
        return self.base + round(event["ts"] * US)

    def span(self, event):
        return self.start(event), self.start(event) + round(event["dur"] * US)

    def computing(self, step):
        """When kernels ran, but none of them waited for a tensor that is still to come."""
        kernels = [event for event in self.operators if event["name"].startswith("aten::")]
        handing = [event for event in self.operators if event["name"].startswith("_c10d_functional")]
        ran, waited = (during(step, map(self.span, of)) for of in (kernels, [*handing, *self.c10d]))
        return ran & ~waited


def during(step, spans):
    """For each microsecond of the step, whether any of the spans covers it."""
    covered = np.zeros((step[1] - step[0]) // US + 1, dtype=bool)
    for start, end in spans:
        covered[max(start - step[0], 0) // US : max(end - step[0], 0) // US] = True
    return covered


def meetings(ranks):
    """Calls that belong together, as (rank, start, end), and when the receiver of a message had it."""
    queues = defaultdict(lambda: defaultdict(list))
    for rank, traced in ranks.items():
        for event in traced.gloo:
            if not event["name"].startswith(MESSAGES):
                is_tensor_parallel = event["args"]["Input Dims"] == [[512, 256]]
                group = ("tensor", rank // 2) if is_tensor_parallel else ("data", rank % 2)
                queues[group if len(ranks) == 4 else "all"][rank].append((rank, *traced.span(event)))
        for way, op in (("send", "c10d::send"), ("recv", "c10d::recv_")):
            issued = [traced.start(event) for event in traced.c10d if event["name"] == op]
            ended = sorted(traced.span(event)[1] for event in traced.gloo if event["name"] == f"gloo:{way}")
            target = rank if way == "recv" else 1 - rank
            queues[target][rank] += [(rank, *times) for times in zip(issued, ended, strict=True)]
    for target, by_rank in queues.items():
        for calls in zip(*by_rank.values(), strict=True):
            had_it = [end for rank, _, end in calls if rank == target]
            yield calls, had_it[0] if had_it else max(end for _, _, end in calls)


def waiting_ns(ranks):
    """How long each rank waited for others in each of its steps, when it neither computed nor moved data."""
    waits, moves = defaultdict(list), defaultdict(list)
    for calls, had_it in meetings(ranks):
        last = max(start for _, start, _ in calls)
        for rank, start, end in calls:
            waits[rank].append((start, min(last, end)))
            moves[rank].append((last, min(end, had_it)))
    return {
        rank: [
            int((during(step, waits[rank]) & ~during(step, moves[rank]) & ~traced.computing(step)).sum()) * US
            for step in traced.steps
        ]
        for rank, traced in ranks.items()
    }


def read(path):
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


@pytest.mark.parametrize(("job", "workers"), JOBS)
def test_compute_and_waiting_are_what_threads_and_events_say(job, workers, tmp_path):
    done = torchrun(workers, SCRIPTS / "known_waits.py", tmp_path, job)
    assert done.returncode == 0, done.stderr
    found = analyse(tmp_path / "run").breakdown_steps
    ranks = {rank: Traced(read(next((tmp_path / "run").glob(f"*_{rank}.*.trace.json.gz")))) for rank in range(workers)}
    waited = waiting_ns(ranks)
    for rank, traced in ranks.items():
        # The first step began before its window; the last has the end of the capture in it, and no clock of a thread.
        said = found[found["rank"] == rank].sort_values("step").iloc[1:-1].mean(numeric_only=True)
        thread = pd.DataFrame(read(tmp_path / f"truth-{rank}.json")).iloc[1:].mean()
        near = NEAR * thread["took_ns"]
        ran = thread["cpu_ns"] + thread["ready_ns"]
        kernels = np.mean([traced.computing(step).sum() * US for step in traced.steps[1:-1]])
        assert said["compute_ns"] >= kernels - near
        assert said["exposed_wait_ns"] == pytest.approx(np.mean(waited[rank][1:-1]), abs=near)
        assert said["idle_ns"] >= thread["slept_ns"] - near
        blocked, in_python = thread["took_ns"] - ran - thread["slept_ns"], max(ran - said["compute_ns"], 0)
        assert said["compute_ns"] <= ran + near
        # Python that runs while an operation does is no compute.
        assert blocked - near <= said["exposed_comm_ns"] <= blocked + in_python + near
