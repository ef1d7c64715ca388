"""Whether the collectives of a run are needed at once, so that nothing could run beside them."""

from __future__ import annotations

import numpy as np
import pandas as pd

_OF_ACTIVATIONS = ("all_reduce", "all_to_all")
"""Parameters are gathered, and could be earlier; what layers hand on is reduced or exchanged."""
_MOSTLY, _HARDLY = 0.8, 0.1
"""Of the time in collectives: what most of it is, and what little of it is hidden."""
_LONG, _USUAL, _LEAST = 4.0, 0.75, 6
"""A distance between calls is long from so many times the upper quartile; with fewer calls in a step, none is asked."""


def needed_at_once(calls: pd.DataFrame, hidden_ns: float, exposed_ns: float) -> bool:
    """Whether collectives come between layers all the time, as under tensor parallelism, and hardly any is hidden.

    Then each takes what was computed just before, and what comes next needs it. Gradients come together, at the end of
    a step: then most of the time passes in few long distances between `calls`. These are the table; of their time,
    `hidden_ns` lie behind compute, and `exposed_ns` do not. Exchanges without a name, as in graphs, may be all_to_alls.
    """
    spent = calls.groupby(calls["collective"].fillna(""))["dur_ns"].sum()
    exchanged = spent.reindex(["", *_OF_ACTIVATIONS]).fillna(0).sum()
    if hidden_ns > _HARDLY * (hidden_ns + exposed_ns) or exchanged < max(_MOSTLY * spent.sum(), 1):
        return False
    short_ns = whole_ns = 0
    for _, own in calls.sort_values("start_ns").groupby(["rank", "cycle", "device"]):
        start = own["start_ns"].to_numpy(dtype=np.int64)
        between = np.maximum(start[1:] - (start + own["dur_ns"].to_numpy(dtype=np.int64))[:-1], 0)
        if len(own) >= _LEAST * max(own["step"].nunique(), 1):
            short_ns += int(between[between <= _LONG * np.quantile(between, _USUAL)].sum())
            whole_ns += int(between.sum())
    return 2 * short_ns > whole_ns
