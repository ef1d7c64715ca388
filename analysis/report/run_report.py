"""The report on one run."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.schema import plain
from ..errors import NothingMeasured, NotPredictable
from ..render.plots import bars, heat, points, step
from ..render.plots.figure import Figure
from ..results.analysis import Analysis
from .layout import orders_of_ranks
from .page import Head, ReportPage, page
from .parts import Section, TableBlock, block, facts_block

# Who makes the others wait comes first. Each with the table that has it.
_MAPS = (
    ("caused_wait_ns", "rank_steps"),
    ("exposed_wait_ns", "rank_steps"),
    ("exposed_comm_ns", "breakdown_steps"),
    ("late_ns", "rank_steps"),
    ("window_ns", "rank_steps"),
)


def run_page(analysis: Analysis, step_number: int | None = None) -> ReportPage:
    """The page on a run; `step_number` is the step to draw, by default that with most exposed wait.

    Raises NothingMeasured if there is no such step.
    """
    head = Head(analysis.run.name, "report", analysis.verdict, facts_block(analysis.facts))
    return page(head, list(_sections(analysis, step_number)))


def run_figures(analysis: Analysis, step_number: int | None = None) -> dict[str, Figure]:
    """Figures of a run by name, without empty ones. Raises NothingMeasured."""
    figures = [figure for section in _sections(analysis, step_number) for figure in section.figures]
    return {figure.name: figure for figure in figures}


def _sections(analysis: Analysis, step_number: int | None) -> Iterator[Section]:
    yield _what_to_try(analysis)
    yield _verdicts(analysis)
    yield _heat(analysis)
    yield _time(analysis)
    yield _path(analysis)
    yield _bandwidth(analysis)
    yield _step(analysis, step_number)
    yield _waits(analysis)
    yield _traffic(analysis)
    yield _clocks(analysis)
    yield _causes(analysis)
    yield _kernels(analysis)
    yield Section(
        "limits",
        "What could not be measured",
        "",
        words=analysis.warnings or ["Nothing that is known of."],
    )


def _what_to_try(analysis: Analysis) -> Section:
    """Changes with the largest possible gain of each."""
    return Section(
        "try",
        "What to try",
        "What a step would gain, as played again, and how much of it a change is about. They overlap: never add them.",
        tables=_blocks(analysis, "remedies", shown=True),
    )


def _verdicts(analysis: Analysis) -> Section:
    return Section(
        "verdicts",
        "What limits it",
        "The run first, then every process group, collective and size, the longest exposed time first.",
        tables=[*_blocks(analysis, "hangs", shown=True), *_blocks(analysis, "verdicts", shown=True)],
    )


def _heat(analysis: Analysis) -> Section:
    orders = orders_of_ranks(analysis.table("calls"), analysis.table("clocks"))
    figures = [
        heat.heatmap(analysis.table(name), measure, orders, analysis.culprits, table_name=name)
        for measure, name in _MAPS
        if (analysis.table(name)[measure].fillna(0) != 0).any()  # a map of zeros says nothing
    ]
    return Section(
        "steps",
        "Ranks and steps",
        "",
        figures,
        _blocks(analysis, "rank_steps", largest="caused_wait_ns"),
        choose=True,
    )


def _time(analysis: Analysis) -> Section:
    table = analysis.table("breakdown")
    figures = [bars.time_per_rank(table)] if len(table) else []
    tables = [*_blocks(analysis, "breakdown"), *_blocks(analysis, "breakdown_steps", largest="exposed_comm_ns")]
    return Section("time", "Where the time went", "", figures, tables)


def _path(analysis: Analysis) -> Section:
    about = (
        "The chain of work that sets the length of the run; it never waits. Other work made nothing longer. "
        'Where it is long is not what a step would gain: see "What to try".'
    )
    try:
        table = analysis.table("critical_path")
    except (NothingMeasured, NotPredictable):
        return Section("path", "Critical path", "")
    figures = [bars.critical_path(table)] if len(table) else []
    tables = [block for name in ("critical_path", "critical_path_pieces") for block in _blocks(analysis, name)]
    return Section("path", "Critical path", about, figures, tables)


def _bandwidth(analysis: Analysis) -> Section:
    table, fits = analysis.table("bandwidth"), analysis.table("fits")
    ceiling = analysis.table("bandwidth_ceiling") if analysis.ceiling is not None else None
    measured = len(table) and table["busbw_gb_per_s"].notna().any()
    figures = [points.bandwidth_by_size(table, fits, ceiling)] if measured else []
    names = ("bandwidth", "fits") if ceiling is None else ("bandwidth_ceiling", "bandwidth", "fits")
    return Section(
        "bandwidth", "Bandwidth", "", figures, [block for name in names for block in _blocks(analysis, name)]
    )


def _step(analysis: Analysis, step_number: int | None) -> Section:
    if not len(analysis.table("rank_steps")) and step_number is None:
        return Section("step", "One step on every rank", "")
    figure = step_figure(analysis, step_number)
    why = "The step with the most exposed waiting. " if step_number is None else ""
    about = f"{why}`commtrace report --step N` draws another one, `commtrace timeline` all of them."
    tables = [block("participation", figure.table, largest="dur_ns")] if len(figure.table) else []
    return Section("step", "One step on every rank", about, [figure], tables)


def step_figure(analysis: Analysis, step_number: int | None = None) -> Figure:
    """One step on every rank; by default the one with most exposed wait. Raises NothingMeasured."""
    table = analysis.table("rank_steps")
    known = sorted(set(table["step"]))
    if not known:
        raise NothingMeasured(f"{analysis.run.name}: has no steps; call profiler.step() in the loop")
    if step_number is not None and step_number not in known:
        raise NothingMeasured(
            f"{analysis.run.name}: has no step {step_number}; its steps are {known[0]} to {known[-1]}"
        )
    waited = table.groupby("step")["exposed_wait_ns"].sum()
    number = int(waited.idxmax()) if step_number is None else step_number
    tables = step.StepTables(
        activities=analysis.run.activities,
        calls=analysis.calls,
        collectives=analysis.collectives,
        participation=analysis.participation,
        clocks=analysis.clocks,
    )
    return step.one_step(tables, number)


def _waits(analysis: Analysis) -> Section:
    table = analysis.table("waits")
    figures = [heat.wait_matrix(table)] if len(table) else []
    names = ("ranks", "hosts", "waits")
    tables = [block for name in names for block in _blocks(analysis, name, largest=_LARGEST.get(name))]
    return Section("waits", "Who waits for whom", "", figures, tables)


def _traffic(analysis: Analysis) -> Section:
    table = analysis.table("traffic")
    figures = [heat.traffic_matrix(table)] if len(table) else []
    return Section("traffic", "Traffic", "", figures, _blocks(analysis, "traffic", largest="size_bytes"))


def _clocks(analysis: Analysis) -> Section:
    table = analysis.table("clocks")
    figures = [points.clock_offsets(table)] if len(table) > 1 else []
    return Section("clocks", "Clocks", "", figures, _blocks(analysis, "clocks"))


def _causes(analysis: Analysis) -> Section:
    table = analysis.table("ranks")
    late = plain(table).columns["caused_wait_ns"] if len(table) else []
    figures = [bars.causes(table)] if any(late) else []
    return Section("causes", "Causes", "", figures, _blocks(analysis, "lateness", largest="caused_wait_ns"))


def _kernels(analysis: Analysis) -> Section:
    table = analysis.table("kernels")
    figures = [bars.top_kernels(table)] if len(table) else []
    return Section("kernels", "Kernels", "", figures, _blocks(analysis, "kernels"))


_LARGEST = {"waits": "wait_ns", "ranks": "caused_wait_ns"}


def _blocks(analysis: Analysis, name: str, *, largest: str | None = None, shown: bool = False) -> list[TableBlock]:
    table = analysis.table(name)
    return [block(name, table, largest=largest, shown=shown)] if len(table) else []
