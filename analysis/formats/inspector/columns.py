"""Lines of a log as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .lines import ON_GPU, Collective, Message

_KIND_OF = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "AllGatherV": "all_gather", "All2All": "all_to_all", "AlltoAll": "all_to_all",
    "Gather": "gather", "Scatter": "scatter", "Send": "send", "Recv": "recv",
}  # fmt: skip
RECORDED_KINDS: tuple[str | None, ...] = (*_KIND_OF.values(), None)
"""What the column `kind` of `LogBlock` counts into; two words of NCCL's may be one kind."""
SEND, RECV = (RECORDED_KINDS.index(kind) for kind in ("send", "recv"))
_CODES = {word: code for code, word in enumerate(_KIND_OF)}
_UNKNOWN = len(_CODES)
# What is logged is count x itemsize, which is the whole array for some and one rank's share of it for others. Of the
# rest it is not documented. Source: inspectorComputeOpBw of NCCL's inspector.cc.
_WHOLE = [_CODES[word] for word in ("AllReduce", "Broadcast", "Reduce", "Send", "Recv")]
_SHARE = [_CODES[word] for word in ("AllGather", "ReduceScatter")]


class LogBlock(NamedTuple):
    """Calls that ended, in the order of the log, as columns.

    `communicator` counts into those of the log, `kind` into RECORDED_KINDS; `sn` numbers the calls of a kind in a
    communicator, messages those of the rank. `size_bytes` is S as nccl-tests defines it, -1 where it is not known;
    `dur_us` is truncated to whole us; `ended_us` is when the process saw the end or, where the log does not say, wrote
    the line. `by_gpu` is False for calls timed by a CPU, or not at all. `busbw_gb_per_s` is the Inspector's own figure,
    NaN where there is none; `peer` the rank in the communicator, -1 for collectives.
    """

    communicator: NDArray[np.int64]
    kind: NDArray[np.int64]
    sn: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    dur_us: NDArray[np.float64]
    ended_us: NDArray[np.int64]
    by_gpu: NDArray[np.bool_]
    busbw_gb_per_s: NDArray[np.float64]
    peer: NDArray[np.int64]

    def taken(self, rows: NDArray[Any]) -> LogBlock:
        """Some of the calls."""
        return LogBlock._make(column[rows] for column in self)

    @classmethod
    def joined(cls, blocks: Sequence[LogBlock]) -> LogBlock:
        """The calls of one block after another."""
        return cls._make(np.concatenate(columns) for columns in zip(*blocks, strict=True))


Written = tuple[int, int, Collective | Message]
"""A communicator, when the line was written, in us, and what stands in it."""


def columns_of_rows(rows: Sequence[Written], group_sizes: Sequence[int]) -> LogBlock:
    """Rows as columns; `group_sizes` are those of the communicators."""
    values = zip(*(_values(*row) for row in rows), strict=True) if rows else [()] * len(LogBlock._fields)
    communicator, kind, sn, bytes_, dur, ended, on_gpu, busbw, peer = values
    numbers, kinds = np.array(communicator, dtype=np.int64), np.array(kind, dtype=np.int64)
    dur_us = np.array(dur, dtype=np.float64)
    return LogBlock(
        numbers,
        kinds,
        np.array(sn, dtype=np.int64),
        _sizes(np.array(bytes_, dtype=np.int64), kinds, np.array(group_sizes, dtype=np.int64)[numbers]),
        dur_us,
        np.array(ended, dtype=np.int64),
        np.array(on_gpu, dtype=bool) & (dur_us > 0),
        np.array([np.nan if value is None else value for value in busbw], dtype=np.float64),
        np.array(peer, dtype=np.int64),
    )


def _values(communicator: int, written_us: int, made: Collective | Message) -> tuple[object, ...]:
    ended_us = (made.event_trace_ts.ended_us if made.event_trace_ts is not None else 0) or written_us
    if isinstance(made, Collective):
        return (
            communicator, _CODES.get(made.coll, _UNKNOWN), made.coll_sn, made.coll_msg_size_bytes,
            made.coll_exec_time_us, ended_us, made.coll_timing_source == ON_GPU, made.coll_busbw_gbs, -1,
        )  # fmt: skip
    return (
        communicator, _CODES.get(made.p2p, _UNKNOWN), made.p2p_sn, made.p2p_msg_size_bytes,
        made.p2p_exec_time_us, ended_us, made.p2p_timing_source == ON_GPU, made.p2p_busbw_gbs, made.p2p_peer,
    )  # fmt: skip


def _sizes(logged_bytes: NDArray[np.int64], kind: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    known = np.isin(kind, _WHOLE) | (np.isin(kind, _SHARE) & (logged_bytes < 2**62 // np.maximum(ranks, 1)))
    return np.where(known, logged_bytes * np.where(np.isin(kind, _SHARE), ranks, 1), -1)
