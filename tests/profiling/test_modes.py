"""The parallel modes: what they train is the same model, and what they cannot do they say before ranks start."""

from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
import torch
from capturing import SCRIPTS, metas, python, torchrun, trace
from samples import with_slow
from torch import nn

from commtrace.cli import main
from commtrace.profiling.base.schedule import Schedule
from commtrace.profiling.errors import UsageError
from commtrace.profiling.modes import FACTS, MODES
from commtrace.profiling.modes.pipeline import check_stages, microbatches_of
from commtrace.profiling.ranks import task as ranks
from commtrace.profiling.train import task as training
from commtrace.profiling.train.config import TrainConfig
from commtrace.profiling.workloads.models import BLOCKS, MODELS

PIPELINE = ["--parallel", "pipeline", "--device", "cpu"]
INTERLEAVED = [*PIPELINE, "--pipeline-schedule", "interleaved"]
SHORT = Schedule(1, 1, 1)


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def error_line(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


# --- the same training ------------------------------------------------------------------------------------------------


@cache
def differences(*modes: str) -> dict[str, list[float]]:
    """By how much weights, losses and statistics of each mode differ from those of one process, rank by rank."""
    done = torchrun(2, SCRIPTS / "modes_agree.py", *modes)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = defaultdict(list)
    for name, rank, value in sorted(line.split() for line in done.stdout.splitlines()):
        assert int(rank) == len(found[name])
        found[name].append(float(value))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "ddp-loss", "fsdp", "fsdp-loss"])
def test_ranks_with_the_same_batch_train_as_one_process_does(name) -> None:
    found = differences("ddp", "fsdp")
    assert len(found[name]) == 2
    assert max(found[name]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("schedule", with_slow(["gpipe"], ["1f1b", "interleaved"]))
def test_a_pipeline_trains_as_one_process_with_microbatches_does(schedule) -> None:
    found = differences(schedule)
    assert len(found[schedule]) == 2
    assert max(found[schedule]) < 2e-3
    # Running statistics would show a pass over memory that nobody has written.
    assert max(found[f"{schedule}-statistics"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("schedule", with_slow(["gpipe"], ["1f1b", "interleaved"]))
def test_only_the_last_stage_knows_the_loss(schedule) -> None:
    assert differences(schedule)[f"{schedule}-losses"] == [0, 2]


# --- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "blocks"), [("resnet18", 10), ("vgg16", 8), ("vgg16-swapped", 8)])
def test_blocks_one_after_the_other_are_the_model(name, blocks) -> None:
    with torch.device("meta"):
        model = MODELS[name]()
    found = BLOCKS[name](model)
    assert len(found) == blocks
    owned = [id(parameter) for block in found.values() for parameter in block.parameters()]
    assert sorted(owned) == sorted(id(parameter) for parameter in model.parameters())


@pytest.mark.slow
def test_blocks_compute_what_the_model_computes() -> None:
    torch.manual_seed(0)
    model = MODELS["resnet18"]().eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(nn.Sequential(*BLOCKS["resnet18"](model).values())(images), model(images))


@pytest.mark.slow
def test_no_block_of_the_swapped_vgg_begins_in_place() -> None:
    # What a stage of a pipeline receives is a leaf, which autograd does not let a ReLU overwrite.
    with torch.device("meta"):
        blocks = BLOCKS["vgg16-swapped"](MODELS["vgg16-swapped"]())
    first = [next(one for one in block.modules() if not list(one.children())) for block in blocks.values()]
    assert not any(isinstance(one, nn.ReLU) for one in first)
    assert list(blocks) == list(BLOCKS["vgg16"](MODELS["vgg16"]()))


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--microbatches", "2"], "--microbatches 2: only a pipeline has them"),
        (["--stage-blocks", "5,5"], "--stage-blocks 5,5: only a pipeline has them"),
        ([*PIPELINE, "--stage-blocks", "5,x"], "--stage-blocks 5,x: expected how many blocks each stage has"),
        ([*PIPELINE, "--stage-blocks", "0,10"], "expected how many blocks each stage has"),
        ([*PIPELINE, "--stage-blocks", "9" * 5000], "expected how many blocks each stage has"),
        ([*PIPELINE, "--stage-blocks", "4,5"], "expected 2 numbers, one of each stage, with a sum of 10"),
        ([*PIPELINE, "--stage-blocks", "4,4,2"], "found 3 with a sum of 10"),
        ([*PIPELINE, "--stages-per-rank", "2"], "several are for --pipeline-schedule interleaved"),
        ([*INTERLEAVED, "--stages-per-rank", "1"], "that needs 2 or more"),
        ([*INTERLEAVED, "--workers", "1"], "needs 2 ranks or more"),
        ([*INTERLEAVED, "--workers", "2", "--stages-per-rank", "6"], "there are 2 ranks with 6 stages each"),
        ([*INTERLEAVED, "--workers", "2", "--batch-size", "9"], "in a multiple of 2, found 3"),
        ([*INTERLEAVED, "--workers", "2", "--stage-blocks", "5,5"], "expected 4 numbers"),
        (["--parallel", "pipeline", "--microbatches", "5"], "expected a number that divides --batch-size 32"),
        (["--parallel", "pipeline", "--microbatches", "0"], "expected a number that divides --batch-size 32"),
        (["--parallel", "fsdp", "--wait", "0", "--warmup", "0"], "FSDP sets up its groups of parameters"),
        (["--parallel", "pipeline", "--wait", "0", "--warmup", "0"], "the stages agree on the shapes"),
        (["--parallel", "dp", "--device", "cpu"], "nn.DataParallel is for GPUs; use --parallel ddp"),
        ([*PIPELINE, "--workers", "11", "--batch-size", "11"], "consists of 10 blocks"),
        ([*PIPELINE, "--workers", "3", "--batch-size", "7"], "3 stages need at least 3 microbatches"),
        ([*PIPELINE, "--workers", "3", "--microbatches", "2"], "found 2; use a multiple of 3"),
    ],
)  # fmt: skip
def test_contradictions_are_usage_errors(options, message, capsys) -> None:
    assert main(["train", *options]) == 2
    assert message in error_line(capsys)


@pytest.mark.parametrize(
    ("batch_size", "stages", "microbatches"),
    [(32, 2, 4), (32, 3, 4), (12, 3, 6), (32, 1, 2), (1, 1, 1), (9, 4, 9 // 3)],
)
def test_microbatches_divide_the_batch_and_are_two_per_stage_at_most(batch_size, stages, microbatches) -> None:
    config = TrainConfig(SHORT, 3, parallel="pipeline", pipeline_schedule="gpipe", batch_size=batch_size)
    assert microbatches_of(config, stages) == microbatches


def test_stages_are_checked_without_building_the_model_in_memory() -> None:
    check_stages(TrainConfig(SHORT, 3, model="vgg16", parallel="pipeline", batch_size=16), 8)
    with pytest.raises(UsageError, match="vgg16 consists of 8 blocks, so it can be cut into 8 stages at most, but"):
        check_stages(TrainConfig(SHORT, 3, model="vgg16", parallel="pipeline", batch_size=18), 9)


def test_data_parallel_without_a_gpu_says_what_to_use_instead(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["train", "--parallel", "dp", "--out", str(tmp_path)]) == 1
    line = error_line(capsys)
    assert line.startswith("error: --parallel dp: nn.DataParallel spreads each batch over the GPUs of one process")
    assert "finds no GPU here; use --parallel ddp" in line
    assert list(tmp_path.iterdir()) == []


def test_data_parallel_needs_the_gpus_it_was_told(monkeypatch, capsys) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert main(["train", "--parallel", "dp", "--workers", "4"]) == 1
    assert "--parallel dp --workers 4: needs that many GPUs, found 2" in error_line(capsys)


@pytest.mark.parametrize("mode", ["dp", "single"])
def test_one_process_launched_as_several_is_said_once(mode, monkeypatch, capsys) -> None:
    for rank in ("0", "1"):
        for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2")):
            monkeypatch.setenv(name, value)
        assert main(["train", "--parallel", mode]) == 2
        if rank == "0":
            assert f"--parallel {mode} is one process, but was launched as one of 2" in error_line(capsys)
        else:
            assert capsys.readouterr().err == ""
    MODES["fsdp"].check_world(2)


def test_workers_of_data_parallel_are_the_gpus_it_drives(monkeypatch) -> None:
    seen: list[TrainConfig] = []
    monkeypatch.setattr(ranks, "_check", lambda *args, **options: None)
    monkeypatch.setattr(training, "_trained", lambda config, command: seen.append(config) or Path("run"))
    for options in ([], ["--workers", "3"]):
        assert main(["train", "--parallel", "dp", *options]) == 0
    assert [config.devices for config in seen] == [None, 3]


def test_models_of_other_modes_have_no_facts() -> None:
    assert [facts(nn.Linear(2, 2)) for facts in FACTS.values()] == [None] * 4


# --- GPUs -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(
    torch.cuda.device_count() < 2,
    reason="needs 2 GPUs: would run nn.DataParallel in one process, and check one trace with kernels on every device, "
    "NCCL's broadcasts among them, and the devices in the side file",
)
def test_data_parallel_capture(tmp_path) -> None:
    done = python("-m", "commtrace", "train", "--parallel", "dp", "--out", tmp_path, "--run-name", "run")
    assert done.returncode == 0, done.stderr
    (meta,) = metas(tmp_path / "run").values()
    count = torch.cuda.device_count()
    assert [device["index"] for device in meta["dp"]["devices"]] == list(range(count))
    assert meta["batch_size_per_rank"] == 32 * count
    kernels = [e for e in trace(tmp_path / "run" / meta["traces"][0])["traceEvents"] if e.get("cat") == "kernel"]
    assert {kernel["args"]["device"] for kernel in kernels} == set(range(count))
    assert any("nccl" in kernel["name"].lower() for kernel in kernels)


@pytest.mark.gpu
@pytest.mark.skipif(
    torch.cuda.device_count() < 2,
    reason="needs 2 GPUs: would capture fsdp and pipeline with NCCL, and check that their kernels are all_gather and "
    "reduce_scatter, and SendRecv, on every rank",
)
@pytest.mark.parametrize(("mode", "kinds"), [("fsdp", {"AllGather", "ReduceScatter"}), ("pipeline", {"SendRecv"})])
def test_nccl_capture(tmp_path, mode, kinds) -> None:
    done = python(
        "-m", "commtrace", "train", "--parallel", mode, "--workers", 2, "--out", tmp_path, "--run-name", "run"
    )
    assert done.returncode == 0, done.stderr
    for meta in metas(tmp_path / "run").values():
        events = trace(tmp_path / "run" / meta["traces"][0])["traceEvents"]
        names = [e["name"] for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl")]
        assert all(any(kind in name for name in names) for kind in kinds)
