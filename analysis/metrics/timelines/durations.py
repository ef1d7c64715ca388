"""Split collectives into wait and transfer by the durations of their calls alone, without any clock.

No rank leaves an all_reduce, all_gather, reduce_scatter or all_to_all before the last one has arrived. So all calls end
at the same time, and the shortest is that of the rank that arrived last: it waited for nobody, and its whole duration
is transfer. Every other call waited for as long as it duration longer. Definition: docs/metrics/wait-and-transfer.md,
`wait_clock_free_ns`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.arrays import Floats, Ints


class SplitDurations(NamedTuple):
    """What the durations of its calls say about each collective; all of shape (collectives,), times in ns.

    `calls` is the number of calls, `sum_ns` the sum of their durations, `wait_ns` the sum of their waits. The shortest
    call is `shortest_row` of the input, and shorter than the next one by `shortest_by_ns`: NaN for a single call.
    """

    calls: Ints
    shortest_ns: Floats
    longest_ns: Floats
    sum_ns: Floats
    wait_ns: Floats
    shortest_row: Ints
    shortest_by_ns: Floats


def split_durations(number: Ints, dur_ns: Floats) -> SplitDurations:
    """Split calls into wait and transfer: one value per collective, in ascending order of `number`.

    `number` is the collective of each call and `dur_ns` its duration; both of shape (calls,), in any order.
    """
    order = np.lexsort((dur_ns, number))
    collective, duration = number[order], dur_ns[order]
    begins = np.flatnonzero(np.append(True, collective[1:] != collective[:-1])[: len(collective)])
    calls = np.diff(np.append(begins, len(collective)))
    shortest, longest = duration[begins], duration[begins + calls - 1]
    total = np.add.reduceat(duration, begins) if len(begins) else np.zeros(0)
    second = duration[np.minimum(begins + 1, max(len(duration) - 1, 0))] if len(begins) else np.zeros(0)
    by_ns = np.where(calls > 1, second - shortest, np.nan)
    return SplitDurations(calls, shortest, longest, total, total - calls * shortest, order[begins], by_ns)
