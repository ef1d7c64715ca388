"""Results of the queries in docs/parquet.md. `python tests/docs/parquet_page.py` writes them; needs DuckDB, Polars."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "parquet.md"
RUN = ROOT / "traces" / "resnet18-ddp-w2"
QUERY = re.compile(r"^```(sql|python)\n([^`]*?)^```\n(?:\n((?:\|[^\n]*\n)+))?", re.MULTILINE)


def queries(page: str, language: str) -> list[tuple[str, str]]:
    """The queries of a page with a result, and the result as it is on the page."""
    return [(query, table or "") for kind, query, table in QUERY.findall(page) if kind == language and is_one(query)]


def is_one(block: str) -> bool:
    """Whether a block of code has a result."""
    return "SELECT" in block or "found =" in block


def result(language: str, query: str) -> str:
    """Result of a query in the current folder, as Markdown."""
    if language == "sql":
        import duckdb

        asked = duckdb.sql(query)
        return _markdown(asked.columns, asked.fetchall())
    names: dict[str, Any] = {}
    exec(query, names)
    return _markdown(names["found"].columns, names["found"].rows())


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *(["" if v is None else str(v) for v in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page_with_results(page: str) -> str:
    """The page with all results as they are now, of files in the current folder."""

    def with_result(match: re.Match[str]) -> str:
        kind, query, _ = match.groups()
        block = f"```{kind}\n{query}```\n"
        return f"{block}\n{result(kind, query)}" if is_one(query) else match[0]

    return QUERY.sub(with_result, page)


if __name__ == "__main__":
    from commtrace.cli import main

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if main(["export", "parquet", str(RUN), "--no-cache"]):
            sys.exit(1)
        PAGE.write_text(page_with_results(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: results written\n")
