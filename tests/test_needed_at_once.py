"""What is advised where transfers cost most: to begin them earlier only where something can run beside them."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from samples import with_slow
from simulator import Window, World, simulate
from simulator.programs import ddp, fsdp, inference_graph, moe, tp, twins
from simulator.world import Hardware, Layout, Program

from commtrace import analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.replay.cures import CURES

AT_ONCE: dict[str, Program] = {
    "tp": tp,
    "tp, forward": partial(tp, gradient=False),
    "tp, small": partial(tp, gradient=False, elems=1 << 15, layer_us=60.0),
    "experts": moe,
    "graph": inference_graph,
}
BESIDE: dict[str, Program] = {
    "ddp": ddp,
    "ddp, one bucket": partial(ddp, buckets=(13 << 20,)),
    "ddp, many buckets at the end": partial(ddp, layers=1, layer_us=900.0, buckets=(2 << 20,) * 6),
    "fsdp": fsdp,
    "fsdp, resharding nothing": partial(fsdp, reshard=False),
    "twins": twins,
}
CASES = [(name, seed) for name in (*AT_ONCE, *BESIDE) for seed in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), with_slow([CASES[0], CASES[-9]], CASES[1:-9] + CASES[-8:]))
def test_what_comes_next_needs_each_collective(name: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{name} {seed}")
    hardware = Hardware(intra_gb_per_s=rng.choice((20.0, 60.0, 200.0)))
    layout = Layout(graph=name == "graph", sync_on_compute=rng.random() < 0.5)
    program, gpus, window = {**AT_ONCE, **BESIDE}[name], rng.choice((2, 4)), Window(((1, 8),))
    made = World(seed, program, 1, gpus, steps=10, hardware=hardware, layout=layout, window=window)
    simulate(made).write(tmp_path)
    rows = records(analyse(tmp_path, details=True).remedies)
    advice = [row["how"] for row in rows if row["remedy"] == "overlap"]
    if name in AT_ONCE:
        assert advice == [CURES["overlap"].how_at_once]
    else:
        assert CURES["overlap"].how_at_once not in advice
