"""Measure time, memory and power of one layer."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..machine import memory
from ..machine.power import Power, power
from ..sessions.device_queue import LONGEST_BUSY_NS, keep_busy
from ..sessions.step_clock import finish, mark
from ..workloads.stacks import activation_bytes
from .memory_use import memory_use, saved_bytes
from .results import LayerRow
from .subjects import LayerSubject

_TRIES = 3
_MARGIN = 1.5
_Times = list[tuple[int, int]]
"""Time of each forward pass and of the backward pass after it, in ns."""


@dataclass(frozen=True)
class Plan:
    """How to measure a layer: untimed and timed repetitions, duration of the power measurement, device."""

    warmup: int
    iters: int
    power_s: float
    where: torch.device
    uuid: str | None


def measured(subjects: Sequence[LayerSubject], plan: Plan) -> list[LayerRow]:
    """All measurements of a layer, or of several whose passes are timed in turns.

    If memory runs out, only their descriptions and the reason.
    """
    try:
        modules = [subject.made() for subject in subjects]
        try:
            return _measured(subjects, modules, plan)
        finally:
            for module in modules:
                module.zero_grad()
    except (RuntimeError, MemoryError, OSError) as err:
        if not memory.exhausted(err):
            raise
        reason = f"out of memory: {memory.first_line(err)}"
    return [LayerRow(**_facts(subject), reason=reason, power=Power(None, reason=reason)) for subject in subjects]


class _Repeated:
    """One layer to be run repeatedly, with an input and the gradient of its output.

    The input is a copy each time, made before anything is measured: a layer in place must not overwrite a leaf of
    autograd's graph, and inside a model it does not either.
    """

    def __init__(self, subject: LayerSubject, module: nn.Module, where: torch.device) -> None:
        self._module = module
        self._source = torch.randn(subject.input_shape, device=where, requires_grad=subject.input_requires_grad)
        self._input = self._source
        self.renew()
        output = self._module(self._input)
        self.has_backward = output.requires_grad
        self.output_shape = tuple(output.shape)
        self._gradient = torch.ones_like(output)
        self.busy_ns: float | None = 0.0
        """How long a GPU is kept busy before a pass, until all of it is queued; None if that does not help."""

    def renew(self) -> None:
        """Make a new input and clear the gradients."""
        self._source.grad = None
        self._module.zero_grad()
        self._input = self._source.clone()

    def forward(self) -> Tensor:
        output: Tensor = self._module(self._input)
        return output

    def backward(self, output: Tensor) -> None:
        """Compute gradients of the parameters, and of the input if it needs one."""
        if self.has_backward:
            torch.autograd.backward(output, self._gradient)


def _measured(subjects: Sequence[LayerSubject], modules: Sequence[nn.Module], plan: Plan) -> list[LayerRow]:
    repeated = [_Repeated(*of_layer, plan.where) for of_layer in zip(subjects, modules, strict=True)]
    times = _times(repeated, plan)
    return [_row(*of_layer, plan) for of_layer in zip(subjects, modules, repeated, times, strict=True)]


def _row(subject: LayerSubject, module: nn.Module, repeated: _Repeated, times: _Times, plan: Plan) -> LayerRow:
    forward_ns, backward_ns = [forward for forward, _ in times], [backward for _, backward in times]
    repeated.renew()
    saved = saved_bytes(repeated.forward, module)
    repeated.renew()
    used = memory_use(repeated.forward, repeated.backward, plan.where)
    return LayerRow(
        **_facts(subject),
        output_shape=repeated.output_shape,
        saved_bytes=saved,
        activation_bytes=used.activation_bytes,
        peak_bytes=used.peak_bytes,
        forward_times_ns=forward_ns,
        backward_times_ns=backward_ns if repeated.has_backward else (),
        power=power(plan.uuid, _power_work(repeated, plan, forward_ns, backward_ns), plan.power_s),
    )


def _times(layers: Sequence[_Repeated], plan: Plan) -> list[_Times]:
    """Times of the timed passes of each layer. Several take turns, so that a drift of the machine is shared.

    Every second repetition goes the other way round: none always comes first.
    """
    times: list[_Times] = [[] for _ in layers]
    for number in range(plan.warmup + plan.iters):
        places = range(len(layers)) if number % 2 == 0 else reversed(range(len(layers)))
        for place in places:
            once = _once(layers[place], plan.where)
            if number >= plan.warmup:
                times[place].append(once)
    return times


def _once(repeated: _Repeated, where: torch.device) -> tuple[int, int]:
    """Time of one forward and backward pass, in ns.

    On a GPU that of its own work: a small layer takes less time than Python needs to launch it. So the GPU is kept busy
    until both passes are queued; where it was not for long enough, they are timed again. A layer that waits for the GPU
    itself is timed with that.
    """
    for _ in range(_TRIES):
        repeated.renew()
        if where.type == "cuda" and repeated.busy_ns:
            keep_busy(where, repeated.busy_ns)
        begun_ns = time.perf_counter_ns()
        marks = [mark(where)]
        output = repeated.forward()
        marks.append(mark(where))
        repeated.backward(output)
        marks.append(mark(where))
        was_late = where.type == "cuda" and marks[0].reached()
        queued_ns = time.perf_counter_ns() - begun_ns
        finish(where)
        if not was_late or repeated.busy_ns is None:
            break
        repeated.busy_ns = min(max(_MARGIN * queued_ns, 2 * repeated.busy_ns), LONGEST_BUSY_NS)
    else:
        repeated.busy_ns = None
    return marks[0].ns_until(marks[1]), marks[1].ns_until(marks[2])


def _power_work(repeated: _Repeated, plan: Plan, forward_ns: list[int], backward_ns: list[int]) -> Callable[[], None]:
    """A function that runs the layer for about 50 ms, many calls at a time, so that the GPU is never idle."""
    once_ns = max(1, (sum(forward_ns) + sum(backward_ns)) // plan.iters)
    times = max(1, 50_000_000 // once_ns)

    def work() -> None:
        for _ in range(times):
            repeated.renew()
            repeated.backward(repeated.forward())
        finish(plan.where)

    return work


def _facts(subject: LayerSubject) -> dict[str, Any]:
    parameters = list(subject.described.parameters())
    return {
        "layer": subject.name,
        "kind": _kind(subject),
        "input_shape": subject.input_shape,
        "input_bytes": math.prod(subject.input_shape) * torch.get_default_dtype().itemsize,
        "parameter_bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "formula_activation_bytes": activation_bytes(subject.described, subject.input_shape),
    }


def _kind(subject: LayerSubject) -> str:
    """The layer as torch prints it; for a model its class."""
    children = list(subject.described.children())
    return type(subject.described).__name__ if children else repr(subject.described)
