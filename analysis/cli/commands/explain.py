"""`commtrace explain`: what a word of the tables means."""

from __future__ import annotations

from difflib import get_close_matches
from textwrap import fill
from typing import Annotated

import typer

from ...catalog import CATALOG
from ...core.escaping import printable
from ...glossary import GLOSSARY, look_up
from ..output import write_out
from ..terminal import width_of_stdout

_WIDEST_TEXT = 88


def explain_command(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[TERM]", help="A term, a table or a column; all terms without it.")
    ] = None,
) -> None:
    """Print what a term, a table or a column means.

    docs/glossary.md has all terms on one page.

    \b
    Examples:
      commtrace explain
      commtrace explain exposed
      commtrace explain critical path
      commtrace explain caused_wait_ns
    """
    word = " ".join(words or [])
    width = min(_WIDEST_TEXT, width_of_stdout() or _WIDEST_TEXT)
    write_out(_meaning(word, width) if word else _all_terms(width), None)


def _all_terms(width: int) -> str:
    """Every term with its definition."""
    longest = max(map(len, GLOSSARY))
    indent = " " * (longest + 2)
    return "".join(
        fill(f"{name:<{longest}}  {term.definition}", width, subsequent_indent=indent) + "\n"
        for name, term in GLOSSARY.items()
    )


def _meaning(word: str, width: int) -> str:
    """The meaning of a term, and of the tables and columns of that name. Raises BadParameter if there is none."""
    paragraphs = [_of_term(name, width) for name in look_up(word)]
    name = word.lower().replace(" ", "_").replace("-", "_")
    if name in CATALOG:
        paragraphs.append(_of_table(name, width))
    if lines := _of_column(name, width):
        paragraphs.append(lines)
    if not paragraphs:
        known = [*GLOSSARY, *CATALOG, *(column for entry in CATALOG.values() for column in entry.schema.columns)]
        close = get_close_matches(name, known, n=1) or get_close_matches(word.lower(), known, n=1)
        hint = f"did you mean {close[0]}?" if close else "`commtrace explain` lists all terms"
        raise typer.BadParameter(f"no term, table or column is called {printable(word)}; {hint}")
    return "\n".join(paragraphs)


def _of_term(name: str, width: int) -> str:
    term = GLOSSARY[name]
    page = term.section.partition("#")[0]
    return f"{fill(f'{name}: {term.meaning}', width)}\nMore: docs/metrics/{page}\n"


def _of_table(name: str, width: int) -> str:
    entry = CATALOG[name]
    about = fill(f"Table {name}: one row per {entry.schema.rows}.", width)
    printed = f"\nCommand: commtrace {entry.command}" if entry.command else ""
    return f"{about}{printed}\nMore: docs/metrics/{entry.section.partition('#')[0]}\n"


def _of_column(name: str, width: int) -> str:
    """A column's meaning, with the tables that have it; several if tables differ. Empty if no table has it."""
    tables: dict[str, list[str]] = {}
    for table, entry in CATALOG.items():
        if name in entry.schema.columns:
            tables.setdefault(entry.schema.columns[name][1], []).append(table)
    return "".join(
        fill(f"Column {name} of {', '.join(holders)}: {meaning}.", width, break_on_hyphens=False) + "\n"
        for meaning, holders in tables.items()
    )
