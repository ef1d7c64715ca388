"""What `--help` of a command says about the columns of its tables: from their schemas, never written again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..catalog import CATALOG
from ..core.declaring import TableEntry
from .inputs import SparingInputs


class HelpWithColumns(SparingInputs):
    """A command whose help explains the columns of the tables that it prints."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """As click does, and then the columns."""
        super().format_options(ctx, formatter)
        for heading, rows in column_sections(self.name or ""):
            with formatter.section(heading):
                formatter.write_dl(rows)


def column_sections(command: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Headings and columns with their meaning; of further tables of the command those that no earlier one has."""
    explained: dict[str, str] = {}
    for entry in CATALOG.values():
        if entry.verb != command:
            continue
        new = {name: text for name, (_, text) in entry.schema.columns.items() if explained.get(name) != text}
        first = not explained
        explained |= new
        if new:
            heading = "Columns" if first else f"More columns with {entry.options}"
            rows = [(name, text + _where(name, entry)) for name, text in new.items()]
            yield heading, rows


def _where(column: str, entry: TableEntry) -> str:
    """Said of columns that only programs get, unless somebody asks for them."""
    return "" if not entry.shown or column in entry.shown else " (in CSV and JSON)"
