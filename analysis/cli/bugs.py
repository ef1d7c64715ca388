"""Report an error of the program itself: one line, and the traceback in a file."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence

from ...common.version import version
from ..core.escaping import for_shell, shell_word
from ..core.places.redaction import hide_secrets
from .verbose import VERBOSE

BUG = 70
"""The exit code: EX_SOFTWARE of sysexits.h."""


def report_of(error: Exception, given: Sequence[str], *, verbose: bool) -> str:
    """One line for the user: what happened, where, and what to report."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" at {os.path.basename(last[0].filename)}:{last[0].lineno}" if last else ""  # noqa: PTH119 - a text
    command = " ".join(shell_word(hide_secrets(word, [word])) for word in given)
    versions = f"commtrace {version()}, Python {platform.python_version()}"
    trace = hide_secrets("".join(traceback.format_exception(error)), given)
    what = f"commtrace {command}\n{versions}\n{trace}"
    if verbose:
        print(what.encode("utf-8", "backslashreplace").decode(), end="", file=sys.stderr)
    file = _kept(what)
    where = f"the traceback in {for_shell(file)}" if file else f"what {VERBOSE} shows"
    return (
        f"this is a bug of commtrace, not of the input: {type(error).__name__}{place} ({versions}) in "
        f"`commtrace {command}`; please report this line and {where} where you got commtrace"
    )


def _kept(text: str) -> str | None:
    """Write the text to a file that only its owner can read, and return its path; None if no folder takes it."""
    try:
        descriptor, file = tempfile.mkstemp(prefix="commtrace-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as written:
            written.write(text)
    except OSError:
        return None
    return file
