"""Rows of cycles as lines for people: 80 columns, and on wider terminals the collective to blame."""

from __future__ import annotations

from datetime import datetime

from ..core.escaping import printable
from ..core.schema import Row

_NOTHING = "-"
_WIDTHS = (5, 8, 7, 8, 7, 6, 6, 11, 14)
_LEFT = (7, 8)
_HEADER = ("cycle", "ended", "ranks", "step ms", "exposed", "wait", "GB/s", "waits for", "verdict", "collective")


def cycle_header(width: int | None = None) -> str:
    """The header above the lines."""
    return _line(_HEADER, width)


def cycle_line(row: Row, width: int | None = None) -> str:
    """A row of `cycles` as a line for a terminal of this width."""
    size = row["size_bytes"]
    collective = [row["collective"], None if size is None else f"{size:,} bytes"]
    cells = (
        str(row["cycle"]),
        _time(row["ended_utc"]),
        f"{row['ranks']}/{row['world_size'] or '?'}",
        _NOTHING if row["step_ns"] is None else f"{row['step_ns'] / 1e6:,.1f}",
        _percent(row["exposed_comm_frac"]),
        _percent(row["exposed_wait_frac"]),
        _rate(row["busbw_gb_per_s"]),
        _blamed(row),
        row["verdict"] or _NOTHING,
        " of ".join(part for part in collective if part) or _NOTHING,
    )
    return _line(cells, width)


def _line(cells: tuple[str, ...], width: int | None) -> str:
    *columns, last = cells
    padded = [
        f"{cell:<{room}}" if place in _LEFT else f"{cell:>{room}}"
        for place, (cell, room) in enumerate(zip(columns, _WIDTHS, strict=True))
    ]
    text, whole = (printable(" ".join(cells)).rstrip() for cells in (padded, [*padded, last]))
    return f"{whole if width is None or len(whole) <= width else text}\n"


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.1%}"


def _rate(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _blamed(row: Row) -> str:
    if row["blamed_rank"] is None:
        return _NOTHING
    share = row["caused_wait_frac"]
    return f"{row['blamed_rank']}" + ("" if share is None else f" ({share:.0%})")


def _time(utc: str | None) -> str:
    """Time of day in the local time zone."""
    try:
        return _NOTHING if utc is None else datetime.fromisoformat(utc).astimezone().strftime("%H:%M:%S")
    except ValueError:  # of a row that was edited
        return _NOTHING
