"""The clock probe of a rank's side file -> rows of a table, as far as it makes sense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .schema import Row

_NUMBERS = ("unix_ns", "offset_ns", "uncertainty_ns", "against_rank")
_MOST_NS = 2**62


def probe_rows(rank: int, side: Mapping[str, Any]) -> tuple[list[Row], str | None]:
    """Rows of `clock_probes`, and a note if the side file has something else under that name."""
    content = side.get("clock_probe")
    entries = content if isinstance(content, list) else [] if content is None else [content]
    good = [entry for entry in entries if _makes_sense(entry)]
    note = None
    if len(good) < len(entries):
        note = f"rank {rank}: the clock probe in its side file makes no sense, and is left out"
    names = ("at", "unix_ns", "offset_ns", "uncertainty_ns")
    return [{"rank": rank} | {name: entry[name] for name in names} for entry in good], note


def _makes_sense(entry: object) -> bool:
    if not isinstance(entry, dict) or entry.get("at") not in ("start", "end"):
        return False
    numbers = [entry.get(name) for name in _NUMBERS]
    if not all(isinstance(n, int) and not isinstance(n, bool) and abs(n) < _MOST_NS for n in numbers):
        return False
    return bool(entry["uncertainty_ns"] >= 0 and entry["unix_ns"] > 0 and entry["against_rank"] == 0)
