"""Tables that account for all the time of a device, and for whom it waited."""

from __future__ import annotations

from ..schema import Schema
from .columns import DEVICE, PARTIAL, PARTIAL_MEMBER, PARTIAL_RUN, RANK

_ACCOUNT = {
    "window_ns": ("int64", "as in `breakdown`; the other times of the row add up to it exactly, NA counting as 0"),
    "compute_alone_ns": ("int64", "compute without communication beside it"),
    "overlap_ns": ("int64", "compute and communication at once: hidden communication"),
    "exposed_transfer_ns": ("Int64", "communication without compute, data moves; NA if none of it could be split"),
    "exposed_wait_ns": ("Int64", "likewise, waiting for other ranks: for which, `account_waits` says"),
    "exposed_unsplit_ns": ("int64", "likewise, in calls that could not be split into wait and transfer"),
    "exposed_memory_ns": ("int64", "only copies and fills"),
    "idle_sync_ns": ("Int64", "nothing runs or is queued: the CPU is in a blocking call, cudaStreamSynchronize ..."),
    "idle_alloc_ns": ("Int64", "likewise: otherwise in a call that allocates or frees, cudaMalloc, cudaFree ..."),
    "idle_data_ns": ("Int64", "likewise: otherwise it gets a batch from the DataLoader"),
    "idle_gc_ns": ("Int64", "likewise: otherwise Python collects garbage; NA where the run has no record of that"),
    "idle_cpu_comm_ns": ("Int64", "likewise: otherwise the CPU communicates, or waits for those of others"),
    "idle_compile_ns": ("Int64", "likewise: otherwise torch.compile compiles"),
    "idle_operator_ns": ("Int64", "likewise: otherwise the CPU is in any other operator"),
    "idle_outside_ns": ("Int64", "likewise: the CPU is in none of these; mostly Python of the user"),
    "idle_launching_ns": ("Int64", "nothing runs; the CPU is in the call that launches what comes next"),
    "idle_queued_ns": ("Int64", "nothing runs; what comes next is launched, and has not begun"),
    "idle_unknown_ns": ("int64", "idle time whose cause is not known; all of it where causes were not read"),
    "note": ("string", "why causes of idle time are NA"),
    "partial": PARTIAL,
}  # fmt: skip
ACCOUNT = Schema("account", "rank and device", {"rank": RANK, "device": DEVICE, **_ACCOUNT})
ACCOUNT_STEPS = Schema("account_steps", "rank, device and step", {
    "rank": RANK, "device": DEVICE, "step": ("int64", "N of ProfilerStep#N"), **_ACCOUNT,
})  # fmt: skip

ACCOUNT_WAITS = Schema("account_waits", "rank, device, step, rank it waited for, and why that was late", {
    "rank": ("int64", "rank that waited"),
    "device": DEVICE,
    "step": ("Int64", "N of ProfilerStep#N; NA for waiting outside of all steps"),
    "waited_for": ("Int64", "rank that arrived last of those it needed"),
    "exposed_wait_ns": ("int64", "wait without compute; the rows of a device and step add up to that in `account`"),
    "because": ("string", "why that rank was late, as in `lateness`; NA if it was not late by more than clocks tell"),
    "origin_rank": ("Int64", "rank with which that began, as in `lateness`"),
    "origin_because": ("string", "why that one was late"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip

ACCOUNT_PARTS = Schema("account_parts", "part of a typical step, the largest first", {
    "part": ("string", "what it is, in words"),
    "column": ("string", "its column in `account`"),
    "mean_ns": ("int64", "mean over devices and the steps that count, as in `steps`; all rows add up to the step"),
    "share_frac": ("Float64", "mean_ns / length of the step"),
    "least_frac": ("Float64", "its share on the rank where that is smallest; NA if there is one rank"),
    "least_rank": ("Int64", "that rank"),
    "most_frac": ("Float64", "its share on the rank where that is largest"),
    "most_rank": ("Int64", "that rank"),
    "waited_for": ("string", "of the exposed wait: for which ranks, mean of all devices"),
    "partial": PARTIAL_RUN,
})  # fmt: skip
