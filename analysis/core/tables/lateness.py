"""The tables of late ranks, reasons and verdicts. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema
from .columns import (
    DTYPE,
    GROUP,
    GROUP_ROLE,
    PARTIAL_MEMBER,
    PG_RANKS,
    SIZE,
)

REASONS = {
    "compute": "computes longer",
    "memory": "copies longer",
    "comm": "held up by communication",
    "cpu": "CPU launches late",
    "data": "data loader",
    "start": "begins the traced step later",
}
"""Why a rank is late: `because` in words."""

VERDICTS = Schema("verdicts", "process group, collective, dtype and size; the first row is the run", {
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "role": GROUP_ROLE,
    "collective": ("string", "as in bandwidth; `run` for the run as a whole"),
    "dtype": DTYPE,
    "size_bytes": SIZE,
    "calls": ("int64", "calls of all ranks"),
    "split_calls": ("int64", "calls that could be split into wait and transfer"),
    "split_frac": ("Float64", "part of the calls' time that could be split"),
    "exposed_ns": ("Int64", "exposed communication of the calls that could be split, all ranks together"),
    "exposed_wait_frac": ("Float64", "waiting / exposed_ns"),
    "hidden_frac": ("Float64", "part of the calls' time hidden behind compute"),
    "verdict": (
        "string",
        (
            "transfer-bound, skew-bound, inconclusive, latency-bound or hidden; for the run not these two, but also "
            "compute-bound, event-bound, mixed, link-bound, copy-bound, sync-bound, allocator-bound, input-bound, "
            "launch-bound, host-bound, idle or hang"
        ),
    ),
    "headline": ("string", "of the run: the largest loss, or who causes it, in one short sentence; else NA"),
    "why": ("string", "of the run: what is behind the headline, and what else takes time; NA if nothing"),
    "because": ("string", "the numbers it rests on; for the run in sentences, the largest loss first"),
    "not_known": ("string", "of the run: what could not be measured, why, and what to do; NA if nothing"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip
