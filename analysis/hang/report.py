"""A hang in every format: the answer first, then the tables behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pandas as pd

from ...common.wording import counted
from ..catalog import CATALOG
from ..core.escaping import printable
from ..core.schema import Row, records
from ..render import as_markdown, as_text
from ..render.people import escaped, fact_lines, styled
from ..render.screen import PAPER, Screen
from .analysis import Hang

HANG_TABLES = {
    "origin": "hang_origins",
    "wait": "hang_waits",
    "group": "hang_positions",
    "mismatch": "hang_mismatches",
    "stack": "hang_stacks",
}
_SHOWN_ROWS = 20
_ANSWERED = "hang_origins"  # in words, for people


def hang_report(hang: Hang, output_format: str, screen: Screen = PAPER) -> str:
    """The answer, and all tables that have rows."""
    facts = list(_facts(hang))
    if output_format == "json":
        content: Row = {"table": "hang", "hang": hang.found, "answer": hang.answer, "notes": hang.notes}
        tables = {name: records(getattr(hang, name)) for name in HANG_TABLES.values()}
        return json.dumps(content | tables, indent=1) + "\n"
    markdown = output_format == "markdown"
    parts = ["".join(f"- **{i}**: {escaped(v)}\n" for i, v in facts) if markdown else fact_lines(facts, 8, screen)]
    for by, name in HANG_TABLES.items():
        table: pd.DataFrame = getattr(hang, name)
        if name == _ANSWERED or not len(table):
            continue
        title = CATALOG[name].title or name
        shown = (table if screen.everything else table.head(_SHOWN_ROWS)).dropna(axis="columns", how="all")
        text = as_markdown(name, shown) if markdown else as_text(name, shown, screen)
        parts.append(f"### {title}\n\n{text}" if markdown else f"{styled(title, 'bold', screen)}\n\n{text}")
        if len(table) > len(shown):
            parts.append(f"{counted(len(table) - len(shown), 'more row')}: use --all, or --by {by}.\n")
    return "\n".join(parts)


def _facts(hang: Hang) -> Iterator[tuple[str, str]]:
    for text in hang.answer:
        yield ("hang" if hang.found else "verdict"), text
    for note in hang.notes:
        yield "note", note
    for failure in hang.dumps.failed:
        yield "warning", printable(failure)
