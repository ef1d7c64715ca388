"""The table of a run's profiling cycles. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema
from .columns import PARTIAL_RUN

CYCLES = Schema("cycles", "profiling cycle of a run directory", {
    "run": ("string", "name of the run directory"),
    "run_id": ("string", "tells runs apart: made of their run.json; without one at random, or NA in Python"),
    "cycle": ("int64", "number in the names of its traces; where that is a time, they are counted, from 0"),
    "ended_utc": ("string", "when its traces end, median over the ranks; ISO 8601, UTC"),
    "ranks": ("int64", "ranks that have a trace of it that could be used"),
    "world_size": ("Int64", "ranks of the job; NA if no file says it"),
    "missing": ("string", "the other ranks, as in `3, 5-7`, 12 ranges at most; NA if none are known"),
    "steps": ("int64", "steps that were traced; 0 if none are marked"),
    "step_ns": ("Int64", "mean length of a step over steps and devices; NA if none are marked"),
    "exposed_comm_frac": ("Float64", "exposed communication / length, all steps and devices together"),
    "exposed_wait_frac": ("Float64", "the part of it that is waiting; NA if nothing could be split"),
    "collective": ("string", "the collective that was moving data for longest, of one size and number of ranks"),
    "size_bytes": ("Int64", "its size, as in bandwidth"),
    "busbw_gb_per_s": ("Float64", "its bus bandwidth, mean weighted by the time it took"),
    "blamed_rank": ("Int64", "rank that made the others wait most; NA if none did"),
    "caused_wait_frac": ("Float64", "the part of all waiting that it caused"),
    "verdict": ("string", "what limits the cycle, as in verdicts"),
    "limits": ("string", "limits of --fail-above that it passed, as in `wait 12.5 % > 10 %`; NA if none"),
    "note": ("string", "why something is NA, or which files could not be used"),
    "partial": PARTIAL_RUN,
})  # fmt: skip
