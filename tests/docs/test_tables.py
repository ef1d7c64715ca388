"""docs/tables.md is what the schemas say, and every table in it can be had as it says."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from commtrace import (
    Analysis,
    Comparison,
    CycleAnalysis,
    Hang,
    MachineAnalysis,
    Run,
    RunTrend,
    SweepAnalysis,
    TrainingAnalysis,
    cli,
)
from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.comparison.batches import BatchFits
from commtrace.analysis.core.schema import Schema
from commtrace.analysis.snapshots.analysis import SNAPSHOT_TABLES

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = runpy.run_path(str(Path(__file__).with_name("table_page.py")))
PAGE = GENERATOR["PAGE"].read_text(encoding="utf-8")
CEILING = """{"results": [{"experiment_name": "all_reduce_perf", "size": 8, "in_place": {"time": 1.5}}],
              "config": {"devices": [{}, {}]}}"""


def test_the_page_is_what_the_schemas_say() -> None:
    expected = GENERATOR["page"]()
    assert expected == PAGE, "docs/tables.md is out of date: run python tests/docs/table_page.py"


def test_the_index_of_definitions_is_what_the_catalog_says() -> None:
    index = GENERATOR["INDEX"].read_text(encoding="utf-8")
    assert GENERATOR["index"]() == index, "docs/metrics/README.md is out of date: run python tests/docs/table_page.py"


def test_editors_know_the_tables_that_are_declared() -> None:
    known = GENERATOR["ATTRIBUTES"].read_text(encoding="utf-8")
    assert GENERATOR["attributes"]() == known, "run python tests/docs/table_page.py"


@pytest.mark.parametrize("table", [entry.schema for entry in CATALOG.values()], ids=lambda table: table.name)
def test_a_table_can_be_had_in_python(table: Schema) -> None:
    if f"commtrace.analyse_sweep(SWEEP).{table.name}" in PAGE:
        assert hasattr(SweepAnalysis, table.name)
        return
    if f"commtrace.analyse_training(RUNS).{table.name}`" in PAGE:
        assert hasattr(TrainingAnalysis, table.name)
        return
    if f"`commtrace.analyse_machine(MEASURED).{table.name}`" in PAGE:
        assert hasattr(MachineAnalysis, table.name)
        return
    if f"`commtrace.compare(A, B).{table.name}`" in PAGE:
        assert hasattr(Comparison, table.name)
        return
    if f"`commtrace.run_trend(A, B, C).{table.name}`" in PAGE:
        assert hasattr(RunTrend, table.name)
        return
    if f"`commtrace.analyse_cycles(DIR).{table.name}`" in PAGE:
        assert hasattr(CycleAnalysis, table.name)
        return
    if f"`commtrace.analyse_snapshots(SNAPSHOTS).{table.name}`" in PAGE:
        assert table.name in SNAPSHOT_TABLES
        return
    if f"`commtrace.fit_batches(A, B, batches=(32, 64)).{table.name}`" in PAGE:
        assert table.name in BatchFits.__dataclass_fields__
        return
    if f"`commtrace.find_hang(DUMPS).{table.name}`" in PAGE:
        assert hasattr(Hang, table.name)
        return
    in_run = f"`commtrace.analyse(RUN).run.{table.name}`" in PAGE
    holds = {*Run.__dataclass_fields__, *vars(Run)} if in_run else set(vars(Analysis))
    assert table.name in holds


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`commtrace ([a-z].*?) RUN`", PAGE))))
def test_a_command_of_the_page_exists(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 2 would be an unknown command or option; 1 says that there is nothing in the folder.
    ceiling = tmp_path / "ceiling.json"
    ceiling.write_text(CEILING, encoding="utf-8")
    run = tmp_path / "run"
    run.mkdir()
    assert cli.main([*shlex.split(command.replace("FILE", str(ceiling))), str(run)]) == 1
    said = "holds no dump" if command == "hang" else "holds no Kineto trace"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`commtrace ([a-z].*?) A B`", PAGE))))
def test_a_command_on_two_sides_exists(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*shlex.split(command), str(tmp_path), str(tmp_path)]) == 1
    assert "holds no Kineto trace" in capsys.readouterr().err


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`commtrace ([a-z].*?) SWEEP`", PAGE))))
def test_a_command_across_runs_exists(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*shlex.split(command), str(tmp_path)]) == 1
    assert "expected a sweep" in capsys.readouterr().err


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`commtrace ([a-z].*?) RUNS`", PAGE))))
def test_a_command_of_trainings_exists(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*shlex.split(command), str(tmp_path)]) == 1
    assert "holds no training" in capsys.readouterr().err


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`commtrace ([a-z].*?) DUMPS...`", PAGE))))
def test_a_command_on_dumps_exists(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*shlex.split(command), str(tmp_path)]) == 1
    assert "holds no dump" in capsys.readouterr().err


def test_every_heading_is_a_table_in_the_list() -> None:
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == re.findall(r"^- \[(\w+)\]\(#", PAGE, re.MULTILINE)
