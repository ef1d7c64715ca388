"""How long a rank works in a step before it needs another one: what tells who is late where all steps are equally long.

See docs/design/0073-who-is-late-while-it-runs.md. One step of each pulse is looked at; others cost a comparison.
"""

import threading
from typing import Any

import torch
import torch.distributed as dist

from ....common.trigger import Need
from ...base.patches import Patches
from ...base.torch_private import BUFFER_SYNC, FUTURE, collectives_issued
from ...sessions.step_clock import Mark, captures_graph, mark
from .steps import Steps

# In the names of the methods by which Python issues collectives, which are others in each release. What C++ issues,
# DDP in its backward pass above all, is seen by `collectives_issued`.
_COLLECTIVES = ("gather", "reduce", "broadcast", "scatter", "alltoall", "all_to_all", "barrier")
_RECEIVES = ("recv", "recv_anysource")


class Alone:
    """Times, of the next step that begins after `want()`, how long this rank needs no other one in it.

    A step begins where the one before ends. Whatever needs another rank ends that time: a collective, or a backward
    pass, in which DDP issues its own. It is not known where a message is received first, or somebody waits for a
    collective of the step before: such a rank may have waited. Nor where a collective was issued that nobody saw.
    Times are those of the device, where there is one.
    """

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._wanted = False
        self._begin: Mark | None = None
        self._thread = 0
        self._issued = 0
        self._end: tuple[Mark, Need] | None = None
        self._pending: tuple[Mark, Mark, Need] | None = None
        self._known: tuple[int, Need] | None = None
        self._is_broken = False

    def attach(self, steps: Steps, patches: Patches) -> None:
        """Begin to listen to what needs other ranks."""
        steps.before_backward(self._before_backward)
        if not dist.is_available():
            return
        for name in [name for name in vars(dist.ProcessGroup) if any(word in name for word in _COLLECTIVES)]:
            patches.wrap(dist.ProcessGroup, name, self._collective)
        for name in _RECEIVES:
            patches.wrap(dist.ProcessGroup, name, self._unclear)
        patches.wrap(dist.Work, "wait", self._unclear)
        patches.wrap(FUTURE, "wait", self._unclear)
        patches.wrap(torch.nn.parallel.DistributedDataParallel, BUFFER_SYNC, self._collective)

    def use(self, device: torch.device) -> None:
        """Take times on this device from now on."""
        self._device = device

    def want(self) -> None:
        """Look at the next step. Any thread may call this, as `take`."""
        self._wanted = True

    def take(self) -> tuple[int, Need] | None:
        """The time in ns, and what ended it, once."""
        known, self._known = self._known, None
        return known

    def step_ended(self) -> None:
        """End a step: that which was looked at, and begin the next one if it is wanted."""
        if self._begin is None and self._pending is None and not self._wanted:
            return
        try:
            self._step_ended()
        except RuntimeError:  # a CUDA error that stays: the script will see it itself
            self._is_broken, self._begin, self._pending = True, None, None

    def _step_ended(self) -> None:
        begin, end, self._begin, self._end = self._begin, self._end, None, None
        if begin is not None and end is not None:
            self._pending = begin, *end
        if self._pending is not None and self._pending[1].reached():
            since, until, need = self._pending
            alone_ns = since.ns_until(until)
            # A stream on which a collective is issued may have been ahead of that on which the step before ended.
            self._pending, self._known = None, (alone_ns, need) if alone_ns >= 0 else None
        if self._wanted and self._pending is None and not self._is_broken:
            self._wanted = False
            self._thread = threading.get_ident()
            self._issued = collectives_issued()
            self._begin = mark(self._device)

    def _before_backward(self) -> None:
        if self._begin is not None:
            self._needs("backward")

    def _collective(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._begin is not None:
            self._needs("collective")
        return original(*args, **kwargs)

    def _unclear(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._begin is not None:
            self._needs(None)
        return original(*args, **kwargs)

    def _needs(self, need: Need | None) -> None:
        """Note what needs another rank first in this step."""
        if self._end is not None or threading.get_ident() != self._thread:
            return
        try:
            if need is None or captures_graph() or collectives_issued() != self._issued:
                self._begin = None
            else:
                self._end = mark(self._device), need
        except RuntimeError:
            self._is_broken, self._begin = True, None
