"""When a run began."""

from __future__ import annotations

from datetime import datetime, timezone

from ...contract.reading import lenient
from ...contract.run import RunFile
from ..results.analysis import Analysis

_FIRST_YEAR = 2015
"""Clocks that say an earlier year do not count from 1970."""


def began(one: Analysis) -> str | None:
    """When the capture began, as run.json says, else the first step of its traces; to the minute, in UTC."""
    said = lenient(one.run.config, RunFile)[0].created_utc
    starts = [float(marks["start_ns"].min()) for marks in (one.run.annotations, one.run.activities) if len(marks)]
    try:
        if said:
            moment = datetime.fromisoformat(said.replace("Z", "+00:00"))
            moment = moment.replace(tzinfo=moment.tzinfo or timezone.utc).astimezone(timezone.utc)
        elif one.run.has_starts and starts:
            moment = datetime.fromtimestamp(min(starts) / 1e9, timezone.utc)
        else:
            return None
    except (OverflowError, OSError, ValueError):
        return None
    return moment.strftime("%Y-%m-%d %H:%M") if moment.year >= _FIRST_YEAR else None
