"""The options of `layers`, checked against each other. Knows no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .. import options
from ..config import CIFAR_IMAGE_SIZE, DeviceName, ModelName
from ..errors import UsageError

LayerName = Literal["relu", "maxpool", "conv", "linear"]
MODEL_BATCH_SIZE = 32


@dataclass(frozen=True)
class LayersConfig:
    """What is measured: `layers` by themselves, or without any every layer of `model`.

    `batch_size` None stands for that of the report, or of a model's training. `scale` shrinks single layers,
    `image_size` in pixels is a model's. `power_s` is how long a layer runs while its power is measured.
    """

    model: ModelName = "resnet18"
    layers: tuple[LayerName, ...] = ()
    batch_size: int | None = None
    image_size: int = CIFAR_IMAGE_SIZE
    scale: float = 1.0
    warmup: int = 5
    iters: int = 10
    power_s: float = 2.0
    memory_limit_bytes: int | None = None
    seed: int = 0
    device: DeviceName = "auto"
    out: Path = Path("traces")
    run_name: str | None = None

    def __post_init__(self) -> None:
        options.check_least(self, {"batch_size": 1, "image_size": 1, "warmup": 0, "iters": 1})
        for name in ("scale", "power_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"--{name.replace('_', '-')} must be above 0, found {getattr(self, name)}")
        options.check_run_name(self.run_name)

    @property
    def subject(self) -> str:
        """What is measured, in a word."""
        return "-".join(self.layers) if self.layers else self.model

    def run_dir(self, device_type: str) -> Path:
        """Where the results go when it starts now."""
        return options.run_dir(self.out, self.run_name, f"layers-{self.subject}-{device_type}")

    def as_json(self) -> dict[str, Any]:
        """Every option, as layers.json holds it."""
        return options.as_json(self)
