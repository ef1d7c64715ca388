"""Names, which may hold bytes that are not text, and characters that control a terminal."""

from __future__ import annotations

import os
from shlex import quote


def encodable(name: str) -> str:
    """The name, or a message that contains one, with what is not text escaped, so that it can be written anywhere."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def printable(text: str) -> str:
    """`text` with control characters, which could move a terminal's cursor, written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def for_shell(path: str) -> str:
    """The path as a word that a shell takes back as it is, whatever it holds."""
    return shell_word(f"./{path}" if path.startswith("-") else path)


def shell_word(word: str) -> str:
    """The word as a shell takes it back, whatever it holds: an option remains one."""
    if word.isprintable():
        return quote(word)
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in "'\\" else f"\\x{b:02x}" for b in os.fsencode(word))
    return f"$'{''.join(plain)}'"
