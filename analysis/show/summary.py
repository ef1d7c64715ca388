"""The summary of a run, in every format."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd

from ...common.markup import for_latex
from ...common.wording import counted
from ..catalog import CATALOG
from ..core.declaring import InputKind
from ..core.escaping import printable
from ..core.schema import records
from ..render import as_csv, as_latex, as_markdown, as_text
from ..render.people import escaped, fact_lines, styled, worst_rows
from ..render.screen import PAPER, Screen
from ..results.analysis import Analysis
from .facts import facts

_MOST_ROWS, _ON_A_TERMINAL = 40, 12


def summary(analysis: Analysis, output_format: str, screen: Screen = PAPER) -> str:
    """The facts about the run and its main tables.

    `output_format` is `table`, `markdown`, `latex`, `json`, with the table of traces, or `csv`, with the facts alone.
    """
    known = facts(analysis)
    titled = (entry.name for entry in CATALOG.values() if entry.title and entry.of is InputKind.run)
    tables = {name: analysis.table(name) for name in titled if name != "bandwidth_ceiling" or analysis.ceiling}
    if output_format == "csv":
        return as_csv("summary", known)
    if output_format == "json":
        content = {"table": "summary", "facts": records(known), "traces": records(analysis.run.traces)}
        return json.dumps(content | {name: records(table) for name, table in tables.items()}, indent=1) + "\n"
    screen, whole = replace(screen, worst_only=not screen.everything), screen.width is None
    parts = [_fact_text(known, screen) if output_format == "table" else _FACTS[output_format](known)]
    for name, table in tables.items():
        most = len(table) if screen.everything or CATALOG[name].worst else _MOST_ROWS if whole else _ON_A_TERMINAL
        if len(table):
            parts.append(_part(name, table.head(most), output_format, screen))
        if len(table) > most:
            more = f"{counted(len(table) - most, 'more row')}: {screen.how_to_see_all}, as does the command `{name}`."
            parts.append((for_latex(more) if output_format == "latex" else more) + "\n")
    return "\n".join(parts)


def _part(name: str, table: pd.DataFrame, output_format: str, screen: Screen) -> str:
    title = CATALOG[name].title or name
    if output_format != "table":
        shown, omitted = worst_rows(name, table) if screen.worst_only else (table, [])
        left_out = "".join(f"\n{text} ({screen.how_to_see_all})\n" for text in omitted)
        if output_format == "markdown":
            return f"### {title}\n\n{as_markdown(name, shown)}{left_out}"
        return f"\\paragraph{{{for_latex(title)}}}\n\n{as_latex(name, shown)}{for_latex(left_out)}"
    return f"{styled(title, 'bold', screen)}\n\n{as_text(name, table, screen)}"


def _fact_text(known: pd.DataFrame, screen: Screen) -> str:
    rows = [(printable(row["item"]), printable(row["value"])) for row in records(known)]
    return fact_lines(rows, max(len(item) for item, _ in rows), screen)


def _facts_markdown(known: pd.DataFrame) -> str:
    rows = zip(known["item"], known["value"], strict=True)
    return "".join(f"- **{escaped(printable(item))}**: {escaped(printable(value))}\n" for item, value in rows)


def _facts_latex(known: pd.DataFrame) -> str:
    rows = zip(known["item"], known["value"], strict=True)
    items = "".join(f"\\item[{for_latex(printable(i))}] {for_latex(printable(v))}\n" for i, v in rows)
    return f"\\begin{{description}}\n{items}\\end{{description}}\n"


_FACTS = {"markdown": _facts_markdown, "latex": _facts_latex}
