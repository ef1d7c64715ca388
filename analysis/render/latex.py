"""Tables for LaTeX: a booktabs tabular with the columns and units of the markdown form."""

from __future__ import annotations

from ...common.markup import for_latex
from .people import Table, cells

_NEEDS = "% needs \\usepackage{booktabs}\n"
_NOTHING = "-"
_LONGEST = 40  # letters of a cell that is not broken into lines


def as_latex(name: str, table: Table) -> str:
    """A tabular to paste into a report: headers stacked word by word, numbers to the right, NA as a dash."""
    headers, rows, numeric = cells(name, table)
    columns = [[row[i] for row in rows] for i in range(len(headers))]
    lines = [
        "\\begin{tabular}{"
        + "".join(_alignment(texts, right) for texts, right in zip(columns, numeric, strict=True))
        + "}",
        "\\toprule",
        *(_line(line) for line in _stacked(headers)),
        "\\midrule",
        *(_line([_cell(c, right) for c, right in zip(row, numeric, strict=True)]) for row in rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return _NEEDS + "\n".join(lines) + "\n"


def latex_escaped(text: str) -> str:
    """Escape `text` for LaTeX: no part of it is a command or joins into a longer dash or a quote."""
    return for_latex(text)


def _alignment(texts: list[str], is_number: bool) -> str:
    """Alignment of a column; sentences get a fixed width and wrap, as they would leave the page."""
    if is_number:
        return "r"
    return "p{6cm}" if max(map(len, texts), default=0) > _LONGEST else "l"


def _line(line: list[str]) -> str:
    return " & ".join(line) + " \\\\"


def _cell(text: str, is_number: bool) -> str:
    if text == _NOTHING:
        return "--"
    if is_number and text.startswith("-"):
        return "$-$" + latex_escaped(text[1:])
    return latex_escaped(text)


def _stacked(headers: list[str]) -> list[list[str]]:
    """The headers as lines of one word each, aligned at the bottom."""
    words = [[latex_escaped(word) for word in header.replace("_", " ").split()] for header in headers]
    height = max((len(column) for column in words), default=0)
    padded = [[""] * (height - len(column)) + column for column in words]
    return [list(line) for line in zip(*padded, strict=True)]
