"""A table as plain text for stdout: aligned columns that need no terminal."""

from collections.abc import Sequence


def lines(head: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 1) -> list[str]:
    """The table, with the first `names` columns aligned left and the others right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    rule = ["-" * width for width in widths]
    return [_line(row, widths, names) for row in (head, rule, *rows)]


def _line(row: Sequence[str], widths: Sequence[int], names: int) -> str:
    cells = [
        text.ljust(width) if column < names else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
