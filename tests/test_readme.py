"""Every command of the README and of the guides is one, and what the README says they print is what they print.

All are parsed by the real parsers, and those that read the run in the repository called. `make test-all` runs those
that capture what others here read, smaller, and then these.
"""

import importlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from samples import a_sample

from commtrace.cli import main as analysis_main
from commtrace.command_line import parser_for
from commtrace.registry import COMMANDS as REGISTRY

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
del GUIDES["why-direct.md"]  # its commands follow each other: tests/docs/test_why_direct.py


def commands_of(*pages: str) -> list[str]:
    blocks = [block for page in pages for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)]
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return sorted({line for line in lines if line})


QUESTIONS = re.findall(r"^\|[^|]*\| `(commtrace .*?)`", README, re.MULTILINE)
COMMANDS = sorted({*commands_of(README, *GUIDES.values()), *QUESTIONS})
MAKE = [c for c in COMMANDS if c.startswith("make ")]
LAUNCHED = [c for c in COMMANDS if c.startswith("torchrun ")]
CAPTURE = [
    c
    for c in COMMANDS
    if c.startswith("commtrace ") and (row := REGISTRY.get(c.split()[1])) is not None and row.captures
]
SERVE = [c for c in COMMANDS if c.startswith(("commtrace serve ", "commtrace mcp "))]
MEASURE = [c for c in COMMANDS if c.startswith("commtrace ") and c not in [*CAPTURE, *SERVE]]
OF_OTHERS = ("nsys ", "srun ")
ELSEWHERE = [*SERVE, "pip install .", "tensorboard --logdir traces", *(c for c in COMMANDS if c.startswith(OF_OTHERS))]
"""`make environments` installs, tests/test_tensorboard.py looks; others are NVIDIA's."""
NOT_HERE = (
    "dumps/",
    "/tmp/nccl_trace_rank_*",
    "nccl-inspector-1234",
    "report.sqlite",
    "://",
    "/monday",
    "/night-*",
    "/lab",
    "/my-layers",
    "/my-capacity",
    "/my-swap",
    "/my-gpu-run",
    "epoch-time.svg traces/my-sweep",  # the sweep of these tests has one batch size
    "commtrace trigger ",
    "--trigger-above",
    "--prometheus",
    "/mine-step1200",
    "my-logs/",
    "my-rocprof/",
)
"""Inputs that are not in the repository, and jobs that do not run: such commands are only parsed."""

# Small enough for two CPU cores; everything else stays as the pages have it.
SHORT = "--image-size 32 --wait 1 --warmup 1 --active 1 --steps 4"
SMALL = f"--device cpu --batch-size 2 {SHORT}"
TINY = "--workers 1 --image-size 16 --dataset-samples 16 --test-samples 16 --batch-size 2 --wait 1 --active 1 --steps 3"
SMALLER = {
    r"train$": f"train {SMALL}",
    r"--epochs 5 --batch-size 32": f"--epochs 2 {TINY}",
    r"--epochs 5 --warmup-epochs 1 --batch-size 512": f"--epochs 2 --warmup-epochs 1 {TINY}",
    r"--batch-size 8,32": "--batch-size 2 --image-size 8 --steps-per-epoch 2 --active 1",
    r"--batch-size 64": f"--batch-size 8 {SHORT}",
    r"--batch-size 128": f"--batch-size 2 {SHORT}",
    r"--parallel fsdp": f"--parallel fsdp --batch-size 2 {SHORT}",
    r"comms$": "comms all_gather --max-bytes 64K --iters 2 --warmup 1",
    r"--run-name ceiling": "all_reduce --max-bytes 64K --iters 2 --warmup 1 --run-name ceiling",
    r"--min-bytes 4M --max-bytes 1G": "--min-bytes 16K --max-bytes 64K --iters 2 --warmup 1",
    r"--size 8192": "--size 64 --copy 1MiB --iters 2",
    r"--nproc-per-node \d": "--standalone --nproc-per-node 2",
}

TRAIN_PY = """
import torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


def smaller(command: str) -> str:
    for full, small in SMALLER.items():
        command = re.sub(full, small, command)
    return command if " run " in command else f"{command} --device cpu"


def _words(command: str, cwd: Path) -> list[str]:
    """As a shell hands them on, with the files that a pattern names."""
    return [
        name for word in shlex.split(command) for name in (sorted(map(str, cwd.glob(word))) if "*" in word else [word])
    ]


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = _words(command, cwd)
    words = [sys.executable, "-m", *words] if words[0] == "commtrace" else words
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


EXAMPLES = {
    "slow-loader-w2": "slow-loader-w2",
    **dict.fromkeys(("resnet18-ddp-w2", "mine", "my-run", "before-1", "after-1"), "resnet18-ddp-w2"),
}
"""Folders in which the pages have the runs of the repository, by names of runs of one's own as well."""


def give_example(folder: Path) -> None:
    (folder / "traces").mkdir()
    for name, run in EXAMPLES.items():
        shutil.copytree(ROOT / "traces" / run, folder / "traces" / name)
    shutil.copytree(ROOT / "examples/reports", folder / "examples/reports")


def test_every_command_is_tested_below() -> None:
    assert sorted(COMMANDS) == sorted([*MAKE, *LAUNCHED, *CAPTURE, *MEASURE, *ELSEWHERE])


def test_the_questions_of_the_readme_are_among_the_commands() -> None:
    assert len(QUESTIONS) == 5  # as many as its heading says
    assert {*QUESTIONS} <= {*MEASURE}


def test_the_readme_is_short() -> None:
    assert len(README.partition("\n## Read on\n")[0].splitlines()) <= 115


@pytest.mark.parametrize("command", MAKE)
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


def parse_capture(arguments: str) -> None:
    pytest.importorskip("torch")
    words = shlex.split(arguments)
    parse(parser_for(words), words)


@pytest.mark.parametrize("command", CAPTURE)
def test_commands_that_capture_are_parsed(command: str) -> None:
    parse_capture(command.removeprefix("commtrace "))


@pytest.mark.parametrize("command", LAUNCHED)
def test_commands_for_torchrun_are_parsed(command: str) -> None:
    pytest.importorskip("torch")
    launcher, _, ours = command.partition(" -m commtrace ")
    get_args_parser = importlib.import_module("torch.distributed.run").get_args_parser
    assert get_args_parser().parse_args([*shlex.split(launcher)[1:], "script"]).training_script == "script"
    parse_capture(ours)


def test_a_wrong_command_is_seen() -> None:
    for wrong in ("trian", "train --no-such-option", "train --workers many", "train extra"):
        with pytest.raises(Exception, match=r"(?i)no such|not a valid|unexpected"):
            parse_capture(wrong)


@pytest.mark.slow_cases(
    "commtrace report --figure bandwidth.svg traces/resnet18-ddp-w2",
    "commtrace report --step 4 --output step-4.html traces/resnet18-ddp-w2",
    "commtrace report traces/mine",
    "commtrace report traces/resnet18-ddp-w2 --figure list",
    "commtrace report traces/resnet18-ddp-w2 --figure time.svg --figure bandwidth.svg",
    "commtrace table verdicts traces/resnet18-ddp-w2",
    "commtrace timeline --bundle --output my-run.tar traces/my-run",
    "commtrace timeline traces/my-run",
    "commtrace traces/slow-loader-w2",
)
@pytest.mark.parametrize("command", a_sample(MEASURE, 12))
def test_commands_that_measure_are_called_or_parsed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _check_libraries(command)
    monkeypatch.chdir(tmp_path)
    give_example(tmp_path)
    arguments = shlex.split(command)[1:]
    others = [word for word in arguments if word.startswith("traces/") and not Path(word).exists()]
    for word in others:
        Path(word).mkdir()
    if others or not _is_here(command):
        arguments = arguments if arguments[0] in REGISTRY else ["summary", *arguments]
        parse(parser_for(arguments), arguments)
    else:
        assert analysis_main(arguments) in _codes(command)
        output = re.search(r"--(?:output|figure) (\S+\.\w+)", command)
        assert Path(output[1]).stat().st_size if output else capsys.readouterr().out


def _check_libraries(command: str) -> None:
    if command.startswith("commtrace export parquet "):
        pytest.importorskip("pyarrow", reason="pyarrow is an extra")


def _codes(command: str) -> tuple[int, ...]:
    """How a command may end: a gate says 4 of captures that could not have shown what it is to stop."""
    return (0, 4) if "--fail-above" in command else (0,)


def _is_here(command: str) -> bool:
    return not any(name in command for name in NOT_HERE)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run of the repository, and what the commands that capture wrote."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("readme")
    give_example(folder)
    (folder / "my_package").mkdir()
    for script in ("train.py", "inference.py", "my_package/train.py"):
        (folder / script).write_text(TRAIN_PY)
    one_machine = [c for c in [*CAPTURE, *LAUNCHED] if "--nnodes" not in c and (c in README or "--run-name" in c)]
    for command in one_machine:
        done = run(smaller(command), folder)
        assert done.returncode == 0, f"{smaller(command)}\n{done.stderr}"
    return folder


@pytest.mark.slow
def test_commands_that_capture_write_runs(captured: Path) -> None:
    written = {path.name for path in (captured / "traces").iterdir() if path.is_dir()}
    assert {"ceiling", "my-sweep", "small", "large"} < written


def _is_of_captures(command: str) -> bool:
    """Whether it reads a folder that only the commands that capture write: the test above calls the others."""
    folders = re.findall(r"traces/([\w*-]+)", command)
    return _is_here(command) and not {*folders} <= {*EXAMPLES, "gpu-run"}


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in MEASURE if _is_of_captures(c)])
def test_commands_that_measure_what_others_captured(
    command: str, captured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _check_libraries(command)
    monkeypatch.chdir(captured)
    assert analysis_main(_words(command, captured)[1:]) in _codes(command)
    output = re.search(r"--(?:output|plot|figure) (\S+\.\w+)", command)
    assert Path(output[1]).stat().st_size if output else capsys.readouterr().out


@pytest.mark.slow
def test_summary_begins_as_shown() -> None:
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    assert run("commtrace traces/slow-loader-w2", ROOT).stdout.startswith(shown[1])


@pytest.mark.slow
def test_torchrun_captures_two_nodes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = next(c for c in LAUNCHED if "--nnodes" in c)
    command = command.replace("--nproc-per-node 8", "--nproc-per-node 1").replace(
        "node0:29500", f"127.0.0.1:{free_port()}"
    )
    script = (
        f"{command} {SMALL} --run-name nodes & {command} {SMALL} --run-name nodes; first=$?; wait $! && exit $first"
    )
    done = run(f"bash -c {shlex.quote(script)}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "traces/nodes").glob("*.pt.trace.json.gz"))) == 2


@pytest.mark.slow
def test_python_examples(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    give_example(tmp_path)
    shutil.rmtree(tmp_path / "traces/mine")
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 2
    code = "import torch\nloader, train_step = range(12), lambda batch: torch.ones(8).sum()\n" + "\n".join(examples)
    (tmp_path / "example.py").write_text(code)
    done = run(f"{sys.executable} example.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "process_group" in done.stdout
    assert list((tmp_path / "traces/mine").glob("*.pt.trace.json.gz"))
