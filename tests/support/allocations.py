"""Training on a GPU that allocates and releases memory, written as Kineto writes it, with what each block is for."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from builders import MAIN_THREAD, US, Trace

BACKWARD_THREAD = 77
_FIRST_ADDRESS = 0x7F0000000000


@dataclass
class Training:
    """A trace under construction, and its truth.

    `peak` is the most that was allocated, `at_peak` by category then, `ends` what was allocated when each step ended.
    A block is written down with the category that it turns out to have, so totals by category are known at any moment.
    """

    draw: random.Random
    trace: Trace
    device: int = 0
    older: int = 0
    totals: bool = True
    addresses: bool = True
    now: int = 10 * US
    held: Counter[str] = field(default_factory=Counter)
    places: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    live: dict[int, tuple[int, str, str | None]] = field(default_factory=dict)
    peak: int = -1
    at_peak: dict[str, int] = field(default_factory=dict)
    places_at_peak: dict[tuple[str, str | None], int] = field(default_factory=dict)
    reserved: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    step: int | None = None
    free_addresses: list[int] = field(default_factory=list)
    next_address: int = _FIRST_ADDRESS

    @property
    def allocated(self) -> int:
        """What is allocated now."""
        return self.older + sum(self.held.values())

    def tick(self) -> int:
        """The next moment."""
        self.now += self.draw.randrange(1, 4) * US
        return self.now

    def allocate(self, size: int, category: str, *, region: str | None = None, thread: int = MAIN_THREAD) -> int:
        """Allocate a block of this category now, and give its address; addresses are used again."""
        if self.free_addresses and self.draw.random() < 0.7:
            address = self.free_addresses.pop(self.draw.randrange(len(self.free_addresses)))
        else:
            address, self.next_address = self.next_address, self.next_address + (1 << 30)
        self.live[address] = size, category, region
        self.held[category] += size
        self.places[category, region] += size
        self._write(address, size, thread)
        return address

    def release(self, address: int, *, thread: int = MAIN_THREAD) -> None:
        """Release a block now."""
        size, category, region = self.live.pop(address)
        self.held[category] -= size
        self.places[category, region] -= size
        self.free_addresses.append(address)
        self._write(address, -size, thread)

    def release_older(self, size: int) -> None:
        """Release a block from before the trace."""
        self.older -= size
        self._write(self.next_address, -size, MAIN_THREAD)
        self.next_address += 1 << 30

    def _write(self, address: int, change: int, thread: int) -> None:
        at = self.tick()
        allocated = self.allocated
        self.reserved = max(self.reserved, allocated + self.draw.randrange(1 << 20))
        if allocated > self.peak:
            self.peak, self.at_peak = allocated, {name: size for name, size in self.held.items() if size}
            self.at_peak |= {"before the trace": self.older} if self.older else {}
            self.places_at_peak = {place: size for place, size in self.places.items() if size}
        if self.step is not None:
            self.peaks[self.step] = max(self.peaks[self.step], allocated)
        args = {"Device Type": 1, "Device Id": self.device, "Bytes": change}
        args |= {"Addr": address} if self.addresses else {}
        args |= {"Total Allocated": allocated, "Total Reserved": self.reserved} if self.totals else {}
        self.trace.events.append({
            "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": self.trace.pid, "tid": thread,
            "ts": at / US, "args": args,
        })  # fmt: skip


def trained(
    seed: int,
    *,
    steps: int = 4,
    layers: int = 3,
    leak: int = 0,
    fills: int = 0,
    totals: bool = True,
    addresses: bool = True,
) -> Training:
    """A few steps of training with Adam: parameters from before the trace, state made in the first step of it.

    `leak` bytes of each step stay, and `fills` of the first one.
    """
    draw = random.Random(seed)
    sizes = [512 * draw.randrange(1, 4_000) for _ in range(layers)]
    job = Training(
        draw, Trace(0, 1), older=sum(sizes) + 512 * draw.randrange(9_000), totals=totals, addresses=addresses
    )
    gradients: list[int] = []
    older_gradient = 512 * draw.randrange(1, 900)
    job.older += older_gradient
    batch: int | None = None
    for number in range(3, 3 + steps):
        job.step, begin = number, job.tick()
        job.peaks[number] = job.allocated
        if number == 3:
            job.release_older(older_gradient)
        for gradient in gradients:
            job.release(gradient)
        gradients.clear()
        at = job.tick()
        new = job.allocate(512 * draw.randrange(1, 2_000), "activations")
        job.trace.op("aten::to", at, job.tick() - at)
        if batch is not None:  # the one of the step before, once the new one is there
            job.release(batch)
        batch = new
        activations = [_forward(job, layer, leak, fills if number == 3 else 0) for layer in range(layers)]
        at = job.tick()
        buffer = job.allocate(512 * draw.randrange(1, 2_000), "communication buffers")
        job.trace.c10d("allreduce_", at, job.tick() - at)
        gradients += [_backward(job, activations[layer], sizes[layer]) for layer in reversed(range(layers))]
        job.release(buffer)
        at = job.tick()
        for size in sizes if number == 3 else ():
            job.allocate(size, "optimizer state", region="Optimizer.step#Adam.step")
        temporary = job.allocate(512 * draw.randrange(1, 900), "temporaries", region="Optimizer.step#Adam.step")
        job.release(temporary)
        job.trace.annotation("Optimizer.step#Adam.step", at, job.tick() - at)
        job.ends[number] = job.allocated
        job.trace.step(number, begin, job.tick())
    job.trace.kernel("gemm", 12 * US, job.now)
    return job


def _forward(job: Training, layer: int, leak: int, fills: int) -> list[int]:
    begin, region = job.tick(), f"layer_{layer}"
    at = job.tick()
    temporary = job.allocate(512 * job.draw.randrange(1, 900), "temporaries", region=region)
    kept = [job.allocate(512 * job.draw.randrange(1, 3_000), "activations", region=region) for _ in range(2)]
    job.release(temporary)
    job.trace.op("aten::linear", at, job.tick() - at)
    if layer == 1 and leak + fills:
        at = job.tick()
        job.allocate(leak + fills, "unknown", region=region)
        job.trace.op("aten::clone", at, job.tick() - at)
    job.trace.annotation(region, begin, job.tick() - begin)
    return kept


def _backward(job: Training, activations: list[int], size: int) -> int:
    begin = job.tick()
    temporary = job.allocate(512 * job.draw.randrange(1, 900), "temporaries", thread=BACKWARD_THREAD)
    gradient = job.allocate(size, "gradients", thread=BACKWARD_THREAD)
    for address in activations:
        job.release(address, thread=BACKWARD_THREAD)
    job.release(temporary, thread=BACKWARD_THREAD)
    name = "autograd::engine::evaluate_function: AddmmBackward0"
    job.trace.op(name, begin, job.tick() - begin, thread=BACKWARD_THREAD)
    return gradient
