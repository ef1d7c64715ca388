"""Tables -> text. Renderers return strings; writing them is the caller's."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from .data import as_csv, as_json
from .people import as_markdown, as_text

FORMATS: dict[str, Callable[[str, pd.DataFrame], str]] = {
    "table": as_text,
    "csv": as_csv,
    "markdown": as_markdown,
    "json": as_json,
}

__all__ = ["FORMATS", "as_csv", "as_json", "as_markdown", "as_text"]
