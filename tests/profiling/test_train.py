"""The run directory of `commtrace train`, from real captures with gloo."""

import json
import re
import signal
import subprocess
import sys

import pytest
import torch
from capturing import ROOT, environment, leftovers, metas, python, trace, traced_steps
from contract_files import rewritten
from process_tree import family, listening

from commtrace.contract.rank import RankFile
from commtrace.contract.run import RunFile

STEP_KEYS = {"step", "phase", "start_unix_ns", "dur_ns"}


def test_files_are_those_of_the_layout(gloo_run) -> None:
    workers = sorted(meta["worker"] for meta in metas(gloo_run).values())
    expected = {"run.json"}
    for worker in workers:
        expected |= {f"{worker}.meta.json", f"{worker}.0000.pt.trace.json.gz"}
    assert {path.name for path in gloo_run.iterdir()} == expected


def test_run_file(gloo_run) -> None:
    run = json.loads((gloo_run / "run.json").read_text())
    assert (run["schema_version"], run["run"], run["world_size"], run["backend"]) == (1, "gloo", 2, "gloo")
    assert run["model"] == {"name": "resnet18", "parameters": 11_173_962, "bytes": 44_695_848, "buffer_bytes": 38_560}
    assert run["command"][:2] == ["commtrace", "train"]
    assert run["config"]["batch_size"] == 4
    assert run["config"]["optimizer"] == {"lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4, "name": "sgd"}
    assert run["versions"]["torch"] == torch.__version__
    assert run["created_utc"].endswith("+00:00")


def test_the_loss_falls(gloo_run) -> None:
    losses = re.findall(r"loss ([\d.]+)", gloo_run.with_name("said.txt").read_text(encoding="utf-8"))
    assert float(losses[-1]) < 0.9 * float(losses[0])


def test_side_files(gloo_run) -> None:
    found = metas(gloo_run)
    assert sorted(found) == [0, 1]
    for rank, meta in found.items():
        assert (meta["schema_version"], meta["local_rank"], meta["world_size"]) == (1, rank, 2)
        assert meta["worker"].endswith(f"_{rank}")
        assert (meta["complete"], meta["reason"]) == (True, None)
        assert meta["device"]["type"] == "cpu"
        assert (meta["links"], meta["links_reason"]) == (None, "not a CUDA device")
        assert [(group["desc"], group["ranks"]) for group in meta["process_groups"]] == [("default_pg", [0, 1])]
        assert meta["schedule"] == {"wait": 1, "warmup": 1, "active": 2, "repeat": 1}
        assert meta["batch_size_per_rank"] == 4
    assert found[0]["pid"] != found[1]["pid"]


def test_its_json_is_what_the_contract_says(gloo_run) -> None:
    for path in gloo_run.glob("*.json"):
        kind = RunFile if path.name == "run.json" else RankFile
        assert rewritten(path, kind) == path.read_text(encoding="utf-8")


def test_every_step_has_a_time(gloo_run) -> None:
    for meta in metas(gloo_run).values():
        steps = meta["steps"]
        assert [step["step"] for step in steps] == list(range(7))
        assert [step["phase"] for step in steps] == ["idle", "warmup", "active", "active", "idle", "idle", "idle"]
        # What a step did is counted while it is traced.
        assert all(step.keys() == STEP_KEYS | ({"work"} if step["phase"] == "active" else set()) for step in steps)
        assert all(step["dur_ns"] > 0 for step in steps)
        starts = [step["start_unix_ns"] for step in steps]
        assert starts == sorted(starts)


def test_ddp_reports_two_buckets_of_the_whole_gradient(gloo_run) -> None:
    for meta in metas(gloo_run).values():
        assert meta["ddp"]["rebuilt_bucket_sizes"] == [28_872_744, 15_823_104]


def test_traces_are_of_their_rank_and_of_the_active_steps(gloo_run) -> None:
    for rank, meta in metas(gloo_run).items():
        content = trace(gloo_run / meta["traces"][0])
        assert content["distributedInfo"]["rank"] == rank
        assert content["distributedInfo"]["world_size"] == 2
        assert traced_steps(content) == [2, 3]
        gloo = [event["name"] for event in content["traceEvents"] if str(event.get("name")).startswith("gloo:")]
        assert sorted(gloo) == ["gloo:all_reduce"] * 4 + ["gloo:broadcast"] * 4


def start(out, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "commtrace", "train", "--workers", "2", "--device", "cpu", "--batch-size", "2"]
    return subprocess.Popen(
        [*command, *options, "--out", str(out), "--run-name", "run"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_traced_step(process: "subprocess.Popen[str]") -> None:
    for line in process.stderr:
        if line.startswith("step ") and line.rstrip().endswith("traced"):
            return
    pytest.fail("the run ended before a step was traced")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "signum", "code"),
    [("ddp", signal.SIGINT, 130), ("fsdp", signal.SIGTERM, 143)],
)
def test_stopped_launcher_leaves_partial_traces_of_every_rank(tmp_path, mode, signum, code) -> None:
    schedule = ["--wait", "1", "--warmup", "1", "--active", "500", "--steps", "502"]
    with start(tmp_path, "--parallel", mode, *schedule) as process:
        wait_for_traced_step(process)
        assert listening(family(process.pid)) == {"127.0.0.1"}
        process.send_signal(signum)
        out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert out == ""
    assert "Traceback" not in err
    found = metas(tmp_path / "run")
    assert sorted(found) == [0, 1]
    for meta in found.values():
        assert meta["complete"] is False
        assert meta["reason"].startswith((signum.name, "another rank ended first"))
        assert 2 in traced_steps(trace(tmp_path / "run" / meta["traces"][0]))
    assert leftovers(tmp_path / "run") == []


@pytest.mark.slow
def test_stopped_in_a_timed_epoch(tmp_path) -> None:
    with start(tmp_path, "--warmup-epochs", "1", "--timed-epochs", "1", "--steps-per-epoch", "2000") as process:
        while not process.stderr.readline().startswith("traces go to"):
            pass
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    for meta in metas(tmp_path / "run").values():
        assert meta["complete"] is False
        assert meta["reason"].startswith(("SIGTERM after 0 of", "another rank ended first"))
        assert "epochs" not in meta
    assert leftovers(tmp_path / "run") == []


@pytest.mark.slow
def test_ddp_of_one(tmp_path) -> None:
    options = ["--workers", "1", "--device", "cpu", "--batch-size", "2", "--wait", "1", "--active", "1"]
    done = python("-m", "commtrace", "train", *options, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / done.stdout.splitlines()[0].rpartition("/")[2]
    assert run_dir.name.startswith("resnet18-ddp-w1-")
    assert metas(run_dir)[0]["process_groups"][0]["ranks"] == [0]


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a GPU: would capture with NCCL, and check its kernels, GPU facts, links and device step times",
)
def test_cuda_capture(tmp_path) -> None:
    done = python("-m", "commtrace", "train", "--batch-size", "8", "--out", tmp_path, "--run-name", "run")
    assert done.returncode == 0, done.stderr
    found = metas(tmp_path / "run")
    assert len(found) == torch.cuda.device_count()
    assert len({meta["device"]["uuid"] for meta in found.values()}) == len(found)
    for meta in found.values():
        assert (meta["step_clock"], meta["ddp"]["backend_name"]) == ("cuda_event", "nccl")
        assert len(meta["steps"]) == 10
        content = trace(tmp_path / "run" / meta["traces"][0])
        kernels = [event for event in content["traceEvents"] if event.get("cat") == "kernel"]
        assert kernels
        if len(found) > 1:
            assert any(event["name"].startswith("nccl") for event in kernels)
