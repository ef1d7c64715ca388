"""Measure time, memory and power of one layer."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..machine import memory
from ..machine.power import Power, power
from ..sessions.step_clock import finish, mark
from ..workloads.stacks import activation_bytes
from .memory_use import memory_use, saved_bytes
from .results import LayerRow
from .subjects import LayerSubject


@dataclass(frozen=True)
class Plan:
    """How to measure a layer: untimed and timed repetitions, duration of the power measurement, device."""

    warmup: int
    iters: int
    power_s: float
    where: torch.device
    uuid: str | None


def measured(subject: LayerSubject, plan: Plan) -> LayerRow:
    """All measurements of the layer; if memory runs out, only its description and the reason."""
    try:
        module = subject.made()
        try:
            return _measured(subject, module, plan)
        finally:
            module.zero_grad()
    except (RuntimeError, MemoryError, OSError) as err:
        if not memory.exhausted(err):
            raise
        reason = f"out of memory: {memory.first_line(err)}"
    return LayerRow(**_facts(subject), reason=reason, power=Power(None, reason=reason))


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


def _measured(subject: LayerSubject, module: nn.Module, plan: Plan) -> LayerRow:
    repeated = _Repeated(subject, module, plan.where)
    forward_ns, backward_ns = _times(repeated, plan)
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


def _times(repeated: _Repeated, plan: Plan) -> tuple[list[int], list[int]]:
    """Time of each timed forward and backward pass, in ns."""
    times: list[tuple[int, int]] = []
    for number in range(plan.warmup + plan.iters):
        repeated.renew()
        marks = [mark(plan.where)]
        output = repeated.forward()
        marks.append(mark(plan.where))
        repeated.backward(output)
        marks.append(mark(plan.where))
        finish(plan.where)
        if number >= plan.warmup:
            times.append((marks[0].ns_until(marks[1]), marks[1].ns_until(marks[2])))
    return [forward for forward, _ in times], [backward for _, backward in times]


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
