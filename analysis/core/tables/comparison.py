"""The tables of two sides compared. What dtypes, units and names mean: `schema.py`, which has these tables too."""

from __future__ import annotations

from ..schema import Schema
from .device_time import KERNEL, OPERATOR

_VALUES = {
    "captures_a": ("int64", "captures of A: its runs, or if there is one of either side, its profiling cycles"),
    "captures_b": ("int64", "the same of B"),
    "steps_a": ("int64", "steps of A, all captures together"),
    "steps_b": ("int64", "steps of B"),
    "a_ns": ("Int64", "mean over the captures of A of the median over the steps"),
    "b_ns": ("Int64", "the same of B"),
    "spread_a_ns": ("Int64", "standard deviation of these medians; of one capture that of the medians of its blocks"),
    "spread_b_ns": ("Int64", "the same of B"),
    "difference_ns": ("Int64", "b_ns - a_ns: how much longer B takes"),
    "change_frac": ("Float64", "difference / value of A"),
    "change_low_frac": ("Float64", "lower bound of that, 99 %; NA with too few steps"),
    "change_high_frac": ("Float64", "upper bound"),
    "p_value": ("Float64", "two-sided p-value of no difference, corrected for the number of rows tested together"),
    "significant": ("boolean", "p_value <= 0.01, and difference beyond both spreads, and it matters; NA if unknown"),
    "note": ("string", "where the values come from, or why they are NA"),
}  # fmt: skip

COMPARISON = Schema("comparison", "measure of a step", {
    "measure": ("string", (
        "step, compute, comm, exposed_comm, exposed_wait, exposed_transfer, exposed_memory, idle, wait, transfer, "
        "peak_memory"
    )),
    **_VALUES,
    "a_bytes": ("Int64", "of peak_memory, as a_ns"),
    "b_bytes": ("Int64", "of peak_memory, as b_ns"),
    "difference_bytes": ("Int64", "of peak_memory, as difference_ns"),
})  # fmt: skip
CHANGED_KERNELS = Schema("changed_kernels", "kernel of either side", {**KERNEL, **_VALUES})
CHANGED_OPERATORS = Schema("changed_operators", "operator of either side", {
    "operator": OPERATOR["operator"], "kind": OPERATOR["kind"], **_VALUES,
})  # fmt: skip
