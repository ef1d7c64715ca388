import re

import pytest

from commtrace.cli import main
from commtrace.common.version import version
from commtrace.profiling.modes import MODES
from commtrace.profiling.train import task as training
from commtrace.profiling.train.config import TrainConfig
from commtrace.profiling.workloads.data import DATA
from commtrace.profiling.workloads.models import MODELS


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def configs(monkeypatch) -> list[tuple[TrainConfig, int | None]]:
    """What the command line would run."""
    seen: list[tuple[TrainConfig, int | None]] = []

    def run(config, workers, args) -> int:
        seen.append((config, workers))
        return 0

    monkeypatch.setattr(training, "run_training", run)
    return seen


def error_line(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


def test_version_is_that_of_the_analysis(capsys) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"commtrace {version()}\n"


def test_help_has_examples(capsys) -> None:
    assert main(["train", "--help"]) == 0
    assert "torchrun --nproc-per-node 4 -m commtrace train" in capsys.readouterr().out


def test_defaults_are_the_reports(configs) -> None:
    assert main(["train"]) == 0
    config, workers = configs[0]
    assert workers is None
    assert (config.optimizer.lr, config.optimizer.momentum, config.optimizer.weight_decay) == (0.02, 0.9, 5e-4)
    assert (config.model, config.data, config.parallel) == ("resnet18", "synthetic", "ddp")
    assert config.steps > config.schedule.total_steps


def test_vgg_has_a_learning_rate_of_its_own(configs) -> None:
    main(["train", "--model", "vgg16"])
    main(["train", "--model", "vgg16", "--optimizer-lr", "0"])
    assert [config.optimizer.lr for config, _ in configs] == [0.01, 0.0]


def test_every_choice_has_an_implementation() -> None:
    for name, found in (("model", MODELS), ("data", DATA), ("parallel", MODES)):
        choices = set(re.findall(r"'([\w-]+)'", str(TrainConfig.__annotations__[name])))
        assert choices == set(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--wait", "0", "--warmup", "1"], "because DDP's first iteration uses buckets that it rebuilds"),
        (["--steps", "3"], "--steps 3: the schedule needs 6 steps"),
        (["--active", "0"], "active must be at least 1"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
        (["--data", "cifar10", "--image-size", "64"], "CIFAR-10 images are 32 pixels wide"),
        (["--data", "cifar10", "--dataset-samples", "64"], "--dataset-samples 64: is for --data synthetic"),
        (["--dataset-samples", "0"], "--dataset-samples must be at least 1"),
        (
            ["--timed-epochs", "1", "--wait", "0", "--warmup", "2"],
            "--wait 0: need at least 1, because the profiler would",
        ),
        (["--memory-limit", "4G"], "--memory-limit 4G: expected a size such as 4GiB"),
        (["--run-name", "a/b"], "expected one folder name"),
        (["--parallel", "single", "--workers", "2"], "--parallel single is one process"),
    ],
)
def test_contradictions_are_usage_errors(options, message, capsys) -> None:
    assert main(["train", *options]) == 2
    assert message in error_line(capsys)


def test_single_needs_no_leading_steps(configs) -> None:
    assert main(["train", "--parallel", "single", "--wait", "0", "--warmup", "0"]) == 0


@pytest.mark.quick_cases("options1-3-out of memory with --batch-size 8: ")
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--dataset-samples", "7"], 4, "7 images are fewer than one batch of 8; use a smaller"),
        (["--memory-limit", "1KB"], 3, "out of memory with --batch-size 8: "),
    ],
)
def test_what_is_exhausted_has_an_exit_code_of_its_own(options, code, message, tmp_path) -> None:
    from capturing import python

    command = ["train", "--parallel", "single", "--device", "cpu", "--batch-size", "8", "--out", tmp_path, *options]
    done = python("-m", "commtrace", *command)
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {message}")
    assert "Traceback" not in done.stderr


def test_unknown_option_is_a_usage_error(capsys) -> None:
    assert main(["train", "--nope"]) == 2


@pytest.mark.slow
def test_missing_cifar10_says_how_to_get_it(tmp_path, capsys) -> None:
    assert main(["train", "--data", "cifar10", "--data-root", str(tmp_path), "--device", "cpu"]) == 1
    line = error_line(capsys)
    assert line.startswith(f"error: {tmp_path}/cifar-10-batches-py: CIFAR-10 is not there; get https://")
    assert "cifar-10-python.tar.gz" in line


def test_existing_run_directory_is_refused_before_ranks_start(tmp_path, capsys) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text("{}")
    assert main(["train", "--device", "cpu", "--out", str(tmp_path), "--run-name", "old"]) == 1
    assert f"{tmp_path}/old: expected a new or empty run directory" in error_line(capsys)
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["run.json"]


def test_cuda_without_a_gpu_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["train", "--device", "cuda", "--workers", "1"]) == 1
    assert "finds no GPU here; use --device cpu" in error_line(capsys)


def test_workers_under_torchrun_have_to_agree(monkeypatch, capsys) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "--workers", "3"]) == 2
    assert "torchrun started 2 ranks" in error_line(capsys)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert main(["train", "--workers", "3"]) == 2
    assert capsys.readouterr().err == "", "one rank of a node says it for all"


@pytest.mark.slow
def test_single_run_from_the_command_line(tmp_path, capsys) -> None:
    from capturing import leftovers, metas, trace, traced_steps

    options = ["--parallel", "single", "--device", "cpu", "--batch-size", "2", "--with-stack", "--profile-memory"]
    schedule = ["--wait", "0", "--warmup", "1", "--active", "1", "--repeat", "2"]
    assert main(["train", *options, *schedule, "--out", str(tmp_path), "--run-name", "mine"]) == 0
    run_dir = tmp_path / "mine"
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == str(run_dir)
    assert f"commtrace {run_dir}" in out
    assert f"tensorboard --logdir {tmp_path}" in out
    assert f"traces go to {run_dir}" in err
    meta = metas(run_dir)[0]
    assert (meta["complete"], meta["world_size"], meta["process_groups"], meta["ddp"]) == (True, 1, [], None)
    contents = [trace(run_dir / name) for name in meta["traces"]]
    assert [traced_steps(content) for content in contents] == [[1], [3]]
    assert all(content["with_stack"] == content["profile_memory"] == 1 for content in contents)
    assert all("distributedInfo" not in content for content in contents)
    assert leftovers(run_dir) == []
