"""Tables for programs: every column, full integers, NA as nothing (CSV) or null (JSON)."""

from __future__ import annotations

import csv
import json
import re
from io import StringIO

from ..core.escaping import printable
from ..core.pivots import CrossTable
from ..core.schema import plain
from .people import Table

# A spreadsheet takes a cell that begins so for a formula, and runs it; one that separates by semicolons, as in many
# countries, sees a cell begin behind each of them. `'` that stand there already count too: one is always taken away.
_FORMULA = re.compile(r"""(^|;[ "]*)(?='*[=+\-@\uff1d\uff0b\uff0d\uff20])""")


def as_csv(name: str, table: Table | CrossTable) -> str:  # noqa: ARG001
    """CSV as in RFC 4180 with a header line; NA is an empty field. Numbers are written in full.

    Text comes from traces: its control characters are written out, so that every row is a line, and what a spreadsheet
    would run is put after a `'`, which whoever takes it away there gets the text back from. Source: OWASP, "CSV
    Injection".
    """
    values = table.flat if isinstance(table, CrossTable) else plain(table)
    columns = [[_inert(v) for v in column] for column in values.columns.values()]
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(map(_inert, values.columns))
    lines.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _inert(value: object) -> object:
    if not isinstance(value, str):
        return value
    return _FORMULA.sub(r"\1'", printable(value))


def as_json(name: str, table: Table | CrossTable) -> str:
    """`{"table": name, "rows": [{column: value}, ...]}`; NA is null.

    A row of a cross table has `cells`, a dictionary for each group of columns.
    """
    rows = table.nested if isinstance(table, CrossTable) else plain(table).rows
    return json.dumps({"table": name, "rows": rows}, indent=1, ensure_ascii=True) + "\n"
