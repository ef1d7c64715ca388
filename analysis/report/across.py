"""Reports on several runs: a sweep, two configurations, trainings."""

from __future__ import annotations

from ..comparison.analysis import Comparison
from ..comparison.trend import RunTrend
from ..core.schema import plain
from ..render.plots import bars, lines, paired
from ..show.comparison import (
    differences_of_settings,
    explanation,
    headline,
    notes_once,
    sides,
    without_empty,
)
from ..show.trend import captures, changes, differs, headlines, notes_of_runs
from ..sweeps.analysis import SweepAnalysis
from ..training.analysis import TrainingAnalysis
from .page import Head, ReportPage, page
from .parts import Section, block


def sweep_page(name: str, sweep: SweepAnalysis) -> ReportPage:
    """The page on a sweep: scaling, and subtraction beside measurements."""
    scaling, subtraction, timings = sweep.scaling, sweep.subtraction, sweep.timings
    drawn = [lines.speedup_by_workers(scaling)] if scaling["speedup_fixed_work"].notna().any() else []
    sizes = timings["batch_size_per_worker"][timings["epoch_ns"].notna()]
    by_batch = [lines.epoch_time_by_batch_size(timings)] if sizes.nunique() > 1 else []
    beside = [paired.subtraction_and_measured(subtraction)] if len(subtraction) else []
    sections = [
        Section("scaling", "Scaling", "", drawn, [block("scaling", scaling, shown=True)]),
        Section("timings", "Epoch times", "", by_batch, [block("timings", timings)]),
        Section(
            "subtraction",
            "Communication by subtraction",
            "",
            beside,
            [block("subtraction", subtraction)] if len(subtraction) else [],
        ),
    ]
    return page(Head(name, "report on a sweep", sweep.verdict, []), sections)


def comparison_page(name: str, comparison: Comparison) -> ReportPage:
    """The page on two configurations: before and after."""
    kernels = comparison.changed_kernels
    operators = None if "changed_operators" in comparison.not_known else comparison.changed_operators
    differs = comparison.what_differs
    sections = [
        Section(
            "steps",
            "A step before and after",
            "",
            [bars.time_per_side(comparison.typical_steps)] if comparison.change is not None else [],
            [block("changed_causes", without_empty(differs), shown=True)] if len(differs) else [],
        ),
        Section("measures", "Every measure", "", (), [block("comparison", without_empty(comparison.comparison))]),
        *_causes(comparison),
        Section(
            "kernels",
            "Kernels",
            "",
            [paired.changed_kernels(kernels)] if len(kernels) else [],
            [block("changed_kernels", without_empty(kernels))] if len(kernels) else [],
        ),
        Section(
            "operators",
            "Operators",
            "",
            (),
            [block("changed_operators", without_empty(operators))] if operators is not None and len(operators) else [],
        ),
    ]
    facts = [
        *sides(comparison),
        *(("differs", text) for text in differences_of_settings(comparison)),
        *(("note", text) for text in notes_once(comparison)),
    ]
    head = Head(
        name,
        "A before, B after",
        "\n".join([*explanation(comparison), *comparison.decision.statements]),
        facts,
        headline(comparison),
    )
    return page(head, sections)


def _causes(comparison: Comparison) -> list[Section]:
    """What costs more or less, where both runs can be played again and anything does."""
    if not comparison.candidates:
        return []
    return [
        Section("causes", "All that costs more or less", "", (), [block("changed_causes", comparison.changed_causes)])
    ]


def trend_page(name: str, trend: RunTrend) -> ReportPage:
    """The page on a series of runs: a typical step of each, what changed from run to run, and what limits each."""
    table, sentences = trend.trend, list(changes(trend))
    facts = [
        *captures(trend),
        *(("differs", text) for text in differs(trend)),
        *(("note", text) for text in notes_of_runs(trend)),
    ]
    sections = [
        Section(
            "trend",
            "A step, from run to run",
            "",
            [bars.time_per_run(table)] if table["step_ns"].notna().any() else [],
            [block("trend", table, shown=True)],
        ),
        Section("changes", "What begins to cost more or less, and at which run", "", words=sentences),
        Section("limits", "What limits each run", "", words=list(headlines(trend))),
    ]
    return page(Head(name, "report on a series of runs", trend.verdict, facts), sections)


def training_page(name: str, training: TrainingAnalysis) -> ReportPage:
    """The page on trainings: loss and accuracy after every epoch."""
    epochs = training.training_epochs
    scored = any(value is not None for value in plain(epochs).columns["train_loss"])
    figures = [lines.loss_by_epoch(epochs), lines.accuracy_by_epoch(epochs)] if scored else []
    sections = [
        Section(
            "trainings", "After the same number of epochs", "", (), [block("training", training.training, shown=True)]
        ),
        Section("epochs", "By epoch", "", figures, [block("training_epochs", epochs)]),
    ]
    return page(Head(name, "report on trainings", training.verdict, []), sections)
