"""Every command of the README is one, and what it says they print is what they print.

All are parsed by the real parsers, and those that read the run in the repository called; `make test-all` runs them all.
"""

import importlib
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from analysis.cli.app import command_group
from analysis.cli.app import main as analysis_main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("    #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]
# Small enough for two CPU cores; everything else stays as the README has it.
SMALL = "--device cpu --batch-size 2 --wait 1 --warmup 1 --active 1 --steps 4"
TINY = "--workers 1 --image-size 16 --dataset-samples 16 --test-samples 16 --batch-size 2 --wait 1 --active 1 --steps 3"
LARGE = {
    "--batch-size 8,32": "--batch-size 2 --image-size 8 --steps-per-epoch 2 --active 1",
    "--epochs 5 --batch-size 32": f"--epochs 2 {TINY}",
    "--epochs 5 --warmup-epochs 1 --batch-size 512": f"--epochs 2 --warmup-epochs 1 {TINY}",
    "--memory-limit 600MB": "--memory-limit 400MB",
    "--batch-size 64": "--batch-size 8 --wait 1 --warmup 1 --active 1 --steps 4",
    "--parallel fsdp": "--parallel fsdp --batch-size 2 --wait 1 --warmup 1 --active 1 --steps 4",
    "--scale 0.25": "--scale 0.1",
    "comms all_reduce": "comms all_reduce --max-bytes 1M --iters 2 --warmup 1",
}


TRAIN_PY = """
import torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        shlex.split(command), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def matching(start: str) -> list[str]:
    return [command for command in COMMANDS if command.startswith(start)]


def test_every_command_is_run_by_a_test() -> None:
    run_below = [c for start in ("make", "torchrun", "tensorboard", "python -m ") for c in matching(start)]
    assert sorted(COMMANDS) == sorted(run_below)


@pytest.mark.parametrize("command", matching("make"))
def test_make_targets_exist(command: str) -> None:
    # Not run: this is one of them, and the other takes minutes. What they call is tested elsewhere.
    done = run(f"{command} --dry-run", ROOT)
    assert done.returncode == 0, done.stderr


def parse(parser: Any, arguments: list[str]) -> None:
    """Parse what follows a program's name, and do nothing. Raises what the parser does."""
    context = parser.make_context("commtrace", arguments)
    while hasattr(parser, "resolve_command"):
        name, parser, rest = parser.resolve_command(context, [*context._protected_args, *context.args])
        context = parser.make_context(name, rest, parent=context)


def parse_for_profiling(command: str) -> None:
    pytest.importorskip("torch")
    from profiling.cli import app

    parse(typer.main.get_command(app), shlex.split(command))


@pytest.mark.parametrize("command", matching("python -m profiling"))
def test_profiling_commands_are_parsed(command: str) -> None:
    parse_for_profiling(command.partition(" -m profiling ")[2])


@pytest.mark.parametrize("command", [c for c in matching("torchrun") if " -m profiling " in c])
def test_commands_for_torchrun_are_parsed(command: str) -> None:
    pytest.importorskip("torch")
    launcher, _, ours = command.partition(" -m profiling ")
    get_args_parser = importlib.import_module("torch.distributed.run").get_args_parser
    assert get_args_parser().parse_args([*shlex.split(launcher)[1:], "script"]).training_script == "script"
    parse_for_profiling(ours)


def test_what_is_no_command_is_seen() -> None:
    for wrong in ("trian", "train --no-such-option", "train --workers many", "train extra"):
        with pytest.raises(Exception, match=r"(?i)no such|not a valid|unexpected"):
            parse_for_profiling(wrong)


@pytest.mark.parametrize("command", matching("python -m analysis"))
def test_analysis_commands_are_called_or_parsed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("traces").mkdir()
    Path("traces/resnet18-ddp-w2").symlink_to(ROOT / "traces/resnet18-ddp-w2")
    arguments = shlex.split(command)[3:]
    others = [word for word in arguments if word.startswith("traces/") and not Path(word).exists()]
    for word in others:
        Path(word).mkdir()
    if others:
        parse(command_group(arguments[0], "commtrace", {}), arguments)
    else:
        assert analysis_main(arguments) == 0
        output = re.search(r"--output (\S+)", command)
        assert Path(output[1]).stat().st_size if output else capsys.readouterr().out


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose traces are the run in the repository, and what the README's own commands wrote."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("readme")
    (folder / "traces").mkdir()
    (folder / "traces/resnet18-ddp-w2").symlink_to(ROOT / "traces/resnet18-ddp-w2")
    (folder / "train.py").write_text(TRAIN_PY)
    for command in matching("python -m profiling"):
        for full, small in LARGE.items():
            command = command.replace(full, small)
        done = run(f"{command} --device cpu", folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_profiling_commands(captured: Path) -> None:
    written = {path.name for path in (captured / "traces").iterdir()}
    assert {"ceiling", "my-sweep"} < written
    assert len(written) == 1 + len(matching("python -m profiling"))


@pytest.mark.slow
@pytest.mark.parametrize("command", matching("python -m analysis"))
def test_analysis_commands(command: str, captured: Path) -> None:
    done = run(command, captured)
    assert done.returncode == 0, done.stderr
    output = re.search(r"--output (\S+)", command)
    assert (captured / output[1]).stat().st_size if output else done.stdout


def test_summary_is_the_one_shown() -> None:
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    assert run("python -m analysis traces/resnet18-ddp-w2", ROOT).stdout == shown[1]


@pytest.mark.slow
def test_torchrun_captures_four_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = next(c for c in matching("torchrun") if "--nnodes" not in c)
    done = run(f"{command.replace('--batch-size 128', '')} {SMALL} --run-name four", tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "traces/four").glob("*.pt.trace.json.gz"))) == 4


@pytest.mark.slow
def test_torchrun_captures_two_nodes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = next(c for c in matching("torchrun") if "--nnodes" in c)
    command = command.replace("--nproc-per-node 8", "--nproc-per-node 1").replace(
        "node0:29500", f"127.0.0.1:{free_port()}"
    )
    script = (
        f"{command} {SMALL} --run-name nodes & {command} {SMALL} --run-name nodes; first=$?; wait $! && exit $first"
    )
    done = run(f"bash -c {shlex.quote(script)}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "traces/nodes").glob("*.pt.trace.json.gz"))) == 2


def test_python_examples(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces/resnet18-ddp-w2").symlink_to(ROOT / "traces/resnet18-ddp-w2")
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 2
    code = "import torch\nloader, train_step = range(12), lambda batch: torch.ones(8).sum()\n" + "\n".join(examples)
    (tmp_path / "example.py").write_text(code)
    done = run("python example.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "process_group" in done.stdout
    assert list((tmp_path / "traces/mine").glob("*.pt.trace.json.gz"))
