"""Tables for LaTeX: a booktabs tabular with the columns and units of the markdown form."""

from __future__ import annotations

from collections.abc import Collection

from ...common.markup import for_latex
from .people import Table, cells

_NEEDS = "% needs \\usepackage{booktabs}\n"
_NEEDS_BOTH = "% needs \\usepackage{booktabs,graphicx}\n"
# Makes a wide table as wide as the text, and leaves any other as it is.
_FITTED = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"
_NOTHING = "-"
_LONGEST = 40  # letters of a cell that is not broken into lines
# So much has a line of text of 345 pt, which is `article` at 10 pt, with letters of 5 pt and 12 pt between columns.
_TEXT_PT, _LETTER_PT, _GAP_PT, _PARAGRAPH_PT = 345, 5, 12, 171


def as_latex(name: str, table: Table) -> str:
    """A tabular to paste into a report: headers stacked word by word, numbers to the right, NA as a dash.

    What is wider than a page is made smaller where it is printed.
    """
    headers, rows, numeric = cells(name, table)
    return tabular([latex_line(line) for line in header_lines(headers)], headers, rows, numeric)


def tabular(head: list[str], lowest: list[str], rows: list[list[str]], numeric: list[bool]) -> str:
    """A tabular with these lines of LaTeX as its head; `lowest` are the words that stand in its columns there."""
    columns = [[row[i] for row in rows] for i in range(len(lowest))]
    alignments = [_alignment(texts, right) for texts, right in zip(columns, numeric, strict=True)]
    widths = [
        _PARAGRAPH_PT if alignment.startswith("p") else _LETTER_PT * max(map(len, (*_words(header), *texts)), default=0)
        for header, texts, alignment in zip(lowest, columns, alignments, strict=True)
    ]
    is_wide = sum(widths) + _GAP_PT * len(widths) > _TEXT_PT
    lines = [
        *([_FITTED] if is_wide else []),
        f"\\begin{{tabular}}{{{''.join(alignments)}}}",
        "\\toprule",
        *head,
        "\\midrule",
        *(latex_line([_cell(c, right) for c, right in zip(row, numeric, strict=True)]) for row in rows),
        "\\bottomrule",
        "\\end{tabular}" + ("}" if is_wide else ""),
    ]
    return (_NEEDS_BOTH if is_wide else _NEEDS) + "\n".join(lines) + "\n"


def _alignment(texts: list[str], is_number: bool) -> str:
    """Alignment of a column; sentences get a fixed width and wrap, as they would leave the page."""
    if is_number:
        return "r"
    return "p{6cm}" if max(map(len, texts), default=0) > _LONGEST else "l"


def latex_line(line: list[str]) -> str:
    """A row of cells that are LaTeX already."""
    return " & ".join(line) + " \\\\"


def _cell(text: str, is_number: bool) -> str:
    if text == _NOTHING:
        return "--"
    if is_number and text.startswith("-"):
        return "$-$" + for_latex(text[1:])
    return for_latex(text)


def header_lines(headers: list[str], labels: Collection[int] = ()) -> list[list[str]]:
    """The headers as lines of one word each, aligned at the bottom; those at the places of `labels` stay whole."""
    words = [
        [for_latex(word) for word in ([header] if place in labels else _words(header))]
        for place, header in enumerate(headers)
    ]
    height = max((len(column) for column in words), default=0)
    padded = [[""] * (height - len(column)) + column for column in words]
    return [list(line) for line in zip(*padded, strict=True)]


def _words(header: str) -> list[str]:
    return header.replace("_", " ").split()
