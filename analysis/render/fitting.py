"""Fit columns to a width: keep the most important, shorten names, wrap sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.cells import cell_len

PATH_SEPARATOR = " > "
"""Between the names of a path."""
GAP = 2
"""Between two columns, in cells."""
LONGEST_WORD = 200
_WORDS = re.compile(r"\S+")
_ELLIPSIS = "..."
# Narrower than that, neither says much.
_LEAST_NAME, _LEAST_KERNEL, _LEAST_SENTENCE = 16, 40, 18
_LEAST_ARGUMENTS = 6  # of a template
_USUAL_TABLE = 100
_LEAST_OUTER = 9  # of a name that is not the last one of its path
_SENTENCES = frozenset({"because", "note", "basis", "ceiling_note", "what", "how", "assumes"})
_KERNELS = frozenset({"name", "operator", "kernel", "part"})
_PATHS = frozenset({"region", "slowest_region"})
_LONG = _KERNELS | _PATHS | {"group"}


@dataclass(frozen=True)
class Column:
    """A column as people see it. Widths are in terminal cells: some characters take two, others none."""

    name: str
    header: str
    texts: list[str]
    is_number: bool
    factor: float = 1.0
    """A value of the table is the number shown times this, plus `origin`."""
    origin: int = 0
    full: Mapping[int, str] = field(default_factory=dict)
    """Whole texts of the rows whose text is shortened."""

    @property
    def words(self) -> list[str]:
        """The words of the header, one per line."""
        return self.header.replace("_", " ").split()

    @property
    def is_sentence(self) -> bool:
        """Whether its texts may be wrapped."""
        return self.name in _SENTENCES

    @property
    def width(self) -> int:
        """Full width, in cells."""
        return max(map(cell_len, (*self.words, *self.texts)))

    @property
    def least(self) -> int:
        """Minimum width, in cells."""
        if self.is_number:
            return self.width
        of_text = _LEAST_KERNEL if self.name in _LONG else _LEAST_SENTENCE if self.is_sentence else _LEAST_NAME
        return min(self.width, max(*map(cell_len, self.words), of_text))

    def least_of(self, table_width: int) -> int:
        """Minimum width in a table of this width: of a wide one, names of kernels and regions take a part."""
        more = max(0, table_width - _USUAL_TABLE) // 2 if self.name in _LONG else 0
        return min(self.width, self.least + more)

    def within(self, width: int) -> Column:
        """Shorten names to this width; sentences stay whole, since they are wrapped."""
        if self.is_sentence:
            return self
        if self.name in _PATHS:
            return replace(self, texts=shortened_paths(self.texts, [width] * len(self.texts)))
        short = shortened_kernel if self.name in _KERNELS else shortened
        return replace(self, texts=[short(text, width) for text in self.texts])


def fitted(columns: Sequence[Column], order: Sequence[str], width: int) -> tuple[dict[str, int], list[Column]]:
    """The width of each column that fits into a table of this width, and the columns that do not fit.

    Columns are taken in `order`, then in their own, while there is room for their minimum width. What is left goes to
    names and sentences, in the same order. The first column always stays.
    """
    ranked = sorted(columns, key=lambda column: order.index(column.name) if column.name in order else len(order))
    room, widths = width - 1, dict[str, int]()
    for column in ranked:
        least = column.least_of(width)
        if least + GAP <= room or not widths:
            widths[column.name] = least
            room -= least + GAP
    for column in ranked:
        if column.name in widths:
            more = max(0, min(column.width - widths[column.name], room))
            widths[column.name] += more
            room -= more
    return widths, [column for column in columns if column.name not in widths]


def shortened(text: str, width: int) -> str:
    """The text without its middle if it is wider than `width` cells."""
    if cell_len(text) <= width:
        return text
    if width <= len(_ELLIPSIS):
        return _ELLIPSIS[:width]
    room = width - len(_ELLIPSIS)
    head = _beginning(text, room - room // 2)
    return f"{head}{_ELLIPSIS}{_beginning(text[::-1], room - cell_len(head))[::-1]}"


def without_front(text: str, width: int) -> str:
    """The text without its beginning if it is wider than `width` cells: names differ at their ends."""
    if cell_len(text) <= width:
        return text
    if width <= len(_ELLIPSIS):
        return _ELLIPSIS[:width]
    return f"{_ELLIPSIS}{_beginning(text[::-1], width - len(_ELLIPSIS))[::-1]}"


def short_words(text: str, most: int = LONGEST_WORD) -> str:
    """The text without the middle of words that are wider than `most` cells; only names from traces are."""
    if len(text) <= most // 2:  # a character has two cells at most
        return text
    return _WORDS.sub(lambda word: shortened(word[0], most), text)


def around(before: str, name: str, after: str, width: int) -> str:
    """Join `before`, `name` and `after` within this width: the name loses its middle, never a number beside it."""
    return f"{before}{shortened(name, max(width - cell_len(before) - cell_len(after), len(_ELLIPSIS)))}{after}"


def shortened_kernel(name: str, width: int) -> str:
    """The name of a function, without its arguments if too wide; then shortened like other text."""
    if cell_len(name) <= width:
        return name
    name = name.removeprefix("void ")
    without = _without_arguments(name)
    return shortened(name if without == name else f"{without}({_ELLIPSIS})", width)


def kernel_label(name: str, width: int) -> str:
    """The name of a function for a picture: without its arguments, then without what is in front, if too wide.

    Of a template, the name stays whole, without namespaces, and its arguments lose their beginning.
    """
    if cell_len(name) <= width:
        return name
    name = _without_arguments(name.removeprefix("void "))
    if cell_len(name) <= width:
        return name
    function, is_template, arguments = name.partition("<")
    function = function.rpartition("::")[2]
    room = width - cell_len(function) - 1
    if not is_template:
        return without_front(name, width)
    if room < _LEAST_ARGUMENTS:
        return f"{without_front(function, width - len(_ELLIPSIS) - 2)}<{_ELLIPSIS}>"
    return f"{function}<{without_front(arguments, room)}"


def _without_arguments(name: str) -> str:
    if not name.endswith(")"):
        return name
    depth = 0
    for start in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[start], 0)
        if not depth:
            return name[:start] or name
    return name


def shortened_path(path: str, width: int) -> str:
    """A path without its outermost names if it is too wide; its last name loses its beginning."""
    if cell_len(path) <= width:
        return path
    names = path.split(PATH_SEPARATOR)
    while len(names) > 1:
        del names[0]
        short = PATH_SEPARATOR.join((_ELLIPSIS, *names))
        if cell_len(short) <= width:
            return short
    return without_front(names[-1], width)


def shortened_paths(paths: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Each path within its width, as `shortened_path` has it; of two made alike, with what fits of one more name."""
    short = [shortened_path(path, width) for path, width in zip(paths, widths, strict=True)]
    whole: dict[str, set[str]] = {}
    for path, text in zip(paths, short, strict=True):
        whole.setdefault(text, set()).add(path)
    return [
        _with_outer_name(path, width, text) if len(whole[text]) > 1 else text
        for path, width, text in zip(paths, widths, short, strict=True)
    ]


def _with_outer_name(path: str, width: int, otherwise: str) -> str:
    """The last name of a path, and the one before it as far as there is room for enough of it."""
    *outer, name = path.split(PATH_SEPARATOR)
    before = f"{_ELLIPSIS}{PATH_SEPARATOR}" if len(outer) > 1 else ""
    room = width - cell_len(before) - len(PATH_SEPARATOR) - cell_len(name)
    if not outer or room < _LEAST_OUTER:
        return otherwise
    return f"{before}{without_front(outer[-1], room)}{PATH_SEPARATOR}{name}"


def _beginning(text: str, width: int) -> str:
    """The longest prefix that fits `width` cells."""
    end = used = 0
    for character in text:
        used += cell_len(character)
        if used > width:
            break
        end += 1
    return text[:end]
