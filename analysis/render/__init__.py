"""Turn tables into text. Renderers return strings; the caller writes them."""

from __future__ import annotations

from collections.abc import Callable

from .data import as_csv, as_json
from .latex import as_latex
from .people import Table, as_markdown, as_text

FORMATS: dict[str, Callable[[str, Table], str]] = {
    "table": as_text,
    "csv": as_csv,
    "markdown": as_markdown,
    "json": as_json,
    "latex": as_latex,
}

__all__ = ["FORMATS", "Table", "as_csv", "as_json", "as_latex", "as_markdown", "as_text"]
