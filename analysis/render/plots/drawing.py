"""Build SVG from shapes that name a class of the stylesheet instead of a colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from ...core.escaping import printable
from ..fitting import kernel_label, shortened_paths

_CHARACTER_PX = 7.2
WIDTH = 560
"""Of a picture, in pixels: two stand side by side in a page."""
LEGEND_LINE = 18
_LONGEST_LABEL, _LONGEST_HINT = 44, 1000


@dataclass
class Drawing:
    """Shapes on a canvas of `width` x `height` pixels."""

    title: str
    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, classes: str = "") -> None:
        """Add a line of text that begins at x, y; its class may make it end there or centre it."""
        of_class = f' class="{classes}"' if classes else ""
        shown, whole = label(words), label(words, _LONGEST_HINT)
        hint = "" if shown == whole else f"<title>{whole}</title>"
        self.parts.append(f'<text x="{pixels(x)}" y="{pixels(y)}"{of_class}>{shown}{hint}</text>')

    def rectangle(self, place: tuple[float, float, float, float], classes: str) -> None:
        """Add a rectangle (x, y, width, height), filled as its class says."""
        x, y, width, height = map(pixels, place)
        self.parts.append(f'<rect class="{classes}" x="{x}" y="{y}" width="{width}" height="{height}"/>')

    def path(self, commands: str, classes: str, more: str = "") -> None:
        """Add lines or areas, in the language of SVG paths."""
        if commands:
            self.parts.append(f'<path class="{classes}" d="{commands}"{more}/>')

    def circle(self, x: float, y: float, radius: float, classes: str, hint: str = "") -> None:
        """Add a circle, filled as its class says."""
        inside = f"<title>{label(hint, _LONGEST_HINT)}</title>" if hint else ""
        self.parts.append(
            f'<circle class="{classes}" cx="{pixels(x)}" cy="{pixels(y)}" r="{pixels(radius)}"'
            f"{f'>{inside}</circle>' if hint else '/>'}"
        )

    def shape(self, commands: str, classes: str, hint: str) -> None:
        """Add an area that says something under the pointer."""
        self.parts.append(f'<path class="{classes}" d="{commands}"><title>{label(hint, _LONGEST_HINT)}</title></path>')

    def legend(self, y: float, entries: Sequence[tuple[str, str]], x: float = 0) -> None:
        """Add a legend: squares of these fills, which are classes, each with its label; in lines, if too wide."""
        for (line, place), (fill, meaning) in zip(legend_places(entries, x, self.width), entries, strict=True):
            at = y + LEGEND_LINE * line
            self.rectangle((place, at - 9, 11, 11), fill)
            self.text(place + 15, at, meaning, "faint")

    @property
    def svg(self) -> str:
        """The SVG element, with its title for screen readers."""
        return (
            f'<svg role="img" aria-label="{label(self.title, _LONGEST_HINT)}" viewBox="0 0 {pixels(self.width)} '
            f'{pixels(self.height)}" width="{pixels(self.width)}">{"".join(self.parts)}</svg>'
        )


def legend_places(entries: Iterable[tuple[str, str]], x: float, width: float) -> list[tuple[int, float]]:
    """The line, and where in it, of each entry of a legend that begins at `x` in a drawing of this width."""
    places, line, at = list[tuple[int, float]](), 0, x
    for _, meaning in entries:
        wide = 15 + text_width(meaning)
        if at + wide > width and at > x:
            line, at = line + 1, x
        places.append((line, at))
        at += wide + 20
    return places


def label(words: str, longest: int = _LONGEST_LABEL) -> str:
    """Text from a trace for use in markup: control characters escaped, and shortened like a kernel if too long."""
    return escape(kernel_label(printable(str(words)), longest), quote=True)


def region_labels(places: Sequence[tuple[str, str | None]]) -> list[str]:
    """Labels of regions, each a path and its phase: without outermost names, where the whole is too long."""
    behind = ["" if phase is None else f" ({phase})" for _, phase in places]
    paths = shortened_paths(
        [printable(region) for region, _ in places], [_LONGEST_LABEL - len(phase) for phase in behind]
    )
    return [f"{path}{phase}" for path, phase in zip(paths, behind, strict=True)]


def text_width(words: str) -> float:
    """Approximate width of a label in pixels."""
    return min(len(printable(words)), _LONGEST_LABEL) * _CHARACTER_PX


def pixels(number: float) -> str:
    """Format a coordinate with at most one decimal."""
    return f"{number:.1f}".removesuffix(".0")
