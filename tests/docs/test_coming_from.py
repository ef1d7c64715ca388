"""The commands on the pages for users of TraceLens and TensorBoard do what they say on a small run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
RUN, OTHER = "tests/data/nccl-straggler", "tests/data/nccl-periodic"
WITH_SHAPES = "traces/resnet18-ddp-w2"
PAGES = ("coming-from-tracelens", "coming-from-tensorboard")
COMMANDS = sorted({
    command
    for page in PAGES
    for command in re.findall(r"`commtrace ([^`]*traces/[^`]*)`", (ROOT / "docs" / f"{page}.md").read_text("utf-8"))
})  # fmt: skip


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 15


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = WITH_SHAPES if "--by shape" in command else RUN
    words = [
        word.replace("traces/my-run", run).replace("traces/before", RUN).replace("traces/after", OTHER)
        for word in shlex.split(command)
    ]
    monkeypatch.chdir(ROOT)
    writes = words[0] in ("report", "timeline")
    assert main([*words, *(["--output", str(tmp_path / "written")] if writes else [])]) == 0
