"""Where the idle time of devices is, by cause: the intervals that `idle` adds up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ...core.intervals import Spans, Times, intersect, subtract
from ...core.steps import NO_STEP
from .idle import HOST, Gaps, Host, HostTables, gaps_of_devices, idle_parts

_COLUMNS = ["rank", "device", "step", "cause", "start_ns", "end_ns"]


def idle_pieces(activities: pd.DataFrame, tables: HostTables) -> pd.DataFrame:
    """One row per interval in which a device is idle for one cause, cut at steps; `step` is NO_STEP outside of them.

    `cause` is a column of `idle` without `_ns`: one of HOST, or `starved` where what the host did is not known;
    `launching`, `queued` or `unknown`; `idle` where no cause is known. By cause they add up to `idle_steps`, and
    between the first and the last activity of a device to `idle`.
    """
    parts = []
    for each in gaps_of_devices(activities, tables):
        gaps = each.gaps
        steps = np.array([*(window.step for window in each.windows), NO_STEP], dtype=np.int64)
        found = list(_pieces(gaps, each.host, each.why_not))
        start, end = (np.concatenate([getattr(piece, key) for _, piece in found]) for key in Spans._fields)
        cause = np.concatenate([np.full(len(piece.starts), cause, dtype=object) for cause, piece in found])
        order = np.argsort(start, kind="stable")
        of_gap = np.searchsorted(gaps.start_ns, start[order], side="right") - 1
        rows = {"rank": each.rank, "device": each.device, "step": steps[gaps.window[of_gap]], "cause": cause[order]}
        parts.append(pd.DataFrame(rows | {"start_ns": start[order], "end_ns": end[order]}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_COLUMNS)


def _pieces(gaps: Gaps, host: Host | None, why_not: str | None) -> Iterator[tuple[str, Spans]]:
    """Yield the intervals of each cause, none of them empty."""
    if host is None:
        yield "idle", _not_empty(gaps.start_ns, gaps.end_ns)
        return
    known, absent = gaps.is_known, idle_parts(gaps, host, why_not).absent
    yield "unknown", _not_empty(gaps.start_ns[~known], gaps.end_ns[~known])
    yield "launching", _not_empty(gaps.begun_ns[known], gaps.done_ns[known])
    yield "queued", _not_empty(gaps.done_ns[known], gaps.end_ns[known])
    for thread in np.unique(gaps.thread[known]).tolist():
        here = known & (gaps.thread == thread)
        left = _not_empty(gaps.start_ns[here], gaps.begun_ns[here])
        if not len(left.starts):
            continue
        did = host.spans_of(thread)
        for cause in HOST[:-1]:
            if cause not in absent:
                yield cause, intersect(left, did[cause])
                left = subtract(left, did[cause])
        yield "starved" if HOST[-1] in absent else HOST[-1], left


def _not_empty(start_ns: Times, end_ns: Times) -> Spans:
    """Those of these intervals that have a length. Unlike merged spans, they may touch."""
    keep = end_ns > start_ns
    return Spans(start_ns[keep], end_ns[keep])
