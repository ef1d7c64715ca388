"""A report taken apart: its tables, elements and scripts, as a parser of HTML sees them."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from html.parser import HTMLParser


@dataclass
class ReadTable:
    """A table of the page; cells as text."""

    title: str
    headers: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


class ReadPage(HTMLParser):
    """Elements with their attributes, tables, and the text of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[ReadTable] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.styles: list[str] = []
        self.texts: list[str] = []
        self._inside: str | None = None
        self._in_body = self._in_details = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "code":  # a part of the sentence around it
            return
        self._inside = tag
        is_table = tag == "details" and "table" in (dict(attrs).get("class") or "").split()
        self._in_details |= is_table
        if tag in ("tbody", "tr", "td", "th") and not self._in_details:
            self._inside = None  # the map of the first screen is no table of the catalog
        elif tag == "summary" and self._in_details:
            self.tables.append(ReadTable(""))
            self._in_body = False
        elif tag == "tbody":
            self._in_body = True
        elif tag == "tr" and self._in_body:
            self.tables[-1].rows.append([])
        elif tag == "td":
            self.tables[-1].rows[-1].append("")
        elif tag == "th":
            self.tables[-1].headers.append("")
        elif tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))
        elif tag == "style":
            self.styles.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style", "button", "summary", "details"):
            self._inside = None
        if tag == "details":
            self._in_details = False

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = kind, text + data
        elif self._inside == "style":
            self.styles[-1] += data
        else:
            self.texts.append(data)
            if self._inside == "summary" and self._in_details:
                self.tables[-1].title += data
            elif self._inside == "td":
                self.tables[-1].rows[-1][-1] += data.rstrip("\n")
            elif self._inside == "button":
                self.tables[-1].headers[-1] += data

    @property
    def policy(self) -> str:
        """Its Content-Security-Policy."""
        [found] = [
            a["content"] for tag, a in self.elements
            if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
        ]  # fmt: skip
        return str(found)

    @property
    def may_run(self) -> list[str]:
        """The scripts that a browser would take for code."""
        return [text for kind, text in self.scripts if kind != "application/json"]


def hash_of(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def assert_self_contained(html: str) -> ReadPage:
    """Nothing is fetched, and nothing runs but the one script that the policy names by its hash."""
    read = ReadPage(html)
    [script], [style] = read.may_run, read.styles
    assert f"script-src '{hash_of(script)}';" in read.policy
    assert f"style-src '{hash_of(style)}';" in read.policy
    assert read.policy.startswith("default-src 'none';")
    assert "unsafe" not in read.policy
    allowed = {
        *("html", "head", "meta", "title", "style", "body", "a", "header", "p", "h1", "nav", "main", "section", "h2"),
        *("ul", "li", "figure", "h3", "div", "figcaption", "script", "details", "summary", "table", "thead", "tbody"),
        *("tr", "th", "td", "button", "dl", "dt", "dd", "footer"),
        *("article", "b", "code", "i", "noscript", "small", "span"),
        *("svg", "g", "text", "rect", "path", "circle", "pattern"),
    }
    assert {tag for tag, _ in read.elements} <= allowed
    for _, attributes in read.elements:
        assert not any(name.startswith("on") or name in ("src", "srcset", "style") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"@import|url\((?!#)", html)
    return read
