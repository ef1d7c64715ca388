"""docs/reports.md: every command of the page runs, and prints the table that stands below it.

What a reader would capture first is made here, small: a sweep, two trainings, layers, capacity and a run of two GPUs.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import MS, Collective, traces_of
from machine_builders import VGG, write_capacity, write_layers, write_swap
from sweep_builders import Cell, write_sweep
from training_builders import Trained, write_training

from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reports.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]
SHOWN = dict(re.findall(r"^```sh\n([^\n]+)(?:\n[^\n]+)*?\n```\n\n```text\n(.*?)^```$", PAGE, re.M | re.S))
PUBLISHED = [command for command in COMMANDS if "examples/reports/" in command and "--figure" not in command]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader of the page has it."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples/reports", folder / "examples/reports")
    traces = folder / "traces"

    def run() -> Iterator[object]:
        truth = [Collective((k * 50 * MS, k * 50 * MS + 7_001), 10 * MS, elems=250_000 * 8**k) for k in range(3)]
        for trace in traces_of(2, truth):
            yield trace.step(4, 0, 150 * MS).kernel("gemm", 5 * MS, 9 * MS)

    for name in ("resnet18-ddp-w2", "my-gpu-run"):
        for trace in run():
            trace.write(traces / name)
    cells = [Cell(workers, batch, 9.0 / workers + 0.4 * (workers > 1)) for batch in (32, 128) for workers in (1, 2)]
    write_sweep(traces / "my-sweep", cells)
    write_training(traces / "small", Trained())
    write_training(traces / "large", Trained(batch=512))
    write_capacity(traces / "my-capacity")
    write_layers(traces / "my-layers", VGG)
    write_swap(traces / "my-swap", 0.957, 0.602, 2.043)
    return folder


def test_every_report_has_commands_and_every_published_table_is_shown() -> None:
    headings = " ".join(re.findall(r"^## .*\((reports? .*)\)$", PAGE, re.MULTILINE))
    assert {*re.findall(r"\b[A-Z]\b", headings)} == {*"ABCDE"}
    assert {*PUBLISHED} == {*SHOWN}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_is_shown(
    command: str, reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(reader)
    assert main(shlex.split(command)[1:]) == 0, command
    out = capsys.readouterr().out
    pictures = re.findall(r"--figure (\S+)", command)
    assert out or pictures
    for picture in pictures:
        assert Path(picture).read_text().startswith("<svg")
    if command in SHOWN:
        assert [line.rstrip() for line in out.splitlines()] == SHOWN[command].splitlines()
