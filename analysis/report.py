"""The summary of a run, in every format."""

from __future__ import annotations

import json

import pandas as pd

from .measure import Analysis
from .render import as_csv, as_markdown, as_text
from .render.people import printable
from .schema import records
from .summary import facts

_TITLES = {
    "breakdown": "Where the time went",
    "bandwidth": "Bandwidth (nccl-tests conventions, 1 GB = 1e9 bytes)",
    "ranks": "Who waits, and for whom",
    "verdicts": "What limits it",
}
_MOST_ROWS = 40


def summary(analysis: Analysis, output_format: str, *, ascii_only: bool = False) -> str:
    """The facts about the run and its main tables as `table`, `markdown`, `json` or `csv` (the facts alone)."""
    known = facts(analysis)
    tables = {name: getattr(analysis, name) for name in _TITLES}
    if output_format == "csv":
        return as_csv("summary", known)
    if output_format == "json":
        content = {"table": "summary", "facts": records(known)}
        return json.dumps(content | {name: records(table) for name, table in tables.items()}, indent=1) + "\n"
    parts = [_facts_markdown(known) if output_format == "markdown" else _facts_text(known)]
    for name, table in tables.items():
        if not len(table):
            continue
        shown = table.head(_MOST_ROWS)
        if output_format == "markdown":
            parts.append(f"### {_TITLES[name]}\n\n{as_markdown(name, shown)}")
        else:
            parts.append(f"{_TITLES[name]}\n\n{as_text(name, shown, ascii_only=ascii_only)}")
        if len(table) > len(shown):
            parts.append(f"{len(table) - len(shown)} more rows: use the command `{name}`.\n")
    return "\n".join(parts)


def _facts_text(known: pd.DataFrame) -> str:
    width = max(len(printable(item)) for item in known["item"])
    rows = zip(known["item"], known["value"], strict=True)
    return "".join(f"{printable(item):<{width}}  {printable(value)}\n" for item, value in rows)


def _facts_markdown(known: pd.DataFrame) -> str:
    rows = zip(known["item"], known["value"], strict=True)
    return "".join(f"- **{printable(item)}**: {printable(value)}\n" for item, value in rows)
