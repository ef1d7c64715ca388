"""The table of layers in every format that the tables of the analysis have. Knows no torch."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Literal

from ...common.markup import for_latex, for_markdown
from ...contract.record import content
from ..base.console import text_table
from .results import HEAD, NA, NAMES, LayersResults

FormatName = Literal["table", "csv", "markdown", "json", "latex"]
_COLUMNS = (
    "layer",
    "kind",
    "input_shape",
    "output_shape",
    "forward_mean_ns",
    "forward_spread_ns",
    "backward_mean_ns",
    "backward_spread_ns",
    "parameter_bytes",
    "saved_bytes",
    "activation_bytes",
    "formula_activation_bytes",
    "peak_bytes",
    "power_w",
    "reason",
    "power_reason",
)
"""Columns of CSV: fields of layers.json but for single times."""


def written(results: LayersResults, output_format: FormatName) -> str:
    """The table in this format, without the last line break."""
    if output_format == "csv":
        return _csv(results)
    if output_format == "json":
        return json.dumps(content(results.file(None)), indent=1)
    rows = [row.cells() for row in results.rows]
    notes = [*results.ratio_lines(), *results.reasons()]
    if output_format == "markdown":
        return "\n".join([*_markdown(rows), *(f"\n{for_markdown(note)}" for note in notes)])
    if output_format == "latex":
        return "\n".join([*_latex(rows), *(f"\n{for_latex(note)}" for note in notes)])
    return "\n".join([*text_table.lines(HEAD, rows, names=NAMES), *notes])


def _csv(results: LayersResults) -> str:
    """All in full: times in ns, sizes in bytes; what is not known is empty."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_COLUMNS)
    for row in results.rows:
        entry = content(row.entry())
        lines.writerow("x".join(map(str, v)) if isinstance(v, list) else v for v in map(entry.get, _COLUMNS))
    return text.getvalue().rstrip("\n")


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "|".join("---" if number < NAMES else "---:" for number in range(len(HEAD)))
    body = (f"| {' | '.join(map(for_markdown, row))} |" for row in rows)
    return [f"| {' | '.join(HEAD)} |", f"|{rule}|", *body]


def _latex(rows: Sequence[Sequence[str]]) -> list[str]:
    """A booktabs tabular: headers in two lines, the unit below."""
    names, units = zip(*(head.partition(" (")[::2] for head in HEAD), strict=True)
    heads = [names, [f"({unit}" if unit else "" for unit in units]]
    body = [["--" if cell == NA else for_latex(cell) for cell in row] for row in rows]
    lines = [f"{' & '.join(line)} \\\\" for line in (*heads, ["\\midrule"], *body)]
    lines[len(heads)] = "\\midrule"
    columns = "l" * NAMES + "r" * (len(HEAD) - NAMES)
    begin = ["% needs \\usepackage{booktabs}", f"\\begin{{tabular}}{{{columns}}}", "\\toprule"]
    return [*begin, *lines, "\\bottomrule", "\\end{tabular}"]
