"""`commtrace serving`: steps by kind and size, and what a token costs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.escaping import encodable
from ...errors import RunError
from ...reading.trace_files import runs_inside
from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Peaks, Runs, analysis_of, reads_traces
from ..tables import print_of_engines, print_table

if TYPE_CHECKING:
    from ...results.analysis import Analysis


class ServingBy(str, Enum):
    """What a row stands for."""

    size = "size"
    kind = "kind"
    rank = "rank"
    floor = "floor"


_TABLES = {
    ServingBy.size: "serving",
    ServingBy.kind: "serving_fits",
    ServingBy.rank: "serving_ranks",
    ServingBy.floor: "serving_floors",
}


@reads_traces
@writes_tables
def serving_command(
    runs: Runs,
    by: Annotated[
        ServingBy,
        typer.Option(
            help="One row per kind and size of steps; per kind, with a fit of time over tokens; per rank; or per size, "
            "with the time that reading weights and cache takes at least."
        ),
    ] = ServingBy.size,
    peak: Peaks = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Show how long steps of each kind and size take, tokens a second, and what a token costs.

    Kinds, requests and tokens come from the annotations of vLLM, SGLang and others, which are found by
    themselves, or from groups of these names in the regular expression of --steps.

    Engines that each count their ranks from 0, in one folder or in folders of their own, such as replicas, or those
    for prefill and for decode, are rows of one table.

    \b
    Examples:
      commtrace serving traces/my-engine
      commtrace serving --by kind traces/my-engine
      commtrace serving --by floor traces/my-engine
      commtrace serving --steps '(?P<kind>[a-z]+) of (?P<tokens>[0-9]+)' RUN
      commtrace serving --format csv traces/my-engine
      commtrace serving traces/prefill traces/decode
    """
    name = _TABLES[by]
    writing.check(name)

    def opened(paths: list[Path]) -> Analysis:
        return analysis_of(paths, reading, peaks=peak, details=by is ServingBy.floor)

    below = runs_inside(runs[0]) if len(runs) == 1 else []
    if len(below) > 1:
        engines = {encodable(str(inner.relative_to(runs[0]))): [inner] for inner in below}
    else:
        try:
            print_table(name, opened(below or runs), writing)
            return
        except RunError as err:
            if not err.runs:
                raise
            engines = {run.name: list(run.paths) for run in err.runs}
    print_of_engines(
        name,
        {engine: opened(paths) for engine, paths in engines.items()},
        writing,
    )
