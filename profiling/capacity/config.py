"""The options of `capacity`, checked against each other. Knows no torch."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...contract.single import LayerCounts
from ..base.commands import options
from ..base.commands.choices import DeviceName
from ..errors import UsageError

GrowName = Literal["conv", "linear"]
# Of the stack of one device, and of each share of the stack of several: more than a search up to 2^15 layers needs.
MAX_TRIES = 64


@dataclass(frozen=True)
class Share(LayerCounts):
    """A stack of layers: convolutions, then linear layers."""

    def __str__(self) -> str:
        return f"{self.conv}+{self.linear}"

    @property
    def layers(self) -> int:
        """Number of layers of both kinds."""
        return self.conv + self.linear

    def with_count(self, kind: GrowName, count: int) -> "Share":
        """The share with `count` layers of this kind."""
        return Share(count, self.linear) if kind == "conv" else Share(self.conv, count)

    def front(self, layers: int) -> "Share":
        """The first `layers` layers."""
        conv = min(layers, self.conv)
        return Share(conv, layers - conv)

    def without(self, front: "Share") -> "Share":
        """The layers after `front`."""
        return Share(self.conv - front.conv, self.linear - front.linear)


@dataclass(frozen=True)
class CapacityConfig:
    """What to search. A `stack` is split as given; else layers of the kind `grow` are added to `fixed` others.

    The memory limit is for each device: for torch's share of a GPU, or for the process that stands for a device on CPU.
    """

    grow: GrowName = "conv"
    fixed: int = 62
    stack: Share | None = None
    devices: int = 1
    batch_size: int = 16
    channels: int = 64
    image_size: int = 112
    warmup: int = 5
    iters: int = 10
    max_tries: int = MAX_TRIES
    memory_limit_bytes: int | None = None
    device: DeviceName = "auto"
    out: Path = Path("traces")
    run_name: str | None = None

    def __post_init__(self) -> None:
        at_least_1 = ("devices", "batch_size", "channels", "image_size", "iters", "max_tries")
        options.check_least(self, {**dict.fromkeys(at_least_1, 1), "fixed": 0, "warmup": 0})
        options.check_run_name(self.run_name)

    def run_dir(self, device_type: str) -> Path:
        """The results' folder, named at the start."""
        return options.run_dir(self.out, self.run_name, f"capacity-{device_type}-d{self.devices}")

    def as_json(self) -> dict[str, Any]:
        """Every option, for capacity.json."""
        return options.as_json(self)


def share(text: str) -> Share:
    """Parse `138+62` as a Share. Raises UsageError."""
    match = re.fullmatch(r"(\d+)\+(\d+)", text.replace(" ", ""))
    if match is None or not (stack := Share(int(match[1]), int(match[2]))).layers:
        raise UsageError(f"--stack {text}: expected convolutions and linear layers, as in 138+62")
    return stack
