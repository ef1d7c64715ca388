"""Every table of the catalog is whole: schema, columns shown, command, explanation, attribute."""

from __future__ import annotations

import re
import runpy
import shlex
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

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
)
from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.comparison.batches import BatchFits
from commtrace.analysis.core import tables
from commtrace.analysis.core.declaring import InputKind, TableEntry
from commtrace.analysis.core.schema import Schema
from commtrace.analysis.errors import UnknownTable
from commtrace.analysis.snapshots.analysis import SnapshotAnalysis
from commtrace.command_line import parser_for
from commtrace.registry import COMMANDS

GENERATOR = runpy.run_path(str(Path(__file__).resolve().parents[1] / "docs" / "table_page.py"))
HOLDERS: dict[InputKind, type] = {
    InputKind.run: Analysis,
    InputKind.traces: Run,
    InputKind.cycles: CycleAnalysis,
    InputKind.sweep: SweepAnalysis,
    InputKind.trainings: TrainingAnalysis,
    InputKind.sides: Comparison,
    InputKind.series: RunTrend,
    InputKind.dumps: Hang,
    InputKind.snapshots: SnapshotAnalysis,
    InputKind.batches: BatchFits,
    InputKind.machine: MachineAnalysis,
}
# What readers and metrics hand to each other. Nobody is shown these.
WITHIN = {
    "annotations", "captured_calls", "ceiling", "clock_probes", "comm_args", "counter_samples", "cpu_operators",
    "functions", "launching_calls", "matches", "measured", "members", "memory_events", "modules", "operator_calls",
    "pending",
    "process_groups", "runtime_calls", "step_marks", "step_times", "stream_waits", "summary", "traces",
}  # fmt: skip
OF_LAB = {"all_reduce"}  # of its page, which no command prints
EVERY = pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG)


@EVERY
def test_the_columns_shown_are_in_the_schema(entry: TableEntry) -> None:
    assert set(entry.shown) <= set(entry.schema.columns)
    assert len(set(entry.shown)) == len(entry.shown)
    assert set(entry.narrow) <= set(entry.shown or entry.schema.columns)
    assert entry.worst is None or entry.worst.column in entry.schema.columns


@EVERY
def test_people_learn_that_a_row_is_partial(entry: TableEntry) -> None:
    assert not entry.shown or ("partial" in entry.schema.columns) == ("partial" in entry.shown)


@EVERY
def test_its_command_takes_the_options_it_names(entry: TableEntry) -> None:
    if entry.command is None:
        return
    words = shlex.split(entry.command)
    command: Any = parser_for(words)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    inputs = ["A"] if entry.of in (InputKind.cycles, InputKind.machine) else ["A", "B"]
    command.make_context(entry.verb, [*words, *inputs])  # raises where an option or its value is unknown


@EVERY
def test_a_command_of_its_own_says_the_same_of_it(entry: TableEntry) -> None:
    if entry.command in COMMANDS and entry.command not in ("hang", "watch"):
        assert COMMANDS[entry.command].about == entry.about


@EVERY
def test_a_section_of_the_docs_explains_it(entry: TableEntry) -> None:
    assert entry.section in GENERATOR["headings"]()


@EVERY
def test_an_attribute_holds_it(entry: TableEntry) -> None:
    holder = HOLDERS[entry.of]
    assert entry.name in {*dir(holder), *getattr(holder, "__dataclass_fields__", ())}


@EVERY
def test_what_it_is_about_is_a_line(entry: TableEntry) -> None:
    assert re.fullmatch(r"[A-Z][^\n]{10,130}\.", entry.about)


def test_every_schema_is_in_it_or_stays_within() -> None:
    names = [one.name for one in iter_modules(tables.__path__, f"{tables.__name__}.")]
    declared = {
        table.name for name in names for table in vars(import_module(name)).values() if isinstance(table, Schema)
    }
    assert declared - set(CATALOG) == WITHIN | OF_LAB


def test_a_table_by_its_name() -> None:
    analysis = SimpleNamespace(calls="the calls")
    assert Analysis.table(analysis, "calls") == "the calls"
    for name in ("call", "run", "scaling", "activities"):
        with pytest.raises(UnknownTable, match="those are breakdown, breakdown_steps, steps, serving"):
            Analysis.table(analysis, name)
