"""Regular expressions on names that strangers wrote: names are bounded, and time is where somebody gave the expression.

Python's `re` tries every way to match, and some expressions have more ways than anybody can wait for: on a kernel's
name of 40,000 letters one took 13 s. Those of this project take some milliseconds on a name of MOST_LETTERS, which
tests/analysis/test_expressions.py measures. For those that a person gives, `regex` knows when to stop.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from ..errors import SlowExpression

MOST_LETTERS = 4_096
"""Names have no more letters; the longest in traces of CUTLASS and composable kernels have 2,000."""
_MOST_SECONDS = 2.0


def cut_name(name: str) -> str:
    """The name; of a longer one the beginning, and what tells it from others that begin alike."""
    if len(name) <= MOST_LETTERS:
        return name
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return f"{name[: MOST_LETTERS - len(digest) - 1]}…{digest}"


@functools.lru_cache(maxsize=64)
def compiled(expression: str, *, ignore_case: bool = False) -> Any:
    """The expression, as it is used. Raises ValueError if it is none."""
    import regex

    try:
        expression.encode()
        return regex.compile(expression, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, RecursionError, OverflowError, UnicodeEncodeError) as err:
        shown = expression if len(expression) <= 80 else f"{expression[:80]}…"
        why = "it nests too deeply" if isinstance(err, RecursionError) else str(err)
        raise ValueError(f"{shown!r} is not a regular expression: {why}") from err


def search(expression: str, name: str, *, ignore_case: bool = False) -> Any:
    """The first match in a name, None without one. Raises SlowExpression, and ValueError if it is no expression."""
    try:
        return compiled(expression, ignore_case=ignore_case).search(name[:MOST_LETTERS], timeout=_MOST_SECONDS)
    except TimeoutError as err:
        shown = name if len(name) <= 80 else f"{name[:80]}…"
        raise SlowExpression(
            f"the regular expression {expression!r} takes more than {_MOST_SECONDS:.0f} s on the name {shown!r}; "
            "write it without repeated parts that can match the same letters, such as (a+)+"
        ) from err
