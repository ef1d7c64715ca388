"""Tables for programs: every column, full integers, NA as nothing (CSV) or null (JSON)."""

from __future__ import annotations

import json

import pandas as pd

from ..schema import records
from .people import printable

# A spreadsheet takes a cell that begins so for a formula, and runs it.
_FORMULA = ("=", "+", "-", "@")


def as_csv(name: str, table: pd.DataFrame) -> str:  # noqa: ARG001
    """RFC 4180 with a header line; NA is an empty field. Numbers are written as they are.

    Text comes from traces: its control characters are written out, so that every row is a line, and what a spreadsheet
    would run is put after a `'`. Source: OWASP, "CSV Injection".
    """
    texts = [c for c in table if not pd.api.types.is_numeric_dtype(table[c])]
    safe = table.assign(**{str(c): table[c].map(_inert) for c in texts})
    return str(safe.to_csv(index=False, lineterminator="\n"))


def _inert(value: object) -> object:
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(_FORMULA) else value)


def as_json(name: str, table: pd.DataFrame) -> str:
    """`{"table": name, "rows": [{column: value}, ...]}`; NA is null."""
    return json.dumps({"table": name, "rows": records(table)}, indent=1, ensure_ascii=True) + "\n"
