"""docs/glossary.md and `commtrace explain` say what analysis/glossary.py says."""

from __future__ import annotations

import re
from html import unescape

import pytest
from glossary_page import PAGE, page

import commtrace
from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.errors import UnknownTerm
from commtrace.analysis.glossary import GLOSSARY, look_up
from commtrace.analysis.metrics.typical_step import STEP_PARTS
from commtrace.analysis.metrics.verdicts.of_idle import IDLE_CAUSES
from commtrace.cli import main


def test_the_page_is_what_the_glossary_says() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert page() == written, "docs/glossary.md is out of date: run python tests/docs/glossary_page.py"


def test_terms_stand_in_alphabetical_order() -> None:
    assert list(GLOSSARY) == sorted(GLOSSARY, key=str.lower)


def test_columns_that_terms_name_exist() -> None:
    columns = {column for entry in CATALOG.values() for column in entry.schema.columns}
    named = {word for term in GLOSSARY.values() for word in term.synonyms if "_" in word}
    assert named - columns == set()


@pytest.mark.parametrize(
    ("word", "term"),
    [("exposed", "exposed"), ("Critical-Path", "critical path"), ("overlap", "hidden"), ("bus bandwidth", "busbw")],
)
def test_a_term_is_known_by_its_spellings(word: str, term: str) -> None:
    assert look_up(word) == [term]


def test_verdicts_and_the_parts_of_a_step_are_terms() -> None:
    """What the first screen says in a word."""
    verdicts = re.findall(
        r"[a-z]+-bound|mixed|inconclusive|hidden|idle|hang", CATALOG["verdicts"].schema.columns["verdict"][1]
    )
    assert len(verdicts) > 12
    assert [word for word in [*verdicts, *STEP_PARTS.values(), *IDLE_CAUSES.values()] if len(look_up(word)) != 1] == []


def test_explain_prints_a_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "critical", "path"]) == 0
    shown = capsys.readouterr().out
    assert " ".join(shown.split()).startswith(f"critical path: {GLOSSARY['critical path'].meaning}")
    assert "docs/metrics/critical-path.md" in shown


def test_explain_knows_tables_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "breakdown"]) == 0
    assert f"one row per {CATALOG['breakdown'].schema.rows}" in " ".join(capsys.readouterr().out.split())
    assert main(["explain", "caused_wait_frac"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert CATALOG["ranks"].schema.columns["caused_wait_frac"][1] in shown


@pytest.mark.parametrize("word", ["late", "Critical-Path", "breakdown", "caused_wait_ns"])
def test_the_library_explains_what_the_command_does(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = commtrace.explain(word)
    assert main(["explain", word]) == 0
    assert f"{found!r}\n" == capsys.readouterr().out
    shown = unescape(re.sub("<[^>]*>", " ", found._repr_html_()))
    assert "".join(shown.split()) == "".join(repr(found).split())


def test_the_library_offers_the_nearest_word() -> None:
    with pytest.raises(UnknownTerm, match=r"called exposde; did you mean exposed\?"):
        commtrace.explain("exposde")


def test_explain_lists_every_term(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in GLOSSARY if not f"\n{shown}".count(f"\n{name} ")] == []


def test_explain_offers_the_nearest_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "exposde"]) == 2
    assert "did you mean exposed?" in capsys.readouterr().err
