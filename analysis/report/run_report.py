"""The report on one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...common.wording import bytes_text, ranges_of
from ..catalog import CATALOG
from ..core.escaping import printable
from ..core.schema import plain, records
from ..core.tables.columns import HOW_TO_MARK
from ..errors import NothingMeasured, NotPredictable
from ..metrics.memory.categories import BLOCK_CATEGORIES
from ..metrics.pipelines.table import pieces_of_step
from ..metrics.regions.nesting import NAMES
from ..metrics.roles.grid import usual_dimensions
from ..metrics.verdicts.of_idle import IDLE_CAUSES, idle_rows
from ..render.fitting import shortened_kernel, shortened_path
from ..render.plots import areas, bars, heat, points, schedule, step
from ..render.plots.figure import Figure
from ..render.units import TimeUnit, clock_text, three_digits
from ..results.analysis import Analysis
from ..show.first_screen import first_rates, yardstick_of
from ..show.memory import growth_in_words, growth_of, headline_of_memory, main_rows
from ..tables.memory import memory_rows
from ..tables.pipeline import pipelines
from ..tables.regions import excess_of_classes
from .first import FirstView, first_view
from .layout import orders_of_ranks
from .page import Head, ReportPage, page
from .parts import Section, TableBlock, block, facts_block
from .steps import StepsData, StepsOfRun, steps_data, steps_to_ask_for

if TYPE_CHECKING:
    import pandas as pd

# Who makes the others wait comes first. Each with the table that has it.
_MAPS = (
    ("caused_wait_ns", "rank_steps"),
    ("exposed_wait_ns", "rank_steps"),
    ("exposed_comm_ns", "breakdown_steps"),
    ("late_ns", "rank_steps"),
    ("window_ns", "rank_steps"),
)

_SHOWN = ("verdicts", "late_work", "rank_steps", "kernels", "drawn_spans")
_SHOWN_OF_CPUS = (
    "memory",
    "idle",
    "idle_steps",
    "syncs_steps",
    "mfu",
    "mfu_steps",
    "shapes",
    "categories",
    "region_classes",
)
"""What the page rests on, the latter if operators and calls were read, and for which ranks are looked at."""


def run_page(analysis: Analysis, step_number: int | None = None) -> ReportPage:
    """The page on a run; `step_number` is the step to begin with, by default that which loses most.

    Raises NothingMeasured if there is no such step.
    """
    if step_number is not None and step_number not in analysis.run.steps:
        raise NothingMeasured(no_such_step(analysis, step_number))
    first = first_view(analysis)
    return _page(analysis, first, steps_data(analysis, step_number, first.ranks))


def live_page(analysis: Analysis, steps: StepsOfRun | None) -> ReportPage:
    """The page on a run for a server, which answers when the page asks for one of its `steps`."""
    first = first_view(analysis)
    return _page(analysis, first, None if steps is None else steps_to_ask_for(steps, ranks=first.ranks), live=True)


def _page(analysis: Analysis, first: FirstView, steps: StepsData | None, *, live: bool = False) -> ReportPage:
    head = _head(analysis)
    return page(head, list(_sections(analysis)), first, steps, _blocks(analysis, "remedies"), live=live)


def _head(analysis: Analysis) -> Head:
    analysis.want(*_SHOWN, *(_SHOWN_OF_CPUS if analysis.run.details else ()))
    return Head(analysis.run.name, "report", analysis.verdict, facts_block(analysis.facts))


def run_figures(analysis: Analysis) -> dict[str, Figure]:
    """Figures of a run by name, without empty ones. Raises NothingMeasured."""
    figures = [figure for section in _sections(analysis) for figure in section.figures]
    return {figure.name: figure for figure in figures}


def no_such_step(analysis: Analysis, number: int) -> str:
    """What to say of a step that is not in the run."""
    name, steps = analysis.run.name, analysis.run.steps
    if not steps:
        return f"{name}: has no steps; {HOW_TO_MARK}"
    return f"{name}: has no step {number}; its steps are {steps[0]} to {steps[-1]}"


def _sections(analysis: Analysis) -> Iterator[Section]:
    unit = TimeUnit.of(analysis.typical_step.parts["window_ns"] if len(analysis.breakdown) else 1e6)
    if len(analysis.run.ranks) > 1:
        waits, causes = _waits(analysis), _causes(analysis)
        if causes.figures:
            yield from (waits, causes)
        else:  # a table alone is no section
            yield replace(waits, tables=[*waits.tables, *causes.tables])
    yield _collectives(analysis)
    yield _bandwidth(analysis)
    yield _ranks(analysis)
    yield _time(analysis, unit)
    if analysis.run.details and len(analysis.table("pipeline")):
        yield _pipeline(analysis)
    if analysis.run.has_starts and len(analysis.table("experts")):
        yield _experts(analysis)
    if analysis.run.details and len(analysis.table("memory")):
        yield _memory(analysis)
    if analysis.run.details and analysis.run.has_starts and len(analysis.table("shapes")):
        yield _compute(analysis)
    yield _kernels(analysis)
    if analysis.run.details and analysis.run.has_starts and len(analysis.table("region_classes")):
        yield _model(analysis, unit)
    yield _path(analysis, unit)
    yield _traffic(analysis)
    clocks = _clocks(analysis) if len(analysis.run.ranks) > 1 else None
    if clocks is not None and clocks.figures:
        yield clocks
    yield Section(
        "limits",
        "What could not be measured",
        "",
        tables=[] if clocks is None or clocks.figures else clocks.tables,
        words=[*analysis.warnings, *_unread(analysis)] or ["Nothing that is known of."],
        short="Not known",
    )


def _unread(analysis: Analysis) -> Iterator[str]:
    """What the page lacks because operators and calls of the runtime were not read."""
    if not analysis.run.details and analysis.run.has_starts and not analysis.run.is_of_cpus:
        yield (
            "What CPUs did meanwhile was not asked for, or is not recorded (packed --no-details): no causes of idle "
            "time, no critical path, and no gains of changes."
        )


def _over(analysis: Analysis, name: str, how: str = "") -> str:
    """What the numbers of a table are of, as `steps 11-13, all ranks together`."""
    steps = analysis.counted_steps if CATALOG[name].in_steps else analysis.run.steps
    which = f"{'step' if len(steps) == 1 else 'steps'} {ranges_of(steps)}" if steps else "the whole window"
    return f"{which}, {how}" if how and len(analysis.run.ranks) > 1 else which


def _collectives(analysis: Analysis) -> Section:
    rows = [row for row in records(analysis.table("verdicts").iloc[1:]) if row["exposed_ns"]]
    says = ""
    if rows:
        first = rows[0]
        waiting = f", {first['exposed_wait_frac']:.0%} of it waiting" if first["exposed_wait_frac"] is not None else ""
        what = f"{first['collective'] or 'unknown calls'} of {bytes_text(first['size_bytes'])}"
        says = f"Most exposed: {what}, {first['exposed_ns'] / 1e6:,.1f} ms{waiting}."
    of_sizes = analysis.table("verdicts").iloc[1:]  # the first is about the run: it is the headline
    tables = _blocks(analysis, "hangs", shown=True)
    tables += [block("verdicts", of_sizes)] if len(of_sizes) else []
    return Section(
        "collectives",
        "Which collectives are exposed",
        says,
        [bars.exposed_collectives(of_sizes)] if rows else [],
        tables,
        short="Collectives",
        basis=_over(analysis, "verdicts", _ALL_RANKS),
    )


def _ranks(analysis: Analysis) -> Section:
    orders = orders_of_ranks(analysis.table("calls"), analysis.table("clocks"))
    figures, alike = [], []
    for measure, name in _MAPS:
        table = analysis.table(name)
        values = table[measure].fillna(0)
        if not (values != 0).any() or len(table) < 2:  # a map of zeros says nothing, nor does one cell
            continue
        if measure == "window_ns" and values.max() - values.min() < _ALIKE * values.max():
            alike.append(f"All steps take equally long on all ranks, within {_ALIKE:.0%}.")
            continue
        figures.append(heat.heatmap(table, measure, orders, analysis.culprits, table_name=name))
    figures += _places(analysis)
    return Section(
        "ranks",
        "Ranks and steps",
        " ".join(alike),
        figures,
        _blocks(analysis, "rank_steps", largest="caused_wait_ns"),
        hint="Click a cell for that step on all ranks." if figures else "",
        choose=True,
        basis="each step by itself",
    )


def _places(analysis: Analysis) -> Iterator[Figure]:
    """A map of the waiting caused over the two dimensions that matter most, where the job has two."""
    dimensions = usual_dimensions(analysis.table("places"))
    if dimensions is None or not analysis.table("ranks")["caused_wait_ns"].fillna(0).any():
        return
    grid = analysis.rank_grid("caused_wait_ns", *dimensions)
    means = [[cell.mean_ns for cell in cells] for cells in grid.cells]
    yield heat.place_map(analysis.table("ranks"), *dimensions, grid.rows, grid.columns, means)


def _time(analysis: Analysis, unit: TimeUnit) -> Section:
    table = analysis.table("breakdown")
    figures = [bars.time_per_rank(table)] if len(table) else []
    says, names = "", ["breakdown"]
    if len(table) > 1:
        idle = table.loc[table["idle_ns"].idxmax()]
        share = float(idle["idle_ns"]) / (float(idle["window_ns"]) or 1.0)
        says = f"Rank {idle['rank']} is idle longest: {unit.text(float(idle['idle_ns']))}, {share:.0%} of its time."
    if analysis.run.details and analysis.run.has_starts:
        names.append("idle")
        causes = analysis.table("idle")
        if (causes["idle_ns"] > 0).any() and causes["starved_ns"].notna().any():
            figures.append(bars.idle_per_rank(causes, list(_while_idle(analysis, causes)), unit))
    tables = [block for name in names for block in _blocks(analysis, name)]
    tables += _blocks(analysis, "breakdown_steps", largest="exposed_comm_ns")
    title = "Idle time" if len(names) > 1 else "Where the time went"
    return Section("time", title, says, figures, tables, basis=_over(analysis, "breakdown", "every rank by itself"))


def _while_idle(analysis: Analysis, idle: pd.DataFrame) -> Iterator[str]:
    """Yield what the CPU of each row did during most of the time, as `CPU in operators 20.1 ms`."""
    for row in records(idle):
        causes = {cause: float(row[cause] or 0) for cause in IDLE_CAUSES}
        yield next((name for name, _ in idle_rows(causes, runs_python=analysis.run.runs_python)), "")


def _compute(analysis: Analysis) -> Section:
    sums = analysis.table("categories")
    first = sums.iloc[0]
    speed = f" at {three_digits(first['tflop_per_s'])} TFLOP/s" if first["with_flop_frac"] >= _NEARLY_ALL else ""
    says = f"{first['share_frac']:.0%} of the time of kernels is {first['category']}{speed}."
    tables = [*_blocks(analysis, "categories"), *_blocks(analysis, "mfu")]
    tables += _blocks(analysis, "shapes", largest="total_ns")
    return Section(
        "compute",
        "How well devices compute",
        says,
        [bars.kernel_categories(sums, _NEARLY_ALL)] if len(sums) > 1 else [],
        tables,
        short="Compute",
        basis=_over(analysis, "categories", _ALL_RANKS),
    )


def _model(analysis: Analysis, unit: TimeUnit) -> Section:
    title, table = "Where in the model", analysis.table("region_classes")
    rows = plain(table).rows
    named = [row for row in rows if row["region"] not in NAMES]
    if sum((row["share_frac"] or 0) >= _LEAST_SHARE for row in named) < 2:  # one range around everything says nothing
        return Section("model", title, "")
    first, whole = named[0], "a step" if analysis.run.steps else "the window"
    the = f"the {first['instances']} " if first["instances"] > 1 else ""
    says = f"{first['share_frac']:.0%} of {whole} is in {the}{_place(first['region'], first['phase'])}."
    if rows[0]["region"] in NAMES:
        says = f"{rows[0]['share_frac']:.0%} of {whole} is {_place(rows[0]['region'], rows[0]['phase'])}. {says}"
    figures = [bars.top_regions(table, whole, unit)]
    least = _ALIKE * analysis.typical_step.parts["window_ns"]
    row = max(rows, key=lambda row: row["slowest_region_over_ns"] or 0)
    if row["slowest_region_over_ns"] and row["slowest_region_over_ns"] >= least:
        longer = f"{unit.text(float(row['slowest_region_over_ns']))} longer than the median of its class"
        says += f" {_place(row['slowest_region'], row['phase'])} takes {longer}."
    row = max(rows, key=lambda row: row["slowest_over_ns"] or 0)
    if row["slowest_over_ns"]:
        figures.append(heat.slow_regions(table, analysis.of(excess_of_classes), whole))
        if row["slowest_over_ns"] >= least:
            others = "the other rank" if row["ranks"] == 2 else "the median of the other ranks"
            longer = f"{unit.text(float(row['slowest_over_ns']))} longer than {others}"
            where = _place(row["region"], row["phase"])
            says += f" Rank {row['slowest_rank']} takes {longer} in {where}, not counting waits."
    tables, basis = (
        _blocks(analysis, "region_classes"),
        f"mean of {'steps and devices' if analysis.run.steps else 'devices'}",
    )
    return Section("model", title, says, figures, tables, short="Model", basis=basis)


def _place(region: str, phase: str | None) -> str:
    """A region in a sentence, with its phase."""
    path = _NO_REGION.get(region) or f"`{shortened_path(printable(region), 60)}`"
    return f"{path}{f' ({phase})' if phase else ''}"


def _path(analysis: Analysis, unit: TimeUnit) -> Section:
    about = (
        "The chain of work that sets the length of a step, without any waiting: work beside it makes no step "
        "longer. Its parts are no gains, since another chain may be nearly as long."
    )
    try:
        table = analysis.table("critical_path")
    except (NothingMeasured, NotPredictable):
        return Section("path", "Critical path", "")
    figures, whole = [], float(table["dur_ns"].sum())
    if table["rank"].nunique() > 1:
        figures = [bars.path_by_rank(table)]
    elif whole:
        rank, parts = table["rank"].iloc[0], bars.path_in_words(table)
        about = f"{unit.text(whole)}, all of them on rank {rank}: {parts}. {about}"
    tables = [block for name in ("critical_path", "critical_path_pieces") for block in _blocks(analysis, name)]
    return Section("path", "Critical path", about, figures, tables, basis="of a step" if analysis.run.steps else "")


def _bandwidth(analysis: Analysis) -> Section:
    table = analysis.table("bandwidth")
    ceiling = analysis.table("bandwidth_ceiling") if analysis.ceiling is not None else None
    sized = table[table["busbw_gb_per_s"].notna() & table["size_bytes"].notna()]
    rates = list(first_rates(analysis))
    link = yardstick_of(analysis, records(sized)) if len(sized) else None
    says = ""
    if rates:
        beside = f", {rates[0].beside}" if rates[0].beside else ""
        carry = (
            f" ({link.gb_per_s:,.0f} GB/s in one direction)" if link is not None and rates[0].of_yardstick_frac else ""
        )
        says = f"Most time goes into {rates[0].what}: {' '.join(rates[0].amount)}{beside}{carry}."
        if rates[0].others:
            says += f" At this size, {rates[0].others} in loops of nccl-tests."
    figures = []
    if sized["size_bytes"].nunique() > 1:
        figures = [
            points.bandwidth_by_size(table, ceiling, link, linear=True),
            points.bandwidth_by_size(table, ceiling, link),
        ]
    names = ("bandwidth", "fits") if ceiling is None else ("bandwidth_ceiling", "bandwidth", "fits")
    tables = [block for name in names for block in _blocks(analysis, name)]
    return Section(
        "bandwidth",
        "How fast the links run",
        says,
        figures,
        tables,
        short="Bandwidth",
        choose=True,
        basis="median call of each size",
    )


def step_figure(analysis: Analysis, step_number: int | None = None) -> Figure:
    """One step on every rank; by default the one with most exposed wait. Raises NothingMeasured."""
    table = analysis.table("rank_steps")
    known = sorted(set(table["step"]))
    if not known or (step_number is not None and step_number not in known):
        raise NothingMeasured(no_such_step(analysis, step_number or 0))
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
    figures = [heat.wait_matrix(table)] if len(table) > 1 else []
    names = ("ranks", "hosts", "waits")
    tables = [block for name in names for block in _blocks(analysis, name, largest=_LARGEST.get(name))]
    says = ""
    if len(table):
        by_rank = table.groupby("blamed_rank", dropna=True)["wait_frac"].sum()
        if len(by_rank) and by_rank.max() >= _WORTH_SAYING:
            says = f"{by_rank.max():.0%} of all waiting, hidden waiting included, is for rank {by_rank.idxmax()}."
    basis = _over(analysis, "waits", "every rank by itself")
    return Section("waits", "Who waits for whom", says, figures, tables, short="Waits", basis=basis)


def _pipeline(analysis: Analysis) -> Section:
    stages = analysis.table("pipeline_stages")
    says = ""
    if len(stages):
        heaviest = records(stages.sort_values("gain_ns", ascending=False).head(1))[0]
        gain = f"{heaviest['gain_ns'] / 1e6:,.1f} ms"
        says = f"Were stage {heaviest['stage']} as long as the others, a step would be {gain} shorter."
        if heaviest["gain_ns"] < _ALIKE * analysis.typical_step.parts["window_ns"]:
            says = "No stage is much heavier than the others."
    tables = [*_blocks(analysis, "pipeline_stages", largest="gain_ns"), *_blocks(analysis, "pipeline")]
    return Section(
        "pipeline",
        "Stages of the pipeline",
        says,
        _one_schedule(analysis),
        tables,
        short="Pipeline",
        basis="the picture: one step",
    )


def _one_schedule(analysis: Analysis) -> list[Figure]:
    """A picture of one step of the first pipeline, one that counts; none where no schedule is known."""
    known = [each for each in analysis.of(pipelines) if each.schedule]
    if not known:
        return []
    shown = next((each for each in known if each.step in analysis.counted_steps), known[0])
    pieces, clocks = pieces_of_step(shown), {row["rank"]: row for row in records(analysis.table("clocks"))}
    for rank, rows in pieces.groupby("rank").groups.items():
        ahead_ns = step.ahead_ns(clocks.get(rank), pieces.loc[rows, "start_ns"].to_numpy())
        for bound in ("start_ns", "end_ns"):
            pieces.loc[rows, bound] -= ahead_ns
    name = shown.schedule.name if shown.schedule else ""
    return [schedule.pipeline_step(pieces, shown.step, name, analysis.table("pipeline"))]


def _experts(analysis: Analysis) -> Section:
    layers = analysis.table("experts_layers")
    costs = layers["cost_ns"]
    says = ""
    if costs.notna().any():
        dearest = records(layers.sort_values("cost_ns", ascending=False).head(1))[0]
        hot = ""
        if dearest["hot_rank"] is not None:
            hot = f", where rank {dearest['hot_rank']} is the slowest in {dearest['hot_frac']:.0%} of the steps"
        says = f"Uneven experts cost most in layer {dearest['layer']}: {dearest['cost_ns'] / 1e6:,.1f} ms{hot}."
        if costs.sum() < _ALIKE * analysis.typical_step.parts["window_ns"]:
            says = "Experts of all ranks are about equally busy."
    tables = [*_blocks(analysis, "experts_layers", largest="cost_ns"), *_blocks(analysis, "experts")]
    return Section("experts", "Experts", says, [], tables)


def _memory(analysis: Analysis) -> Section:
    rows = main_rows(records(analysis.table("memory")))
    largest = max(rows, key=lambda row: row["peak_allocated_bytes"])
    says = headline_of_memory(rows, largest)
    growing = growth_of(analysis, rows)
    if growing:
        says += f" R{growth_in_words(growing[0], rows)[0].removeprefix('r')}."
    curves = [one for one in analysis.of(memory_rows).curves if one["points"]]
    curve = next((one for one in curves if (one["rank"], one["device"]) == (largest["rank"], largest["device"])), None)
    figures = []
    if curve is not None:
        title = f"Memory over step {curve['step']} of rank {curve['rank']}"
        figures = [areas.memory_over_a_step(curve["points"], BLOCK_CATEGORIES, title, analysis.table("memory_steps"))]
    names = ("memory", "allocations", "memory_steps")
    tables = [block for name in names for block in _blocks(analysis, name)]
    return Section("memory", "Memory", says, figures, tables, basis="the device with the highest peak")


def _traffic(analysis: Analysis) -> Section:
    table = analysis.table("traffic")
    figures = [heat.traffic_matrix(table)] if len(table) > 1 else []
    basis = _over(analysis, "traffic", "every pair of ranks by itself")
    return Section("traffic", "Traffic", "", figures, _blocks(analysis, "traffic", largest="size_bytes"), basis=basis)


def _clocks(analysis: Analysis) -> Section:
    table = analysis.table("clocks")
    says = ""
    if len(table) > 1:
        says = f"Times of two ranks can be compared to within {clock_text(table['bent_uncertainty_ns'].max())}."
    figures = [points.clock_offsets(table)] if len(table) > 1 and (table["offset_ns"] != 0).any() else []
    return Section("clocks", "Clocks", says, figures, _blocks(analysis, "clocks"), basis="each against the first")


def _causes(analysis: Analysis) -> Section:
    table = analysis.table("ranks")
    late = plain(table).columns["caused_wait_ns"] if len(table) else []
    figures = [bars.causes(table)] if sum(bool(ns) for ns in late) > 1 else []
    tables = _blocks(analysis, "lateness", largest="caused_wait_ns")
    basis = _over(analysis, "ranks", "all that waited together")
    return Section("causes", "Why ranks are late", "", figures, tables, short="Causes", basis=basis)


def _kernels(analysis: Analysis) -> Section:
    table = analysis.table("kernels")
    has_shares = bool(table["share_frac"].notna().any())  # not where nothing took any time
    figures = [bars.top_kernels(table)] if len(table) > 1 and has_shares else []
    says = ""
    if has_shares:
        first = table.iloc[0]
        says = f"{first['share_frac']:.0%} of device time is in {shortened_kernel(printable(first['name']), 60)}."
    basis = _over(analysis, "kernels", _ALL_RANKS)
    return Section("kernels", "Kernels", says, figures, _blocks(analysis, "kernels"), basis=basis)


_ALL_RANKS = "all ranks together"
_ALIKE = 0.02
"""Of the longest: steps that differ by less are called equally long."""
_WORTH_SAYING, _NEARLY_ALL = 0.1, 0.9
_NO_REGION = dict(zip(NAMES, ("outside any region", "work that was launched before the trace"), strict=True))
_LEAST_SHARE = 0.01
"""Of a step: regions that take less say little about it."""
_LARGEST = {"waits": "wait_ns", "ranks": "caused_wait_ns"}


def _blocks(analysis: Analysis, name: str, *, largest: str | None = None, shown: bool = False) -> list[TableBlock]:
    table = analysis.table(name)
    return [block(name, table, largest=largest, shown=shown)] if len(table) else []
