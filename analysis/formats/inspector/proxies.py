"""Sums over the steps that proxies take for each call.

With NCCL_INSPECTOR_ENABLE_PROXY=1 the Inspector writes a line for each step: a thread of the CPU, the proxy, hands a
chunk from the GPU to the network, or from there to the GPU. It notes when each phase of waiting begins. Source: "Proxy
Trace Output" in the README of NCCL's plugin, and the phases that tests/test_proxy.py makes of these times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ...core.tables.events import PROXY_SUMS
from .lines import ProxyStep, ProxyTrace

_PHASES = {
    "send": ("send_gpu_wait_ts", "send_peer_wait_ts", "send_wait_ts", "proxy_step_stop_ts"),
    "recv": ("recv_wait_ts", "recv_flush_wait_ts", "recv_gpu_wait_ts", "proxy_step_stop_ts"),
}
"""Each phase lasts until the next one begins, in the order of PROXY_SUMS behind steps and bytes."""
_MOST = 1 << 53
SUMMED = tuple(f"proxy_{direction}_{what}" for direction, sums in PROXY_SUMS.items() for what in sums)
"""The sums of a call, in this order."""
_FIRST = {"send": 0, "recv": len(PROXY_SUMS["send"])}
CALL_BYTES = 600
"""What the sums of a call take at most."""


class Parent(NamedTuple):
    """The call that a proxy works for: in which communicator of the log, whether it is a message, and its number."""

    communicator: int
    is_message: bool
    sn: int


@dataclass
class ProxySums:
    """Sums by call, None where no step tells it. `lost` are steps that name no call."""

    by_call: dict[Parent, list[int | None]] = field(default_factory=dict)
    lost: int = 0

    def add(self, communicator: int, trace: ProxyTrace) -> None:
        """Add the steps of a line."""
        steps = trace.own_steps
        if not steps:
            return
        if trace.parent_sn is None or trace.direction not in _PHASES or trace.parent_type not in ("coll", "p2p"):
            self.lost += len(steps)
            return
        parent = Parent(communicator, trace.parent_type == "p2p", trace.parent_sn)
        sums = self.by_call.setdefault(parent, [None] * len(SUMMED))
        first = _FIRST[trace.direction]
        for step in steps:
            for place, value in enumerate((1, step.trans_size_bytes, *_phases(step, trace.direction)), start=first):
                if value is not None:
                    sums[place] = min(_MOST, (sums[place] or 0) + value)


def _phases(step: ProxyStep, direction: str) -> Iterator[int | None]:
    """Yield how long each phase took, in us; None where the line does not say when it began or ended."""
    times = [getattr(step.event_trace_ts, name) for name in _PHASES[direction]]
    for begun, ended in pairwise(times):
        yield ended - begun if 0 < begun <= ended else None
