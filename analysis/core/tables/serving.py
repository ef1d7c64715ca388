"""Tables of steps by their kind and size, as serving engines mark them. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema
from .columns import KIND, PARTIAL, PARTIAL_RUN, RANK, REQUESTS, TOKENS

_ENGINE = ("string", "which of several engines whose traces were found together; NA if there is one")
_PER_GPU = ("Float64", "the same / number of devices; NA also if ranks have no trace")

SERVING = Schema("serving", "engine, kind and size of steps, all devices together", {
    "engine": _ENGINE,
    "kind": KIND,
    "requests": REQUESTS,
    "tokens": TOKENS,
    "steps": ("int64", "steps of this kind and size, without those at the edges of a capture that are not whole"),
    "window_ns": ("int64", "length of a step, median over these steps, of which each is a mean over the devices"),
    "exposed_wait_ns": ("Int64", "exposed communication that waits for other ranks, median; NA if nothing was split"),
    "exposed_transfer_ns": ("Int64", "exposed communication that moves data, median; NA if nothing was split"),
    "exposed_unsplit_ns": ("int64", "exposed communication that may be waiting or transfer, median"),
    "exposed_comm_ns": ("int64", "all three, median: medians do not add up"),
    "idle_ns": ("int64", "nothing runs, median"),
    "tokens_per_s": ("Float64", "tokens of all these steps / their lengths; NA if the tokens are not known"),
    "tokens_per_s_per_gpu": _PER_GPU,
    "exposed_us_per_token": ("Float64", "exposed communication of all these steps / their tokens"),
    "exposed_frac": ("Float64", "exposed communication of all these steps / their lengths"),
    "note": ("string", "why tokens are not known, and what is not counted of a step; else NA"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

SERVING_RANKS = Schema("serving_ranks", "engine, rank and kind of the rank's own steps", {
    "engine": _ENGINE,
    "replica": (
        "Int64",
        "which replica of the engine it is of, from 0: ranks of one serve the same requests; NA if that is not known",
    ),
    "rank": RANK,
    "kind": KIND,
    "steps": ("int64", "steps that are of this kind on this rank, without those at the edges that are not whole"),
    "requests": ("Int64", "requests of a step, median; NA if an annotation does not say"),
    "tokens": ("Int64", "tokens of all these steps; NA if an annotation does not say"),
    "window_ns": ("int64", "length of a step on this rank, median"),
    "tokens_per_s": ("Float64", "tokens of all these steps / their lengths: ranks of one replica have the same tokens"),
    "partial": PARTIAL,
})  # fmt: skip

SERVING_FLOORS = Schema("serving_floors", "engine, kind and size of steps, mean over the devices", {
    "engine": _ENGINE,
    "kind": KIND,
    "requests": REQUESTS,
    "tokens": TOKENS,
    "steps": ("int64", "steps of this kind and size, without those at the edges of a capture that are not whole"),
    "window_ns": ("int64", "length of a step, median over these steps"),
    "weights_bytes": ("Int64", "weights that a device multiplies with in a step, median; NA if no shapes are known"),
    "cache_bytes": ("Int64", "keys and values that attention reads at least, median; NA if nothing tells"),
    "cache_most_bytes": ("Int64", "those that it reads at most: all that the pages hold; NA if no shape tells"),
    "floor_ns": ("Int64", "what reading these takes at least; NA if no bandwidth of memory is known of the device"),
    "floor_most_ns": ("Int64", "the same if attention reads cache_most_bytes"),
    "floor_frac": ("Float64", "floor_ns / window_ns: the part of a step that no faster kernel would save"),
    "note": ("string", "what is not known, and why"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

SERVING_FITS = Schema("serving_fits", "engine and kind of step, all devices together", {
    "engine": _ENGINE,
    "kind": KIND,
    "steps": ("int64", "steps of this kind, without those at the edges that are not whole"),
    "exposed_frac": ("Float64", "exposed communication of all these steps / their lengths"),
    "steps_with_tokens": ("int64", "those of them whose tokens are known; what follows is of these"),
    "sizes": ("int64", "different numbers of tokens among them"),
    "tokens_min": ("Int64", "the fewest tokens of a step"),
    "tokens_max": ("Int64", "the most"),
    "tokens_per_s": ("Float64", "tokens of all these steps / their lengths"),
    "tokens_per_s_per_gpu": _PER_GPU,
    "exposed_us_per_token": (
        "Float64",
        "exposed communication of all these steps / their tokens: what tensor parallelism costs a token",
    ),
    "exposed_wait_us_per_token": ("Float64", "the part of it that waits; NA if nothing was split in some step"),
    "exposed_transfer_us_per_token": ("Float64", "the part of it that moves data; NA likewise"),
    "intercept_us": ("Float64", "of length = intercept + slope x tokens: what a step takes however few tokens it has"),
    "slope_us_per_token": ("Float64", "what each token adds"),
    "r2_frac": ("Float64", "part of the variance of the lengths that the fit explains"),
    "residual_us": ("Float64", "standard deviation of the lengths from the fit"),
    "note": ("string", "why tokens are not known, or why there is no fit, and what is not counted of a step"),
    "partial": PARTIAL_RUN,
})  # fmt: skip
