"""Mistakes of trace writers that can be repaired without guessing any number.

Every repair keeps the length of the text, so that offsets stay valid.
"""

from __future__ import annotations

import re

# Strings first, so that nothing inside them is touched. For texts without escapes, so that no memory is needed for each
# of them.
_TOKEN = re.compile(rb'"[^"]*"|-?\b(?:NaN|Infinity)\b|,(?=\s*[\]}])')
# Kineto before mid 2026 wrote names without escaping quotes. It always wrote the text around a name like this.
_BEFORE_NAME = re.compile(rb'"cat": "[^"\n]{0,64}",(?: |\n    )"name": "')
_BEHIND_NAME = (b'", "pid', b'",\n    "pid')
_COLON = b'": '
# Names of Python frames and of the file itself may be in any encoding. Nothing is measured from them.
_FEW_BYTES = 64  # no event is smaller
_ANY_TEXT = re.compile(rb'(?:"cat":\s*"python_function",\s*"name"|"traceName"):\s*"([^"]*)')
_BARE_QUOTE = re.compile(rb'(?<!\\)"')


def without_escapes(text: bytes) -> bytes:
    """The text with every escaped backslash or quote masked: the quotes that are left begin and end strings."""
    return text.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def without_numbers_that_are_none(text: bytes) -> bytes:
    """`NaN` and `Infinity` as empty lists, which are not numbers either, and no comma before a closing bracket."""
    repaired = bytearray(text)
    for token in _TOKEN.finditer(without_escapes(text)):
        found = token.group()
        if found == b",":
            repaired[token.start()] = ord(" ")
        elif not found.startswith(b'"'):
            repaired[token.start() : token.end()] = b"[]".ljust(len(found))
    return bytes(repaired)


def with_quoted_names(text: bytes) -> bytes:
    """Events as Kineto lays them out; every double quote inside a name becomes a single one, if these come in pairs.

    A single one may mark a place where damage joined the beginning of one event to the end of another.
    """
    repaired = bytearray(text)
    for before in _BEFORE_NAME.finditer(text):
        begin = before.end()
        behind = text.find(_COLON, begin)  # of the next key: beyond it is no name
        for tail in _BEHIND_NAME:
            if text.endswith(tail, begin, max(begin, behind)):
                end = behind - len(tail)
                name, quotes = _BARE_QUOTE.subn(b"'", text[begin:end])
                if quotes % 2 == 0:
                    repaired[begin:end] = name
    return bytes(repaired)


def with_names_that_are_text(text: bytes) -> bytes:
    """Every byte that is not UTF-8 as `?` in the name of a Python frame, and of the file, if these are few.

    Many of them may be a hole, with more than one event in it.
    """
    repaired = bytearray(text)
    for found in _ANY_TEXT.finditer(text):
        name, others = re.subn("[\udc80-\udcff]", "?", found[1].decode("utf-8", "surrogateescape"))
        if others <= _FEW_BYTES:
            repaired[found.start(1) : found.end(1)] = name.encode()
    return bytes(repaired)
