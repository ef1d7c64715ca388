"""The tables that compare two sides. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema
from .device_time import KERNEL, OPERATOR

_VALUES = {
    "captures_a": ("int64", "captures of A: its runs, or its profiling cycles if each side has only one run"),
    "captures_b": ("int64", "the same of B"),
    "steps_a": ("int64", "steps of A, all captures together"),
    "steps_b": ("int64", "steps of B"),
    "a_ns": ("Int64", "mean over the captures of A of the median over the steps"),
    "b_ns": ("Int64", "the same of B"),
    "spread_a_ns": ("Int64", "standard deviation of these medians; for one capture, of the medians of its blocks"),
    "spread_b_ns": ("Int64", "the same of B"),
    "difference_ns": ("Int64", "b_ns - a_ns: how much longer B takes"),
    "change_frac": ("Float64", "how much longer B takes, as a part of A"),
    "change_low_frac": ("Float64", "lower end of its 99 % interval; NA with too few steps"),
    "change_high_frac": ("Float64", "upper end"),
    "seen_frac": ("Float64", "smallest increase that such captures show in nine of ten comparisons"),
    "p_value": ("Float64", "two-sided p-value for no difference, corrected for the number of rows tested together"),
    "significant": ("boolean", "p_value <= 0.01, and the difference exceeds both spreads, and matters; NA if unknown"),
    "note": ("string", "where the values come from, or why they are NA"),
}  # fmt: skip

COMPARISON = Schema("comparison", "measure of a step", {
    "measure": ("string", (
        "step, compute, comm, exposed_comm, exposed_wait, exposed_transfer, exposed_memory, idle, wait, transfer, "
        "peak_memory"
    )),
    **_VALUES,
    "a_bytes": ("Int64", "for peak_memory, like a_ns"),
    "b_bytes": ("Int64", "for peak_memory, like b_ns"),
    "difference_bytes": ("Int64", "for peak_memory, like difference_ns"),
})  # fmt: skip
CHANGED_KERNELS = Schema("changed_kernels", "kernel of either side", {**KERNEL, **_VALUES})
CHANGED_OPERATORS = Schema("changed_operators", "operator of either side", {
    "operator": OPERATOR["operator"], "kind": OPERATOR["kind"], **_VALUES,
})  # fmt: skip
