"""What writers of traces get wrong and can be read all the same, without a guess about any number.

Every repair keeps the length of the text, so that places in it stay where they are.
"""

from __future__ import annotations

import re

# Strings first, so that nothing inside them is touched.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(_STRING + rb"|-?\b(?:NaN|Infinity)\b|,(?=\s*[\]}])", re.DOTALL)
# Kineto before mid 2026 wrote names as they were, quotes included; what follows a name it always wrote like this.
_NAME = re.compile(rb'(?<=name": ")([^\n]*?)(?=", "(?:pid|ph)": )')
_BARE_QUOTE = re.compile(rb'(?<!\\)"')


def without_numbers_that_are_none(text: bytes) -> bytes:
    """`NaN` and `Infinity` as empty lists, which are no numbers either, and no comma before a closing bracket."""
    return _TOKEN.sub(_harmless, text)


def with_quoted_names(text: bytes) -> bytes:
    """One event as Kineto lays it out; a double quote inside its name becomes a single one."""
    return _NAME.sub(lambda name: _BARE_QUOTE.sub(b"'", name[1]), text, count=1)


def _harmless(token: re.Match[bytes]) -> bytes:
    found = token.group()
    if found.startswith(b'"'):
        return found
    return b" " if found == b"," else b"[]".ljust(len(found))
