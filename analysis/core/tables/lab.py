"""Tables of `commtrace layers` and `capacity`, as their files have them. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema

LAYERS = Schema("layers", "layer", {
    "layer": ("string", "name of the layer in the model; of two models, each as a whole"),
    "kind": ("string", "the layer, as torch prints it"),
    "input": ("string", "dimensions of the input"),
    "forward_ns": ("Int64", "mean time of the forward pass"),
    "forward_spread_ns": ("Int64", "sample standard deviation of that time"),
    "backward_ns": ("Int64", "mean time of the backward pass"),
    "backward_spread_ns": ("Int64", "sample standard deviation of that time"),
    "parameters_bytes": ("int64", "parameters; their gradients take as much again"),
    "saved_bytes": ("Int64", "what autograd keeps for the backward pass, including the input"),
    "activation_bytes": ("Int64", "what the forward pass leaves behind: the output, and what the backward pass needs"),
    "formula_bytes": ("Int64", "activation_bytes by formula; NA where there is none"),
    "peak_bytes": ("Int64", "most memory at any moment of both passes, beyond input and parameters"),
    "power_w": ("Float64", "power of the whole GPU while the layer runs, in W"),
    "note": ("string", "why values are NA"),
})  # fmt: skip

ALL_REDUCE = Schema("all_reduce", "size", {
    "size_bytes": ("int64", "size of the array"),
    "group_size": ("int64", "ranks"),
    "mean_us": ("Float64", "mean time of a call"),
    "algbw_gb_per_s": ("Float64", "size / time"),
    "busbw_gb_per_s": ("Float64", "algbw x 2 (N - 1) / N: what links carry"),
})  # fmt: skip

TIME_RATIOS = Schema("time_ratios", "pass", {
    "passes": ("string", "forward, backward, or both together"),
    "ratio": ("Float64", "median over the pairs of time of the second model / time of the first"),
    "low_ratio": ("Float64", "lower end of its 95 % interval; NA with fewer than 6 pairs"),
    "high_ratio": ("Float64", "upper end"),
    "pairs": ("int64", "a pass of each model, one right after the other"),
})  # fmt: skip

CAPACITY = Schema("capacity", "number of devices", {
    "devices": ("int64", "devices over which the stack is split"),
    "fits": ("bool", "whether it fits"),
    "split": ("string", "convolutions + linear layers of each device"),
    "conv_layers": ("Int64", "convolutions of all devices together"),
    "linear_layers": ("Int64", "linear layers of all devices together"),
    "step_ns": ("Int64", "mean time of a step, forward and backward"),
    "step_spread_ns": ("Int64", "sample standard deviation of that time"),
    "step_min_ns": ("Int64", "time of the shortest step"),
    "step_max_ns": ("Int64", "time of the longest step"),
    "peak_bytes": ("Int64", "most memory of a device, or on CPU of a process"),
    "note": ("string", "what is known of larger stacks"),
})  # fmt: skip
