"""Experts of simulated runs, drawn at random: costs, layers and hot ranks, and lateness apart from these."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import with_slow
from simulator import Layout, World, simulate
from simulator.experts import Routing, routed, truth_of_experts
from simulator.programs import ddp
from simulator.world import Hardware

from commtrace import analyse
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.results.analysis import Analysis


def drawn(seed: int) -> tuple[World, dict[str, Any]]:
    """A world with experts: always one hot rank, one that drifts, or none; in a third, a rank that is late before."""
    of = np.random.default_rng((seed, 97))
    gpus = int(of.choice([2, 3, 4, 6, 8]))
    size = int(of.choice([each for each in (2, 3, 4, 6, 8) if gpus % each == 0]))
    kind = str(of.choice(["hot", "drift", "even"]))
    routing = Routing(
        hot=int(of.integers(size)),
        factor=1.0 if kind == "even" else float(of.uniform(1.5, 4.0)),
        spread=0.02 if kind == "even" else float(of.uniform(0.05, 0.3)),
        drift=kind == "drift",
    )
    options: dict[str, Any] = {
        "routing": routing,
        "size": size,
        "layers": int(of.integers(1, 5)),
        "tokens": int(of.integers(300, 2000)),
        "us": float(of.uniform(100, 400)),
        "batches": int(of.integers(1, 3)),
        "backward": bool(of.random() < 0.8),
        "weights": bool(of.random() < 0.3),
        "again": bool(of.random() < 0.3),
        "late": (int(of.integers(gpus)), float(of.uniform(500, 3000))) if of.random() < 0.35 else None,
    }
    options["batches"] = options["batches"] if options["backward"] else 1
    layout = Layout(torch=str(of.choice(["2.4", "2.5", "2.12", "2.13"])), sync_on_compute=bool(of.random() < 0.3))
    hardware = Hardware(compute_jitter=float(of.uniform(0, 0.04)))
    return World(seed, partial(routed, **options), 1, gpus, steps=4, layout=layout, hardware=hardware), options


def both(folder: Path, gpus: int = 4, seed: int = 1, **options: Any) -> tuple[Analysis, float]:
    """A run, and by how much its mean step is shorter, in ns, once each rank's experts get the mean of their group."""
    found = []
    for balanced in (False, True):
        made = simulate(World(seed, partial(routed, balanced=balanced, **options), 1, gpus, steps=5, hardware=CALM))
        made.write(folder / str(balanced))
        found.append(analyse(folder / str(balanced)))
    before, after = (float(each.breakdown_steps["window_ns"].mean()) for each in found)
    return found[0], before - after


CALM = Hardware(compute_jitter=0.002)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "options"),
    with_slow(
        [(3, {"routing": Routing(factor=2.5, drift=True)})],
        [
            (2, {"routing": Routing(hot=1, factor=3.0)}),
            (4, {"routing": Routing(hot=2, factor=2.0), "late": (1, 900.0)}),
            (8, {"routing": Routing(factor=2.5), "size": 4, "again": True}),
            (4, {"routing": Routing(factor=4.0, idle=(3,)), "batches": 2}),
        ],
    ),
)
def test_balanced_experts_gain_what_the_run_gains_with_even_routing(tmp_path, gpus, options):
    found, true_ns = both(tmp_path, gpus, **options)
    predicted = found.predict({"balanced_experts": True}).iloc[0]
    assert predicted["gain_ns"] == pytest.approx(true_ns, rel=0.03, abs=10_000)
    assert predicted["low_ns"] <= found.breakdown_steps["window_ns"].mean() - true_ns <= predicted["high_ns"]


def test_nothing_is_predicted_without_experts(tmp_path):
    simulate(World(1, ddp, 1, 2, steps=4)).write(tmp_path)
    with pytest.raises(NothingMeasured, match="no experts"):
        analyse(tmp_path).predict({"balanced_experts": True})


@pytest.mark.parametrize("seed", with_slow(range(2), range(2, 40)))
def test_costs_layers_and_hot_ranks(seed: int, tmp_path: Path) -> None:
    world, options = drawn(seed)
    made = simulate(world)
    made.write(tmp_path)
    found = analyse(tmp_path)
    truth = truth_of_experts(made.happened, options["layers"])
    table = found.experts
    rows = {(row["step"], row["layer"], row["rank"]): row for row in table.to_dict("records")}
    expected = {(step, layer, rank) for step, layer, group in truth if 1 <= step <= 3 for rank in group}
    assert set(rows) == expected
    for (step, layer, group), true in truth.items():
        if not 1 <= step <= 3:
            continue
        own = [rows[step, layer, rank] for rank in group]
        assert own[0]["cost_ns"] / 1e3 == pytest.approx(true.cost_us, rel=0.02, abs=0.1)
        slowest = max(own, key=lambda row: row["expert_ns"])
        assert slowest["rank"] == max(true.expert_us, key=true.expert_us.__getitem__)
        assert [row["received_tokens"] for row in own] == [true.received[rank] for rank in group]
    layers = found.experts_layers
    routing: Routing = options["routing"]
    if routing.factor > 1 and not routing.drift:
        assert {rank % options["size"] for rank in layers["hot_rank"]} == {routing.hot}
        assert (layers["hot_frac"] == 1.0).all()
    if options["late"] is not None:
        late, us = options["late"]
        of_group = [rank for rank in range(world.size) if rank // options["size"] == late // options["size"]]
        first = table[(table["layer"] == 0) & table["rank"].isin(of_group) & (table["rank"] != late)]
        assert (first["wait_dispatch_ns"] / 1e3 > 0.8 * us).all()
        if routing.factor == 1:
            assert (table["imbalance_factor"] < 1.12).all()
            assert (first["wait_combine_ns"] < first["wait_dispatch_ns"]).all()
