"""The tables of who is late, why, and what that limits. What dtypes, units and names mean: `schema.py`."""

from __future__ import annotations

from ..schema import Schema
from .columns import COLLECTIVE, DTYPE, GROUP, PARTIAL, PARTIAL_MEMBER, PARTIAL_RUN, PG_RANKS, RANK, SIZE, STEP

LATENESS = Schema("lateness", "collective with a late rank: by more than clocks are uncertain, or too often", {
    "collective_id": ("int64", "collective"),
    "rank": ("int64", "rank that arrived last, or, where there is a root, that others waited for longest"),
    "late_ns": (
        "int64",
        "how much later than the rank before it, or than the median if several are late; with a root, the longest wait",
    ),
    "chance": (
        "Float64",
        "probability of coming last so often by chance, where clocks are too uncertain for the lateness; else NA",
    ),
    "caused_wait_ns": ("Int64", "waiting of all other ranks in this collective"),
    "extra_compute_ns": ("Int64", "of its lateness behind the median of the others: it computed so much longer"),
    "extra_memory_ns": ("Int64", "likewise: it copied so much longer"),
    "extra_comm_ns": ("Int64", "likewise: other communication held it up so much longer"),
    "extra_data_ns": ("Int64", "likewise: its CPU waited so much longer for a batch"),
    "extra_cpu_ns": ("Int64", "likewise: its CPU gave it work so much later"),
    "new_ns": ("Int64", "how much of that arose since the collective of the group before; the rest is older"),
    "because": ("string", "the largest of these: compute, memory, comm, data or cpu; NA where nothing tells"),
    "origin_rank": ("Int64", "rank with which that began: another one where that made it wait before"),
    "origin_because": ("string", "why that rank was late, in the same words"),
    "kernel": ("string", "the kernel or operator that took most longer on that rank than on others"),
    "kernel_extra_ns": ("Int64", "how much longer"),
    "operator": ("string", "the operator its CPU was in while the device had no work, where the trace tells"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip

RANKS = Schema("ranks", "rank", {
    "rank": RANK,
    "host": ("string", "host name"),
    "calls": ("int64", "communication calls"),
    "split_calls": ("int64", "calls that could be split into wait and transfer"),
    "comm_call_ns": ("int64", "sum of their durations, waiting included"),
    "wait_ns": ("Int64", "sum of waiting"),
    "transfer_ns": ("Int64", "sum of the rest"),
    "times_last": ("Int64", "how often this rank arrived last, by more than the clocks are uncertain"),
    "caused_wait_ns": ("Int64", "waiting of others that is its fault: it was late, or made another rank late"),
    "caused_wait_frac": ("Float64", "caused_wait_ns / waiting of all ranks; what no rank is to blame for is nobody's"),
    "late_median_ns": ("Int64", "median lateness after the rank before it, where this rank was last"),
    "late_max_ns": ("Int64", "largest such lateness"),
    "because": ("string", "why, mostly: compute, memory, comm, data or cpu, as in lateness"),
    "kernel": ("string", "the kernel or operator that took most longer than on the other ranks"),
    "wire_gb_per_s": ("Float64", "size x bus factor of all its calls / time in which at least one moved data"),
    "partial": PARTIAL,
})  # fmt: skip

HOSTS = Schema("hosts", "host with a name", {
    "host": ("string", "host name"),
    "ranks": ("string", "ranks on it that have a trace, ascending, separated by spaces"),
    "wait_ns": ("Int64", "sum of waiting of its ranks"),
    "times_last": ("Int64", "how often one of its ranks arrived last, as in ranks"),
    "caused_wait_ns": ("Int64", "waiting of other ranks that is the fault of its ranks"),
    "caused_wait_frac": ("Float64", "caused_wait_ns / waiting of all ranks"),
    "because": ("string", "why, mostly: compute, memory, comm, data or cpu, as in lateness"),
    "kernel": ("string", "the kernel or operator that took most longer than on other ranks"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

HANGS = Schema("hangs", "collective that some ranks issued, and that never ran", {
    "collective": COLLECTIVE,
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "size_bytes": SIZE,
    "seq": ("Int64", "sequence number within the process group"),
    "step": STEP,
    "waiting": ("string", "ranks that issued it, ascending, separated by spaces"),
    "missing": ("string", "ranks of the group that did not, as far as they have a trace"),
    "waited_ns": ("int64", "from the last that issued it to the end of the traces of those that did not, or of all"),
    "usual_ns": ("int64", "how far apart members of the group issued a collective at most; or its longest call"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip

VERDICTS = Schema("verdicts", "process group, collective, dtype and size; the first row is the run", {
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "collective": ("string", "as in bandwidth; `run` for the run as a whole"),
    "dtype": DTYPE,
    "size_bytes": SIZE,
    "calls": ("int64", "calls of all ranks"),
    "split_calls": ("int64", "calls that could be split into wait and transfer"),
    "split_frac": ("Float64", "part of the calls' time that could be split"),
    "exposed_ns": ("Int64", "exposed communication of the calls that could be split, all ranks together"),
    "exposed_wait_frac": ("Float64", "waiting / exposed_ns"),
    "hidden_frac": ("Float64", "part of the calls' time behind compute"),
    "verdict": ("string", "transfer-bound, skew-bound, latency-bound, hidden, inconclusive; of the run also hang"),
    "because": ("string", "the numbers it rests on, in one sentence"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip
