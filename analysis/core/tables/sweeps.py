"""The tables across runs. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema

_CELL = {
    "run": ("string", "run directory of the cell; for a CSV, the name it would have"),
    "model": ("string", "name of the model"),
    "parallel": ("string", "single, dp, ddp, fsdp or pipeline"),
    "workers": ("int64", "ranks; for dp, which is one process, its devices"),
    "batch_size_per_worker": ("int64", "samples that each worker gets per step"),
    "status": ("string", "done, open, out_of_memory, out_of_data, failed, skipped; unreadable with --keep-going"),
}
_NOTE = ("string", "why the cell has no timing, why values are NA, and what was assumed")
_EPOCH = ("Int64", "time of a whole epoch without data loading, of the slowest rank")
_SPREAD = ("Float64", "90th - 10th percentile of the timed steps / their median, of the slowest rank")

TIMINGS = Schema("timings", "cell: model, mode, workers and batch size", {
    "cell": ("int64", "number of the cell, in order of the input"),
    **_CELL,
    "reason": ("string", "why it was not done"),
    "epoch_ns": _EPOCH,
    "timed_steps": ("Int64", "steps that were timed"),
    "epoch_steps": ("Int64", "steps of a whole epoch on that rank"),
    "data_ns": ("Int64", "waiting for the data loader in a whole epoch, of the slowest rank"),
    "step_spread_frac": _SPREAD,
    "shared_cores": ("Int64", "cores of the one machine whose CPU all workers share; NA on GPUs, or several hosts"),
    "dataset_samples": ("Int64", "samples of a whole epoch, all workers together"),
    "sample_bytes": ("Int64", "bytes of one sample, one byte per channel and pixel"),
    "parameters_elems": ("Int64", "parameters of the model"),
    "parameters_bytes": ("Int64", "bytes of the parameters, and so of the gradients"),
})  # fmt: skip

SCALING = Schema("scaling", "cell: model, mode, workers and batch size", {
    **_CELL,
    "baseline": ("string", "the cell with one worker that it is compared with: same model and batch size per worker"),
    "epoch_ns": _EPOCH,
    "timed_steps": ("Int64", "steps that were timed; fewer than epoch_steps: the time is scaled to a whole epoch"),
    "epoch_steps": ("Int64", "steps of a whole epoch on a rank"),
    "step_spread_frac": _SPREAD,
    "samples_per_s": ("Float64", "samples of a whole epoch, all workers together / epoch_ns"),
    "epoch_work": ("string", "shared: the workers share the epoch of one; repeated: each does all of it; different"),
    "speedup_fixed_work": ("Float64", "T1 / TN: the work is fixed, the workers share the epoch of one"),
    "speedup_scaled_work": ("Float64", "N x T1 / TN: the work per worker is fixed, each of N does the epoch of one"),
    "strong_efficiency_frac": ("Float64", "T1 / (N x TN), of workers that share the epoch"),
    "weak_efficiency_frac": ("Float64", "time of a step of one worker / of N, at the same batch per worker"),
    "speedup_same_batch": ("Float64", "time of one worker at N x the batch per worker / TN: the same global batch"),
    "note": _NOTE,
})  # fmt: skip

MEASURED = Schema("measured", "cell with traces", {
    "cell": ("int64", "number of the cell"),
    "traced_steps": ("Int64", "steps in the traces"),
    "window_ns": ("Int64", "mean over ranks, devices and traced steps, x epoch_steps, as all times here"),
    "compute_ns": ("Int64", "computing"),
    "comm_ns": ("Int64", "communicating, hidden or not"),
    "exposed_comm_ns": ("Int64", "communicating and not computing"),
    "exposed_wait_ns": ("Int64", "of that, waiting for other ranks"),
    "exposed_transfer_ns": ("Int64", "of that, moving data"),
    "exposed_unsplit_ns": ("Int64", "of that, not split into the two"),
    "busbw_gb_per_s": ("Float64", "of all all_reduces together: sum of size x bus factor / sum of transfer times"),
    "note": ("string", "why values are NA"),
})  # fmt: skip

SUBTRACTION = Schema("subtraction", "cell with more than one worker; times are those of a whole epoch", {
    **_CELL,
    "baseline": ("string", "the cell with one worker that is subtracted: same model and batch size per worker"),
    "epoch_ns": _EPOCH,
    "epoch_steps": ("Int64", "steps of a whole epoch on a rank"),
    "subtracted_compute_ns": ("Int64", "T1 / N: what subtraction takes for compute"),
    "subtracted_comm_ns": ("Int64", "TN - T1 / N: what it takes for communication; may be negative"),
    "not_compute_ns": ("Int64", "TN - compute_ns: everything but compute, taken for communication; may be negative"),
    "loader_ns": ("Int64", "waiting for the data loader, taken for communication"),
    "traced_steps": ("Int64", "steps in the traces, from which what follows is measured"),
    "window_ns": ("Int64", "measured: a whole epoch, under the profiler"),
    "compute_ns": ("Int64", "measured: computing"),
    "comm_ns": ("Int64", "measured: communicating, hidden or not"),
    "exposed_comm_ns": ("Int64", "measured: communicating and not computing"),
    "exposed_wait_ns": ("Int64", "measured: of that, waiting for other ranks"),
    "exposed_transfer_ns": ("Int64", "measured: of that, moving data"),
    "exposed_unsplit_ns": ("Int64", "measured: of that, not split into the two"),
    "difference_ns": ("Int64", "subtracted_comm_ns - exposed_comm_ns: what is not communication, or was hidden"),
    "message_bytes": ("Int64", "gradients that are reduced in a step: the bytes of the parameters"),
    "subtracted_busbw_gb_per_s": ("Float64", "message_bytes x epoch_steps x bus factor / subtracted_comm_ns"),
    "busbw_gb_per_s": ("Float64", "measured: of all all_reduces together, in the time in which they moved data"),
    "note": _NOTE,
})  # fmt: skip

MISTAKES = Schema("mistakes", "cell with more than one worker, and known mistake", {
    **_CELL,
    "mistake": ("string", "name of the mistake, as --mistake takes it"),
    "reports": ("string", "the reports that made it"),
    "subtracted_comm_ns": ("Int64", "TN - T1 / N"),
    "subtracted_busbw_gb_per_s": ("Float64", "without the mistake"),
    "mistaken_busbw_gb_per_s": ("Float64", "with it"),
    "mistaken_factor": ("Float64", "with it / without it"),
    "because": ("string", "what is mistaken for what, with the numbers"),
    "note": ("string", "why values are NA"),
})  # fmt: skip
