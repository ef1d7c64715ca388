"""When a rank does something else than training: evaluations and checkpoints, by calls that scripts make for them."""

import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ...common.trigger import Beside
from ..base.patches import Patches

_MOST_SPANS = 1000  # evaluations and checkpoints that are remembered: the last ones
_Span = tuple[int, int]


class OtherWork:
    """Evaluations and checkpoints between `attach` and the end of its patches; nothing here raises.

    A model is evaluated from `eval()` until `train()` of the same module, if its weights stay as they are meanwhile:
    a part that is frozen in each step is no evaluation, nor is a training with the dropout turned off. A checkpoint is
    a call of `torch.save`. Times are ns of the host's monotonic clock. `begins` is told of each call of `eval()` and
    `torch.save` before that.
    """

    def __init__(self, begins: Callable[[Beside], None] | None = None) -> None:
        self._begins = begins
        self._is_attached = False
        self._evaluated: tuple[weakref.ref[torch.nn.Module], int, tuple[int, int]] | None = None
        self._saving_since: int | None = None
        self._spans: dict[Beside, deque[_Span]] = {
            "evaluation": deque(maxlen=_MOST_SPANS),
            "checkpoint": deque(maxlen=_MOST_SPANS),
        }

    def attach(self, patches: Patches) -> None:
        """Begin to notice, unless it does already: whoever began first, ends it."""
        if self._is_attached:
            return
        self._is_attached = True
        patches.on_detach(self._detached)
        patches.wrap(torch.nn.Module, "train", self._train)
        patches.wrap(torch, "save", self._save)

    def _detached(self) -> None:
        self._is_attached = False

    @property
    def evaluated(self) -> int:
        """How many evaluations have ended, of the last ones."""
        return len(self._spans["evaluation"])

    def inside(self, kind: Beside, begin_ns: int, end_ns: int) -> int:
        """How much of the time between two moments went into what has ended of a kind, in ns; none of it overlaps."""
        spans = list(self._spans[kind])
        return sum(max(0, min(until, end_ns) - max(since, begin_ns)) for since, until in spans)

    def since(self, begin_ns: int, *, last_step_ns: int, least_ns: int) -> Beside | None:
        """What has ended after `begin_ns`, or goes on; a checkpoint before an evaluation. Any thread may ask.

        An evaluation that goes on is known by a model that was set to `eval()` after the last step had ended, and for
        `least_ns`: a part that is frozen is evaluated all through a step, and a teacher all through a training.
        """
        evaluated, now_ns = self._evaluated, time.perf_counter_ns()
        if self._saving_since is not None or self._ended_after("checkpoint", begin_ns):
            return "checkpoint"
        if self._ended_after("evaluation", begin_ns):
            return "evaluation"
        if evaluated is None or evaluated[1] < last_step_ns or now_ns - evaluated[1] < least_ns:
            return None
        module = evaluated[0]()
        return "evaluation" if module is not None and _version(module) == evaluated[2] else None

    def _ended_after(self, kind: Beside, begin_ns: int) -> bool:
        spans = self._spans[kind]
        return bool(spans) and spans[-1][1] > begin_ns

    def _train(self, original: Any, module: torch.nn.Module, mode: bool = True) -> Any:
        """`eval()` is `train(False)`, which calls that of each part; models may have an `eval` of their own.

        Those of transformers have.
        """
        if not mode and self._begins is not None:
            self._begins("evaluation")
        if self._evaluated is None:
            if not mode and module.training:
                weights = _version(module)
                if weights is not None:
                    self._evaluated = weakref.ref(module), time.perf_counter_ns(), weights
        else:
            of, since, weights = self._evaluated
            known = of()
            if known is None or (mode and known is module):
                self._evaluated = None
                if known is not None and _version(module) == weights:
                    self._spans["evaluation"].append((since, time.perf_counter_ns()))
        return original(module, mode)

    def _save(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._begins is not None:
            self._begins("checkpoint")
        self._saving_since = since = time.perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            self._spans["checkpoint"].append((since, time.perf_counter_ns()))
            self._saving_since = None


def _version(module: torch.nn.Module) -> tuple[int, int] | None:
    """Which weight of a module an optimizer changes first, and how often it was changed; None without one."""
    first = next((weight for weight in module.parameters() if weight.requires_grad), None)
    return None if first is None or first.is_inference() else (id(first), first._version)  # noqa: SLF001
