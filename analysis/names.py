"""Names of files, which may hold bytes that are no text."""

from __future__ import annotations


def as_text(name: str) -> str:
    """The name, or a message with one in it, with what is no text escaped, so that it can be written anywhere."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
