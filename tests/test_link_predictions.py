"""Runs with other links: what is predicted against the same run simulated with these links."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from samples import a_sample
from simulator import Hardware, Window, World, simulate
from simulator.pipelines import cp_ring, three_d
from simulator.programs import ddp, moe, tp, tp_dp

from analysis import analyse
from analysis.results.analysis import Analysis

MOST_WIDE = 0.2
"""Of an interval, as a fraction of the step: a wider one tells nothing."""
PROGRAMS = {
    "ddp": ddp,
    "tp": partial(tp, layers=4),
    "one size": partial(tp, layers=4, gradient=False),
    "tp and dp": tp_dp,
    "sizes alike": moe,
    "pipeline": partial(three_d, tp=1, pp=4),
    "pipeline, not batched": partial(three_d, tp=2, pp=2, batched=False),
    "ring": cp_ring,
}
CHANGES = {"links x 2": {"links": 2}, "links / 2": {"links": 0.5}, "latency / 2": {"latency": 2}}


def with_change(hardware: Hardware, links: float = 1, latency: float = 1) -> Hardware:
    return replace(
        hardware,
        intra_gb_per_s=hardware.intra_gb_per_s * links,
        inter_gb_per_s=hardware.inter_gb_per_s * links,
        intra_latency_us=hardware.intra_latency_us / latency,
        inter_latency_us=hardware.inter_latency_us / latency,
    )


def of_world(world: World, folder: Path) -> Analysis:
    simulate(world).write(folder)
    return analyse(folder, details=True)


def step_ns(analysis: Analysis) -> float:
    return float(analysis.breakdown_steps["window_ns"].mean())


@pytest.mark.parametrize("name", a_sample(list(PROGRAMS), 3, seed=5))
def test_a_run_with_other_links_is_as_predicted(name: str, tmp_path: Path) -> None:
    """Within an interval that is narrow enough to be of use, and that no certainty about a latency pretends."""
    world = World(3, PROGRAMS[name], 2, 2, steps=6, window=Window(((1, 4),)))
    table = of_world(world, tmp_path / "as it is").predict(*CHANGES.values())
    for (change, options), row in zip(CHANGES.items(), table.to_dict("records"), strict=True):
        changed = replace(world, hardware=with_change(world.hardware, **options))
        true = step_ns(of_world(changed, tmp_path / change))
        assert row["low_ns"] - 0.001 * true <= true <= row["high_ns"] + 0.001 * true
        assert row["high_ns"] - row["low_ns"] <= MOST_WIDE * true
        assert not pd.isna(row["step_ns"]) or "sizes different enough" in row["unknown"]


def test_where_one_size_ran_latency_is_not_known(tmp_path: Path) -> None:
    """Half of an unknown latency is no number, but bounds; and it is not nothing."""
    found = of_world(World(3, PROGRAMS["one size"], steps=6, window=Window(((1, 4),))), tmp_path)
    [row] = found.predict({"latency": 2}).to_dict("records")
    assert pd.isna(row["step_ns"])
    assert pd.isna(row["gain_ns"])
    assert row["low_ns"] < row["high_ns"]
