"""Cross tables for people: what is across the top is a line of headers over those of the cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from rich.cells import cell_len

from ...common.markup import for_latex, for_markdown
from ..core.pivots import CrossTable
from .fitting import GAP, Column, shortened
from .latex import header_lines, latex_line, tabular
from .people import drawn, shown_columns, styled
from .screen import PAPER, Screen

_NOTHING = "-"


@dataclass(frozen=True)
class _Cells(Column):
    """The cells below one label of each key across the top; the header is that of the value in them."""

    labels: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """A label is one line; the name of a column is one word a line."""
        return super().words if self.header else [self.labels[-1]]


@dataclass(frozen=True)
class _Cross:
    """The columns of a cross table as text."""

    title: str
    """What the labels across the top are."""
    keys: Sequence[Column]
    cells: Sequence[_Cells]
    upper: int
    """How many labels of each column stand above its header; the last one is the header if there is one value."""

    @property
    def columns(self) -> list[Column]:
        return [*self.keys, *self.cells]

    @property
    def lowest(self) -> list[str]:
        """The header of every column in the lowest line."""
        return [column.header for column in self.keys] + [c.header or c.labels[-1] for c in self.cells]

    @property
    def lowest_line(self) -> list[tuple[str, bool]]:
        """The same, with whether each is a value of the table, which stays as it is, and no name of a column."""
        are_labels = [False] * len(self.keys) + [not column.header for column in self.cells]
        return list(zip(self.lowest, are_labels, strict=True))

    @property
    def levels(self) -> list[list[tuple[str, int]]]:
        """Lines of labels above the lowest headers, each with the number of columns it spans; keys have none."""
        if not self.cells:
            return []
        lines = [[(self.title, len(self.cells))]]
        for level in range(1, self.upper + 1):
            of_cells = groupby(self.cells, key=lambda column, level=level: column.labels[:level])  # type: ignore[misc]
            lines.append([(labels[-1], len(list(columns))) for labels, columns in of_cells])
        return lines


def _cross_of(name: str, table: CrossTable) -> _Cross:
    """The columns as people see them, in the same units everywhere."""
    pivot = table.pivot
    source = replace(table.source, columns={c: table.source.columns[c] for c in pivot.named}, asked=True)
    shown = {column.name: column for column in shown_columns(name, source)}
    firsts = [next(n for n in row if n is not None) for row in table.numbers]
    keys = [replace(shown[key], texts=[shown[key].texts[n] for n in firsts]) for key in pivot.rows]
    names = ", ".join(_words(shown[key].header) for key in pivot.columns)
    single = len(pivot.values) == 1
    cells = []
    row_of = _rows_of(table)
    for group, keys_across in enumerate(table.across):
        numbers = [row[group] for row in table.numbers]
        any_row = row_of[keys_across]
        labels = tuple(shown[key].texts[any_row] for key in pivot.columns)
        for value in pivot.values:
            column = shown[value]
            texts = [_NOTHING if n is None else column.texts[n] for n in numbers]
            header = "" if single else column.header
            cells.append(_Cells(f"{group} {value}", header, texts, column.is_number, labels=labels))
    title = f"{_words(shown[pivot.values[0]].header)} by {names}" if single else names
    return _Cross(title, keys, cells, len(pivot.columns) - single)


def _rows_of(table: CrossTable) -> dict[tuple[Any, ...], int]:
    """A row of the source for each group; --top may have cut it off from the cross table."""
    keys = zip(*(table.source.columns[name] for name in table.pivot.columns), strict=True)
    return {key: number for number, key in enumerate(keys)}


def _words(header: str) -> str:
    return header.replace("_", " ")


def cross_as_text(name: str, table: CrossTable, screen: Screen = PAPER) -> str:
    """A cross table for a terminal; what does not fit beside the rest stands below it, with the rows' names again."""
    if not len(table):
        return ""
    cross = _cross_of(name, table)
    keys = cross.keys
    groups = [list(columns) for _, columns in groupby(cross.cells, key=lambda column: column.labels)]
    if screen.width is not None:
        room = screen.width - 1
        widest = max(_width(columns) for columns in groups)
        if _width(keys) + widest > room:
            keys = [column.within(column.least) for column in keys]
        if _width(keys) + widest > room:
            groups = [[column] for column in cross.cells]
        blocks = _blocks(groups, room - _width(keys))
    else:
        blocks = [list(cross.cells)]
    return "\n".join(_drawn(replace(cross, keys=keys, cells=cells), screen) for cells in blocks)


def _width(columns: Iterable[Column]) -> int:
    """Width of these columns, each with the gap behind it."""
    listed = list(columns)
    label = max((cell_len(c.labels[-1]) + GAP for c in listed if isinstance(c, _Cells)), default=0)
    return max(sum(column.width + GAP for column in listed), label)


def _blocks(groups: Sequence[list[_Cells]], room: int) -> list[list[_Cells]]:
    """Columns that stand side by side, as many groups as there is room for, one at least."""
    blocks: list[list[_Cells]] = []
    left = 0
    for group in groups:
        wide = _width(group)
        if blocks and wide <= left:
            blocks[-1] += group
            left -= wide
        else:
            blocks.append([*group])
            left = room - wide
    return blocks


def _drawn(cross: _Cross, screen: Screen) -> str:
    widths = {column.name: column.width for column in cross.columns}
    for line in cross.levels[1:]:  # a label wider than what it spans widens the last column of that
        place = 0
        for label, span in line:
            spanned = [column.name for column in cross.cells[place : place + span]]
            place += span
            lacking = cell_len(label) - sum(widths[each] for each in spanned) - GAP * (span - 1)
            widths[spanned[-1]] += max(lacking, 0)
    lines = []
    start = 1 + sum(widths[column.name] + GAP for column in cross.keys)  # rich begins with the edge of its box
    room = None if screen.width is None else screen.width - 1 - start
    for line in cross.levels:
        text, place = " " * start, 0
        for label, span in line:
            wide = sum(widths[column.name] for column in cross.cells[place : place + span]) + GAP * (span - 1)
            place += span
            shown = label if room is None else shortened(label, room)
            filled = span > 1 and line is not cross.levels[0]
            text += _centred(shown, wide, "-" if screen.ascii_only else "\u2500", filled=filled)
            text += " " * GAP
        lines.append(styled(text.rstrip(), "bold", screen))
    return "".join(f"{line}\n" for line in lines) + drawn(cross.columns, widths, None, screen)


def _centred(label: str, width: int, rule: str, *, filled: bool) -> str:
    """The label in the middle of `width` cells, between rules where there is room for them."""
    left = max((width - cell_len(label)) // 2, 0)
    right = max(width - cell_len(label) - left, 0)
    if filled and min(left, right) > 1:
        return f"{rule * (left - 1)} {label} {rule * (right - 1)}"
    return f"{' ' * left}{label}{' ' * right}"


def cross_as_markdown(name: str, table: CrossTable) -> str:
    """A GitHub-flavoured table. It has one line of headers, so the others are rows of bold text."""
    cross = _cross_of(name, table)
    blank = [""] * len(cross.keys)
    head = [[*blank, *map(for_markdown, _spread(line))] for line in cross.levels]
    head.append([for_markdown(header if is_label else _words(header)) for header, is_label in cross.lowest_line])
    lines = [
        _markdown_line(head[0]),
        "|" + "|".join("---:" if column.is_number else "---" for column in cross.columns) + "|",
        *(_markdown_line(f"**{text}**" if text else "" for text in line) for line in head[1:]),
        *(_markdown_line(map(for_markdown, row)) for row in _rows(cross)),
    ]
    return "\n".join(lines) + "\n"


def _markdown_line(line: Iterable[str]) -> str:
    return f"| {' | '.join(line)} |"


def _spread(line: Sequence[tuple[str, int]]) -> list[str]:
    """Each label once, at the first of the columns that it spans."""
    return [text for label, span in line for text in (label, *[""] * (span - 1))]


def _rows(cross: _Cross) -> list[list[str]]:
    return [list(row) for row in zip(*(column.texts for column in cross.columns), strict=True)]


def cross_as_latex(name: str, table: CrossTable) -> str:
    """A booktabs tabular whose upper headers span the columns below them."""
    cross = _cross_of(name, table)
    head = []
    for line in cross.levels:
        place, texts, rules = len(cross.keys), [""] * len(cross.keys), []
        for label, span in line:
            texts.append(f"\\multicolumn{{{span}}}{{c}}{{{for_latex(label)}}}")
            rules.append(f"\\cmidrule(lr){{{place + 1}-{place + span}}}")
            place += span
        head += [latex_line(texts), "".join(rules)]
    labels = [place for place, (_, is_label) in enumerate(cross.lowest_line) if is_label]
    head += [latex_line(line) for line in header_lines(cross.lowest, labels)]
    return tabular(head, cross.lowest, _rows(cross), [column.is_number for column in cross.columns])
