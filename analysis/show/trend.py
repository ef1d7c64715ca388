"""A series of runs as a report, in every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

from ...common.wording import counted
from ..catalog import CATALOG
from ..comparison.analysis import Comparison
from ..comparison.causes import signed
from ..comparison.trend import BEYOND, RunTrend
from ..core.escaping import printable
from ..core.schema import PlainTable, Row, plain, records
from ..metrics.typical_step import STEP_PARTS
from ..render import Table, as_markdown, as_text
from ..render.people import escaped, fact_lines, styled, wrapped
from ..render.screen import PAPER, Screen
from .comparison import settings_of

_WIDEST = 100


def without_empty_parts(table: Table) -> PlainTable:
    """Drop the parts of a step that no run has."""
    values = plain(table)
    kept = {name: column for name, column in values.columns.items() if name not in STEP_PARTS or any(column)}
    return PlainTable(kept, values.dtypes, values.whole)


def trend_report(trend: RunTrend, output_format: str, screen: Screen = PAPER) -> str:
    """The verdict, the table, and what limits each run."""
    known = list(trend_facts(trend))
    if output_format == "json":
        content: Row = {"table": "trend", "facts": [{"item": i, "value": v} for i, v in known]}
        return json.dumps(content | {"rows": records(trend.trend)}, indent=1) + "\n"
    shown, title = without_empty_parts(trend.trend), CATALOG["trend"].title or "trend"
    if output_format == "markdown":
        said = "".join(f"- **{item}**: {escaped(words)}\n" for item, words in known)
        limits = "".join(f"- {escaped(words)}\n" for words in headlines(trend))
        return f"{said}\n### {title}\n\n{as_markdown('trend', shown)}\n### What limits each run\n\n{limits}"
    width = min(screen.width or _WIDEST, _WIDEST)
    limits = "".join(f"{line}\n" for words in headlines(trend) for line in wrapped(words, width))
    table = f"{styled(title, 'bold', screen)}\n\n{as_text('trend', shown, screen)}"
    return "\n".join(
        [fact_lines(known, 11, screen), table, f"{styled('What limits each run', 'bold', screen)}\n\n{limits}"]
    )


def trend_facts(trend: RunTrend) -> Iterator[tuple[str, str]]:
    """Yield the verdict, settings that change from run to run, and warnings, in words."""
    yield "verdict", trend.verdict
    for (before, one), (name, other) in pairwise(zip(trend.names, trend.runs, strict=True)):
        for item, (a, b) in settings_of(Comparison((one,), (other,))).items():
            if a != b:
                yield "differs", printable(f"{item}: {a} in {before}, {b} in {name}")
    for name, run in zip(trend.names, (each.run for each in trend.runs), strict=True):
        for note in (*run.notes, *run.failed):
            yield "warning", printable(f"{name}: {note}")
        for why in run.partial_because:
            yield "warning", printable(f"{name}: {why}")


def captures(trend: RunTrend) -> Iterator[tuple[str, str]]:
    """Yield each run, and when it began and how much of it was traced."""
    for row in records(trend.trend):
        began = f"began {row['began_utc']} UTC, " if row["began_utc"] else ""
        yield printable(row["run"]), f"{began}{counted(row['ranks'], 'rank')}, {counted(row['steps'], 'step')} counted"


def changes(trend: RunTrend) -> Iterator[str]:
    """Yield what changed from each run to the next, and why, one sentence each."""
    for before, row in pairwise(records(trend.trend)):
        if row["cause"] is not None:
            surely = f" ({BEYOND[row['beyond']]})" if row["beyond"] else ""
            change = signed(row["change_ns"], trend.unit)
            yield printable(f"{before['run']} to {row['run']}, {change}: {row['cause']}{surely}.")


def headlines(trend: RunTrend) -> Iterator[str]:
    """Yield the headline of each run."""
    for row in records(trend.trend):
        verdict = f" ({row['verdict']})" if row["verdict"] else ""
        yield printable(f"{row['run']}: {row['headline'] or 'nothing was measured'}{verdict}.")
