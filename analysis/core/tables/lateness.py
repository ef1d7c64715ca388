"""The tables of late ranks, reasons and verdicts. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema
from .columns import (
    DTYPE,
    GROUP,
    GROUP_ROLE,
    PARTIAL,
    PARTIAL_MEMBER,
    PARTIAL_RUN,
    PG_RANKS,
    SIZE,
    STEP,
)

LATENESS = Schema("lateness", "collective with a late rank: beyond clock uncertainty, or too often for chance", {
    "collective_id": ("int64", "collective"),
    "rank": ("int64", "rank that arrived last, or, if there is a root, the one that others waited for longest"),
    "late_ns": (
        "int64",
        "how much later than the rank before it, or than the median if several are late; with a root, the longest wait",
    ),
    "chance": (
        "Float64",
        "probability of coming last so often by chance, where clocks are too uncertain for the lateness; else NA",
    ),
    "caused_wait_ns": ("Int64", "waiting of all other ranks in this collective"),
    "extra_compute_ns": ("Int64", "part of its lateness behind the median of the others: how much longer it computed"),
    "extra_memory_ns": ("Int64", "likewise: how much longer it copied"),
    "extra_comm_ns": ("Int64", "likewise: how much longer other communication held it up"),
    "extra_data_ns": ("Int64", "likewise: how much longer its CPU waited for a batch"),
    "extra_cpu_ns": ("Int64", "likewise: how much later its CPU gave it work"),
    "extra_start_ns": ("Int64", "likewise: how much later the first traced step began; why is before the trace"),
    "new_ns": ("Int64", "how much of that arose since the group's previous collective; the rest is older"),
    "because": ("string", "the largest of these: compute, memory, comm, data, cpu or start; NA if unknown"),
    "origin_rank": ("Int64", "rank with which that began: another one, if that made it wait before"),
    "origin_because": ("string", "why that rank was late, in the same words"),
    "kernel": ("string", "the kernel or operator that took the most additional time on that rank"),
    "kernel_extra_ns": ("Int64", "how much longer"),
    "operator": ("string", "the operator its CPU was in while the device had no work, if the trace shows it"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip

REASONS = {
    "compute": "computes longer",
    "memory": "copies longer",
    "comm": "held up by communication",
    "cpu": "CPU launches late",
    "data": "data loader",
    "start": "begins the traced step later",
}
"""Why a rank is late: `because` in words."""

LATE_WORK = Schema("late_work", "late rank, step, and thing that it did while it fell behind the others", {
    "rank": ("int64", "rank that was late, one of the four that caused most waiting"),
    "step": STEP,
    "kind": (
        "string",
        (
            "work: the innermost thing at any time; call, operator, range, module, function, region: with all in it; "
            "python: what its thread did outside of operators: it was blocked, computed, or collected garbage; thread: "
            "what it did in the whole step, without a GPU; kernel; total"
        ),
    ),
    "what": (
        "string",
        (
            "blocking call, operator, annotation, module, function of the user, kernel, region, `outside of any "
            "operator`; python: blocked, computing, collecting garbage, or waiting for a CPU; total: cpu or compute"
        ),
    ),
    "operator": ("string", "of work: the innermost operator in which a call was"),
    "range": ("string", "of work: the innermost annotation around it; NA if there is none"),
    "took_ns": (
        "int64",
        "how long it took while this rank fell behind: kernels ran, or the launching thread was in it, device idle",
    ),
    "others_ns": ("int64", "the same between the same calls, median of other ranks"),
    "extra_ns": ("int64", "took_ns - others_ns"),
    "partial": PARTIAL,
})  # fmt: skip

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
            "launch-bound, idle or hang"
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
