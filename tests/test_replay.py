"""Runs played again: exactly, with delays as measured; and without the cause of a delay, as they are without it."""

import gc
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from builders import MAIN_THREAD, MS, US, Collective, Trace, traces_of, write_run
from samples import a_sample
from simulated_once import mean_step_ns, true_step_ns
from simulator import PRESETS, Injection, Window, World, draw, simulate
from simulator.programs import ddp, fsdp, tp

from commtrace import analyse, cli
from commtrace.analysis.errors import NothingMeasured, NotPredictable
from commtrace.analysis.replay.cycles import rank_programs
from commtrace.analysis.replay.engine import play, play_all, prepared
from commtrace.analysis.replay.scenarios.scenario import Scenario, all_at_once
from commtrace.analysis.replay.scenarios.usual import no_jitter, perfect_overlap, without_stragglers
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.tables.replay import played_tables, replayed

DATA = Path(__file__).parent / "data"
ON_GPUS = sorted(folder.name for folder in DATA.glob("nccl-*"))
RUNS = [*ON_GPUS, "gloo-training", "gloo-collectives"]


# --- the same again ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=RUNS)
def recorded(request: pytest.FixtureRequest) -> Analysis:
    return analyse(DATA / request.param, details=True)


@pytest.mark.quick_cases("nccl-straggler", "gloo-training", "gloo-collectives")
def test_with_its_delays_a_run_is_played_as_it_was(recorded: Analysis) -> None:
    """To the ns: also where members arrive by clocks that are not quite sure."""
    for members in rank_programs(recorded.of(played_tables)):
        ready, _ = prepared(members)
        for program, (start, end) in zip(members, play(ready), strict=True):
            assert np.array_equal(start, program.start)
            assert np.array_equal(end, program.end)


@pytest.mark.slow
@pytest.mark.parametrize("which", a_sample([*PRESETS, *range(200, 216)], 2))
def test_whatever_the_run_it_is_played_to_its_end(which: int | str, tmp_path: Path) -> None:
    made = simulate(PRESETS[which] if isinstance(which, str) else draw(which))
    made.write(tmp_path)
    steps = analyse(tmp_path, details=True).replay_steps
    assert ((steps["with_delays_ns"] - steps["measured_ns"]).abs() <= 0.002 * steps["measured_ns"]).all()


@pytest.mark.slow_cases("nccl-periodic", "nccl-two-hosts")
def test_usual_delays_explain_the_steps(recorded: Analysis) -> None:
    on_cpus = (recorded.run.activities["device"] == "cpu").all()
    assert recorded.replay_steps["error_frac"].abs().median() < (0.5 if on_cpus else 0.03)


# --- something else ---------------------------------------------------------------------------------------------------


PROGRAMS = {"tp": partial(tp, layers=3), "ddp": ddp, "fsdp": fsdp, "tp with item": partial(tp, layers=3, item=True)}
CAUSES = [(kind, name) for kind in ("kernel", "slower", "copies", "block", "data", "op") for name in PROGRAMS]
HIDDEN = {("data", "ddp"), ("op", "ddp")}
"""The CPU is far enough ahead of its GPU."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), a_sample(CAUSES, 2, seed=3))
def test_without_its_cause_a_run_is_as_without_it(kind: str, name: str, tmp_path: Path) -> None:
    steps = tuple(range(1, 6))
    calm = World(5, PROGRAMS[name], 1, 4, steps=7, window=Window(((1, 5),)))
    late = replace(calm, injections=(Injection(kind, (2,), steps, 3000.0, 0.4),))
    simulate(late).write(tmp_path)
    true, found = true_step_ns(calm), analyse(tmp_path, details=True)
    [row] = found.predict(without_stragglers([2])).to_dict("records")
    if (kind, name) not in HIDDEN:
        assert mean_step_ns(found) > 1.05 * true
    assert row["step_ns"] == pytest.approx(true, rel=0.02)


@pytest.mark.slow
def test_a_rank_that_is_not_slow_gains_nothing() -> None:
    found = analyse(DATA / "nccl-straggler", details=True)
    slow, other = found.predict(without_stragglers([2]), without_stragglers([3]))["gain_frac"]
    assert slow > 0.15
    assert abs(other) < 0.01


@pytest.mark.slow
def test_the_usual_scenarios_begin_with_the_culprit() -> None:
    table = analyse(DATA / "nccl-straggler", details=True).predictions
    assert table["scenario"].iloc[0] == "rank 2 as fast as the others"
    assert (table["low_ns"] <= table["step_ns"]).all()
    assert (table["step_ns"] <= table["high_ns"]).all()


@pytest.mark.slow
def test_transfers_take_so_much_less() -> None:
    """Where all communication is exposed, and no rank waits, links twice as fast save half of the transfer."""
    found = analyse(DATA / "nccl-straggler", details=True)
    [half, none] = found.predict(*(link(found, factor) for factor in (2.0, 1.0))).to_dict("records")
    transfer = found.breakdown_steps["exposed_transfer_ns"].mean()
    assert half["gain_ns"] == pytest.approx(transfer / 2, rel=0.25)
    assert none["gain_ns"] == 0


def link(analysis: Analysis, factor: float):
    from commtrace.analysis.replay.links import links_of
    from commtrace.analysis.replay.scenarios.transfers import faster_links

    return faster_links(factor, links_of(analysis.links))


@pytest.mark.slow
def test_overlap_is_a_bound() -> None:
    """Compute alone takes at least that long."""
    found = analyse(DATA / "nccl-two-hosts", details=True)
    [row] = found.predict(perfect_overlap()).to_dict("records")
    assert row["step_ns"] >= 0.99 * found.breakdown_steps["compute_ns"].mean()
    assert row["gain_ns"] <= found.breakdown_steps["exposed_comm_ns"].mean() * 1.01


@pytest.mark.slow
def test_overlap_beside_another_change_is_the_same_bound() -> None:
    """No stream communicates any faster because something else is gone."""
    found = analyse(DATA / "nccl-two-hosts", details=True)
    least = Scenario("", "", (lambda members: list(members),), least=lambda cycles: {1: 5.0 * len(cycles), 2: 7.0})
    twice = Scenario("", "", (lambda members: [*members, *members],))
    both = all_at_once("", [least, twice])
    assert both.least is not None
    assert both.least([[], []]) == {1: 10.0, 2: 7.0}
    alone, with_pauses = (
        found.predict(each).to_dict("records")[0]["step_ns"]
        for each in (perfect_overlap(), all_at_once("", [perfect_overlap(), replace(twice, changes=least.changes)]))
    )
    assert with_pauses == alone


@pytest.mark.slow
def test_no_jitter_takes_means_of_compute() -> None:
    found = analyse(DATA / "nccl-straggler", details=True)
    [row] = found.predict(no_jitter()).to_dict("records")
    assert 0 < row["gain_ns"] < found.predict(without_stragglers())["gain_ns"].iloc[0]


@pytest.mark.slow
def test_the_slowdown_comes_from_the_slow_rank() -> None:
    table = analyse(DATA / "nccl-straggler", details=True).attribution
    first = table[table["of"] == "rank"].iloc[0]
    assert first["part"] == "2"
    assert first["slowdown_frac"] > 0.2
    of_collectives = table[table["of"] == "collective"]["slowdown_frac"]
    assert of_collectives.abs().max() < 0.05


# --- what cannot be predicted ----------------------------------------------------------------------------------------


def test_a_replay_that_misses_the_run_predicts_nothing(tmp_path: Path) -> None:
    """Kernels that begin at odd times, long after all they may wait for."""
    rng = np.random.default_rng(1)
    traces = traces_of(2, [Collective((0, 1 * MS), 5 * MS, elems=10**6)])
    for trace in traces:
        for step in range(4):
            begin = step * 100 * MS + 10 * MS
            trace.step(step, begin, 99 * MS)
            for k, wait in enumerate(rng.integers(1, 20, 4).tolist()):
                trace.kernel("gemm", begin + k * 22 * MS + wait * MS, 1 * MS)
        trace.write(tmp_path, f"x{trace.rank}.json")
    found = analyse(tmp_path, details=True)
    if found.replay_steps["error_frac"].abs().median() > 0.1:
        with pytest.raises(NotPredictable, match="not predictable: the unchanged replay is"):
            _ = found.predictions


@pytest.mark.slow
def test_a_run_of_nothing_but_collectives_on_cpus_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", str(DATA / "gloo-collectives")]) == 1
    assert "the traces do not show what its CPUs wait for" in capsys.readouterr().err


def test_details_are_needed() -> None:
    with pytest.raises(NothingMeasured, match=r"details=False"):
        _ = analyse(DATA / "nccl-straggler", details=False).replay_steps


def test_predict_needs_a_scenario() -> None:
    with pytest.raises(TypeError, match="the usual ones are in `predictions`"):
        analyse(DATA / "nccl-straggler", details=True).predict()


@pytest.mark.slow
def test_the_command_tells_its_error_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", "--without-straggler", "2", str(DATA / "nccl-straggler")]) == 0
    said = capsys.readouterr()
    assert "note: the unchanged replay is 0.0% off the measured steps" in said.err
    assert "rank 2 as fast as the others" in said.out
    assert cli.main(["table", "replay", str(DATA / "nccl-straggler"), "-f", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("step,ranks,measured_ns,with_delays_ns,replayed_ns")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--without-straggler", "9"], "'9': no rank or host of this run"),
        (["--without-straggler", "node7"], "'node7': no rank or host of this run"),
        (["--links", "fast"], "'fast' is not a factor"),
        (["--links", "0"], "'0' is not a factor"),
    ],
)
def test_what_makes_no_sense_is_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", *options, str(DATA / "nccl-straggler")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_group_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in (("between=2", "show no collective over several hosts"), ("x=2", "show no process group 'x'")):
        assert cli.main(["predict", "--links", text, str(DATA / "nccl-straggler")]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_without_communication(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = traces_of(1, [])[0].step(0, 0, 50 * MS).kernel("gemm", 1 * MS, 5 * MS).kernel("gemm", 7 * MS, 5 * MS)
    trace.write(tmp_path, "x0.json")
    found = analyse(tmp_path, details=True)
    assert found.predictions["scenario"].tolist() == [
        "every rank as fast as the median",
        "work spread evenly over all the ranks",
    ]
    assert cli.main(["predict", "--links", "2", str(tmp_path)]) == 1
    assert "the traces show no collective" in capsys.readouterr().err


def test_a_run_that_lacks_a_rank_is_played(tmp_path: Path) -> None:
    made = [Collective((0, 5 * MS, 1 * MS), 5 * MS, elems=10**6), Collective((20 * MS,) * 3, 5 * MS, elems=10**6)]
    write_run(tmp_path, 3, made)
    for file in sorted(tmp_path.iterdir()):
        if "node_2" in file.name:
            file.unlink()
    steps = analyse(tmp_path, details=True).replay_steps
    assert (steps["measured_ns"] == steps["with_delays_ns"]).all()


@pytest.mark.slow
def test_slowdown_comes_from_an_operation_and_a_place_as_well() -> None:
    table = analyse(DATA / "nccl-straggler", details=True).attribution
    assert table[table["of"] == "operation"]["part"].iloc[0] == "sm90_xmma_gemm_bf16bf16_tp"
    table = analyse(DATA / "nccl-two-hosts", details=True).attribution
    places = table[table["of"] == "coordinate"]["part"].tolist()
    assert set(places) == {
        *(f"{place} of 2 in groups like 0 4" for place in range(2)),
        *(f"{place} of 4 in groups like 0 1 2 3" for place in range(4)),
    }
    groups = table[table["of"] == "group"]["part"]
    assert len(groups) == 6
    assert groups.str.contains("(0 1 2 3)", regex=False).any()


def test_a_run_in_which_nothing_ran(tmp_path: Path) -> None:
    traces_of(1, [])[0].step(0, 0, 50 * MS).write(tmp_path, "x0.json")
    found = analyse(tmp_path, details=True)
    assert len(found.replay_steps) == len(found.critical_path) == len(found.critical_path_pieces) == 0
    for ask in (lambda: found.predictions, lambda: found.attribution):
        with pytest.raises(NothingMeasured, match="nothing ran on a device"):
            ask()


# --- where jitter comes from ------------------------------------------------------------------------------------------


PART_OF = {"kernel": "compute", "slower": "compute", "copies": "compute", "block": "cpu", "data": "data", "op": "cpu"}
"""The kind of part that each cause makes late."""
CAUSES_SEEN = [cause for cause in CAUSES if cause not in HIDDEN]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), a_sample(CAUSES_SEEN, 3, seed=5))
def test_the_part_that_was_made_late_costs_most(kind: str, name: str, tmp_path: Path) -> None:
    """Of ranks, and of compute, CPUs and data loading; and what it costs is what a step takes longer."""
    calm = World(7, PROGRAMS[name], 1, 4, steps=7, window=Window(((1, 5),)))
    late = replace(calm, injections=(Injection(kind, (2,), tuple(range(1, 6)), 3000.0, 0.4),))
    simulate(late).write(tmp_path)
    found = analyse(tmp_path, details=True)
    cost = 1 - true_step_ns(calm) / mean_step_ns(found)
    table = found.attribution
    ranks = table[table["of"] == "rank"]
    assert ranks["part"].iloc[0] == "2"
    # Without jitter all ranks share the work of the late one, so that a quarter of it is left, of what shows.
    assert 0.7 * cost <= ranks["gain_frac"].iloc[0] <= cost + 0.01
    whole = table[table["part"].isna()].set_index("of")["slowdown_frac"]
    assert whole[PART_OF[kind]] > 0.9 * whole.max()
    if PART_OF[kind] != "compute":
        of_kind = table[(table["of"] == PART_OF[kind]) & table["part"].notna()]
        assert of_kind["part"].iloc[0] == "2"
        assert whole["compute"] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", a_sample([*PROGRAMS, 206, 214, 221], 3, seed=6))
def test_no_part_costs_anything_where_nobody_is_late(name: str | int, tmp_path: Path) -> None:
    """Also where the trace begins before the only step, with other things on each rank."""
    calm = draw(name) if isinstance(name, int) else World(7, PROGRAMS[name], 1, 4, steps=7, window=Window(((1, 5),)))
    simulate(replace(calm, injections=())).write(tmp_path)
    table = analyse(tmp_path, details=True).attribution
    assert table[table["of"].isin(["rank", "cpu", "data", "compute"])]["slowdown_frac"].max() < 0.05
    assert table["gain_frac"].abs().max() < 0.05


@pytest.mark.slow
def test_variants_played_at_once_are_those_played_one_by_one() -> None:
    """Also where they wait for different things, and in the order in which they come."""
    members = next(rank_programs(analyse(DATA / "nccl-two-hosts", details=True).of(played_tables)))
    base, _ = prepared(members)
    changes = [change for each in (no_jitter(), without_stragglers([1]), perfect_overlap()) for change in each.changes]
    sooner = [[replace(member, transfer=member.transfer // part) for member in base] for part in (2, 3)]
    saved = [[replace(m, saved=m.saved + np.arange(len(m.saved)) * part) for m in base] for part in (2, 3)]
    variants = [list(base), *(change(base) for change in changes), *sooner, list(base), *saved]
    for played in (variants, variants[-2:], sooner):
        for variant, times in zip(played, play_all(iter(played)), strict=True):
            for (start, end), (other_start, other_end) in zip(times, play(variant), strict=True):
                assert np.array_equal(start, other_start)
                assert np.array_equal(end, other_end)


def test_what_follows_a_collective_waits_for_it_although_it_began_a_ns_before_its_end(tmp_path: Path) -> None:
    """Times in us are rounded, so that activities of a stream seem to overlap."""
    traces = traces_of(2, [Collective((5 * MS, 15 * MS), 5 * MS, elems=10**6)])
    for trace in traces:
        trace.step(0, 0, 60 * MS).kernel("gemm", 1 * MS, (4, 14)[trace.rank] * MS)
        trace.kernel("norm", 20 * MS - 1, 5 * MS, stream=20, launch=2 * MS)
        trace.write(tmp_path, f"x{trace.rank}.json")
    members = next(rank_programs(analyse(tmp_path, details=True).of(played_tables)))
    base, _ = prepared(members)
    faster = [replace(member, transfer=member.transfer // 5) for member in base]
    for _, end in play(faster):
        assert end.max() == max(int(member.program.end.max()) for member in base) - 4 * MS


def test_a_collective_waits_for_the_work_before_it_though_another_one_hides_that(tmp_path: Path) -> None:
    """Of two buckets, the second is called at the end of the backward pass, while the first still moves data."""
    for rank in range(2):
        trace, group = Trace(rank, 2, groups={"0": [0, 1]}, device=rank), {"group": "0", "ranks": (0, 1)}
        for step in range(4):
            begin, launch = step * 60 * MS, step * 60 * MS + np.arange(1, 5) * US
            trace.step(step, begin, begin + 60 * MS).kernel("gemm", begin + MS, 9 * MS, launch=int(launch[0]))
            trace.nccl("all_reduce", begin + 10 * MS, 20 * MS, launch=int(launch[1]), Seq=2 * step, **group)
            trace.kernel("gemm", begin + 10 * MS, 15 * MS, launch=int(launch[2]))
            trace.nccl("all_reduce", begin + 30 * MS, 10 * MS, launch=int(launch[3]), Seq=2 * step + 1, **group)
        trace.write(tmp_path, f"x{rank}.json")
    base, _ = prepared(next(rank_programs(analyse(tmp_path, details=True).of(played_tables))))
    faster = [replace(member, transfer=member.transfer // 5) for member in base]
    for member, (start, _) in zip(base, play(faster), strict=True):
        second, gemm = np.flatnonzero(member.program.is_comm)[1::2], np.flatnonzero(~member.program.is_comm)[1::2]
        assert (start[second] - start[gemm]).tolist() == [15 * MS] * 4


@pytest.mark.slow
def test_nothing_is_remembered_of_a_run_that_nobody_holds() -> None:
    run = analyse(DATA / "nccl-straggler")
    assert run.prices is not None
    program = run.of(replayed).measured[0][0].program
    assert program.recent.alike
    assert program.recent.graphs
    known = weakref.ref(program)
    del run, program
    gc.collect()  # tables refer to each other in circles
    assert known() is None


@pytest.mark.slow
def test_receives_and_sends_that_are_under_way_together_wait_for_none_of_each_other(tmp_path: Path) -> None:
    """Two CPUs that exchange tensors: each posts its receive, works, sends, and waits for what comes."""
    for rank, works in enumerate((5 * MS, 15 * MS)):
        trace = Trace(rank, 2, groups={"0": [0, 1]}, backend="gloo", device_names=(), host="node")
        shown = {"dims": [[9], [], [], []], "types": ["TensorList", "", "Scalar", "Scalar"]}
        values = {"values": ["", "", str(1 - rank), "0"]}
        for step in range(6):
            begin = step * 20 * MS
            sends, ends = begin + works, begin + 16 * MS
            came = {"recv": ends, "send": ends + 5 * US}  # where it waits for them
            trace.step(step, begin, begin + 20 * MS).op("aten::mm", begin + 50 * US, works - 100 * US)
            trace.c10d("recv_", begin + 10 * US, **shown, **values).c10d("send", sends, **shown, **values)
            for op, since in (("recv", begin + 15 * US), ("send", sends + 5 * US)):
                trace.gloo(op, since, came[op] - since, dims=[[9]], types=["float"], thread=MAIN_THREAD)
            trace.op("aten::add", ends + 50 * US, 3 * MS)
        trace.write(tmp_path, f"x{rank}.json")
    found = analyse(tmp_path)
    [culprit] = found.remedies.query("remedy == 'no_straggler'").to_dict("records")
    assert "rank 1" in culprit["what"]
    assert culprit["gain_ns"] == pytest.approx(10 * MS, rel=0.1), "the last step has no next one that begins sooner"
    assert found.critical_path["dur_ns"].sum() == pytest.approx(20 * MS, rel=0.05)


@pytest.mark.slow
def test_stages_that_do_as_many_things_in_another_order_wait_for_what_they_receive(tmp_path: Path) -> None:
    """One works, sends, receives and works; the other receives, works for longer, sends and works."""
    assert gain_of_stage_1(tmp_path, [(0, 4), (18, 22)], [(5, 17), (18, 22)]) == pytest.approx(8, rel=0.1)


@pytest.mark.slow
def test_a_stage_that_does_more_keeps_its_own_pace_for_what_the_other_does_as_well(tmp_path: Path) -> None:
    """One multiplies three times as often; the other one, which waits for it, is slower."""
    works = [(6, 10), (10, 14), (14, 18), (19, 23)]
    assert gain_of_stage_1(tmp_path, [(0, 5), (19, 24)], works) == pytest.approx(8, rel=0.05)


def gain_of_stage_1(folder: Path, *works_ms: list[tuple[int, int]]) -> float:
    """What a step of two stages on CPUs gains, in ms, with the second as fast as the first, which is named.

    The first sends after its first work; the second then works, and sends before its last. Each takes 1 ms.
    """
    sent, came_back = works_ms[0][0][1] + 1, works_ms[1][-1][0]
    steps_ms = max(end for works in works_ms for _, end in works) + 1
    for rank, works in enumerate(works_ms):
        trace = Trace(rank, 2, groups={"0": [0, 1]}, backend="gloo", device_names=(), host="node")
        shown = {"dims": [[9], [], [], []], "types": ["TensorList", "", "Scalar", "Scalar"]}
        values = {"values": ["", "", str(1 - rank), "0"]}
        sending, receiving = (sent - 1, sent), (sent, came_back)
        if rank == 1:
            sending, receiving = (came_back - 1, came_back), (0, sent)
        for step in range(6):
            begin = step * steps_ms * MS
            trace.step(step, begin, begin + steps_ms * MS)
            for op, gloo, (since, until) in (("send", "send", sending), ("recv_", "recv", receiving)):
                at = begin + since * MS + 20 * US
                trace.c10d(op, at, **shown, **values)
                took = (until - since) * MS
                trace.gloo(gloo, at + 5 * US, took, dims=[[9]], types=["float"], thread=MAIN_THREAD)
            for since, until in works:
                trace.op("aten::mm", begin + since * MS + 50 * US, (until - since) * MS - 100 * US)
        trace.write(folder, f"x{rank}.json")
    [culprit] = analyse(folder).remedies.query("remedy == 'no_straggler'").to_dict("records")
    assert "rank 1" in culprit["what"]
    return float(culprit["gain_ns"]) / MS
