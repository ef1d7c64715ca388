"""What a rank's program is made of: kernels, collectives, messages, waits, blocking calls and CPU time."""

from __future__ import annotations

from dataclasses import dataclass, replace

COMPUTE_STREAM = 7
ITEM_BYTES = {"Byte": 1, "BFloat16": 2, "Half": 2, "Float": 4, "Long": 8}
SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
NO_CAUSE = -1


@dataclass(frozen=True)
class Group:
    """A process group: what it is for, such as `tp`, and its global ranks in order."""

    kind: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel or copy that takes `us`, and `extra_us` more where something is wrong with it.

    `cause` says which injection it belongs to, NO_CAUSE for none.
    """

    name: str
    us: float
    cpu_op: str = "aten::mm"
    extra_us: float = 0.0
    cpu_us: float = 9.0
    cause: int = NO_CAUSE

    @property
    def is_copy(self) -> bool:
        return self.name.startswith("Memcpy")


@dataclass(frozen=True)
class Comm:
    """A collective of `elems` elements, counted as nccl-tests does: the whole array.

    `root` is a global rank. An asynchronous one is waited for by `Wait(work)`. `splits` are the rows of `width`
    elements that each member sends to each in an uneven all_to_all. `extra_us` is added to the time it takes. `under`
    is the operator of autograd that issues it.
    """

    op: str
    group: Group
    elems: int
    dtype: str = "BFloat16"
    root: int | None = None
    work: str = ""
    splits: tuple[tuple[int, ...], ...] = ()
    width: int = 1
    extra_us: float = 0.0
    cpu_us: float = 32.0
    cause: int = NO_CAUSE
    under: str = ""

    @property
    def size_bytes(self) -> int:
        """S of nccl-tests; of an uneven all_to_all the largest over all ranks."""
        return self.elems * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Message:
    """One side of a send: `send` or `recv`, to or from the global rank `peer`."""

    op: str
    peer: int
    elems: int


@dataclass(frozen=True)
class P2P:
    """Sends and receives that run as one kernel; a single one may be batched too."""

    group: Group
    messages: tuple[Message, ...]
    dtype: str = "BFloat16"
    work: str = ""
    batched: bool = True
    cause: int = NO_CAUSE

    @property
    def cpu_us(self) -> float:
        return 20.0 + 15.0 * len(self.messages)


@dataclass(frozen=True)
class Wait:
    """Compute that is issued later waits for this asynchronous work; the CPU does not."""

    work: str
    cpu_us: float = 6.0
    cause: int = NO_CAUSE


@dataclass(frozen=True)
class Block:
    """A call that holds the CPU until the GPU is done, and `extra_us` longer; with `copy_us` it does this `copy`."""

    call: str = "cudaStreamSynchronize"
    copy_us: float = 0.0
    extra_us: float = 0.0
    cpu_us: float = 12.0
    cause: int = NO_CAUSE
    copy: str = "Memcpy DtoH (Device -> Pageable)"
    cpu_op: str = "aten::item"


@dataclass(frozen=True)
class Cpu:
    """Time of the CPU alone: an annotation, an operator, or nothing that shows (`shown` is empty)."""

    us: float
    shown: str = ""
    category: str = "cpu_op"
    cause: int = NO_CAUSE

    @property
    def cpu_us(self) -> float:
        return self.us


Op = Kernel | Comm | P2P | Wait | Block | Cpu
Communication = (Comm, P2P)


@dataclass(frozen=True)
class Planned:
    """An operation in its place: `key` numbers those of a step, the same with and without injections, or is -1."""

    op: Op
    key: int = -1


def caused(op: Op, cause: int) -> Op:
    """The same operation, as part of an injection."""
    return replace(op, cause=cause)


def bus_factor(op: str, size: int) -> float:
    """busbw / algbw over `size` ranks. Source: NVIDIA/nccl-tests doc/PERFORMANCE.md."""
    if op == "all_reduce":
        return 2 * (size - 1) / size
    if op in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (size - 1) / size
    return 1.0
