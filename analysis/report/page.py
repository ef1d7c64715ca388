"""A report as HTML: one file that needs no network and runs only its own script.

Its Content-Security-Policy names the script and the style by their hashes, so that nothing a trace brings in can run,
even if it were to escape the quoting of the template.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ...common.version import version
from ..core.escaping import encodable
from ..core.places.files import replace_file
from ..render.fitting import short_words, shortened
from ..render.plots.colours import stylesheet
from .first import FirstView
from .parts import Section, TableBlock
from .steps import StepsData

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from ..render.plots.figure import Figure

_LONGEST_HINT = 10_000
_IN_BACKTICKS = re.compile(r"`([^`]*)`")


@dataclass(frozen=True, repr=False)
class ReportPage:
    """A page; notebooks show it in a frame."""

    title: str
    html: str
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """What it shows, by name."""

    def __repr__(self) -> str:
        return f"<Report on {self.title}: {len(self.html):,} characters; save(path) writes it>"

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        return (
            f'<iframe title="{escape(self.title)}" srcdoc="{escape(self.html)}" '
            'style="width:100%;height:80vh;border:1px solid #8888"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write the page, whole or not at all. Raises OSError."""
        replace_file(Path(path), [self.html.encode("utf-8", "backslashreplace")])


@dataclass(frozen=True)
class Head:
    """The top of the page: the name of the run, the verdict in a sentence, and facts as pairs."""

    title: str
    kind: str
    verdict: str
    facts: Sequence[tuple[str, str]]
    headline: str = ""
    """What a page without a first screen says in large letters, if not the name; the verdict explains it."""


def content_security_policy(script: str, *, live: bool = False) -> str:
    """The policy by which browsers only show the page and run this script; a `live` page asks its server."""
    asks = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(_style())}'; img-src data:; {asks}"
        "base-uri 'none'; form-action 'none'"
    )


def live_policy() -> str:
    """The policy of the page of a server."""
    return content_security_policy(_script(), live=True)


def page(
    head: Head,
    sections: Sequence[Section],
    first: FirstView | None = None,
    steps: StepsData | None = None,
    to_try: Sequence[TableBlock] = (),
    *,
    live: bool = False,
) -> ReportPage:
    """The report with these sections, without empty ones; of a run with its `first` screen, and its `steps`.

    What is `to_try` stands below the cards of the first screen. Figures that the first screen covers are files only.

    A `live` page asks the server that it comes from for steps that it does not hold.
    """
    covered = first.covers if first is not None else frozenset()
    shown = [section.without_figures(covered) for section in sections]
    html = (
        _environment()
        .get_template("page.html")
        .render(
            head=head,
            first=first,
            steps=steps,
            version=version(),
            sections=[section for section in shown if not section.empty],
            to_try=to_try,
            linked=True,
            live=live,
            policy=content_security_policy(_script(), live=live),
            style=_style(),
            script=_script(),
        )
    )
    figures = {figure.name: figure for section in sections for figure in section.figures}
    return ReportPage(head.title, encodable(html), figures)


def first_page(first: FirstView) -> ReportPage:
    """The first screen alone, without links to what is behind it; a notebook shows it as high as it is."""
    script = _asset("fit.js")
    html = (
        _environment()
        .get_template("first_page.html")
        .render(
            first=first,
            to_try=(),
            linked=False,
            policy=content_security_policy(script),
            style=_style(),
            script=script,
        )
    )
    return ReportPage(first.screen.name, encodable(html))


def _script() -> str:
    return _asset("page.js") + _asset("steps.js")


def _style() -> str:
    return stylesheet() + _asset("page.css")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    assets = FileSystemLoader(Path(__file__).with_name("assets"))
    made = Environment(
        loader=assets, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    made.filters["with_code"] = _with_code
    made.filters["whole"] = _whole
    return made


def _shown(value: object) -> object:
    """A value as the templates show it: text without the middle of words as long as only traces have them."""
    return short_words(value) if type(value) is str else value  # a Markup is not: it has been through this


def _with_code(text: str) -> Markup:
    """The text, shortened and escaped, with what stands in backticks as code."""
    from markupsafe import Markup

    return Markup(_IN_BACKTICKS.sub(r"<code>\1</code>", escape(short_words(text))))  # noqa: S704 - escaped before


def _whole(text: str) -> Markup:
    """The text, escaped and not shortened, for what stands under the pointer."""
    from markupsafe import Markup

    return Markup(escape(shortened(text, _LONGEST_HINT)))  # noqa: S704 - escaped before


@cache
def _asset(name: str) -> str:
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _hash(text: str) -> str:
    """The hash of an inline script or style in a Content-Security-Policy. Source: W3C, CSP Level 3."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
