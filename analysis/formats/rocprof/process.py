"""What rocprofv3 recorded of one process, whether it stands in a database or in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...core.kinds import COMM, kernel_kind
from ...recording.arrays import Int64s
from ..nccl_functions import Range

CAPTURE = "rocprofv3 --runtime-trace --output-format rocpd"
"""The options of rocprofv3 that record all that is read."""
AGAIN = f"capture it again with {CAPTURE}"
HIP, RCCL, HSA = "hip", "nccl", "hsa_"
"""How the names of functions begin that are read."""


class Agent(NamedTuple):
    """A CPU or GPU of the machine; a GPU by its number among the GPUs."""

    is_gpu: bool
    number: int
    name: str | None
    units: int | None


class ProcessFacts(NamedTuple):
    """What a process says of itself: its rank and world by the variables of its launcher, None where missing.

    `gpus` are the numbers of those that it used, `span` is from the start of its first kernel to the end of its last
    one, by the clock of its host, which counts from when it was started.
    """

    pid: int
    host: str | None = None
    rank: int | None = None
    world_size: int | None = None
    gpus: tuple[int, ...] = ()
    communicates: bool = False
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class RecordedProcess:
    """The events of a process as columns, times in ns by the clock of its host.

    `kernels` have start, end, name, agent, queue, stream, correlation and blocks; `copies` start, end, source, target,
    size, stream and correlation; `calls` start, end, name, thread, own and ancestor: the id by which activities name
    the call that launched them, and that of the call around it. Names count into the lists of names.
    """

    facts: ProcessFacts
    agents: Mapping[int, Agent]
    kernels: dict[str, Int64s]
    kernel_names: list[str]
    copies: dict[str, Int64s]
    calls: dict[str, Int64s]
    call_names: list[str]
    marks: list[Range]
    unread_marks: int = 0
    """Marks whose texts are packed in a way that is not read."""
    damage: str | None = None
    read_bytes: int = 0
    notes: list[str] = field(default_factory=list)


def is_read(function: str) -> bool:
    """Whether calls of this function are read: those of HIP, RCCL and HSA."""
    return function.startswith((HIP, RCCL, HSA))


def any_communicates(names: list[str]) -> bool:
    """Whether one of these kernels communicates."""
    return any(kernel_kind(name) == COMM for name in names)
