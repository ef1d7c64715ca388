"""The table of predictions."""

from __future__ import annotations

from ..schema import Schema
from .columns import PARTIAL_RUN

PREDICTIONS = Schema("predictions", "thing that could be different", {
    "scenario": ("string", "what is different"),
    "step_ns": ("Int64", "length of a step then: measured, less gain_ns; NA where `unknown` says why"),
    "low_ns": ("Int64", "the shortest it may be: over ways of the change, delays, replay error and chance"),
    "high_ns": ("Int64", "the longest it may be"),
    "gain_ns": ("Int64", "by how much a step is shorter, mean over steps and devices"),
    "gain_frac": ("Float64", "gain_ns / measured length of a step"),
    "throughput_factor": ("Float64", "work done in the same time / as measured; NA with as many ranks as there are"),
    "efficiency_frac": ("Float64", "throughput_factor / how many times as many ranks; NA with as many ranks"),
    "unknown": ("string", "why a number is NA"),
    "replay_error_frac": ("Float64", "by how much the replay of the run as it is misses a step, median over steps"),
    "assumes": ("string", "what is taken for granted"),
    "partial": PARTIAL_RUN,
})  # fmt: skip
