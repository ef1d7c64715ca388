"""Turn tables into text. Renderers return strings; the caller writes them."""

from __future__ import annotations

from collections.abc import Callable

from ..core.pivots import CrossTable
from .cross import cross_as_latex, cross_as_markdown, cross_as_text
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

CROSS_FORMATS: dict[str, Callable[[str, CrossTable], str]] = {
    "table": cross_as_text,
    "csv": as_csv,
    "markdown": cross_as_markdown,
    "json": as_json,
    "latex": cross_as_latex,
}
"""The same for a cross table."""

__all__ = [
    "CROSS_FORMATS",
    "FORMATS",
    "Table",
    "as_csv",
    "as_json",
    "as_latex",
    "as_markdown",
    "as_text",
    "cross_as_text",
]
