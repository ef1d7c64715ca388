"""Collectives of which only durations are known, split into wait and transfer without any clock.

No rank leaves an all_reduce, all_gather, reduce_scatter or all_to_all before the last one has arrived, so all end
together, and the shortest call is that of the rank that arrived last: it is transfer and nothing else. How much longer
another call took, it waited. Definition: docs/metrics/wait-and-transfer.md, `wait_clock_free_ns`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..clocks.frame import Floats, Ints


class SplitDurations(NamedTuple):
    """Calls and times in ns of each collective; its shortest call, and by how much (NaN for a single call).

    `wait_ns` is the sum over its calls; `at` is the row of the shortest.
    """

    calls: Ints
    shortest_ns: Floats
    longest_ns: Floats
    sum_ns: Floats
    wait_ns: Floats
    at: Ints
    by_ns: Floats


def split_durations(number: Ints, dur_ns: Floats) -> SplitDurations:
    """Split these calls by collective, in ascending order of `number`."""
    order = np.lexsort((dur_ns, number))
    ordered, took = number[order], dur_ns[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    calls = np.diff(np.append(begins, len(ordered)))
    shortest, longest = took[begins], took[begins + calls - 1]
    total = np.add.reduceat(took, begins) if len(begins) else np.zeros(0)
    second = took[np.minimum(begins + 1, max(len(took) - 1, 0))] if len(begins) else np.zeros(0)
    by_ns = np.where(calls > 1, second - shortest, np.nan)
    return SplitDurations(calls, shortest, longest, total, total - calls * shortest, order[begins], by_ns)
