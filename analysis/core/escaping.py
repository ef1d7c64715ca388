"""Names, which may hold bytes that are not text, and characters that control a terminal."""

from __future__ import annotations


def encodable(name: str) -> str:
    """The name, or a message that contains one, with what is not text escaped, so that it can be written anywhere."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def printable(text: str) -> str:
    """`text` with control characters, which could move a terminal's cursor, written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
