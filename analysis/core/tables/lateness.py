"""Why a rank is late, in words: keys are what tables have in `because`."""

from __future__ import annotations

REASONS = {
    "compute": "computes longer",
    "memory": "copies longer",
    "comm": "held up by communication",
    "cpu": "CPU launches late",
    "data": "data loader",
    "start": "begins the traced step later",
}
"""Why a rank is late: `because` in words."""
