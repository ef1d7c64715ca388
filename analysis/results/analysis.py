"""A run -> all its tables: the one place where readers and metrics meet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import pandas as pd

from ...common.wording import counted, ranges_of
from ..catalog import CATALOG
from ..ceilings.files import Ceiling
from ..core.declaring import AT_RANK, EACH_RANK, PLAYED, VALUES, InputKind, TableEntry, Value, is_later
from ..core.escaping import printable
from ..core.given_peaks import GivenPeaks
from ..core.schema import records
from ..errors import AnalysisError, UnknownTable
from ..metrics.compute.contention import Hiding
from ..metrics.compute.peaks import peak_of, said
from ..metrics.damaged import resting_on
from ..metrics.device.link_bytes import link_counters
from ..metrics.periods import Period
from ..metrics.prices import Prices
from ..metrics.roles.grid import Grid, grid_over
from ..metrics.typical_step import TypicalStep
from ..run.event_tables import EVENT_SCHEMAS, EventTables
from ..run.run import Run
from ..tables.account import StepPart, typical_parts
from ..tables.bandwidth_times import bandwidth_over_time
from ..tables.breakdown import seen_devices
from ..tables.calls import found_calls
from ..tables.collectives import matches
from ..tables.contention import hiding
from ..tables.experts import expert_passes
from ..tables.idle import causes_of_idle
from ..tables.memory import nearly_full
from ..tables.participation import members
from ..tables.predictions import PREDICTIONS
from ..tables.ranks import culprits, typical_waiting
from ..tables.regions import times_of_regions
from ..tables.remedies import known_gains, priced
from ..tables.replay import links, replayed
from ..tables.steps import counted_steps, typical_step
from ..tables.values import replayed_graphs
from .of_files import Early
from .part import Again, cut_files, played_steps
from .table_attributes import TableAttributes
from .visits import Visits, declared

if TYPE_CHECKING:
    from ..replay.links import Links
    from ..replay.scenarios.scenario import Scenario
    from ..report.page import ReportPage
    from ..tables.ranks import Waiting


_LOG = logging.getLogger("commtrace.analysis")
"""What is being computed, and how far it is: for the log, and for a terminal."""


_SHOWN = (
    "summary", "report", "timeline", "verdict", "verdicts", "warnings", "facts", "remedies", "predict",
    "steps", "breakdown", "account", "ranks", "lateness", "collectives", "participation", "bandwidth",
    "idle", "kernels", "operators", "regions", "table", "run",
)  # fmt: skip
"""What `dir` of an analysis shows: what a person in a notebook looks for, as its docstring explains it."""


@dataclass(frozen=True, repr=False)
class Analysis(TableAttributes):
    """The tables of one run, each computed when first asked for.

    Begin here:

    - `summary()`: the first screen as text; `report()`: a page with pictures; `timeline()`: a file for Perfetto
    - `verdict`: what limits the run, as text; `verdicts`: so of every collective; `warnings`, `facts`: what to know
    - `remedies`: what a step would gain, by change; `predict(...)`: what a step would take under changes of yours

    Tables (pandas DataFrames) that most questions need:

    - `steps`, `breakdown`, `account`: where the time goes, by step and by device, and all of it part by part
    - `ranks`, `lateness`: who makes the others wait, and what it did longer meanwhile
    - `collectives`, `participation`, `bandwidth`: each collective, each rank's part in it, and how fast data moved
    - `idle`, `kernels`, `operators`, `regions`: why devices are idle, and what computes, down to layers

    All other tables are attributes, too, and `table(name)`; docs/tables.md has them with their columns. `run` is what
    was read. `dir` shows the names above.

    Of the arguments, `ceiling` is what `bandwidth_ceiling` and the verdicts compare with. `early` are the calls of the
    run, if they were found while it was read; None for a run whose tables were changed. Steps of the kind `about`
    count, such as `decode`; where it is not given, or no step is of it, those of the kind that takes most time; of
    these, where the run is compared with others, only the numbers that are `compared`, if given. `peaks` are those of
    all its devices, in place of the vendors'. Tables of sums are over the steps that count, those of the typical step;
    over all that was recorded if `whole`. Steps of a run with many activities are read `again`, to play some of them;
    these are too few to tell the `period` of a loop, which is given.
    """

    run: Run
    ceiling: Ceiling | None = None
    early: Early | None = None
    about: str | None = None
    compared: frozenset[int] | None = None
    peaks: GivenPeaks = field(default_factory=dict)
    whole: bool = False
    again: Again | None = None
    period: Period | None = None

    def __repr__(self) -> str:
        run = self.run
        size = f"{counted(len(run.ranks), 'rank')}, {counted(len(run.traces), 'trace')}"
        return f"<Analysis of {printable(run.name)}: {size}; see .summary()>"

    def __dir__(self) -> tuple[str, ...]:
        return _SHOWN

    def _repr_html_(self) -> str:
        """The first screen of the report, for notebooks."""
        from ..report.first import first_view
        from ..report.page import first_page

        return first_page(first_view(self))._repr_html_()

    @property
    def verdict(self) -> str:
        """What limits the run, the largest loss first: `because` of the first row of `verdicts`."""
        first = records(self.verdicts.head(1))
        return str(first[0]["because"]) if first else "nothing was measured"

    @cached_property
    def part(self) -> Analysis:
        """The steps that are played again, as a run of their own with details; of a run that is not too large, itself.

        All that is played is of them: prices, predictions, the replay, what it is attributed to, critical path and
        releases. Itself also where steps cannot be read once more, or none are marked.
        """
        played = self.of(played_steps)
        if self.again is None or not played:
            return self
        try:
            cut = self._make(cut_files)  # which is not kept
            _LOG.info("%s are played", counted(len(played), "step"))
            found: Analysis = self.again.read(played, cut)
        except AnalysisError:  # what makes it impossible is in the run itself, or more than memory holds
            return self
        return replace(found, about=self.about, period=self.typical_step.period, compared=self.compared)

    @property
    def part_note(self) -> str | None:
        """Which steps are played again, where these are not all."""
        played = self.part.run.steps
        return f"by steps {ranges_of(played)}; --whole: by all" if len(played) < len(self.run.steps) else None

    @property
    def prices(self) -> Prices | None:
        """What a step would gain without each cause; None where the run cannot be played again."""
        return self.of(priced)[0]

    @property
    def links(self) -> Links:
        """The tables that describe this run's links, for scenarios that change them."""
        return self.of(links)

    @property
    def expert_passes(self) -> pd.DataFrame:
        """The passes of ranks through experts, for scenarios that change these."""
        return self.of(expert_passes)

    def table(self, name: str) -> pd.DataFrame:
        """The table of that name. Raises UnknownTable."""
        entry = CATALOG.get(name)
        if entry is None or entry.of is not InputKind.run:
            known = ", ".join(entry.name for entry in CATALOG.values() if entry.of is InputKind.run)
            raise UnknownTable(f"{name!r} is not a table of a run; those are {known}")
        found: pd.DataFrame = getattr(self, name)
        return found

    def of(self, make: Callable[..., Value]) -> Value:
        """What a function that is declared as a `value` makes of this run; made once."""
        if make not in self._made:
            self._made[make] = self._make(make)
        found: Value = self._made[make]
        return found

    @cached_property
    def _made(self) -> dict[Callable[..., Any], Any]:
        if self.early is None:
            return {}
        seen = self.early.devices if self.run.has_starts else None
        return {found_calls: self.early.found} | ({} if seen is None else {seen_devices: seen})

    def _make(self, make: Callable[..., Value], **instead: Any) -> Value:
        """What a function makes of what it needs, some of which may be given instead of made."""
        if make in PLAYED and self.part is not self:
            return self.part.of(make)
        self._visits.want(make)
        if make in EACH_RANK:
            of_ranks: Value = self._visits.of(make, self.run, self._need, self._is_made)
            return of_ranks
        # Names of events are those of tables elsewhere.
        needs, from_run = signature(make).parameters, EVENT_SCHEMAS if make in AT_RANK else {}
        given = {name: getattr(self.run, name) for name in needs if name in from_run} | instead
        return make(**{name: given[name] if name in given else self._given(needs[name]) for name in needs})

    @cached_property
    def _visits(self) -> Visits:
        return Visits()

    def _is_made(self, make: Callable[..., Any]) -> bool:
        return make in self._made or make.__name__ in vars(self)

    def want(self, *names: str) -> None:
        """Say which tables and values will be asked for: what rests on ranks is then found in one visit to each."""
        for name in names:
            if (make := declared(name)) is not None:
                self._visits.want(make)

    def _given(self, parameter: Parameter) -> Any:
        if is_later(parameter):
            return partial(self._need, parameter.name)
        return self._need(parameter.name)

    def _need(self, name: str) -> Any:
        return self.of(VALUES[name]) if name in VALUES else getattr(self if _has(name) else self.run, name)

    @property
    def matches(self) -> pd.DataFrame:
        """Which collective each call belongs to."""
        return self.of(matches)

    @property
    def typical_step(self) -> TypicalStep:
        """What a step consists of, on which the first screen and the verdict rest: of steps that count."""
        return self.of(typical_step)

    @property
    def typical_parts(self) -> list[StepPart]:
        """What a typical step consists of, the largest part first, with whom the waiting was for."""
        return self.of(typical_parts)

    @property
    def counted_steps(self) -> tuple[int, ...]:
        """The steps over which tables are sums; none if these are of all that was recorded."""
        return self.of(counted_steps)

    @property
    def hiding(self) -> Hiding | None:
        """What communication a typical step hides, and what that gains, net of slower compute; None if not known."""
        return self.of(hiding)

    @property
    def idle_causes(self) -> dict[str, float] | None:
        """Why devices are idle in a typical step, in ns by cause; None where that is not known."""
        return self.of(causes_of_idle)

    @property
    def graph_notes(self) -> tuple[str, ...]:
        """Of which replayed CUDA graphs nothing is known but their kernels, and why; if any capture was traced."""
        return self.of(replayed_graphs).notes if self.run.details else ()

    @property
    def peak_notes(self) -> tuple[str, ...]:
        """Which peaks its devices are compared with, and who says so; nothing of devices without one."""
        names: list[str | None] = [*self.run.models] or [None]
        found = [(name, peak_of(name, self.peaks)) for name in names]
        return tuple(said(name, peak) for name, peak in found if peak is not None)

    def region_table(self, name: str, depth: int | None = None) -> pd.DataFrame:
        """One of the tables of regions, with paths of at most `depth` names: a region holds those deeper in it.

        Raises NothingMeasured if operators were not read.
        """
        entry, times = CATALOG[name], self.of(times_of_regions).cut(depth)
        assert entry.make is not None
        return entry.schema.described(self._marked(self._make(entry.make, times_of_regions=times)))

    @cached_property
    def link_counters(self) -> str | None:
        """What the NVLinks' own counters say of the bytes sent, beside the sizes of calls; None without counters."""
        return link_counters(self.run.nvlink, self.calls)

    def over_time(self, every_ns: int) -> pd.DataFrame:
        """One row per interval of `every_ns`, process group, collective and size class."""
        found = self._marked(bandwidth_over_time(self.collectives, self.of(members), every_ns))
        return CATALOG["bandwidth_times"].schema.described(found)

    def rank_grid(self, column: str, of_rows: str, of_columns: str) -> Grid:
        """A column of `ranks` or `breakdown` over two dimensions of the job, such as `dp` and `pp`: means of ranks."""
        table = self.ranks if column in self.ranks else self.breakdown
        values = table.astype({column: "Float64"}).groupby("rank")[column].mean()
        return grid_over(self.places, values, of_rows, of_columns)

    @property
    def culprits(self) -> list[int]:
        """The ranks for which the others wait most, or all ranks of such a host; none if no rank stands out."""
        return self.of(culprits)

    @property
    def nearly_full(self) -> dict[tuple[int, str], float]:
        """How much of its memory each device holds at most that memory limits, by rank and device: from 0.9 on."""
        return self.of(nearly_full)

    @cached_property
    def detailed(self) -> Callable[[int], EventTables]:
        """The tables of each rank with details; files are read once more where they were read without."""
        return cache(self.run.detailed)

    @property
    def typical_waiting(self) -> Waiting:
        """Who waited for whom in the steps that the typical step is a mean of."""
        return self.of(typical_waiting)

    # From here on, methods call functions of rooms above, imported inside (FORWARDS in tests/house/layers.py).

    def summary(self, *, everything: bool = False) -> str:
        """The run on one screen, as text: what limits it, what that costs, who is late and why, what to try.

        With `everything`, what was read, how far to trust it, and the main tables in full.
        """
        from ..render.screen import Screen
        from ..show.overview import overview
        from ..show.summary import summary

        return summary(self, "table", Screen(everything=True)) if everything else overview(self)

    @cached_property
    def facts(self) -> pd.DataFrame:
        """One row per fact: what was read, and how far to trust it, in words."""
        from ..show.facts import facts

        return facts(self)

    @property
    def warnings(self) -> list[str]:
        """What a reader of the numbers must know, one sentence each."""
        from ..show.facts import warnings

        return list(warnings(self))

    def report(self, *, step: int | None = None) -> ReportPage:
        """A page with pictures and all tables that needs no network: `.save(path)` writes it, a notebook shows it.

        `step` is the one that is drawn over all ranks, the one with most exposed waiting if it is not given. Raises
        NothingMeasured if there is no such step.
        """
        from ..report.run_report import run_page

        return run_page(self, step)

    def timeline(self, *, steps: Collection[int] | None = None, ranks: Collection[int] | None = None) -> bytes:
        """All ranks on one clock, as a file that Perfetto opens; of some steps or ranks only, where they are given.

        Raises NothingMeasured where there is nothing to show, or one of these ranks did nothing.
        """
        from ..timeline.drawing import run_timeline

        return b"".join(run_timeline(self, steps=steps, ranks=ranks).parts)

    def predict(self, *scenarios: Scenario | Mapping[str, Any]) -> pd.DataFrame:
        """Step time under changes, a row for each scenario; `predictions` has the usual ones.

        A scenario has the options of `commtrace predict`: `{"without_straggler": 5, "links": "between=2"}` is both at
        once. Needs a run with `details`. Raises TypeError without a scenario, NothingMeasured, BadScenario;
        NotPredictable where the replay is too far off.
        """
        from ..prediction.options import scenario_of

        if not scenarios:
            raise TypeError("predict() needs a scenario; the usual ones are in `predictions`")
        if self.part is not self:
            return self.part.predict(*scenarios)
        changes = [scenario_of(self, each) if isinstance(each, Mapping) else each for each in scenarios]
        # What ranks gain that are late may be more, seen beside what all other changes gain (`pricing`).
        known = self.of(known_gains) if any(each.of_ranks for each in changes) else {}
        return PREDICTIONS.described(self._marked(PREDICTIONS.frame(self.of(replayed).predictions(changes, known))))

    def _marked(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table with its column `partial`: whether a row, or its collective, rests on a damaged file."""
        damaged = frozenset(self.run.partial_ranks)
        rows = resting_on(table, damaged)
        if damaged and "collective_id" in table and "pg_ranks" not in table:
            of_collective = self.collectives.set_index("collective_id")["partial"]
            rows |= table["collective_id"].map(of_collective).astype(bool)
        marked = table.copy(deep=False)
        marked["partial"] = rows.astype("boolean")
        return marked


def _has(name: str) -> bool:
    """Whether every analysis has an attribute of that name, shown by `dir` or not."""
    return hasattr(Analysis, name) or name in Analysis.__dataclass_fields__


def _attribute(entry: TableEntry, make: Callable[..., pd.DataFrame]) -> cached_property[pd.DataFrame]:
    """The attribute of `Analysis` that holds a declared table."""

    def table(analysis: Analysis) -> pd.DataFrame:
        return entry.schema.described(analysis._marked(analysis._make(make)))  # noqa: SLF001 - a method of it

    table.__doc__ = make.__doc__
    attribute = cached_property(table)
    attribute.__set_name__(Analysis, entry.name)
    return attribute


for _entry in CATALOG.values():
    if _entry.make is not None:
        setattr(Analysis, _entry.name, _attribute(_entry, _entry.make))
