"""Tables for programs: every column, full integers, NA as nothing (CSV) or null (JSON)."""

from __future__ import annotations

import json

import pandas as pd

from ..schema import records


def as_csv(name: str, table: pd.DataFrame) -> str:  # noqa: ARG001
    """RFC 4180 with a header line; NA is an empty field."""
    return str(table.to_csv(index=False, lineterminator="\n"))


def as_json(name: str, table: pd.DataFrame) -> str:
    """`{"table": name, "rows": [{column: value}, ...]}`; NA is null."""
    return json.dumps({"table": name, "rows": records(table)}, indent=1, ensure_ascii=True) + "\n"
