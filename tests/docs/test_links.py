"""Every relative link in the documents leads to a file and a heading, and every document that code names exists."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.md")])


@pytest.mark.parametrize("document", [pytest.param(d, id=str(d.relative_to(ROOT))) for d in DOCUMENTS])
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^()\s]+)\)", _prose(document))
    assert [link for link in links if not _leads(document, link)] == []


@pytest.mark.parametrize("package", ["analysis", "profiling", "tests", "benchmarks"])
def test_documents_that_the_code_names_exist(package: str) -> None:
    named = {path for file in (ROOT / package).glob("**/*.py")
             for path in re.findall(r"docs/[\w./-]+\.md", file.read_text(encoding="utf-8"))}  # fmt: skip
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert sorted(re.findall(r"[\w./-]+\.md", navigation)) == sorted(pages)


def test_what_the_page_of_the_api_documents_exists() -> None:
    """`make site` would say so too, but only where the site is built."""
    named = re.findall(r"^::: (commtrace[\w.]*)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) > 10
    for name in named:
        pkgutil.resolve_name(name)


def test_paths_in_contributing_exist() -> None:
    named = re.findall(r"`((?:analysis|commtrace|docs|profiling|tests)/[\w./-]*)`", _prose(ROOT / "CONTRIBUTING.md"))
    gone = [path for path in named if not ((ROOT / path).exists() or (ROOT / f"{path}.py").is_file())]
    assert gone == [], "CONTRIBUTING.md names paths that do not exist: correct them there"


def _leads(document: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = document.parent / path if path else document
    return target.exists() and (not heading or heading in _anchors(target))


def _anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#{1,6} (.+)$", _prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _prose(document: Path) -> str:
    return re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
