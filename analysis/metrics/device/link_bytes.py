"""Bytes that calls send over links, computed from their sizes, beside the counters of the links."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import pandas as pd

from ....common.nccl_tests import POINT_TO_POINT, ROOTED, SYNCHRONISING, bus_factor
from ...core.schema import records

_KNOWN = SYNCHRONISING | ROOTED | POINT_TO_POINT


def sent_bytes_by_step(calls: pd.DataFrame) -> Mapping[int, float]:
    """Bytes that each rank sends over its links in a traced step, as in a ring; mean over the steps.

    Ranks of which a call has no size are left out. Source: the bus factor of nccl-tests (doc/PERFORMANCE.md) is what a
    rank's link carries of an array, as a part of it.
    """
    stepped = calls[calls["step"].notna()]
    sent = {}
    for rank, calls_of_rank in stepped.groupby("rank"):
        sizes = [_sent_bytes(row) for row in records(calls_of_rank[["collective", "group_size", "size_bytes"]])]
        known = [size for size in sizes if size is not None]
        if len(known) == len(sizes):
            sent[int(str(rank))] = sum(known) / calls_of_rank["step"].nunique()
    return sent


def _sent_bytes(row: Mapping[str, object]) -> float | None:
    collective, ranks, size_bytes = row["collective"], row["group_size"], row["size_bytes"]
    if collective in ("barrier", "recv"):
        return 0.0
    if not isinstance(ranks, int) or not isinstance(size_bytes, int) or collective not in _KNOWN:
        return None
    return size_bytes * bus_factor(str(collective), ranks)


def link_counters(nvlink: Mapping[int, tuple[int, int]], calls: pd.DataFrame) -> str | None:
    """Compare counters with sizes in one sentence; `nvlink` has bytes and steps by rank. None without counters."""
    if not nvlink:
        return None
    counted = {rank: sent / steps for rank, (sent, steps) in nvlink.items()}
    sentence = f"sent {median(counted.values()) / 1e6:,.1f} MB a step and GPU by their counters, over the whole capture"
    by_size = sent_bytes_by_step(calls)
    both = [by_size[rank] for rank in counted if rank in by_size]
    if not both:
        return sentence
    return f"{sentence}; {median(both) / 1e6:,.1f} MB by the sizes of traced calls, if all go round rings of NVLinks"
