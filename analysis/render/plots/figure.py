"""A figure with its text, and the table whose numbers it shows: in a page, in a notebook, or as a file by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap

from ....common.extras import not_installed
from ....common.wording import counted
from ...core.escaping import encodable, printable
from ...core.places.files import replace_file
from ...errors import MissingLibrary
from ..people import Table
from .colours import paper_stylesheet, stylesheet

_MARGIN, _TITLE_PX, _TITLE_LETTER_PX, _PIXELS = 14, 20, 8, 2
_VIEW = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_SIZE = re.compile(r' (?:viewBox|width|height)="[^"]*"')


def part_shown(shown: int, whole: int, what: str, which: str) -> str:
    """A sentence on what a picture has of many, such as `20 of 64 ranks: those ...`; empty if it has all."""
    return f" {shown:,} of {counted(whole, what)}: {which}." if shown < whole else ""


@dataclass(frozen=True, repr=False)
class Figure:
    """A picture, its explanation, and its table, by the name in the catalog.

    `svg` stands alone in a page that has the stylesheet; `data` is what the script of a report needs to let people look
    closer. A notebook shows the figure by itself.
    """

    name: str
    title: str
    about: str
    svg: str
    table_name: str
    table: Table
    data: str = ""

    def __repr__(self) -> str:
        return f"<Figure {self.name}: {self.title}; save(path) writes it>"

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        return f'<div class="ct"><style>{stylesheet()}</style>{self.svg}</div>'

    @property
    def width(self) -> float:
        """How wide it is drawn, in pixels."""
        found = _VIEW.search(self.svg)
        return float(found[1]) if found else 0.0

    @property
    def alone(self) -> str:
        """The picture as SVG that needs no page: on white, in light colours, with its title above it."""
        found = _VIEW.search(self.svg)
        if found is None:
            raise ValueError(f"figure {self.name} has no size")
        wide, high = float(found[1]), float(found[2])
        lines = _title_lines(self.title, wide)
        above = _MARGIN + _TITLE_PX * len(lines)
        width, height = wide + 2 * _MARGIN, high + above + _MARGIN
        title = "".join(
            f'<text x="0" y="{_TITLE_PX * (number - len(lines)) + _TITLE_PX / 4:g}" '
            f'style="font-size:14px;font-weight:bold">{escape(line)}</text>'
            for number, line in enumerate(lines)
        )
        place = f'viewBox="{-_MARGIN} {-above:g} {width:g} {height:g}" width="{width:g}" height="{height:g}"'
        begin, _, rest = self.svg.partition(">")
        begin = f'{_SIZE.sub("", begin)} xmlns="http://www.w3.org/2000/svg" {place}'
        ground = f'<rect x="{-_MARGIN}" y="{-above:g}" width="{width:g}" height="{height:g}" fill="#fff"/>'
        return f"{begin}><style>{paper_stylesheet()}</style>{ground}{title}{rest}\n"

    def content(self, suffix: str) -> bytes:
        """The picture as a file with this suffix: `.svg` or `.png` by itself, else a page that needs no network.

        Raises MissingLibrary for `.png` without resvg-py.
        """
        if suffix == ".svg":
            return encodable(self.alone).encode()
        if suffix == ".png":
            return _png(encodable(self.alone))
        text = (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f"<body>{self._repr_html_()}</body></html>"
        )
        return encodable(text).encode()

    def save(self, path: str | Path) -> None:
        """Write a page, or for `.svg` and `.png` the picture alone. Raises OSError, MissingLibrary."""
        target = Path(path)
        replace_file(target, [self.content(target.suffix.lower())])


def _title_lines(title: str, width: float) -> list[str]:
    """The title in lines that are no wider than the picture."""
    return wrap(printable(title), max(int(width / _TITLE_LETTER_PX), 20)) or [""]


def check_png() -> None:
    """Raise MissingLibrary if pictures cannot be written as PNG."""
    if find_spec("resvg_py") is None:
        raise MissingLibrary(not_installed("resvg-py", "a figure as PNG", "figures"))


def _png(svg: str) -> bytes:
    """The picture in pixels, two for each of SVG's. Raises MissingLibrary."""
    check_png()
    return bytes(import_module("resvg_py").svg_to_bytes(svg_string=svg, zoom=_PIXELS))
