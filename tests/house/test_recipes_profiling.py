"""The recipes for a parallel mode and for a collective in CONTRIBUTING.md, followed in a copy of the packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from source import ROOT

MOST_FILES = 4
MODE = '''"""`halved`: one process, which trains a model of half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .mode import LeadingSteps, ModeOptions, ParallelMode

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def _build(model: nn.Module, where: torch.device, options: ModeOptions) -> nn.Module:
    return model.to(where).bfloat16()


def _learn(model: nn.Module, batch: Any, criterion: nn.Module, where: torch.device, autocast: Any) -> Tensor | None:
    images, labels = batch
    loss = criterion(model(images.to(where).bfloat16()).float(), labels.to(where))
    loss.backward()
    return loss.detach()


def _facts(model: nn.Module) -> dict[str, int] | None:
    import torch

    halved = [one for one in model.parameters() if one.dtype == torch.bfloat16]
    return {"parameters": len(halved)} if halved else None


HALVED = ParallelMode(
    "halved",
    "one process, in half precision",
    _build,
    distributed=False,
    batch_help="of half precision",
    leading_steps=LeadingSteps(1, "the first one picks algorithms"),
    learn=_learn,
    facts=_facts,
)
'''
FIELD = """    halved: Annotated[Mapping[str, int] | None, People("of a model in half precision", may_lack=True)] = None
"""
COLLECTIVE = '''def _send_back(case: Case, held: Buffers) -> Callable[[], object]:
    """To the previous rank, from the next one."""
    following, previous = (case.rank + 1) % case.ranks, (case.rank - 1) % case.ranks

    def call() -> None:
        both = [dist.P2POp(dist.isend, held.given, previous), dist.P2POp(dist.irecv, held.got, following)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return call


def _input_of_next(case: Case, got: Tensor, repetition: int) -> int:
    return patterns.count_wrong(got, case.input(repetition, (case.rank + 1) % case.ranks))


'''
TINY = ("--device", "cpu", "--batch-size", "2", "--warmup", "0", "--wait", "1", "--active", "1", "--steps", "2")


class Copy:
    """A copy of the packages in which a recipe was followed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("profiling", "analysis", "docs"):
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))

    def insert(self, file: str, text: str, *, before: str) -> None:
        """Put it in front of what occurs once."""
        content = (self.root / file).read_text(encoding="utf-8")
        assert content.count(before) == 1, f"{file}: {before!r}"
        (self.root / file).write_text(content.replace(before, text + before), encoding="utf-8")

    def changed(self) -> set[str]:
        """Files that are new, or not as they were."""
        return {
            str(path.relative_to(self.root))
            for folder in ("profiling", "analysis", "docs")
            for path in (self.root / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
            if not (old := ROOT / path.relative_to(self.root)).is_file() or old.read_bytes() != path.read_bytes()
        }

    def python(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """What a Python process says in the copy; it has to end well."""
        command = [sys.executable, *map(str, arguments)]
        wide = os.environ | {"COLUMNS": "300"}
        done = subprocess.run(command, cwd=self.root, env=wide, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done


def steps(title: str) -> list[str]:
    """The files that a recipe names, a step each."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = page.partition(f"### {title}\n")[2].partition("\n#")[0]
    return re.findall(r"^\d\. `([\w/.]+)`", recipe, re.MULTILINE)


def check_steps(title: str, changed: set[str]) -> None:
    """What was changed is what the recipe names, and not much."""
    named = steps(title)
    assert 0 < len(changed) == len(named) <= MOST_FILES
    for file in changed:
        assert any(file == step or (step.endswith("/") and file.startswith(step)) for step in named), file


def content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def mode(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """With another parallel mode."""
    copy = Copy(tmp_path_factory.mktemp("mode"))
    (copy.root / "profiling/modes/halved.py").write_text(MODE, encoding="utf-8")
    file = "profiling/modes/__init__.py"
    copy.insert(file, "from .halved import HALVED\n", before="from .mode import")
    copy.insert(file, ", HALVED", before=")}\nDEFAULT_MODE")
    file = "analysis/core/contract/modes.py"
    copy.insert(file, ', "halved"', before=']\n"""How a model')
    copy.insert(file, '    "halved": ModeFacts(),\n', before='    "pipeline": ModeFacts')
    copy.insert("profiling/base/contract/rank.py", FIELD, before="    dataset_samples: ")
    check_steps("A parallel mode", copy.changed())
    return copy


def test_help_lists_the_mode_without_torch(mode: Copy) -> None:
    code = "import sys; sys.modules['torch'] = None; import profiling.modes; print(*profiling.modes.MODES)"
    assert mode.python("-c", code).stdout.split()[-1] == "halved"
    shown = " ".join(mode.python("-m", "profiling", "train", "--help").stdout.replace("│", " ").split())
    assert "halved: one process, in half precision" in shown
    assert "halved: of half precision" in shown
    assert "halved" in mode.python("-m", "profiling", "sweep", "--help").stdout


@pytest.mark.slow
def test_the_mode_trains_and_its_run_is_read(mode: Copy) -> None:
    options = ("--parallel", "halved", "--out", "runs", "--run-name", "mine", *TINY)
    said = mode.python("-m", "profiling", "train", *options).stderr
    assert "resnet18, halved on 1 x cpu" in said
    (side,) = (mode.root / "runs/mine").glob("*.meta.json")
    assert content(side)["halved"]["parameters"] > 0
    assert content(side)["complete"]
    assert content(mode.root / "runs/mine/run.json")["config"]["parallel"] == "halved"
    mode.python("-m", "analysis", "runs/mine")
    header, *rows = "model,parallel,workers,batch_size_per_rank,epoch_s", "m,halved,1,8,100", "m,halved,2,8,50"
    (mode.root / "timings.csv").write_text("\n".join((header, *rows)), encoding="utf-8")
    assert "halved" in mode.python("-m", "analysis", "scaling", "timings.csv").stdout


def test_what_the_mode_needs_is_checked(mode: Copy) -> None:
    command = [sys.executable, "-m", "profiling", "train", "--parallel", "halved", "--wait", "0", "--warmup", "0"]
    done = subprocess.run(command, cwd=mode.root, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "because the first one picks algorithms" in done.stderr


@pytest.fixture(scope="module")
def collective(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """With another collective."""
    copy = Copy(tmp_path_factory.mktemp("collective"))
    copy.insert("profiling/comms/config.py", '    "send_back",\n', before="]\nDtypeName")
    file = "profiling/comms/collectives.py"
    copy.insert(file, COLLECTIVE, before="COLLECTIVES: Mapping")
    line = '    "send_back": Collective(_send_back, _input_of_next, _whole, _whole, least_ranks=2),\n'
    copy.insert(file, line, before='    "send_recv": Collective(')
    copy.insert(
        "profiling/comms/bus.py", '    if collective == "send_back":\n        return 0.5\n', before="    return (ranks"
    )
    copy.insert(
        "docs/comms.md", "`send_back` is the ring the other way round.\n\n", before="**In place or not** follows torch"
    )
    check_steps("A collective benchmark", copy.changed())
    return copy


def test_help_lists_the_collective(collective: Copy) -> None:
    assert "send_back" in collective.python("-m", "profiling", "comms", "--help").stdout


@pytest.mark.slow
def test_the_collective_is_measured_and_checked(collective: Copy) -> None:
    options = ("-b", "1K", "-e", "1K", "-w", "1", "-n", "2", "--device", "cpu", "--workers", "2")
    collective.python("-m", "profiling", "comms", "send_back", *options, "--out", "runs", "--run-name", "mine")
    (row,) = content(collective.root / "runs/mine/comms.json")["results"]
    measured = row["out_of_place"]
    assert (row["collective"], row["size"], measured["nwrong"]) == ("send_back", 1024, 0)
    assert measured["bus_bw"] == pytest.approx(measured["alg_bw"] / 2)
