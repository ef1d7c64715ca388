"""Whether a late rank is throttled, as counters of its GPU say: in drawn runs, with and without a lower clock."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from simulator import Injection, Window, World, simulate
from simulator.ops import Kernel
from simulator.programs import ddp, fsdp, tp
from simulator.world import Place

from commtrace import analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis

STEPS, LAST = 5, 8
MHZ, WATTS, CELSIUS = 1980, 690, 61
LOWER = 0.7


def world(seed: int) -> tuple[World, int, float]:
    """A calm world, a rank in it, and us in each step by which that computes longer if it is slower."""
    rng = random.Random(seed)
    program, (hosts, gpus) = rng.choice((ddp, fsdp, tp)), rng.choice(((1, 4), (1, 8), (2, 4)))
    calm = World(rng.randrange(10**6), program, hosts, gpus, steps=LAST, window=Window(((1, STEPS),)))
    computing_us = sum(op.us for op in program(Place(0, hosts, gpus, 0, 1)) if isinstance(op, Kernel))
    return calm, rng.randrange(calm.size), (1 / LOWER - 1) * computing_us


def with_counters(folder: Path, throttled: int | None) -> None:
    """Add samples each 0.5 ms to the traces, with a lower clock, less power and more heat on this rank."""
    for path in sorted(folder.glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        rank, events = document["distributedInfo"]["rank"], document["traceEvents"]
        is_low, rng = rank == throttled, random.Random(rank)
        kernels = [event for event in events if event.get("cat") == "kernel"]
        device = kernels[0]["args"]["device"]
        at, until = (pick(float(event["ts"]) for event in kernels) for pick in (min, max))
        while at < until:
            for name, value in (
                ("SM Clock (MHz)", MHZ * (LOWER if is_low else 1) + rng.randrange(-15, 16)),
                ("Power (W)", WATTS * (0.5 if is_low else 1) + rng.uniform(-5, 5)),
                ("Temperature (C)", CELSIUS + (27 if is_low else 0) + rng.randrange(2)),
            ):
                events.append({"ph": "C", "name": name, "pid": f"GPU {device} Counters", "ts": at, "args": {"": value}})
            at += 500.0
        path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 1))


def read(run: World, folder: Path, throttled: int | None) -> Analysis:
    simulate(run).write(folder)
    with_counters(folder, throttled)
    return analyse(folder, details=True, cache=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_throttled_rank_is_named_with_its_clock(seed: int, tmp_path: Path) -> None:
    calm, rank, us = world(seed)
    slow = Injection("throttled", (rank,), tuple(range(LAST)), us)
    found = read(replace(calm, injections=(slow,)), tmp_path, rank)
    said = found.verdicts["because"].iloc[0]
    assert f"ank {rank}" in said
    assert "throttled (1,3" in said
    assert "others 1,98" in said or "others 1,97" in said
    assert " W, others 69" in said or " W, others 68" in said
    assert "°C, others 6" in said


@pytest.mark.slow
def test_a_rank_that_is_slow_at_the_usual_clock_is_not_throttled(tmp_path: Path) -> None:
    calm, rank, us = world(1)
    slow = Injection("throttled", (rank,), tuple(range(LAST)), us)
    found = read(replace(calm, injections=(slow,)), tmp_path, None)
    said = found.verdicts["because"].iloc[0]
    assert f"ank {rank}" in said
    assert "not throttled" in said


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nobody_is_called_throttled_in_a_calm_run(seed: int, tmp_path: Path) -> None:
    calm, _, _ = world(seed)
    found = read(calm, tmp_path, None)
    assert "throttled" not in " ".join(found.verdicts["because"].dropna())
    clocks = [row["clock_mhz"] for row in records(found.shapes_ranks)]
    assert all(abs(mhz - MHZ) <= 5 for mhz in clocks if mhz is not None)
