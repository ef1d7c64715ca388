"""A figure with its text, and the table whose numbers it shows."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from ....common.wording import counted
from ...core.escaping import encodable
from ...core.places.files import replace_file
from ..people import Table
from .colours import stylesheet


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

    def save(self, path: str | Path) -> None:
        """Write a page that needs no network; for `.svg` the picture alone. Raises OSError."""
        target = Path(path)
        if target.suffix == ".svg":
            begin, _, rest = self.svg.partition(">")
            text = f'{begin} class="ct" xmlns="http://www.w3.org/2000/svg"><style>{stylesheet()}</style>{rest}'
        else:
            text = (
                f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(self.title)}</title>'
                f"<body>{self._repr_html_()}</body></html>"
            )
        replace_file(target, [encodable(text).encode()])
