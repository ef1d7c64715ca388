"""Parts of a report: sections with figures and tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...common.wording import counted
from ..catalog import CATALOG
from ..core.escaping import printable
from ..core.schema import Schema, plain
from ..render.fitting import Column, short_words, shortened
from ..render.people import Table, shown_columns
from ..render.plots.drawing import WIDTH
from ..render.plots.figure import Figure

MOST_ROWS = 1000
_LONGEST_CELL = 600
_MOST_WORDS = 4
_SAID_ELSEWHERE = ("run", "verdict", "warning")


@dataclass(frozen=True)
class TableBlock:
    """A table for people, and what was left out of it."""

    name: str
    title: str
    columns: list[str]
    headers: list[str]
    helps: list[str]
    """What each column means."""
    rows: list[list[str]]
    numeric: list[bool]
    factors: list[str]
    """A value of the table is the number shown times this; empty for 1."""
    origins: list[str]
    """The value of the table that is shown as 0; empty for 0."""
    full: list[dict[int, str]]
    """Of each row, whole texts of the cells that are shortened, by number."""
    note: str = ""
    open: bool = False
    """Whether it is seen at once."""


@dataclass(frozen=True)
class Section:
    """Figures and tables about one question."""

    anchor: str
    title: str
    about: str
    figures: Sequence[Figure] = ()
    tables: Sequence[TableBlock] = ()
    hint: str = ""
    """What can be clicked: nothing for paper."""
    basis: str = ""
    """What its numbers are of: which steps and ranks, summed or mean."""
    words: Sequence[str] = ()
    """Sentences, each a point of a list."""
    short: str = ""
    """Its name in the navigation, if not the title."""
    answer: str = ""
    """The sentence that answers its question, above all else."""
    commands: Sequence[str] = ()
    """How to measure it again."""
    choose: bool = False
    """Whether only one of the figures is seen at a time."""

    @property
    def more_words(self) -> Sequence[str]:
        """Sentences that are folded: of many, those behind the first."""
        return self.words[_MOST_WORDS:] if len(self.words) > _MOST_WORDS + 1 else ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.figures or self.tables or self.words or self.answer)

    @property
    def names_figures(self) -> bool:
        """Whether each of its figures needs its own title: of one alone, or chosen by name, that is said already."""
        return len(self.figures) > 1 and not self.choose

    @property
    def wide(self) -> bool:
        """Whether it needs the whole width: two stand side by side otherwise."""
        seen = 1 if self.choose and self.figures else len(self.figures)
        too_wide = any(figure.width > WIDTH for figure in self.figures)
        return seen > 1 or too_wide or any(block.open for block in self.tables)

    def without_figures(self, names: Collection[str]) -> Section:
        """The section without the figures of these names."""
        return replace(self, figures=[figure for figure in self.figures if figure.name not in names])


def block(name: str, table: Table, *, largest: str | None = None, shown: bool = False) -> TableBlock:
    """A table of the catalog; of a long one, the rows with the largest values in a column, or the first rows."""
    entry, note, values = CATALOG[name], "", table
    if len(table) > MOST_ROWS:
        values = _most(table, largest)
        which = f"those with the largest {largest}" if largest else "the first"
        note = f"{MOST_ROWS:,} of {counted(len(table), 'row')}, {which}; `commtrace {entry.command} RUN` prints all."
    return _block(entry.name, f"Table: {entry.name}", entry.schema, shown_columns(name, values), note, shown=shown)


def block_of(schema: Schema, table: Table, title: str) -> TableBlock:
    """A table that is not in the catalog, in full."""
    return _block(schema.name, title, schema, shown_columns(schema.name, table), shown=True)


def _block(
    name: str, title: str, schema: Schema, columns: Sequence[Column], note: str = "", *, shown: bool
) -> TableBlock:
    rows, full = [], []
    for number, texts in enumerate(zip(*(column.texts for column in columns), strict=True)):
        shown_texts = [shortened(short_words(text), _LONGEST_CELL) for text in texts]
        rows.append(shown_texts)
        of_row = {at: column.full[number] for at, column in enumerate(columns) if number in column.full}
        full.append({at: text for at, text in enumerate(texts) if text != shown_texts[at]} | of_row)
    return TableBlock(
        name=name,
        title=title,
        columns=[column.name for column in columns],
        headers=[column.header for column in columns],
        helps=[schema.columns[column.name][1] for column in columns],
        rows=rows,
        numeric=[column.is_number for column in columns],
        factors=["" if column.factor == 1 else f"{column.factor:g}" for column in columns],
        origins=[str(column.origin or "") for column in columns],
        full=full,
        note=note,
        open=shown,
    )


def _most(table: Any, largest: str | None) -> Table:
    if largest is None:
        return plain(table.head(MOST_ROWS))
    order = table[largest].fillna(-1).sort_values(ascending=False, kind="stable").index[:MOST_ROWS]
    return plain(table.loc[sorted(order)])


def facts_block(facts: Any) -> list[tuple[str, str]]:
    """What was read and how far to trust it, as pairs, without what the page says elsewhere."""
    rows = [row for row in plain(facts).rows if row["item"] not in _SAID_ELSEWHERE]
    return [(printable(row["item"]), printable(row["value"])) for row in rows]
