"""Real captures of FSDP and of pipelines, read back: what the tables show is what the model's own numbers demand."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from capturing import metas, python
from samples import with_slow

from commtrace import Analysis, analyse
from commtrace.analysis.core.schema import records

torch = pytest.importorskip("torch")
from commtrace.profiling.workloads.models import BLOCKS, MODELS  # noqa: E402

RESNET18_PARAMETERS = 11_173_962
STEPS = [1, 2]
MICROBATCHES = 3
SCHEDULE = ["--wait", 1, "--warmup", 0, "--active", 2, "--steps", 3, "--device", "cpu"]


def captured(out: Path, mode: str, workers: int, *options: object) -> Path:
    command = ["-m", "commtrace", "train", "--parallel", mode, "--workers", workers, *SCHEDULE, *options]
    done = python(*command, "--out", out, "--run-name", "run")
    assert done.returncode == 0, done.stderr
    return out / "run"


def blocks() -> dict[str, Any]:
    with torch.device("meta"):
        return dict(BLOCKS["resnet18"](MODELS["resnet18"]()))


def by_rank_and_step(found: Analysis) -> dict[tuple[int, int], list[dict[str, Any]]]:
    calls = records(found.calls)
    keys = sorted({(row["rank"], row["step"]) for row in calls})
    return {key: [row for row in calls if (row["rank"], row["step"]) == key] for key in keys}


def assert_all_matched(found: Analysis) -> None:
    table = found.collectives
    assert table["complete"].all()
    assert table["certain"].all()
    assert set(table["matched_by"]) == {"step"}
    assert set(found.calls["metadata_from"]) == {"c10d"}
    assert found.participation["wait_ns"].notna().all()
    assert found.run.traces["complete"].all()


# --- FSDP -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[3])
def sharded(request, tmp_path_factory) -> tuple[int, Path]:
    """Over 3 ranks most parameters have to be padded: their first dimension is 64, 128, 256, 512 or 10."""
    workers = request.param
    return workers, captured(tmp_path_factory.mktemp(f"fsdp{workers}"), "fsdp", workers, "--batch-size", 2)


def padded_bytes(block: Any, ranks: int) -> int:
    """Bytes of the block's parameters with dimension 0 of each filled up to a multiple of the ranks."""
    shapes = [list(parameter.shape) for parameter in block.parameters()]
    return sum(4 * math.ceil(shape[0] / ranks) * ranks * math.prod(shape[1:]) for shape in shapes)


@pytest.mark.slow
def test_fsdp_gathers_and_reduces_the_sharded_parameters_of_each_block(sharded) -> None:
    ranks, run = sharded
    found = analyse(run)
    *inner, last = [padded_bytes(block, ranks) for block in blocks().values()]
    calls = by_rank_and_step(found)
    assert sorted(calls) == [(rank, step) for rank in range(ranks) for step in STEPS]
    for rows in calls.values():
        sizes = {kind: sorted(r["size_bytes"] for r in rows if r["collective"] == kind)
                 for kind in ("all_gather", "reduce_scatter")}  # fmt: skip
        # Every block is gathered for the forward and for the backward pass; the last one stays whole in between.
        assert sizes["all_gather"] == sorted([*inner, *inner, last])
        assert sizes["reduce_scatter"] == sorted([*inner, last])
        assert len(rows) == sum(map(len, sizes.values()))
        for row in rows:
            small, large = sorted((row["in_elems"], row["out_elems"]))
            assert small * ranks == large == row["size_bytes"] // 4
            assert (row["in_elems"] < row["out_elems"]) == (row["collective"] == "all_gather")
            assert (row["dtype"], row["pg_ranks"]) == ("float32", " ".join(map(str, range(ranks))))
    assert_all_matched(found)
    assert (found.breakdown["exposed_unsplit_ns"] == 0).all()
    assert len(found.collectives) == len(STEPS) * (3 * len(inner) + 2)


@pytest.mark.slow
def test_side_files_tell_the_groups_of_fsdp(sharded) -> None:
    ranks, run = sharded
    wanted = Counter(padded_bytes(block, ranks) for block in blocks().values())
    for meta in metas(run).values():
        groups = meta["fsdp"]["groups"]
        assert Counter(group["unsharded_bytes"] for group in groups) == wanted
        assert all(group["sharded_bytes"] * ranks == group["unsharded_bytes"] for group in groups)
        padding = sum(group["padding_bytes"] for group in groups)
        assert (padding > 0) == (ranks == 3)
        assert sum(group["unsharded_bytes"] for group in groups) - padding == RESNET18_PARAMETERS * 4
        named = [name for group in groups for name in group["parameters"]]
        assert sorted(named) == sorted(name for name, _ in MODELS["resnet18"]().named_parameters())
        whole = [group["parameters"] for group in groups if not group["reshard_after_forward"]]
        assert whole == [["fc.weight", "fc.bias"]]
        assert (meta["model"]["parameters"], meta["batch_size_per_rank"]) == (RESNET18_PARAMETERS, 2)
        assert (meta["ddp"], meta["pipeline"], meta["dp"]) == (None, None, None)


# --- pipelines --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=with_slow([(2, "gpipe")], [((3, "1f1b"),)]), ids=lambda p: f"{p[1]}-{p[0]}")
def pipelined(request, tmp_path_factory) -> tuple[int, Path]:
    stages, schedule = request.param
    options = ["--batch-size", 6, "--microbatches", MICROBATCHES, "--pipeline-schedule", schedule]
    return stages, captured(tmp_path_factory.mktemp(f"pipeline{stages}"), "pipeline", stages, *options)


def handed_on(run: Path, stages: int) -> list[int]:
    """Bytes of one microbatch between each stage and the next: the blocks of the side files, run here."""
    found = metas(run)
    passing = torch.empty((6 // MICROBATCHES, 3, 32, 32), device="meta")
    result = []
    for rank in range(stages):
        for name in found[rank]["pipeline"]["blocks"]:
            passing = blocks()[name](passing)
        result.append(passing.numel() * passing.element_size())
    assert list(passing.shape) == [6 // MICROBATCHES, 10]
    return result[:-1]


@pytest.mark.slow
def test_a_pipeline_sends_activations_on_and_gradients_back(pipelined) -> None:
    stages, run = pipelined
    found = analyse(run)
    between = handed_on(run, stages)
    calls = by_rank_and_step(found)
    assert sorted(calls) == [(rank, step) for rank in range(stages) for step in STEPS]
    for (rank, _), rows in calls.items():
        wanted: Counter[tuple[str, int, int]] = Counter()
        for peer, size in ((rank + 1, between[rank : rank + 1]), (rank - 1, between[max(rank - 1, 0) : rank])):
            wanted.update({(kind, peer, nbytes): MICROBATCHES for kind in ("send", "recv") for nbytes in size})
        assert Counter((r["collective"], r["root"], r["size_bytes"]) for r in rows) == wanted
        assert {row["dtype"] for row in rows} == {"float32"}
    assert_all_matched(found)
    assert set(found.collectives["collective"]) == {"send_recv"}
    assert len(found.collectives) == len(STEPS) * 2 * MICROBATCHES * (stages - 1)


def test_messages_of_a_pipeline_are_paired_in_the_order_of_their_step(pipelined) -> None:
    _, run = pipelined
    found = analyse(run)
    calls = found.calls.merge(found.matches, on="call_id").sort_values("issue_ns")
    sent = calls["collective"] == "send"
    calls = calls.assign(
        source=calls["rank"].where(sent, calls["root"]), target=calls["root"].where(sent, calls["rank"])
    )
    pairs = calls.groupby(["source", "target", "step"])
    for _, rows in pairs:
        sends, receives = rows[rows["collective"] == "send"], rows[rows["collective"] == "recv"]
        assert sends["collective_id"].tolist() == receives["collective_id"].tolist()


@pytest.mark.slow
def test_a_stage_waits_for_what_it_receives_and_for_who_receives_what_it_sends(pipelined) -> None:
    _, run = pipelined
    found = analyse(run)
    of_call = found.calls[["call_id", "collective"]]
    rows = found.participation.drop(columns="collective").merge(of_call, on="call_id")  # there it is send_recv
    sends, receives = (rows[rows["collective"] == kind].set_index("collective_id") for kind in ("send", "recv"))
    # A send ends with what it sent, at the latest when its stage asks: one that ended before had waited for nobody.
    awaited = (receives["arrived_ns"].reindex(sends.index) - sends["arrived_ns"]).clip(lower=0)
    assert sends["wait_ns"].tolist() == awaited.where(awaited <= sends["dur_ns"], 0).tolist()
    late = (sends["arrived_ns"].reindex(receives.index) - receives["arrived_ns"]).clip(lower=0)
    assert receives["wait_ns"].tolist() == late.clip(upper=receives["dur_ns"]).tolist()
    assert late.max() > 0
    pairs = found.collectives.set_index("collective_id")
    assert (pairs["transfer_low_ns"] <= pairs["transfer_ns"]).all()
    assert (pairs["transfer_ns"] <= pairs["transfer_high_ns"]).all()


def test_side_files_tell_the_stages(pipelined) -> None:
    stages, run = pipelined
    found = [meta for _, meta in sorted(metas(run).items())]
    facts = [meta["pipeline"] for meta in found]
    assert [fact["stage"] for fact in facts] == list(range(stages))
    assert {fact["stages"] for fact in facts} == {stages}
    assert [name for fact in facts for name in fact["blocks"]] == list(blocks())
    assert sum(fact["parameters"] for fact in facts) == RESNET18_PARAMETERS
    assert {(fact["microbatches"], fact["batch_size"]) for fact in facts} == {(MICROBATCHES, 6)}
    assert [fact["output"]["bytes"] for fact in facts[:-1]] == handed_on(run, stages)
    assert all(one["output"] == other["input"] for one, other in pairwise(facts))
    assert facts[0]["input"]["shape"] == [2, 3, 32, 32]
    # The stages compute about equally much: none more than half again its share.
    flops = [fact["forward_flops_per_microbatch"] for fact in facts]
    assert max(flops) * stages < 1.5 * sum(flops)
    for meta in found:
        assert (meta["model"]["parameters"], meta["batch_size_per_rank"]) == (RESNET18_PARAMETERS, None)
        assert (meta["ddp"], meta["fsdp"], meta["dp"]) == (None, None, None)


@pytest.mark.slow
def test_interleaved_stages_with_a_heavy_one(tmp_path) -> None:
    options = [
        "--batch-size",
        8,
        "--microbatches",
        4,
        "--pipeline-schedule",
        "interleaved",
        "--stage-blocks",
        "1,5,2,2",
    ]
    run = captured(tmp_path, "pipeline", 2, *options)
    facts = [metas(run)[rank]["pipeline"] for rank in range(2)]
    stages = [[fact, *fact["further_stages"]] for fact in facts]
    assert [[one["stage"] for one in of_rank] for of_rank in stages] == [[0, 2], [1, 3]]
    in_order = sorted((one for of_rank in stages for one in of_rank), key=lambda one: one["stage"])
    assert [len(one["blocks"]) for one in in_order] == [1, 5, 2, 2]
    assert [name for one in in_order for name in one["blocks"]] == list(blocks())
    assert all(one["output"] == other["input"] for one, other in pairwise(in_order))
    assert {(fact["stages"], fact["schedule"]) for fact in facts} == {(4, "interleaved")}
    found = analyse(run).pipeline_stages
    assert set(found["schedule"]) == {"interleaved 1F1B"}
    assert set(found["stage"]) == {0, 1, 2, 3}
    assert found.loc[found["work_frac"].idxmin(), "stage"] == 0
