"""Mistakes of trace writers that can be repaired without guessing any number.

Every repair keeps the length of the text, so that offsets stay valid.

Damage can look like some of these mistakes: where a piece is missing, repeated or in another's place, a comma may come
to stand before a bracket, or half a letter in a name. A writer makes its mistake again and again, damage does not:
`Habits` tells them apart.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

DEEPEST = 400
"""Levels of brackets: no decoder takes more than a thousand, and Kineto writes five."""

# Strings first, so that nothing inside them is touched. For texts without escapes, so that no memory is needed for each
# of them.
_NO_NUMBER = re.compile(rb'"[^"]*"|\bNaN\b|-?\bInfinity\b')
_BRACKET = re.compile(rb'"[^"]*"|[\[{\]}]|,(?=\s*[\]}])')
_COMMA_TOO_MANY = re.compile(rb",\s*[\]}]")
# Kineto's last event: a list that ends with it has lost none at its end.
_LAST_EVENT = re.compile(rb'"name":\s*"Record Window End"')
# Kineto before mid 2026 wrote names without escaping quotes. It always wrote the text around a name like this.
_BEFORE_NAME = re.compile(rb'"cat": "[^"\n]{0,64}",(?: |\n    )"name": "')
_BEHIND_NAME = (b'", "pid', b'",\n    "pid')
_COLON = b'": '
_BETWEEN_TEXTS = b" \t\r\n,:[]{}"
# Names of Python frames and of the file itself may be in any encoding. Nothing is measured from them.
_FEW_BYTES = 64  # no event is smaller
_ANY_TEXT = re.compile(rb'(?:"cat":\s*"python_function",\s*"name"|"traceName"):\s*"([^"]*)')
_BARE_QUOTE = re.compile(rb'(?<!\\)"')
_NOT_TEXT = re.compile("[\udc80-\udcff]")
_NOT_TEXT_RUN = re.compile("[\udc80-\udcff]+")
# What is left of two letters where the beginning of one meets the end of another.
_CUT_LETTERS = re.compile(rb"(?:[\xc2-\xf4][\x80-\xbf]{0,2})?[\x80-\xbf]{0,3}")


def without_escapes(text: bytes) -> bytes:
    """Mask escaped backslashes and quotes: the remaining quotes begin and end strings."""
    return text.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def without_numbers_that_are_none(text: bytes) -> bytes:
    """Replace `NaN` and `Infinity` by empty lists, which are not numbers either."""
    repaired = bytearray(text)
    for token in _NO_NUMBER.finditer(without_escapes(text)):
        if not token.group().startswith(b'"'):
            repaired[token.start() : token.end()] = b"[]".ljust(len(token.group()))
    return bytes(repaired)


def with_quoted_names(text: bytes) -> bytes:
    """Turn double quotes inside names of Kineto's events into single ones, if they come in pairs.

    A lone one, or a first pair around nothing but what stands between two texts of JSON, may mark a place where damage
    joined the beginning of one event to the end of another.
    """
    repaired = bytearray(text)
    for before in _BEFORE_NAME.finditer(text):
        begin = before.end()
        behind = text.find(_COLON, begin)  # of the next key: beyond it is no name
        for tail in _BEHIND_NAME:
            if text.endswith(tail, begin, max(begin, behind)):
                end = behind - len(tail)
                name, quotes = _BARE_QUOTE.subn(b"'", text[begin:end])
                if quotes and quotes % 2 == 0 and _BARE_QUOTE.split(text[begin:end])[1].strip(_BETWEEN_TEXTS):
                    repaired[begin:end] = name
    return bytes(repaired)


def with_names_that_are_text(text: bytes) -> bytes:
    """Replace bytes that are not UTF-8 by `?` in names of Python frames and files, if few.

    Many of them may be a hole, with more than one event in it.
    """
    repaired = bytearray(text)
    for name in _ANY_TEXT.finditer(text):
        readable, others = _NOT_TEXT.subn("?", name[1].decode("utf-8", "surrogateescape"))
        if others <= _FEW_BYTES:
            repaired[name.start(1) : name.end(1)] = readable.encode()
    return bytes(repaired)


class Habits:
    """Errors that the writer of a document repeats, as seen in its events so far."""

    def __init__(self) -> None:
        self._commas_before: set[_Kind] = set()
        self._has_letters = False

    def without_commas(self, elements: bytes) -> bytes:
        """Remove the commas that the writer puts before closing brackets.

        It does where most brackets of a kind, in events that differ, have one. At the end of the list of events there
        is only one bracket, and the comma is the writer's if no event is missing there.
        """
        masked = without_escapes(elements)
        if not _COMMA_TOO_MANY.search(masked):
            return elements
        events = list(_events(masked))
        self._learn_commas(events)
        repaired = bytearray(elements)
        for event in events:
            for kind in event.commas.keys() & self._commas_before:
                for comma in event.commas[kind]:
                    repaired[comma] = _BLANK
        return bytes(repaired)

    def without_commas_around(self, document: bytes) -> bytes:
        """Remove commas around the events if the events show the habit."""
        if not self._commas_before:
            return document
        repaired = bytearray(document)
        for token in _BRACKET.finditer(without_escapes(document)):
            if token.group() == b",":
                repaired[token.start()] = _BLANK
        return bytes(repaired)

    def readable(self, text: bytes) -> bytes:
        """Replace bytes of other encodings in names by `?`. Raises UnicodeDecodeError for any others.

        Half a letter is not of another encoding if there are whole ones: damage may have joined the halves of two
        names, and what lay between them is gone.
        """
        found = text
        try:
            text.decode()
        except UnicodeDecodeError:
            found = with_names_that_are_text(text)
            found.decode()
        self._has_letters |= not found.isascii()
        if self._has_letters and found != text:
            _check_letters(text)
        return found

    def _learn_commas(self, events: Iterable[_Event]) -> None:
        brackets, commas, events_with = Counter[_Kind](), Counter[_Kind](), Counter[_Kind]()
        for event in {event.text: event for event in events}.values():  # what damage repeats says nothing new
            brackets.update(event.brackets)
            commas.update({kind: len(places) for kind, places in event.commas.items()})
            events_with.update(event.commas.keys())
            if _END in event.commas and _LAST_EVENT.search(event.text):
                self._commas_before.add(_END)
        for kind, count in events_with.items():
            if count >= _SEVERAL and 2 * commas[kind] >= brackets[kind]:
                self._commas_before.add(kind)


def _check_letters(text: bytes) -> None:
    """Raise UnicodeDecodeError for a name that may be joined from halves of two."""
    for name in _ANY_TEXT.finditer(text):
        runs = _NOT_TEXT_RUN.findall(name[1].decode("utf-8", "surrogateescape"))
        if len(runs) == 1 and _CUT_LETTERS.fullmatch(runs[0].encode("utf-8", "surrogateescape")):
            name[1].decode()


_Kind = tuple[int, bytes]
"""How deep within its event a closing bracket stands, and which one it is."""


@dataclass
class _Event:
    """Closing brackets of a non-empty event, and where commas stand before them."""

    text: bytes = b""
    brackets: Counter[_Kind] = field(default_factory=Counter)
    commas: dict[_Kind, array[int]] = field(default_factory=dict)

    def add(self, kind: _Kind, comma: int | None) -> None:
        self.brackets[kind] += 1
        if comma is not None:
            self.commas.setdefault(kind, array("q")).append(comma)


_END: _Kind = (-1, b"]")
_SEVERAL = 2
_BLANK = ord(" ")


def _events(masked: bytes) -> Iterator[_Event]:
    """Yield the whole elements of an array without escapes; the last one again with the array's end."""
    depth, begin, opened = 0, 0, 0
    comma: int | None = None
    event = _Event()
    for token in _BRACKET.finditer(masked):
        what, at = token.group(), token.start()
        if what in (b"{", b"["):
            begin = begin if depth else at
            depth, opened = depth + 1, at
            if depth > DEEPEST:
                return
        elif what in (b"}", b"]"):
            depth -= 1
            if depth < 0 or masked[opened + 1 : at].strip():
                event.add((depth, what), comma)
            if depth <= 0:
                event.text = masked[begin : at + 1]
                yield event
                event = _Event()
            if depth < 0:
                return
            opened = at
        comma = at if what == b"," else None
