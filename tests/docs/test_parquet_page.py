"""docs/parquet.md: its queries run as they are, with the results that stand below them."""

from __future__ import annotations

from pathlib import Path

import pytest
from parquet_page import PAGE, RUN, page_with_results, queries, result

from commtrace.cli import main

_PAGE = PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the export that the page asks."""
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("exported")
    assert main(["export", "parquet", str(RUN), "-o", str(folder / f"{RUN.name}-parquet"), "--no-cache"]) == 0
    return folder


def test_the_page_has_queries_with_results() -> None:
    assert len(queries(_PAGE, "sql")) >= 5
    assert len(queries(_PAGE, "python")) == 1
    assert all(table.count("\n") > 2 for kind in ("sql", "python") for _, table in queries(_PAGE, kind))


@pytest.mark.parametrize("language", ["sql", "python"])
def test_queries_have_these_results(language: str, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip({"sql": "duckdb", "python": "polars"}[language])
    monkeypatch.chdir(exported)
    for query, table in queries(_PAGE, language):
        assert result(language, query) == table, "run: python tests/docs/parquet_page.py"


def test_results_on_the_page_are_replaced(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(exported)
    page = "a\n\n```sql\nSELECT 1 AS one\n```\n\n| old |\n| --- |\n| 2 |\n\nb\n\n```sh\nls\n```\n"
    assert page_with_results(page) == page.replace("old", "one").replace("| 2 |", "| 1 |")
