"""The summary of a run, in every format."""

from __future__ import annotations

import json

import pandas as pd

from ..catalog import CATALOG, InputKind
from ..core.escaping import printable
from ..core.schema import records
from ..render import as_csv, as_latex, as_markdown, as_text
from ..render.latex import latex_escaped
from ..render.people import escaped
from .facts import RunTables, facts

_MOST_ROWS = 40


def summary(analysis: RunTables, output_format: str, *, ascii_only: bool = False) -> str:
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
    parts = [_FACTS[output_format](known)]
    for name, table in tables.items():
        if len(table):
            parts.append(_part(name, table.head(_MOST_ROWS), output_format, ascii_only))
        if len(table) > _MOST_ROWS:
            more = f"{len(table) - _MOST_ROWS} more rows: use the command `{name}`."
            parts.append((latex_escaped(more) if output_format == "latex" else more) + "\n")
    return "\n".join(parts)


def _part(name: str, table: pd.DataFrame, output_format: str, ascii_only: bool) -> str:
    title = CATALOG[name].title or name
    if output_format == "markdown":
        return f"### {title}\n\n{as_markdown(name, table)}"
    if output_format == "latex":
        return f"\\paragraph{{{latex_escaped(title)}}}\n\n{as_latex(name, table)}"
    return f"{title}\n\n{as_text(name, table, ascii_only=ascii_only)}"


def _facts_text(known: pd.DataFrame) -> str:
    width = max(len(printable(item)) for item in known["item"])
    rows = zip(known["item"], known["value"], strict=True)
    return "".join(f"{printable(item):<{width}}  {printable(value)}\n" for item, value in rows)


def _facts_markdown(known: pd.DataFrame) -> str:
    rows = zip(known["item"], known["value"], strict=True)
    return "".join(f"- **{escaped(printable(item))}**: {escaped(printable(value))}\n" for item, value in rows)


def _facts_latex(known: pd.DataFrame) -> str:
    rows = zip(known["item"], known["value"], strict=True)
    items = "".join(f"\\item[{latex_escaped(printable(i))}] {latex_escaped(printable(v))}\n" for i, v in rows)
    return f"\\begin{{description}}\n{items}\\end{{description}}\n"


_FACTS = {"table": _facts_text, "markdown": _facts_markdown, "latex": _facts_latex}
