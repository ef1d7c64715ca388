"""Sum the calls of finished collectives."""

from __future__ import annotations

import numpy as np

from ...common.nccl_tests import SYNCHRONISING
from ..core.arrays import Floats, Ints
from ..formats.inspector.columns import RECORDED_KINDS, LogBlock
from ..metrics.over_time import MetCollectives, known_bus_factor
from ..metrics.timelines.durations import split_durations
from .waiting_calls import WaitingColumns, key_parts

KIND_NAMES = list(dict.fromkeys(RECORDED_KINDS))
"""What the column `kind` of `MetCollectives` counts into here."""
_NAME_OF = np.array([KIND_NAMES.index(kind) for kind in RECORDED_KINDS])
_SYNCHRONISING = np.array([kind in SYNCHRONISING for kind in RECORDED_KINDS])
_US_NS = 1000.0


def met_collectives(calls: WaitingColumns) -> MetCollectives:
    """One row per key, ascending. `last` is the place in the communicator of the rank that arrived last.

    Those that lack a rank, or in which not all agree or are timed by GPUs, or of which ranks may leave early, are not
    split; the least that their ranks waited is known if only ranks are missing.
    """
    number = np.unique(calls.key, return_inverse=True)[1]
    dur_ns = calls.dur_us * _US_NS
    split = split_durations(number, dur_ns)
    first = split.shortest_row
    communicator, kind, _ = key_parts(calls.key[first])
    size = calls.size[first]
    rows = len(first)
    agree = (_most(number, calls.size_bytes, rows) == -_most(number, -calls.size_bytes, rows)) & (
        np.bincount(number, ~calls.by_gpu, rows) == 0
    )
    several = agree & _SYNCHRONISING[kind] & (split.calls > 1)
    whole = (several & (split.calls == size)) | (agree & (size == 1))
    logged = ~np.isnan(calls.busbw_gb_per_s)
    return MetCollectives(
        at_ns=_by_first_rank(number, calls) * 1000,
        group=communicator,
        kind=_NAME_OF[kind],
        size_bytes=np.where(agree & (calls.size_bytes[first] >= 0), calls.size_bytes[first], np.nan),
        busbw_factor=_factors(kind, size),
        transfer_ns=np.where(whole & (size > 1), split.shortest_ns, np.nan),
        transfer_low_ns=np.where(whole & (size > 1), split.shortest_ns, np.nan),
        transfer_high_ns=np.where(whole & (size > 1), split.longest_ns, np.nan),
        wait_ns=np.where(whole, split.wait_ns, np.nan),
        wait_low_ns=np.where(several, split.wait_ns, np.nan),
        dur_ns=split.sum_ns,
        mean_dur_ns=split.sum_ns / split.calls,
        last=np.where(several & (split.shortest_by_ns > 0), calls.place[first], -1),
        last_by_ns=split.shortest_by_ns,
        logged=np.bincount(number, logged, rows).astype(np.int64),
        logged_gb_per_s=np.bincount(number, np.where(logged, calls.busbw_gb_per_s, 0.0), rows).astype(np.float64),
    )


def met_messages(block: LogBlock, communicator: Ints) -> MetCollectives:
    """One row per send or receive, which no number pairs."""
    rows = len(block.sn)
    unknown, dur_ns = np.full(rows, np.nan), block.dur_us * _US_NS
    logged = ~np.isnan(block.busbw_gb_per_s)
    return MetCollectives(
        at_ns=block.ended_us * 1000,
        group=communicator,
        kind=_NAME_OF[block.kind],
        size_bytes=np.where(block.size_bytes >= 0, block.size_bytes, np.nan),
        busbw_factor=_factors(block.kind, np.full(rows, 2)),
        transfer_ns=unknown,
        transfer_low_ns=unknown,
        transfer_high_ns=unknown,
        wait_ns=unknown,
        wait_low_ns=unknown,
        dur_ns=dur_ns,
        mean_dur_ns=dur_ns,
        last=np.full(rows, -1),
        last_by_ns=unknown,
        logged=logged.astype(np.int64),
        logged_gb_per_s=np.where(logged, block.busbw_gb_per_s, 0.0),
    )


def _most(number: Ints, values: Ints, rows: int) -> Ints:
    """The largest value of each number."""
    most = np.full(rows, np.iinfo(np.int64).min)
    np.maximum.at(most, number, values)
    return most


def _by_first_rank(number: Ints, calls: WaitingColumns) -> Ints:
    """End of each in us, on the clock of the first rank that shows it: clocks differ, and any will do."""
    order = np.lexsort((calls.place, number))
    begins = np.flatnonzero(np.append(True, np.diff(number[order]) != 0)[: len(order)])
    ended_us: Ints = calls.ended_us[order[begins]]
    return ended_us


def _factors(kind: Ints, size: Ints) -> Floats:
    pairs, inverse = np.unique(np.stack([kind, size]), axis=1, return_inverse=True)
    known = [known_bus_factor(RECORDED_KINDS[int(k)], int(n)) for k, n in pairs.T]
    factors: Floats = np.array(known, dtype=np.float64)[inverse.ravel()]
    return factors
