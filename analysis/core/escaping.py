"""Escape names, which may hold bytes that are no text, and characters that control a terminal."""

from __future__ import annotations

import os
from shlex import quote


def encodable(name: str) -> str:
    """Escape what is no text in a name or message, so that it can be written anywhere."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def printable(text: str) -> str:
    """Escape control characters in `text`, which could move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def for_shell(path: str) -> str:
    """Quote the path for a shell, whatever it contains."""
    return shell_word(f"./{path}" if path.startswith("-") else path)


def shell_word(word: str) -> str:
    """Quote the word for a shell, whatever it contains; an option remains one."""
    if word.isprintable():
        return quote(word)
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in "'\\" else f"\\x{b:02x}" for b in os.fsencode(word))
    return f"$'{''.join(plain)}'"
