"""The clock probe and the steps of a rank's side file -> rows of tables, as far as they make sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..core.schema import Row

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


def step_rows(rank: int, side: Mapping[str, Any]) -> Iterator[Row]:
    """Rows of `step_times`; what is no step, in a file edited by hand for example, is left out."""
    listed = side.get("steps")
    for step in listed if isinstance(listed, list) else []:
        number, phase, dur_ns = (step.get(k) if isinstance(step, dict) else None for k in ("step", "phase", "dur_ns"))
        if _is_count(number) and _is_count(dur_ns):
            yield {"rank": rank, "step": number, "phase": phase if isinstance(phase, str) else None, "dur_ns": dur_ns}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_NS


def _makes_sense(entry: object) -> bool:
    if not isinstance(entry, dict) or entry.get("at") not in ("start", "end"):
        return False
    numbers = [entry.get(name) for name in _NUMBERS]
    if not all(isinstance(n, int) and not isinstance(n, bool) and abs(n) < _MOST_NS for n in numbers):
        return False
    return bool(entry["uncertainty_ns"] >= 0 and entry["unix_ns"] > 0 and entry["against_rank"] == 0)
