"""The tables of late ranks, reasons and verdicts. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema
from .columns import (
    DTYPE,
    GROUP,
    GROUP_ROLE,
    PARTIAL_MEMBER,
    PARTIAL_RUN,
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

REMEDIES = Schema("remedies", "change that would shorten the steps", {
    "remedy": ("string", (
        "no_straggler, slow_links, no_jitter, no_bubble, overlap, twice_links, faster_links, no_copies, no_syncs, "
        "no_allocations, no_data_wait, no_gc, no_long_calls, no_compilation, launch_ahead or no_idle"
    )),
    "gain_ns": (
        "Int64",
        "by how much this alone makes a typical step shorter, as played again; NA where that is not known",
    ),
    "gain_low_ns": ("Int64", "the least it may be"),
    "gain_high_ns": ("Int64", "the most it may be"),
    "gain_frac": ("Float64", "gain_ns / length of a typical step"),
    "is_bound": ("boolean", "whether it is more than anybody can do: gain_ns is the most there is; NA as gain_ns"),
    "then_ns": ("Int64", "what it adds once the changes above it are made; NA behind the first four"),
    "concerned_ns": ("Int64", "time of a typical step that it is about; not what it gains; NA where not known"),
    "concerned_frac": ("Float64", "concerned_ns / length of a typical step"),
    "path_frac": ("Float64", "share of the critical path that it concerns; NA where that is not known"),
    "what": ("string", "what would have to be different"),
    "how": ("string", "where to begin"),
    "partial": PARTIAL_RUN,
})  # fmt: skip
