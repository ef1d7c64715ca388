"""Declare a table beside the function that makes it: its columns, and everything that is said about it.

    @TableEntry(TRAFFIC, Topic.communication, "How much each rank sends ...", "bandwidth.md#between-two-ranks", ...)
    def traffic(calls: pd.DataFrame, collectives: pd.DataFrame, matches: pd.DataFrame) -> pd.DataFrame: ...

A function needs what its parameters name: tables of the run, values that are declared by `value`, what `Analysis` has,
and what `Run` has, in this order. Each of them is made when it is first needed, and once; one of the type `Later` when
it is called. What looks at `each_rank` by itself is made where the events of the rank are, if these are spread over
processes, together with all else that is asked for by then; so is what it needs of that which is declared `at_rank`,
and stays there. What is `played` is made of the steps that are played again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .schema import PlainTable, Schema

if TYPE_CHECKING:
    import pandas as pd

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")
Later = Callable[[], Value]
"""What a function may turn out not to need: a parameter that gives it when called."""


class Topic(str, Enum):
    """The heading under which `commtrace table` lists a table."""

    overview = "Overview"
    time = "Where time goes"
    communication = "Communication"
    waiting = "Who waits"
    memory = "Memory"
    foresight = "What if"
    across = "Across runs"
    machine = "What a machine can do"
    scale = "Many ranks"


class InputKind(str, Enum):
    """What holds a table; the value is how a command names its input."""

    run = "RUN"
    traces = "RUN..."
    cycles = "DIR"
    sweep = "SWEEP"
    trainings = "RUNS"
    sides = "A B"
    series = "A B C..."
    dumps = "DUMPS..."
    snapshots = "SNAPSHOTS..."
    batches = "RUN_A RUN_B..."
    machine = "MEASURED"


_FAR = 1.5
"""By this factor the worst value differs from the usual one, if it is to stand out."""


@dataclass(frozen=True)
class Worst:
    """By which column rows are bad: the largest value is, or the smallest."""

    column: str
    smallest: bool = False

    @property
    def header(self) -> str:
        """The column, in words."""
        return self.column.removesuffix("_ns").removesuffix("_frac").replace("_", " ")

    def ranked(self, values: PlainTable) -> list[int]:
        """Numbers of the rows, the worst first; those without a value last."""
        column = values.columns[self.column]
        sign = 1 if self.smallest else -1
        return sorted(range(len(column)), key=lambda row: (column[row] is None, sign * (column[row] or 0)))

    def place(self, values: PlainTable) -> tuple[int, str] | None:
        """Row and column of the worst value; None where it is not far from that of the other rows."""
        known = sorted(value for value in values.columns[self.column] if value is not None)
        if not known:
            return None
        usual = known[len(known) // 2] if self.smallest else known[(len(known) - 1) // 2]  # the median
        stands_out = known[0] * _FAR < usual if self.smallest else known[-1] > usual * _FAR
        return (self.ranked(values)[0], self.column) if stands_out else None


@dataclass(frozen=True)
class TableEntry:
    """One table, and everything said about it outside its schema."""

    schema: Schema
    topic: Topic
    about: str
    """One line: the help of its command, or of the option that selects it."""
    section: str
    """Page and heading in docs/metrics that explain it, as in a link."""
    of: InputKind = InputKind.run
    command: str | None = None
    """The words after `commtrace` that print it; None for tables that only the library has."""
    shown: tuple[str, ...] = ()
    """Columns for people; CSV and JSON have all. Empty: all of them."""
    narrow: tuple[str, ...] = ()
    """Those of them that matter most, in that order, where a terminal has not room for all; the others come after."""
    worst: Worst | None = None
    """Of a table with a row per rank: which ranks are shown where there are many."""
    below: str | None = None
    """A column of sentences, which stand below their rows on a terminal that has no room beside them."""
    optional: tuple[str, ...] = ()
    """Columns that people do not see where no row has a value of them."""
    negligible: tuple[str, ...] = ()
    """Columns by which people see no row in which all of them are shown as 0.0."""
    adds_up: bool = False
    """Whether `share_frac` of its rows adds up to 1: people are told how much of it they do not see."""
    title: str | None = None
    """Its heading in the summary or report that shows it, too."""
    none_found: str | None = None
    """What it means to have no rows, if that is a result."""
    none_measured: str | None = None
    """Why there are no rows, if that is not a result."""
    needs_calls: bool = False
    """Whether that holds only for a run that communicates."""
    needs_starts: bool = False
    """Whether to have no rows says something only of a run that says when calls began."""
    in_steps: bool = False
    """Whether it is of the steps that count only, unless all that was recorded is asked for."""
    by_launch: bool = False
    """Whether its rows rest on what launched each kernel: of graphs, traces of their capture may say it."""
    in_seconds: bool = False
    """Whether its times are those of whole epochs, which people read in seconds."""
    decimals: int = 1
    """Of its durations, as people see them."""
    after: str | None = None
    """The table behind which readers of lists find it; by itself, the one declared before it in its module."""
    make: Callable[..., pd.DataFrame] | None = None
    """The function that it was declared with."""

    def __call__(self, make: Callable[Arguments, pd.DataFrame]) -> Callable[Arguments, pd.DataFrame]:
        """Declare the table that this function makes."""
        before = next((one.name for one in reversed(DECLARED) if _home(one.make) == _home(make)), None)
        DECLARED.append(replace(self, make=make, after=self.after or before))
        return make

    @property
    def name(self) -> str:
        """The table's name: that of the attribute that holds it, and in JSON."""
        return self.schema.name

    @property
    def verb(self) -> str:
        """The name of the command that prints it, without options and `table`; empty where there is none."""
        return (self.command or "").removeprefix("table ").split(" ")[0]

    @property
    def options(self) -> str:
        """The options of that command that select it; empty where it is what the command prints by itself."""
        return (self.command or "").removeprefix("table ").partition(" ")[2]


DECLARED: list[TableEntry] = []
"""The tables whose modules have been imported. `CATALOG` has all, in the order in which people read about them."""

VALUES: dict[str, Callable[..., Any]] = {}
"""By name, what several tables need and what is no table itself."""


EACH_RANK: set[Callable[..., Any]] = set()
"""The functions that look at one rank after the other."""

AT_RANK: set[Callable[..., Any]] = set()
"""The functions whose results stay where the events of a rank are."""

PLAYED: set[Callable[..., Any]] = set()
"""The functions that look at the part of a run that is played again."""


def value(make: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Declare what tables may need by the name of this function, which needs what its own parameters name."""
    VALUES[make.__name__] = make
    return make


def each_rank(make: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Declare that what this function makes of a run is what it makes of each of its ranks, one below the other.

    It is given events, tables, plain values, and what is made `at_rank`, so that it can run where the events of a rank
    are. What it makes is a table, a dictionary, a list, a tuple of these, or what `joined` itself, of a class.
    """
    EACH_RANK.add(make)
    return make


def at_rank(make: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Declare that this is made of the events of a rank wherever these are, and is as large: it never travels.

    It is given events, plain values, and what else is made `at_rank`. What looks at all ranks gets that of them all.
    """
    AT_RANK.add(make)
    return make


def played(make: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Declare that this is made of the part of a run that is played again, and all that it needs is of that part."""
    PLAYED.add(make)
    return make


def is_later(parameter: Parameter) -> bool:
    """Whether a function makes what this parameter of it stands for when it calls it, and perhaps not at all."""
    return str(parameter.annotation).startswith("Later[")


def _home(make: Callable[..., object] | None) -> str | None:
    return getattr(make, "__module__", None)
