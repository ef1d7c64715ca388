"""A series of runs in the order given: how a typical step changes from run to run, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise
from os import PathLike
from pathlib import Path
from statistics import pstdev
from typing import TYPE_CHECKING

import pandas as pd

from ...common.wording import counted
from ...contract.reading import lenient
from ...contract.run import RunFile
from ..core.escaping import printable
from ..core.schema import Row, records
from ..core.tables.comparison import TREND
from ..errors import NothingMeasured
from ..metrics.typical_step import STEP_PARTS
from ..recording.options import GivenOptions, ReadOptions, takes_reading
from ..render.units import TimeUnit
from ..results.analysis import Analysis
from ..results.opening import Paths, analyse_with
from .analysis import RUN_SPREAD_FRAC, Comparison, about_one_kind
from .causes import signed
from .dates import began
from .history import History, read_history
from .work import SideNames

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LEAST_RUNS = 2
_MOST_CAUSES = 2
_MOST_HOSTS = 3
_NAMES = SideNames("the run before", "this run")
BEYOND = {
    "runs": "beyond the spread of runs",
    "steps": "beyond the spread of steps, but not of runs",
    "nothing": "within the spread of steps",
}
"""Values of `beyond` in words."""


@dataclass(frozen=True, repr=False)
class RunTrend:
    """Tables of several runs in order, each read with `details`. Columns: docs/tables.md.

    `run_spread_frac` is how much runs of one configuration are assumed to differ, as a standard deviation, where
    `history` has none of their program.
    """

    runs: tuple[Analysis, ...]
    run_spread_frac: float = RUN_SPREAD_FRAC
    history: History | None = None

    def __repr__(self) -> str:
        return f"<RunTrend of {', '.join(map(printable, self.names))}; see .summary()>"

    def _repr_html_(self) -> str:
        """The report as HTML, for notebooks."""
        return f"<pre>{escape(self.summary())}</pre>"

    def summary(self) -> str:
        """The verdict, the table and what limits each run, as text."""
        from ..show.trend import trend_report

        return trend_report(self, "table")

    @cached_property
    def names(self) -> list[str]:
        """Names of the runs; those that have the same are numbered."""
        names: list[str] = []
        for run in self.runs:
            name, number = run.run.name, 2
            while name in names:
                name, number = f"{run.run.name} #{number}", number + 1
            names.append(name)
        return names

    @cached_property
    def trend(self) -> pd.DataFrame:
        """One row per run, in order: its typical step, and how that changed."""
        rows = [self._row(number) for number in range(len(self.runs))]
        return TREND.frame(rows)

    @cached_property
    def _alike(self) -> tuple[Analysis, ...]:
        """The runs, about one kind of steps if they can be."""
        return about_one_kind(self.runs)

    @property
    def verdict(self) -> str:
        """Sentences on the change from the first run to the last, and on the largest change between two."""
        rows = [row for row in records(self.trend) if row["step_ns"] is not None]
        if len(rows) < _LEAST_RUNS:
            return "steps cannot be compared: fewer than two of the runs show any activity"
        first, last, unit = rows[0], rows[-1], self.unit
        said = f"A step takes {unit.text(first['step_ns'])} in {first['run']} and {unit.text(last['step_ns'])} in "
        said += f"{last['run']}: {_change(last['step_ns'] - first['step_ns'], first['step_ns'], unit)}"
        if last["from_first_beyond"] is not None and first["run"] == self.names[0]:
            said += f", {BEYOND[last['from_first_beyond']]}"
        return " ".join([printable(f"{said}."), *map(printable, self._largest())])

    @property
    def unit(self) -> TimeUnit:
        """The unit for all times."""
        known = self.trend["step_ns"].dropna()
        return TimeUnit.of(float(known.max()) if len(known) else 1e6)

    def _largest(self) -> Iterator[str]:
        """Yield a sentence on the largest change from one run to the next: of those beyond what is chance, if any."""
        rows = [(before, row) for before, row in pairwise(records(self.trend)) if row["change_ns"] is not None]
        for wanted in (("runs", "steps"), ("nothing", None)):
            among = [pair for pair in rows if pair[1]["beyond"] in wanted]
            if among:
                before, row = max(among, key=lambda pair: abs(pair[1]["change_ns"]))
                if self.unit.is_zero(row["change_ns"]):
                    continue
                surely = "" if row["beyond"] in ("runs", "steps") else ", which may be chance"
                change = signed(row["change_ns"], self.unit)
                yield f"The largest change is from {before['run']} to {row['run']}, {change}: {row['cause']}{surely}."
                return

    def _row(self, number: int) -> Row:
        one = self._alike[number]
        row: Row = {
            "run": self.names[number],
            "began_utc": began(one),
            **_where(one),
            "ranks": len(one.run.ranks),
            "steps": len(one.typical_step.steps) if _has_step(one) else 0,
            **_first_words(one),
        }
        if not _has_step(one):
            return row
        typical = one.typical_step
        row |= {part: round(typical.parts[part]) for part in STEP_PARTS}
        row["step_ns"] = sum(row[part] for part in STEP_PARTS)
        row["step_spread_ns"] = round(pstdev(typical.lengths_ns)) if len(typical.lengths_ns) > 1 else None
        row |= _first_gain(one)
        both = self._against_before(number)
        if both is not None:
            row["change_ns"] = row["step_ns"] - _step_ns(self._alike[number - 1])
            row["beyond"] = self._beyonds[number]
            row["cause"] = None if both.change is None else both.change.words
        if number and _has_step(self._alike[0]):
            row["from_first_ns"] = row["step_ns"] - _step_ns(self._alike[0])
            of_one = Comparison((self._alike[0],), (one,), self.run_spread_frac, self.history)
            levels = self._compared(self._level(0, len(self.runs)), self._level(self._starts[number], number + 1))
            is_first = self._starts[number] == 0
            row["from_first_beyond"] = self._beyond(of_one, of_one if is_first else levels, row["from_first_ns"])
        return row

    @cached_property
    def _starts(self) -> list[int]:
        """The first run of the level of each: the last one before it that differs from those before by more than runs.

        The runs of a level show how much runs differ that nobody changed.
        """
        return self._levels[0]

    @cached_property
    def _beyonds(self) -> list[str | None]:
        """What the change of each run from the one before is beyond; None for the first."""
        return self._levels[1]

    @cached_property
    def _levels(self) -> tuple[list[int], list[str | None]]:
        starts, beyonds = list[int](), list[str | None]()
        for number, one in enumerate(self._alike):
            both, beyond = self._against_before(number), None
            if both is not None:
                before = [each for each in self._alike[starts[-1] : number] if _has_step(each)]
                change_ns = round(_step_ns(one) - _step_ns(self._alike[number - 1]))
                beyond = self._beyond(both, self._compared(before, [one]), change_ns)
            starts.append(number if beyond == "runs" or not starts else starts[-1])
            beyonds.append(beyond)
        return starts, beyonds

    def _level(self, start: int, end: int) -> list[Analysis]:
        """The runs before `end` whose level begins at `start`, those that show any activity."""
        return [
            one
            for one, begin in zip(self._alike[:end], self._starts, strict=False)
            if begin == start and _has_step(one)
        ]

    def _compared(self, before: Sequence[Analysis], after: Sequence[Analysis]) -> Comparison:
        return Comparison(tuple(before), tuple(after), self.run_spread_frac, self.history)

    @cached_property
    def last_against_others(self) -> Comparison:
        """The last run beside all runs before."""
        return Comparison(self.runs[:-1], self.runs[-1:], self.run_spread_frac, self.history)

    @cached_property
    def begins(self) -> list[Row]:
        """What begins to cost more or less at a run, at most two rows like those of `changed_causes` for each.

        Each also has the `run`, and what its change is `beyond`; changes within what steps differ by have none.
        """
        found: list[Row] = []
        for number, row in enumerate(records(self.trend)):
            both = self._against_before(number)
            if both is not None and row["beyond"] != "nothing" and not self.unit.is_zero(row["change_ns"]):
                causes = records(both.what_differs.head(_MOST_CAUSES))
                found += ({"run": row["run"], "beyond": row["beyond"], **cause} for cause in causes)
        return found

    def _against_before(self, number: int) -> Comparison | None:
        """The comparison of a run with the one before; None for the first, and where either shows no activity."""
        return self._comparisons[number]

    @cached_property
    def _comparisons(self) -> list[Comparison | None]:
        return [
            Comparison((before,), (one,), self.run_spread_frac, self.history, _NAMES)
            if before is not None and _has_step(before) and _has_step(one)
            else None
            for before, one in zip((None, *self._alike), self._alike, strict=False)
        ]

    def _beyond(self, both: Comparison, levels: Comparison, change_ns: int) -> str | None:
        """What a change exceeds: how much `runs` of one configuration differ, only how much `steps` do, or nothing.

        `both` are the two runs, `levels` they and the runs that are as each of them, which show how much runs differ.
        """
        of_steps = Comparison(both.a, both.b, 0.0).step
        if of_steps["significant"] is None or (of_steps["significant"] and of_steps["difference_ns"] * change_ns < 0):
            return None
        if not of_steps["significant"]:
            return "nothing"
        return "runs" if levels.step["significant"] and levels.step["difference_ns"] * change_ns > 0 else "steps"


def _has_step(one: Analysis) -> bool:
    return len(one.table("breakdown")) > 0


def _where(one: Analysis) -> Row:
    """The commit, hosts and devices of a run, as far as its capture says so."""
    hosts = sorted({host for host in one.run.hosts.values() if host is not None})
    known = bool(hosts) and None not in one.run.hosts.values()
    return {
        "commit": lenient(one.run.config, RunFile)[0].commit,
        "hosts": (", ".join(hosts) if len(hosts) <= _MOST_HOSTS else counted(len(hosts), "host")) if known else None,
        "devices": ", ".join(one.run.models) or None,
    }


def _step_ns(one: Analysis) -> int:
    return sum(round(one.typical_step.parts[part]) for part in STEP_PARTS)


def _first_words(one: Analysis) -> Row:
    """The verdict on a run, and its headline."""
    verdicts = records(one.verdicts.head(1))
    return {"verdict": verdicts[0]["verdict"], "headline": verdicts[0]["headline"]} if verdicts else {}


def _first_gain(one: Analysis) -> Row:
    """What a step would gain by the first remedy, if the run could be played again."""
    if one.prices is None or len(one.table("hangs")):
        return {}
    remedies = records(one.table("remedies").head(1))
    return {"gain_ns": remedies[0]["gain_ns"], "remedy": remedies[0]["what"]} if remedies else {}


def _change(ns: float, of_ns: float, unit: TimeUnit) -> str:
    """`+7.4 ms (+18%)`."""
    share = f" ({ns / of_ns:+.0%})" if of_ns else ""
    return f"{signed(ns, unit)}{share}"


@takes_reading
def run_trend(
    *runs: Paths,
    run_spread_frac: float = RUN_SPREAD_FRAC,
    history: str | PathLike[str] | None = None,
    **reading: Unpack[GivenOptions],
) -> RunTrend:
    """The trend over the runs at these paths, at least two, in this order.

    `history` is the file of a machine's captures. `run_spread_frac`: see `RunTrend`, the others: see `analyse`.
    Raises AnalysisError.
    """
    if len(runs) < _LEAST_RUNS:
        raise NothingMeasured("nothing to compare: a trend takes at least two runs")
    options = ReadOptions.given(details=True, **reading)
    known = None if history is None else read_history(Path(history))
    return RunTrend(tuple(analyse_with(path, options) for path in runs), run_spread_frac, known)
