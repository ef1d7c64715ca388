"""What a term, a table or a column means, in a few sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from html import escape
from textwrap import fill

from .catalog import CATALOG
from .core.escaping import printable
from .errors import UnknownTerm
from .glossary import GLOSSARY, look_up

_WIDTH = 88


@dataclass(frozen=True)
class Entry:
    """One meaning of a word; `more` are lines that say where to read on, and what prints it."""

    name: str
    meaning: str
    more: tuple[str, ...] = ()

    def text(self, width: int) -> str:
        """The entry as lines of at most `width` characters."""
        return "\n".join([fill(f"{self.name}: {self.meaning}", width, break_on_hyphens=False), *self.more, ""])

    @property
    def html(self) -> str:
        """The entry as a paragraph, with its name in bold."""
        more = "".join(f"<br>{escape(line)}" for line in self.more)
        return f"<p><b>{escape(self.name)}</b>: {escape(self.meaning)}{more}</p>"


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a word means; a notebook shows it with its names in bold."""

    entries: tuple[Entry, ...]

    def __repr__(self) -> str:
        return self.text(_WIDTH).removesuffix("\n")

    def _repr_html_(self) -> str:
        return "".join(entry.html for entry in self.entries)

    def text(self, width: int) -> str:
        """All entries as lines of at most `width` characters."""
        return "\n".join(entry.text(width) for entry in self.entries)


def explain(term: str) -> Explanation:
    """What a term, a table or a column means, as `commtrace explain` prints it. Raises UnknownTerm."""
    name = term.lower().replace(" ", "_").replace("-", "_")
    entries = (*map(_of_term, look_up(term)), *_of_table(name), *_of_column(name))
    if not entries:
        known = known_names()
        close = get_close_matches(name, known, n=1) or get_close_matches(term.lower(), known, n=1)
        hint = f"did you mean {close[0]}?" if close else "`commtrace explain` lists all terms"
        raise UnknownTerm(f"no term, table or column is called {printable(term)}; {hint}")
    return Explanation(entries)


def known_names() -> list[str]:
    """All terms, tables and columns, each once."""
    columns = (column for entry in CATALOG.values() for column in entry.schema.columns)
    return list(dict.fromkeys([*GLOSSARY, *CATALOG, *columns]))


def _of_term(name: str) -> Entry:
    term = GLOSSARY[name]
    return Entry(name, term.meaning, (_more(term.section),))


def _of_table(name: str) -> Iterator[Entry]:
    if name in CATALOG:
        entry = CATALOG[name]
        command = (f"Command: commtrace {entry.command}",) if entry.command else ()
        yield Entry(f"Table {name}", f"one row per {entry.schema.rows}.", (*command, _more(entry.section)))


def _of_column(name: str) -> Iterator[Entry]:
    """Yield a column's meaning, with the tables that have it; several if tables differ."""
    tables: dict[str, list[str]] = {}
    for table, entry in CATALOG.items():
        if name in entry.schema.columns:
            tables.setdefault(entry.schema.columns[name][1], []).append(table)
    for meaning, holders in tables.items():
        yield Entry(f"Column {name} of {', '.join(holders)}", f"{meaning}.")


def _more(section: str) -> str:
    return f"More: docs/metrics/{section.partition('#')[0]}"
