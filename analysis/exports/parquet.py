"""Every table of a run as a Parquet file, for DuckDB, Polars or Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...common.extras import not_installed
from ...common.version import version
from ..catalog import CATALOG
from ..core.declaring import InputKind, TableEntry
from ..core.schema import Schema
from ..core.tables.communication import CLOCK_PROBES, PROCESS_GROUPS, TRACES
from ..core.tables.device_time import STEP_TIMES
from ..errors import MissingLibrary, NothingMeasured, NotPredictable
from ..metrics.clocks.table import aligned
from ..run.event_tables import EVENT_SCHEMAS

if TYPE_CHECKING:
    import pandas as pd

    from ..results.analysis import Analysis

PARQUET_SUFFIX = ".parquet"
_FACTS = {"traces": TRACES, "process_groups": PROCESS_GROUPS, "clock_probes": CLOCK_PROBES, "step_times": STEP_TIMES}
_NOT_WRITTEN = ("comm_args",)  # `calls` says the same, matched and in torch's words
_NEEDS_DETAILS = ("cpu_operators", "operator_calls", "runtime_calls", "modules", "functions", "stream_waits", "memory",
                  "counter_samples")  # fmt: skip
_MOMENTS = ("start_ns", "time_ns")
_UNITS = {
    "_gb_per_s": "1e9 bytes per second",
    "_ns": "nanoseconds",
    "_us": "microseconds",
    "_bytes": "bytes",
    "_elems": "elements",
    "_frac": "0 to 1",
    "_ppm": "millionths",
}


class Sink(Protocol):
    """A file to which bytes are written."""

    def write(self, data: bytes, /) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class Written:
    """How many rows each table has, by name."""

    rows: dict[str, int]

    @property
    def empty(self) -> list[str]:
        """Tables without rows."""
        return [name for name, rows in self.rows.items() if not rows]


def check_pyarrow() -> None:
    """Raise MissingLibrary unless pyarrow is there."""
    _pyarrow()


def write_parquet(analysis: Analysis, new_file: Callable[[str], Sink]) -> Written:
    """Write every table to the file that `new_file` makes for its name. Raises MissingLibrary, OSError.

    The set of files is always the same, so that a query that runs on one run runs on all: a table that is empty, or
    cannot be made of this run, has its columns and no rows, and says why in the metadata of its file.
    """
    rows = _write_events(analysis, new_file)
    for name, schema in _FACTS.items():
        rows[schema.name] = _write_table(analysis, schema, getattr(analysis.run, name), "no file says it", new_file)
    for entry in CATALOG.values():
        if entry.of is InputKind.run:
            rows[entry.name] = _write_table(analysis, entry.schema, *_table(analysis, entry), new_file)
    return Written(rows)


def _table(analysis: Analysis, entry: TableEntry) -> tuple[pd.DataFrame, str]:
    """A table, and why it has no rows if it has none."""
    because = entry.none_measured or entry.none_found or "the run shows nothing of this kind"
    try:
        return analysis.table(entry.name), because
    except (NothingMeasured, NotPredictable) as err:
        return entry.schema.empty(), str(err)


def _write_table(
    analysis: Analysis, schema: Schema, table: pd.DataFrame, because: str, new_file: Callable[[str], Sink]
) -> int:
    with _File(
        schema, new_file(schema.name + PARQUET_SUFFIX), analysis.run.name, None if len(table) else because
    ) as file:
        file.write(table)
    return len(table)


def _write_events(analysis: Analysis, new_file: Callable[[str], Sink]) -> dict[str, int]:
    """Write what devices and CPUs did, a row group for each rank, so that one rank at a time is in memory."""
    run = analysis.run
    schemas = {attr: _placed(schema) for attr, schema in EVENT_SCHEMAS.items() if attr not in _NOT_WRITTEN}
    with ExitStack() as stack:
        files = {}
        for attr, schema in schemas.items():
            because = "read without details" if attr in _NEEDS_DETAILS and not run.details else None
            file = _File(schema, new_file(schema.name + PARQUET_SUFFIX), run.name, because)
            files[attr] = stack.enter_context(file)
        for tables in map(run.tables.of_rank, run.ranks):
            for attr, file in files.items():
                file.write(_on_common_clock(getattr(tables, attr), file.schema, analysis))
    return {file.schema.name: file.rows for file in files.values()}


def _placed(schema: Schema) -> Schema:
    """The schema with each moment on the common clock as well, and without columns of nested lists."""
    columns = {}
    for name, (dtype, meaning) in schema.columns.items():
        if dtype == "object":
            continue
        columns[name] = (dtype, meaning)
        if name in _MOMENTS:
            columns[f"common_{name}"] = (
                "int64",
                f"{name} on the common clock of the linked ranks; see `linked` in `clocks`",
            )
    return Schema(schema.name, schema.rows, columns)


def _on_common_clock(table: pd.DataFrame, schema: Schema, analysis: Analysis) -> pd.DataFrame:
    moments = [name for name in _MOMENTS if name in table]
    common = {f"common_{name}": aligned(table[name], table["rank"], analysis.clocks) for name in moments}
    return table.assign(**common)[list(schema.columns)]


class _File:
    """A Parquet file of one table, for a `with` block: each `write` adds rows."""

    def __init__(self, schema: Schema, sink: Sink, run_name: str, empty_because: str | None) -> None:
        pa = _pyarrow()
        self.schema, self.rows, self._sink = schema, 0, sink
        about = {"commtrace": version(), "run": run_name, "table": schema.name, "rows": f"one row per {schema.rows}"}
        if schema.name in CATALOG:
            about["about"] = CATALOG[schema.name].about
        if empty_because is not None:
            about["empty_because"] = empty_because
        types = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "string": pa.string()}
        fields = [
            pa.field(
                name,
                next(type_ for word, type_ in types.items() if dtype.lower().startswith(word)),
                nullable=dtype != "int64",
                metadata={"meaning": meaning, **({"unit": unit} if (unit := _unit(name)) else {})},
            )
            for name, (dtype, meaning) in schema.columns.items()
        ]
        self._plain = pa.schema(fields, metadata={key: _encodable(text) for key, text in about.items()})

    def __enter__(self) -> _File:
        from pyarrow.parquet import ParquetWriter

        # With the dtypes of pandas, by which it reads nullable integers as such, and not as floats.
        schema = self._arrow(self.schema.empty()).schema
        self._writer = ParquetWriter(_Stream(self._sink), schema, compression="zstd")
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, table: pd.DataFrame) -> None:
        """Add these rows."""
        if len(table):
            self._writer.write_table(self._arrow(table))
            self.rows += len(table)

    def _arrow(self, table: pd.DataFrame) -> Any:
        bare_table = table.copy(deep=False)
        bare_table.attrs = {}  # which the metadata say already
        return _pyarrow().Table.from_pandas(bare_table, schema=self._plain, preserve_index=False)


class _Stream:
    """What pyarrow asks of a file beside `write`. Who made the sink closes it."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self.write = sink.write

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _unit(column: str) -> str | None:
    """The unit in a column's name."""
    return next((unit for suffix, unit in _UNITS.items() if column.endswith(suffix)), None)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as err:
        raise MissingLibrary(not_installed("pyarrow", "`export parquet`", "parquet")) from err
    return pyarrow
