"""A table as plain text for stdout: aligned columns, and nothing that a terminal is needed for."""

from collections.abc import Sequence


def lines(head: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 1) -> list[str]:
    """The table; the first `names` columns to the left, as names are, the others to the right, as numbers are."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    rule = ["-" * width for width in widths]
    return [_line(row, widths, names) for row in (head, rule, *rows)]


def _line(row: Sequence[str], widths: Sequence[int], names: int) -> str:
    cells = [
        text.ljust(width) if column < names else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
