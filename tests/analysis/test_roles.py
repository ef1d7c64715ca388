"""Roles of process groups, by description and by calls, and places of ranks, on simulated jobs of known layout."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import product
from random import Random

import pandas as pd
import pytest
from simulator import simulate
from simulator.pipelines import cp_ring, three_d
from simulator.programs import ddp, fsdp, tp, tp_dp
from simulator.world import Hang, Injection, World

from commtrace import analyse
from commtrace.analysis.cli.commands.ranks import RankNumber, _drawn
from commtrace.analysis.core.schema import records
from commtrace.analysis.core.tables.communication import PROCESS_GROUPS
from commtrace.analysis.metrics.roles.behaviour import inferred_role
from commtrace.analysis.metrics.roles.grid import Cell, Grid
from commtrace.analysis.metrics.roles.names import described_role, group_in_words
from commtrace.analysis.metrics.roles.table import group_roles, rank_places
from commtrace.analysis.report.run_report import run_figures
from commtrace.analysis.tables.calls import CALLS
from commtrace.analysis.tables.roles import GROUPS, PLACES
from commtrace.cli import main


@pytest.mark.parametrize(
    ("role", "descriptions"),
    [
        ("tp", ["TENSOR_MODEL_PARALLEL_GROUP", "mesh_tp", "tp:0", "attention_tp", "my_tp_group", "tensor parallel"]),
        ("pp", ["PIPELINE_MODEL_PARALLEL_GROUP", "mesh_pp", "pp:0"]),
        ("dp", ["DATA_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_GLOO", "mesh_dp", "DP Group 0", "mesh_batch"]),
        ("dp-cp", ["DATA_PARALLEL_GROUP_WITH_CP", "mesh_dp_cp", "mesh_loss"]),
        ("dp_shard", ["mesh_dp_shard", "mesh_fsdp", "mesh_shard"]),
        ("dp_shard-cp", ["mesh_dp_shard_cp", "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP"]),
        ("dp_replicate", ["mesh_dp_replicate", "mesh_replicate"]),
        ("cp", ["CONTEXT_PARALLEL_GROUP", "HIERARCHICAL_CONTEXT_PARALLEL_GROUPS", "mesh_cp", "dcp", "attn_cp"]),
        ("sp", ["mesh_sp", "sequence_parallel_group"]),
        ("ep", ["EXPERT_MODEL_PARALLEL_GROUP", "mesh_ep", "moe_ep", "mesh_dp_shard_in_ep"]),
        ("etp", ["EXPERT_TENSOR_PARALLEL_GROUP", "mesh_etp", "moe_tp"]),
        ("edp", ["EXPERT_DATA_PARALLEL_GROUP", "mesh_efsdp", "mesh_dp_shard_mod_ep"]),
        ("etp-ep", ["EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"]),
        ("tp-pp", ["MODEL_PARALLEL_GROUP"]),
        ("tp-dp-cp", ["TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP"]),
        ("embedding", ["EMBEDDING_GROUP"]),
        ("position embedding", ["POSITION_EMBEDDING_GROUP"]),
        ("world", ["default_pg"]),
        (None, ["undefined", "", None, "mesh_dim_0", "data_loading", "node_local", "embedding_dim", "expert_stats",
                "not_tp", "no-tp", "moe gate",
                "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP"]),
    ],
    ids=str,
)  # fmt: skip
def test_roles_by_description(role, descriptions):
    assert {description: described_role(description) for description in descriptions} == dict.fromkeys(
        descriptions, role
    )


def test_groups_in_words():
    assert group_in_words("tp", [4, 5, 6, 7]) == "the tensor-parallel group of ranks 4-7"
    assert group_in_words("dp_shard-cp", [0, 2]) == "the sharded data- and context-parallel group of ranks 0, 2"
    assert group_in_words("tp-pp", [0, 1]) == "the model-parallel group of ranks 0-1"
    assert group_in_words("world", [0, 1, 2]) == "the group of all 3 ranks"
    assert group_in_words(None, [3, 4], "7") == "group 7 of ranks 3-4"


NO_CALLS = CALLS.empty()
JOBS = {
    "ddp": (1, 4, ddp, {("dp", (0, 1, 2, 3))}),
    "fsdp": (1, 4, fsdp, {("dp_shard", (0, 1, 2, 3))}),
    "cp": (1, 4, cp_ring, {("cp", (0, 1, 2, 3)), ("dp-cp", (0, 1, 2, 3))}),
    "tp x dp": (2, 2, tp_dp, {("tp", (0, 1)), ("tp", (2, 3)), ("dp", (0, 2)), ("dp", (1, 3))}),
    "tp x dp x pp x ep": (2, 4, partial(three_d, tp=2, pp=2, experts="uneven"), {
        *(("tp", (first, first + 1)) for first in (0, 2, 4, 6)),
        *((role, (first, first + 2)) for first in (0, 1, 4, 5) for role in ("dp", "ep")),
        *(("pp", (first, first + 4)) for first in range(4)),
    }),
    "tp x dp x pp of 4": (2, 8, partial(three_d, tp=2, pp=4, schedule="gpipe", batched=False), {
        *(("tp", (first, first + 1)) for first in range(0, 16, 2)),
        *(("dp", (first, first + 2)) for first in (0, 1, 4, 5, 8, 9, 12, 13)),
        *(("pp", (first, first + 4, first + 8, first + 12)) for first in range(4)),
    }),
}  # fmt: skip
"""Hosts, GPUs of each, program, and the role of each group that has one."""


@pytest.mark.quick_cases("ddp", "fsdp", "cp", "tp x dp")
@pytest.mark.parametrize(("hosts", "gpus", "program", "truth"), JOBS.values(), ids=JOBS)
def test_roles_by_calls(tmp_path, hosts, gpus, program, truth):
    """No description says anything, and every group is told by what it does."""
    simulate(World(3, program, hosts, gpus, 4)).write(tmp_path)
    found = analyse(tmp_path)
    groups = found.run.process_groups.assign(description="undefined")
    silent = replace(found, run=replace(found.run, process_groups=groups)).groups
    assert {(row["role"], _members(row)) for row in records(silent) if row["role"] is not None} == truth
    assert set(silent["role_from"].dropna()) == {"calls"}
    assert silent["because"][silent["role"].notna()].notna().all()


@pytest.mark.parametrize(
    ("pairs", "members"), [([(0, 1), (1, 0), (2, 3), (3, 2)], range(4)), ([(0, 1)], range(2))], ids=["pairs", "one way"]
)
def test_messages_of_no_pipeline(pairs, members):
    """Ranks 1 and 2 of the first exchange nothing; the second only hands over."""
    rows = [
        {"rank": rank, "cycle": 0, "collective": name, "root": peer}
        for source, target in pairs
        for rank, name, peer in ((source, "send", target), (target, "recv", source))
    ]
    messages = pd.DataFrame(rows).assign(batch=None)
    found = inferred_role(messages, members, lambda *_: None)
    assert found is not None
    assert found.role is None


def test_neighbours_that_exchange_borders_are_no_pipeline():
    """Each sends on before anything has come from the rank before it."""
    ranks, order = range(4), (("send", 1), ("recv", -1), ("send", -1), ("recv", 1))
    rows = [
        {"rank": rank, "cycle": 0, "step": step, "collective": name, "root": rank + hop, "start_ns": 100 * step + turn}
        for step in range(3)
        for turn, (name, hop) in enumerate(order)
        for rank in ranks
        if rank + hop in ranks
    ]
    assert inferred_role(pd.DataFrame(rows).assign(batch=None), ranks, lambda *_: None).role is None


def test_equal_all_reduces_alone_may_be_of_gradients(tmp_path):
    simulate(World(3, tp, 1, 4, 4)).write(tmp_path)
    (row,) = [row for row in records(analyse(tmp_path).groups) if row["calls"]]
    assert row["role"] in (None, "world")
    assert "or of gradients" in row["because"]


def test_a_group_with_one_traced_rank_at_its_middle_may_be_a_ring_or_a_pipeline(tmp_path):
    simulate(World(3, cp_ring, 1, 4, 4)).write(tmp_path)
    found = analyse(tmp_path, ranks="1")
    groups = found.run.process_groups.assign(description="undefined")
    silent = replace(found, run=replace(found.run, process_groups=groups)).groups
    assert "cp" not in set(silent["role"].dropna())
    assert "pp" not in set(silent["role"].dropna())


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "pp-dp-tp-cp", "tp-pp-dp-cp"])
def test_places_of_ranks(order):
    """In any order of the dimensions; Megatron's is the first."""
    sizes = dict(zip(order.split("-"), (2, 3, 2, 4), strict=True))
    numbers = [dict(zip(sizes, place[::-1], strict=True)) for place in product(*map(range, [*sizes.values()][::-1]))]
    rows = [
        {"rank": rank, "process_group": f"{name} of {rank}", "description": f"mesh_{name}", "pg_ranks": " ".join(group)}
        for rank, own in enumerate(numbers)
        for name in sizes
        for group in [[str(other) for other, its in enumerate(numbers) if {**its, name: 0} == {**own, name: 0}]]
    ]
    found = GROUPS.frame(group_roles(PROCESS_GROUPS.frame(rows), NO_CALLS, lambda *_: None))
    places = PLACES.frame(rank_places(range(len(numbers)), found))
    assert [{name: row[name] for name in sizes} for row in records(places)] == numbers
    last = {name: size - 1 for name, size in sizes.items()}
    assert records(places)[-1]["place"] == ", ".join(f"{name} {last[name]}" for name in ("tp", "cp", "pp", "dp"))


def test_no_places_of_ranks_in_no_grid():
    """Rows and columns of [[0, 3], [2, 1]]: torch lists the ranks of a group in order, and these are in none."""
    groups = {"mesh_tp": [(0, 3), (1, 2)], "mesh_dp": [(0, 2), (1, 3)]}
    found = GROUPS.frame(group_roles(described(groups), NO_CALLS, lambda *_: None))
    assert PLACES.frame(rank_places(range(4), found))[["tp", "dp", "place"]].isna().all(axis=None)


def test_hybrid_sharding_has_a_flattened_group():
    assert described_role("mesh_dp_replicate_dp_shard") == "dp"


def test_a_world_that_lacks_ranks_is_none():
    groups = {"world": [(0, 1), (2, 3)], "mesh_tp": [(0, 1), (2, 3)]}
    found = GROUPS.frame(group_roles(described(groups), NO_CALLS, lambda *_: None))
    named = found[found["role"].notna()]
    assert dict(zip(named["process_group"], named["role"], strict=True)) == {"mesh_tp0": "tp", "mesh_tp1": "tp"}


@pytest.mark.parametrize(("dtype", "repeats", "role"), [("float32", 1, "ep"), ("int64", 1, None), ("float32", 4, None)])
def test_uneven_exchanges_are_of_experts_if_they_differ(dtype, repeats, role):
    """Embeddings are exchanged in uneven parts as well, the same in each step; and ids in others."""
    unlike = [f"[{64 + number % (8 // repeats)}, {960 - number}]" for number in range(8 // repeats)]
    calls = pd.DataFrame({"rank": 0, "cycle": 0, "step": 0, "collective": "all_to_all",
                          "in_split": unlike * repeats, "out_split": pd.NA,
                          "size_bytes": 4096, "dtype": dtype}).convert_dtypes()  # fmt: skip
    assert inferred_role(calls, (0, 1), lambda *_: None).role == role


WINDOW_NS = 1_000_000


def job(events):
    """Roles of the groups of a job: events are group, collective, bytes and place in the step.

    A group is a tuple of its ranks; a text in it tells two of the same ranks apart.
    """
    ranks_of = {group: [rank for rank in group if isinstance(rank, int)] for group, *_ in events}
    rows = [
        {"rank": rank, "cycle": 0, "step": step, "collective": name, "process_group": str(group), "dur_ns": 10,
         "pg_ranks": " ".join(map(str, ranks_of[group])), "size_bytes": size_bytes, "dtype": "float32",
         "start_ns": step * WINDOW_NS + round(at * WINDOW_NS)}
        for group, name, size_bytes, at in events for step in range(3) for rank in ranks_of[group]
    ]  # fmt: skip
    calls = pd.DataFrame(rows).assign(root=pd.NA, batch=pd.NA, in_split=pd.NA, out_split=pd.NA)
    found = GROUPS.frame(
        group_roles(PROCESS_GROUPS.empty(), calls, lambda _rank, _cycle, step: (step * WINDOW_NS, WINDOW_NS))
    )
    roles = {row["process_group"]: row["role"] for row in records(found)}
    return {group: roles[str(group)] for group in ranks_of}


def spread(group, name, sizes, begin, end):
    """One call for each size, evenly from the begin to the end, which are parts of the step."""
    return [(group, name, size, begin + (end - begin) * turn / len(sizes)) for turn, size in enumerate(sizes)]


INSIDE, ACROSS = ((0, 1), (2, 3)), ((0, 2), (1, 3))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("again", [False, True], ids=["saved", "recomputed"])
def test_keys_and_values_that_are_gathered_are_no_parameters(seed, again):
    """Context parallelism gathers them layer by layer and scatters their gradients; then gradients are reduced."""
    rng = Random(seed)
    layers, buckets = rng.randrange(3, 40), rng.randrange(1, 6)
    sizes = [rng.randrange(1 << 12, 1 << 26) for _ in range(rng.choice([1, 2]))]  # latent attention has two
    events = []
    for group in INSIDE:
        events += spread(group, "all_gather", sizes * layers, 0.05, 0.35)
        behind = spread(group, "reduce_scatter", sizes * layers, 0.4, 0.9)
        events += [(group, "all_gather", size, at - 1e-4) for _, _, size, at in behind] if again else []
        events += behind
    reduced = [rng.randrange(1 << 20, 1 << 27) for _ in range(buckets)]
    events += spread((0, 1, 2, 3), "all_reduce", reduced, 0.6, 0.95)
    roles = job(events)
    assert {roles[group] for group in INSIDE} == {None}
    assert roles[0, 1, 2, 3] in ("dp", None)


@pytest.mark.parametrize("seed", range(8))
def test_parameters_are_of_units_unlike_each_other(seed):
    """Fully sharded data parallelism has the embeddings' unit beside the layers, or units of all sizes."""
    rng = Random(seed)
    layers = rng.randrange(3, 40)
    unit, root = rng.sample(range(1 << 14, 1 << 26), 2)
    sizes = [root, *[unit] * layers] if rng.random() < 0.5 else rng.sample(range(1 << 14, 1 << 26), layers)
    events = spread((0, 1, 2, 3), "all_gather", sizes, 0.01, 0.4)
    events += spread((0, 1, 2, 3), "all_gather", sizes[:0:-1], 0.42, 0.9) if rng.random() < 0.5 else []
    events += spread((0, 1, 2, 3), "reduce_scatter", sizes[::-1], 0.45, 0.95)
    for group in INSIDE:
        events += spread(group, "all_reduce", [1 << 23] * 8, 0.02, 0.9)
    assert job(events)[0, 1, 2, 3] == "dp_shard"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fused", [False, True], ids=["bucket by bucket", "in one"])
def test_gradients_that_are_reduced_level_by_level_are_no_activations(seed, fused):
    rng = Random(seed)
    buckets = [rng.randrange(1 << 17, 1 << 26)] * rng.randrange(4, 12)
    events = []
    for group in INSIDE:
        events += spread(group, "all_reduce", buckets, rng.uniform(0.0, 0.6), 0.8)
    for group in ACROSS:
        events += spread(group, "all_reduce", [sum(buckets)] if fused else buckets, 0.82, 0.95)
    roles = job(events)
    assert {roles[group] for group in INSIDE} <= {None, "dp"}
    assert {roles[group] for group in ACROSS} <= {None, "dp"}


@pytest.mark.parametrize("seed", range(8))
def test_statistics_of_a_batch_norm_are_no_activations(seed):
    rng = Random(seed)
    statistics = [2 * 4 * rng.choice([128, 256, 512, 2048])] * rng.randrange(4, 60)
    events = spread((0, 1, 2, 3), "all_reduce", [rng.randrange(1 << 20, 1 << 26) for _ in range(4)], 0.6, 0.95)
    for group in INSIDE:
        events += spread(group, "all_reduce", statistics, 0.02, 0.9)
    assert job(events) == {(0, 1): None, (2, 3): None, (0, 1, 2, 3): "dp"}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["tp x dp", "tp x pp x dp, small", "tp alone, small"])
def test_activations_are_reduced_beside_gradients(seed, kind):
    """Where the sizes are no other's; small ones are known by the pipeline, which hands on activations as large."""
    rng = Random(seed)
    small = kind.endswith("small")
    activations = rng.randrange(1 << 12, 1 << 16) if small else rng.randrange(1 << 17, 1 << 27)
    events = []
    for group in INSIDE:
        first = rng.uniform(0.3, 0.5) if kind == "tp alone, small" else 0.05
        norms = [2048] * 3 if kind == "tp alone, small" else []
        events += spread(group, "all_reduce", [activations] * rng.randrange(6, 60) + norms, first, 0.9)
    if kind == "tp alone, small":
        assert set(job(events).values()) == {None}
        return
    for group in ACROSS:
        events += spread(group, "all_reduce", [rng.randrange(1 << 20, 1 << 27) for _ in range(3)], 0.6, 0.95)
    if small:
        events += [((0, 4), name, activations, at) for name, at in (("send", 0.5), ("recv", 0.6))]
    roles = job(events)
    assert {roles[group] for group in INSIDE} == {"tp"}
    assert {roles[group] for group in ACROSS} == {"dp"}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("case", ["with positions", "gradients in other steps", "of all ranks"])
def test_keys_and_values_beside_other_calls_are_no_parameters(seed, case):
    """Beside a gather that is never scattered; where no gradient is reduced meanwhile; on the ranks of the world."""
    rng = Random(seed)
    size, layers = rng.randrange(1 << 16, 1 << 24), rng.randrange(4, 40)
    groups = ((0, 1, 2, 3),) if case == "of all ranks" else INSIDE
    events = []
    for group in groups:
        events += spread(group, "all_gather", [size] * layers, 0.05, 0.4)
        events += spread(group, "reduce_scatter", [size] * layers, 0.5, 0.9)
        events += [(group, "all_gather", rng.randrange(1 << 11, 1 << 15), 0.02)] if case == "with positions" else []
    if case == "of all ranks":
        events = [((*group, "kv"), *rest) for group, *rest in events]
    if case != "gradients in other steps":
        events += spread((0, 1, 2, 3), "all_reduce", [1 << 24, 1 << 25], 0.6, 0.95)
    found = job(events)
    assert "dp" in found.values() or case == "gradients in other steps"
    assert set(found.values()) <= {None, "dp"}
    assert len([role for role in found.values() if role == "dp"]) <= 1


@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_micro_batches_inside_and_across_hosts(seed):
    """Inside each time, across once, perhaps in a type of half the width: some times as much in sum."""
    rng = Random(seed)
    parameters, times = [rng.randrange(1 << 17, 1 << 24)] * rng.randrange(4, 12), rng.choice([2, 4, 8])
    events = []
    for group in INSIDE:
        events += spread(group, "all_reduce", parameters * times, 0.05, 0.8)
    for group in ACROSS:
        events += spread(group, "all_reduce", [sum(parameters) // rng.choice([1, 2])], 0.9, 0.95)
    assert "tp" not in job(events).values()


def test_small_all_reduces_of_metrics_take_no_role_from_others():
    events = [((0, 1, 2, 3), "all_reduce", 1200, 0.97)]
    for group in INSIDE:
        events += spread(group, "all_reduce", [1 << 22] * 12, 0.05, 0.9)
    for group in ACROSS:
        events += spread(group, "all_reduce", [(1 << 24) + 3_000_000, 1 << 23], 0.6, 0.9)
    roles = job(events)
    assert {roles[group] for group in INSIDE} == {"tp"}
    assert {roles[group] for group in ACROSS} == {"dp"}
    assert roles[0, 1, 2, 3] is None


@pytest.mark.parametrize(("sizes", "in_turn"), [((4096, 8), False), ((4096, 4096), True)], ids=["tokens", "circular"])
def test_stages_that_begin_again_are_no_ring(sizes, in_turn):
    """Tokens go from the last stage to the first; in a circular pipeline activations, sent on when they have come."""
    ranks = range(4)
    rows = [
        {"rank": rank, "cycle": 0, "step": step, "collective": name, "root": (rank + hop) % 4, "size_bytes": size,
         "start_ns": 1000 * step + 100 * (rank if in_turn else 0) + turn}
        for step in range(3) for rank in ranks for turn, (name, hop) in enumerate((("recv", -1), ("send", 1)))
        for size in [sizes[(rank if name == "send" else rank - 1) % 4 == 3]]
    ]  # fmt: skip
    assert inferred_role(pd.DataFrame(rows).assign(batch=None), ranks, lambda *_: None).role is None


def described(groups):
    """Process groups by their descriptions, each with the ranks of those that have it."""
    return PROCESS_GROUPS.frame(
        {"rank": rank, "process_group": f"{description}{number}", "description": description, "backend": "nccl",
         "pg_ranks": " ".join(map(str, ranks))}
        for description, of_ranks in groups.items() for number, ranks in enumerate(of_ranks) for rank in ranks
    )  # fmt: skip


def test_no_place_where_groups_of_one_role_contradict():
    rows = [
        {"rank": 1, "process_group": "a", "description": "mesh_tp", "pg_ranks": "0 1"},
        {"rank": 1, "process_group": "b", "description": "mesh_tp", "pg_ranks": "1 2"},
    ]
    found = GROUPS.frame(group_roles(PROCESS_GROUPS.frame(rows), NO_CALLS, lambda *_: None))
    assert [row["place"] for row in rank_places([1], found)] == [None]


def _members(row):
    return tuple(map(int, row["pg_ranks"].split()))


@pytest.fixture(scope="module")
def pipelined(tmp_path_factory):
    """Two replicas of two stages of two ranks; rank 5 is slow, which is tp 1, pp 1, dp 0."""
    folder = tmp_path_factory.mktemp("pipelined")
    slow = Injection("slower", (5,), (1, 2, 3), 4000.0)
    simulate(World(3, partial(three_d, tp=2, pp=2), 2, 4, 4, injections=(slow,))).write(folder)
    return folder


@pytest.mark.slow
def test_sentences_say_where_a_rank_is(pipelined):
    found = analyse(pipelined, details=True)
    assert dict(zip(found.ranks["rank"], found.ranks["place"], strict=True))[5] == "tp 1, pp 1, dp 0"
    assert "ank 5 (tp 1, pp 1, dp 0)" in found.verdict


@pytest.mark.slow
def test_ranks_over_two_dimensions(pipelined, capsys):
    """The grid on the terminal and the map of the report have the means of the ranks of each cell."""
    found = analyse(pipelined)
    caused = dict(zip(found.ranks["rank"], found.ranks["caused_wait_ns"], strict=True))
    means = {(0, 0): (0, 1), (0, 1): (4, 5), (1, 0): (2, 3), (1, 1): (6, 7)}
    assert main(["ranks", "--no-cache", "--by", "dp,pp", str(pipelined)]) == 0
    shown = capsys.readouterr().out
    numbers = [[float(text.rstrip("*")) for text in line.split()[2:]] for line in shown.splitlines()[3:5]]
    expected = [[sum(caused[rank] for rank in means[dp, pp]) / 2e6 for pp in (0, 1)] for dp in (0, 1)]
    assert numbers == [[pytest.approx(ms, abs=0.051) for ms in row] for row in expected]
    assert shown.endswith("* most: dp 0, pp 1, ranks 4-5\n")
    (figure,) = [figure for name, figure in run_figures(found).items() if name == "places"]
    assert json.loads(figure.data)["values"] == [[pytest.approx(ms, rel=1e-5) for ms in row] for row in expected]


def test_a_grid_fits_a_narrow_terminal():
    cells = [[Cell(1e6 * (row + column), (column, 24 + column)) for column in range(24)] for row in (0, 1)]
    lines = _drawn(Grid("pp", "dp", (0, 1), tuple(range(24)), cells), RankNumber.idle, 80).splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line.split() for line in lines if line.split()[:1] == ["dp"]]
    assert [number for head in heads for number in head[1::2]] == [str(number) for number in range(24)]
    assert lines[-1] == "* most: pp 1, dp 23, ranks 23, 47"


@pytest.mark.parametrize("options", [["--by", "dp"], ["--by", "dp,dp"], ["--by", "dp,x"], ["--of", "wait"],
                                     ["--by", "dp,pp", "--top", "1"], ["--by", "dp,pp", "--where", "rank=3"],
                                     ["--by", "dp,pp", "--format", "csv"]], ids=str)  # fmt: skip
def test_a_grid_needs_two_dimensions_and_a_reader(pipelined, options, capsys):
    assert main(["ranks", "--no-cache", *options, str(pipelined)]) == 2
    assert "--by" in capsys.readouterr().err


@pytest.mark.slow
def test_no_grid_of_a_job_of_one_dimension(tmp_path, capsys):
    simulate(World(3, ddp, 1, 2, 4)).write(tmp_path)
    assert main(["ranks", "--no-cache", "--by", "dp,pp", str(tmp_path)]) == 1
    assert "commtrace table groups" in capsys.readouterr().err


@pytest.mark.slow
def test_tables_and_sentences_name_groups_by_their_roles(pipelined, tmp_path):
    found = analyse(pipelined)
    for table in (found.bandwidth, found.verdicts):
        roles = {(row["pg_ranks"], row["role"]) for row in records(table) if row["pg_ranks"] is not None}
        assert roles >= {("0 1", "tp"), ("0 2", "dp"), ("0 1 2 3 4 5 6 7", None)}
    (figure,) = [figure for name, figure in run_figures(found).items() if name == "bandwidth"]
    assert "tp of ranks 0-1" in figure.svg
    simulate(World(3, partial(three_d, tp=2, pp=2), 2, 4, 4, hang=Hang(3, 3, 0.3))).write(tmp_path)
    assert "of the tensor-parallel group of ranks 2-3" in analyse(tmp_path).verdict
