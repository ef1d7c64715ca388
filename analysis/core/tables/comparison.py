"""The tables that compare two sides, or a series of runs. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema
from .columns import KERNEL, OPERATOR, PHASE

_VALUES = {
    "captures_a": ("int64", "captures of A: its runs, or its profiling cycles if each side has only one run"),
    "captures_b": ("int64", "the same of B"),
    "steps_a": ("int64", "steps of A, all captures together"),
    "steps_b": ("int64", "steps of B"),
    "a_ns": ("Int64", "mean over the captures of A of the midmean of the steps: the mean of the middle half"),
    "b_ns": ("Int64", "the same of B"),
    "spread_a_ns": ("Int64", "standard deviation of these midmeans; for one capture, of the medians of its blocks"),
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
CHANGED_CAUSES = Schema("changed_causes", "candidate for the cause of the change", {
    "what": ("string", "what would be different, as in remedies; or work that is as fast as on the other side"),
    "a_ns": ("int64", "what a step of A gains by that alone, as played again: gain_ns of its remedies, if it has one"),
    "b_ns": ("int64", "the same of B"),
    "difference_ns": ("int64", "b_ns - a_ns: how much more it costs a step of B"),
    "difference_low_ns": ("Int64", "the least it may be, as both prices are uncertain"),
    "difference_high_ns": ("Int64", "the most it may be"),
    "cause": ("string", "the same in a sentence on the change"),
})  # fmt: skip
CHANGED_KERNELS = Schema("changed_kernels", "kernel of either side", {
    **KERNEL,
    "name_a": ("string", "its name in A, where the same work has another one there; else NA"),
    **_VALUES,
})  # fmt: skip
CHANGED_OPERATORS = Schema("changed_operators", "operator of either side", {
    "operator": OPERATOR["operator"], "kind": OPERATOR["kind"], **_VALUES,
})  # fmt: skip
CHANGED_SHAPES = Schema("changed_shapes", "operator with the shapes and types of its inputs, of either side", {
    "operator": ("string", "as in `shapes`; NA for what no operator with shapes launched"),
    "inputs": ("string", "shapes of its inputs that are tensors; NA where none is"),
    "dtype": ("string", "element type of the first matrix, else of the first tensor"),
    **_VALUES,
})  # fmt: skip
CHANGED_REGIONS = Schema("changed_regions", "class of regions and phase, of either side", {
    "region": ("string", "path of its regions, with * for all numbers that stand by themselves: layers.*.mlp"),
    "phase": PHASE,
    **_VALUES,
})  # fmt: skip

_BEYOND = (
    "runs: more than runs of one configuration differ, as known or assumed; steps: only more than steps of the two "
    "runs do; nothing: not even that; NA with too few steps"
)
TREND = Schema("trend", "run, in the order given", {
    "run": ("string", "name of the run; those that have the same are numbered"),
    "began_utc": ("string", "when the capture began, from run.json, else from the clocks of its traces; NA if unknown"),
    "commit": ("string", "git commit that the script was checked out at, from run.json; NA if unknown"),
    "hosts": ("string", "hosts of its ranks, or how many if these are many; NA if unknown"),
    "devices": ("string", "models of its devices; NA if unknown"),
    "ranks": ("int64", "ranks with a trace"),
    "steps": ("int64", "steps that count, as in `steps`; 0 if none is marked: then a step is the whole window"),
    "step_ns": ("Int64", "length of a typical step, the mean of those; the parts below add up to it"),
    "step_spread_ns": ("Int64", "standard deviation of their lengths; NA if there is only one"),
    "compute_alone_ns": ("Int64", "compute without communication beside it, mean over devices and steps, as all parts"),
    "overlap_ns": ("Int64", "compute and communication at once"),
    "exposed_transfer_ns": ("Int64", "exposed communication that moves data"),
    "exposed_wait_ns": ("Int64", "exposed communication that waits for other ranks"),
    "exposed_unsplit_ns": ("Int64", "exposed communication that may be waiting or transfer"),
    "exposed_memory_ns": ("Int64", "copies and fills beside which nothing else runs"),
    "idle_ns": ("Int64", "nothing runs"),
    "change_ns": ("Int64", "step_ns - that of the run before; NA for the first"),
    "beyond": ("string", f"what this change exceeds: {_BEYOND}"),
    "from_first_ns": ("Int64", "step_ns - that of the first run"),
    "from_first_beyond": ("string", "what this change exceeds, likewise"),
    "gain_ns": ("Int64", "what a step would gain by the first of `remedies`; NA if the run could not be played again"),
    "remedy": ("string", "that remedy"),
    "verdict": ("string", "the verdict on the run, as in `verdicts`"),
    "headline": ("string", "the same in a short sentence"),
    "cause": ("string", "why a step takes longer or less than in the run before: what costs more or less"),
})  # fmt: skip
