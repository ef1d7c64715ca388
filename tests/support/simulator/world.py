"""A world to simulate: machines, program, clocks, what goes wrong, and what the traces show of it.

Times are us, offsets and drifts those of a clock against true time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .ops import Op

VERSIONS = ("2.1", "2.2", "2.4", "2.5", "2.12", "2.13")


@dataclass(frozen=True)
class Place:
    """Where a program runs: one step of one rank."""

    seed: int
    hosts: int
    gpus: int
    rank: int
    step: int

    @property
    def world(self) -> int:
        return self.hosts * self.gpus

    @property
    def host(self) -> int:
        return self.rank // self.gpus


Program = Callable[[Place], list[Op]]


@dataclass(frozen=True)
class Hardware:
    """How fast everything is. `late_end_us` is how much later a rank ends every collective, by rank.

    `uneven_end_us` is how much later ranks end large collectives at most, depending on their kind and size; one in
    twenty ends that much later besides. `slow_links` are ranks among which links have this part of the bandwidth.
    Kernels take `contention` times as long while their GPU communicates.
    """

    intra_gb_per_s: float = 200.0
    inter_gb_per_s: float = 40.0
    intra_latency_us: float = 12.0
    inter_latency_us: float = 28.0
    eager_bytes: int = 64 << 10
    compute_jitter: float = 0.02
    gpu_spread: float = 0.004
    transfer_jitter: float = 0.03
    cpu_jitter: float = 0.15
    end_noise_us: float = 1.0
    late_end_us: tuple[tuple[int, float], ...] = ()
    uneven_end_us: float = 0.0
    slow_links: tuple[tuple[tuple[int, ...], float], ...] = ()
    launch_us: float = 4.0
    event_us: float = 1.5
    gap_us: float = 0.8
    queue: int = 1000
    contention: float = 1.0


@dataclass(frozen=True)
class Jump:
    """A clock that is set, or steps: from a true time on it is further ahead, on all ranks of `host` or on `rank`."""

    at_us: float
    by_us: float
    host: int | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Clocks:
    """By host: how far ahead at true time 0, and how much faster; by rank: what its GPU's times are off from it.

    A crystal that warms up changes its rate: by host, `warm_us` is how far ahead that puts it in the end, and it has
    gone 63 % of the way after `warming_us` of true time.
    """

    offset_us: tuple[float, ...] = ()
    ppm: tuple[float, ...] = ()
    gpu_error_us: tuple[float, ...] = ()
    jumps: tuple[Jump, ...] = ()
    warm_us: tuple[float, ...] = ()
    warming_us: float = 1.0


@dataclass(frozen=True)
class Layout:
    """How traces are written.

    `sync_on_compute`: synchronous collectives run on the stream that computes. `names`: as `torch` names files, or by
    `rank`. `header`: `groups` lists process groups, `plain` does not, `none` leaves distributedInfo out. `steps`:
    `numbered` alike on all ranks, numbered from each rank's `own` start, or `none`. `graph`: kernels alone.
    With `shapes`, inputs are recorded; those of kernels follow from how long their work takes.
    With `one_name` all hosts bear the same name, with `every_call` a trace also has calls of the runtime that launch
    nothing: around collectives, and of the thread that watches these.
    `events`: calls that record events and let streams wait are shown. `gpu` is the model of all devices.
    """

    torch: str = "2.12"
    sync_on_compute: bool = False
    args_on_kernel: bool = True
    shapes: bool = False
    header: str = "groups"
    shared_names: bool = False
    host_in_header: bool = True
    names: str = "torch"
    steps: str = "numbered"
    graph: bool = False
    one_name: bool = False
    every_call: bool = False
    events: bool = False
    gpu: str = "NVIDIA H100 80GB HBM3"
    gz: bool = True

    def since(self, version: str) -> bool:
        """Is this torch that version or a later one?"""
        return VERSIONS.index(self.torch) >= VERSIONS.index(version)

    @property
    def whole_us(self) -> bool:
        """Old traces have whole microseconds, counted from the epoch."""
        return not self.since("2.4")


@dataclass(frozen=True)
class Window:
    """What is recorded: steps from first to last, one file for each of `cycles`; or `spans`, parts of the run (0..1).

    `shifts` are added to the steps of a rank, `spans` given by rank; both are repeated where they are too few.
    `hole_frac` of the kernels that were launched before the window are missing: the last ones.
    """

    cycles: tuple[tuple[int, int], ...] = ((1, 3),)
    shifts: tuple[tuple[int, int], ...] = ((0, 0),)
    spans: tuple[tuple[float, float], ...] = ()
    hole_frac: float = 0.0

    def steps_of(self, rank: int, steps: int) -> list[tuple[int, int]]:
        """First and last step of each cycle of a rank."""
        first_by, last_by = self.shifts[rank % len(self.shifts)]
        moved = [(max(first + first_by, 0), min(last + last_by, steps - 1)) for first, last in self.cycles]
        return [(first, max(first, last)) for first, last in moved]


@dataclass(frozen=True)
class Losses:
    """What traces lack: some kernels, all in a part of a rank's run (rank, begin, end in 0..1), and whole ranks."""

    kernel_frac: float = 0.0
    ranges: tuple[tuple[int, float, float], ...] = ()
    ranks: tuple[int, ...] = ()


INJECTED = ("kernel", "slower", "copies", "block", "data", "python", "op", "comm")
"""Kinds of injections that draws choose from."""


@dataclass(frozen=True)
class Injection:
    """Something that makes `ranks` late by about `us` in `steps`, at `at` of the step (0..1).

    kernel: one more kernel; slower: a kernel that takes longer; throttled: all kernels take longer; copies: host to
    device; block: a call that waits for the GPU and then longer; data: the data loader; python: nothing that shows; op:
    an operator of the CPU; comm: a slow collective of a group of theirs; alloc: cudaMalloc; gc: Python's garbage
    collection; item: a value that the CPU reads; pageable: a copy to the device for which the CPU waits; pinned: one
    for which it does not. With `in_turn` one rank in each step, one after the other.
    """

    kind: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    us: float
    at: float = 0.5
    in_turn: bool = False

    def hits(self, rank: int, step: int) -> bool:
        """Does it happen there?"""
        if step not in self.steps:
            return False
        if self.in_turn:
            return rank == self.ranks[self.steps.index(step) % len(self.ranks)]
        return rank in self.ranks


@dataclass(frozen=True)
class Hang:
    """From the first collective behind `at` of a step (0..1) on, the CPU of a rank does nothing; `after_us` it ends."""

    rank: int
    step: int
    at: float = 0.5
    after_us: float = 20_000.0


@dataclass(frozen=True)
class World:
    """Everything that is simulated, from a seed on."""

    seed: int
    program: Program
    hosts: int = 1
    gpus: int = 4
    steps: int = 5
    hardware: Hardware = field(default_factory=Hardware)
    clocks: Clocks = field(default_factory=Clocks)
    layout: Layout = field(default_factory=Layout)
    window: Window = field(default_factory=Window)
    losses: Losses = field(default_factory=Losses)
    injections: tuple[Injection, ...] = ()
    hang: Hang | None = None

    @property
    def size(self) -> int:
        return self.hosts * self.gpus

    def host_of(self, rank: int) -> int:
        return rank // self.gpus

    def __repr__(self) -> str:
        from .telling import told

        return told(self)
