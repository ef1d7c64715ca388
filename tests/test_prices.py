"""What each cause costs: the culprit, and what a step gains without it, are those of the run simulated without it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from builders import MS as BUILT_MS
from builders import Trace
from samples import a_sample
from simulator import Hardware, Injection, Window, World, simulate
from simulator.pipelines import three_d
from simulator.programs import LOADER, ddp, fsdp, moe, tp, tp_dp, twins

from commtrace import analyse
from commtrace.analysis.replay.cures import CURES
from commtrace.analysis.results.analysis import Analysis

MS = 1e6
PROGRAMS = {
    "tp": partial(tp, layers=3),
    "ddp": ddp,
    "fsdp": fsdp,
    "tp and dp": tp_dp,
    "twins": twins,
}
STEPS = tuple(range(1, 5))
CAUSES = [(kind, name) for kind in ("kernel", "slower", "copies") for name in PROGRAMS]


def world(name: str, seed: int = 5) -> World:
    return World(seed, PROGRAMS[name], 2, 4, steps=6, window=Window(((1, 4),)))


def read(made: World, folder: Path) -> Analysis:
    simulate(made).write(folder)
    return analyse(folder, details=True)


def step_ns(analysis: Analysis) -> float:
    return analysis.typical_step.parts["window_ns"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), a_sample(CAUSES, 3, seed=1))
def test_the_rank_and_its_price(kind: str, name: str, tmp_path: Path) -> None:
    calm = world(name)
    late = read(replace(calm, injections=(Injection(kind, (5,), STEPS, 3000.0, 0.4),)), tmp_path / "late")
    true = step_ns(late) - step_ns(read(calm, tmp_path / "calm"))
    prices = late.prices
    assert prices is not None
    assert prices.late is not None
    assert prices.late.ranks == (5,)
    assert prices.gains["no_straggler"].ns == pytest.approx(true, abs=0.03 * step_ns(late))
    assert late.remedies["remedy"].iloc[0] == "no_straggler"
    assert late.verdicts["verdict"].iloc[0] == "skew-bound"
    place = " (tp 1, dp 1)" if name == "tp and dp" else ""
    assert late.verdicts["because"].iloc[0].startswith(f"Rank 5{place} costs")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("slower", "ddp"), ("block", "tp")])
def test_what_delays_the_first_step_began_before_it(kind: str, name: str, tmp_path: Path) -> None:
    """At the end of each step: that of the step before the first is not in the trace, but delays it."""
    calm = world(name)
    late = read(replace(calm, injections=(Injection(kind, (5,), tuple(range(6)), 1500.0, 0.9),)), tmp_path / "late")
    true = step_ns(late) - step_ns(read(calm, tmp_path / "calm"))
    assert late.prices is not None
    assert late.prices.late is not None
    assert late.prices.late.ranks == (5,)
    assert late.prices.gains["no_straggler"].ns == pytest.approx(true, abs=0.01 * step_ns(late))


@pytest.mark.slow
@pytest.mark.parametrize("name", a_sample(list(PROGRAMS), 2, seed=2))
def test_nobody_is_accused_where_nobody_is_late(name: str, tmp_path: Path) -> None:
    calm = read(world(name), tmp_path)
    assert calm.prices is not None
    assert calm.prices.late is None


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "jitter"), [(566878, 0.1), (821239, 0.15)])
def test_nobody_is_accused_of_chance(seed: int, jitter: float, tmp_path: Path) -> None:
    """In a few steps of kernels that vary by a tenth or more, some of equal ranks take longer by a few per cent."""
    hardware = Hardware(compute_jitter=jitter, gpu_spread=0.0)
    noisy = World(seed, tp_dp, 1, 4, steps=5, window=Window(((1, 3),)), hardware=hardware)
    prices = read(noisy, tmp_path).prices
    assert prices is not None
    assert prices.late is None


@pytest.mark.slow
def test_two_that_delay_the_run_in_turns(tmp_path: Path) -> None:
    """Without one of them the other one is as late: alone, each gains little."""
    calm = world("tp")
    both = (Injection("kernel", (2,), STEPS, 2000.0, 0.3), Injection("kernel", (6,), STEPS, 2000.0, 0.3))
    late = read(replace(calm, injections=both), tmp_path / "late")
    true = step_ns(late) - step_ns(read(calm, tmp_path / "calm"))
    assert late.prices is not None
    assert late.prices.late is not None
    assert set(late.prices.late.ranks) == {2, 6}
    assert late.prices.gains["no_straggler"].ns == pytest.approx(true, abs=0.03 * step_ns(late))


@pytest.mark.slow
def test_of_two_ranks_the_one_that_costs_more(tmp_path: Path) -> None:
    """The median of two is that of the faster one: each is compared with the other, and not with both."""
    calm = World(5, ddp, 1, 2, steps=6, window=Window(((1, 4),)))
    both = (Injection("kernel", (1,), STEPS, 4000.0, 0.3), Injection("kernel", (0,), STEPS, 800.0, 0.3))
    late = read(replace(calm, injections=both), tmp_path / "late")
    only = read(replace(calm, injections=both[1:]), tmp_path / "only")
    assert late.prices is not None
    assert late.prices.late is not None
    assert late.prices.late.ranks == (1,)
    true = step_ns(late) - step_ns(only)
    assert late.prices.gains["no_straggler"].ns == pytest.approx(true, abs=0.03 * step_ns(late))


@pytest.mark.slow
def test_ranks_at_the_same_place_of_each_host(tmp_path: Path) -> None:
    """Without one of them the others are as late, so that none gains anything alone."""
    calm = World(5, ddp, 4, 4, steps=6, window=Window(((1, 4),)))
    places = (1, 5, 9, 13)
    alike = tuple(Injection("kernel", (rank,), STEPS, 2500.0, 0.3) for rank in places)
    late = read(replace(calm, injections=alike), tmp_path / "late")
    true = step_ns(late) - step_ns(read(calm, tmp_path / "calm"))
    assert late.prices is not None
    assert late.prices.late is not None
    assert set(late.prices.late.ranks) == set(places)
    assert late.prices.gains["no_straggler"].ns == pytest.approx(true, abs=0.03 * step_ns(late))
    assert late.verdicts["headline"].iloc[0].startswith("Ranks 1, 5, 9, ... cost")


PIPELINE = partial(three_d, tp=1, pp=4)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "at"), [(0, 0.2), (2, 0.0)])
def test_a_stage_of_one_rank(rank: int, at: float, tmp_path: Path) -> None:
    """No rank does the same, but the other stages do as much in another order."""
    calm = World(3, PIPELINE, 2, 2, steps=6, window=Window(((1, 4),)))
    late = read(replace(calm, injections=(Injection("kernel", (rank,), STEPS, 1500.0, at),)), tmp_path / "late")
    without = read(calm, tmp_path / "calm")
    assert late.prices is not None
    assert late.prices.late is not None
    assert late.prices.late.ranks == (rank,)
    true = step_ns(late) - step_ns(without)
    assert late.prices.gains["no_straggler"].ns == pytest.approx(true, abs=0.02 * step_ns(late))
    assert without.prices is not None
    assert without.prices.late is None


@pytest.mark.slow
def test_stages_that_all_block_in_different_places(tmp_path: Path) -> None:
    """What they wait for their devices is no work that one has and another has not."""
    calm = World(3, PIPELINE, 2, 2, steps=6, window=Window(((1, 4),)))
    blocking = read(replace(calm, injections=(Injection("block", (0, 1, 2, 3), STEPS, 800.0, 0.5),)), tmp_path / "all")
    true = step_ns(blocking) - step_ns(read(calm, tmp_path / "calm"))
    assert blocking.prices is not None
    assert blocking.prices.late is None
    assert blocking.prices.gains["no_syncs"].ns == pytest.approx(true, abs=0.03 * step_ns(blocking))


@pytest.mark.slow
def test_ranks_that_are_slower_by_different_factors(tmp_path: Path) -> None:
    """Others that are slower as well say nothing of how far ranks are apart by chance."""
    calm = World(5, ddp, 1, 8, steps=6, window=Window(((1, 4),)))
    slow = [Injection("slower", (rank,), STEPS, us) for rank, us in ((1, 1800.0), (4, 1000.0), (6, 600.0))]
    late = read(replace(calm, injections=tuple(slow)), tmp_path / "late")
    true = step_ns(late) - step_ns(read(calm, tmp_path / "calm"))
    assert late.prices is not None
    assert late.prices.late is not None
    assert set(late.prices.late.ranks) == {1, 4, 6}
    assert late.prices.gains["no_straggler"].ns == pytest.approx(true, abs=0.03 * step_ns(late))
    without_first = step_ns(late) - step_ns(read(replace(calm, injections=tuple(slow[1:])), tmp_path / "two"))
    [row] = late.predict({"without_straggler": 1}).to_dict("records")
    assert row["gain_ns"] == pytest.approx(without_first, abs=0.03 * step_ns(late))


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "us"), [(0, 2000.0), (2, 2500.0)])
def test_a_stage_of_one_rank_whose_cpu_sleeps_while_all_wait_for_their_devices(
    rank: int, us: float, tmp_path: Path
) -> None:
    """All seem to work as long; what a step gains without each of them tells."""
    calm = World(3, partial(three_d, tp=1, pp=4, item=True), 2, 2, steps=6, window=Window(((1, 4),)))
    late = read(replace(calm, injections=(Injection("python", (rank,), STEPS, us, 0.0),)), tmp_path / "late")
    true = step_ns(late) - step_ns(read(calm, tmp_path / "calm"))
    assert late.prices is not None
    assert late.prices.late is not None
    assert late.prices.late.ranks == (rank,)
    assert late.prices.gains["no_straggler"].ns == pytest.approx(true, abs=0.03 * step_ns(late))


@pytest.mark.slow
@pytest.mark.parametrize("program", ["ddp", "tp"])
def test_two_of_four_ranks_that_are_late_by_different_amounts(program: str, tmp_path: Path) -> None:
    """The median of all lies between them, and beside it the one that is less late seems to be like the others."""
    calm = World(11, PROGRAMS[program], 1, 4, steps=6, window=Window(((1, 4),)))
    slow = [Injection("slower", (rank,), STEPS, us, 1.0) for rank, us in ((0, 1200.0), (3, 800.0))]
    late = read(replace(calm, injections=tuple(slow)), tmp_path / "late")
    true = step_ns(late) - step_ns(read(calm, tmp_path / "calm"))
    assert late.prices is not None
    assert late.prices.late is not None
    assert set(late.prices.late.ranks) == {0, 3}
    assert late.prices.gains["no_straggler"].ns == pytest.approx(true, abs=0.03 * step_ns(late))


@pytest.mark.slow
def test_the_stages_of_a_host_whose_cpus_wait_for_their_devices(tmp_path: Path) -> None:
    """The others wait elsewhere, so that only what is more than theirs is why they are late, and is said."""
    calm = World(9, partial(three_d, tp=1, pp=4), 2, 2, steps=6, window=Window(((1, 4),)))
    late = read(replace(calm, injections=(Injection("block", (0, 1), STEPS, 3000.0, 0.4),)), tmp_path / "late")
    true = step_ns(late) - step_ns(read(calm, tmp_path / "calm"))
    assert late.prices is not None
    assert late.prices.late is not None
    assert set(late.prices.late.ranks) == {0, 1}
    assert late.prices.gains["no_straggler"].ns == pytest.approx(true, abs=0.03 * step_ns(late))
    said = re.search(r"launches its kernels ([0-9.]+) ms per step later .* in `cudaDev", late.verdicts["why"].iloc[0])
    assert said is not None
    assert float(said[1]) == pytest.approx(3.0, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stage_of_one_rank_that_computes_longer_while_all_wait_for_their_devices(rank: int, tmp_path: Path) -> None:
    """Its CPU waits longer as well, which is no reason."""
    calm = World(3, partial(three_d, tp=1, pp=2, item=True), 1, 2, steps=6, window=Window(((1, 4),)))
    late = read(replace(calm, injections=(Injection("throttled", (rank,), STEPS, 700.0),)), tmp_path)
    assert late.prices is not None
    assert late.prices.late is not None
    assert late.prices.late.ranks == (rank,)
    assert late.prices.late.on_cpu == set()
    assert "It computes" in late.verdicts["why"].iloc[0]


@pytest.mark.slow
def test_hidden_transfers_of_links_that_take_longer_than_compute(tmp_path: Path) -> None:
    """A step is then as long as its transfers: they are all that is left where nothing waits for them."""
    bound = partial(ddp, layers=4, buckets=(80 << 20, 80 << 20))
    found = read(World(5, bound, 1, 4, steps=8, window=Window(((1, 6),))), tmp_path)
    steps = found.breakdown_steps[found.breakdown_steps["step"].isin(found.typical_step.steps)]
    compute_ns, comm_ns = steps["compute_ns"].mean(), steps["comm_ns"].mean()
    assert comm_ns > compute_ns
    assert found.prices is not None
    gain = found.prices.gains["overlap"]
    assert gain.ns <= step_ns(found) - comm_ns + 0.01 * step_ns(found)
    assert gain.high_ns >= 0.8 * (step_ns(found) - comm_ns)


@pytest.mark.slow
def test_two_of_a_stage_that_do_more_in_different_places(tmp_path: Path) -> None:
    """Each is like a third rank, though not like the other one."""
    calm = World(3, partial(three_d, tp=1), 4, 2, steps=6, window=Window(((1, 4),)))
    two = (Injection("kernel", (4,), STEPS, 600.0, 0.6), Injection("kernel", (7,), STEPS, 600.0, 0.2))
    late = read(replace(calm, injections=two), tmp_path / "late")
    assert late.prices is not None
    assert late.prices.late is not None
    assert set(late.prices.late.ranks) == {4, 7}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "at"), [("slower", 0.9), ("copies", 0.9)])
def test_the_end_of_the_step_before_delays_whole_pipelines(kind: str, at: float, tmp_path: Path) -> None:
    """What a rank does at the end of each step keeps others, too, from beginning the first one."""
    calm = World(3, three_d, 2, 2, steps=6, window=Window(((1, 4),)))
    late = read(replace(calm, injections=(Injection(kind, (3,), tuple(range(6)), 3000.0, at),)), tmp_path / "late")
    true = step_ns(late) - step_ns(read(calm, tmp_path / "calm"))
    assert late.prices is not None
    assert late.prices.late is not None
    assert late.prices.late.ranks == (3,)
    gain = late.prices.gains["no_straggler"]
    assert gain.ns == pytest.approx(true, abs=0.03 * step_ns(late))
    assert gain.low_ns <= true <= gain.high_ns


@pytest.mark.slow
def test_a_whole_host(tmp_path: Path) -> None:
    calm = world("ddp")
    slow = tuple(Injection("slower", (rank,), STEPS, 2500.0, 0.4) for rank in range(4, 8))
    late = read(replace(calm, injections=slow), tmp_path / "late")
    assert late.prices is not None
    assert late.prices.late is not None
    assert set(late.prices.late.ranks) == {4, 5, 6, 7}
    assert late.prices.late.host is not None


@pytest.mark.slow
def test_the_rank_of_the_hot_expert(tmp_path: Path) -> None:
    """It has the same kernels as the others, of which one has more rows: others would have these to do."""
    hot = read(World(5, partial(moe, layers=2, hot=3), 2, 4, steps=6, window=Window(((1, 4),))), tmp_path)
    assert hot.prices is not None
    assert hot.prices.late is None
    assert hot.prices.changes[0].remedy == "balanced_experts"
    assert hot.prices.uneven is not None
    assert hot.prices.uneven.ranks == (3,)


@pytest.mark.slow
@pytest.mark.parametrize(("us", "verdict"), [(400.0, "transfer-bound"), (1400.0, "mixed")])
def test_of_two_causes_none_dominates(us: float, verdict: str, tmp_path: Path) -> None:
    """A call that blocks on all ranks, and transfers that cost about 1.4 ms of 6."""
    blocking = Injection("block", tuple(range(8)), STEPS, us, 0.4)
    run = read(replace(world("tp and dp"), injections=(blocking,)), tmp_path)
    assert run.verdicts["verdict"].iloc[0] == verdict
    gains = run.remedies.set_index("remedy")["gain_ns"]
    assert bool(min(gains["no_syncs"], gains["overlap"]) >= 0.8 * gains.max()) == (verdict == "mixed")
    if verdict == "mixed":
        because = run.verdicts["because"].iloc[0]
        assert "Devices are idle for" in because
        assert "Exposed" in because


@pytest.mark.slow
@pytest.mark.parametrize("name", a_sample(["fsdp", "twins"], 1, seed=3))
def test_garbage_that_all_ranks_collect(name: str, tmp_path: Path) -> None:
    calm = world(name)
    collecting = Injection("gc", tuple(range(8)), STEPS, 3000.0, 0.4)
    late = read(replace(calm, injections=(collecting,)), tmp_path / "late")
    true = step_ns(late) - step_ns(read(calm, tmp_path / "calm"))
    first = late.remedies.iloc[0]
    assert first["remedy"] == "no_gc"
    assert first["gain_ns"] == pytest.approx(true, abs=0.03 * step_ns(late))
    none_dominates = late.remedies.set_index("remedy")["gain_ns"]["overlap"] >= 0.8 * first["gain_ns"]
    assert late.verdicts["verdict"].iloc[0] == ("mixed" if none_dominates else "launch-bound")
    assert "of this Python collected garbage" in late.verdicts["because"].iloc[0]
    if not none_dominates:
        assert late.verdicts["headline"].iloc[0].endswith(": Python collects garbage")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "remedy", "verdict", "said"),
    [
        ("Python GC", "no_gc", "idle", "collecting garbage costs"),
        (LOADER, "no_data_wait", "input-bound", "waiting for batches costs"),
    ],
)
def test_what_all_cpus_do_without_a_gpu(what: str, remedy: str, verdict: str, said: str, tmp_path: Path) -> None:
    """Idle time has no causes there; 40 of 100 ms have a price."""
    for rank in (0, 1):
        written_on_cpu(rank, what).write(tmp_path, f"x{rank}.json")
    run = analyse(tmp_path, details=True)
    first = run.remedies.iloc[0]
    assert first["remedy"] == remedy
    assert first["gain_ns"] == pytest.approx(40 * BUILT_MS, rel=0.01)
    assert run.verdicts["verdict"].iloc[0] == verdict
    assert said in run.verdicts["because"].iloc[0]


def written_on_cpu(rank: int, what: str) -> Trace:
    """Steps of 100 ms: work, 40 ms of `what`, work, and an all_reduce."""
    trace = Trace(rank, 2, backend="gloo")
    for step in range(4):
        begin = step * 100 * BUILT_MS
        trace.step(step, begin, 100 * BUILT_MS).op("aten::mm", begin, 10 * BUILT_MS)
        trace.annotation(what, begin + 10 * BUILT_MS, 40 * BUILT_MS)
        trace.op("aten::mm", begin + 50 * BUILT_MS, 40 * BUILT_MS)
        trace.c10d("allreduce_", begin + 90 * BUILT_MS).gloo("all_reduce", begin + 91 * BUILT_MS, 8 * BUILT_MS)
        trace.op("aten::add", begin + 99 * BUILT_MS + 1000, BUILT_MS - 1000)
    return trace


@pytest.mark.parametrize(
    ("annotation", "said"),
    [("DistributedDataParallel.forward", "bucket_cap_mb"), ("FSDP::pre_forward", "forward_prefetch")],
)
def test_what_to_do_is_said_for_the_framework(annotation: str, said: str) -> None:
    names = pd.Series(["Optimizer.step#SGD.step", annotation], dtype="string")
    assert said in CURES["overlap"].under(names, at_once=False, links_are_normal=False).how
    assert said not in CURES["overlap"].under(names[:1], at_once=False, links_are_normal=False).how
    assert said not in CURES["overlap"].under(names, at_once=True, links_are_normal=False).how
    assert CURES["no_copies"].under(names, at_once=True, links_are_normal=False) == CURES["no_copies"]


@pytest.mark.slow
def test_nothing_is_priced_where_launches_were_not_read(tmp_path: Path) -> None:
    simulate(world("tp")).write(tmp_path)
    calm = analyse(tmp_path, details=False)
    assert calm.prices is None
    assert calm.remedies["gain_ns"].isna().all()


def test_ranks_that_do_not_communicate_are_not_late_for_each_other(tmp_path: Path) -> None:
    """As replicas that serve, each by itself: what one computes longer, none of the others waits for."""
    for rank in range(4):
        trace = Trace(rank, 4, device=rank)
        for step in range(5):
            begin = step * 40 * BUILT_MS
            trace.step(step, begin, begin + 40 * BUILT_MS)
            trace.kernel("gemm", begin + BUILT_MS, (30 if rank == 2 else 20) * BUILT_MS)
        trace.write(tmp_path)
    found = analyse(tmp_path)
    assert not set(found.remedies["remedy"]) & {name for name, cure in CURES.items() if cure.of_ranks}
    assert "rank" not in found.verdicts["headline"].iloc[0].lower()
