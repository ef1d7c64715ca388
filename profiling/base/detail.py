"""What is recorded of traced steps, besides times. Knows no torch."""

from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError

NcclDebug = Literal["VERSION", "WARN", "INFO", "TRACE"]

# Kineto takes them one at a time.
_BUFFER_MB = 4


@dataclass(frozen=True)
class Detail:
    """Shapes of tensors, unless it is `light`, and what is asked for. Raises UsageError.

    `light` costs least: times and NCCL's metadata, which torch takes from the collective itself and not from shapes.
    `sync_events` are CUDA's synchronisations, `kineto_buffer_mb` is the memory in MiB that Kineto's buffers for a GPU
    may take (None: see `sessions.kineto_buffers`), and `nccl_debug` the level of NCCL's own log. `memory` records
    allocations as `profile_memory` does, and on CUDA devices peaks of each step and a snapshot of the allocator.
    """

    with_stack: bool = False
    profile_memory: bool = False
    light: bool = False
    sync_events: bool = False
    kineto_buffer_mb: int | None = None
    nccl_debug: NcclDebug | None = None
    memory: bool = False

    def __post_init__(self) -> None:
        for name in ("with_stack", "profile_memory", "memory"):
            if self.light and getattr(self, name):
                raise UsageError(f"{_option('light')} {_option(name)}: contradict each other; leave out one of them")
        if self.kineto_buffer_mb is not None and self.kineto_buffer_mb < _BUFFER_MB:
            raise UsageError(
                f"{_option('kineto_buffer_mb')} {self.kineto_buffer_mb}: expected at least {_BUFFER_MB}, one buffer"
            )

    @property
    def only_on_gpus(self) -> list[str]:
        """The options in use that have no meaning on a CPU."""
        asked = {name: getattr(self, name) for name in ("sync_events", "kineto_buffer_mb", "nccl_debug")}
        return [_option(name) for name, value in asked.items() if value]


SHAPES_ONLY = Detail()


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
