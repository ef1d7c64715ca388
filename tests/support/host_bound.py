"""One rank whose GPU waits for its host: one stream, three steps, and some of everything that a GPU waits for.

The CPU issues in order and each kernel begins once it is launched and the one before has ended. In each step: a batch
is loaded and copied from pinned memory; the forward pass launches kernels shorter than their launches; the loss is read
back, which blocks; another thread launches the backward pass, faster than the GPU runs it; the optimizer follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from builders import MAIN_THREAD, Trace

STEPS = (4, 5, 6)
_BACKWARD_THREAD = 4343
_GPU, _STREAM = 0, 7
_LAUNCH_NS, _ARRIVAL_NS, AFTER_NS = 5_250, 1_900, 850
"""How long a launch takes, how long until its kernel may begin, and how long after the kernel before."""
_LAYERS = 4
_US = 1_000


@dataclass
class _Rank:
    """What the CPU has got to, and until when the GPU has work."""

    slower: int
    after_ns: int
    trace: Trace = field(default_factory=lambda: Trace(0, 1, groups={"0": [0]}))
    now_ns: int = 100_000
    busy_until_ns: int = 0
    thread: int = MAIN_THREAD

    def python(self, us: int) -> None:
        self.now_ns += us * _US

    @contextmanager
    def inside(self, cat: str, name: str) -> Iterator[None]:
        """What happens meanwhile is inside an event of the CPU."""
        begin_ns = self.now_ns
        yield
        self.trace.event(cat, name, begin_ns, self.now_ns - begin_ns, tid=self.thread)

    @contextmanager
    def annotated(self, name: str) -> Iterator[None]:
        """The same with an annotation, which Kineto shows on the GPU, too: from the first kernel within to the last."""
        before = len(self.trace.events)
        with self.inside("user_annotation", name):
            yield
        mine = [event for event in self.trace.events[before:] if event["tid"] == _STREAM]
        begin_us, end_us = mine[0]["ts"], mine[-1]["ts"] + mine[-1]["dur"]
        begin_ns, end_ns = round(begin_us * _US), round(end_us * _US)
        self.trace.event("gpu_user_annotation", name, begin_ns, end_ns - begin_ns, pid=_GPU, tid=_STREAM)

    def op(self, name: str, *kernels: tuple[str, int]) -> None:
        """An operator that launches these kernels, names and ns, and works a little before each launch."""
        self.now_ns += 1_310
        with self.inside("cpu_op", name):
            for kernel, dur_ns in kernels:
                self.now_ns += 6_130
                self.launch("cudaLaunchKernel", "kernel", kernel, dur_ns)
            self.now_ns += 2_410

    def launch(self, call: str, cat: str, name: str, dur_ns: int, **args: float) -> None:
        correlation, self.trace.next_id = self.trace.next_id, self.trace.next_id + 1
        self.trace.event("cuda_runtime", call, self.now_ns, _LAUNCH_NS, tid=self.thread, correlation=correlation)
        self.now_ns += _LAUNCH_NS
        dur_ns *= self.slower
        start_ns = max(self.now_ns + _ARRIVAL_NS, self.busy_until_ns + self.after_ns)
        where = {"device": _GPU, "stream": _STREAM, "correlation": correlation}
        self.trace.event(cat, name, start_ns, dur_ns, pid=_GPU, tid=_STREAM, **where, **args)
        self.busy_until_ns = start_ns + dur_ns

    def copy(self, call: str, name: str, nbytes: int, dur_ns: int) -> None:
        """A copy or fill, with its bytes and bandwidth as Kineto gives them."""
        cat = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
        bandwidth = nbytes / (dur_ns * self.slower) if self.slower else 0.0
        self.launch(call, cat, name, dur_ns, **{"bytes": nbytes, "memory bandwidth (GB/s)": bandwidth})

    def block(self, call: str) -> None:
        """A call that returns when the GPU has nothing left to do."""
        begin_ns = self.now_ns
        self.now_ns = max(begin_ns + 1_200, self.busy_until_ns + 3_300)
        self.trace.event("cuda_runtime", call, begin_ns, self.now_ns - begin_ns, tid=self.thread)


def trace(slower: int = 1, after_ns: int = AFTER_NS) -> Trace:
    """The trace of the rank; what its GPU runs takes `slower` times as long, and the next pauses for `after_ns`."""
    rank = _Rank(slower, after_ns)
    for step in STEPS:
        with rank.inside("user_annotation", f"ProfilerStep#{step}"):
            _step(rank)
    return rank.trace


def _step(rank: _Rank) -> None:
    rank.python(20)
    with rank.inside("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
        rank.python(180)
    with rank.inside("cpu_op", "aten::copy_"):
        rank.copy("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", 2_000_000, 80_000)
    with rank.annotated("forward"):
        for _ in range(_LAYERS):
            rank.op("aten::linear", ("sm90_xmma_gemm", 9_370), ("bias_kernel", 2_140))
            rank.op("aten::relu", ("relu_kernel", 1_730))
    with rank.inside("cpu_op", "aten::item"):
        rank.copy("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", 4, 1_000)
        rank.block("cudaStreamSynchronize")
    rank.python(60)
    with rank.inside("cpu_op", "aten::zero_"):
        rank.copy("cudaMemsetAsync", "Memset (Device)", 1_000_000, 2_000)
    rank.thread = _BACKWARD_THREAD
    for _ in range(_LAYERS):
        rank.op("autograd::engine::evaluate_function: AddmmBackward0", ("sm90_xmma_gemm_bwd", 61_480))
    rank.thread = MAIN_THREAD
    with rank.annotated("optimizer"):
        rank.op("aten::_foreach_add_", *[("multi_tensor_apply_kernel", 8_220)] * 3)
    rank.python(30)
