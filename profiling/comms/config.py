"""The options of `comms`, checked against each other. Knows no torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..base.commands import options
from ..base.commands.choices import DeviceName
from ..errors import UsageError

CollectiveName = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
]
DtypeName = Literal[
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int32",
    "int64",
    "float8_e4m3fn",
    "float8_e5m2",
]
OpName = Literal["sum", "prod", "min", "max", "avg"]

_SIZE = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*((?P<unit>[kmg])(i?b)?|b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

# Links of GPUs reach their bandwidth only with hundreds of MB; CPUs would take minutes for that.
LARGEST_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}


@dataclass(frozen=True)
class CommsConfig:
    """What to measure: every collective with every dtype, reduction and size. Sizes in bytes, times in iterations.

    Without `max_bytes` the largest size is what suits the type of device, see `LARGEST_BYTES`.
    """

    collectives: tuple[CollectiveName, ...]
    dtypes: tuple[DtypeName, ...] = ("float32",)
    ops: tuple[OpName, ...] = ("sum",)
    min_bytes: int = 8
    max_bytes: int | None = None
    factor: int = 2
    warmup: int = 5
    iters: int = 20
    root: int = 0
    backend: str = "auto"
    device: DeviceName = "auto"
    trace_iters: int = 0
    out: Path = Path("traces")
    run_name: str | None = None

    def __post_init__(self) -> None:
        options.check_least(self, {"min_bytes": 1, "factor": 2, "warmup": 0, "iters": 1, "root": 0})
        if self.max_bytes is not None and self.max_bytes < self.min_bytes:
            raise UsageError(
                f"--max-bytes {self.max_bytes}: is below --min-bytes {self.min_bytes}; there is no size between them"
            )
        options.check_run_name(self.run_name)

    def largest_bytes(self, device_type: str) -> int:
        """Largest size on devices of this type, in bytes."""
        return max(self.min_bytes, LARGEST_BYTES[device_type]) if self.max_bytes is None else self.max_bytes

    def sizes_bytes(self, device_type: str) -> list[int]:
        """Sizes from `min_bytes` to the largest, each `factor` times the one before."""
        sizes, largest = [self.min_bytes], self.largest_bytes(device_type)
        while sizes[-1] * self.factor <= largest:
            sizes.append(sizes[-1] * self.factor)
        return sizes

    def run_dir(self, backend: str, world_size: int) -> Path:
        """The run directory, named at the start of rank 0."""
        return options.run_dir(self.out, self.run_name, f"comms-{backend}-w{world_size}")

    def as_json(self) -> dict[str, Any]:
        """Every option, for run.json."""
        return options.as_json(self)


def size_bytes(text: str) -> int:
    """Parse `64M` as bytes: K, M and G are 1024-based, with or without a trailing B. Raises ValueError.

    Source: NVIDIA/nccl-tests src/common.cu, parsesize, which also takes fractions and either case.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size; expected bytes such as 8, 512K, 64M or 1G (1024-based)")
    return int(float(match["number"]) * _UNITS[(match["unit"] or "").lower()])


def distinct(names: Sequence[Any]) -> tuple[Any, ...]:
    """The distinct names, in order."""
    return tuple(dict.fromkeys(names))
