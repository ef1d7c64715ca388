"""Experts: simulated runs with drawn routing, beside what is true of them; and all_to_alls that are of no experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from samples import with_slow
from simulator import Injection, Layout, Losses, Simulated, Window, World, simulate
from simulator.experts import Routing, routed, truth_of_experts
from simulator.ops import Comm, Group, Kernel, Op, Wait
from simulator.programs import backward, everybody, layer, load, optimizer
from simulator.world import Hardware, Place

from commtrace import Analysis, analyse
from commtrace.cli import main

CALM = Hardware(compute_jitter=0.0, gpu_spread=0.0, cpu_jitter=0.0, end_noise_us=0.0)


def run(
    folder: Path, program: Callable[[Place], list[Op]], gpus: int = 4, seed: int = 3, **world: Any
) -> tuple[Simulated, Analysis]:
    made = simulate(World(seed, program, 1, gpus, steps=4, **world))
    made.write(folder)
    return made, analyse(folder)


def assert_as_it_was(made: Simulated, table: pd.DataFrame, layers: int = 3) -> None:
    """Layers, tokens and times are those of the simulated run, in every step that the table has."""
    truth = truth_of_experts(made.happened, layers)
    rows = table.set_index(["step", "layer", "rank"]).sort_index()
    shown = {(step, number, rank) for step, number, rank in rows.index}
    steps = {step for step, _, _ in shown}
    assert shown == {(step, number, rank) for step, number, group in truth if step in steps for rank in group}
    for (step, number, group), true in truth.items():
        for rank in group if step in steps else ():
            row = rows.loc[(step, number, rank)]
            assert row["received_tokens"] == true.received[rank]
            assert row["imbalance_factor"] == pytest.approx(true.imbalance)
            assert row["expert_ns"] / 1e3 == pytest.approx(true.expert_us[rank], rel=0.001, abs=0.01)
            assert row["cost_ns"] / 1e3 == pytest.approx(true.cost_us, rel=0.001, abs=0.05)


@pytest.mark.parametrize(
    ("gpus", "options", "world"),
    with_slow(
        [
            (4, {"routing": Routing(factor=3.0, drift=True, idle=(2,)), "again": True}, {}),
        ],
        [
            (4, {"routing": Routing(hot=2, factor=2.0)}, {}),
            (3, {"routing": Routing(hot=1, factor=2.0), "weights": True, "batches": 2}, {}),
            (4, {"routing": Routing(factor=2.0), "under": False}, {}),
            (4, {"routing": Routing(factor=2.0), "under": False, "counts": False}, {}),
            (4, {"routing": Routing(factor=2.0), "backward": False}, {}),
            (2, {"routing": Routing(hot=1, factor=1.5), "layers": 1, "counts": False, "under": False}, {}),
            (4, {"routing": Routing(factor=2.0)}, {"layout": Layout(torch="2.13", sync_on_compute=True)}),
            (8, {"routing": Routing(factor=2.0), "size": 4}, {"layout": Layout(torch="2.5", shared_names=True)}),
        ],
    ),
)
def test_layers_tokens_and_costs_are_those_of_the_run(tmp_path, gpus, options, world):
    made, found = run(tmp_path, partial(routed, **options), gpus, **world)
    layers = options.get("layers", 3)
    assert len(found.experts) == 3 * gpus * layers
    assert_as_it_was(made, found.experts, layers)
    assert found.experts["note"].isna().all()


def sharded(place: Place) -> list[Op]:
    """Parameters of the next layer are gathered while experts compute, and counts of losses before the first."""
    group = everybody(place)
    ops: list[Op] = [load(), Comm("all_gather", Group("loss", group.ranks), 4, "Long")]
    for turn in range(2):
        there = tuple(tuple(row[turn:] + row[:turn]) for row in SPLITS)
        gathered = Comm("all_gather", Group("dp", group.ranks), 1 << 18, work=f"next{turn}")
        ops += [*layer(200.0), _rows(place, there), gathered, Kernel("grouped_gemm", 200.0)]
        ops += [_rows(place, tuple(zip(*there, strict=True))), Wait(f"next{turn}")]
    return [*ops, *optimizer(100.0)]


@pytest.mark.parametrize("torch", with_slow(["2.12"], ["2.4"]))
def test_collectives_of_other_groups_in_between_change_nothing(tmp_path, torch):
    _, found = run(tmp_path, sharded, window=ONE_STEP, layout=Layout(torch=torch))
    table = found.experts
    assert sorted(set(table["layer"])) == [0, 1]
    assert len(table) == 2 * 4
    assert table["note"].isna().all()
    assert table["expert_ns"].between(180_000, 230_000).all()
    for _, own in table.groupby("layer"):
        assert own["sent_tokens"].tolist() == [sum(row) for row in SPLITS]


@pytest.mark.slow
def test_a_hot_rank_is_told_from_drifting_ones(tmp_path):
    _, hot = run(tmp_path / "hot", partial(routed, routing=Routing(hot=2, factor=2.0)))
    _, drifting = run(tmp_path / "drifting", partial(routed, routing=Routing(factor=2.0, drift=True)))
    always, changing = hot.experts_layers, drifting.experts_layers
    assert set(always["hot_rank"]) == {2}
    assert set(always["hot_frac"]) == {1.0}
    assert (always["persistent_cost_ns"] == always["cost_ns"]).all()
    assert changing["persistent_cost_ns"].sum() < 0.8 * changing["cost_ns"].sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("routing", "why"),
    with_slow(
        [(Routing(hot=2, factor=3.0), "those of rank 2 get {:.1f} times the mean tokens in every step")],
        [
            (
                Routing(factor=3.0, drift=True),
                "the busiest get {:.1f} times the mean tokens, those of other ranks in turn",
            )
        ],
    ),
)
def test_the_first_screen_says_what_uneven_experts_cost(tmp_path, routing, why):
    """Not that the hot rank is late: as fast as others it would leave its tokens to nobody."""
    _, found = run(tmp_path, partial(routed, routing=routing))
    first = found.remedies.iloc[0]
    assert first["remedy"] == "balanced_experts"
    assert first["command"] == "predict --balanced-experts"
    gain_ms = first["gain_ns"] / 1e6
    assert gain_ms == pytest.approx(found.experts_layers["cost_ns"].sum() / 1e6, rel=0.05)
    verdict = found.verdicts.iloc[0]
    assert verdict["headline"].startswith(f"Uneven experts cost {gain_ms:.1f} ms of every")
    imbalance = found.experts["imbalance_factor"].mean()
    assert why.format(imbalance) in verdict["because"]
    assert pd.isna(verdict["headline_ranks"]) if routing.drift else verdict["headline_ranks"] == "2"
    assert "no_straggler" not in set(found.remedies["remedy"])


@pytest.mark.slow
@pytest.mark.parametrize("routing", [Routing(hot=2, factor=2.5), Routing(factor=2.5, drift=True)])
def test_a_comparison_says_that_experts_have_become_uneven(tmp_path, routing, capsys):
    for name, each in (("even", Routing(spread=0.05)), ("uneven", routing)):
        simulate(World(1, partial(routed, routing=each), 1, 4, steps=6)).write(tmp_path / name)
    assert main(["compare", str(tmp_path / "even"), str(tmp_path / "uneven")]) == 0
    first = " ".join(capsys.readouterr().out.split()).partition("The change is between")[0]
    assert ": uneven experts cost" in first


@pytest.mark.slow
def test_the_page_has_experts_by_layer(tmp_path):
    _, found = run(tmp_path, partial(routed, routing=Routing(hot=2, factor=3.0)))
    page = found.report().html
    assert 'id="experts"' in page
    assert "Uneven experts cost most in layer" in page
    assert "where rank 2 is the slowest in 100% of the steps" in page


@pytest.mark.slow
def test_a_rank_that_is_late_before_the_dispatch_is_named_beside_uneven_experts(tmp_path):
    _, found = run(tmp_path, partial(routed, routing=Routing(hot=3, factor=2.5), late=(1, 900.0)))
    gains = found.remedies.set_index("remedy")["gain_ns"]
    assert gains["no_straggler"] == pytest.approx(900_000, rel=0.05)
    assert found.remedies.set_index("remedy").loc["no_straggler", "what"] == "rank 1 as fast as the others"
    assert gains["balanced_experts"] == pytest.approx(found.experts_layers["cost_ns"].sum(), rel=0.05)


@pytest.mark.slow
def test_a_slow_rank_with_as_many_tokens_is_no_imbalance(tmp_path):
    """Its experts take longer, like all that it computes."""
    throttled = Injection("throttled", (1,), (0, 1, 2, 3), 2_000.0)
    _, found = run(tmp_path, partial(routed, routing=Routing(spread=0.0)), injections=(throttled,))
    assert "balanced_experts" not in set(found.remedies["remedy"])
    assert found.verdicts.iloc[0]["headline"].startswith("Rank 1 costs")


def test_what_is_waited_behind_experts_is_what_others_take_less(tmp_path):
    made, found = run(tmp_path, partial(routed, routing=Routing(factor=2.0)), hardware=CALM)
    table = found.experts
    for (step, number, group), true in truth_of_experts(made.happened).items():
        own = table[(table["step"] == step) & (table["layer"] == number)]
        less = sum(max(true.expert_us.values()) - true.expert_us[rank] for rank in group)
        assert not len(own) or own["wait_combine_ns"].sum() / 1e3 == pytest.approx(less, rel=0.02)


def test_late_before_the_dispatch_is_no_imbalance(tmp_path):
    _, found = run(tmp_path, partial(routed, routing=Routing(spread=0.0), late=(1, 900.0)), hardware=CALM)
    first = found.experts[found.experts["layer"] == 0]
    others = first[first["rank"] != 1]
    assert (others["wait_dispatch_ns"] > 800_000).all()
    assert (first.loc[first["rank"] == 1, "wait_dispatch_ns"] < 10_000).all()
    assert (first["cost_ns"] < 90_000).all()
    assert (first["wait_combine_ns"] < 150_000).all()


def test_a_rank_without_a_trace_leaves_imbalance_unknown(tmp_path):
    _, found = run(tmp_path, partial(routed, routing=Routing(factor=2.0)), losses=Losses(ranks=(1,)))
    table = found.experts
    assert set(table["rank"]) == {0, 2, 3}
    assert table[["imbalance_factor", "cost_ns"]].isna().all(axis=None)
    assert table["expert_ns"].notna().all()
    assert table["received_tokens"].notna().all()
    assert set(table["note"]) == {"not seen on rank 1"}
    assert found.experts_layers["cost_ns"].isna().all()


@pytest.mark.slow
def test_of_more_than_30_ranks_elements_tell_the_imbalance(tmp_path):
    """torch writes the first 30 entries of a list."""
    made, found = run(tmp_path, partial(routed, routing=Routing(hot=31, factor=4.0), layers=1), 32, window=ONE_STEP)
    table = found.experts
    assert table["received_tokens"].isna().all()
    ((_, true),) = [each for each in truth_of_experts(made.happened, 1).items() if each[0][0] == 1]
    got = list(true.received.values())
    assert table["imbalance_factor"].to_numpy() == pytest.approx(max(got) / np.mean(got))
    assert table["cost_ns"].to_numpy() / 1e3 == pytest.approx(true.cost_us, rel=0.01)
    assert set(table["note"]) == {"parts are equal, or the list of them is too long to be recorded"}


ONE_STEP = Window(cycles=((1, 1),))


def padded(place: Place, *, counts: bool, kind: str = "default") -> list[Op]:
    """Experts whose capacity is fixed: parts are equal, and torch records no sizes."""
    group = Group(kind, everybody(place).ranks)
    ops: list[Op] = [load()]
    for _ in range(2):
        ops += layer(200.0)
        ops += [Comm("all_to_all", group, place.world, "Long")] if counts else []
        ops += [Comm("all_to_all", group, 1 << 20), Kernel("gemm", 150.0), Comm("all_to_all", group, 1 << 20)]
    return [*ops, *optimizer(100.0)]


@pytest.mark.parametrize(
    ("counts", "kind", "rows"), with_slow([(False, "ep", 8)], [(True, "default", 8), (False, "default", 0)])
)
def test_equal_parts_are_of_experts_where_counts_or_a_name_tell_it(tmp_path, counts, kind, rows):
    _, found = run(tmp_path, partial(padded, counts=counts, kind=kind), window=ONE_STEP)
    table = found.experts
    assert len(table) == rows
    assert (table["imbalance_factor"] == 1.0).all()
    assert table["received_tokens"].isna().all()
    assert table["note"].notna().all()


SPLITS = ((30, 10, 20, 5), (10, 60, 5, 9), (7, 8, 20, 30), (9, 9, 40, 3))
BACK = tuple(zip(*SPLITS, strict=True))
_BACKWARD = "autograd::engine::evaluate_function: Backward0"


def _rows(place: Place, splits: tuple[tuple[int, ...], ...], under: str = "") -> Op:
    return Comm("all_to_all", everybody(place), 150 * 64, splits=splits, width=64, under=under)


def ulysses(place: Place) -> list[Op]:
    """Sequences of unequal length: heads are gathered for attention."""
    ops: list[Op] = [load(), *layer(100.0)[:2], _rows(place, SPLITS)]
    ops += [Kernel("flash_fwd_kernel", 300.0, "aten::_flash_attention_forward"), _rows(place, BACK)]
    ops += [*backward(200.0)[1:], _rows(place, SPLITS, _BACKWARD), *backward(400.0)[:1]]
    return [*ops, _rows(place, BACK, _BACKWARD), *optimizer(100.0)]


def embeddings(place: Place) -> list[Op]:
    """Lengths and keys to the ranks that hold their tables, embeddings back; and their gradients the other way."""
    group = everybody(place)
    ops: list[Op] = [load(), Comm("all_to_all", group, 4, "Long")]
    ops += [Comm("all_to_all", group, 120, "Long", splits=SPLITS), Kernel("embedding_bag", 200.0), _rows(place, BACK)]
    return [*ops, *layer(500.0), *backward(500.0), _rows(place, SPLITS, _BACKWARD), *optimizer(100.0)]


@pytest.mark.parametrize("program", with_slow([ulysses], [embeddings]))
def test_all_to_alls_of_no_experts_are_left_out(tmp_path, program, capsys):
    _, found = run(tmp_path, program, window=ONE_STEP)
    assert len(found.calls[found.calls["collective"] == "all_to_all"]) >= 4
    assert not len(found.experts)
    assert main(["table", "experts", "--no-cache", str(tmp_path)]) == 0
    assert "attention runs in between" in "".join(capsys.readouterr())


def in_turns(place: Place) -> list[Op]:
    """Two halves of a batch: the experts of one run while tokens of the other travel."""
    first, other = (tuple(tuple(row[turn:] + row[:turn]) for row in SPLITS) for turn in (0, 1))
    ops: list[Op] = [load(), *layer(200.0), _rows(place, first), *layer(150.0), _rows(place, other)]
    ops += [Kernel("grouped_gemm", 200.0), _rows(place, tuple(zip(*first, strict=True)))]
    ops += [Kernel("grouped_gemm", 200.0), _rows(place, tuple(zip(*other, strict=True)))]
    return [*ops, *optimizer(100.0)]


def test_of_batches_that_take_turns_the_time_is_not_known(tmp_path):
    _, found = run(tmp_path, in_turns, window=ONE_STEP)
    table = found.experts
    assert len(table) == 2 * 4
    assert table[["expert_ns", "cost_ns"]].isna().all(axis=None)
    assert table["received_tokens"].notna().all()
    assert table["note"].str.startswith("two batches take turns").all()


@pytest.mark.slow
def test_a_recording_and_several_processes_say_the_same(tmp_path):
    _, whole = run(tmp_path / "run", partial(routed, routing=Routing(factor=2.0), layers=2), 3)
    assert main(["pack", str(tmp_path / "run"), "--output", str(tmp_path / "packed")]) == 0
    pd.testing.assert_frame_equal(whole.experts, analyse(tmp_path / "packed").experts)
    pd.testing.assert_frame_equal(whole.experts, analyse(tmp_path / "run", workers=2).experts)


def test_steps_that_only_some_ranks_recorded_have_no_cost(tmp_path):
    """Ranks 1 and 3 begin and end a step later."""
    window = Window(cycles=((0, 1),), shifts=((0, 0), (1, 1)))
    made, found = run(tmp_path, partial(routed, routing=Routing(factor=2.0)), window=window)
    table = found.experts
    assert_as_it_was(made, table[table["step"] == 1])
    others = table[table["step"] != 1]
    assert set(others["step"]) == {0, 2}
    assert others["cost_ns"].isna().all()
    assert set(others["note"]) == {"not seen on ranks 1, 3", "not seen on ranks 0, 2"}


def test_without_marks_layers_go_through_the_whole_trace(tmp_path):
    made, found = run(tmp_path, partial(routed, routing=Routing(factor=2.0)), layout=Layout(steps="none"))
    table = found.experts
    assert table["step"].isna().all()
    assert len(table) == 3 * 4
    assert set(table["passes"]) == {2 * 3}
    truth = truth_of_experts(made.happened)
    for row in table.to_dict("records"):
        own = [true for (step, number, _), true in truth.items() if number == row["layer"] and 1 <= step <= 3]
        assert row["received_tokens"] == sum(true.received[row["rank"]] for true in own)
        assert row["cost_ns"] / 1e3 == pytest.approx(sum(true.cost_us for true in own), rel=0.001)
