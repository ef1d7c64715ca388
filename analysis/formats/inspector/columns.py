"""Lines of a log as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .lines import ON_GPU, Collective, Message

_Ints = NDArray[np.int64]

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
    """Finished calls in the order of the log, as columns.

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
        """The calls in these rows."""
        return LogBlock._make(column[rows] for column in self)

    @classmethod
    def joined(cls, blocks: Sequence[LogBlock]) -> LogBlock:
        """Concatenate blocks."""
        return cls._make(np.concatenate(columns) for columns in zip(*blocks, strict=True))


@dataclass
class WrittenCalls:
    """Calls as written in a log: number of the communicator, time of writing in us, and the event.

    Collectives and messages apart, because columns of one sort are made faster.
    """

    collectives: tuple[list[int], list[int], list[Collective]] = field(default_factory=lambda: ([], [], []))
    messages: tuple[list[int], list[int], list[Message]] = field(default_factory=lambda: ([], [], []))

    def columns(self, group_sizes: Sequence[int]) -> LogBlock:
        """Convert to columns; `group_sizes` are those of the communicators."""
        sizes = np.array(group_sizes, dtype=np.int64)
        numbers, written_us, calls = self.collectives
        parts = [_collectives(numbers, _ended_us(written_us, calls), calls, sizes)]
        if self.messages[0]:
            numbers, written_us, messages = self.messages
            parts.append(_messages(numbers, _ended_us(written_us, messages), messages, sizes))
        return LogBlock.joined(parts) if len(parts) > 1 else parts[0]


def _ended_us(written_us: list[int], calls: Sequence[Collective | Message]) -> list[int]:
    """End of each call in us, where known."""
    return [
        us if call.event_trace_ts is None else call.event_trace_ts.ended_us or us
        for us, call in zip(written_us, calls, strict=True)
    ]


def _collectives(numbers: list[int], ended_us: list[int], calls: list[Collective], sizes: _Ints) -> LogBlock:
    communicator = np.array(numbers, dtype=np.int64)
    kind = np.array([_CODES.get(call.coll, _UNKNOWN) for call in calls], dtype=np.int64)
    dur_us = np.array([call.coll_exec_time_us for call in calls], dtype=np.float64)
    logged_bytes = np.array([call.coll_msg_size_bytes for call in calls], dtype=np.int64)
    return LogBlock(
        communicator=communicator,
        kind=kind,
        sn=np.array([call.coll_sn for call in calls], dtype=np.int64),
        size_bytes=_sizes(logged_bytes, kind, sizes[communicator]),
        dur_us=dur_us,
        ended_us=np.array(ended_us, dtype=np.int64),
        by_gpu=np.array([call.coll_timing_source == ON_GPU for call in calls], dtype=bool) & (dur_us > 0),
        busbw_gb_per_s=_bandwidths([call.coll_busbw_gbs for call in calls]),
        peer=np.full(len(calls), -1),
    )


def _messages(numbers: list[int], ended_us: list[int], calls: list[Message], sizes: _Ints) -> LogBlock:
    communicator = np.array(numbers, dtype=np.int64)
    kind = np.array([_CODES.get(call.p2p, _UNKNOWN) for call in calls], dtype=np.int64)
    dur_us = np.array([call.p2p_exec_time_us for call in calls], dtype=np.float64)
    logged_bytes = np.array([call.p2p_msg_size_bytes for call in calls], dtype=np.int64)
    return LogBlock(
        communicator=communicator,
        kind=np.where((kind == SEND) | (kind == RECV), kind, _UNKNOWN),
        sn=np.array([call.p2p_sn for call in calls], dtype=np.int64),
        size_bytes=_sizes(logged_bytes, kind, sizes[communicator]),
        dur_us=dur_us,
        ended_us=np.array(ended_us, dtype=np.int64),
        by_gpu=np.array([call.p2p_timing_source == ON_GPU for call in calls], dtype=bool) & (dur_us > 0),
        busbw_gb_per_s=_bandwidths([call.p2p_busbw_gbs for call in calls]),
        peer=np.array([call.p2p_peer for call in calls], dtype=np.int64),
    )


def _bandwidths(values: list[float | None]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)  # None becomes NaN


def _sizes(logged_bytes: NDArray[np.int64], kind: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    known = np.isin(kind, _WHOLE) | (np.isin(kind, _SHARE) & (logged_bytes < 2**62 // np.maximum(ranks, 1)))
    return np.where(known, logged_bytes * np.where(np.isin(kind, _SHARE), ranks, 1), -1)
