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

from commtrace import analyse
from commtrace.analysis.errors import BadScenario
from commtrace.analysis.results.analysis import Analysis

DATA = Path(__file__).parent / "data"
MOST_WIDE = 0.2
"""Of an interval, as a fraction of the step: a wider one tells nothing."""
PROGRAMS = {
    "tp": partial(tp, layers=4),
    "one size": partial(tp, layers=4, gradient=False),
    "tp and dp": tp_dp,
    "sizes alike": moe,
    "pipeline": partial(three_d, tp=2, pp=2, batched=False),
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_where_one_size_ran_latency_is_not_known(tmp_path: Path) -> None:
    """Half of an unknown latency is no number, but bounds; and it is not nothing."""
    run = of_world(World(3, PROGRAMS["one size"], steps=6, window=Window(((1, 4),))), tmp_path)
    [row] = run.predict({"latency": 2}).to_dict("records")
    assert pd.isna(row["step_ns"])
    assert pd.isna(row["gain_ns"])
    assert row["low_ns"] < row["high_ns"]


GROWN = {"all over hosts": ddp, "one host": partial(tp, layers=4)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before", "after", "options"),
    [
        ("one host", (1, 4), (2, 4), {"new_links": "40,28"}),
        ("one host", (1, 4), (2, 4), {"new_links": 40}),
        ("all over hosts", (2, 2), (4, 2), {}),
    ],
)
def test_more_ranks_are_as_predicted(
    name: str, before: tuple[int, int], after: tuple[int, int], options: dict[str, object], tmp_path: Path
) -> None:
    """Links between hosts are those that are given; or those measured, where there are some."""
    world = World(5, GROWN[name], *before, steps=6, window=Window(((1, 4),)))
    ranks = after[0] * after[1]
    [row] = of_world(world, tmp_path / "few").predict({"world_size": ranks, **options}).to_dict("records")
    true = step_ns(of_world(replace(world, hosts=after[0], gpus=after[1]), tmp_path / "many"))
    assert row["low_ns"] - 0.01 * true <= true <= row["high_ns"] + 0.01 * true
    measured = row["step_ns"] + row["gain_ns"]
    assert row["throughput_factor"] == pytest.approx(2 * measured / row["step_ns"])
    assert row["efficiency_frac"] == pytest.approx(measured / row["step_ns"])


@pytest.mark.slow
def test_several_changes_at_once_have_the_efficiency_of_more_ranks(tmp_path: Path) -> None:
    run = of_world(World(5, GROWN["all over hosts"], 2, 2, steps=4, window=Window(((1, 2),))), tmp_path)
    alone, both = run.predict({"world_size": 8}, {"world_size": 8, "links": 2})["efficiency_frac"]
    assert alone < both < 1.2


@pytest.mark.slow
def test_new_links_are_those_of_a_ceiling(tmp_path: Path) -> None:
    """Half of the bandwidth, twice the time; where it holds nothing of a collective, nothing is known."""
    run = of_world(World(5, GROWN["one host"], 1, 4, steps=6, window=Window(((1, 4),))), tmp_path)
    steps = []
    for factor in (1, 2):
        file = tmp_path / f"all_reduce{factor}.txt"
        lines = [f"#  Rank  {rank} Group  0 Pid  1 on node device  {rank}" for rank in range(8)]
        rows = [f"{size} {size // 4} float sum -1 {size / 1e4 * factor} 0 0 0" for size in (1 << 20, 1 << 30)]
        header = [
            "# nThread 1",
            "# Collective test starting: all_reduce_perf",
            *lines,
            "# size time algbw busbw #wrong",
        ]
        file.write_text("\n".join([*header, *rows]) + "\n")
        steps.append(run.predict({"world_size": 8, "new_links": str(file)})["step_ns"].iloc[0])
    [given] = run.predict({"world_size": 8, "new_links": "17.5,0"})["step_ns"]
    assert steps[0] == pytest.approx(given, rel=1e-3)
    assert steps[1] > 1.7 * steps[0]


@pytest.mark.slow
def test_links_that_nobody_measured_are_asked_for(tmp_path: Path) -> None:
    run = of_world(World(5, GROWN["one host"], 1, 4, steps=4, window=Window(((1, 2),))), tmp_path)
    [row] = run.predict({"world_size": 8}).to_dict("records")
    assert all(pd.isna(row[name]) for name in ("step_ns", "low_ns", "high_ns", "gain_ns", "efficiency_frac"))
    assert "8 ranks do not fit into 1 host with 4 GPUs: give --new-links" in row["unknown"]
    with pytest.raises(BadScenario, match="new_links is 'fast'; expected GB/s"):
        run.predict({"world_size": 8, "new_links": "fast"})


@pytest.mark.quick_cases("nccl-straggler")
@pytest.mark.parametrize("run", ["nccl-straggler", "nccl-two-hosts", "nccl-pipeline"])
def test_nothing_takes_longer_with_faster_links_or_overlap(run: str) -> None:
    analysis = analyse(DATA / run, details=True)
    assert (analysis.predict({"links": 2}, {"overlap": "perfect"})["gain_ns"] >= 0).all()
