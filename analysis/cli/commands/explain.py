"""`commtrace explain`: what a word of the tables means."""

from __future__ import annotations

from textwrap import fill
from typing import Annotated

import typer

from ...errors import UnknownTerm
from ...explanation import explain, known_names
from ...glossary import GLOSSARY
from ..output import write_out
from ..terminal import width_of_stdout

_WIDEST_TEXT = 88


def _terms(incomplete: str) -> list[str]:
    """Terms, tables and columns that begin like that, for a shell that completes them."""
    return [name for name in known_names() if name.lower().startswith(incomplete.lower()) and " " not in name]


def explain_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TERM]", autocompletion=_terms, help="A term, a table or a column; all terms without it."
        ),
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
    try:
        write_out(explain(word).text(width) if word else _all_terms(width), None)
    except UnknownTerm as err:  # a wrong word is a mistake of usage
        raise typer.BadParameter(str(err)) from err


def _all_terms(width: int) -> str:
    """Every term with its definition."""
    longest = max(map(len, GLOSSARY))
    indent = " " * (longest + 2)
    return "".join(
        fill(f"{name:<{longest}}  {term.definition}", width, subsequent_indent=indent) + "\n"
        for name, term in GLOSSARY.items()
    )
