"""The used fields of a line of NCCL Inspector. Source: inspector_json.cc and json.cc of NCCL's plugin.

Versions 4.0 to 4.2 repeat `header` and `metadata` in every line. Since 4.3 a line `dump_stats` carries both, for as
many lines after it as it says.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from ...recording.values import PLAUSIBLE_RANKS

MOST_SN = 1 << 39
KNOWN_VERSIONS = ("v4.0", "v4.1", "v4.2", "v4.3")
ON_GPU = "kernel_gpu"

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Rank = Annotated[int, msgspec.Meta(ge=0, le=PLAUSIBLE_RANKS)]
_Sn = Annotated[int, msgspec.Meta(ge=0, lt=MOST_SN)]
_Us = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) // 1000)]
_DurationUs = Annotated[float, msgspec.Meta(ge=0, le=2.0**53 / 1000)]
# printf writes numbers that are none, which JSON has no words for.
_NO_NUMBER = re.compile(rb"(?<=[:,\[ ])-?(?:nan|inf)(?=[,}\] ])")
_BEGINS = re.compile(rb'\{\s*"(?:header|coll_perf|p2p_perf|proxy_trace)"\s*:')


class LineHeader(msgspec.Struct, gc=False):
    """The communicator, and this rank's place in it."""

    id: str
    rank: _Rank
    n_ranks: Annotated[int, msgspec.Meta(ge=1, le=PLAUSIBLE_RANKS)]
    comm_name: str | None = None


class LineMetadata(msgspec.Struct, gc=False):
    """The process that wrote the line, and when."""

    dump_timestamp_us: _Us
    hostname: str
    pid: _Count
    inspector_output_format_version: str = "of no version"


class _KernelEvent(msgspec.Struct, gc=False):
    kernel_stop_ts: _Us = 0


class _EventTimes(msgspec.Struct, gc=False):
    kernel_events: list[_KernelEvent] = []

    @property
    def ended_us(self) -> int:
        """When a CPU saw the last kernel end, 0 if not given."""
        return max((event.kernel_stop_ts for event in self.kernel_events), default=0)


class Collective(msgspec.Struct, gc=False):
    """A collective that finished on this rank."""

    coll: str
    coll_sn: _Sn
    coll_msg_size_bytes: _Count
    coll_exec_time_us: _DurationUs
    coll_timing_source: str = ON_GPU
    coll_busbw_gbs: float | None = None
    event_trace_ts: _EventTimes | None = None


class Message(msgspec.Struct, gc=False):
    """A send or receive that finished on this rank."""

    p2p: str
    p2p_sn: _Sn
    p2p_peer: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
    p2p_msg_size_bytes: _Count
    p2p_exec_time_us: _DurationUs
    p2p_timing_source: str = ON_GPU
    p2p_busbw_gbs: float | None = None
    event_trace_ts: _EventTimes | None = None


class DumpStats(msgspec.Struct, gc=False):
    """The communicator of the next lines, and what was lost before them."""

    coll_records: _Count = 0
    p2p_records: _Count = 0
    proxy_records: _Count = 0
    coll_dropped_since_last_dump: _Count = 0
    p2p_dropped_since_last_dump: _Count = 0
    proxy_dropped_since_last_dump: _Count = 0
    proxy_ops_dropped_since_last_dump: _Count = 0


class _StepTimes(msgspec.Struct, gc=False):
    """When the proxy entered each phase of a step, by its CPU; 0 where the line does not say."""

    send_gpu_wait_ts: _Us = 0
    send_peer_wait_ts: _Us = 0
    send_wait_ts: _Us = 0
    recv_wait_ts: _Us = 0
    recv_flush_wait_ts: _Us = 0
    recv_gpu_wait_ts: _Us = 0
    proxy_step_stop_ts: _Us = 0


class ProxyStep(msgspec.Struct, gc=False):
    """A step of a proxy: a chunk sent or received."""

    trans_size_bytes: _Count = 0
    event_trace_ts: _StepTimes = msgspec.field(default_factory=_StepTimes)


class ProxyTrace(ProxyStep, gc=False):
    """A step, or an operation of a proxy: the steps of a call on one channel, which newer versions have in it."""

    record_type: str = ""
    parent_type: str = ""
    parent_sn: int | None = None
    """Any number, as where it is not set: a call it is not names none."""
    direction: str = ""
    steps: list[ProxyStep] = []
    n_steps_dropped: _Count = 0

    @property
    def own_steps(self) -> list[ProxyStep]:
        """The steps of which it tells."""
        return [self] if self.record_type == "proxy_step" else self.steps


class Line(msgspec.Struct, gc=False):
    """One line, without fields that are not used."""

    header: LineHeader | None = None
    metadata: LineMetadata | None = None
    coll_perf: Collective | None = None
    p2p_perf: Message | None = None
    dump_stats: DumpStats | None = None
    proxy_trace: ProxyTrace | None = None


_DECODER = msgspec.json.Decoder(Line)
_WRONG = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError)


def decoded_lines(text: bytes) -> list[Line] | None:
    """Decode all lines of a text; None if one is broken."""
    try:
        return _DECODER.decode_lines(text)
    except _WRONG:
        return None


def decoded_line(text: bytes) -> Line | str:
    """Decode one line, or return what is wrong with it."""
    try:
        return _DECODER.decode(text)
    except _WRONG as err:
        why = str(err)
    with_none = _NO_NUMBER.sub(b"null", text)
    if with_none != text:
        try:
            return _DECODER.decode(with_none)
        except _WRONG as err:
            why = str(err)
    return why


def last_whole_line(text: bytes) -> Line | None:
    """The whole line at the end of a broken one, behind the remains of another writer."""
    begins = [lines.start() for lines in _BEGINS.finditer(text)]
    lines = (decoded_line(text[begin:]) for begin in begins if begin)
    return next((line for line in lines if isinstance(line, Line)), None)
