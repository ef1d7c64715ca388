"""Escape text for documents, so that no name in it marks anything up."""

from __future__ import annotations

import re

_MARKDOWN = re.compile(r"[\\|*`\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_BACKTICKS = re.compile("`+")
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    # In the standard encoding these are other characters.
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': r"\symbol{34}",
    # After the end of a row these would be its options.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
_SPECIAL = re.compile("[" + re.escape("".join(_ESCAPES)) + "]")
_JOINED = re.compile(r"-(?=-)|'(?=')|,(?=,)")


def for_latex(text: str) -> str:
    """Escape `text` for LaTeX: no part of it is a command or joins into a longer dash or a quote."""
    return _JOINED.sub(r"\g<0>{}", _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text))


def for_markdown(text: str) -> str:
    """Escape `text` for GitHub-flavoured markdown: names of kernels hold stars, bars and brackets."""
    return _MARKDOWN.sub(r"\\\g<0>", text).replace("&", "&amp;").replace("<", "&lt;")


def code_for_markdown(text: str) -> str:
    """`text` as inline code for GitHub-flavoured markdown, whatever backticks it holds.

    Source: CommonMark 0.31.2, section 6.1: a code span ends with as many backticks as it begins with.
    """
    ticks = "`" * (1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return f"{ticks} {text} {ticks}" if len(ticks) > 1 else f"`{text}`"
