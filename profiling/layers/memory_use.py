"""Memory of a layer's forward and backward pass, beyond what was allocated before."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

# torch's own names in the traces it writes.
_MEMORY, _TOTAL, _CHANGE = "[memory]", "Total Allocated", "Bytes"
_FORWARD = "commtrace: forward"


@dataclass(frozen=True)
class MemoryUse:
    """Memory in bytes, as torch's allocator counts it.

    `activation_bytes` is what the forward pass leaves behind: the output, and what the backward pass needs besides
    input and parameters. `peak_bytes` is the largest amount at any moment of both passes, including gradients.
    """

    activation_bytes: int
    peak_bytes: int


def memory_use(forward: Callable[[], Tensor], backward: Callable[[Tensor], None], where: torch.device) -> MemoryUse:
    """Call `forward`, then `backward` with its result, and measure both."""
    if where.type == "cuda":
        return _on_cuda(forward, backward, where)
    return _on_cpu(forward, backward)


def saved_bytes(forward: Callable[[], Tensor], module: nn.Module) -> int:
    """Bytes that autograd keeps for the backward pass, including the input but not parameters and buffers.

    Each piece of memory counts once, however many tensors share it.
    """
    parameters = {_place(tensor) for tensor in (*module.parameters(), *module.buffers())}
    saved: dict[int, int] = {}
    held = []

    def pack(tensor: Tensor) -> Tensor:
        held.append(tensor.detach())  # else another tensor may get its address
        saved[_place(tensor)] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(size for place, size in saved.items() if place not in parameters)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _on_cuda(forward: Callable[[], Tensor], backward: Callable[[Tensor], None], where: torch.device) -> MemoryUse:
    torch.cuda.synchronize(where)
    before = torch.cuda.memory_allocated(where)
    torch.cuda.reset_peak_memory_stats(where)
    output = forward()
    kept = torch.cuda.memory_allocated(where)
    backward(output)
    torch.cuda.synchronize(where)
    return MemoryUse(kept - before, torch.cuda.max_memory_allocated(where) - before)


def _on_cpu(forward: Callable[[], Tensor], backward: Callable[[Tensor], None]) -> MemoryUse:
    """Memory from the allocations in torch's profiler, which sees none made by libraries without torch."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        with record_function(_FORWARD):
            output = forward()
        backward(output)
    with _exported(profiler) as events:
        (forward_event,) = [event for event in events if event.get("name") == _FORWARD and event.get("ph") == "X"]
        changes = sorted((event for event in events if event.get("name") == _MEMORY), key=lambda event: event["ts"])
    if not changes:
        return MemoryUse(0, 0)
    # The profiler's total continues from one profile to the next.
    before = changes[0]["args"][_TOTAL] - changes[0]["args"][_CHANGE]
    forward_end = forward_event["ts"] + forward_event["dur"]
    totals = [(event["ts"], event["args"][_TOTAL] - before) for event in changes]
    kept = [total for ts, total in totals if ts <= forward_end]
    return MemoryUse(kept[-1] if kept else 0, max(0, *(total for _, total in totals)))


@contextmanager
def _exported(profiler: "profile") -> Iterator[list[dict[str, Any]]]:
    """Yield the events of the trace, which are the only public access to single allocations."""
    with tempfile.TemporaryDirectory(prefix="commtrace-") as folder:
        path = Path(folder) / "memory.json"
        profiler.export_chrome_trace(str(path))
        yield json.loads(path.read_bytes())["traceEvents"]
